"""Runs in exact fractions, by rules written down anew: no columns, no floats, one event after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from reshard_planner.simulate import Costs, Workload
from reshard_planner.topology import Link, Topology
from reshard_planner.transfer import Medium


@dataclass(eq=False)
class Flow:
    left: Fraction
    ports: list[object]
    latency: Fraction
    slot: int
    held: tuple[int, int]
    """Ranks, sender first."""
    buffered: bool
    posts: int = 0
    starts: Fraction | None = None
    flowing: bool = False
    rate: Fraction = Fraction(0)

    def holds(self, rank: int) -> bool:
        if self.buffered and rank == self.held[0]:
            return not self.flowing and self.left > 0
        return self.left > 0


@dataclass(eq=False)
class Host:
    rank: int
    acts: Iterator[tuple[str, Fraction, list[Flow]]]
    until: Fraction = Fraction(0)
    act: tuple[str, Fraction, list[Flow]] | None = None
    waits: list[Flow] = field(default_factory=list)
    end: Fraction = Fraction(0)
    over: bool = False


def per_byte(costs: Costs) -> Fraction:
    return Fraction(0) if costs.pack_bytes_per_s is None else 1 / Fraction(costs.pack_bytes_per_s)


def acts_of(rows: list[tuple[int, Fraction, Fraction, list[Flow]]], lag: int):
    """What a rank does: (what, how long, of which flows) per act."""
    open_rows: list[tuple[int, Fraction, Fraction, list[Flow]]] = []
    for row in rows:
        while len(open_rows) == 2 or (open_rows and open_rows[0][0] <= row[0] - lag):
            old = open_rows.pop(0)
            yield ("unpack", old[2], old[3])
        yield ("begin", row[1], row[3])
        open_rows.append(row)
    for old in open_rows:
        yield ("unpack", old[2], old[3])


def path(topology: Topology, src: int, dst: int, medium: int) -> tuple[dict[object, Fraction], Fraction]:
    """Rates of the ports of a message, with efficiency, and its latency."""
    home = {gpu: at for at, domain in enumerate(topology.domains) for gpu in domain.gpus}
    found: dict[object, Fraction] = defaultdict(Fraction)
    latency = Fraction(0)

    def add(name: object, link: Link) -> None:
        nonlocal latency
        found[name] += Fraction(link.bytes_per_s * link.efficiency)
        latency = max(latency, Fraction(link.latency_s))

    if medium == Medium.NVLINK:
        add(("nvlink", src, "out"), topology.domains[home[src]].link)
        add(("nvlink", dst, "in"), topology.domains[home[dst]].link)
        return found, latency
    for gpu, way in ((src, "out"), (dst, "in")):
        for nic in topology.nics:
            if gpu in nic.gpus:
                add((nic.gpus, way), nic.link)
    for number, pod in enumerate(topology.pods):
        inside = home[src] in pod.domains, home[dst] in pod.domains
        if inside[0] != inside[1]:
            add(("pod", number, inside[0]), pod.uplink)
    return found, latency


def set_rates(flows: list[Flow], rates: dict[object, Fraction]) -> None:
    """Water filling, slot by slot: raise all rates alike until ports are full, again and again."""
    free = dict(rates)
    for flow in flows:
        flow.rate = Fraction(0)
    for slot in sorted({flow.slot for flow in flows}):
        rising = [flow for flow in flows if flow.slot == slot and all(free[port] > 0 for port in flow.ports)]
        while rising:
            users = {port: sum(port in flow.ports for flow in rising) for port in free}
            more = min(free[port] / count for port, count in users.items() if count)
            for flow in rising:
                flow.rate += more
            for port, count in users.items():
                free[port] -= more * count
            rising = [flow for flow in rising if all(free[port] > 0 for port in flow.ports)]


class ExactRun:
    """A run of a workload."""

    def __init__(self, workload: Workload, topology: Topology, costs: Costs) -> None:
        messages, table = workload.messages, workload.rank_slots
        self.rates: dict[object, Fraction] = {}
        self.flows: list[Flow] = []
        of_row: dict[tuple[int, int], list[Flow]] = defaultdict(list)
        columns = (messages.slot, messages.src, messages.dst, messages.medium, messages.nbytes)
        for slot, src, dst, medium, nbytes in zip(*(each.tolist() for each in columns), strict=True):
            ports, latency = path(topology, topology.gpu_of(src), topology.gpu_of(dst), medium)
            self.rates |= ports
            buffered = nbytes <= costs.buffered_nbytes
            flow = Flow(Fraction(nbytes), list(ports), latency, slot, (src, dst), buffered)
            self.flows.append(flow)
            of_row[src, slot].append(flow)
            of_row[dst, slot].append(flow)
        slot_s, message_s = Fraction(costs.slot_s), Fraction(costs.message_s)
        rows = defaultdict(list)
        for at in range(len(table)):
            rank, slot = int(table.rank[at]), int(table.slot[at])
            handled = int(table.copy_nbytes[at] + table.pack_nbytes[at])
            begin = slot_s + message_s * int(table.posted[at]) + handled * per_byte(costs)
            unpack = int(table.unpack_nbytes[at]) * per_byte(costs)
            rows[rank].append((slot, begin, unpack, of_row[rank, slot]))
        self.hosts = [Host(rank, acts_of(each, workload.lag)) for rank, each in rows.items()]
        self.now = Fraction(0)

    def elapsed_s(self) -> Fraction:
        """Go from event to event; the end of the last rank."""
        while True:
            self.settle()
            active = [flow for flow in self.flows if flow.flowing]
            set_rates(active, self.rates)
            times = [self.now + flow.left / flow.rate for flow in active if flow.rate]
            times += [flow.starts for flow in self.flows if flow.starts is not None]
            times += [host.until for host in self.hosts if host.act is not None]
            times = [time for time in times if time > self.now]
            if not times:
                assert all(host.over for host in self.hosts), "the run does not end"
                return max((host.end for host in self.hosts), default=Fraction(0))
            after = min(times)
            for flow in active:
                flow.left -= flow.rate * (after - self.now)
                if not flow.left:
                    flow.flowing, flow.starts = False, None
            self.now = after

    def settle(self) -> None:
        """Let everything happen that can happen at this time."""
        again = True
        while again:
            again = False
            for host in self.hosts:
                again |= self.go_on(host)
            for flow in self.flows:
                if not flow.flowing and flow.starts is not None and flow.starts <= self.now:
                    flow.flowing = again = True

    def go_on(self, host: Host) -> bool:
        """Let a host do what it can at this time; whether anything has changed."""
        moved = False
        while not host.over:
            if host.waits:
                host.waits = [flow for flow in host.waits if flow.holds(host.rank)]
                if host.waits:
                    return moved
                host.until = self.now + host.act[1]
            elif host.act is None:
                self.take(host)
            elif host.until > self.now:
                return moved
            else:
                if host.act[0] == "begin":
                    self.post(host.act[2])
                host.act = None
            moved = True
        return moved

    def take(self, host: Host) -> None:
        """Let a host that is free begin its next act."""
        host.act = next(host.acts, None)
        if host.act is None:
            host.end, host.over = self.now, True
            return
        host.until = self.now + host.act[1]
        if host.act[0] == "unpack":
            host.waits = [flow for flow in host.act[2] if flow.holds(host.rank)]

    def post(self, flows: list[Flow]) -> None:
        """One end posts messages."""
        for flow in flows:
            flow.posts += 1
            if flow.posts == 2:
                flow.starts = self.now + flow.latency
