"""JSON and YAML text to plain data, and its fields to what they must be, with one sentence if not."""

from __future__ import annotations

from reshard_planner.document import parse_document
from reshard_planner.errors import SpecError, TopologyError
from reshard_planner.topology.wording import quote

MAX_JSON = 2**28
"""Longest JSON text, in characters: some ten thousand nodes as ``kubectl`` prints them."""

MAX_YAML = 2**23
"""Longest YAML text, in characters."""

MAX_YAML_VALUES = 500_000
"""Most commas and lines of YAML text; it is read about a hundred times slower than JSON."""


def parse_plain(text: str, source: str) -> object:
    """Plain data of text that is JSON if it begins like that, and YAML otherwise.

    Raises:
        TopologyError: if it is neither, too large, nested too deeply, or gives a field twice.
    """
    return parse_json(text, source) if text.lstrip()[:1] in ("{", "[") else parse_yaml_text(text, source)


def parse_json(text: str, source: str) -> object:
    """Plain data of JSON text; raises as :func:`parse_plain` does."""
    if len(text) > MAX_JSON:
        raise TopologyError(f"{source} has {len(text)} characters; expected at most {MAX_JSON}")
    return _parse(text, source, is_json=True)


def parse_yaml_text(text: str, source: str) -> object:
    """Plain data of YAML text; raises as :func:`parse_plain` does."""
    if len(text) > MAX_YAML or text.count(",") + text.count("\n") > MAX_YAML_VALUES:
        raise TopologyError(
            f"{source} is YAML of {len(text)} characters; expected at most {MAX_YAML}, with at most"
            f" {MAX_YAML_VALUES} lines and commas; larger files can be read as JSON"
        )
    return _parse(text, source, is_json=False)


def _parse(text: str, source: str, *, is_json: bool) -> object:
    try:
        return parse_document(text, is_json=is_json)
    except SpecError as error:
        raise TopologyError(f"{source}: {error}") from None


def mapping(value: object, place: str) -> dict[str, object]:
    """The value, which must be fields with names.

    Raises:
        TopologyError: if it is not.
    """
    if not isinstance(value, dict):
        raise TopologyError(f"{place} is {described(value)}; expected fields with names")
    for key in value:
        if not isinstance(key, str):
            raise TopologyError(
                f"{place} has the field {described(key)}, which is no text; expected a name, in quotes"
            )
    return value


def sequence(value: object, place: str) -> list[object]:
    """The value, which must be a list.

    Raises:
        TopologyError: if it is not.
    """
    if not isinstance(value, list):
        raise TopologyError(f"{place} is {described(value)}; expected a list")
    return value


def string(value: object, place: str) -> str:
    """The value, which must be text that is not empty.

    Raises:
        TopologyError: if it is not; numbers are refused, as YAML reads 010 as 8.
    """
    if not isinstance(value, str) or not value:
        raise TopologyError(
            f"{place} is {described(value)}; expected text, in quotes if it looks like a number"
        )
    return value


def strings(value: object, place: str) -> dict[str, str]:
    """The fields that are text; no fields for None.

    Raises:
        TopologyError: if the value is neither fields nor None.
    """
    fields = {} if value is None else mapping(value, place)
    return {key: text for key, text in fields.items() if isinstance(text, str)}


def described(value: object) -> str:
    """A value, in a few words."""
    if value is None:
        return "missing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object with fields"
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of many digits"
    if isinstance(value, str):
        return quote(value, 60)
    return repr(value) if isinstance(value, int | float) else type(value).__name__
