"""Spec files: YAML or JSON, as documented in docs/spec.md."""

from __future__ import annotations

from pathlib import Path

from reshard_planner.document import parse_document, read_document
from reshard_planner.errors import InputError
from reshard_planner.spec.form import spec_from_dict
from reshard_planner.spec.values import ReshardSpec


def load_spec(path: Path) -> ReshardSpec:
    """Read a spec file.

    Raises:
        InputError: naming the file, the field and its value.
    """
    raw = read_document(path)
    try:
        return spec_from_dict(raw, path.parent)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None


def parse_spec(text: str) -> ReshardSpec:
    """Read a spec from YAML or JSON text.

    Raises:
        InputError: naming the field and its value.
    """
    return spec_from_dict(parse_document(text))
