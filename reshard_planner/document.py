"""Reading text files, YAML and JSON documents, with one clear sentence for what is wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from reshard_planner.errors import SpecError

MAX_DOCUMENT_NBYTES = 256 * 2**20
"""Largest file read, so that a wrong file name cannot fill the memory."""


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark.

    Raises:
        SpecError: if the file cannot be read, is too large, or is not text in UTF-8.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(f"cannot read {path}: it is not a regular file")
        if status.st_size > MAX_DOCUMENT_NBYTES:
            raise SpecError(f"{path} has {status.st_size} bytes; expected at most {MAX_DOCUMENT_NBYTES}")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file; expected text in UTF-8") from None
    except ValueError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error}") from None


def read_document(path: Path) -> object:
    """Parse a YAML or JSON file into plain data.

    JSON is used for ``.json``, YAML (of which JSON is a part) for everything else.

    Raises:
        SpecError: if the file cannot be read, is too large, or is not well-formed.
    """
    text = read_text(path)
    try:
        return parse_document(text, is_json=path.suffix.lower() == ".json")
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def parse_document(text: str, *, is_json: bool = False) -> object:
    """Parse YAML or JSON text into plain data.

    Raises:
        SpecError: if it is not well-formed, gives a field twice or nests too deeply.
    """
    try:
        if is_json:
            return json.loads(text, object_pairs_hook=_unique)
        from reshard_planner.yamltext import parse_yaml  # noqa: PLC0415 - YAML is slow to import

        return parse_yaml(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"not valid JSON at line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise SpecError(f"not valid YAML or JSON: {reason}") from None
    except RecursionError:
        raise SpecError("it nests too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise SpecError(f"the field {key!r:.60} is given twice")
        found[key] = value
    return found
