"""Plan files: the columns of a plan as a safetensors file, with the header in its metadata.

The library's loader maps the file into memory, checks every offset and shape, and holds data only. Format:
docs/ir.md.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from reshard_planner.errors import DigestError, PlanFileError
from reshard_planner.ir.digest import (
    INDEX_DTYPE,
    INDEX_NAME,
    canonical_json,
    header_digest,
    make_header,
    stored_columns,
)
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.reading import (
    COLUMN_DTYPES,
    check_names,
    check_shapes,
    make_tables,
    parse_json,
    read_certificate,
    read_form,
    read_spec,
)
from reshard_planner.ir.tables import Column

METADATA_KEY = "reshard_plan"
"""Entry of the metadata that holds the header, as canonical JSON."""

MAX_FILE_NBYTES = 2**33
"""Largest plan file read."""

MAX_HEADER_NBYTES = 100_000_000
"""Largest header that safetensors reads."""

_DTYPES = {"I32": "<i4", "I64": "<i8", "U8": "|u1"}


class HeaderForm(msgspec.Struct, forbid_unknown_fields=True):
    """The header of a plan file."""

    version: int
    digest: str
    spec: dict[str, Any]
    certificate: dict[str, Any]
    columns: dict[str, tuple[str, list[int]]]
    block_rows: int
    blocks: dict[str, list[str]]


def save(plan: Plan, path: Path) -> None:
    """Write a plan file; equal plans give equal bytes.

    Raises:
        PlanFileError: if the file cannot be written; an older file of this name is untouched then.
    """
    columns = stored_columns(plan.tables)
    header = make_header(plan.version, plan.spec, plan.certificate, columns)
    text = canonical_json({**header, "digest": plan.digest}).decode()
    data = to_safetensors(columns, {METADATA_KEY: text})
    nbytes = int.from_bytes(data[:8], "little")
    if nbytes > MAX_HEADER_NBYTES:
        raise PlanFileError(
            f"cannot write {path}: its header has {nbytes} bytes; expected at most {MAX_HEADER_NBYTES}"
        )
    write_atomically(path, data)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: under another name first, which then replaces the target.

    Raises:
        PlanFileError: if it cannot be written; neither a part of it nor the other name is left then.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise PlanFileError(f"cannot write {path}: it is not a regular file")
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            _write_new(temporary, data)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no file system takes
        raise PlanFileError(f"cannot write {path}: {_reason(error)}") from None


def _write_new(path: Path, data: bytes) -> None:
    """Write a file and wait for the disk.

    Where the system can, the file gets its name when it is whole, so that not even a killed process leaves
    a part of it.
    """
    nameless = False
    try:
        descriptor = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o666)
        nameless = True
    except (AttributeError, OSError):  # another system, or a file system without such files
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
        if nameless:
            # a given folder makes Python follow the link to the open file; the path is absolute
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a plan file alone, and check it against its digest.

    With it, any block of a column can be checked on its own.

    Returns:
        The header in plain JSON types, with its digest.

    Raises:
        PlanFileError: if it is not a plan file, or of another version.
        DigestError: if the digest is not that of the header.
    """
    with opened(path) as stored:
        header: dict[str, Any] = parse_header(header_text(stored))
        check_header(header)
        return header


def load_file(path: Path, *, check: bool = True) -> Plan:
    """Read a plan file.

    Args:
        path: the file.
        check: whether to check digest, block hashes and index. Without, a plan that contradicts its digest
            is read as it stands, for ``verify`` to say what is wrong with it.

    Raises:
        PlanFileError: if it is not a plan file, damaged, or of another version.
        DigestError: if its content is not what its digest says.
    """
    with opened(path) as stored:
        text = header_text(stored)
        header = parse_header(text)
        columns = _read_columns(stored)
        tables = make_tables({name: columns[name] for name in COLUMN_DTYPES})
        spec, certificate = read_spec(header["spec"]), read_certificate(header["certificate"])
        plan = Plan(spec, tables, certificate, header["digest"])
        if check:
            check_header(header)
            right = make_header(plan.version, spec, certificate, columns)
            _check_blocks(header["blocks"], right["blocks"])
            _check_index(columns[INDEX_NAME], columns["routes.dst"])
            if text.encode() != canonical_json({**right, "digest": plan.digest}):
                raise PlanFileError("its header is not in canonical form, or not that of its content")
        return plan


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make every error that reading meets name the file.

    Raises:
        PlanFileError: for what is not a plan or cannot be read.
        DigestError: as it comes.
    """
    try:
        yield
    except (PlanFileError, DigestError) as error:
        raise type(error)(f"{path}: {error}") from None
    except SafetensorError as error:
        raise PlanFileError(f"{path}: not a plan file, or damaged: {error}") from None
    except (OSError, ValueError) as error:
        raise PlanFileError(f"cannot read {path}: {_reason(error)}") from None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file, mapped by safetensors."""
    with naming(path):
        check_readable(path, MAX_FILE_NBYTES)
        with safe_open(os.fspath(path), framework="np") as stored:
            yield stored


