"""What another planner planned, as traffic that can be counted on NICs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import reshard_planner as rp
from reshard_planner.topology import Ports

T = TypeVar("T")


class SkipPeerError(Exception):
    """A planner cannot be measured on a case; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Traffic on the network.

    Attributes:
        network_nbytes: bytes between domains.
        nic_nbytes: bytes over the NIC group and direction that takes longest, all phases together.
        nic_s: its time.
        phases_s: sum over phases of the time of the NIC that is busiest in each.
        nvlink_s: time of the NVLink port and direction that takes longest, all phases together.
    """

    network_nbytes: int
    nic_nbytes: int
    nic_s: float
    phases_s: float
    nvlink_s: float


@dataclass(slots=True)
class Traffic:
    """Point-to-point transfers in phases that follow one another, as lists of (src, dst, nbytes)."""

    phases: list[list[tuple[int, int, int]]] = field(default_factory=lambda: [[]])

    def add(self, src: int, dst: int, nbytes: int) -> None:
        """A transfer in the current phase."""
        self.phases[-1].append((src, dst, nbytes))

    def ring(self, members: Sequence[int], nbytes: int, *, closed: bool) -> None:
        """Equal transfers from each member to the next, and from the last to the first if ``closed``."""
        following = [*members[1:], members[0]] if closed else members[1:]
        for src, dst in zip(members, following, strict=False):
            self.add(src, dst, nbytes)

    def next_phase(self) -> None:
        """Begin a phase that waits for the one before."""
        self.phases.append([])

    def loads(self, spec: rp.ReshardSpec) -> Loads:
        """Sums on the NICs of the spec's topology."""
        ports = Ports.of(spec.topology, spec.ranks)
        nic_rate = ports.nic_bytes_per_s
        nvlink_rate = np.maximum(1, ports.nvlink_bytes_per_s)
        nic = np.zeros((2, len(nic_rate)), dtype=np.int64)
        nvlink = np.zeros((2, len(nvlink_rate)), dtype=np.int64)
        network, phases_s = 0, 0.0
        for phase in self.phases:
            src, dst, nbytes = np.array(phase, dtype=np.int64).reshape(-1, 3).T
            out = ports.domain[src] != ports.domain[dst]
            network += int(nbytes[out].sum())
            load = np.stack([_sums(ports.nic_group[ranks[out]], nbytes[out], nic) for ranks in (src, dst)])
            phases_s += float((load / nic_rate).max(initial=0.0))
            nic += load
            nvlink += np.stack([_sums(ranks[~out], nbytes[~out], nvlink) for ranks in (src, dst)])
        times = nic / nic_rate
        at = np.unravel_index(int(times.argmax()), times.shape)
        nvlink_s = float((nvlink / nvlink_rate).max(initial=0.0))
        return Loads(network, int(nic[at]), float(times[at]), phases_s, nvlink_s)


def _sums(port: NDArray[np.int64], nbytes: NDArray[np.int64], like: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes per port, as many as ``like`` has; a rank without one has port -1."""
    load = np.zeros(like.shape[1], dtype=np.int64)
    np.add.at(load, port[port >= 0], nbytes[port >= 0])
    return load


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan of another planner.

    Attributes:
        plan_s: time to make it for all ranks.
        transfers: point-to-point transfers, or steps of collectives.
        traffic: what it moves.
        spec: the problem that was planned; the case's own where that could be.
        note: what was assumed.
    """

    plan_s: float
    transfers: int
    traffic: Traffic
    spec: rp.ReshardSpec
    note: str = ""


def timed(action: Callable[[], T], repeat: int) -> tuple[float, T]:
    """Median time of some calls, and what the last returned."""
    times = []
    for _ in range(max(1, repeat)):
        started = perf_counter()
        result = action()
        times.append(perf_counter() - started)
    return median(times), result


def only_tensor(spec: rp.ReshardSpec) -> tuple[rp.TensorSpec, rp.Layout, rp.Layout]:
    """The spec's tensor and both layouts.

    Raises:
        SkipPeerError: if there are several.
    """
    if len(spec.tensors) != 1 or len(spec.tensors[0].src) != 1 or len(spec.tensors[0].dst) != 1:
        raise SkipPeerError("only specs of one tensor with one layout per side are measured")
    [tensor] = spec.tensors
    return tensor, tensor.src[0], tensor.dst[0]
