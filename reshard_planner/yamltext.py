"""YAML text to plain data, with one clear sentence for what is wrong, and back."""

from __future__ import annotations

import re
from typing import Any

import yaml

from reshard_planner.errors import SpecError

MAX_VALUES = 4_000_000
"""Most values of a document, counting those behind aliases as often as they are used."""


class _StrictLoader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """The safe loader, which also refuses a key given twice instead of keeping the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(
                    f"line {key_node.start_mark.line + 1} has a {key_node.id} as a key; expected text"
                )
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise SpecError(f"line {key_node.start_mark.line + 1} gives the field {key!r} twice")
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


# YAML 1.1 takes 1e-5 for text because it lacks a point; every other reader of numbers does not
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+|\d*\.\d+)[eE][-+]?\d+\Z"),
    list("-+.0123456789"),
)
_StrictLoader.add_implicit_resolver(*_FLOAT)


class _Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
    """The safe dumper, which puts text in quotes where the loader above would take it for a number."""


_Dumper.add_implicit_resolver(*_FLOAT)


def dump_yaml(value: object) -> str:
    """Write plain data as YAML text that :func:`parse_yaml` reads back; fields keep their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True
    )
    return text


def parse_yaml(text: str) -> object:
    """Parse YAML text into plain data.

    Raises:
        SpecError: if it is not well-formed, gives a field twice, or its aliases stand for too much.
    """
    try:
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"not valid YAML at line {line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SpecError("it nests too deeply") from None
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        # how the loader's own constructors fail on tags, dates and numbers that mean nothing
        kind = type(error).__name__
        raise SpecError(f"not valid YAML: a tag, date or number does not fit its value ({kind})") from None
    if _count(value, {}) > MAX_VALUES:
        raise SpecError(f"its aliases stand for too many values; expected at most {MAX_VALUES}")
    return value


def _count(value: object, known: dict[int, int]) -> int:
    """Values in a document; what is shared is looked at once and counted as often as it is used."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_VALUES + 1  # what is found within itself has no end
        members = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(member, known) for member in members)
    return known[id(value)]