def check_readable(path: Path, most_nbytes: int) -> None:
    """Refuse what is no regular file or too large, before anything of it is read.

    Raises:
        PlanFileError: without the path's name.
        OSError: if there is no such file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise PlanFileError("not a regular file")
    if status.st_size > most_nbytes:
        raise PlanFileError(f"it has {status.st_size} bytes; expected at most {most_nbytes}")


def header_text(stored: Any) -> str:
    """The header as it is stored.

    Raises:
        PlanFileError: if there is none.
    """
    text: str | None = (stored.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise PlanFileError(f"not a plan file: its metadata has no entry {METADATA_KEY!r}")
    return text


def parse_header(text: str) -> dict[str, Any]:
    """The header in plain JSON types.

    Raises:
        PlanFileError: for another version, or naming the field that is wrong.
    """
    raw: dict[str, Any] = parse_json(text)
    read_form(raw, HeaderForm)
    return raw


def _read_columns(stored: Any) -> dict[str, Column]:
    return {name: stored.get_tensor(name) for name in stored_shapes(stored)}


def stored_shapes(stored: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Element type and shape of every stored column, after checking that they are those of a plan.

    Raises:
        PlanFileError: naming the column that is missing, unknown or of another type or length.
    """
    names = (*COLUMN_DTYPES, INDEX_NAME)
    check_names("column", stored.keys(), names)
    found = {}
    for name in names:
        entry = stored.get_slice(name)
        found[name] = (_DTYPES.get(entry.get_dtype(), entry.get_dtype()), tuple(entry.get_shape()))
    index = found.pop(INDEX_NAME)
    check_shapes(found)
    if index != (INDEX_DTYPE, found["routes.dst"][1]):
        raise PlanFileError(
            f"column {INDEX_NAME!r} has elements {index[0]} and shape {list(index[1])}; expected elements"
            f" {INDEX_DTYPE} and shape {list(found['routes.dst'][1])}"
        )
    return {**found, INDEX_NAME: index}


def check_header(header: Mapping[str, Any]) -> None:
    """Compare a header with its digest.

    Raises:
        PlanFileError: if a number in it is not finite.
        DigestError: with both digests.
    """
    try:
        right = header_digest(header)
    except ValueError:
        raise PlanFileError("the header has a number that is not finite; expected finite numbers") from None
    if header["digest"] != right:
        raise DigestError(f"digest is {header['digest']}; the header gives {right}")


def _check_blocks(given: Mapping[str, list[str]], right: Mapping[str, list[str]]) -> None:
    for name, hashes in right.items():
        for block, value in enumerate(hashes):
            if given.get(name, [])[block : block + 1] != [value]:
                raise DigestError(f"block {block} of column {name!r} is not what its hash in the header says")


def _check_index(index: Column, dst: Column) -> None:
    """Rows in strict order of (dst, row): only one permutation is, so nothing has to be sorted again."""
    right = not len(index) or (index.min() >= 0 and index.max() < len(dst))
    if right:
        step = np.diff(dst[index].astype(np.int64))
        right = bool(((step > 0) | ((step == 0) & (np.diff(index) > 0))).all())
    if not right:
        raise PlanFileError(f"column {INDEX_NAME!r} is not the order of the routes by destination rank")
