"""What each rank measured in a launched run, and what it should have sent."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class Planned:
    """Bytes that a rank sends and receives by the plan.

    Attributes:
        network_sent: between domains.
        network_received: likewise.
        nvlink_sent: within the domain.
        nvlink_received: likewise.
    """

    network_sent: int
    network_received: int
    nvlink_sent: int
    nvlink_received: int

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Planned:
        """Those of one rank; all 0 for a rank that the plan does not have."""
        ops = plan.ops(rank=rank)
        sums = (
            int(ops.nbytes[(ops.medium == medium) & (ends == rank)].sum())
            for medium in (Medium.NETWORK, Medium.NVLINK)
            for ends in (ops.src, ops.dst)
        )
        return cls(*sums)


@dataclass(frozen=True, slots=True)
class Repeat:
    """One repeat on one rank.

    Attributes:
        elapsed_s: from the moment that all ranks agreed to start until this one was done, in seconds.
        network_nbytes: bytes sent between domains.
        nvlink_nbytes: bytes sent within the domain.
        pack_s: seconds of packing, and of copying within the rank.
        wire_s: seconds of posting messages and waiting for them.
        unpack_s: seconds of unpacking.
    """

    elapsed_s: float
    network_nbytes: int
    nvlink_nbytes: int
    pack_s: float
    wire_s: float
    unpack_s: float

    @property
    def other_s(self) -> float:
        """Seconds of the rest."""
        return max(0.0, self.elapsed_s - self.pack_s - self.wire_s - self.unpack_s)


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank.

    Attributes:
        rank: rank of the plan.
        planned: what it should send and receive in each repeat.
        repeats: what it measured, one entry per repeat.
        difference: a sentence on the first wrong element; None if all are right, or nothing was compared.
        timeline: what it did in the last repeat, and when, in seconds from its start; None unless asked for.
    """

    rank: int
    planned: Planned
    repeats: tuple[Repeat, ...]
    difference: str | None
    timeline: Timeline | None


@dataclass(slots=True)
class Tally:
    """What one rank has measured so far: still there when a run does not end well.

    Attributes:
        plan: what is run; None before ranks have met.
        rank: that this process plays.
        repeats: those that ended well.
        difference: a sentence on the first wrong element; None if none was found.
    """

    plan: Plan | None = None
    rank: int = 0
    repeats: list[Repeat] = field(default_factory=list)
    difference: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> Plan | None:
        """The plan, for the one who asks first, and who tells the figures therefore; None for all others."""
        with self._lock:
            plan, self.plan = self.plan, None
            return plan

    def report(self, plan: Plan, timeline: Timeline | None = None) -> RankReport:
        """All of it, given what is run, and what the rank did in the last run."""
        planned = Planned.of(plan, self.rank)
        return RankReport(self.rank, planned, tuple(self.repeats), self.difference, timeline)
