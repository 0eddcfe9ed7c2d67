"""What runs on a cluster gave, and whether the kernel counted the bytes that the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from reshard_executors.emulation.job import PortBytes, RunDone
from reshard_planner.ir.plan import Plan
from reshard_planner.transfer import Medium

HEADERS_PER_MILLE = 3
"""What headers may add to planned bytes that are sent, and acknowledgements to those that are received: the
kernel counts packets of up to 64 KiB."""

CONTROL_NBYTES = 16_384
"""What agreeing on a run and meeting before and after it may add, per other rank."""


@dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes through the ports of one rank's GPU.

    Attributes:
        planned: by the plan; None for a baseline.
        measured: by the kernel's counters, per repeat.
    """

    planned: PortBytes | None
    measured: tuple[PortBytes, ...]

    def as_planned(self, peers: int) -> bool:
        """Whether every repeat sent what the plan says, apart from headers and control traffic.

        Args:
            peers: number of other ranks.
        """
        if self.planned is None:
            return True
        pairs = [
            pair
            for each in self.measured
            for pair in (
                (self.planned.nic_sent, self.planned.nic_received, each.nic_sent),
                (self.planned.nvlink_sent, self.planned.nvlink_received, each.nvlink_sent),
            )
        ]
        extra = CONTROL_NBYTES * peers
        return all(
            planned <= sent <= planned + (planned + received) * HEADERS_PER_MILLE // 1000 + extra
            for planned, received, sent in pairs
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outcome of one run.

    Attributes:
        name: of the run.
        elapsed_s: time of the slowest rank in each repeat, in seconds; empty if refused.
        correct: whether every element of every destination was right after every repeat, bit by bit.
        first_error: a sentence on the first wrong element, of the lowest rank that has one; None if correct.
        ranks: bytes of each rank.
        refused: why a baseline cannot do it; None if it can.
    """

    name: str
    elapsed_s: tuple[float, ...]
    correct: bool
    first_error: str | None
    ranks: Mapping[int, RankBytes]
    refused: str | None = None

    @property
    def median_s(self) -> float:
        """Median of the times, in seconds; 0 if refused."""
        return median(self.elapsed_s) if self.elapsed_s else 0.0

    @property
    def bytes_ok(self) -> bool | None:
        """Whether every GPU sent what the plan says over each medium; None for a baseline."""
        if any(each.planned is None for each in self.ranks.values()):
            return None
        return all(each.as_planned(len(self.ranks) - 1) for each in self.ranks.values())

    def planned_nbytes(self, port: str) -> int | None:
        """Planned bytes of all ranks through a kind of port, a field of :class:`PortBytes`."""
        found = [each.planned for each in self.ranks.values()]
        return sum(getattr(planned, port) for planned in found) if all(found) else None

    def measured_nbytes(self, port: str) -> int:
        """Counted bytes of all ranks through a kind of port: of the repeat that is in the middle."""
        sums = [
            sum(getattr(each.measured[repeat], port) for each in self.ranks.values())
            for repeat in range(len(self.elapsed_s))
        ]
        return sorted(sums)[len(sums) // 2] if sums else 0

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "name": self.name,
            "elapsed_s": list(self.elapsed_s),
            "median_s": self.median_s,
            "correct": self.correct,
            "first_error": self.first_error,
            "bytes_ok": self.bytes_ok,
            "refused": self.refused,
            "network_nbytes": _planned_and_measured(self, "nic_sent"),
            "nvlink_nbytes": _planned_and_measured(self, "nvlink_sent"),
            "ranks": {str(rank): asdict(each) for rank, each in self.ranks.items()},
        }


def _planned_and_measured(result: RunResult, port: str) -> dict[str, int | None]:
    return {"planned": result.planned_nbytes(port), "measured": result.measured_nbytes(port)}


def planned_bytes(plan: Plan, ranks: Sequence[int]) -> dict[int, PortBytes]:
    """Bytes that a plan moves through the ports of each rank's GPU."""
    ops = plan.ops()
    size = max(ranks, default=0) + 1
    sums = {
        (medium, side): np.bincount(
            getattr(ops, side)[ops.medium == medium],
            weights=ops.nbytes[ops.medium == medium],
            minlength=size,
        )
        for medium in (Medium.NETWORK, Medium.NVLINK)
        for side in ("src", "dst")
    }
    return {rank: PortBytes(*(int(column[rank]) for column in sums.values())) for rank in ranks}


def gather(name: str, plan: Plan, reports: Mapping[int, RunDone], *, of_plan: bool) -> RunResult:
    """The result of a run from what its ranks measured.

    Args:
        name: of the run.
        plan: what was run, or what has the same spec.
        reports: by rank.
        of_plan: whether the plan was run, and not a baseline.
    """
    ranks = sorted(reports)
    planned = planned_bytes(plan, ranks) if of_plan else {}
    repeats = list(zip(*(reports[rank].repeats for rank in ranks), strict=True))
    differences = [each.difference for repeat in repeats for each in repeat if each.difference is not None]
    return RunResult(
        name,
        tuple(max(each.elapsed_s for each in repeat) for repeat in repeats),
        not differences,
        differences[0] if differences else None,
        {
            rank: RankBytes(planned.get(rank), tuple(each.ports for each in reports[rank].repeats))
            for rank in ranks
        },
        reports[ranks[0]].refused,
    )
