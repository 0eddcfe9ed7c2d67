"""Places: which GPU of a cluster each rank of a measurement ran on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.domains import find_domains
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.model import Cluster, Host

if TYPE_CHECKING:
    from reshard_executors.measure.samples import Measurement


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank ran.

    Attributes:
        host: name of its host, that of the cluster where it has the host.
        gpu: position of its GPU there.
        domain: equal for ranks that reach each other without a NIC.
        uuid: of its GPU; None without one.
    """

    host: str
    gpu: int
    domain: Hashable
    uuid: str | None


def find_places(
    measurement: Measurement, given: Cluster | None
) -> tuple[tuple[Place, ...], tuple[Finding, ...]]:
    """The place of each rank, and hosts that the cluster does not know.

    GPUs are told by their uuid, or else by their order. Without a cluster the ranks of a host are a domain.

    Args:
        measurement: what was measured.
        given: what is known of the cluster; None if nothing is.

    Raises:
        TopologyError: if a host has more ranks than GPUs.
    """
    from reshard_executors.measure.samples import group_hosts  # noqa: PLC0415 - executors are another package

    domains = _domains(given)
    found: dict[int, Place] = {}
    findings = []
    for name, ranks in group_hosts(measurement.seats).items():
        uuids = [measurement.seats[rank].uuid for rank in ranks]
        host = None if given is None else find_host(given, name)
        if given is not None and host is None:
            text = "the cluster file has no host of this name; a merged file has it beside the others"
            findings.append(Finding(FindingKind.UNKNOWN, f"host {name}", text))
        known = name if host is None else host.name
        for rank, uuid, gpu in zip(ranks, uuids, _positions(host, uuids, name), strict=True):
            found[rank] = Place(known, gpu, domains.get((known, gpu), ("host", known)), uuid)
    return tuple(found[rank] for rank in range(len(measurement.seats))), tuple(findings)


def find_host(given: Cluster, name: str) -> Host | None:
    """The host of a cluster by its name, with or without its domain; None if there is none, or several."""
    short = name.split(".", 1)[0]
    exact = [host for host in given.hosts if host.name == name]
    alike = [
        host for host in given.hosts if host.name.split(".", 1)[0] == short and short in (name, host.name)
    ]
    found = exact or alike
    return found[0] if len(found) == 1 else None


def _positions(host: Host | None, uuids: Sequence[str | None], name: str) -> list[int]:
    """Positions of GPUs, given their uuids in the order of local ranks."""
    if host is None or not host.gpus:
        return list(range(len(uuids)))
    if len(uuids) > len(host.gpus):
        raise TopologyError(
            f"host {name!r} runs {len(uuids)} ranks, and the cluster file gives it {len(host.gpus)} GPUs;"
            " expected a GPU for each rank"
        )
    places = {gpu.uuid: place for place, gpu in enumerate(host.gpus) if gpu.uuid is not None}
    if len(set(uuids)) == len(uuids) and all(uuid in places for uuid in uuids):
        return [places[uuid] for uuid in uuids if uuid is not None]
    return list(range(len(uuids)))


def _domains(given: Cluster | None) -> dict[tuple[str, int], Hashable]:
    """Number of the domain of each GPU, by host and position."""
    if given is None:
        return {}
    numbers = [(host.name, gpu) for host in given.hosts for gpu in range(len(host.gpus))]
    domains, _ = find_domains(given)
    return {numbers[gpu]: number for number, domain in enumerate(domains) for gpu in domain.gpus}
