"""Which GPUs of a cluster reach each other without a NIC."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from reshard_planner.errors import SpecError, TopologyError
from reshard_planner.intset import parse_ints
from reshard_planner.topology.cluster.facts import Finding, FindingKind, Origin
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host


@dataclass(frozen=True, slots=True)
class DomainGpus:
    """One domain.

    Attributes:
        name: for display.
        gpus: numbers of its GPUs, ascending.
        over_pcie: whether its GPUs have no NVLink and reach each other over PCIe.
    """

    name: str
    gpus: tuple[int, ...]
    over_pcie: bool = False

    @property
    def title(self) -> str:
        """Its name, with the word domain."""
        return self.name if "domain" in self.name else f"domain {self.name}"


def find_domains(cluster: Cluster) -> tuple[list[DomainGpus], list[Finding]]:
    """The domains in the order of their first GPUs, and what had to be assumed.

    A GPU is where overrides put it; else alone if it has no NVLink while others of its host have; else in the
    domain of its fabric id; else in the one that a scheduler names for its host; else with those GPUs of its
    host that NVLinks join it to; else with all of its host.

    Raises:
        TopologyError: if an override names a host or GPU that is not there, or one twice.
    """
    findings: list[Finding] = []
    labels: list[tuple[Hashable, str, bool]] = []
    for host in cluster.hosts:
        over_pcie = _has_no_nvlink(host)
        labels += [
            (*_label(host, gpu, over_pcie=over_pcie, findings=findings), over_pcie) for gpu in host.gpus
        ]
    for gpu_number, index in _overridden(cluster).items():
        labels[gpu_number] = (("override", index), f"domain {index} of the overrides", False)
    members: dict[Hashable, list[int]] = {}
    for number, (key, _, _) in enumerate(labels):
        members.setdefault(key, []).append(number)
    domains = []
    for gpus in members.values():
        _, name, over_pcie = labels[gpus[0]]
        domains.extend(_split(name, gpus, cluster.overrides.gpus_per_domain, over_pcie=over_pcie))
    domains.sort(key=lambda domain: domain.gpus[0])
    return domains, [*findings, *_assumed_hosts(cluster, labels)]


def _has_no_nvlink(host: Host) -> bool:
    return bool(host.gpus) and all(gpu.nvlinks is not None and not gpu.nvlinks.value for gpu in host.gpus)


def _label(host: Host, gpu: Gpu, *, over_pcie: bool, findings: list[Finding]) -> tuple[Hashable, str]:
    """What GPUs of one domain have in common, and its name."""
    if gpu.nvlinks is not None and not gpu.nvlinks.value and not over_pcie:
        return ("alone", host.name, gpu.name), f"{gpu.name} of host {host.name}"
    fabric = gpu.fabric.value if gpu.fabric is not None else None
    domain = host.domain.value if host.domain is not None else ""
    if host.domain is not None and host.domain.origin is not Origin.ASSUMED:
        _note_difference(host, fabric, domain, host.domain.source or "the file", findings)
    if fabric:
        return ("fabric", fabric), fabric
    if domain and fabric is None:
        return ("fabric", domain), domain
    if gpu.island is not None:
        return ("island", host.name, gpu.island.value), f"host {host.name}, island {gpu.island.value}"
    return ("host", host.name), f"host {host.name}"


def _note_difference(
    host: Host, fabric: str | None, domain: str, source: str, findings: list[Finding]
) -> None:
    """Say where the GPUs of a host and another source name different domains."""
    if fabric is None or not domain or fabric == domain:
        return
    theirs = f"are in domain {fabric}" if fabric else "have no NVLink beyond the host"
    text = f"its GPUs say that they {theirs}, {source} puts them in {domain}; the GPUs are believed"
    finding = Finding(FindingKind.CONFLICT, f"host {host.name}", text)
    if finding not in findings[-1:]:
        findings.append(finding)


def _assumed_hosts(cluster: Cluster, labels: Sequence[tuple[Hashable, str, bool]]) -> list[Finding]:
    """Hosts some of whose GPUs were put together because nothing is known of their NVLinks."""
    whole: list[str] = []
    findings: list[Finding] = []
    number = 0
    for host in cluster.hosts:
        own = labels[number : number + len(host.gpus)]
        number += len(host.gpus)
        unknown = [
            gpu.name
            for gpu, (key, _, _) in zip(host.gpus, own, strict=True)
            if key == ("host", host.name) and gpu.nvlinks is None
        ]
        if not unknown or len(host.gpus) < 2:
            continue
        if len(unknown) == len(host.gpus):
            whole.append(host.name)
            continue
        text = f"nothing is known of the NVLinks of {', '.join(unknown)}; taken as joined with each other"
        findings.append(Finding(FindingKind.ASSUMED, f"host {host.name}", text))
    if whole:
        place = f"{len(whole)} hosts, first {whole[0]}" if len(whole) > 1 else f"host {whole[0]}"
        text = "nothing is known of NVLink; all GPUs of a host are taken as one domain"
        findings.append(Finding(FindingKind.ASSUMED, place, text))
    return findings


def _split(name: str, gpus: list[int], size: int | None, *, over_pcie: bool) -> list[DomainGpus]:
    if size is None or len(gpus) <= size:
        return [DomainGpus(name, tuple(gpus), over_pcie)]
    starts = range(0, len(gpus), size)
    return [
        DomainGpus(f"{name}, part {index}", tuple(gpus[start : start + size]), over_pcie)
        for index, start in enumerate(starts)
    ]


def _overridden(cluster: Cluster) -> dict[int, int]:
    """Domain of the overrides for each GPU that they name."""
    firsts = cluster.first_gpus()
    sizes = {host.name: len(host.gpus) for host in cluster.hosts}
    found: dict[int, int] = {}
    for index, entries in enumerate(cluster.overrides.domains):
        for entry in entries:
            host, colon, positions = entry.rpartition(":") if entry not in firsts else (entry, "", "")
            if colon and not positions:
                raise TopologyError(
                    f"overrides.domains[{index}] has {entry!r} without positions; expected {host} or"
                    f" {host}:0-3"
                )
            host = host if colon or entry in firsts else entry
            if host not in firsts:
                raise TopologyError(
                    f"overrides.domains[{index}] names host {host!r}, which the cluster lacks; expected a"
                    " host, or host:positions"
                )
            for position in _positions(positions, sizes[host], f"overrides.domains[{index}]"):
                if position >= sizes[host]:
                    raise TopologyError(
                        f"overrides.domains[{index}] names GPU {position} of host {host!r}, which has"
                        f" {sizes[host]}"
                    )
                number = firsts[host] + position
                if number in found:
                    raise TopologyError(
                        f"overrides.domains names GPU {position} of host {host!r} in domain"
                        f" {found[number]} and in domain {index}; expected each GPU once at most"
                    )
                found[number] = index
    return found


def _positions(text: str, size: int, path: str) -> list[int]:
    if not text:
        return list(range(size))
    try:
        return parse_ints(text)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
