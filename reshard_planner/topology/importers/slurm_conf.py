"""Slurm's ``topology.conf``: lines of switches, blocks or rings; see topology.conf(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names, expand_hosts
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.slurm_facts import SlurmTopology, cut_short, slurm_facts
from reshard_planner.topology.importers.switchtree import SwitchRow
from reshard_planner.topology.wording import quote

MAX_TEXT = 2**25
"""Longest file, in characters."""

_FIRST = re.compile(r"^[ \t]*(?:switchname|blockname|ringname)[ \t]*=", re.IGNORECASE | re.MULTILINE)
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*\Z", re.IGNORECASE)
_FIELD = re.compile(r'\s*([A-Za-z0-9_.]++)\s*=\s*(?:"([^"]*+)"|([^\s"]++))(?=\s|\Z)')
_COMMENT = re.compile(r"(?<!\\)#.*", re.DOTALL)
_KEYS = {
    "switchname": ("Switches", "Nodes", "LinkSpeed"),
    "blockname": ("Nodes",),
    "ringname": ("Nodes",),
    "blocksizes": (),
}
_WORDS = {
    "switchname": "SwitchName",
    "blockname": "BlockName",
    "ringname": "RingName",
    "blocksizes": "BlockSizes",
}


def recognises(text: str) -> bool:
    """Whether a line begins with the name of a switch, block or ring."""
    return _FIRST.search(text) is not None


def read(text: str, reading: Reading) -> Imported:
    """Hosts, with their switches and their blocks as domains; without GPUs and NICs, which the file lacks.

    Raises:
        TopologyError: if a line is none of Slurm's, or switches are no tree.
    """
    source = reading.source
    if len(text) > MAX_TEXT:
        raise TopologyError(f"{source} has {len(text)} characters; expected at most {MAX_TEXT}")
    switches: list[SwitchRow] = []
    blocks: dict[str, tuple[str, ...]] = {}
    rings: dict[str, tuple[str, ...]] = {}
    sizes: tuple[int, ...] = ()
    speeds: list[str] = []
    findings = cut_short(text, source)
    count = 0
    for number, line in _lines(text):
        place = f"{source}, line {number}"
        include = _INCLUDE.match(line)
        if include is not None:
            remark = f"the included file {include[1][:60]} is not read, so that its hosts are missing"
            findings.append(Finding(FindingKind.UNKNOWN, place, remark))
            continue
        kind, fields = _fields(line, place)
        name = fields[kind]
        if kind == "blocksizes":
            sizes = _sizes(name, place)
            continue
        if re.search(r"[\[\],]", name):
            raise TopologyError(f"{place} has {_WORDS[kind]} {quote(name, 60)}; expected one name")
        hosts = _names(fields, "nodes", place)
        children = _names(fields, "switches", place)
        count += len(hosts) + len(children)
        if count > 4 * MAX_HOSTS:
            raise TopologyError(
                f"{source} names more than {4 * MAX_HOSTS} hosts; expected each of {MAX_HOSTS} once"
            )
        if kind == "switchname":
            if bool(children) == bool(hosts):
                problem = "both Switches and Nodes" if hosts else "neither Switches nor Nodes"
                raise TopologyError(f"{place}: switch {name[:60]} has {problem}; expected one of them")
            switches.append(SwitchRow(name, children, hosts))
            speeds += [name] if "linkspeed" in fields else []
            continue
        rows = blocks if kind == "blockname" else rings
        if not hosts or name in rows:
            problem = (
                "is given twice; expected it once" if name in rows else "has no Nodes; expected a host list"
            )
            raise TopologyError(f"{place}: {_WORDS[kind]} {name[:60]} {problem}")
        rows[name] = hosts
    if not switches and not blocks and not rings:
        raise TopologyError(
            f"{source} has no line with SwitchName, BlockName or RingName; expected a topology.conf"
        )
    findings += _remarks(speeds, rings, both=bool(switches and blocks))
    others = tuple(name for hosts in rings.values() for name in hosts)
    topology = SlurmTopology(tuple(switches), tuple(blocks.items()), sizes, others)
    return slurm_facts(topology, source=source, findings=findings)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, without comments and joined where one ends in a backslash."""
    parts: list[str] = []
    first = 1
    for number, raw in enumerate(text.split("\n"), 1):
        line = _COMMENT.sub("", raw).rstrip()
        if not parts:
            first = number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        joined = "".join((*parts, line)).rstrip()
        parts = []
        if joined:
            yield first, joined
    if joined := "".join(parts).rstrip():
        yield first, joined


def _fields(line: str, place: str) -> tuple[str, dict[str, str]]:
    """The kind of a line, which is the key of its name, and its values by key, in small letters."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(line):
        match = _FIELD.match(line, position)
        if match is None:
            rest = line[position:].strip()[:60]
            raise TopologyError(f"{place} has {rest!r}; expected KEY=VALUE, such as Nodes=node[01-18]")
        key = match[1].lower()
        if key in fields:
            raise TopologyError(f"{place} gives {match[1]} twice; expected it once")
        fields[key] = match[2] if match[2] is not None else match[3]
        position = match.end()
    kinds = [key for key in fields if key in _KEYS]
    if len(kinds) != 1:
        raise TopologyError(f"{place} has {len(kinds)} of {', '.join(_WORDS.values())}; expected one of them")
    allowed = {word.lower() for word in _KEYS[kinds[0]]}
    for key in fields:
        if key not in allowed and key != kinds[0]:
            others = ", ".join(_KEYS[kinds[0]]) or "nothing"
            raise TopologyError(f"{place} has {key[:60]} beside {_WORDS[kinds[0]]}; expected {others}")
    return kinds[0], fields


def _names(fields: dict[str, str], key: str, place: str) -> tuple[str, ...]:
    if key not in fields:
        return ()
    try:
        return expand_hosts(fields[key])
    except TopologyError as error:
        raise TopologyError(f"{place}: {error}") from None


def _sizes(text: str, place: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(re.fullmatch(r"[1-9][0-9]{0,8}", part) for part in parts):
        raise TopologyError(f"{place} has BlockSizes {text[:60]}; expected numbers such as 18,36")
    return tuple(int(part) for part in parts)


def _remarks(speeds: list[str], rings: dict[str, tuple[str, ...]], *, both: bool) -> Iterator[Finding]:
    if speeds:
        text = "LinkSpeed has no unit and Slurm does not use it, so that it is not taken for a rate"
        yield Finding(FindingKind.UNKNOWN, f"switches {brief_names(speeds)}", text)
    if rings:
        text = "rings say in which order jobs are placed, and give no domains or switches"
        yield Finding(FindingKind.UNKNOWN, f"rings {brief_names(rings)}", text)
    if both:
        text = "it has trees and blocks, of which Slurm uses those of its TopologyPlugin; both are taken"
        yield Finding(FindingKind.ASSUMED, "topology.conf", text)
