"""Other planners on the same cases: torch's own, and NeMo RL's from a checkout.

Each module here offers ``plan(spec, ...)`` and says in its docstring which traffic a plan is taken to imply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import reshard_planner as rp
from benchmarks.case import Case
from benchmarks.peers.planned import Planned, SkipPeerError
from benchmarks.record import PeerRecord

TIMES = ("nic_s", "phases_s", "nvlink_s", "bound_s", "minimum_network_nbytes")
"""What ratios are made of, beside the fields of a record."""

Planner = tuple[str, Callable[[rp.ReshardSpec], Planned]]


def measure_peers(
    case: Case, nemo_rl: Path | None, repeat: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Plan a case with every other planner.

    Args:
        case: what to plan.
        nemo_rl: a checkout of NeMo RL.
        repeat: plans per planner, of which the median time counts.
        tell: called with the name of each planner as it begins.

    Returns:
        The fields of :class:`benchmarks.record.PeerRecord`, and :data:`TIMES`: times of the busiest NIC,
        of the phases and of the busiest NVLink port, and T* and the least payload of the problem that was
        planned where it is not the case's.
    """
    spec = case.build()
    found = []
    for name, planner in _planners(nemo_rl, repeat):
        tell(name)
        record = PeerRecord(name)
        extra: dict[str, Any] = dict.fromkeys(TIMES)
        try:
            planned = planner(spec)
        except SkipPeerError as error:
            record.status, record.reason = "skipped", str(error)
        except Exception as error:  # noqa: BLE001 - private interfaces of others fail in any way
            record.reason = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            record.status, record.note = "ok", planned.note
            record.plan_s, record.transfers = planned.plan_s, planned.transfers
            loads = planned.traffic.loads(planned.spec)
            record.network_nbytes, record.nic_nbytes = loads.network_nbytes, loads.nic_nbytes
            extra["nic_s"], extra["phases_s"], extra["nvlink_s"] = loads.nic_s, loads.phases_s, loads.nvlink_s
            if planned.spec is not spec:
                claims = rp.compile(planned.spec).certificate
                extra["bound_s"] = claims.bound.time_s
                extra["minimum_network_nbytes"] = claims.payload.minimum_network_nbytes
        found.append({**dataclasses.asdict(record), **extra})
    return found


def _planners(nemo_rl: Path | None, repeat: int) -> Iterator[Planner]:
    if find_spec("torch") is None:
        for name in ("torch DCP", "torch DTensor", "NeMo RL"):
            yield name, _skipped("torch is not installed")
        return
    from benchmarks.peers import dcp, dtensor  # noqa: PLC0415 - they import torch
    from benchmarks.peers import nemo_rl as nemo  # noqa: PLC0415 - likewise

    yield "torch DCP", lambda spec: dcp.plan(spec, repeat)
    yield "torch DTensor, greedy", lambda spec: dtensor.plan(spec, repeat, by_cost=False)
    yield "torch DTensor, least cost", lambda spec: dtensor.plan(spec, repeat, by_cost=True)
    if nemo_rl is None:
        yield "NeMo RL", _skipped("no checkout given; name one with --nemo-rl")
        return
    yield "NeMo RL, exact", lambda spec: nemo.plan(spec, repeat, nemo_rl, striped=False)
    yield "NeMo RL, striped", lambda spec: nemo.plan(spec, repeat, nemo_rl, striped=True)


def _skipped(reason: str) -> Callable[[rp.ReshardSpec], Planned]:
    def skip(_: rp.ReshardSpec) -> Planned:
        raise SkipPeerError(reason)

    return skip
