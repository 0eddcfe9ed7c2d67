"""The lines of the text form: described once, for writing and for reading."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from reshard_planner.errors import PlanFileError
from reshard_planner.ir.reading import COLUMN_DTYPES, DIGEST_PATTERN, parse_json
from reshard_planner.ir.tables import Column
from reshard_planner.transfer import Medium, Role

_LINK = "bytes_per_s {bytes_per_s} efficiency {efficiency} latency_s {latency_s}"

LINES = {
    "plan": "plan {version}",
    "digest": "digest {digest}",
    "options": "options strategy {name} proxies {proxies} staging {staging} lag {lag}"
    " min_message {min_message} max_peers_per_slot {max_peers_per_slot} max_network_peers {max_network_peers}"
    " max_nvlink_peers {max_nvlink_peers}",
    "preference": "preference rails {rails}",
    "topology": "topology {name}",
    "domain": "domain {gpus} " + _LINK,
    "nic": "nic {gpus} " + _LINK,
    "rails": "rails {gpus}",
    "pod": "pod {domains} uplink " + _LINK,
    "rank_map": "rank_map {gpus}",
    "mesh": "mesh {mesh} ranks {ranks} axes {axes}",
    "storage": "storage {storage} {value}",
    "tensor": "tensor {row}: {name} {dtype} {shape} src {src_layouts} dst {dst_layouts}",
    "certificate": "certificate {claim} {value}",
    "groups": "groups {count} substitutions {substitutions}",
    "group_of": "group_of {group_of}",
    "group": "group {row}: routes_of {routes_of}",
    "substitution": "substitution {row}: group {subst_group} r{subst_from} -> r{subst_to}",
    "pieces": "pieces {count} dims {dims}",
    "piece": "piece {row}: group {group} part {part} cut_dim {cut_dim} box {box}",
    "routes": "routes {count}",
    "route": "route {row}: piece {piece} r{src} -> r{dst} {medium} {role} {place} offset {offset}"
    " parent {parent}",
    "schedule": "schedule {count}",
    "unit": "unit {row}: group {group} tensor {tensor} part {part} chunk {chunk} of {n_chunks} round {round}",
}
"""What a line of each first word looks like."""

_COUNT = r"\d{1,9}"
_INT = r"-?\d{1,19}"
_INTS = rf"\[(?:{_INT}(?:, {_INT})*)?\]"
_RANGE = rf"{_INT}:{_INT}"
_STRING = r'"(?:[^"\\]|\\.)*"'
_PLACEMENT = r"[^\s,()\[\]]+(?:\([^()\[\]]*\))?"
_PLACEMENTS = rf"\[(?:{_PLACEMENT}(?:, {_PLACEMENT})*)?\]"
_STRINGS = rf"\[{_STRING}(?:, {_STRING})*\]"
_LAYOUT = rf"m\d+(?: {_PLACEMENTS})?(?: storage s\d+)?(?: buffers {_STRINGS})?"
_LAYOUT_PARTS = re.compile(
    rf"(m\d+)(?: ({_PLACEMENTS}))?(?: storage (s\d+))?(?: buffers ({_STRINGS}))?", re.ASCII
)
_FIELDS = {
    **dict.fromkeys(("version", "row", "count", "substitutions", "dims"), _COUNT),
    **dict.fromkeys(("gpus", "domains", "ranks"), r"\S+"),
    "dtype": r"\S+(?: to \S+)?",
    **dict.fromkeys(("bytes_per_s", "efficiency", "latency_s"), r"\S+"),
    **dict.fromkeys(("medium", "role", "claim", "proxies", "rails"), r"\w+"),
    **dict.fromkeys(("group_of", "shape"), _INTS),
    **dict.fromkeys(("src_layouts", "dst_layouts"), f"{_LAYOUT}(?:, {_LAYOUT})*"),
    **dict.fromkeys(("cut_dim", "parent"), f"-|{_INT}"),
    "digest": DIGEST_PATTERN,
    "name": _STRING,
    "mesh": r"m\d+",
    "storage": r"s\d+",
    "axes": r"\{.*\}",
    "value": ".+",
    "place": rf"tile {_INT}|scratch|scratch {_INT} tile {_INT}",
    "box": rf"\[(?:{_RANGE}(?:, {_RANGE})*)?\]",
}
"""Patterns of the fields; all others are integers."""

_LABELS = {
    "medium": {int(member): member.label for member in Medium},
    "role": {int(member): member.label for member in Role},
}
_VALUES = {field: {name: value for value, name in names.items()} for field, names in _LABELS.items()}
_TABLE_OF = {
    "group": "groups",
    "substitution": "groups",
    "piece": "pieces",
    "route": "routes",
    "unit": "schedule",
}
"""Table whose rows the numbered lines of a first word are."""


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    fields = (f"(?P<{name}>{_FIELDS.get(name, _INT)})" for name in parts[1::2])
    return re.compile("".join(re.escape(text) + next(fields, "") for text in parts[::2]), re.ASCII)


_PATTERNS = {word: _pattern(template) for word, template in LINES.items()}


def line(word: str, **values: object) -> str:
    """One line, without its end."""
    return LINES[word].format(**values)


def rows(columns: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    """Rows of columns as plain values, with their numbers."""
    for row, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
        yield {"row": row, **dict(zip(columns, values, strict=True))}


def dashed(value: int) -> str:
    """A number, or a dash for -1."""
    return "-" if value == -1 else str(value)


def label(field: str, value: int) -> str:
    """The word of a medium or role; the number where a malformed plan has one that means nothing."""
    return _LABELS[field].get(value) or str(value)


def layouts_text(layouts: list[dict[str, Any]]) -> str:
    """Layouts, as a spec's plain data has them, but for dtypes."""
    found = []
    for layout in layouts:
        parts = [layout["mesh"]]
        if "placements" in layout:
            parts.append(f"[{', '.join(layout['placements'])}]")
        if "storage" in layout:
            parts += ["storage", layout["storage"]]
        if "buffers" in layout:
            parts += ["buffers", json.dumps(layout["buffers"])]
        found.append(" ".join(parts))
    return ", ".join(found)


