"""Counters of a trace: how many bytes per second go through each NIC, and in which direction."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reshard_planner.ir.linkuse import mean_rates, moving_times, rate_steps, within_rate
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.ir.tracetimes import NS_PER_S, microseconds
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GB: Final = 1e9

MAX_STEPS: Final = 1000
"""Steps of one counter; where there are more, it shows the means of as many equal times."""

DIRECTIONS: Final = ((Activity.SEND, "tx"), (Activity.RECEIVE, "rx"))


def counter_events(
    timeline: Timeline, messages: tuple[Ints, Ints], ports: Ports, origin_ns: int
) -> list[dict[str, Any]]:
    """Counter events in GB/s for every NIC and direction that carries bytes.

    A counter belongs to the process of the NIC's domain. Its times ascend, and it ends at 0.

    Args:
        timeline: the events.
        messages: both ends of its messages, by position.
        ports: NICs, of all ranks of the timeline.
        origin_ns: nanosecond that the trace begins at.
    """
    start_s, end_s = moving_times(timeline, messages)
    events: list[dict[str, Any]] = []
    for activity, direction in DIRECTIONS:
        chosen = np.flatnonzero((timeline.medium == Medium.NETWORK) & (timeline.activity == activity))
        nic = ports.nic_group[timeline.rank[chosen]] if len(chosen) else chosen
        order = np.argsort(nic, kind="stable")
        nics, first = np.unique(nic[order], return_index=True)
        for number, mine in zip(nics.tolist(), np.split(chosen[order], first[1:]), strict=False):
            if number < 0:
                continue  # a measured run may go over the network without a NIC that the topology knows
            steps = rate_steps(start_s[mine], end_s[mine], timeline.nbytes[mine])
            steps = within_rate(steps, float(ports.nic_bytes_per_s[number]))
            time_ns, shown = _shown(*steps, origin_ns)
            for time_us, rate in zip(microseconds(time_ns), shown.tolist(), strict=True):
                events.append(
                    {
                        "ph": "C",
                        "name": f"{ports.nic_name[number]} {direction}",
                        "cat": "network",
                        "pid": int(ports.nic_domain[number]),
                        "ts": time_us,
                        "args": {"GB/s": rate},
                    }
                )
    return events


def _shown(time_s: Floats, bytes_per_s: Floats, origin_ns: int) -> tuple[Ints, Floats]:
    """Times in nanoseconds from the origin, strictly ascending, and rates in GB/s that differ from before."""
    if len(time_s) > MAX_STEPS:
        edges_s = np.linspace(time_s[0], time_s[-1], MAX_STEPS)
        bytes_per_s = np.append(mean_rates((time_s, bytes_per_s), edges_s), 0.0)
        time_s = edges_s
    time_ns = np.rint(time_s * NS_PER_S).astype(np.int64) - origin_ns
    shown = np.round(bytes_per_s / GB, 3)
    last = np.diff(time_ns, append=time_ns[-1:] + 1) > 0  # of several within a nanosecond
    time_ns, shown = time_ns[last], shown[last]
    changes = np.diff(shown, prepend=0.0) != 0
    return time_ns[changes], shown[changes]
