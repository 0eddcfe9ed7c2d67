"""Topologies: GPUs, NICs and domains of a cluster, and their speeds."""

from reshard_planner.topology.model import Domain, Link, Nic, Pod, Topology
from reshard_planner.topology.ports import Ports
from reshard_planner.topology.presets import PRESETS, Preset

__all__ = ["PRESETS", "Domain", "Link", "Nic", "Pod", "Ports", "Preset", "Topology"]
