"""Sample plans: small, but with every feature that the forms of a plan must carry."""

from __future__ import annotations

from functools import cache

import reshard_planner as rp
from reshard_planner.box import Box
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.topology import Domain, Link, Nic

HOSTILE_NAME = 'a"b\\\n\r\u2028\ud800\x00{0} route 3: piece 1, m0 [S(0)] \N{SNOWMAN}'
"""A name with all that could break a line, a quote or an encoding."""

TRAIN = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
SERVE = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
WHOLE = rp.Layout(rp.Mesh([5, 2]), ["R"])
EVERYWHERE = rp.Layout(rp.Mesh([0, 1]), ["R"])
REPLICAS = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ["dp", HOSTILE_NAME]), ["R", "S(0)"])
TWO_HOSTS = rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]])
SLOW = rp.Topology(
    (Domain((0, 1), Link(3_000, 1.0, 0.0)), Domain((5, 4, 3, 2), Link(1_000, 0.5, 1e-3))),
    (Nic((0, 1)), Nic((2, 3), Link(7, 0.25, 1e-9)), Nic((4,)), Nic((5,)), Nic((5,))),
    rank_map=(1, 0, 2, 3, 4, 5),
    name=HOSTILE_NAME,
)
"""Shared and doubled NICs, ranks on other GPUs, and ports so slow that small tensors take many rounds."""


def _tensors() -> list[rp.TensorSpec]:
    strided = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ["fsdp", "tp"]), ["_S(0, sf=2)", "S(0)"])
    fused = rp.Layout(rp.Mesh([2, 3]), ["_S(1, sf=3)"])
    return [
        rp.TensorSpec("w", (8, 8), "bfloat16", TRAIN, SERVE),
        rp.TensorSpec("w2", (8, 8), "bfloat16", TRAIN, SERVE),
        rp.TensorSpec(HOSTILE_NAME, (), "float32", EVERYWHERE, WHOLE),
        rp.TensorSpec("packed", (8, 12), "uint4", TRAIN, [REPLICAS, fused]),
        rp.TensorSpec("strided", (7,), "complex128", [TRAIN, EVERYWHERE], strided),
        rp.TensorSpec("empty", (0, 3, 2), "int8", TRAIN, SERVE),
        rp.TensorSpec("one", (1, 1), "bool", EVERYWHERE, [WHOLE, strided]),
    ]


def _stored_tensors() -> list[rp.TensorSpec]:
    """Two tensors in one fused buffer, one of which is converted, and one whose storage leaves parts out."""
    halves, others = (
        Storage.of(
            (
                StoredBuffer(
                    0,
                    (8, 8),
                    (
                        Tile(Box((row, 0), (row + 2, 8)), first, (8, 1)),
                        Tile(Box((row + 2, 0), (row + 4, 8)), first + 16, (1, 2)),
                    ),
                ),
            )
            for row in (0, 4)
        )
        for first in (0, 32)
    )
    part = Storage.of([(), (StoredBuffer(1, (9, 2), (Tile(Box((2, 2), (5, 4)), 1, (3, 1)),)),), (), ()])
    fused = {"src_buffers": [(HOSTILE_NAME,)]}
    return [
        rp.TensorSpec("gate", (8, 8), "bfloat16", rp.Layout(TRAIN.mesh, ["S(0)"], halves), SERVE, **fused),
        rp.TensorSpec(
            "up",
            (8, 8),
            "bfloat16",
            rp.Layout.stored(TRAIN.mesh, others),
            [SERVE, REPLICAS],
            dst_dtype="float32",
            cast=True,
            dst_buffers=[("a",), ("b",)],
            **fused,
        ),
        rp.TensorSpec(
            "part",
            (8, 8),
            "float64",
            TRAIN,
            rp.Layout.stored(SERVE.mesh, part),
            dst_dtype="float8_e5m2",
            cast=True,
            dst_buffers=[("none", HOSTILE_NAME)],
        ),
    ]


def _spec(tensors: list[rp.TensorSpec], topology: rp.Topology, strategy: str) -> rp.ReshardSpec:
    return rp.ReshardSpec(tensors, topology, rp.Options(strategy=strategy, min_message_nbytes=1))


@cache
def sample_plans() -> dict[str, rp.Plan]:
    """Plans by name; every call returns the same ones."""
    specs = {
        "plain": _spec([rp.TensorSpec("w", (8, 8), "bfloat16", TRAIN, SERVE)], TWO_HOSTS, "optimal"),
        "nothing": _spec([], rp.Topology.uniform(1, 1), "optimal"),
        "scalar": _spec([rp.TensorSpec("s", (), "int64", WHOLE, EVERYWHERE)], TWO_HOSTS, "optimal"),
    }
    specs["stored"] = _spec(_stored_tensors(), SLOW, "optimal")
    for strategy in ("optimal", "direct", "gather-broadcast"):
        specs[strategy] = _spec(_tensors(), SLOW, strategy)
    return {name: rp.compile(spec) for name, spec in specs.items()}
