"""A cluster as text: hosts that are alike together, domains, speeds with their origins, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from reshard_planner.intset import format_ints
from reshard_planner.render.cluster.words import gpus_text, name_list, nics_text, ratio_text, uplink_texts
from reshard_planner.render.text import format_count, format_rate, format_s, plain
from reshard_planner.topology.cluster.checks import oversubscription
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.cluster.nics import apply_nic_overrides, used_nics
from reshard_planner.topology.cluster.resolve import Resolved
from reshard_planner.topology.cluster.speeds import PCIE_LINK, nic_facts, nvlink_facts
from reshard_planner.topology.model import NIC_LINK, NVLINK_LINK, Link

MAX_LINES = 12
"""Most lines of one part; the rest is counted."""

MAX_FINDING = 600
"""Most characters of a finding; the middle of longer ones, which name long names, is left out."""


def cluster_text(cluster: Cluster, resolved: Resolved | None) -> str:
    """Several lines that say what a cluster is and where each speed comes from.

    Args:
        cluster: what is known.
        resolved: what planning makes of it; see :func:`reshard_planner.topology.cluster.resolve.resolve`;
            None while nobody has said what GPUs it has.
    """
    cluster = apply_nic_overrides(cluster)
    named = "" if cluster.name == Cluster().name else f" {plain(cluster.name)}"
    lines = [f"Cluster{named}: {', '.join(_counts(cluster, resolved))}"]
    lines += _part("hosts", _hosts(cluster))
    if resolved is not None:
        lines += _part("domains", _domains(cluster, resolved))
    ports = [nvlink_facts(cluster, host, gpu) for host in cluster.hosts for gpu in host.gpus]
    domains = () if resolved is None else resolved.domains
    plugged = {gpu for domain in domains if domain.over_pcie for gpu in domain.gpus}
    joined = [port for number, port in enumerate(ports) if number not in plugged]
    lines += _part("NVLink", _ports(joined, "GPU", NVLINK_LINK))
    lines += _part("PCIe", _ports((ports[number] for number in sorted(plugged)), "GPU", PCIE_LINK))
    if resolved is None:
        nics = [nic_facts(cluster, host, nic) for host in cluster.hosts for nic in host.nics if nic.is_on]
    else:
        nics = [port for _, _, port in used_nics(cluster, resolved.uses)]
    lines += _part("NICs", _ports(nics, "NIC", NIC_LINK))
    lines += _part("switches", _switches(cluster))
    if resolved is not None:
        lines += _part("pods", _pods(resolved))
    if cluster.rank_map is not None:
        lines += _part("ranks", [f"on GPUs {format_ints(cluster.rank_map)}"])
    return "\n".join(lines)


def findings_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, those of one kind together."""
    order = list(FindingKind)
    found = sorted(findings, key=lambda finding: order.index(finding.kind))
    return "\n".join(plain(str(finding), MAX_FINDING) for finding in found)


def _counts(cluster: Cluster, resolved: Resolved | None) -> Iterator[str]:
    yield format_count(len(cluster.hosts), "host")
    if resolved is None:
        yield "GPUs unknown"
        return
    yield format_count(resolved.topology.gpu_count, "GPU")
    yield format_count(len(resolved.topology.domains), "domain")
    yield format_count(len(set(resolved.nics)), "NIC") + " in use"


def _part(title: str, entries: Iterable[str]) -> list[str]:
    found = list(entries)
    shown = found[:MAX_LINES]
    if len(found) > MAX_LINES:
        shown.append(f"and {len(found) - MAX_LINES} more")
    return [f"  {title if not index else '':<9} {entry}" for index, entry in enumerate(shown)]


def _hosts(cluster: Cluster) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for host in cluster.hosts:
        groups.setdefault(_host(cluster, host), []).append(host.name)
    for text, names in groups.items():
        each = f", {len(names)} hosts, each" if len(names) > 1 else ""
        yield f"{name_list(names)}{each}: {text}"


def _host(cluster: Cluster, host: Host) -> str:
    domain = f"; in NVLink domain {plain(host.domain.value)}" if host.domain and not host.gpus else ""
    return f"{gpus_text(cluster, host)}; {nics_text(host.nics)}{domain}"


def _domains(cluster: Cluster, resolved: Resolved) -> Iterator[str]:
    """Every domain; where they are many, those of equal numbers of GPUs and hosts together."""
    host_of = [host.name for host in cluster.hosts for _ in host.gpus]
    spans = [list(dict.fromkeys(host_of[gpu] for gpu in domain.gpus)) for domain in resolved.domains]
    if len(spans) <= MAX_LINES:
        for index, (domain, names) in enumerate(zip(resolved.domains, spans, strict=True)):
            over = " over PCIe" if domain.over_pcie and len(domain.gpus) > 1 else ""
            noun = "GPU" if len(domain.gpus) == 1 else "GPUs"
            yield f"{index}: {noun} {format_ints(domain.gpus)} on {name_list(names)}{over}"
        return
    alike: dict[tuple[int, int], list[int]] = {}
    for index, (domain, names) in enumerate(zip(resolved.domains, spans, strict=True)):
        alike.setdefault((len(domain.gpus), len(names)), []).append(index)
    for (size, hosts), numbers in alike.items():
        where = "on one host" if hosts == 1 else f"on {hosts} hosts"
        yield f"{plain(format_ints(numbers))}: {format_count(size, 'GPU')} each, {where}"


def _ports(ports: Iterable[PortFacts], what: str, default: Link) -> Iterator[str]:
    """What is known of ports, those alike together, with what is assumed of the rest."""
    for port, count in Counter(ports).items():
        rate = _fact(port.bytes_per_s, default.bytes_per_s, format_rate)
        efficiency = _fact(port.efficiency, default.efficiency, lambda value: f"{value:.3g}")
        latency = _fact(port.latency_s, default.latency_s, format_s)
        yield f"{format_count(count, what)}: {rate}, efficiency {efficiency}, latency {latency}"


def _fact(fact: Fact[int] | Fact[float] | None, default: float, text: Callable[..., str]) -> str:
    """A value with its origin."""
    if fact is None:
        return f"{text(default)} (assumed)"
    source = f": {plain(fact.source)}" if fact.source else ""
    return f"{text(fact.value)} ({fact.origin}{source})"


def _pods(resolved: Resolved) -> Iterator[str]:
    """Pods with what their uplinks carry, those that are alike together."""
    groups: dict[str, list[str]] = {}
    for pod in resolved.pods:
        text = f"{format_count(len(pod.hosts), 'host')}, uplink {', '.join(uplink_texts(pod))}"
        groups.setdefault(text, []).append(pod.name)
    for text, names in groups.items():
        each = f"{len(names)} pods, each " if len(names) > 1 else ""
        yield f"{name_list(names)}: {each}{text}"


def _switches(cluster: Cluster) -> Iterator[str]:
    if not cluster.switches:
        return
    parents = {parent for switch in cluster.switches for parent in switch.parents}
    above = sum(switch.name in parents for switch in cluster.switches)
    ratios = [
        ratio for switch in cluster.switches if (ratio := oversubscription(switch)) is not None and ratio > 1
    ]
    text = f"{len(cluster.switches)}, {above} of them above others"
    if ratios:
        worst = ratio_text(max(ratios))
        verb = "is" if len(ratios) == 1 else "are"
        text += f"; {len(ratios)} {verb} oversubscribed, at most {worst.split()[0]}"
    yield text
