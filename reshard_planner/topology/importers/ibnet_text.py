"""The text of ``ibnetdiscover`` as blocks of nodes and their linked ports."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.wording import quote

MAX_TEXT = 2**29
"""Longest text that is read, in characters; 2**17 hosts with 8 ports each take about as many."""

MAX_LINE = 1024
"""Longest line that is looked at, in characters; descriptions have at most 64."""

LANE_BITS_PER_S = {
    "SDR": 2_000_000_000,
    "DDR": 4_000_000_000,
    "QDR": 8_000_000_000,
    "FDR10": 10_000_000_000,
    "FDR": 13_636_363_636,
    "EDR": 25_000_000_000,
    "HDR": 50_000_000_000,
    "NDR": 100_000_000_000,
    "XDR": 200_000_000_000,
}
"""Data rate of one lane by generation, after line coding."""

_LANES = (1, 2, 4, 8, 12)
_GUID = r"0x[0-9a-f]{1,16}"
_NODE = r'"([SHR]-[0-9a-f]{1,16})"'
_HEAD = re.compile(rf'(?:Switch|Ca|Rt)\s+(\d{{1,4}})\s+{_NODE}\s*# "(.*)"[^"]*', re.ASCII)
_PORT = re.compile(
    rf"\[(\d{{1,4}})\](?:\[ext \d+\])?(?:\(([0-9a-f]{{1,16}})\))?\s*{_NODE}\[(\d{{1,4}})\]"
    r"(?:\[ext \d+\])?(?:\(([0-9a-f]{1,16})\))?\s*"
    r'# (?:lid \d+ lmc \d+ )?"(.*)" lid \d+ (\d{1,2}x[A-Z0-9]{1,8})(?:\s[^"]*)?',
    re.ASCII,
)
_ATTRIBUTE = re.compile(rf"([a-z]+)=({_GUID})(?:\([0-9a-f]+\))?", re.ASCII)
_ASIDE = re.compile(r"#|Chassis |Non-Chassis Nodes$")


class PortLine(NamedTuple):
    """One linked port of a node.

    Attributes:
        line: its line, from 1.
        peer: node at the other end, such as ``S-2c5eab0300b87b40``.
        peer_port: number of the port there.
        guid: GUID of this port; "" where the line does not say.
        peer_guid: GUID of the port there; "" where the line does not say.
        description: of the node there.
        rate: as written, such as ``4xNDR``.
    """

    line: int
    peer: str
    peer_port: int
    guid: str
    peer_guid: str
    description: str
    rate: str


@dataclass(frozen=True, slots=True)
class Block:
    """One node and its linked ports.

    Attributes:
        line: its line, from 1.
        description: what it calls itself.
        image: GUID of the adapter or chassis that it is part of; "" where the block does not say.
        ports: by number.
    """

    line: int
    description: str
    image: str
    ports: dict[int, PortLine] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """All blocks, by node, in the order of the text; nodes are named by their kind, S, H or R, and GUID."""

    blocks: dict[str, Block]
    findings: tuple[Finding, ...]


def recognises_text(text: str) -> bool:
    """Whether the text has a block of a switch, channel adapter or router near its beginning."""
    return any(_HEAD.fullmatch(line.strip()) for line in text[: 2**16].split("\n") if len(line) <= MAX_LINE)


def read_listing(text: str, source: str) -> Listing:
    """The blocks of a text.

    Raises:
        TopologyError: if there is none.
    """
    if len(text) > MAX_TEXT:
        raise TopologyError(f"{source} has {len(text)} characters; expected at most {MAX_TEXT}")
    blocks: dict[str, Block] = {}
    findings: list[Finding] = []
    strange: list[tuple[int, str]] = []
    image = ""
    here: Block | None = None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()  # noqa: PLW2901 - the rest is about what stands in it
        if not line:
            here = None
        elif len(line) > MAX_LINE:
            strange.append((number, line))
        elif here is not None and (port := _PORT.fullmatch(line)) is not None:
            _add_port(here, int(port[1]), _port_line(number, port), source, findings)
        elif (attribute := _ATTRIBUTE.fullmatch(line)) is not None:
            here = None
            if attribute[1] == "vendid":
                image = ""
            elif attribute[1] == "sysimgguid":
                image = attribute[2][2:]
        elif (head := _HEAD.fullmatch(line)) is not None:
            here = _open_block(blocks, Block(number, head[3], image), head[2], source, findings)
            image = ""
        elif not _ASIDE.match(line):
            strange.append((number, line))
    if not blocks:
        raise TopologyError(
            f'{source} has no line such as: Switch 65 "S-2c5eab0300b87b40" # "name"; expected the output of'
            " `ibnetdiscover`"
        )
    if strange:
        first, words = strange[0]
        text = (
            f"lines that were not understood: {len(strange)}, the first {quote(words)}; what they say is lost"
        )
        findings.append(Finding(FindingKind.UNKNOWN, f"{source}, line {first}", text))
    return Listing(blocks, tuple(findings))


def bytes_per_s(rate: str) -> int | None:
    """Rate of a link, per direction, as ``4xNDR`` gives it; None where width or generation are unknown.

    >>> bytes_per_s("4xNDR")
    50000000000
    """
    lanes, _, generation = rate.partition("x")
    if generation not in LANE_BITS_PER_S or not lanes.isdigit() or int(lanes) not in _LANES:
        return None
    return int(lanes) * LANE_BITS_PER_S[generation] // 8


def _port_line(number: int, port: re.Match[str]) -> PortLine:
    return PortLine(number, port[3], int(port[4]), port[2] or "", port[5] or "", port[6], port[7])


def _open_block(
    blocks: dict[str, Block], block: Block, node: str, source: str, findings: list[Finding]
) -> Block:
    """The block of a node; a second one of the same node goes on with the first."""
    kept = blocks.setdefault(node, block)
    if kept is not block:
        text = f"{node} has a block in line {kept.line} already; the file may be several, joined"
        findings.append(Finding(FindingKind.CONFLICT, f"{source}, line {block.line}", text))
    return kept


def _add_port(block: Block, number: int, port: PortLine, source: str, findings: list[Finding]) -> None:
    kept = block.ports.setdefault(number, port)
    if kept is not port and kept[1:] != port[1:]:
        text = f"port {number} is given otherwise in line {kept.line}, which is taken"
        findings.append(Finding(FindingKind.CONFLICT, f"{source}, line {port.line}", text))
