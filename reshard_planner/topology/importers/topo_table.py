"""The text of ``nvidia-smi topo -m``, captured or pasted, as a table of cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.model import MAX_HOST_GPUS, MAX_NAME, MAX_NICS
from reshard_planner.topology.wording import listed, quote

MAX_LINE = 2**15
"""Longest line that is looked at, in characters; a row of the largest table is much shorter."""

MAX_TEXT = 2**26
"""Longest text that is looked at, in characters."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]{0,64}[ -/]?[@-~]?|\x1b.?|\[\d{1,2}(?:;\d{1,3}){0,4}m"
)
_LINK = re.compile(r"X|NV\d{1,3}|SYS|NODE|PHB|PXB|PIX")
_LINKS = re.compile(r"(?:X|NV\d{1,3}|SYS|NODE|PHB|PXB|PIX){2,8}")
_GPU = re.compile(r"GPU\d{1,4}")
_NIC = re.compile(rf"(?!GPU\d|NIC\d+\D|CPU|NUMA)[A-Za-z][\w.:-]{{0,{MAX_NAME - 1}}}", re.ASCII)
_COMMAND = re.compile(r"topo (-\w+|--\w[\w-]*)")
_LEGEND = re.compile(rf"\s*(NIC\d{{1,4}})\s*:\s*([\w.:-]{{1,{MAX_NAME}}})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        line: its line, from 1.
        links: what lies between its device and that of each column; None where the text does not say.
        numa: its NUMA affinity as written; "" where it has none.
    """

    line: int
    links: tuple[str | None, ...]
    numa: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The table.

    Attributes:
        gpus: names of its GPUs, the first of its columns.
        nics: names of its NICs as the columns have them, after the GPUs.
        rows: the row of each device that has one.
        legend: what NICs are called, by the name of their column.
        has_numa: whether it has a column of NUMA affinity.
        findings: what in the text was damaged.
    """

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    rows: dict[str, Row]
    legend: dict[str, str]
    has_numa: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Header:
    line: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    titles: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gpus + self.nics


def has_table(text: str) -> bool:
    """Whether a header and the row of its first GPU stand in the text."""
    header: _Header | None = None
    for _, line in _lines(text[:MAX_TEXT]):
        if header is None:
            header = _header(0, line)
        elif line.split(maxsplit=1)[0] == header.gpus[0]:
            cells = set(line.split()[1:])
            links = {cell for cell in cells if _LINK.fullmatch(cell) or _LINKS.fullmatch(cell)}
            return "X" in cells if len(header.gpus) == 1 else bool(links - {"X"})
    return False


def read_table(text: str, source: str) -> Table:
    """The first table of a text.

    Raises:
        TopologyError: if there is none, or it has columns that no such table has.
    """
    if len(text) > MAX_TEXT:
        raise TopologyError(f"{source} has {len(text)} characters; expected at most {MAX_TEXT}")
    header: _Header | None = None
    rows: dict[str, Row] = {}
    legend: dict[str, str] = {}
    findings: list[Finding] = []
    last = 0
    option = ""
    for number, line in _lines(text):
        place = f"{source}, line {number}"
        found = _header(number, line)
        if found is not None and header is not None and not rows and found.devices == header.devices:
            continue
        if found is not None and header is not None:
            findings.append(
                _damage(place, "a second table begins here, which is left out; give one file a host")
            )
            break
        if found is not None:
            _check_columns(found, place)
            header = found
        elif header is None:
            option = command[1] if (command := _COMMAND.search(line)) is not None else option
        elif line.split(maxsplit=1)[0] in header.devices:
            row = _row(number, line, header, place, findings)
            kept = rows.setdefault(line.split()[0], row)
            if kept.links != row.links or kept.numa != row.numa:
                what = (
                    f"the row of {line.split()[0]} is given again, with other cells than in line {kept.line}"
                )
                findings.append(_damage(place, f"{what}, which is taken", FindingKind.CONFLICT))
            last = number
        elif (match := _LEGEND.fullmatch(line)) is not None:
            if legend.setdefault(match[1], match[2]) != match[2]:
                what = f"{match[1]} is called {match[2]} here and {legend[match[1]]} before, which is taken"
                findings.append(_damage(place, what, FindingKind.CONFLICT))
            last = number
        elif _looks_like_row(line):
            what = f"a row begins with {quote(line.split()[0], 24)}, which no column is named after"
            findings.append(_damage(place, f"{what}; it is left out"))
    if header is None:
        raise TopologyError(
            f"{source} has no columns GPU0, GPU1, ...; expected the output of `nvidia-smi topo -m`"
        )
    if option in {"-mp", "--matrix-pci"}:
        raise TopologyError(
            f"{source} is of `nvidia-smi topo -mp`, which leaves NVLinks out; expected `topo -m`"
        )
    if len(header.gpus) > 1 and not any(set(row.links) - {"X", None} for row in rows.values()):
        raise TopologyError(
            f"{source} has no links such as NV18 or SYS below line {header.line}; expected the output of"
            " `nvidia-smi topo -m`"
        )
    if last and last == text.count("\n") + 1:
        findings.append(
            _damage(
                f"{source}, line {last}",
                "the text ends without the end of this line; its last word may be cut off",
            )
        )
    return Table(
        header.gpus,
        header.nics,
        rows,
        legend,
        any("NUMA" in title and "GPU" not in title for title in header.titles),
        tuple(findings),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that may say something, without escape codes, and their numbers from 1."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            continue
        plain = _ESCAPES.sub("", line).rstrip("\r")
        if plain.strip():
            yield number, plain


def _header(number: int, line: str) -> _Header | None:
    words = line.split()
    if not _GPU.fullmatch(words[0]) or (len(words) > 1 and _LINK.fullmatch(words[1])):
        return None
    split = next((at for at, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
    gpus = [word for word in words[:split] if _GPU.fullmatch(word)]
    nics = words[len(gpus) : split]
    if not all(_NIC.fullmatch(word) for word in nics) or (split == len(words) and len(gpus) < 2):
        return None
    if sum(bool(_LINK.fullmatch(word) or _LINKS.fullmatch(word)) for word in nics) > 0:
        return None
    titles = tuple(re.findall(r"(?:CPU|GPU NUMA|NUMA) (?:Affinity|ID)", " ".join(words[split:])))
    return _Header(number, tuple(gpus), tuple(nics), titles)


def _check_columns(header: _Header, where: str) -> None:
    if len(header.gpus) > MAX_HOST_GPUS or len(header.nics) > MAX_NICS:
        raise TopologyError(
            f"{where} has columns of {len(header.gpus)} GPUs and {len(header.nics)} NICs; "
            f"expected at most {MAX_HOST_GPUS} and {MAX_NICS}"
        )
    seen: set[str] = set()
    for name in header.devices:
        if name in seen:
            raise TopologyError(f"{where} has two columns {quote(name, 24)}; expected each device once")
        seen.add(name)


def _row(number: int, line: str, header: _Header, place: str, findings: list[Finding]) -> Row:
    """A row; cells that cannot be told are None, with a finding."""
    name, count = line.split(maxsplit=1)[0], len(header.devices)
    tabs = "\t" in line.strip()
    cells = [cell.strip() for cell in line.strip("\r").split("\t")] if tabs else line.split()
    while cells and cells[0] != name:  # an empty cell, or a prompt, before the name
        cells.pop(0)
    cells = cells[1:]
    if any(_is_glued(cell) for cell in cells):
        words = listed(sorted({cell for cell in cells if _is_glued(cell)}), 4)
        findings.append(
            _damage(place, f"the row of {name} has cells that ran together ({words}); they were taken apart")
        )
        cells = [word for cell in cells for word in (_LINK.findall(cell) if _is_glued(cell) else [cell])]
    links, rest = cells[:count], cells[count:]
    own = header.devices.index(name)
    if (
        len(links) < count  # some cell is missing: which one, nobody knows
        or links[own] != "X"
        or links.count("X") > 1
        or any(cell and not _LINK.fullmatch(cell) for cell in links)
        or any(_LINK.fullmatch(cell) for cell in rest)
    ):
        what = f"the row of {name} does not fit the {count} columns of line {header.line}"
        findings.append(_damage(place, f"{what}; its cells are taken from the rows of other devices"))
        return Row(number, (None,) * count)
    if "" in links:
        what = f"the row of {name} has empty cells, the first under {header.devices[links.index('')]}"
        findings.append(_damage(place, f"{what}; they are taken from the rows of other devices"))
    return Row(number, tuple(cell or None for cell in links), _numa(rest, header, tabs=tabs))


def _numa(rest: list[str], header: _Header, *, tabs: bool) -> str:
    """The cell under NUMA Affinity; without tabs only where no cell of the row is missing."""
    at = next((at for at, title in enumerate(header.titles) if title == "NUMA Affinity"), None)
    if at is None or (not tabs and len(rest) != len(header.titles)):
        return ""
    return rest[at] if at < len(rest) else ""


def _is_glued(cell: str) -> bool:
    return _LINKS.fullmatch(cell) is not None and _LINK.fullmatch(cell) is None


def _looks_like_row(line: str) -> bool:
    words = line.split()
    return len(words) > 2 and sum(bool(_LINK.fullmatch(word)) for word in words[1:]) * 2 >= len(words) - 1


def _damage(place: str, what: str, kind: FindingKind = FindingKind.UNKNOWN) -> Finding:
    return Finding(kind, place, what)
