"""The cluster file: its fields as declared forms, for reading, writing and the printed schema.

A value alone was given by people; ``{value, origin, source}`` says where another one comes from. Names of
hosts, GPUs and NICs may be host lists (``n[01-16]``): the entry then describes each of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from reshard_planner.topology.cluster.facts import Origin
from reshard_planner.topology.cluster.model import Nearness

VERSION = 1
"""Version of the cluster file that this release reads and writes."""

Ints = str | list[int]


class FactForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A value with where it comes from."""

    value: bool | int | float | str | list[str | int]
    origin: Origin = Origin.FILE
    source: str = ""


IntFact = int | FactForm
NumberFact = int | float | FactForm
TextFact = str | FactForm
BoolFact = bool | FactForm
NamesFact = str | list[str] | FactForm
IntsFact = int | str | list[int] | FactForm


def _text(words: str) -> Any:
    return msgspec.Meta(description=words)


class PortForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Speed of a port, per direction."""

    bytes_per_s: Annotated[NumberFact | None, _text("datasheet rate in bytes per second, such as 50.0e9")] = (
        None
    )
    efficiency: Annotated[NumberFact | None, _text("share of it that large messages reach, up to 1")] = None
    latency_s: Annotated[NumberFact | None, _text("start-up time of one message in seconds")] = None


class GpuForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU, or several that are alike."""

    name: Annotated[str, _text("name, or host list of names of GPUs that are alike, such as GPU[0-7]")]
    model: Annotated[TextFact | None, _text("product, such as NVIDIA H100 80GB HBM3, or sm90")] = None
    uuid: str | None = None
    bus: Annotated[str | None, _text("PCI address, such as 0000:a4:00.0")] = None
    numa: IntFact | None = None
    nvlinks: Annotated[IntFact | None, _text("number of NVLinks; 0: none")] = None
    island: Annotated[
        IntFact | None, _text("GPUs of a host with equal numbers reach each other over NVLink")
    ] = None
    fabric: Annotated[
        TextFact | None, _text("name of the NVLink domain across hosts; empty: known to have none")
    ] = None
    nvlink: Annotated[PortForm | None, _text("speed of all its NVLinks together")] = None


class NicForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One NIC, or several that are alike."""

    name: Annotated[str, _text("name, or host list of names of NICs that are alike, such as mlx5_[0-7]")]
    guid: str | None = None
    bus: str | None = None
    numa: IntFact | None = None
    rail: Annotated[IntFact | None, _text("number of its rail")] = None
    leaf: Annotated[TextFact | None, _text("name of the switch that it is plugged into")] = None
    near: Annotated[
        NamesFact | None,
        _text(f"how near it is to each GPU of the host: {', '.join(Nearness)}, nearest first"),
    ] = None
    gpus: Annotated[
        IntsFact | None, _text("positions of the GPUs that use it, where nearness does not say")
    ] = None
    enabled: Annotated[BoolFact | None, _text("false: its port is down, or it is not to be used")] = None
    port: PortForm | None = None


class HostOverridesForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What wins over all sources, and over the same of the cluster."""

    gpu_model: Annotated[str | None, _text("model of all its GPUs")] = None
    nic: Annotated[PortForm | None, _text("speed of all its NICs")] = None
    nvlink: Annotated[PortForm | None, _text("speed of all its NVLink ports")] = None


class HostForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One host, or several that are alike."""

    name: Annotated[str, _text("name, or host list of hosts that are alike, such as n[01-16]")]
    gpus: Annotated[int | list[GpuForm], _text("GPUs in the order of local ranks, or how many")] = (
        msgspec.field(default_factory=list)
    )
    nics: Annotated[int | list[NicForm], _text("NICs, or how many")] = msgspec.field(default_factory=list)
    domain: Annotated[TextFact | None, _text("name of the NVLink domain that all its GPUs are in")] = None
    path: Annotated[NamesFact | None, _text("switches above it, nearest first")] = None
    nic: Annotated[PortForm | None, _text("speed of its NICs that have none of their own")] = None
    nvlink: Annotated[PortForm | None, _text("speed of its NVLink ports that have none of their own")] = None
    overrides: HostOverridesForm | None = None


class SwitchForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One switch of the network."""

    name: str
    parents: list[str] = msgspec.field(default_factory=list)
    uplink: Annotated[PortForm | None, _text("all its links to switches above together")] = None
    downlink: Annotated[PortForm | None, _text("all its links to hosts and switches below together")] = None


class PodForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hosts behind one uplink."""

    name: str
    hosts: Annotated[str, _text("host list")]
    uplink: PortForm | None = None
    oversubscription: Annotated[
        NumberFact | None, _text("rate of its NICs over that of the uplink, such as 4")
    ] = None


class OverridesForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What wins over all sources. NICs are named name, on all hosts, or host:name."""

    rails: Annotated[dict[str, int], _text("rail of each NIC")] = msgspec.field(default_factory=dict)
    disabled_nics: Annotated[list[str], _text("NICs that are not to be used")] = msgspec.field(
        default_factory=list
    )
    domains: Annotated[list[list[str]], _text("domains: hosts (a), or positions of GPUs of one (a:0-3)")] = (
        msgspec.field(default_factory=list)
    )
    gpus_per_domain: Annotated[int | None, _text("splits every domain into ones of this size")] = None
    gpu_model: Annotated[str | None, _text("model of all GPUs")] = None
    nic: Annotated[PortForm | None, _text("speed of all NICs")] = None
    nvlink: Annotated[PortForm | None, _text("speed of all NVLink ports")] = None


class ClusterForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A cluster: hosts, their GPUs and NICs, and the network between them."""

    version: Annotated[int, _text("version of this format: 1")]
    hosts: list[HostForm]
    name: str = "cluster"
    switches: list[SwitchForm] = msgspec.field(default_factory=list)
    pods: list[PodForm] = msgspec.field(default_factory=list)
    rank_map: Annotated[Ints | None, _text("number of the GPU of each rank, GPUs numbered host by host")] = (
        None
    )
    nic: Annotated[PortForm | None, _text("speed of NICs that have none of their own")] = None
    nvlink: Annotated[PortForm | None, _text("speed of NVLink ports that have none of their own")] = None
    overrides: OverridesForm | None = None


def schema() -> dict[str, Any]:
    """The JSON schema of the cluster file."""
    return msgspec.json.schema(ClusterForm)


def is_cluster(raw: object) -> bool:
    """Whether plain data is a cluster file rather than the topology of a spec."""
    return isinstance(raw, dict) and "hosts" in raw
