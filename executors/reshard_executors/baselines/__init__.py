"""Baselines: refits of torch's own collectives, one file each, to be measured beside a plan.

They move the same local tensors as :class:`reshard_executors.Resharder` does, and need no plan.
"""

from __future__ import annotations

from reshard_executors.baselines import full_tensor, gather_broadcast
from reshard_executors.baselines.baseline import Baseline, Prepared
from reshard_planner.errors import InputError

BASELINES: dict[str, Baseline] = {
    module.BASELINE.name: module.BASELINE for module in (gather_broadcast, full_tensor)
}
"""All baselines by name; the conventional one first."""


def find_baseline(name: str) -> Baseline:
    """The baseline of this name.

    Raises:
        InputError: if there is none.
    """
    if name not in BASELINES:
        raise InputError(f"baseline {name!r} is unknown; expected one of {', '.join(BASELINES)}")
    return BASELINES[name]


__all__ = ["BASELINES", "Baseline", "Prepared", "find_baseline"]
