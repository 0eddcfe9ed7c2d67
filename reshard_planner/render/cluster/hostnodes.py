"""The devices of one host as nodes, and the lines between its GPUs and NICs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_planner.render.cluster.devices import Devices
from reshard_planner.render.cluster.picture import Line, Node
from reshard_planner.render.cluster.words import name_list, rate_text
from reshard_planner.render.text import format_count, plain
from reshard_planner.topology.cluster.facts import Origin
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic
from reshard_planner.topology.cluster.nics import NicUse, is_disabled
from reshard_planner.topology.cluster.speeds import model_of, nic_facts
from reshard_planner.topology.model import NIC_LINK


@dataclass(frozen=True, slots=True)
class Piece:
    """The GPUs of a host that are of one domain.

    Attributes:
        name: of its frame.
        title: of its frame; "" where it needs none.
        positions: of the GPUs in the host.
        assumed: whether nobody stated that they are of one domain.
    """

    name: str
    title: str
    positions: tuple[int, ...]
    assumed: bool


@dataclass(frozen=True, slots=True)
class HostNodes:
    """One host.

    Attributes:
        index: of the host in its cluster.
        name: of its frame.
        title: of its frame.
        pieces: its GPUs by domain.
        gpus: nodes of its GPUs by position.
        nics: nodes of its NICs.
        users: positions of the GPUs that use a NIC, by the name of its node.
        rates: rate of each NIC, by the name of its node.
        shared: nodes for several GPUs that share several NICs, with positions of the GPUs and nodes of the
            NICs.
        lines: between its GPUs and NICs.
    """

    index: int
    name: str
    title: str
    pieces: tuple[Piece, ...]
    gpus: Mapping[int, Node]
    nics: tuple[Node, ...]
    users: Mapping[str, tuple[int, ...]]
    rates: Mapping[str, int]
    shared: tuple[tuple[Node, tuple[int, ...], tuple[str, ...]], ...]
    lines: tuple[Line, ...]


def host_nodes(devices: Devices, index: int) -> HostNodes:
    """Nodes and lines of one host."""
    cluster = devices.cluster
    host = cluster.hosts[index]
    first = devices.firsts[index]
    pieces = _pieces(devices, index, first)
    frame_of = {position: piece.name for piece in pieces if piece.title for position in piece.positions}
    name = f"host_{index}"
    models = {model_of(cluster, host, gpu) for gpu in host.gpus}
    gpus = {
        position: _gpu(devices, host, position, first + position, frame_of.get(position, name))
        for position in range(len(host.gpus))
    }
    named = {nic.name: f"nic_{index}_{position}" for position, nic in enumerate(host.nics)}
    users = {named[use.nic.name]: use.gpus for use in devices.resolved.uses[index]}
    nics = tuple(_nic(devices, host, nic, named[nic.name], users, name) for nic in host.nics)
    rates = {
        named[nic.name]: (
            fact.value if (fact := nic_facts(cluster, host, nic).bytes_per_s) else NIC_LINK.bytes_per_s
        )
        for nic in host.nics
    }
    shared, lines = _joined(devices.resolved.uses[index], named, first, name)
    model = f" ({plain(next(iter(models)))})" if len(models) == 1 and "" not in models else ""
    count = format_count(len(host.gpus), "GPU") if host.gpus else "GPUs unknown"
    title = f"host {plain(host.name)}: {count}{model}"
    return HostNodes(index, name, title, pieces, gpus, nics, users, rates, shared, lines)


def _pieces(devices: Devices, index: int, first: int) -> tuple[Piece, ...]:
    host = devices.cluster.hosts[index]
    members: dict[int, list[int]] = {}
    for position in range(len(host.gpus)):
        members.setdefault(devices.domain_of[first + position], []).append(position)
    pieces = []
    for domain, positions in members.items():
        others = [other for other in devices.hosts_of_domain[domain] if other != index]
        whole = len(members) == 1 and all(devices.domains_of_host[other] == {domain} for other in others)
        if others and whole:
            title = ""  # a frame around its hosts says it
        elif others:
            names = name_list([devices.cluster.hosts[other].name for other in others], 30)
            title = f"part of {devices.domain_title(domain)}, with {names}"
        else:
            title = devices.domain_title(domain)
        pieces.append(
            Piece(
                f"domain_{domain}_{index}" if others else f"domain_{domain}",
                title,
                tuple(positions),
                devices.assumed(domain),
            )
        )
    return tuple(pieces)


def _gpu(devices: Devices, host: Host, position: int, number: int, frame: str) -> Node:
    cluster, gpu = devices.cluster, host.gpus[position]
    words = [f"GPU {number}"]
    if gpu.name != f"GPU{number}":
        words[0] += f" ({plain(gpu.name, 24)})"
    if number in devices.ranks and devices.ranks[number] != number:
        words.append(f"rank {devices.ranks[number]}")
    if len({each.numa.value for each in host.gpus if each.numa is not None}) > 1 and gpu.numa is not None:
        words.append(f"NUMA {gpu.numa.value}")
    lines = [", ".join(words)]
    model = model_of(cluster, host, gpu)
    if model and len({model_of(cluster, host, each) for each in host.gpus}) > 1:
        lines.append(plain(model, 40))
    mark = devices.marks.gpus.get(number)
    if mark is not None:
        lines.append(mark)
    attributes = {
        "number": str(number),
        "host": plain(host.name, 256),
        "domain": str(devices.domain_of[number]),
    }
    return Node(
        f"gpu_{number}",
        "gpu",
        tuple(lines),
        _gpu_tooltip(cluster, host, gpu, number),
        marked=mark is not None,
        frame=frame,
        attributes=attributes,
    )


def _gpu_tooltip(cluster: Cluster, host: Host, gpu: Gpu, number: int) -> tuple[str, ...]:
    lines = [f"GPU {number}: {plain(gpu.name)} of host {plain(host.name)}"]
    model = model_of(cluster, host, gpu)
    known = {
        "model": model or None,
        "PCI": gpu.bus,
        "NUMA node": gpu.numa.value if gpu.numa is not None else None,
        "NVLinks": gpu.nvlinks.value if gpu.nvlinks is not None else None,
        "NVLink domain": gpu.fabric.value or "ends at the host" if gpu.fabric is not None else None,
    }
    lines += [f"{name} {plain(str(value))}" for name, value in known.items() if value is not None]
    return tuple(lines)


def _nic(
    devices: Devices, host: Host, nic: HostNic, name: str, users: Mapping[str, tuple[int, ...]], frame: str
) -> Node:
    port = nic_facts(devices.cluster, host, nic)
    fact = port.bytes_per_s
    rate = rate_text(fact, NIC_LINK.bytes_per_s)
    lines = [f"{plain(nic.name, 24)}: {rate}"]
    if port.efficiency is not None and port.efficiency.origin is Origin.MEASURED:
        lines[0] += f", {port.efficiency.value:.0%} of it reached"
    rail = devices.rails.get((host.name, nic.name))
    if nic.rail is not None:
        lines[0] += f", rail {nic.rail.value}"
    elif rail is not None:
        lines[0] += f", rail {rail} assumed"
    mark = devices.marks.nics.get((host.name, nic.name))
    off = not nic.is_on or name not in users
    if not nic.is_on:
        lines.append("disabled" if is_disabled(devices.cluster, host, nic) else "down")
    elif off:
        lines.append("used by no GPU")
    elif mark is not None:
        lines.append(mark)
    attributes = {"nic": plain(nic.name, 256), "host": plain(host.name, 256)}
    attributes |= {} if fact is None else {"bytes_per_s": str(fact.value)}
    attributes |= {} if rail is None else {"rail": str(rail)}
    return Node(
        name,
        "nic",
        tuple(lines),
        _nic_tooltip(host, nic, rate),
        marked=mark is not None and not off,
        assumed=rate.endswith(" assumed"),
        off=off,
        frame=frame,
        attributes=attributes,
    )


def _nic_tooltip(host: Host, nic: HostNic, rate: str) -> tuple[str, ...]:
    known = {
        "PCI": nic.bus,
        "NUMA node": nic.numa.value if nic.numa is not None else None,
        "switch": nic.leaf.value if nic.leaf is not None else None,
        "nearness to GPUs": ",".join(nic.near.value) if nic.near is not None else None,
    }
    lines = [f"{plain(nic.name)} of host {plain(host.name)}", f"{rate} per direction"]
    lines += [f"{name} {plain(str(value))}" for name, value in known.items() if value is not None]
    return tuple(lines)


def _joined(
    uses: Sequence[NicUse], named: Mapping[str, str], first: int, frame: str
) -> tuple[tuple[tuple[Node, tuple[int, ...], tuple[str, ...]], ...], tuple[Line, ...]]:
    """Who uses which NIC; several that share several get a node in between, rather than all lines."""
    pools: dict[tuple[int, ...], list[NicUse]] = {}
    for use in uses:
        pools.setdefault(use.gpus, []).append(use)
    shared, lines = [], []
    for gpus, members in pools.items():
        guess = any(use.nic.near is None and use.nic.gpus is None for use in members)
        nics = tuple(named[use.nic.name] for use in members)
        tails = [f"gpu_{first + gpu}" for gpu in gpus]
        if len(gpus) < 2 or len(members) < 2:
            lines += [Line(tail, nic, "use", assumed=guess) for nic in nics for tail in tails]
            continue
        joint = f"shared_{nics[0]}"
        text = (f"{len(gpus)} GPUs share", f"{len(members)} NICs")
        shared.append((Node(joint, "shared", text, assumed=guess, frame=frame), gpus, nics))
        lines += [Line(tail, joint, "use", assumed=guess) for tail in tails]
        lines += [Line(joint, nic, "use", assumed=guess) for nic in nics]
    return tuple(shared), tuple(lines)
