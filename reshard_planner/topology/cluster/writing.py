"""From a cluster to its file: what is alike stands together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from reshard_planner.intset import format_ints
from reshard_planner.topology.cluster.facts import Fact, Origin, PortFacts
from reshard_planner.topology.cluster.form import VERSION
from reshard_planner.topology.cluster.hostlist import fold_hosts
from reshard_planner.topology.cluster.model import (
    Cluster,
    Gpu,
    Host,
    HostNic,
    HostOverrides,
    HostPod,
    Overrides,
    Switch,
)

Device = TypeVar("Device", Gpu, HostNic, Host)


def cluster_to_form(cluster: Cluster) -> dict[str, Any]:
    """The cluster file in plain JSON types; reading it back gives an equal cluster.

    Raises:
        TopologyError: if a name of a host, GPU or NIC cannot stand in a host list.
    """
    return {
        "version": VERSION,
        "name": cluster.name,
        **_given(
            nic=_port(cluster.nic),
            nvlink=_port(cluster.nvlink),
            rank_map=None if cluster.rank_map is None else format_ints(cluster.rank_map),
        ),
        "hosts": [_host(host, names) for host, names in _alike(cluster.hosts)],
        **_given(
            switches=[_switch(switch) for switch in cluster.switches],
            pods=[_pod(pod) for pod in cluster.pods],
            overrides=_overrides(cluster.overrides),
        ),
    }


def cluster_to_yaml(cluster: Cluster) -> str:
    """The cluster file as YAML text.

    Raises:
        TopologyError: if a name of a host, GPU or NIC cannot stand in a host list.
    """
    from reshard_planner.yamltext import dump_yaml  # noqa: PLC0415 - YAML is slow to import

    return dump_yaml(cluster_to_form(cluster))


def _given(**values: Any) -> dict[str, Any]:
    """The fields that have something in them."""
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


def _alike(devices: Iterable[Device]) -> list[tuple[Device, str]]:
    """Neighbours that differ in their names alone, with the host list of these."""
    groups: list[tuple[Device, list[str]]] = []
    for device in devices:
        nameless = replace(device, name="")
        if groups and groups[-1][0] == nameless:
            groups[-1][1].append(device.name)
        else:
            groups.append((nameless, [device.name]))
    return [(device, fold_hosts(names)) for device, names in groups]


def _host(host: Host, names: str) -> dict[str, Any]:
    form: dict[str, Any] = {"name": names}
    form["gpus"] = [_gpu(gpu, folded) for gpu, folded in _alike(host.gpus)]
    form["nics"] = [_nic(nic, folded) for nic, folded in _alike(host.nics)]
    form.update(
        _given(
            domain=_fact(host.domain),
            path=_fact(host.path),
            nic=_port(host.nic),
            nvlink=_port(host.nvlink),
            overrides=_of_devices(host.overrides),
        )
    )
    return form


def _gpu(gpu: Gpu, names: str) -> dict[str, Any]:
    return {
        "name": names,
        **_given(
            model=_fact(gpu.model),
            uuid=gpu.uuid,
            bus=gpu.bus,
            numa=_fact(gpu.numa),
            nvlinks=_fact(gpu.nvlinks),
            island=_fact(gpu.island),
            fabric=_fact(gpu.fabric),
            nvlink=_port(gpu.nvlink),
        ),
    }


def _nic(nic: HostNic, names: str) -> dict[str, Any]:
    return {
        "name": names,
        **_given(
            guid=nic.guid,
            bus=nic.bus,
            numa=_fact(nic.numa),
            rail=_fact(nic.rail),
            leaf=_fact(nic.leaf),
            near=_fact(nic.near),
            gpus=_fact(nic.gpus),
            enabled=_fact(nic.enabled),
            port=_port(nic.port),
        ),
    }


def _switch(switch: Switch) -> dict[str, Any]:
    return {
        "name": switch.name,
        **_given(parents=list(switch.parents), uplink=_port(switch.uplink), downlink=_port(switch.downlink)),
    }


def _pod(pod: HostPod) -> dict[str, Any]:
    return {
        "name": pod.name,
        "hosts": fold_hosts(pod.hosts),
        **_given(uplink=_port(pod.uplink), oversubscription=_fact(pod.oversubscription)),
    }


def _overrides(overrides: Overrides) -> dict[str, Any]:
    return _given(
        rails=dict(overrides.rails),
        disabled_nics=list(overrides.disabled_nics),
        domains=[list(domain) for domain in overrides.domains],
        gpus_per_domain=overrides.gpus_per_domain,
        **_of_devices(overrides),
    )


def _of_devices(overrides: Overrides | HostOverrides) -> dict[str, Any]:
    return _given(gpu_model=overrides.gpu_model, nic=_port(overrides.nic), nvlink=_port(overrides.nvlink))


def _port(port: PortFacts) -> dict[str, Any]:
    return _given(
        bytes_per_s=_fact(port.bytes_per_s),
        efficiency=_fact(port.efficiency),
        latency_s=_fact(port.latency_s),
    )


def _fact(fact: Fact[Any] | None) -> Any:
    if fact is None:
        return None
    value = fact.value
    if isinstance(value, tuple):
        value = [str(item) if isinstance(item, str) else item for item in value]
    if fact.origin is Origin.FILE and not fact.source and value != []:
        return value
    return {"value": value, "origin": fact.origin.value, **({"source": fact.source} if fact.source else {})}
