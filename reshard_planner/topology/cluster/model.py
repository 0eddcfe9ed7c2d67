"""A cluster as machines describe themselves: hosts, GPUs, NICs and switches, with what is known of each.

Everything may be unknown. :mod:`reshard_planner.topology.cluster.resolve` turns it into the
:class:`~reshard_planner.topology.model.Topology` that planning uses, and says what it had to assume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from reshard_planner.errors import TopologyError
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.topology.cluster.facts import Fact, PortFacts

if TYPE_CHECKING:
    import networkx as nx

MAX_NICS = 256
"""Most NICs of one host."""

MAX_HOST_GPUS = 64
"""Most GPUs of one host that sources are believed."""

MAX_NAME = 256
"""Longest name of a host, GPU, NIC, switch or pod, in characters."""


class Nearness(StrEnum):
    """What lies between a GPU and a NIC of its host, nearest first, named as by ``nvidia-smi topo -m``."""

    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"

    @property
    def distance(self) -> int:
        """0 for the nearest."""
        return _DISTANCES[self]


_DISTANCES = {nearness: place for place, nearness in enumerate(Nearness)}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a host.

    Attributes:
        name: distinct within the host.
        model: product, such as ``NVIDIA H100 80GB HBM3``, or compute capability, such as ``sm90``.
        uuid: as the driver reports it.
        bus: PCI address, as ``0000:a4:00.0``.
        numa: NUMA node.
        nvlinks: number of its NVLinks to other GPUs or to switches; 0: it has none.
        island: GPUs of a host with equal numbers reach each other over NVLink.
        fabric: name of its NVLink domain across hosts, equal on all hosts of it; "" where it is known to have
            none.
        nvlink: speed of all its NVLinks together.
    """

    name: str
    model: Fact[str] | None = None
    uuid: str | None = None
    bus: str | None = None
    numa: Fact[int] | None = None
    nvlinks: Fact[int] | None = None
    island: Fact[int] | None = None
    fabric: Fact[str] | None = None
    nvlink: PortFacts = field(default_factory=PortFacts)


@dataclass(frozen=True, slots=True)
class HostNic:
    """One network port of a host.

    Attributes:
        name: distinct within the host, such as ``mlx5_0``.
        guid: port or node GUID, 16 hexadecimal digits.
        bus: PCI address, as ``0000:a3:00.0``.
        numa: NUMA node.
        rail: number of its rail: NICs of equal rails reach each other without leaving a leaf switch.
        leaf: name of the switch that it is plugged into.
        near: how near it is to each GPU of the host, in their order.
        gpus: positions of the GPUs that use it, where that is not for nearness to say.
        enabled: False where its port is down or it is not to be used.
        port: its speed.
    """

    name: str
    guid: str | None = None
    bus: str | None = None
    numa: Fact[int] | None = None
    rail: Fact[int] | None = None
    leaf: Fact[str] | None = None
    near: Fact[tuple[Nearness, ...]] | None = None
    gpus: Fact[tuple[int, ...]] | None = None
    enabled: Fact[bool] | None = None
    port: PortFacts = field(default_factory=PortFacts)

    @property
    def is_on(self) -> bool:
        """Whether nothing says that it is down or not to be used."""
        return self.enabled is None or self.enabled.value


@dataclass(frozen=True, slots=True)
class HostOverrides:
    """What people say of all devices of a host, against all sources and against overrides of the cluster.

    Attributes:
        gpu_model: model of its GPUs.
        nic: speed of its NICs.
        nvlink: speed of its NVLink ports.
    """

    gpu_model: str | None = None
    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)


