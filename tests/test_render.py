"""Pictures and summaries: what they show is what the plan says, for any plan and any name."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import WHOLE_BYTE_DTYPES, specs, tensor_specs

import reshard_planner as rp
from reshard_planner.errors import InputError
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Tables
from reshard_planner.render.comparison import Predicted, comparison_table
from reshard_planner.render.flows import MAX_EDGES, MAX_IDLE, MAX_JOINED_EDGES, MAX_PLACES
from reshard_planner.render.layouts import MAX_GRIDS, MAX_LAYOUTS, MAX_RANGES, layouts_dot
from reshard_planner.render.notebook import Picture, mimebundle
from reshard_planner.render.summary import summarize
from reshard_planner.render.svg import to_svg, write_picture
from reshard_planner.render.text import format_nbytes, format_ranks, format_rate, format_s, plain
from reshard_planner.render.transfers import LINES, MAX_TEXTS, transfers_dot
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.topology import Link, Pod
from reshard_planner.transfer import Medium, Role

IMAGES = Path(__file__).parent.parent / "docs" / "images"

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program 'dot' is installed")


# ------------------------------------------------------------------------------------ reading DOT


@dataclass(frozen=True)
class Graph:
    """What a DOT text of ours says: attributes of nodes, of edges, and nodes per cluster."""

    nodes: dict[str, dict[str, str]]
    edges: list[tuple[str, str, dict[str, str]]]
    clusters: dict[str, list[str]]
    heading: str

    def nbytes(self, medium: str) -> int:
        """Bytes of a medium on edges and within nodes."""
        on_edges = sum(int(edge["nbytes"]) for _, _, edge in self.edges if edge["class"].startswith(medium))
        return on_edges + sum(int(node.get(f"{medium}_nbytes", 0)) for node in self.nodes.values())


ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|<.*>(?= \w+=|\])|[^\s\]]+)')
STATEMENT = re.compile(r"\s*(\w+)(?: -> (\w+))? \[(.*)\]")


def read(dot: str) -> Graph:
    """Parse our own DOT: one statement a line; an unknown line is a broken one."""
    nodes, clusters, heading = {}, {}, ""
    edges: list[tuple[str, str, dict[str, str]]] = []
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
            found = {key: value.strip('"') for key, value in ATTRIBUTE.findall(statement[3])}
            if statement[2]:
                edges.append((statement[1], statement[2], found))
            elif statement[1] == "graph":
                heading = found.get("label", "")
            elif statement[1] not in ("node", "edge"):
                assert statement[1] not in nodes
                nodes[statement[1]] = found
                if inside is not None:
                    clusters[inside].append(statement[1])
        else:
            assert re.fullmatch(r"\t\t(\w+=(\"[^\"]*\"|[^\s\"]+) ?)+", line), line
    return Graph(nodes, edges, clusters, heading)


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
    assert graph.clusters == expected
    assert set(graph.nodes) == {f"rank_{rank}" for rank in plan.ranks}


@given(specs())
def test_ids_are_unique_and_edges_join_nodes(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    ids = [edge["id"] for _, _, edge in graph.edges] + [node["id"] for node in graph.nodes.values()]
    assert len(set(ids)) == len(ids)
    assert {end for src, dst, _ in graph.edges for end in (src, dst)} <= set(graph.nodes)
    assert all(src != dst for src, dst, _ in graph.edges)


@given(specs())
def test_the_legend_explains_every_line_and_the_units(spec):
    graph = read(transfers_dot(rp.compile(spec)))
    kinds = {edge["class"] for _, _, edge in graph.edges}
    for (medium, role), line in LINES.items():
        used = f"{Medium(medium).label} {Role(role).label}" in kinds
        assert (f"<B>{line.name}</B>" in graph.heading) == used
        assert (line.meaning in graph.heading) == used
    assert "1 KiB = 1024 B" in graph.heading


def test_roles_differ_by_line_and_by_text_not_by_colour_alone():
    looks = {(line.style, line.double, line.arrow) for line in LINES.values()}
    assert len(looks) == len({line.name for line in LINES.values()}) == len(LINES)
    for _, _, edge in read(transfers_dot(replicas())).edges:
        line = next(line for line in LINES.values() if line.name in edge["label"])
        assert edge["style"] == line.style
        assert edge["label"] == f"1 {line.name}, 32 B"


def test_a_holder_and_a_needer_are_told_apart_by_words_and_frame():
    nodes = read(transfers_dot(replicas())).nodes
    assert nodes["rank_0"]["label"] == r"rank 0\nholds"
    assert nodes["rank_4"]["label"] == r"rank 4\nneeds"
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
    assert graph.clusters["domain_0"] == ["rank_4", "rank_5", "rank_6", "rank_7"]


@pytest.mark.parametrize("name", list(sample_plans()))
def test_every_sample_plan_is_drawn(name):
    plan = sample_plans()[name]
    graph = read(transfers_dot(plan))
    assert graph.nbytes("network") == plan.certificate.payload.network_nbytes


def test_as_many_edges_as_fit_are_drawn_by_rank():
    graph = read(transfers_dot(across(15, MAX_EDGES // 15)))
    assert len(graph.edges) == MAX_EDGES
    assert len(graph.nodes) == 15 + MAX_EDGES // 15


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
    assert len(graph.nodes) == 38
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


def test_the_same_plan_gives_the_same_text_under_any_hash_seed():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_render import *;"
        "sys.stdout.buffer.write(''.join([transfers_dot(replicas()), layouts_dot(replicas().spec.tensors[0]),"
        "summarize(replicas())]).encode())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


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
    tensor = plan.spec.tensors[0]
    assert set(read(layouts_dot(tensor)).nodes) == {"source", "destination"}
    transfers_dot(plan, name).encode()


@given(NAMES)
def test_a_shown_name_is_one_line_of_printable_characters(name):
    shown = plain(name)
    assert shown.isprintable()
    assert len(shown) <= 60
    assert shown == name or not name.isprintable() or len(name) > 60


@needs_dot
@pytest.mark.parametrize(
    "name", [HOSTILE_NAME, "<b>&amp;&lt;", "a\\", '"]; }', "]]>", "x" * 999, "\\N\\G\\l", "{a|b}", "-->"]
)
def test_dot_draws_any_name_as_text(name):
    plan = replicas(name=name)
    for dot in (transfers_dot(plan), layouts_dot(plan.spec.tensors[0])):
        root = ET.fromstring(to_svg(dot))  # noqa: S314 - our own picture
        texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert any(
            plain(name).replace(" ", "\N{NO-BREAK SPACE}") in text or plain(name) in text for text in texts
        )


# ------------------------------------------------------------------------------------ layouts

CELL = re.compile(r"ranks? ([\d,-]+)(?:<B> x(\d+)</B>)?<BR/>(\[.*?\])")


def cells(label: str) -> list[tuple[str, int, str]]:
    """Ranks, their number and the box of every cell."""
    return [(ranks, int(copies or 1), box) for ranks, copies, box in CELL.findall(label)]


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_every_tile_of_every_rank_is_in_a_cell(tensor):
    assume(len(tensor.shape) <= 2)
    graph = read(layouts_dot(tensor))
    assume("..." not in graph.nodes["source"]["label"] + graph.nodes["destination"]["label"])
    for side, name in (("src", "source"), ("dst", "destination")):
        label = graph.nodes[name]["label"]
        drawn = sorted((rank, box) for ranks, _, box in cells(label) for rank in parse_ints(ranks))
        partitions = [layout.partition(tensor.shape) for layout in tensor.layouts(side)]
        expected = sorted(
            (rank, str(tile.box))
            for partition in partitions
            for rank in partition.ranks.tolist()
            for tile in partition.tiles(rank)
        )
        assert drawn == expected
        assert all(len(parse_ints(ranks)) == copies for ranks, copies, _ in cells(label))


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_empty_shards_are_listed_beneath(tensor):
    graph = read(layouts_dot(tensor))
    for side, name in (("src", "source"), ("dst", "destination")):
        for partition in [layout.partition(tensor.shape) for layout in tensor.layouts(side)]:
            empty = sorted(rank for rank in partition.ranks.tolist() if not partition.tiles(rank))
            listed = f"empty shards: {'rank' if len(empty) == 1 else 'ranks'} {format_ints(empty)}<"
            assert not empty or listed in graph.nodes[name]["label"]


def tensor_of(shape: tuple[int, ...], ranks: int, *placements: str, mesh: tuple[int, ...] | None = None):
    """A tensor that these placements cut, and that one other rank must have whole."""
    whole = rp.Layout(rp.Mesh([ranks]), ["R"])
    layout = rp.Layout(rp.Mesh(range(ranks), None, mesh or (ranks,)), placements)
    return rp.TensorSpec("w", shape, "bfloat16", layout, whole)


def test_cells_are_to_scale():
    label = read(layouts_dot(tensor_of((10,), 3, "S(0)"))).nodes["source"]["label"]
    widths = [int(width) for width in re.findall(r'BGCOLOR="[^"]+" WIDTH="(\d+)"', label)]
    assert widths[0] == widths[1]
    assert widths[2] == pytest.approx(widths[0] / 2, abs=1)


def test_replicas_show_by_number_and_frame():
    label = read(layouts_dot(tensor_of((8, 8), 8, "S(0)", "R", mesh=(2, 4)))).nodes["source"]["label"]
    assert cells(label) == [("0-3", 4, "[0:4, 0:8]"), ("4-7", 4, "[4:8, 0:8]")]
    assert label.count('<TD BORDER="3"') == 2
    assert '<TD BORDER="1"' not in label


def test_the_middle_of_too_many_cells_is_left_out():
    label = read(layouts_dot(tensor_of((64, 64), 64 * 16, "S(0)", "S(1)", mesh=(64, 16)))).nodes["source"][
        "label"
    ]
    boxes = [box for _, _, box in cells(label)]
    assert len(boxes) == (MAX_RANGES - 1) ** 2
    assert boxes[0] == "[0:1, 0:4]"
    assert boxes[-1] == "[63:64, 60:64]"
    assert ">...<" in label


def test_more_than_two_dimensions_are_several_grids():
    label = read(layouts_dot(tensor_of((4, 6, 8), 4, "S(0)", "S(2)", mesh=(2, 2)))).nodes["source"]["label"]
    assert [caption for caption in ("[0:2, ...]", "[2:4, ...]") if caption in label] == [
        "[0:2, ...]",
        "[2:4, ...]",
    ]
    assert cells(label)[1] == ("1", 1, "[..., 0:6, 4:8]")
    assert "down: dim 1 (6 elements), across: dim 2 (8 elements)" in label


def test_too_many_grids_are_left_out():
    label = read(layouts_dot(tensor_of((40, 2, 2), 40, "S(0)"))).nodes["source"]["label"]
    assert len(cells(label)) == MAX_GRIDS
    assert f"... {40 - MAX_GRIDS} grids left out ..." in label


def test_several_layouts_of_a_side_stand_one_above_the_other():
    one = rp.Layout(rp.Mesh([0]), ["R"])
    tensor = rp.TensorSpec(
        "w", (4,), "int8", one, [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in range(1, 7)]
    )
    label = read(layouts_dot(tensor)).nodes["destination"]["label"]
    assert [ranks for ranks, _, _ in cells(label)] == ["1", "2", "3", "4"]
    assert f"... and {6 - MAX_LAYOUTS} more layouts" in label


def test_a_scalar_is_one_cell_and_a_tensor_without_elements_none():
    assert cells(read(layouts_dot(tensor_of((), 2, "R"))).nodes["source"]["label"]) == [("0-1", 2, "[]")]
    label = read(layouts_dot(tensor_of((0, 3), 2, "S(0)"))).nodes["source"]["label"]
    assert cells(label) == []
    assert "the tensor has no elements" in label
    assert "empty shards: ranks 0-1" in label


# ------------------------------------------------------------------------------------ files


def test_without_the_program_one_sentence_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    dot = transfers_dot(replicas())
    with pytest.raises(
        InputError, match=r"program 'dot' was not found.*Debian package graphviz.*\.dot file"
    ) as info:
        write_picture(dot, tmp_path / "a.svg")
    assert "\n" not in str(info.value)
    assert list(tmp_path.iterdir()) == []
    write_picture(dot, tmp_path / "a.dot")
    write_picture(dot, tmp_path / "b.GV")
    assert (
        (tmp_path / "a.dot").read_text(encoding="utf-8")
        == (tmp_path / "b.GV").read_text(encoding="utf-8")
        == dot
    )


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


@needs_dot
def test_what_dot_cannot_read_is_one_sentence_and_the_old_file_stays(tmp_path):
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
    for tensor in plan.spec.tensors:
        assert warnings_of(layouts_dot(tensor)) == ""


@needs_dot
def test_ids_classes_and_tooltips_reach_the_svg():
    svg = to_svg(transfers_dot(replicas())).decode()
    for text in ('id="rank_0"', 'class="node rank"', 'id="rank_0_to_rank_4_network_inject"', 'id="domain_1"'):
        assert text in svg
    assert "network inject: 1 transfer, 32 bytes" in svg


def test_the_pictures_of_the_documentation_are_what_the_code_draws():
    drawn = runpy.run_path(str(IMAGES / "make.py"))["pictures"]()
    assert {path.stem for path in IMAGES.glob("*.dot")} == set(drawn)
    assert {path.stem for path in IMAGES.glob("*.svg")} == set(drawn)
    for name, dot in drawn.items():
        kept = (IMAGES / f"{name}.dot").read_text(encoding="utf-8")
        digests = re.compile(r"plan [0-9a-f]{64}")
        assert digests.sub("", kept) == digests.sub("", dot), f"{name}: run python docs/images/make.py"


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


def test_a_plan_in_a_notebook_is_text_and_table_without_the_program(monkeypatch):
    monkeypatch.setenv("PATH", "")
    plan = sample_plans()["optimal"]
    bundle = plan._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == repr(plan)
    table = ET.fromstring(bundle["text/html"])  # noqa: S314 - our own table
    assert len(table.findall("tr")) == len(repr(plan).splitlines()) - 1


@needs_dot
def test_a_plan_in_a_notebook_has_its_picture_with_the_program():
    bundle = mimebundle(replicas())
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert ET.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")  # noqa: S314 - our own picture
    assert bundle["text/html"].count("<svg") == 1


@needs_dot
def test_a_plan_of_very_many_transfers_is_shown_without_picture(monkeypatch):
    plan = replicas()
    monkeypatch.setattr("reshard_planner.render.notebook.MAX_TRANSFERS", plan.certificate.transfers - 1)
    assert set(mimebundle(plan)) == {"text/plain", "text/html"}


def test_a_picture_in_a_notebook_is_its_text_without_the_program(monkeypatch):
    dot = layouts_dot(replicas().spec.tensors[0])
    monkeypatch.setenv("PATH", "")
    bundle = Picture(dot)._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert bundle["text/plain"].endswith(dot)
    assert "Debian package graphviz" in bundle["text/plain"].splitlines()[0]


@needs_dot
def test_a_picture_in_a_notebook_is_drawn_with_the_program():
    bundle = Picture(transfers_dot(replicas()))._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<?xml")
