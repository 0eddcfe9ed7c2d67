"""Reading plain data (parsed YAML or JSON) into declared forms, with errors that name field and value."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

from reshard_planner.errors import SpecError

FormType = TypeVar("FormType")

UNITS = {
    "bytes_per_s": " of bytes per second, such as 50.0e+9",
    "_s": " of seconds, such as 5.0e-6",
    "efficiency": " from 0 to 1, such as 0.95",
}
"""What a number is of, by the ends of fields' names."""

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def convert(raw: object, form: type[FormType], path: str) -> FormType:
    """Check plain data against a form and return it.

    Args:
        raw: dicts, lists, strings and numbers.
        form: a struct that forbids unknown fields, or a dataclass, which ignores them.
        path: where ``raw`` stands, as the start of the field path in errors; "" at the top.

    Raises:
        SpecError: naming the field's path, its value and what would be right.
    """
    if not isinstance(raw, dict):
        raise SpecError(f"{path or 'the document'} is {_shown(raw)}; expected a mapping of {_fields(form)}")
    for key in raw:
        if not isinstance(key, str):
            raise SpecError(f"{path or 'the document'} has the key {key!r}; expected a string")
    try:
        return msgspec.convert(raw, form, strict=True)
    except msgspec.ValidationError as error:
        raise SpecError(_explain(str(error), raw, form, path)) from None
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{path or 'the document'} holds half a surrogate pair, {error.object!a:.40}"
        ) from None


def _explain(text: str, raw: object, form: type[Any], path: str) -> str:
    match = _WHERE.match(text)
    what, inner = (match["what"], match["path"] or "") if match else (text, "")
    full = f"{path}{inner}".lstrip(".") or "the document"
    if missing := re.match(r"Object missing required field `(.*)`", what):
        return f"{full} lacks the field {missing[1]!r}"
    if unknown := re.match(r"Object contains unknown field `(.*)`", what):
        known = f"; expected one of {_fields(form)}" if not inner else ""
        return f"{full} has the unknown field {unknown[1]!r}{known}"
    value = raw
    for name, index in _STEP.findall(inner):
        try:
            value = value[name] if name else value[int(index)]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return f"{full}: {what}"
    if what.startswith("Invalid enum value"):
        return f"{full} is {_shown(value)}, which is none of the words that this field takes"
    wanted = re.sub(r"^Expected `(.*?)`.*", r"expected \1", what, flags=re.DOTALL)
    wanted = wanted.replace("object", "mapping").replace("array", "list").replace(" | null", "")
    if wanted == "expected int | float":
        unit = next((unit for end, unit in UNITS.items() if full.endswith(end)), "")
        wanted = f"expected a number{unit}"
    return f"{full} is {_shown(value)}; {wanted}"


def _fields(form: type[Any]) -> str:
    if is_dataclass(form):
        return ", ".join(entry.name for entry in fields(form))
    return ", ".join(form.__struct_encode_fields__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
