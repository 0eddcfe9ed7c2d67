"""Plans of one spec side by side, as a text table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.ir.plan import Plan
from reshard_planner.render.text import align, format_nbytes, format_s

HEADER = (
    "strategy",
    "network",
    "x minimum",
    "transfers",
    "NVLink",
    "busiest NIC",
    "busiest NVLink",
    "busiest uplink",
    "x bound",
    "staging",
    "messages",
    "predicted",
    "x T*",
    "speedup",
)

REFERENCE = "gather-broadcast"
"""What speedups are over."""

REFERENCE_REASON = (
    f"speedup is over {REFERENCE}, which sends through one NIC per domain; NCCL's collectives use several and"
    " take less time"
)
"""What is said of speedups wherever there are some."""

REFERENCE_NOTE = f"{REFERENCE_REASON}: see docs/published.md"
"""The same, and where in the repository there is more."""

UPLINK = HEADER.index("busiest uplink")
"""The column that only specs with pods have."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted for one plan.

    Attributes:
        elapsed_s: time of a run, in seconds; None without a prediction.
        bound_ratio: how many times the bound that is; None where the bound is 0.
        speedup: how many times faster it is than gather-broadcast, a chain over one NIC per domain; None
            where that has no prediction.
        phases: phases that the run has, 0 without a prediction.
    """

    elapsed_s: float | None
    bound_ratio: float | None
    speedup: float | None
    phases: int


BOUND_NOTE = (
    "T*: no plan that moves as little over the network takes less time at datasheet rates; x bound: the"
    " busiest port's time over T*"
)
"""What is said of T* and of busiest ports over it."""


def bound_note(times: str) -> str:
    """What is said of T* and of the columns that are over it, below times of some sort.

    >>> bound_note("predicted time").rpartition("; ")[2]
    'x T*: the predicted time over T*'
    """
    return f"{BOUND_NOTE}; x T*: the {times} over T*"


def times_over(value: float | None, base: float | None) -> float | None:
    """How many times ``base`` a value is, such as a time over T*; None if either is unknown or ``base`` is 0.

    >>> times_over(3.0, 2.0), times_over(0.0, 2.0), times_over(3.0, 0.0), times_over(None, 2.0)
    (1.5, 0.0, None, None)
    """
    return value / base if value is not None and base else None


def format_times(times: float | None) -> str:
    """Times that :func:`times_over` gives, with two digits; a dash for None."""
    return "-" if times is None else f"{times:.2f}"


def comparison_table(plans: Sequence[Plan], predicted: Sequence[Predicted]) -> str:
    """A table with a row per plan, under the payload minimum and the bound that hold for all of them.

    Uplinks have a column where the topology has pods.

    Args:
        plans: plans of the same spec, at least one.
        predicted: what is predicted for each of them.
    """
    first, uplinks = plans[0].certificate, bool(plans[0].spec.topology.pods)
    least, bound = first.payload.minimum_network_nbytes, first.bound
    rows = [HEADER, *(_row(*pair) for pair in zip(plans, predicted, strict=True))]
    if not uplinks:
        rows = [row[:UPLINK] + row[UPLINK + 1 :] for row in rows]
    head = (
        f"network minimum {format_nbytes(least)}, bound T* {format_s(bound.time_s)}"
        f" ({bound.term} of {bound.resource})"
    )
    return f"{head}\n{align(rows)}"


def _row(plan: Plan, predicted: Predicted) -> tuple[str, ...]:
    certificate = plan.certificate
    payload, nic, nvlink = certificate.payload, certificate.busiest_nic, certificate.busiest_nvlink
    uplink = certificate.busiest_uplink
    moved = certificate.transfers_by_medium
    return (
        plan.spec.options.strategy,
        format_nbytes(payload.network_nbytes),
        _ratio(payload.network_nbytes, payload.minimum_network_nbytes),
        f"{moved.network} + {moved.nvlink} + {moved.local}",
        format_nbytes(payload.nvlink_nbytes),
        format_s(nic.time_s),
        format_s(nvlink.time_s),
        format_s(uplink.time_s),
        _ratio(max(nic.time_s, nvlink.time_s, uplink.time_s), certificate.bound.time_s),
        format_nbytes(certificate.staging_nbytes),
        str(certificate.schedule.messages),
        *_predicted(predicted),
    )


def _predicted(found: Predicted) -> tuple[str, str, str]:
    return (
        "-" if found.elapsed_s is None else format_s(found.elapsed_s),
        format_times(found.bound_ratio),
        format_times(found.speedup),
    )


def _ratio(value: float, base: float) -> str:
    """How many times ``base``; a dash where both are zero."""
    if base:
        return f"{value / base:.2f}"
    return "inf" if value else "-"
