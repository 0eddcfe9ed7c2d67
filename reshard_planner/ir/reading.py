"""Reading plans back: checks that all forms share, from plain data and columns to a plan.

Sizes are checked before anything is allocated for them. Values within the tables are not: that is the
work of ``verify``, and nothing here depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from reshard_planner.document import parse_document
from reshard_planner.errors import DigestError, InputError, PlanFileError
from reshard_planner.forms import convert
from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.digest import canonical_json, digest_of
from reshard_planner.ir.plan import VERSION, Plan
from reshard_planner.ir.tables import TABLE_TYPES, Column, Tables
from reshard_planner.spec import ReshardSpec, spec_from_dict
from reshard_planner.spec.values import MAX_DIMS

FormType = TypeVar("FormType", bound=msgspec.Struct)

DIGEST_PATTERN = "[0-9a-f]{64}"
"""What a digest looks like."""

COLUMN_DTYPES = {
    f"{table}.{column}": dtype for table, kind in TABLE_TYPES.items() for column, dtype in kind.DTYPES.items()
}
"""Element type of every column of every table, by ``table.column``."""

BOX_COLUMNS = ("pieces.lo", "pieces.hi")
"""Columns with one value per dimension."""

MAX_SPEC_NUMBERS = 2**22
"""Most ranks and GPUs that a spec may list, all meshes and the topology together."""

_SAME_LENGTH = (
    ("groups.subst_group", "groups.subst_from", "groups.subst_to"),
    *(
        tuple(f"{table}.{column}" for column in kind.DTYPES)
        for table, kind in TABLE_TYPES.items()
        if table != "groups"
    ),
)
_RANGE = re.compile(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*")
_TOPOLOGY_FIELDS = {"domains", "nics", "name", "pods", "rank_map"}


def parse_json(text: str) -> Any:
    """Parse strict JSON.

    Raises:
        PlanFileError: if it is not well-formed, gives a field twice or nests too deeply.
    """
    try:
        return parse_document(text, is_json=True)
    except InputError as error:
        raise PlanFileError(str(error)) from None


def read_form(raw: object, form: type[FormType]) -> FormType:
    """Check the outermost mapping of a plan against its form, version and digest first.

    Raises:
        PlanFileError: for another version, or naming the field that is wrong.
    """
    if not isinstance(raw, dict):
        raise PlanFileError("not a plan; expected a mapping")
    if "version" in raw:
        check_version(raw["version"])
    digest = raw.get("digest")
    if digest is None:
        raise PlanFileError("not a plan: it has no digest")
    if not isinstance(digest, str) or not re.fullmatch(DIGEST_PATTERN, digest):
        raise PlanFileError(f"digest is {digest!r}; expected 64 hexadecimal digits")
    try:
        return convert(raw, form, "")
    except InputError as error:
        raise PlanFileError(str(error)) from None


def check_version(version: object) -> None:
    """Refuse every version of the plan format but the one that this release writes.

    Raises:
        PlanFileError: naming both versions.
    """
    if type(version) is not int or version != VERSION:
        raise PlanFileError(f"version is {version!r}; this release reads version {VERSION}")


def check_shapes(found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Check names, element types and shapes of all columns against the tables.

    Args:
        found: element type, as numpy spells it, and shape by ``table.column``.

    Raises:
        PlanFileError: naming the column.
    """
    check_names("column", found, COLUMN_DTYPES)
    for name, (dtype, shape) in found.items():
        dims = 2 if name in BOX_COLUMNS else 1
        if dtype != COLUMN_DTYPES[name] or len(shape) != dims:
            raise PlanFileError(
                f"column {name!r} has elements {dtype} and shape {list(shape)}; expected elements"
                f" {COLUMN_DTYPES[name]} and {dims} {'dimensions' if dims > 1 else 'dimension'}"
            )
    for names in _SAME_LENGTH:
        for name in names:
            if found[name][1][0] != found[names[0]][1][0]:
                raise PlanFileError(
                    f"column {name!r} has {found[name][1][0]} rows; expected {found[names[0]][1][0]} as in"
                    f" {names[0]!r}"
                )
    lo, hi = (found[name][1][1] for name in BOX_COLUMNS)
    if lo != hi or lo > MAX_DIMS:
        raise PlanFileError(
            f"columns 'pieces.lo' and 'pieces.hi' have {lo} and {hi} dimensions; expected the same number, at"
            f" most {MAX_DIMS}"
        )


