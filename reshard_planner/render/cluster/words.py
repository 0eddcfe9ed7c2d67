"""Words that texts and pictures of a cluster share: host lists, rates with origins, counts of devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reshard_planner.errors import TopologyError
from reshard_planner.intset import format_ints
from reshard_planner.render.text import format_count, format_rate, plain
from reshard_planner.topology.cluster.facts import Fact, Origin
from reshard_planner.topology.cluster.hostlist import fold_hosts
from reshard_planner.topology.cluster.model import Cluster, Host, HostNic
from reshard_planner.topology.cluster.pods import ResolvedPod
from reshard_planner.topology.cluster.speeds import model_of


def name_list(names: Sequence[str], limit: int = 60) -> str:
    """Names as a host list on one line, where they fit into one; else the first of them."""
    try:
        text = fold_hosts(names)
    except TopologyError:  # such as names with a space
        text = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return plain(text, limit)


def rate_text(fact: Fact[int] | None, default: int) -> str:
    """A rate, with ``assumed`` where nobody stated it."""
    if fact is None:
        return f"{format_rate(default)} assumed"
    return format_rate(fact.value) + (" assumed" if fact.origin is Origin.ASSUMED else "")


def ratio_text(ratio: float) -> str:
    """How many times what a link up carries those down do, as ``4:1``."""
    return f"{ratio:.3g}:1 oversubscribed"


def uplink_texts(pod: ResolvedPod) -> tuple[str, ...]:
    """What the uplink of a pod carries, in one text or two."""
    if pod.uplink is None:
        return ("rate unknown, no limit assumed",)
    rate = format_rate(pod.uplink.bytes_per_s)
    return (rate, ratio_text(pod.ratio)) if pod.ratio is not None and pod.limits else (rate,)


def gpus_text(cluster: Cluster, host: Host) -> str:
    """How many GPUs of which model a host has, with their NVLinks."""
    gpus = host.gpus
    if not gpus:
        return "GPUs unknown"
    models = Counter(model_of(cluster, host, gpu) or "unknown model" for gpu in gpus)
    text = ", ".join(f"{format_count(count, 'GPU')} ({plain(model)})" for model, count in models.items())
    links = Counter(gpu.nvlinks.value for gpu in gpus if gpu.nvlinks is not None)
    if len(links) == 1:
        [count] = links
        return f"{text} of {format_count(count, 'NVLink')}" if count else f"{text} without NVLink"
    if links:
        parts = (
            f"{of} of {format_count(count, 'NVLink')}" for count, of in sorted(links.items(), reverse=True)
        )
        text += f": {', '.join(parts)}"
    return text


def nics_text(nics: Sequence[HostNic], rate: str = "") -> str:
    """How many NICs of some rate on which rails, and how many more that are off."""
    if not nics:
        return "NICs unknown"
    on = [nic for nic in nics if nic.is_on]
    rails = [nic.rail.value for nic in on if nic.rail is not None]
    text = format_count(len(on), "NIC") + rate
    if rails:
        few = f"{len(rails)} of them " if len(rails) < len(on) else ""
        text += f", {few}on rail{'s' * (len(set(rails)) > 1)} {format_ints(sorted(set(rails)))}"
    return text + (f", {format_count(len(nics) - len(on), 'NIC')} off" if len(on) < len(nics) else "")
