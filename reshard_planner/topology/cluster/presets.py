"""Clusters of known machines."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, Nearness
from reshard_planner.topology.presets import PRESETS, Preset


def preset_cluster(name: str, hosts: Sequence[str]) -> Cluster:
    """A cluster of hosts of one known machine, with a NIC beside each GPU and a rail for each NIC of a host.

    Hosts of machines whose domains span several fill one domain after the other, in the order given.

    Args:
        name: a key of :data:`reshard_planner.topology.presets.PRESETS`.
        hosts: distinct names.

    Raises:
        TopologyError: for an unknown preset or hosts that no cluster can have.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise TopologyError(f"preset {name!r:.60} is unknown; expected one of {', '.join(PRESETS)}")
    per_domain = preset.gpus_per_domain // preset.gpus_per_node
    return Cluster(
        name,
        tuple(
            _host(name, preset, host, f"{name} {index // per_domain}" if per_domain > 1 else None)
            for index, host in enumerate(hosts)
        ),
    )


def _host(name: str, preset: Preset, host: str, domain: str | None) -> Host:
    def fact(value: int) -> Fact[int]:
        return Fact(value, Origin.PRESET, name)

    count = preset.gpus_per_node
    gpu_port = PortFacts(fact(preset.nvlink_bytes_per_s))
    nic_port = PortFacts(fact(preset.nic_bytes_per_s))
    return Host(
        host,
        tuple(Gpu(f"GPU{index}", island=fact(0), nvlink=gpu_port) for index in range(count)),
        tuple(
            HostNic(
                f"NIC{index}",
                rail=fact(index),
                near=Fact(
                    tuple(Nearness.PIX if gpu == index else Nearness.SYS for gpu in range(count)),
                    Origin.PRESET,
                    name,
                ),
                port=nic_port,
            )
            for index in range(count)
        ),
        None if domain is None else Fact(domain, Origin.PRESET, name),
    )
