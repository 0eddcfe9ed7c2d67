"""The topology as a spec writes it, and back.

Four short forms and one explicit one: ``{preset, nodes}``, ``{domains: [[0, 1], [2, 3]]}``,
``{gpus_per_domain}``, ``{file}``, and ``{domains: [{gpus, ...}], nics: [{gpus, ...}]}``. All but ``{file}``
take ``pods: [{domains, uplink: {bytes_per_s, ...}}]`` besides. A file may be a cluster file instead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from reshard_planner.errors import SpecError, TopologyError
from reshard_planner.forms import convert
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.topology.model import (
    NIC_LINK,
    NVLINK_LINK,
    UPLINK_EFFICIENCY,
    Domain,
    Link,
    Nic,
    Pod,
    Topology,
)
from reshard_planner.topology.presets import PRESETS

Ints = str | list[int]

MAX_NUMBER = 2**53
"""Largest rate, share or time read: up to here integers and floating-point numbers agree."""


class LinkForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Speed of every NIC or NVLink port; absent fields keep their defaults."""

    bytes_per_s: int | float | None = None
    efficiency: int | float | None = None
    latency_s: int | float | None = None


class DomainForm(LinkForm, forbid_unknown_fields=True, omit_defaults=True):
    """One domain and the speed of its GPUs' ports into it."""

    gpus: Ints = ""


class NicForm(LinkForm, forbid_unknown_fields=True, omit_defaults=True):
    """NICs of one speed: one entry of ``gpus`` per NIC, the GPUs that use it, and one of ``rails``."""

    gpus: int | list[int | list[int]] | str = ""
    rails: Ints | None = None


class PodForm(msgspec.Struct, forbid_unknown_fields=True):
    """One pod: numbers of its domains, and the capacity of its uplink in each direction."""

    domains: Ints
    uplink: LinkForm


class TopologyForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """All forms of a topology; which fields go together is checked by :func:`from_form`."""

    preset: str | None = None
    nodes: int | None = None
    gpus_per_domain: int | None = None
    domains: list[Ints | dict[str, Any]] | None = None
    file: str | None = None
    nic: LinkForm | None = None
    nvlink: LinkForm | None = None
    nics: list[dict[str, Any]] | None = None
    pods: list[dict[str, Any]] | None = None
    rank_map: Ints | None = None
    name: str | None = None


_COMPANIONS = {
    "preset": ("nodes", "gpus_per_domain", "pods"),
    "file": (),
    "domains": ("nics", "nic", "nvlink", "pods", "name"),
    "gpus_per_domain": ("nic", "nvlink", "pods"),
}


def from_form(raw: object, ranks: int, base: Path, path: str = "topology") -> Topology:
    """Build a topology from plain data.

    Args:
        raw: the mapping.
        ranks: number of ranks that must find a GPU where the form leaves the size open.
        base: folder that ``file`` is relative to.
        path: where the mapping stands, for errors.

    Raises:
        SpecError: for unknown or contradicting fields.
        TopologyError: for values that describe no cluster.
    """
    form = convert(raw, TopologyForm, path)
    given = [key for key in TopologyForm.__struct_fields__ if getattr(form, key) is not None]
    kind = next((key for key in _COMPANIONS if key in given), None)
    if kind is None:
        raise SpecError(f"{path} has the fields {given}; expected one of {', '.join(_COMPANIONS)}")
    for key in given:
        if key not in (kind, "rank_map", *_COMPANIONS[kind]):
            raise SpecError(f"{path}.{key} does not go with {path}.{kind}; leave one of them out")
    rank_map = None if form.rank_map is None else tuple(_ints(form.rank_map, f"{path}.rank_map"))
    gpus = ranks if rank_map is None else max(rank_map, default=0) + 1
    if form.file is not None:
        return _from_file(form.file, gpus, base, path, rank_map)
    topology = _from_fields(form, gpus, path, rank_map)
    return replace(topology, pods=_pods(form.pods, path)) if form.pods else topology