@dataclass(frozen=True, slots=True)
class Host:
    """One host.

    Attributes:
        name: distinct within the cluster.
        gpus: its GPUs, in the order of their local ranks.
        nics: its NICs.
        domain: name of the NVLink domain that all its GPUs are in, as schedulers know it.
        path: switches above it, the nearest first.
        nic: speed of those of its NICs that have none of their own.
        nvlink: speed of those of its NVLink ports that have none of their own.
        overrides: what wins over all of it.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[HostNic, ...] = ()
    domain: Fact[str] | None = None
    path: Fact[tuple[str, ...]] | None = None
    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)
    overrides: HostOverrides = field(default_factory=HostOverrides)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Switches that it is plugged into, as its NICs know, or else its scheduler."""
        of_nics = dict.fromkeys(nic.leaf.value for nic in self.nics if nic.leaf is not None)
        return tuple(of_nics) or (self.path.value[:1] if self.path is not None else ())


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch of the network.

    Attributes:
        name: distinct within the cluster.
        parents: distinct names of the switches above it, of which the cluster need not know more.
        uplink: speed of all its links to them together.
        downlink: speed of all its links to hosts and to switches below together.
    """

    name: str
    parents: tuple[str, ...] = ()
    uplink: PortFacts = field(default_factory=PortFacts)
    downlink: PortFacts = field(default_factory=PortFacts)


@dataclass(frozen=True, slots=True)
class HostPod:
    """Hosts behind one uplink.

    Attributes:
        name: distinct within the cluster.
        hosts: names of its hosts; a host is in one pod at most.
        uplink: speed of the uplink.
        oversubscription: rate of its hosts' NICs together over that of the uplink; gives the uplink's speed
            where that is unknown.
    """

    name: str
    hosts: tuple[str, ...]
    uplink: PortFacts = field(default_factory=PortFacts)
    oversubscription: Fact[float] | None = None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What people say against all sources. NICs are named ``name``, on all hosts, or ``host:name``.

    Attributes:
        rails: pairs of a NIC and its rail.
        disabled_nics: NICs that are not to be used.
        domains: each a list of hosts, ``host``, or positions of GPUs of one, ``host:0-3``; GPUs in none keep
            the domain that they have.
        gpus_per_domain: splits every domain into ones of this size, in the order of GPUs.
        gpu_model: model of all GPUs.
        nic: speed of all NICs.
        nvlink: speed of all NVLink ports.
    """

    rails: tuple[tuple[str, int], ...] = ()
    disabled_nics: tuple[str, ...] = ()
    domains: tuple[tuple[str, ...], ...] = ()
    gpus_per_domain: int | None = None
    gpu_model: str | None = None
    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts and the network between them. GPUs are numbered through, host by host.

    Attributes:
        name: for display.
        hosts: at least one for planning.
        switches: switches of the network that are known.
        pods: stated pods; where there are none, they follow from switches.
        rank_map: number of the GPU of each rank; GPU of its number when None.
        nic: speed of NICs that have none of their own.
        nvlink: speed of NVLink ports that have none of their own.
        overrides: what wins over all of it.

    Raises:
        TopologyError: if names are missing, given twice or unknown, a host is in several pods, a switch is
            above itself, or numbers are out of range.
    """

    name: str = "cluster"
    hosts: tuple[Host, ...] = ()
    switches: tuple[Switch, ...] = ()
    pods: tuple[HostPod, ...] = ()
    rank_map: tuple[int, ...] | None = None
    nic: PortFacts = field(default_factory=PortFacts)
    nvlink: PortFacts = field(default_factory=PortFacts)
    overrides: Overrides = field(default_factory=Overrides)

    def __post_init__(self) -> None:
        _check_names("host", (host.name for host in self.hosts))
        _check_names("switch", (switch.name for switch in self.switches))
        _check_names("pod", (pod.name for pod in self.pods))
        for host in self.hosts:
            _check_host(host)
        for rank, gpu in enumerate(self.rank_map or ()):
            most = self.gpu_count or MAX_RANK
            if isinstance(gpu, bool) or not isinstance(gpu, int) or not 0 <= gpu < most:
                raise TopologyError(
                    f"rank_map puts rank {rank} on GPU {gpu!r:.40}; expected a number from 0 to {most - 1}"
                )
        if self.gpu_count > MAX_RANK:
            raise TopologyError(f"the cluster has {self.gpu_count} GPUs; expected at most {MAX_RANK}")
        _check_pods(self.pods, {host.name for host in self.hosts})
        _check_parents(self.switches)

    @property
    def gpu_count(self) -> int:
        """Number of GPUs of all hosts."""
        return sum(len(host.gpus) for host in self.hosts)

    def first_gpus(self) -> dict[str, int]:
        """Number of the first GPU of every host, by the host's name."""
        firsts, count = {}, 0
        for host in self.hosts:
            firsts[host.name] = count
            count += len(host.gpus)
        return firsts

    def graph(self) -> nx.Graph[str]:
        """The cluster as a networkx graph; see :func:`reshard_planner.topology.cluster.graph.build_graph`."""
        from reshard_planner.topology.cluster.graph import build_graph  # noqa: PLC0415 - networkx is slow

        return build_graph(self)


