"""The topology as a networkx graph, for drawing and for tests of bounds."""

from __future__ import annotations

import networkx as nx

from reshard_planner.topology.model import Topology


def build_graph(topology: Topology) -> nx.Graph[str]:
    """Nodes for the network, NICs, GPUs and domains; edges carry the rates.

    Node names are ``"network"``, ``"nic 0"``, ``"gpu 0"`` and ``"domain 0"``; every node has ``kind``.
    Edges have ``bytes_per_s`` (datasheet, per direction), ``efficiency`` and ``latency_s``; a GPU's edge
    to its domain is its NVLink port, a NIC's edge to the network is its port, and a GPU's edge to its NIC
    has the NIC's rate.
    """
    graph: nx.Graph[str] = nx.Graph(name=topology.name)
    graph.add_node("network", kind="network")
    rank_of = {}
    if topology.rank_map is not None:
        rank_of = {gpu: rank for rank, gpu in enumerate(topology.rank_map)}
    for index, domain in enumerate(topology.domains):
        graph.add_node(f"domain {index}", kind="domain")
        for gpu in domain.gpus:
            rank = rank_of.get(gpu) if topology.rank_map is not None else gpu
            graph.add_node(f"gpu {gpu}", kind="gpu", domain=index, rank=rank)
            graph.add_edge(
                f"gpu {gpu}",
                f"domain {index}",
                bytes_per_s=domain.link.bytes_per_s,
                efficiency=domain.link.efficiency,
                latency_s=domain.link.latency_s,
            )
    for index, nic in enumerate(topology.nics):
        rates = {
            "bytes_per_s": nic.link.bytes_per_s,
            "efficiency": nic.link.efficiency,
            "latency_s": nic.link.latency_s,
        }
        graph.add_node(f"nic {index}", kind="nic")
        graph.add_edge(f"nic {index}", "network", **rates)
        for gpu in nic.gpus:
            graph.add_edge(f"gpu {gpu}", f"nic {index}", **rates)
    return graph
