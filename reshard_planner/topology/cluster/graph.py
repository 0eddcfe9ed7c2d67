"""The cluster as a networkx graph, for drawing and for people's own questions."""

from __future__ import annotations

from typing import Any

import networkx as nx

from reshard_planner.topology.cluster.facts import PortFacts
from reshard_planner.topology.cluster.model import Cluster, Host


def build_graph(cluster: Cluster) -> nx.Graph[str]:
    """Nodes for hosts, GPUs, NICs and switches; edges for what joins them.

    Node names are ``"host a"``, ``"gpu a:GPU0"``, ``"nic a:mlx5_0"`` and ``"switch s"``; every node has
    ``kind``. As far as they are known, GPUs have their ``number``, ``model``, ``numa``, ``nvlinks`` and
    ``fabric``, NICs their ``rail``, ``numa`` and ``enabled``. Edges join GPUs and NICs to their host, GPUs to
    NICs with their ``near``, NICs to their ``leaf``, hosts to the nearest switch of their ``path``, and
    switches to their parents; those of ports have what is known of their speed.
    """
    graph: nx.Graph[str] = nx.Graph(name=cluster.name)
    for switch in cluster.switches:
        graph.add_node(f"switch {switch.name}", kind="switch")
    for switch in cluster.switches:
        for parent in switch.parents:
            _add_switch(graph, parent)
            graph.add_edge(f"switch {switch.name}", f"switch {parent}", **_known(switch.uplink))
    number = 0
    for host in cluster.hosts:
        _add_host(graph, host, number)
        number += len(host.gpus)
    return graph


def _add_host(graph: nx.Graph[str], host: Host, number: int) -> None:
    node = f"host {host.name}"
    graph.add_node(node, kind="host", **({"domain": host.domain.value} if host.domain else {}))
    for position, gpu in enumerate(host.gpus):
        facts = {"model": gpu.model, "numa": gpu.numa, "nvlinks": gpu.nvlinks, "fabric": gpu.fabric}
        known = {name: fact.value for name, fact in facts.items() if fact is not None}
        graph.add_node(f"gpu {host.name}:{gpu.name}", kind="gpu", number=number + position, **known)
        graph.add_edge(node, f"gpu {host.name}:{gpu.name}", **_known(gpu.nvlink))
    for nic in host.nics:
        facts_of = {"rail": nic.rail, "numa": nic.numa, "enabled": nic.enabled}
        known = {name: fact.value for name, fact in facts_of.items() if fact is not None}
        graph.add_node(f"nic {host.name}:{nic.name}", kind="nic", **known)
        graph.add_edge(node, f"nic {host.name}:{nic.name}")
        for gpu, near in zip(host.gpus, nic.near.value if nic.near else (), strict=False):
            graph.add_edge(f"gpu {host.name}:{gpu.name}", f"nic {host.name}:{nic.name}", near=near.value)
        if nic.leaf is not None:
            _add_switch(graph, nic.leaf.value)
            graph.add_edge(f"nic {host.name}:{nic.name}", f"switch {nic.leaf.value}", **_known(nic.port))
    if host.path is not None and host.path.value:
        _add_switch(graph, host.path.value[0])
        graph.add_edge(node, f"switch {host.path.value[0]}")


def _add_switch(graph: nx.Graph[str], name: str) -> None:
    graph.add_node(f"switch {name}", kind="switch")


def _known(port: PortFacts) -> dict[str, Any]:
    facts = {"bytes_per_s": port.bytes_per_s, "efficiency": port.efficiency, "latency_s": port.latency_s}
    return {name: fact.value for name, fact in facts.items() if fact is not None}
