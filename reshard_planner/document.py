"""Reading YAML and JSON documents, with one clear sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from reshard_planner.errors import SpecError

MAX_DOCUMENT_NBYTES = 256 * 2**20
"""Largest document read, so that a wrong file name cannot fill the memory."""


class _StrictLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, which also refuses a key given twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise SpecError(f"line {key_node.start_mark.line + 1} has the key {key!r}; expected a string")
            if key in seen:
                raise SpecError(f"line {key_node.start_mark.line + 1} gives the field {key!r} twice")
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


def read_document(path: Path) -> object:
    """Parse a YAML or JSON file into plain data.

    JSON is used for ``.json``, YAML (of which JSON is a part) for everything else.

    Raises:
        SpecError: if the file cannot be read, is too large, or is not well-formed.
    """
    try:
        if path.is_file() and path.stat().st_size > MAX_DOCUMENT_NBYTES:
            raise SpecError(f"{path} has {path.stat().st_size} bytes; expected at most {MAX_DOCUMENT_NBYTES}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file; expected YAML or JSON in UTF-8") from None
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
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except json.JSONDecodeError as error:
        raise SpecError(f"not valid JSON at line {error.lineno}: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"not valid YAML at line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SpecError(f"not valid YAML or JSON: {reason}") from None
    except RecursionError:
        raise SpecError("it nests too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise SpecError(f"the field {key!r} is given twice")
        found[key] = value
    return found
