"""Known machines, by datasheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reshard_planner.errors import TopologyError
from reshard_planner.topology.model import NIC_LINK, NVLINK_LINK, Topology


@dataclass(frozen=True, slots=True)
class Preset:
    """One machine.

    Attributes:
        gpus_per_node: GPUs of one host.
        gpus_per_domain: GPUs of one NVLink domain, the largest where it varies.
        domain_varies: whether installations cut the domain smaller.
        nvlink_bytes_per_s: datasheet rate per GPU and direction.
        nic_bytes_per_s: datasheet rate per NIC and direction; one NIC per GPU.
    """

    gpus_per_node: int
    gpus_per_domain: int
    domain_varies: bool
    nvlink_bytes_per_s: int
    nic_bytes_per_s: int


GB = 1_000_000_000

PRESETS: dict[str, Preset] = {
    # DGX A100 datasheet: 12 NVLinks of 25 GB/s, 8 HDR200 ports
    "dgx-a100": Preset(8, 8, False, 300 * GB, 25 * GB),
    # DGX H100 and H200 datasheets: 18 NVLinks of 25 GB/s, 8 ConnectX-7 of 400 Gbit/s
    "dgx-h100": Preset(8, 8, False, 450 * GB, 50 * GB),
    "dgx-h200": Preset(8, 8, False, 450 * GB, 50 * GB),
    # DGX B200 datasheet: 18 NVLinks of 50 GB/s; NICs of 400 Gbit/s as in MLPerf system descriptions
    "dgx-b200": Preset(8, 8, False, 900 * GB, 50 * GB),
    # DGX GB200 SuperPOD reference architecture: trays of 4 GPUs, 4 ConnectX-7 per tray
    "gb200-nvl72": Preset(4, 72, True, 900 * GB, 50 * GB),
}
"""Machines by name; rates in bytes per second per direction."""


def build(name: str, nodes: int, gpus_per_domain: int | None, rank_map: Sequence[int] | None) -> Topology:
    """Make the topology of a preset; see :meth:`Topology.preset`.

    Raises:
        TopologyError: for an unknown preset or an impossible domain size.
    """
    preset = PRESETS.get(name)
    if preset is None:
        raise TopologyError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    size = preset.gpus_per_domain if gpus_per_domain is None else gpus_per_domain
    if size != preset.gpus_per_domain and not preset.domain_varies:
        raise TopologyError(
            f"gpus_per_domain {size} does not fit preset {name}, whose domains have"
            f" {preset.gpus_per_domain} GPUs"
        )
    if not 1 <= size <= preset.gpus_per_domain:
        raise TopologyError(f"gpus_per_domain {size} of preset {name} must be 1 to {preset.gpus_per_domain}")
    if nodes < 1:
        raise TopologyError(f"nodes {nodes} of preset {name} must be at least 1")
    topology = Topology.uniform(
        nodes * preset.gpus_per_node,
        size,
        replace(NIC_LINK, bytes_per_s=preset.nic_bytes_per_s),
        replace(NVLINK_LINK, bytes_per_s=preset.nvlink_bytes_per_s),
        rank_map,
    )
    return replace(topology, name=name)
