"""Certificates: what a plan moves, how fast it can be, and the proof that nothing is much faster."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from reshard_planner.bounds import Bound, Cut
from reshard_planner.demand import Demand, minimum_network_nbytes
from reshard_planner.errors import PlanFileError
from reshard_planner.ir.memory import staging_nbytes
from reshard_planner.ir.ops import Ops
from reshard_planner.schedule import alpha_s
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

LOGICAL_COPIES = 2
"""Gather-and-broadcast moves every weight twice, once per stage, by NVIDIA's counting."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes moved, per medium.

    Attributes:
        network_nbytes: between domains.
        minimum_network_nbytes: P*, the least that any plan must move between domains.
        nvlink_nbytes: within domains.
        local_nbytes: within ranks.
        logical_nbytes: by NVIDIA's counting of gather-and-broadcast, twice the weights.
    """

    network_nbytes: int
    minimum_network_nbytes: int
    nvlink_nbytes: int
    local_nbytes: int
    logical_nbytes: int


@dataclass(frozen=True, slots=True)
class BoundClaim:
    """The bound T* and the cut that proves it.

    Attributes:
        time_s: T*, ``cut_nbytes / cut_bytes_per_s``.
        t0_s: T0, when only ranks that hold or need the bytes take part.
        term: kind of the binding cut.
        resource: its ports, for display.
        cut_members: domains of the cut, or its one rank.
        cut_nbytes: bytes that must pass it.
        cut_bytes_per_s: its rate.
    """

    time_s: float
    t0_s: float
    term: str
    resource: str
    cut_members: tuple[int, ...]
    cut_nbytes: int
    cut_bytes_per_s: int


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
        messages: packed messages, one per pair and slot.
        peers_max: most peers of any rank, over all slots.
    """

    slots: int
    time_s: float
    gap: float | None
    messages: int
    peers_max: int


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
        gap: time of the busier of the two over T*, minus 1; 0 when both are 0, null if only T* is. It may be
            negative for a strategy that moves more than the least, since T* bounds plans of least payload.
        schedule: cost of the rounds.
        transfers: transfers over all media.
        transfers_by_medium: the same per medium.
        staging_nbytes: staging and scratch of the rank that needs most.
    """

    payload: Payload
    bound: BoundClaim
    busiest_nic: Busiest
    busiest_nvlink: Busiest
    gap: float | None
    schedule: ScheduleClaim
    transfers: int
    transfers_by_medium: TransferCounts
    staging_nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, raw: object) -> Certificate:
        """Read back what :meth:`to_dict` gave.

        Raises:
            PlanFileError: if a field is missing, unknown or of the wrong type.
        """
        try:
            certificate: Certificate = msgspec.convert(raw, cls, strict=True)
        except msgspec.ValidationError as error:
            raise PlanFileError(f"certificate: {error}") from None
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
    spec: ReshardSpec, ops: Ops, demands: tuple[Demand, ...], ports: Ports, bound: Bound
) -> Certificate:
    """Compute the certificate of a plan from its operations.

    Args:
        spec: what the plan was compiled from.
        ops: all operations of the plan.
        demands: classes of the spec.
        ports: capacities per rank.
        bound: the least times of the spec.
    """
    per_medium = {medium: int(ops.nbytes[ops.medium == medium].sum()) for medium in Medium}
    payload = Payload(
        per_medium[Medium.NETWORK],
        minimum_network_nbytes(demands),
        per_medium[Medium.NVLINK],
        per_medium[Medium.LOCAL],
        LOGICAL_COPIES * sum(tensor.nbytes for tensor in spec.tensors),
    )
    nic = _busiest(_loads(ops, Medium.NETWORK, ports.nic_group), ports.nic_bytes_per_s, ports.nic_name)
    ranks = tuple(f"nvlink of rank {rank}" for rank in range(len(ports.nvlink_bytes_per_s)))
    nvlink = _busiest(
        _loads(ops, Medium.NVLINK, np.arange(len(ranks), dtype=np.int64)), ports.nvlink_bytes_per_s, ranks
    )
    transfers = ops.transfers()
    return Certificate(
        payload,
        claim_bound(bound),
        nic,
        nvlink,
        _gap(max(nic.time_s, nvlink.time_s), bound.time),
        _schedule(spec, ops, ports, bound.time),
        len(transfers),
        TransferCounts(*(int((ops.medium[transfers] == medium).sum()) for medium in Medium)),
        staging_nbytes(ops),
    )


def claim_bound(bound: Bound) -> BoundClaim:
    """The bound as the certificate states it."""
    cut: Cut = bound.cut
    return BoundClaim(
        float(bound.time), float(bound.t0), cut.kind, cut.resource, cut.members, cut.nbytes, cut.bytes_per_s
    )


def _gap(time_s: float, bound: Fraction) -> float | None:
    if bound:
        return time_s / float(bound) - 1
    return None if time_s else 0.0


def _loads(
    ops: Ops, medium: Medium, port_of: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes in and out per port."""
    at = ops.medium == medium
    count = int(port_of.max(initial=-1)) + 1
    sums = []
    for rank in (ops.dst[at], ops.src[at]):
        load = np.zeros(count, dtype=np.int64)
        port = port_of[rank]
        np.add.at(load, port[port >= 0], ops.nbytes[at][port >= 0])
        sums.append(load)
    return sums[0], sums[1]


def _busiest(
    loads: tuple[NDArray[np.int64], NDArray[np.int64]], rate: NDArray[np.int64], names: tuple[str, ...]
) -> Busiest:
    best = Busiest("none", 0, 0.0)
    for load, direction in zip(loads, ("in", "out"), strict=True):
        used = np.flatnonzero(load)
        if not len(used):
            continue
        times = load[used] / rate[used]
        at = int(np.argmax(times))
        if times[at] > best.time_s:
            best = Busiest(f"{names[used[at]]}, {direction}", int(load[used[at]]), float(times[at]))
    return best


def _schedule(spec: ReshardSpec, ops: Ops, ports: Ports, bound: Fraction) -> ScheduleClaim:
    slots = int(ops.slot.max(initial=-1)) + 1
    used, slot = np.unique(ops.slot, return_inverse=True)
    longest = np.zeros(len(used))
    for medium, port_of, rate in (
        (Medium.NETWORK, ports.nic_group, ports.nic_bytes_per_s),
        (Medium.NVLINK, np.arange(len(ports.nvlink_bytes_per_s), dtype=np.int64), ports.nvlink_bytes_per_s),
    ):
        at = np.flatnonzero(ops.medium == medium)
        for rank in (ops.src[at], ops.dst[at]):
            port = port_of[rank]
            key, inverse = np.unique(slot[at] * max(1, len(rate)) + port, return_inverse=True)
            load = np.zeros(len(key), dtype=np.int64)
            np.add.at(load, inverse, ops.nbytes[at])
            np.maximum.at(longest, key // max(1, len(rate)), load / rate[key % max(1, len(rate))])
    moved = np.flatnonzero(ops.medium != Medium.LOCAL)
    size = len(ports.domain)
    src, dst = ops.src[moved], ops.dst[moved]
    messages = len(np.unique((ops.slot[moved] * size + src) * size + dst))
    pairs = np.unique(np.concatenate((src * size + dst, dst * size + src)))
    peers = np.bincount(pairs // size) if len(pairs) else np.zeros(1, dtype=np.int64)
    busy = len(np.unique(ops.slot[moved]))
    total = float(longest.sum())
    return ScheduleClaim(
        slots, total + busy * alpha_s(spec.topology), _gap(total, bound), messages, int(peers.max(initial=0))
    )
