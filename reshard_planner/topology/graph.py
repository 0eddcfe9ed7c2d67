"""The topology as a networkx graph, for drawing and for tests of bounds."""

from __future__ import annotations

import networkx as nx

from reshard_planner.topology.model import Topology


def build_graph(topology: Topology) -> nx.Graph[str]:
    """Nodes for the network, pods, NICs, GPUs and domains; edges carry the rates.

    Node names are ``"network"``, ``"pod 0"``, ``"nic 0"``, ``"gpu 0"`` and ``"domain 0"``; every node has
    ``kind``. Edges have ``bytes_per_s`` (datasheet, per direction), ``efficiency`` and ``latency_s``; a GPU's
    edge to its domain is its NVLink port, a NIC's edge to the network, or to the pod that its GPUs are in, is
    its port, a GPU's edge to its NIC has the NIC's rate, and a pod's edge to the network is its uplink.
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
    pod_of: dict[int, str] = {}
    for index, pod in enumerate(topology.pods):
        graph.add_node(f"pod {index}", kind="pod")
        graph.add_edge(
            f"pod {index}",
            "network",
            bytes_per_s=pod.uplink.bytes_per_s,
            efficiency=pod.uplink.efficiency,
            latency_s=pod.uplink.latency_s,
        )
        for number in pod.domains:
            pod_of.update((gpu, f"pod {index}") for gpu in topology.domains[number].gpus)
    for index, nic in enumerate(topology.nics):
        rates = {
            "bytes_per_s": nic.link.bytes_per_s,
            "efficiency": nic.link.efficiency,
            "latency_s": nic.link.latency_s,
        }
        graph.add_node(f"nic {index}", kind="nic")
        graph.add_edge(f"nic {index}", pod_of.get(nic.gpus[0], "network"), **rates)
        for gpu in nic.gpus:
            graph.add_edge(f"gpu {gpu}", f"nic {index}", **rates)
    return graph
