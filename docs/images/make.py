"""Draws the pictures of the documentation again: ``python docs/images/make.py``.

Those that graphviz lays out are kept as DOT, which a test compares with what the code draws, and as SVG,
which depends on the version of graphviz.
"""  # noqa: INP001 - a script, not part of a package

from dataclasses import replace
from pathlib import Path

import reshard_planner as rp
from reshard_planner.models.load import load_model
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.whole import build_spec
from reshard_planner.render.cluster.draw import cluster_dot
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.layouts.svg import layouts_svg
from reshard_planner.render.layouts.text import layouts_text
from reshard_planner.render.pipeline.diagram import pipeline_svg
from reshard_planner.render.svg import draw_dot
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import Fact, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Host, HostPod, Switch
from reshard_planner.topology.cluster.resolve import resolve
from reshard_planner.topology.importers import import_text
from reshard_planner.topology.presets import PRESETS

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


def opening() -> rp.ReshardSpec:
    """The spec of the README's commands, whose picture it opens with."""
    train = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(0)"])
    topology = rp.Topology.uniform(8, 4)
    return rp.ReshardSpec([rp.TensorSpec("w", (8192, 8192), "bfloat16", train, serve)], topology)


def large() -> rp.ReshardSpec:
    """One large weight from 128 training ranks to 256 serving ranks."""
    train = rp.Layout(rp.Mesh(range(128), ["tp", "dp"], [8, 16]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(128, 384), ["dp", "tp"], [8, 32]), ["R", "S(1)"])
    topology = rp.Topology.uniform(384, 8)
    return rp.ReshardSpec([rp.TensorSpec("w", (7168, 18432), "bfloat16", train, serve)], topology)


def copies_by_relay() -> rp.ReshardSpec:
    """Two training ranks feed three replicas, each in a domain of its own."""
    train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([[2, 3], [4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(1)"])
    topology = rp.Topology.uniform(8, 2)
    return rp.ReshardSpec([rp.TensorSpec("w", (4096, 4096), "bfloat16", train, serve)], topology)


def whole_model() -> rp.ReshardSpec:
    """Qwen3-235B-A22B from 128 GPUs in training to 128 in serving."""
    model = load_model(FOLDER.parent.parent / "examples" / "configs" / "Qwen3-235B-A22B.json")
    train = parse_parallelism("megatron tp=4 pp=8 ep=16", "train")
    serve = parse_parallelism("vllm tp=8 dp=16", "serve")
    nodes = (train.gpus + serve.gpus) // PRESETS["dgx-h100"].gpus_per_node
    return build_spec(model, train, [serve], rp.Topology.preset("dgx-h100", nodes))


def pictures() -> dict[str, str]:
    """All pictures by file name; those that end in .dot become .svg besides."""
    columns, replicas, many = rows_to_columns(), fewer_shards_more_replicas(), large()
    relays = rp.compile(copies_by_relay())
    return {
        "opening_transfers.dot": transfers_dot(rp.compile(opening())),
        "columns_layouts.svg": layouts_svg(columns.tensors[0]),
        "columns_transfers.dot": transfers_dot(rp.compile(columns)),
        "replicas_layouts.svg": layouts_svg(replicas.tensors[0]),
        "replicas_layouts.txt": layouts_text(replicas.tensors[0]),
        "replicas_transfers.dot": transfers_dot(rp.compile(replicas)),
        "replicas_transfers_direct.dot": transfers_dot(rp.compile(replicas, "direct")),
        "relays_transfers.dot": transfers_dot(relays),
        "relays_rank.dot": transfers_dot(relays, rank=5),
        "relays_tree.dot": transfers_dot(relays, tree=3),
        "relays_pipeline.svg": pipeline_svg(relays),
        "large_layouts.svg": layouts_svg(many.tensors[0]),
        "large_transfers.dot": transfers_dot(rp.compile(many)),
        "qwen3_transfers.dot": transfers_dot(rp.compile(whole_model())),
    }


def host(name: str, file: str) -> Host:
    """A host of a sample file."""
    text = (FOLDER.parent.parent / "examples" / "clusters" / file).read_text(encoding="utf-8")
    [described] = import_text(text, host=name, source=file).cluster.hosts
    return described


def two_hosts() -> Cluster:
    """Two hosts of the page on clusters, of which one has a GPU and a NIC that are less than the others."""
    hosts = (
        replace(host("a", "h100-node.xml"), path=Fact(("leaf1", "spine"))),
        replace(host("b", "h100-degraded.xml"), path=Fact(("leaf2", "spine"))),
    )
    return Cluster(hosts=hosts, switches=tuple(Switch(name, ("spine",)) for name in ("leaf1", "leaf2")))


def two_pods() -> Cluster:
    """Sixteen hosts in two pods."""
    names = [f"n{number:02}" for number in range(1, 17)]
    hosts = tuple(replace(host("n", "h100-node.xml"), name=name) for name in names)
    pods = (
        HostPod("left", tuple(names[:8]), oversubscription=Fact(4.0)),
        HostPod("right", tuple(names[8:]), PortFacts(Fact(200_000_000_000))),
    )
    return Cluster(hosts=hosts, pods=pods)


def clusters() -> dict[str, str]:
    """Pictures of clusters by file name; they become .svg besides."""
    return {
        f"clusters/{name}.dot": cluster_dot(cluster, resolve(cluster), check(cluster))
        for name, cluster in (("two", two_hosts()), ("pods", two_pods()))
    }


if __name__ == "__main__":
    for name, text in {**pictures(), **clusters()}.items():
        path = FOLDER / name
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".dot":
            path.with_suffix(".svg").write_bytes(draw_dot(text, ".svg"))