def _check_host(host: Host) -> None:
    _check_names("GPU", (gpu.name for gpu in host.gpus), f" of host {host.name!r}")
    _check_names("NIC", (nic.name for nic in host.nics), f" of host {host.name!r}")
    if len(host.nics) > MAX_NICS:
        raise TopologyError(f"host {host.name!r} has {len(host.nics)} NICs; expected at most {MAX_NICS}")
    for nic in host.nics:
        where = f"NIC {nic.name!r} of host {host.name!r}"
        if nic.near is not None and len(nic.near.value) != len(host.gpus):
            raise TopologyError(
                f"near of {where} has {len(nic.near.value)} entries;"
                f" expected one for each of {len(host.gpus)} GPUs"
            )
        for position in nic.gpus.value if nic.gpus is not None else ():
            if not 0 <= position < len(host.gpus):
                raise TopologyError(
                    f"gpus of {where} names GPU {position}; expected 0 to {len(host.gpus) - 1}"
                    if host.gpus
                    else f"gpus of {where} names GPU {position}, but the host has none"
                )


def _check_pods(pods: Iterable[HostPod], known: Container[str]) -> None:
    pod_of: dict[str, str] = {}
    for pod in pods:
        for host in pod.hosts:
            if host not in known:
                raise TopologyError(f"pod {pod.name!r} names host {host!r}, which the cluster lacks")
            if pod_of.setdefault(host, pod.name) != pod.name:
                raise TopologyError(
                    f"pod {pod.name!r} names host {host!r}, which is in pod {pod_of[host]!r}; expected one"
                    " pod at most"
                )
        _check_names("host", pod.hosts, f" of pod {pod.name!r}")


def _check_parents(switches: Sequence[Switch]) -> None:
    """Refuse parents that are named twice or lead back to where they started."""
    known = {switch.name: switch for switch in switches}
    below: dict[str, list[str]] = {name: [] for name in known}
    waiting: dict[str, int] = {}
    for switch in switches:
        _check_names("parent", switch.parents, f" of switch {switch.name!r}")
        inside = [parent for parent in switch.parents if parent in known]
        waiting[switch.name] = len(inside)
        for parent in inside:
            below[parent].append(switch.name)
    tops = [name for name, count in waiting.items() if not count]
    while tops:  # from the top down: what is left when no switch without parents is left has a circle
        top = tops.pop()
        del waiting[top]
        for name in below[top]:
            waiting[name] -= 1
            if not waiting[name]:
                tops.append(name)
    if waiting:
        path: dict[str, None] = {}
        name = next(iter(waiting))
        while name not in path:
            path[name] = None
            name = next(parent for parent in known[name].parents if parent in waiting)
        circle = [*list(path)[list(path).index(name) :], name]
        shown = [repr(each) for each in circle]
        shown = shown if len(shown) <= 5 else [*shown[:3], "...", shown[-1]]
        raise TopologyError(
            f"parents of switch {name!r} lead back to it, {' to '.join(shown)}; expected parents that lead up"
        )


def _check_names(what: str, names: Iterable[str], where: str = "") -> None:
    for name, count in Counter(names).items():
        if not name or len(name) > MAX_NAME:
            raise TopologyError(
                f"{what} name {name[:40]!r}{where} has {len(name)} characters; expected 1 to {MAX_NAME}"
            )
        if count > 1:
            raise TopologyError(f"{what} {name!r}{where} is given twice; expected distinct names")
