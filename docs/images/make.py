"""Draws the pictures of the documentation again: ``python docs/images/make.py``.

Each is written as DOT, which a test compares with what the code draws, and as SVG.
"""  # noqa: INP001 - a script, not part of a package

from pathlib import Path

import reshard_planner as rp
from reshard_planner.render.layouts import layouts_dot
from reshard_planner.render.svg import write_picture
from reshard_planner.render.transfers import transfers_dot

FOLDER = Path(__file__).parent


def rows_to_columns() -> rp.ReshardSpec:
    """Rows over two training ranks become columns over four serving ranks."""
    train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
    topology = rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]])
    return rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)], topology)


def fewer_shards_more_replicas() -> rp.ReshardSpec:
    """Four shards become two, in two replicas within one domain."""
    train = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(0)"])
    topology = rp.Topology.uniform(8, 4)
    return rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)], topology)


def large() -> rp.ReshardSpec:
    """One large weight from 128 training ranks to 256 serving ranks."""
    train = rp.Layout(rp.Mesh(range(128), ["tp", "dp"], [8, 16]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(128, 384), ["dp", "tp"], [8, 32]), ["R", "S(1)"])
    topology = rp.Topology.uniform(384, 8)
    return rp.ReshardSpec([rp.TensorSpec("w", (7168, 18432), "bfloat16", train, serve)], topology)


def pictures() -> dict[str, str]:
    """All pictures as DOT, by name."""
    columns, replicas, many = rows_to_columns(), fewer_shards_more_replicas(), large()
    return {
        "columns_layouts": layouts_dot(columns.tensors[0]),
        "columns_transfers": transfers_dot(rp.compile(columns)),
        "replicas_layouts": layouts_dot(replicas.tensors[0]),
        "replicas_transfers": transfers_dot(rp.compile(replicas)),
        "replicas_transfers_direct": transfers_dot(rp.compile(replicas, "direct")),
        "large_layouts": layouts_dot(many.tensors[0]),
        "large_transfers": transfers_dot(rp.compile(many)),
    }


if __name__ == "__main__":
    for name, dot in pictures().items():
        for suffix in (".dot", ".svg"):
            write_picture(dot, FOLDER / (name + suffix))