def _from_fields(form: TopologyForm, gpus: int, path: str, rank_map: tuple[int, ...] | None) -> Topology:
    if form.preset is not None:
        return _from_preset(form, gpus, path, rank_map)
    if form.domains is not None:
        return _from_domains(form, path, rank_map)
    size = form.gpus_per_domain or 0
    if size < 1:
        raise TopologyError(f"{path}.gpus_per_domain is {size}; expected at least 1")
    gpus = max(1, -(-gpus // size)) * size
    return Topology.uniform(gpus, size, _link(form.nic, NIC_LINK), _link(form.nvlink, NVLINK_LINK), rank_map)


def _from_preset(form: TopologyForm, gpus: int, path: str, rank_map: tuple[int, ...] | None) -> Topology:
    name = form.preset or ""
    nodes = form.nodes
    if nodes is None:
        per_node = PRESETS[name].gpus_per_node if name in PRESETS else 1
        nodes = max(1, -(-gpus // per_node))
    elif nodes < 1:
        raise TopologyError(f"{path}.nodes is {nodes}; expected at least 1")
    return Topology.preset(name, nodes, form.gpus_per_domain, rank_map)


def _from_domains(form: TopologyForm, path: str, rank_map: tuple[int, ...] | None) -> Topology:
    nvlink = _link(form.nvlink, NVLINK_LINK)
    domains = []
    for index, entry in enumerate(form.domains or []):
        where = f"{path}.domains[{index}]"
        if isinstance(entry, dict):
            domain = convert(entry, DomainForm, where)
            domains.append(Domain(tuple(_ints(domain.gpus, f"{where}.gpus")), _link(domain, nvlink)))
        else:
            domains.append(Domain(tuple(_ints(entry, where)), nvlink))
    nic_link = _link(form.nic, NIC_LINK)
    if form.nics is None:
        nics = [Nic((gpu,), nic_link) for domain in domains for gpu in domain.gpus]
    else:
        nics = []
        for index, entry in enumerate(form.nics):
            where = f"{path}.nics[{index}]"
            nic = convert(entry, NicForm, where)
            one = [nic.gpus] if isinstance(nic.gpus, int) else nic.gpus
            each = _ints(one, f"{where}.gpus") if isinstance(one, str) else one
            link = _link(nic, nic_link)
            rails = _rails(nic.rails, len(each), f"{where}.rails")
            nics.extend(
                Nic((gpus,) if isinstance(gpus, int) else tuple(gpus), link, rail)
                for gpus, rail in zip(each, rails, strict=True)
            )
        if any(not nic.gpus for nic in nics):
            raise TopologyError(f"{path}.nics has a NIC without GPUs; expected at least one")
    return Topology(tuple(domains), tuple(nics), rank_map, form.name or "custom")


def _rails(rails: Ints | None, count: int, path: str) -> list[int | None]:
    """The rail of each of ``count`` NICs."""
    if rails is None:
        return [None] * count
    numbers: list[int | None] = [*_ints(rails, path)]
    if len(numbers) != count:
        raise TopologyError(f"{path} lists {len(numbers)} rails for {count} NICs; expected one for each")
    return numbers


def _pods(entries: list[dict[str, Any]], path: str) -> tuple[Pod, ...]:
    pods = []
    for index, entry in enumerate(entries):
        where = f"{path}.pods[{index}]"
        pod = convert(entry, PodForm, where)
        if pod.uplink.bytes_per_s is None:
            raise SpecError(f"{where}.uplink lacks the field 'bytes_per_s'")
        uplink = _link(pod.uplink, Link(1, UPLINK_EFFICIENCY, 0.0))
        pods.append(Pod(tuple(_ints(pod.domains, f"{where}.domains")), uplink))
    return tuple(pods)


def _from_file(name: str, gpus: int, base: Path, path: str, rank_map: tuple[int, ...] | None) -> Topology:
    from reshard_planner.document import read_document  # noqa: PLC0415 - YAML is slow to import
    from reshard_planner.topology.cluster.form import is_cluster  # noqa: PLC0415 - few specs have one
    from reshard_planner.topology.cluster.reading import cluster_from_form  # noqa: PLC0415
    from reshard_planner.topology.cluster.resolve import resolve  # noqa: PLC0415

    target = base / name
    try:
        raw = read_document(target)
    except SpecError as error:
        raise SpecError(f"{path}.file: {error}") from None
    if isinstance(raw, dict) and raw.get("file") is not None:
        raise SpecError(f"{path}.file {name!r} refers to another file; expected a topology")
    if is_cluster(raw):
        topology = resolve(cluster_from_form(raw, name)).topology
    else:
        topology = from_form(raw, gpus, target.parent, name)
    return topology if rank_map is None else replace(topology, rank_map=rank_map)


def to_form(topology: Topology) -> dict[str, Any]:
    """The explicit form, equal ports together, in plain JSON types."""
    form: dict[str, Any] = {
        "domains": [
            {"gpus": format_ints(domain.gpus), **_link_dict(domain.link)} for domain in topology.domains
        ],
        "name": topology.name,
        "nics": [],
    }
    runs: list[list[Nic]] = []
    for nic in topology.nics:
        if not runs or runs[-1][0].link != nic.link or (runs[-1][0].rail is None) != (nic.rail is None):
            runs.append([])
        runs[-1].append(nic)
    for nics in runs:
        gpus = [nic.gpus for nic in nics]
        single = all(len(group) == 1 for group in gpus)
        short: Any = format_ints(group[0] for group in gpus) if single else [list(group) for group in gpus]
        rails = [nic.rail for nic in nics if nic.rail is not None]
        form["nics"].append(
            {"gpus": short, **({"rails": format_ints(rails)} if rails else {}), **_link_dict(nics[0].link)}
        )
    if topology.pods:
        form["pods"] = [
            {"domains": format_ints(pod.domains), "uplink": _link_dict(pod.uplink)} for pod in topology.pods
        ]
    if topology.rank_map is not None:
        form["rank_map"] = format_ints(topology.rank_map)
    return form


def _link_dict(link: Link) -> dict[str, Any]:
    return {"bytes_per_s": link.bytes_per_s, "efficiency": link.efficiency, "latency_s": link.latency_s}


def _link(form: LinkForm | None, default: Link) -> Link:
    if form is None:
        return default
    given = {name: value for name in LinkForm.__struct_fields__ if (value := getattr(form, name)) is not None}
    for name, value in given.items():
        if not 0 <= value <= MAX_NUMBER:
            raise TopologyError(f"{name} is {value!r:.40}; expected a number from 0 to {MAX_NUMBER}")
    if "bytes_per_s" in given:
        given["bytes_per_s"] = round(given["bytes_per_s"])
    return replace(default, **given)


def _ints(value: Ints, path: str) -> list[int]:
    if isinstance(value, list):
        return value
    try:
        return parse_ints(value)
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
