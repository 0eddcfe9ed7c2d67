"""Importer of ``ibnetdiscover``: the switches of an InfiniBand network, and the hosts and NICs at them."""

from __future__ import annotations

from reshard_planner.topology.cluster.model import Cluster
from reshard_planner.topology.importers.ibnet_cables import read_cables
from reshard_planner.topology.importers.ibnet_hosts import read_hosts
from reshard_planner.topology.importers.ibnet_switches import read_switches
from reshard_planner.topology.importers.ibnet_text import read_listing, recognises_text
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading


def recognises(text: str) -> bool:
    """Whether the text has a block of a node near its beginning."""
    return recognises_text(text)


def read(text: str, reading: Reading) -> Imported:
    """The network that a listing describes; hosts have no GPUs here.

    Args:
        text: the output.
        reading: the name of the text.

    Raises:
        TopologyError: if the text has no block of a node, or more hosts or NICs than a cluster can have.
    """
    source = reading.source
    listing = read_listing(text, source)
    cables = read_cables(listing, source)
    network = read_switches(cables, source)
    hosts, on_hosts = read_hosts(cables, network.names, source)
    findings = listing.findings + cables.findings + network.findings + on_hosts
    return Imported(Cluster(hosts=hosts, switches=network.switches), tuple(findings))
