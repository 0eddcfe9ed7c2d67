"""The three forms of a plan on disk: the binary file, JSON and text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from reshard_planner.errors import PlanFileError
from reshard_planner.ir import jsonform, textform
from reshard_planner.ir.file import MAX_FILE_NBYTES, check_readable, load_file, naming, save, write_atomically
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.program import Program, no_collections
from reshard_planner.ir.rankfile import read_rank
from reshard_planner.ir.reading import parse_json

MAX_TEXT_NBYTES = 2**30
"""Largest JSON or text form read and written."""

WRITERS: dict[str, Callable[[Plan], str]] = {".json": jsonform.dumps, ".txt": textform.dumps}
"""Writers of the readable forms by suffix; every other suffix means the binary file."""

_HEAD_NBYTES = 4096
_BINARY = re.compile(rb".{4}\0{4}\{", re.DOTALL)  # eight bytes of length, below 2^32, and JSON
_JSON = re.compile(rb"\s*\{")
_TEXT = re.compile(rb"plan \d")


def load(path: Path, *, check: bool = True) -> Plan:
    """Read a plan in any of its forms, which its content tells.

    Args:
        path: the file.
        check: whether to compare the digest with the content; see :func:`reshard_planner.ir.file.load_file`.

    Raises:
        PlanFileError: if it is not a plan, damaged, or of another version.
        DigestError: if its content is not what its digest says.
    """
    with naming(path):
        head = _head(path)
        if _JSON.match(head):
            return jsonform.loads(_text(path), check=check)
        if _TEXT.match(head):
            return textform.loads(_text(path), check=check)
        if not _BINARY.match(head):
            raise PlanFileError("not a plan; expected the binary, JSON or text form of one")
    return load_file(path, check=check)


def read_program(path: str | Path, rank: int) -> Program:
    """What one rank does, as :meth:`reshard_planner.ir.plan.Plan.program` of the loaded plan gives it.

    Of the binary file only the rank's own blocks are read and checked; see
    :func:`reshard_planner.ir.rankfile.read_rank`. The other forms are read whole.

    Raises:
        PlanFileError: if it is not a plan, damaged, or of another version.
        DigestError: if what is read is not what the digest says.
        CausalityError: if a row reads a tile that the rank does not have.
        CoverageError: if a row writes a tile that the rank does not have.
    """
    place = Path(path)
    with naming(place):
        binary = _BINARY.match(_head(place))
    with no_collections():
        return read_rank(place, rank) if binary else load(place).program(rank)


def is_plan(path: Path) -> bool:
    """Whether a file looks like a plan in one of its forms, and not like a spec or anything else."""
    try:
        head = _head(path)
        if not _JSON.match(head):
            return bool(_BINARY.match(head) or _TEXT.match(head))
        raw = parse_json(_text(path))
    except (PlanFileError, OSError, ValueError):
        return False
    return isinstance(raw, dict) and {"digest", "tables"} <= raw.keys()


def save_as(plan: Plan, path: Path) -> None:
    """Write a plan as its name says: ``.json`` and ``.txt`` give those forms, all else the binary file.

    Raises:
        PlanFileError: if the file cannot be written; an older file of this name is untouched then.
    """
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        save(plan, path)
        return
    data = writer(plan).encode("ascii")
    if len(data) > MAX_TEXT_NBYTES:
        raise PlanFileError(
            f"cannot write {path}: it has {len(data)} bytes; expected at most {MAX_TEXT_NBYTES}"
        )
    write_atomically(path, data)


def _head(path: Path) -> bytes:
    check_readable(path, MAX_FILE_NBYTES)
    with path.open("rb") as stream:
        return stream.read(_HEAD_NBYTES)


def _text(path: Path) -> str:
    check_readable(path, MAX_TEXT_NBYTES)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise PlanFileError("not text in UTF-8") from None
