"""Plans of the same spec by other strategies, as figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from reshard_planner.compiler import Outline
from reshard_planner.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another strategy comes to.

    Attributes:
        strategy: its name.
        network_nbytes: payload, in bytes; None if it has no plan, and so are the others then.
        nvlink_nbytes: bytes over NVLink.
        busiest_s: time of the busiest port at its datasheet rate, in seconds.
        schedule_s: sum over slots of the busiest port's time, and start-up times, in seconds; None where
            only its routes are known.
        predicted_s: predicted time of a run, in seconds; None without a prediction.
        note: why something is missing; empty where nothing is.
    """

    strategy: str
    network_nbytes: int | None
    nvlink_nbytes: int | None
    busiest_s: float | None
    schedule_s: float | None
    predicted_s: float | None
    note: str = ""

    @classmethod
    def of(cls, plan: Plan, predicted_s: float | None = None, note: str = "") -> Self:
        """The figures of a plan, from its certificate."""
        claims = plan.certificate
        ports = (claims.busiest_nic, claims.busiest_nvlink, claims.busiest_uplink)
        return cls(
            plan.spec.options.strategy,
            claims.payload.network_nbytes,
            claims.payload.nvlink_nbytes,
            max(port.time_s for port in ports),
            claims.schedule.time_s,
            predicted_s,
            note,
        )

    @classmethod
    def routed(cls, strategy: str, outline: Outline) -> Self:
        """The figures of routes that were not scheduled."""
        return cls(strategy, outline.network_nbytes, outline.nvlink_nbytes, outline.busiest_s, None, None)

    @classmethod
    def without(cls, strategy: str, note: str) -> Self:
        """A strategy that has no plan."""
        return cls(strategy, None, None, None, None, None, note)
