"""Spec files: YAML or JSON, as documented in docs/spec.md."""

from __future__ import annotations

import re
from pathlib import Path

from reshard_planner.document import parse_document, read_document
from reshard_planner.errors import InputError, SpecError
from reshard_planner.spec.form import spec_from_dict
from reshard_planner.spec.values import ReshardSpec

PLAN_HEADS = (
    re.compile(rb".{4}\0{4}\{", re.DOTALL),
    re.compile(rb"plan \d"),
    re.compile(rb"\s*\{\s*\"version\":\s*\d+,\s*\"digest\":"),
)
"""How plans begin: as binary files, as text, and as JSON. See :mod:`reshard_planner.ir.forms`."""

EXPECTED = "expected a spec, YAML or JSON: give the file that the plan was compiled from"

HEAD_NBYTES = 256

PLAN_FIELDS = {"digest", "tables"}
"""Fields that plans in JSON have, and specs have not."""

MODEL_FIELDS = {"architectures", "model_type"}
"""Fields of which configurations of models have one, and specs none."""


def load_spec(path: Path) -> ReshardSpec:
    """Read a spec file.

    Raises:
        InputError: naming the file, the field and its value; or saying that the file is a plan or a
            model's configuration.
    """
    try:
        raw = read_document(path)
    except SpecError:
        if looks_like_plan(path):
            raise SpecError(f"{path} is a plan, or part of one; {EXPECTED}") from None
        raise
    if isinstance(raw, dict) and raw.keys() >= PLAN_FIELDS:
        raise SpecError(f"{path} is a plan; {EXPECTED}")
    if isinstance(raw, dict) and not MODEL_FIELDS.isdisjoint(raw):
        raise SpecError(
            f"{path} is a model's configuration; expected a spec, which `reshard-planner model {path} --train"
            " P --serve P --spec FILE` makes of it"
        )
    try:
        return spec_from_dict(raw, path.parent)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None


def looks_like_plan(path: Path) -> bool:
    """Whether a file begins as one of the forms of a plan does, and not as a spec."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(HEAD_NBYTES)
    except (OSError, ValueError):
        return False
    return any(begin.match(head) for begin in PLAN_HEADS)


def parse_spec(text: str) -> ReshardSpec:
    """Read a spec from YAML or JSON text.

    Raises:
        InputError: naming the field and its value.
    """
    return spec_from_dict(parse_document(text))
