"""Layouts that are run on an emulated cluster: small enough for one machine, each hard in another way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import reshard_planner as rp


@dataclass(frozen=True, slots=True)
class EmulatedLayout:
    """One layout and its cluster.

    Attributes:
        name: as on the command line.
        about: what is hard about it, in a line.
        spec: the tensors, on a topology of default rates.
        nic: rate of the fastest NIC, as tc writes it.
        nvlink: rate of the fastest NVLink port.
        limit: goal for the elapsed time over T*.
    """

    name: str
    about: str
    spec: rp.ReshardSpec
    nic: str = "100mbit"
    nvlink: str = "900mbit"
    limit: float = 1.10


def layouts() -> list[EmulatedLayout]:
    """All layouts; the first is the one that costs are fitted on."""
    four = [[0, 1, 2, 3], [4, 5, 6, 7]]
    return [
        EmulatedLayout(
            "replicas",
            "TP4 to TP2 x DP2, both replicas in one domain",
            _spec([("w", (8192, 4096), _on([0, 1, 2, 3], "S(0)"), _on([[4, 5], [6, 7]], "R", "S(0)"))], four),
        ),
        EmulatedLayout(
            "relays",
            "one GPU to three domains, which hand each other what it has no time to send twice",
            _spec(
                [("w", (4096, 4096), _on([0], "R"), _on([[1, 2], [3, 4], [5, 6]], "R", "S(0)"))],
                [[0], [1, 2], [3, 4], [5, 6]],
            ),
            nic="200mbit",
            nvlink="1800mbit",
            limit=1.15,
        ),
        EmulatedLayout(
            "experts",
            "EP4 to TP4: whole experts to columns of all experts",
            _spec([("experts", (8, 1024, 4096), _on([0, 1, 2, 3], "S(0)"), _on([4, 5, 6, 7], "S(2)"))], four),
        ),
        EmulatedLayout(
            "overlap",
            "rows of six GPUs to columns of six, four of which are the same",
            _spec([("w", (18432, 4096), _on(range(6), "S(0)"), _on(range(2, 8), "S(1)"))], four),
        ),
        EmulatedLayout(
            "uneven",
            "odd sizes from three GPUs to five",
            _spec(
                [("w", (6211, 4099), _on([0, 1, 2], "S(0)"), _on([3, 4, 5, 6, 7], "S(1)"))],
                [[0, 1, 2], [3, 4, 5, 6, 7]],
            ),
        ),
        EmulatedLayout(
            "stages",
            "two pipeline stages of TP2, eight layers, to TP4 x DP1",
            _spec(
                [
                    (
                        f"layer{layer}",
                        (2048, 2048),
                        _on([0, 1] if layer < 4 else [2, 3], "S(0)"),
                        _on([4, 5, 6, 7], "S(1)"),
                    )
                    for layer in range(8)
                ],
                four,
            ),
        ),
        EmulatedLayout(
            "one-mesh",
            "rows of eight GPUs to columns of four of them: DTensor can do it as well",
            _spec([("w", (16384, 4096), _on(range(8), "S(0)"), _on([4, 5, 6, 7], "S(1)"))], four),
        ),
        EmulatedLayout(
            "slow-nic",
            "as replicas, with one NIC of half the rate",
            _spec(
                [("w", (12288, 4096), _on([0, 1, 2, 3], "S(0)"), _on([[4, 5], [6, 7]], "R", "S(0)"))],
                four,
                slow=6,
            ),
            limit=1.15,
        ),
    ]


def _on(ranks: Sequence[object], *placements: str) -> rp.Layout:
    return rp.Layout(rp.Mesh(ranks), list(placements))


def _spec(
    tensors: Sequence[tuple[str, tuple[int, ...], rp.Layout, rp.Layout]],
    domains: Sequence[Sequence[int]],
    slow: int | None = None,
) -> rp.ReshardSpec:
    topology = rp.Topology.from_domains(domains)
    if slow is not None:
        half = rp.topology.Link(25_000_000_000, 0.95, 15e-6)
        nics = [rp.topology.Nic(nic.gpus, half) if nic.gpus == (slow,) else nic for nic in topology.nics]
        topology = rp.Topology(topology.domains, tuple(nics))
    return rp.ReshardSpec(
        [rp.TensorSpec(name, shape, "bfloat16", src, dst) for name, shape, src, dst in tensors], topology
    )
