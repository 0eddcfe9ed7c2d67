"""What a picture of a cluster points out: GPUs with fewer NVLinks than their like, NICs that are slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_planner.render.text import format_count, format_rate
from reshard_planner.topology.cluster.likeness import find_few_links, find_slow_nics
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.cluster.nics import NicUse


@dataclass(frozen=True, slots=True)
class Marks:
    """Words to stand in nodes.

    Attributes:
        gpus: by number of the GPU.
        nics: by host and name of the NIC.
    """

    gpus: Mapping[int, str]
    nics: Mapping[tuple[str, str], str]


def find_marks(cluster: Cluster, uses: Sequence[Sequence[NicUse]]) -> Marks:
    """What is less than its like.

    Args:
        cluster: overrides applied.
        uses: the NICs in use of each host.
    """
    gpus: dict[int, str] = {}
    number = 0
    for host, of_host in zip(cluster.hosts, uses, strict=True):
        served = {position for use in of_host for position in use.gpus}
        links = _few_links(host)
        for position in range(len(host.gpus)):
            lacking = "no NIC of its own" if host.nics and position not in served else ""
            words = [text for text in (links.get(position, ""), lacking) if text]
            if words:
                gpus[number + position] = ", ".join(words)
        number += len(host.gpus)
    nics = {
        (slow.host, slow.nic): f"slower: others {format_rate(round(slow.usual_bytes_per_s))}"
        for slow in find_slow_nics(cluster, uses)
    }
    return Marks(gpus, nics)


def _few_links(host: Host) -> dict[int, str]:
    return {
        position: f"{count} of {format_count(most, 'NVLink')}" if count else "no NVLink, alone"
        for position, (count, most) in find_few_links(host).items()
    }
