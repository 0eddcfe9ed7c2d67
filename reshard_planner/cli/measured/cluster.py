"""The cluster file of a measurement: the hosts of its ranks, with what their ports have reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from reshard_planner.cli.measured.places import Place
from reshard_planner.cli.measured.reached import NIC, NVLINK, Reached
from reshard_planner.render.text import format_rate
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic
from reshard_planner.topology.cluster.nics import NicUse, apply_nic_overrides, find_uses
from reshard_planner.topology.cluster.speeds import nic_facts, nvlink_facts

ABOVE = 1.02
"""A rate above this multiple of the datasheet's is reported: no timing is as wrong as that."""


def measured_cluster(
    places: Sequence[Place], reached: Mapping[tuple[int, str], Reached], given: Cluster | None
) -> tuple[Cluster, tuple[Finding, ...]]:
    """Hosts with measured ports, in terms of a cluster that is known; it merges with that one.

    Where a datasheet rate is known it stays, and the efficiency says what was reached; else the rate is what
    was reached.

    Args:
        places: by rank.
        reached: by rank and kind of port.
        given: what is known of the cluster; when None every GPU is taken to have a NIC of its own.
    """
    given = Cluster() if given is None else apply_nic_overrides(given)
    known = {host.name: host for host in given.hosts}
    ranks: dict[str, dict[int, int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place.host, {})[place.gpu] = rank
    maker = _Maker(given, places, reached)
    hosts = tuple(maker.host(known.get(name, Host(name)), by_gpu) for name, by_gpu in ranks.items())
    return Cluster(hosts=hosts), tuple(maker.findings)


class _Maker:
    """Makes hosts, and notes what contradicts datasheets."""

    def __init__(
        self, given: Cluster, places: Sequence[Place], reached: Mapping[tuple[int, str], Reached]
    ) -> None:
        self._given, self._places, self._reached = given, places, reached
        self.findings: list[Finding] = []

    def host(self, known: Host, ranks: Mapping[int, int]) -> Host:
        """One host, given what is known of it and the rank on each of its GPUs."""
        gpus = known.gpus or tuple(Gpu(f"GPU{place}") for place in range(max(ranks) + 1))
        made = []
        for place, gpu in enumerate(gpus):
            rank = ranks.get(place)
            uuid = gpu.uuid if rank is None else gpu.uuid or self._places[rank].uuid
            found = None if rank is None else self._reached.get((rank, NVLINK))
            sheet = nvlink_facts(self._given, known, gpu).bytes_per_s
            port = self._port([found] if found else [], sheet, 1, f"host {known.name}, {gpu.name}, NVLink")
            made.append(Gpu(gpu.name, uuid=uuid, bus=gpu.bus, nvlink=port))
        return Host(known.name, tuple(made), tuple(self._nics(known, ranks)))

    def _nics(self, known: Host, ranks: Mapping[int, int]) -> list[HostNic]:
        found = {gpu: self._reached[rank, NIC] for gpu, rank in ranks.items() if (rank, NIC) in self._reached}
        if not known.nics:
            own = Fact((0,), Origin.ASSUMED, "one NIC for each GPU")
            uses = [
                NicUse(HostNic(f"NIC{gpu}", gpus=Fact((gpu,), own.origin, own.source)), (gpu,))
                for gpu in sorted(found)
            ]
        else:
            uses, _ = find_uses(known)
        counts = {gpu: sum(gpu in use.gpus for use in uses) for gpu in found}
        several = [gpu for gpu, count in counts.items() if count > 1]
        if several:
            text = (
                f"GPU {several[0]} uses {counts[several[0]]} NICs; what it reached is taken for all of them"
                " in equal parts"
            )
            self.findings.append(Finding(FindingKind.ASSUMED, f"host {known.name}", text))
        nics = []
        for use in uses:
            users = [found[gpu] for gpu in use.gpus if gpu in found]
            parts = max((counts[gpu] for gpu in use.gpus if gpu in found), default=1)
            place = f"host {known.name}, {use.nic.name}"
            port = self._port(users, nic_facts(self._given, known, use.nic).bytes_per_s, parts, place)
            nic = use.nic
            nics.append(HostNic(nic.name, nic.guid, nic.bus, near=nic.near, gpus=nic.gpus, port=port))
        return nics

    def _port(self, users: Sequence[Reached], sheet: Fact[int] | None, parts: int, place: str) -> PortFacts:
        """What is known of a port now.

        Args:
            users: what ranks reached that use it; the best of them shows what it can.
            sheet: its rate that was known before.
            parts: number of ports that they used together.
            place: what it is, for findings.
        """
        if not users:
            return PortFacts()
        best = max(users, key=lambda each: each.bytes_per_s)
        rate = rounded(best.bytes_per_s / parts)
        latency = Fact(float(f"{median(each.latency_s for each in users):.3g}"), Origin.MEASURED, best.source)
        if sheet is None or sheet.origin not in (Origin.FILE, Origin.PRESET):
            return PortFacts(
                Fact(rate, Origin.MEASURED, best.source), Fact(1.0, Origin.MEASURED, best.source), latency
            )
        if rate > ABOVE * sheet.value:
            text = (
                f"{format_rate(rate)} were measured, more than the {format_rate(sheet.value)} that"
                f" {sheet.source or 'the cluster file'} says; efficiency is 1, and plans expect less than it"
                " can: correct its bytes_per_s"
            )
            self.findings.append(Finding(FindingKind.CONFLICT, place, text))
        share = max(0.001, float(f"{min(1.0, rate / sheet.value):.3g}"))
        return PortFacts(sheet, Fact(share, Origin.MEASURED, best.source), latency)


def rounded(bytes_per_s: float) -> int:
    """A rate with three digits: more would not come again."""
    return max(1, int(float(f"{bytes_per_s:.3g}")))
