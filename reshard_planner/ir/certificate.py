"""Certificates: what a plan moves, how fast it can be, and the proof that nothing is much faster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.bounds import Bound, Weights
from reshard_planner.demand import Demand, minimum_network_nbytes
from reshard_planner.errors import PlanFileError, SpecError
from reshard_planner.forms import convert
from reshard_planner.ir.memory import connection_nbytes, staging_of
from reshard_planner.ir.tables import Tables
from reshard_planner.ir.traffic import Traffic, measure_traffic
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports

Ints = NDArray[np.int64]

LOGICAL_COPIES = 2
"""Gather-and-broadcast moves every weight twice, once per stage, by NVIDIA's counting."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes moved, per medium.

    Attributes:
        network_nbytes: over the network: between domains, and with some baselines within them.
        minimum_network_nbytes: P*, the least that any plan must move between domains.
        nvlink_nbytes: over NVLink, within domains.
        local_nbytes: within ranks.
        logical_nbytes: by NVIDIA's counting of gather-and-broadcast, twice the weights.
    """

    network_nbytes: int
    minimum_network_nbytes: int
    nvlink_nbytes: int
    local_nbytes: int
    logical_nbytes: int


@dataclass(frozen=True, slots=True)
class PriceClaim:
    """Prices that prove T0, when only ranks that hold or need the bytes take part.

    Attributes:
        nbytes: bytes times least price, over all classes.
        bytes_per_s: weight times rate, over all ports.
        weights: prices as (resource, numbers, weight).
    """

    nbytes: int
    bytes_per_s: int
    weights: Weights


@dataclass(frozen=True, slots=True)
class BoundClaim:
    """The bound T* and the cut that proves it.

    Attributes:
        time_s: T*, ``cut_nbytes / cut_bytes_per_s``.
        t0_s: T0, when only ranks that hold or need the bytes take part.
        term: kind of the binding cut.
        resource: its ports, for display.
        cut_members: domains or pods of the cut, or its one rank; empty for prices.
        cut_nbytes: bytes that must pass it, weighted with its prices.
        cut_bytes_per_s: its rate, weighted likewise.
        cut_weights: prices as (resource, numbers, weight); see docs/mathematics.md.
        t0_cut: prices that prove T0; null if T0 is T*.
    """

    time_s: float
    t0_s: float
    term: str
    resource: str
    cut_members: tuple[int, ...]
    cut_nbytes: int
    cut_bytes_per_s: int
    cut_weights: Weights
    t0_cut: PriceClaim | None


@dataclass(frozen=True, slots=True)
class Busiest:
    """The port that takes longest at its datasheet rate.

    Attributes:
        resource: the port and its direction.
        nbytes: bytes over it.
        time_s: time for them.
    """

    resource: str
    nbytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class ScheduleClaim:
    """What the rounds cost.

    Attributes:
        slots: number of slots.
        time_s: sum over slots of the busiest port's time, and a start-up time for each slot that moves bytes
            between ranks.
        gap: that sum without start-up times, over T*, minus 1; null if T* is 0 and the sum is not.
        message_cost_s: what it costs that messages are no smaller: that sum without start-up times, less T*.
        messages: packed messages, one per pair, slot and medium.
        peers_max: most peers of any rank, over all slots.
        peers_in_slot_max: most peers of any rank in one slot.
    """

    slots: int
    time_s: float
    gap: float | None
    message_cost_s: float
    messages: int
    peers_max: int
    peers_in_slot_max: int


@dataclass(frozen=True, slots=True)
class PeersClaim:
    """Ranks that a rank exchanges bytes with over the whole plan; each is a connection that takes memory.

    Attributes:
        network_max: most network peers of any rank.
        nvlink_max: most NVLink peers of any rank.
        connection_nbytes: estimated memory for the connections of the rank that has most peers.
    """

    network_max: int
    nvlink_max: int
    connection_nbytes: int


@dataclass(frozen=True, slots=True)
class TransferCounts:
    """Transfers of pieces per medium, over all tensors; each is an operation per chunk of its piece."""

    local: int
    nvlink: int
    network: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """All claims of a plan; ``verify`` recomputes each of them.

    Attributes:
        payload: bytes moved.
        bound: least time.
        busiest_nic: busiest NIC group in one direction.
        busiest_nvlink: busiest NVLink port in one direction.
        busiest_uplink: busiest uplink of a pod in one direction.
        gap: time of the busiest of the three over T*, minus 1; 0 when both are 0, null if only T* is. It may
            be negative for a strategy that moves more than the least: T* bounds plans of least payload.
        schedule: cost of the rounds.
        peers: connections that it takes.
        transfers: transfers over all media.
        transfers_by_medium: the same per medium.
        staging_nbytes: staging and scratch of the rank that needs most.
        rail_nbytes: bytes over the network between ranks of one rail; None, and absent from files, where the
            topology names no rails.
    """

    payload: Payload
    bound: BoundClaim
    busiest_nic: Busiest
    busiest_nvlink: Busiest
    busiest_uplink: Busiest
    gap: float | None
    schedule: ScheduleClaim
    peers: PeersClaim
    transfers: int
    transfers_by_medium: TransferCounts
    staging_nbytes: int
    rail_nbytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.rail_nbytes is None:
            del plain["rail_nbytes"]
        return plain

    @classmethod
    def from_dict(cls, raw: object) -> Certificate:
        """Read back what :meth:`to_dict` gave.

        Raises:
            PlanFileError: if a field is missing, unknown or of the wrong type.
        """
        try:
            certificate = convert(raw, cls, "certificate")
        except SpecError as error:
            raise PlanFileError(str(error)) from None
        _refuse_unknown("certificate", raw, certificate.to_dict())
        return certificate


def _refuse_unknown(path: str, raw: object, known: object) -> None:
    if isinstance(raw, dict) and isinstance(known, dict):
        for name, value in raw.items():
            if name not in known:
                raise PlanFileError(
                    f"{path} has the unknown field {name!r}; expected one of {', '.join(known)}"
                )
            _refuse_unknown(f"{path}.{name}", value, known[name])


def certify(
    spec: ReshardSpec,
    tables: Tables,
    demands: tuple[Demand, ...],
    ports: Ports,
    bound: Bound,
    *,
    traffic: Traffic | None = None,
) -> Certificate:
    """Compute the certificate of a plan from its tables.

    Args:
        spec: what the plan was compiled from.
        tables: the plan.
        demands: classes of the spec.
        ports: capacities per rank.
        bound: the least times of the spec.
        traffic: the sums over the plan's operations, if they are known already.
    """
    if traffic is None:
        traffic = measure_traffic(spec, tables, ports)
    local, nvlink, network = traffic.nbytes
    payload = Payload(
        network,
        minimum_network_nbytes(demands),
        nvlink,
        local,
        LOGICAL_COPIES * sum(tensor.nbytes for tensor in spec.tensors),
    )
    nic = _busiest(
        _per_group(traffic.network, ports), ports.nic_bytes_per_s, lambda group: ports.nic_name[group]
    )
    port = _busiest(traffic.nvlink, ports.nvlink_bytes_per_s, lambda rank: f"nvlink of rank {rank}")
    uplink = _busiest(traffic.uplink, ports.uplink_bytes_per_s, lambda pod: f"uplink of pod {pod}")
    return Certificate(
        payload,
        claim_bound(bound),
        nic,
        port,
        uplink,
        _gap(max(nic.time_s, port.time_s, uplink.time_s), bound.time),
        _schedule(spec, traffic, bound.time),
        PeersClaim(
            int(traffic.network_peers.max(initial=0)),
            int(traffic.nvlink_peers.max(initial=0)),
            connection_nbytes(traffic),
        ),
        sum(traffic.transfers),
        TransferCounts(*traffic.transfers),
        staging_of(traffic),
        traffic.rail_nbytes if (ports.rails >= 0).any() else None,
    )


def claim_bound(bound: Bound) -> BoundClaim:
    """The bound as the certificate states it."""
    cut, prices = bound.cut, bound.t0_cut
    t0_cut = None if bound.t0 == bound.time else PriceClaim(prices.nbytes, prices.bytes_per_s, prices.weights)
    return BoundClaim(
        float(bound.time),
        float(bound.t0),
        cut.kind,
        cut.resource,
        cut.members,
        cut.nbytes,
        cut.bytes_per_s,
        cut.weights,
        t0_cut,
    )


def _gap(time_s: float, bound: Fraction) -> float | None:
    if bound:
        return time_s / float(bound) - 1
    return None if time_s else 0.0


def _per_group(loads: Ints, ports: Ports) -> Ints:
    """Bytes out and in per NIC group, from those per rank."""
    sums = np.zeros((2, len(ports.nic_bytes_per_s)), dtype=np.int64)
    ranks = np.flatnonzero(ports.nic_group >= 0)
    for total, load in zip(sums, loads, strict=True):
        np.add.at(total, ports.nic_group[ranks], load[ranks])
    return sums


def _busiest(loads: Ints, rate: Ints, name: Callable[[int], str]) -> Busiest:
    """The busiest port of some, given their bytes out and in."""
    best = Busiest("none", 0, 0.0)
    for load, direction in ((loads[1], "in"), (loads[0], "out")):
        used = np.flatnonzero(load)
        if not len(used):
            continue
        times = load[used] / rate[used]
        at = int(np.argmax(times))
        if times[at] > best.time_s:
            best = Busiest(f"{name(int(used[at]))}, {direction}", int(load[used[at]]), float(times[at]))
    return best


def _schedule(spec: ReshardSpec, traffic: Traffic, bound: Fraction) -> ScheduleClaim:
    times = traffic.busiest_s.tolist()
    total = fsum(times)  # rounded once, so that every machine gets the same figures
    return ScheduleClaim(
        traffic.slots,
        total + len(times) * spec.topology.alpha_s,
        _gap(total, bound),
        fsum((*times, -float(bound))),
        traffic.messages,
        traffic.peers_max,
        traffic.peers_in_slot_max,
    )
