"""The summary of a launched run: what its ranks measured, put together and compared with the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reshard_executors.command.reports import RankReport, Repeat
from reshard_executors.spelling import spell_nbytes, spell_ranks, spell_rate, spell_s
from reshard_planner.ir.plan import Plan

MEDIA = ("network", "nvlink")
"""Media that are summed up, as fields begin."""


@dataclass(frozen=True, slots=True)
class NicUse:
    """What passed the NICs in one direction.

    Attributes:
        count: NICs that anything passed.
        busiest: number of the one that takes longest at its datasheet rate; None if nothing passed any.
        gpus: GPUs that it serves.
        nbytes: bytes over it, by the plan.
        total_nbytes: bytes over all of them.
    """

    count: int
    busiest: int | None
    gpus: tuple[int, ...]
    nbytes: int
    total_nbytes: int

    def to_dict(self, time_s: float) -> dict[str, Any]:
        """In plain JSON types, with rates over a time in seconds."""
        busy = self.busiest is not None and time_s > 0
        return {
            "nics": self.count,
            "busiest": {"nic": self.busiest, "gpus": list(self.gpus), "nbytes": self.nbytes},
            "busiest_bytes_per_s": self.nbytes / time_s if busy else None,
            "mean_bytes_per_s": self.total_nbytes / self.count / time_s if busy else None,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """A launched run.

    Attributes:
        plan: what was run.
        reports: of all ranks, ascending.
        checked: whether elements were compared.
    """

    plan: Plan
    reports: tuple[RankReport, ...]
    checked: bool

    @classmethod
    def of(cls, plan: Plan, reports: Sequence[RankReport], *, checked: bool) -> Summary:
        """From what all ranks have reported."""
        return cls(plan, tuple(sorted(reports, key=lambda report: report.rank)), checked)

    @property
    def times_s(self) -> list[float]:
        """Time of the slowest rank in each repeat, in seconds."""
        return [
            max(repeat.elapsed_s for repeat in repeats)
            for repeats in zip(*(report.repeats for report in self.reports), strict=True)
        ]

    @property
    def median_s(self) -> float:
        """Median of the times, in seconds."""
        return median(self.times_s)

    @property
    def middle(self) -> int:
        """The repeat in the middle when they are sorted by time, which bytes and shares are those of."""
        times = self.times_s
        return sorted(range(len(times)), key=times.__getitem__)[(len(times) - 1) // 2]

    @property
    def slowest(self) -> tuple[int, Repeat]:
        """The slowest rank of the middle repeat, and what it measured."""
        at = self.middle
        report = max(self.reports, key=lambda report: report.repeats[at].elapsed_s)
        return report.rank, report.repeats[at]

    @property
    def x_bound(self) -> float | None:
        """Median time over the bound T*; None where nothing bounds it."""
        bound_s = self.plan.certificate.bound.time_s
        return self.median_s / bound_s if bound_s else None

    @property
    def first_error(self) -> str | None:
        """A sentence on the first wrong element, of the lowest rank that has one."""
        return next((report.difference for report in self.reports if report.difference is not None), None)

    def sent(self, medium: str) -> tuple[int, int, dict[int, tuple[int, int]]]:
        """Bytes sent over a medium in the middle repeat.

        Returns:
            Planned and measured, over all ranks, and both for each rank that measured something else.
        """
        at = self.middle
        pairs = {
            report.rank: (
                int(getattr(report.planned, f"{medium}_sent")),
                int(getattr(report.repeats[at], f"{medium}_nbytes")),
            )
            for report in self.reports
        }
        planned, measured = (sum(column) for column in zip(*pairs.values(), strict=True))
        return planned, measured, {rank: pair for rank, pair in pairs.items() if pair[0] != pair[1]}

    def nics(self, direction: str) -> NicUse:
        """What passed the NICs in one direction, ``sent`` or ``received``.

        The bytes of a GPU with several NICs are counted to each in proportion to its rate.
        """
        topology = self.plan.spec.topology
        own: dict[int, list[int]] = {}
        for number, nic in enumerate(topology.nics):
            for gpu in set(nic.gpus):
                own.setdefault(gpu, []).append(number)
        loads = [0.0] * len(topology.nics)
        total = 0
        planned = {report.rank: report.planned for report in self.reports}
        for rank in self.plan.ranks:
            nbytes = int(getattr(planned[rank], f"network_{direction}"))
            mine = own.get(topology.gpu_of(rank), [])
            rate = sum(topology.nics[number].link.bytes_per_s for number in mine)
            total += nbytes if mine else 0
            for number in mine:
                loads[number] += nbytes * topology.nics[number].link.bytes_per_s / rate
        used = [number for number, load in enumerate(loads) if load]
        if not used:
            return NicUse(0, None, (), 0, 0)
        busiest = max(used, key=lambda number: loads[number] / topology.nics[number].link.bytes_per_s)
        gpus = tuple(sorted(set(topology.nics[busiest].gpus)))
        return NicUse(len(used), busiest, gpus, round(loads[busiest]), total)

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        rank, repeat = self.slowest
        times = self.times_s
        sums = {medium: self.sent(medium) for medium in MEDIA}
        return {
            "digest": self.plan.digest,
            "processes": len(self.reports),
            "bound": {"time_s": self.plan.certificate.bound.time_s},
            "elapsed_s": {
                "repeats": times,
                "median": self.median_s,
                "min": min(times),
                "max": max(times),
                "x_bound": self.x_bound,
            },
            "sent": {
                medium: {
                    "planned_nbytes": planned,
                    "measured_nbytes": measured,
                    "differing": {
                        str(rank): {"planned_nbytes": should, "measured_nbytes": did}
                        for rank, (should, did) in differing.items()
                    },
                }
                for medium, (planned, measured, differing) in sums.items()
            },
            "nics": {side: self.nics(side).to_dict(self.median_s) for side in ("sent", "received")},
            "slowest": {
                "rank": rank,
                "elapsed_s": repeat.elapsed_s,
                "pack_s": repeat.pack_s,
                "wire_s": repeat.wire_s,
                "unpack_s": repeat.unpack_s,
                "other_s": repeat.other_s,
            },
            "measured": {
                "network_nbytes": sums["network"][1],
                "nvlink_nbytes": sums["nvlink"][1],
                "elapsed_s": self.median_s,
            },
            "correct": self.first_error is None if self.checked else None,
            "first_error": self.first_error,
        }

    def to_text(self) -> str:
        """For people, a line per figure."""
        times = self.times_s
        lines = [
            f"plan      {self.plan.digest[:12]}, {len(self.reports)} processes",
            f"time      {spell_times(times)}",
            *(f"{medium:<9} {spell_sent(*self.sent(medium))}" for medium in MEDIA),
            *(self._spell_nics(side) for side in ("sent", "received")),
        ]
        if self.x_bound is not None:
            bound_s = self.plan.certificate.bound.time_s
            lines.insert(
                2, f"bound     {spell_s(bound_s)}, and the run took {self.x_bound:.3g} times as long"
            )
        rank, repeat = self.slowest
        if repeat.elapsed_s > 0:
            lines.append(f"slowest   rank {rank}: {spell_shares(repeat)}")
        if self.checked:
            wrong = self.first_error
            lines.append("correct   every destination element" if wrong is None else f"WRONG     {wrong}")
        return "\n".join(lines)

    def _spell_nics(self, side: str) -> str:
        use, time_s = self.nics(side), self.median_s
        title = f"nics {'out' if side == 'sent' else 'in'}".ljust(9)
        if use.busiest is None or time_s <= 0:
            return f"{title} no bytes"
        busiest, mean = use.nbytes / time_s, use.total_nbytes / use.count / time_s
        return (
            f"{title} {spell_rate(busiest)} at the busiest (NIC {use.busiest} of GPU"
            f" {','.join(map(str, use.gpus))}), {spell_rate(mean)} on average of {use.count}"
        )


def spell_times(times_s: Sequence[float]) -> str:
    """Times in words: the only one, or their median and range."""
    if len(times_s) == 1:
        return spell_s(times_s[0])
    spread = f"{spell_s(min(times_s))} to {spell_s(max(times_s))}"
    return f"{spell_s(median(times_s))}, median of {len(times_s)} repeats, {spread}"


def spell_shares(repeat: Repeat) -> str:
    """Where the time of a repeat went, in words."""
    shares = ("pack", "wire", "unpack", "other")
    return ", ".join(f"{name} {getattr(repeat, f'{name}_s') / repeat.elapsed_s:.1%}" for name in shares)


def spell_sent(planned: int, measured: int, differing: dict[int, tuple[int, int]]) -> str:
    """What was sent over a medium, in words; see :meth:`Summary.sent`."""
    if not differing:
        return f"{spell_nbytes(measured)} sent, as planned"
    first, (should, did) = next(iter(differing.items()))
    return (
        f"{measured} bytes sent, but {planned} planned; other than planned on"
        f" {spell_ranks(differing)} (rank {first}: {did}, not {should})"
    )
