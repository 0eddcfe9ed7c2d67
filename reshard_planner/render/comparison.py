"""Plans of one spec side by side, as a text table."""

from __future__ import annotations

from collections.abc import Sequence

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
)

UPLINK = HEADER.index("busiest uplink")
"""The column that only specs with pods have."""


def comparison_table(plans: Sequence[Plan]) -> str:
    """A table with a row per plan, under the payload minimum and the bound that hold for all of them.

    Uplinks have a column where the topology has pods.

    Args:
        plans: plans of the same spec, at least one.
    """
    first, uplinks = plans[0].certificate, bool(plans[0].spec.topology.pods)
    least, bound = first.payload.minimum_network_nbytes, first.bound
    rows = [HEADER, *(_row(plan) for plan in plans)]
    if not uplinks:
        rows = [row[:UPLINK] + row[UPLINK + 1 :] for row in rows]
    head = (
        f"network minimum {format_nbytes(least)}, bound T* {format_s(bound.time_s)}"
        f" ({bound.term} of {bound.resource})"
    )
    return f"{head}\n{align(rows)}"


def _row(plan: Plan) -> tuple[str, ...]:
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
    )


def _ratio(value: float, base: float) -> str:
    """How many times ``base``; a dash where both are zero."""
    if base:
        return f"{value / base:.2f}"
    return "inf" if value else "-"
