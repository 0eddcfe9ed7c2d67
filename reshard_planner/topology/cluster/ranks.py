"""Which GPU each rank runs on, from how a job is launched: torchrun, Slurm, or lists of hosts.

The n-th rank of a host runs on its n-th GPU, as launchers number local ranks. Hosts may be named without
their domain, or with one where the cluster has none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS, brief_names, expand_hosts
from reshard_planner.topology.cluster.model import Cluster

_COMMENT = re.compile(r"#.*")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
_PLANE = re.compile(r"plane=([1-9][0-9]{0,5})")
_LINE = re.compile(r"(?:[^\s:=@]+@)?([^\s:=@]+)(?::([0-9]{1,6}))?((?:\s+[A-Za-z_-]+\s*=\s*[0-9]{1,6})*)\s*")
_OPTION = re.compile(r"([A-Za-z_-]+)\s*=\s*([0-9]{1,6})")
_SLOTS = ("slots", "count", "cpu", "cpus")
_MAX_SLOTS = ("max_slots", "max-slots", "maxslots", "slots_max", "slots-max")


@dataclass(frozen=True, slots=True)
class RankOrder:
    """The GPU of each rank.

    Attributes:
        rank_map: number of the GPU, by rank; as a cluster has it.
        findings: hosts that were found under another name.
    """

    rank_map: tuple[int, ...]
    findings: tuple[Finding, ...] = ()


def torchrun_ranks(
    cluster: Cluster, hosts: str | Iterable[str], gpus_per_host: int | None = None
) -> RankOrder:
    """Ranks host by host, as torchrun gives them where ``--node-rank`` follows this order.

    Args:
        cluster: the cluster.
        hosts: their names in the order of node ranks, or a host list such as ``n[01-04]``.
        gpus_per_host: ``--nproc-per-node``; all GPUs of each host when None.

    Raises:
        TopologyError: if a host is unknown, given twice, or has fewer GPUs.
    """
    names = expand_hosts(hosts) if isinstance(hosts, str) else tuple(hosts)
    return _spread(cluster, [(name, gpus_per_host, "") for name in names], None)


def slurm_ranks(
    cluster: Cluster, nodelist: str, tasks_per_node: int | str | None = None, distribution: str = "block"
) -> RankOrder:
    """Ranks as srun distributes them over nodes.

    Args:
        cluster: the cluster.
        nodelist: ``SLURM_JOB_NODELIST``, such as ``n[01-04]``.
        tasks_per_node: ``--ntasks-per-node``, or ``SLURM_TASKS_PER_NODE`` such as ``8(x3),4``; all GPUs of
            each node when None.
        distribution: ``block`` (node by node), ``cyclic`` (one task a node in turn) or ``plane=N`` (N tasks a
            node in turn). What follows a colon concerns cores, and is not used.

    Raises:
        TopologyError: if a value is none of these, or a node is unknown, given twice, or has fewer GPUs.
    """
    names = expand_hosts(nodelist)
    counts = _tasks(tasks_per_node, len(names))
    first = distribution.split(":", 1)[0]
    plane = _PLANE.fullmatch(first)
    if first not in ("block", "cyclic", "*") and plane is None:
        other = "; use task_ranks for the hosts of SLURM_HOSTFILE" if first == "arbitrary" else ""
        raise TopologyError(
            f"distribution {distribution[:60]!r} is none; expected block, cyclic or plane=N{other}"
        )
    turn = int(plane[1]) if plane is not None else 1 if first == "cyclic" else None
    return _spread(cluster, list(zip(names, counts, ("",) * len(names), strict=True)), turn)


def hostfile_ranks(cluster: Cluster, text: str, *, by_node: bool = False) -> RankOrder:
    """Ranks of a hostfile of Open MPI, MPICH or DeepSpeed: lines ``host``, ``host slots=8`` or ``host:8``.

    Args:
        cluster: the cluster.
        text: the file; text after ``#`` is a comment. A host without slots is used with all its GPUs.
        by_node: one rank a host in turn, as ``mpirun --map-by node`` does, instead of host by host.

    Raises:
        TopologyError: if a line is none of these, or a host is unknown, given twice, or has fewer GPUs than
            slots.
    """
    rows: list[tuple[str, int | None, str]] = []
    for number, line in _hostfile_lines(text):
        match = _LINE.fullmatch(line)
        if match is None:
            raise TopologyError(
                f"line {number} of the hostfile is {line[:60]!r}; expected a host, such as n01 slots=8"
            )
        slots = int(match[2]) if match[2] else None
        most = None
        for key, value in _OPTION.findall(match[3]):
            word = key.lower()
            if word in _SLOTS and slots is None:
                slots = int(value)
            elif word in _MAX_SLOTS:
                most = int(value)
            else:
                problem = "gives slots twice" if word in _SLOTS else f"has {key[:60]}"
                raise TopologyError(
                    f"line {number} of the hostfile {problem}; expected slots and max_slots at most"
                )
        if most is not None and most < (slots or 0):
            raise TopologyError(f"line {number} of the hostfile has max_slots {most} below its {slots} slots")
        rows.append((match[1], slots, f"line {number} of the hostfile: "))
    return _spread(cluster, rows, 1 if by_node else None)


def task_ranks(cluster: Cluster, text: str) -> RankOrder:
    """Ranks of a file with the host of one rank in each line, as ``SLURM_HOSTFILE`` names one.

    Raises:
        TopologyError: if a host is unknown, or has more lines than GPUs.
    """
    finder, used, ranks = _Finder(cluster), [0] * len(cluster.hosts), []
    for number, line in _hostfile_lines(text):
        where = f"line {number} of the file: "
        host = finder.find(line, where)
        if used[host] == len(cluster.hosts[host].gpus):
            raise TopologyError(f"{where}{_too_few(cluster, host, used[host] + 1)}")
        ranks.append(finder.firsts[host] + used[host])
        used[host] += 1
    return _order(ranks, finder)


def _spread(cluster: Cluster, rows: Sequence[tuple[str, int | None, str]], turn: int | None) -> RankOrder:
    """Ranks over hosts with their counts, each taking ``turn`` ranks in turn, or all at once."""
    finder = _Finder(cluster)
    given: dict[int, str] = {}
    left: list[tuple[int, int, int]] = []
    for name, count, where in rows:
        host = finder.find(name, where)
        if host in given:
            other = "" if given[host] == name else f" and as {given[host]!r}"
            raise TopologyError(f"{where}host {name!r} is given twice{other}; expected each host once")
        given[host] = name
        size = len(cluster.hosts[host].gpus)
        if size == 0 or (count is not None and count > size):
            raise TopologyError(f"{where}{_too_few(cluster, host, count)}")
        left.append((finder.firsts[host], 0, size if count is None else count))
    ranks: list[int] = []
    while left:
        waiting = []
        for first, done, count in left:
            until = count if turn is None else min(count, done + turn)
            ranks.extend(range(first + done, first + until))
            if until < count:
                waiting.append((first, until, count))
        left = waiting
    return _order(ranks, finder)


def _order(ranks: list[int], finder: _Finder) -> RankOrder:
    if not ranks:
        raise TopologyError("the order of ranks has no host; expected one at least")
    return RankOrder(tuple(ranks), finder.findings())


def _too_few(cluster: Cluster, host: int, count: int | None) -> str:
    known = cluster.hosts[host]
    wanted = "some" if count is None else str(count)
    return (
        f"host {known.name!r} has {len(known.gpus)} GPUs, and {wanted} ranks; expected one GPU for each rank"
    )


def _tasks(tasks: int | str | None, nodes: int) -> list[int | None]:
    """Number of tasks of each node."""
    if tasks is None:
        return [None] * nodes
    if isinstance(tasks, int):
        if isinstance(tasks, bool) or tasks < 1:
            raise TopologyError(f"tasks_per_node is {tasks}; expected 1 or more")
        return [tasks] * nodes
    counts: list[int | None] = []
    parts = tasks.split(",") if len(tasks) <= 16 * MAX_HOSTS else [""]
    for part in parts:
        match = _TASKS.fullmatch(part.strip())
        if match is None or len(counts) > nodes:
            raise TopologyError(
                f"tasks_per_node is {tasks[:60]!r}; expected numbers for {nodes} nodes, such as 8(x2),4"
            )
        counts += [int(match[1])] * min(int(match[2] or 1), nodes + 1)
    if len(counts) != nodes:
        # --ntasks-per-node as text
        if len(parts) == 1 and "(" not in tasks:
            return counts * nodes
        given = "more" if len(counts) > nodes else str(len(counts))
        raise TopologyError(
            f"tasks_per_node {tasks[:60]!r} is for {given} nodes; expected {nodes}, as in the node list"
        )
    return counts


def _hostfile_lines(text: str) -> list[tuple[int, str]]:
    lines = [
        (number, line)
        for number, raw in enumerate(text.splitlines(), 1)
        if (line := _COMMENT.sub("", raw).strip())
    ]
    if len(lines) > 64 * MAX_HOSTS:
        raise TopologyError(f"the file has {len(lines)} lines; expected at most {64 * MAX_HOSTS}")
    return lines


class _Finder:
    """Finds hosts by name, and remembers which were found under another one."""

    def __init__(self, cluster: Cluster) -> None:
        self.names = [host.name for host in cluster.hosts]
        self.firsts = list(cluster.first_gpus().values())
        self._known = {name: place for place, name in enumerate(self.names)}
        self._short: dict[str, list[int]] = {}
        for place, name in enumerate(self.names):
            self._short.setdefault(name.split(".", 1)[0], []).append(place)
        self._renamed: dict[str, str] = {}

    def find(self, name: str, where: str) -> int:
        """Place of a host among those of the cluster.

        Raises:
            TopologyError: if none or several have this name.
        """
        if name in self._known:
            return self._known[name]
        short, _, domain = name.partition(".")
        # two names with domains that differ are two hosts
        found = [place for place in self._short.get(short, []) if not domain or "." not in self.names[place]]
        if len(found) == 1:
            self._renamed[name] = self.names[found[0]]
            return found[0]
        if found:
            both = " and ".join(repr(self.names[place]) for place in found[:2])
            raise TopologyError(f"{where}host {name!r} can be {both}; expected the whole name")
        raise TopologyError(f"{where}the cluster has no host {name[:60]!r}; expected {self._nearest(name)}")

    def _nearest(self, name: str) -> str:
        if not self.names:
            return "one of its hosts, but it has none"
        # close names mostly begin alike, and comparing with all of a large cluster takes seconds
        ordered = sorted(self.names)
        place = bisect_left(ordered, name)
        near = get_close_matches(name[:256], ordered[max(0, place - 100) : place + 100], 3)
        return f"one of its hosts, such as {', '.join(near or ordered[:1])}"

    def findings(self) -> tuple[Finding, ...]:
        """One finding on all hosts that were found under another name."""
        if not self._renamed:
            return ()
        one, other = next(iter(self._renamed.items()))
        text = f"taken for hosts of the cluster whose names differ in the domain, such as {other} for {one}"
        return (Finding(FindingKind.ASSUMED, f"hosts {brief_names(self._renamed)}", text),)