def check_names(what: str, found: Iterable[str], expected: Iterable[str]) -> None:
    """Compare two sets of names.

    Raises:
        PlanFileError: naming what is missing or unknown.
    """
    names, wanted = set(found), set(expected)
    for name in sorted(wanted - names):
        raise PlanFileError(f"{what} {name!r} is missing")
    for name in sorted(names - wanted):
        raise PlanFileError(f"{what} {name!r} is unknown")


def make_column(name: str, values: object) -> Column:
    """A column from (nested) lists of integers.

    Raises:
        PlanFileError: if they are something else, ragged, or out of the range of the column's elements.
    """
    form: Any = list[list[int]] if name in BOX_COLUMNS else list[int]
    bounds = np.iinfo(COLUMN_DTYPES[name])
    try:
        column = np.array(msgspec.convert(values, form, strict=True), dtype=np.int64)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"column {name!r}: {error}") from None
    except OverflowError:
        raise PlanFileError(f"column {name!r} has a number of more than 64 bits") from None
    except ValueError:
        raise PlanFileError(f"column {name!r} has rows of different lengths; expected equal ones") from None
    if name in BOX_COLUMNS and not len(column):
        column = column.reshape(0, 0)
    bad = np.argwhere((column < bounds.min) | (column > bounds.max))
    if len(bad):
        value, row = int(column[tuple(bad[0])]), int(bad[0][0])
        raise PlanFileError(
            f"column {name!r} has {value} in row {row}; expected {bounds.min} to {bounds.max}"
        )
    return column.astype(COLUMN_DTYPES[name])


def make_tables(columns: Mapping[str, Column]) -> Tables:
    """The tables from their columns by ``table.column``.

    Raises:
        PlanFileError: as :func:`check_shapes`.
    """
    check_shapes({name: (column.dtype.str, column.shape) for name, column in columns.items()})
    tables: dict[str, Any] = {
        table: kind.of({column: columns[f"{table}.{column}"] for column in kind.DTYPES})
        for table, kind in TABLE_TYPES.items()
    }
    return Tables(**tables)


def read_spec(raw: dict[str, Any]) -> ReshardSpec:
    """The spec of a plan, which names no other file and no preset.

    Raises:
        PlanFileError: naming the field that is wrong.
    """
    topology = raw.get("topology")
    if not isinstance(topology, dict):
        raise PlanFileError(f"spec.topology is {topology!r}; expected a mapping")
    for name in topology:
        if name not in _TOPOLOGY_FIELDS:
            raise PlanFileError(f"spec.topology has the field {name!r}; plans hold the explicit form only")
    listed = sum(map(_count_numbers, (*_mappings(raw.get("meshes")), topology)))
    if listed > MAX_SPEC_NUMBERS:
        raise PlanFileError(f"spec lists {listed} ranks and GPUs; expected at most {MAX_SPEC_NUMBERS}")
    try:
        return spec_from_dict(raw)
    except (InputError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise PlanFileError(f"spec: {error}") from None


def _mappings(raw: object) -> Iterator[dict[str, Any]]:
    if isinstance(raw, dict):
        yield from (entry for entry in raw.values() if isinstance(entry, dict))


def _count_numbers(entry: dict[str, Any]) -> int:
    """Numbers that the ranges of a mesh or a topology stand for, without making them."""
    total = 0
    pending: list[object] = list(entry.values())
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            parts = value.split(",")
            ranges = (_RANGE.fullmatch(part) for part in parts)
            total += len(parts) + sum(max(0, int(at[2]) - int(at[1])) for at in ranges if at)
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        else:
            total += 1
    return total


def read_certificate(raw: dict[str, Any]) -> Certificate:
    """The certificate of a plan.

    Raises:
        PlanFileError: if a field is missing, unknown, of the wrong type or not finite.
    """
    certificate = Certificate.from_dict(raw)
    try:
        canonical_json(certificate.to_dict())
    except ValueError:
        raise PlanFileError("certificate: a number is not finite; expected finite numbers") from None
    return certificate


def check_digest(plan: Plan) -> None:
    """Compare the digest of a plan with that of its content.

    Raises:
        DigestError: with both digests.
    """
    right = digest_of(plan.version, plan.spec, plan.tables, plan.certificate)
    if plan.digest != right:
        raise DigestError(f"digest is {plan.digest}; the content gives {right}")
