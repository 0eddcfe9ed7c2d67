"""YAML text to plain data, with one clear sentence for what is wrong."""

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
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+|\d*\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


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
    except (KeyError, AttributeError, TypeError) as error:
        # how the loader's own constructors fail on tags that do not fit their text
        raise SpecError(f"not valid YAML: a tag does not fit its value ({type(error).__name__})") from None
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