def parse_layouts(text: str, parse: Callable[[str], Any]) -> list[dict[str, Any]]:
    """What :func:`layouts_text` wrote; ``parse`` reads JSON."""
    found = []
    for match in _LAYOUT_PARTS.finditer(text):
        mesh, placements, storage, buffers = match.groups()
        layout: dict[str, Any] = {"mesh": mesh}
        if placements is not None:
            layout["placements"] = re.findall(_PLACEMENT, placements[1:-1])
        if storage is not None:
            layout["storage"] = storage
        if buffers is not None:
            layout["buffers"] = parse(buffers)
        found.append(layout)
    return found


def dtypes_text(tensor: dict[str, Any]) -> str:
    """The element type of a tensor, as a spec's plain data has it; both where it is converted."""
    if "dtype" in tensor:
        return str(tensor["dtype"])
    return " to ".join(tensor[side][0]["dtype"] for side in ("src", "dst"))


def parse_dtypes(text: str, sides: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What :func:`dtypes_text` wrote, as fields of a tensor, or of the layouts of its sides."""
    src, converts, dst = text.partition(" to ")
    if not converts:
        return {"dtype": src, **sides}
    dtypes = {"src": src, "dst": dst}
    layouts = {side: [{**each, "dtype": dtypes[side]} for each in found] for side, found in sides.items()}
    return {"cast": True, **layouts}


def place_text(scratch: int, tile: int) -> str:
    """Where a row puts its bytes; the third form is for malformed plans."""
    if not scratch:
        return f"tile {tile}"
    return "scratch" if (scratch, tile) == (1, -1) else f"scratch {scratch} tile {tile}"


def parse_place(text: str) -> tuple[int, int]:
    """What :func:`place_text` wrote."""
    words = text.split()
    if words[0] == "tile":
        return 0, int(words[1])
    return (1, -1) if len(words) == 1 else (int(words[1]), int(words[3]))


class LineReader:
    """Takes the lines of a text one by one; every error names the line and shows it."""

    def __init__(self, text: str) -> None:
        self._lines = text.removesuffix("\n").split("\n")
        self.at = 0
        """Number of the line taken last, from 1."""

    def comes(self, word: str) -> bool:
        """Whether the next line has this first word."""
        return self.at < len(self._lines) and self._lines[self.at].startswith(word + " ")

    def take(self, word: str) -> dict[str, str]:
        """Fields of the next line, which must have this first word."""
        self.at += 1
        if self.at > len(self._lines):
            raise PlanFileError(f"the text ends after line {self.at - 1}; expected {LINES[word]!r}")
        match = _PATTERNS[word].fullmatch(self._lines[self.at - 1])
        if match is None:
            self.fail(f"expected {LINES[word]!r}")
        return match.groupdict()

    def take_row(self, word: str, row: int) -> dict[str, str]:
        """Fields of the next line, which must have this first word and number."""
        fields = self.take(word)
        if fields["row"] != str(row):
            self.fail(f"expected the number {row}")
        return fields

    def take_columns(self, word: str, count: int) -> dict[str, list[Any]]:
        """Fields of the next lines by name: integers as such, places and boxes as text."""
        limits: dict[str, tuple[int, int]] = {}
        for name in _PATTERNS[word].groupindex:
            if dtype := COLUMN_DTYPES.get(f"{_TABLE_OF[word]}.{name}"):
                limits[name] = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        columns: dict[str, list[Any]] = {name: [] for name in _PATTERNS[word].groupindex}
        for row in range(count):
            fields: dict[str, Any] = self.take_row(word, row)
            for name, (low, high) in limits.items():
                fields[name] = value = self._number(name, fields[name])
                if not low <= value <= high:
                    self.fail(f"{name} is out of range; expected {low} to {high}")
            for name, value in fields.items():
                columns[name].append(value)
        return columns

    def _number(self, field: str, text: str) -> int:
        if text == "-":
            return -1
        if field in _VALUES and not text.isdecimal():
            if text not in _VALUES[field]:
                self.fail(f"{field} is {text!r}; expected one of {', '.join(_VALUES[field])}")
            return _VALUES[field][text]
        return int(text[:20])

    def json(self, text: str) -> Any:
        """A JSON value within the line taken last."""
        try:
            return parse_json(text)
        except PlanFileError as error:
            self.fail(str(error))

    def end(self) -> None:
        """Refuse further lines."""
        if self.at < len(self._lines):
            self.at += 1
            self.fail("expected the end of the text")

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        """Refuse the line of this number, or the one taken last.

        Raises:
            PlanFileError: always.
        """
        number = self.at if at is None else at
        text = json.dumps(self._lines[number - 1])
        raise PlanFileError(f"line {number} is {text if len(text) <= 100 else text[:97] + '...'}; {why}")
