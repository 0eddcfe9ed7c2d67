"""Pipeline pictures show every byte of a plan in its slot, and stay small and safe for any plan."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from strategies import specs

import reshard_planner as rp
from reshard_planner.errors import InputError
from reshard_planner.ir.timeline import Timeline
from reshard_planner.render.pipeline import counts as pipeline_counts
from reshard_planner.render.pipeline.counts import MAX_CELLS, MAX_COLUMNS, Kind, count_cells
from reshard_planner.render.pipeline.diagram import pipeline_svg
from reshard_planner.render.pipeline.marks import LOOKS
from reshard_planner.render.pipeline.rows import MAX_RANK_ROWS, MAX_ROWS, find_rows
from reshard_planner.render.pipeline.times import Lane, measure_uses
from reshard_planner.simulate import Costs, predict, timeline_of
from reshard_planner.simulate.workload import Workload
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium, Role

SVG = "{http://www.w3.org/2000/svg}"


def layout(ranks, shape, names, *placements):
    return rp.Layout(rp.Mesh(ranks, names, shape), placements)


def replicas(tensors=2, **options):
    """TP4 to TP2 x DP2 on two domains."""
    train = layout(range(4), (4,), ["tp"], "S(0)")
    serve = layout(range(4, 8), (2, 2), ["dp", "tp"], "R", "S(1)")
    members = [
        rp.TensorSpec(f"<script>{n}</script>", (4096, 2048), "bfloat16", train, serve) for n in range(tensors)
    ]
    return rp.compile(rp.ReshardSpec(members, rp.Topology.uniform(8, 4), rp.Options(**options)))


def compiled(spec):
    try:
        return rp.compile(spec)
    except InputError:
        return None


def drawn(*arguments):
    """The root of a picture, which is well-formed and loads nothing."""
    text = pipeline_svg(*arguments)
    assert text == pipeline_svg(*arguments)
    root = ET.fromstring(text)  # noqa: S314 - our own text
    for element in root.iter():
        assert element.tag in {
            SVG + tag for tag in ("svg", "style", "defs", "pattern", "path", "text", "g", "title")
        }
        assert not {"href", "src", "onload"} & set(element.attrib)
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {
        f"#{each.get('id')}" for each in root.iter(SVG + "pattern")
    }
    return root


def titles(root):
    return [element.text for element in root.iter(SVG + "title")]


def words(root):
    return " ".join(element.text for element in root.iter(SVG + "text"))


# counts


@given(specs())
def test_cells_add_up_to_the_operations_of_a_plan(spec):
    plan = compiled(spec)
    if plan is None:
        return
    rows = find_rows(plan)
    counts = count_cells(plan, rows)
    ops = plan.ops()
    expected = np.zeros_like(counts.nbytes)
    kinds = {Role.INJECT: Kind.INJECT, Role.RELAY: Kind.RELAY, Role.FANOUT: Kind.FANOUT}
    kinds |= {Role.HANDOFF: Kind.HANDOFF, Role.COPY: Kind.COPY}
    for src, dst, role, medium, slot, nbytes in zip(
        ops.src, ops.dst, ops.role, ops.medium, ops.slot, ops.nbytes, strict=True
    ):
        column = slot // counts.per_column
        expected[kinds[Role(role)], rows.row_of[src], column] += nbytes
        if medium == Medium.NETWORK:
            expected[Kind.ARRIVE, rows.row_of[dst], column] += nbytes
    work = Workload.of(plan).rank_slots
    np.add.at(expected[Kind.PACK], (rows.row_of[work.rank], work.slot // counts.per_column), work.pack_nbytes)
    assert counts.packed
    assert (counts.nbytes == expected).all()


@pytest.mark.parametrize("strategy", ["optimal", "direct", "gather-broadcast"])
def test_packed_bytes_are_those_of_the_workload_for_chunks_and_messages_of_several_boxes(strategy):
    train = layout(range(8), (8,), ["tp"], "S(0)")
    serve = layout(range(8, 16), (2, 4), ["dp", "tp"], "R", "S(1)")
    members = [
        rp.TensorSpec(f"w{n}", (rows, 4096), "bfloat16", train, serve)
        for n, rows in enumerate([64, 64, 1024, 1024, 8192, 8192, 999])
    ]
    plan = rp.compile(rp.ReshardSpec(members, rp.Topology.uniform(16, 4), rp.Options(strategy=strategy)))
    counts = count_cells(plan, find_rows(plan))
    assert counts.nbytes[Kind.PACK].sum() == Workload.of(plan).rank_slots.pack_nbytes.sum()


def test_packing_is_left_out_where_it_would_take_too_long(monkeypatch):
    monkeypatch.setattr("reshard_planner.render.pipeline.packing.MAX_SAMPLED_OPS", 0)
    plan = replicas()
    assert not count_cells(plan, find_rows(plan)).packed
    assert "What ranks pack is not worked out" in words(drawn(plan))


def big(ranks, tensors):
    """Half of the ranks send a shard each to the other half, tensor by tensor."""
    half = ranks // 2
    pair = layout(range(half), (half,), ["tp"], "S(0)"), layout(range(half, ranks), (half,), ["tp"], "S(0)")
    members = [rp.TensorSpec(f"w{n}", (half * 64, 65536), "bfloat16", *pair) for n in range(tensors)]
    return rp.compile(rp.ReshardSpec(members, rp.Topology.uniform(ranks, 8)))


@pytest.mark.parametrize("ranks", [MAX_RANK_ROWS, MAX_RANK_ROWS + 16, 256, 4096])
def test_rows_are_ranks_then_domains_then_several_that_are_alike(ranks):
    plan = big(ranks, 1)
    found = find_rows(plan)
    assert [rank for row in found.rows for rank in row.ranks] == list(range(ranks))
    assert len(found.rows) <= MAX_ROWS
    assert all((len(row.ranks) == 1) == (ranks <= MAX_RANK_ROWS) for row in found.rows)
    assert all(row.holds != row.needs for row in found.rows)
    for number, row in enumerate(found.rows):
        assert (found.row_of[list(row.ranks)] == number).all()


def test_a_rank_with_an_empty_shard_holds_nothing_before():
    over = [rp.Layout(rp.Mesh(list(ranks)), ["S(0)"]) for ranks in (range(4), range(4, 8), [3])]
    tensors = [
        rp.TensorSpec("w", (3, 4), "float32", over[0], over[1]),
        rp.TensorSpec("v", (4, 4), "float32", over[1], over[2]),
    ]
    [row] = [row for row in find_rows(rp.compile(rp.ReshardSpec(tensors))).rows if row.ranks == (3,)]
    assert (row.holds, row.needs) == (False, True)


def test_a_large_plan_has_few_cells_and_a_small_file():
    plan = big(256, 200)
    assert count_cells(plan, find_rows(plan)).slots > MAX_COLUMNS
    counts = count_cells(plan, find_rows(plan))
    kinds, rows, columns = counts.nbytes.shape
    assert kinds == len(Kind)
    assert rows * columns <= MAX_CELLS
    assert columns <= MAX_COLUMNS
    assert counts.nbytes[Kind.INJECT].sum() == plan.certificate.payload.network_nbytes
    assert len(pipeline_svg(plan).encode()) < 1_000_000


# pictures


@given(specs())
def test_every_plan_is_drawn_and_every_cell_says_its_bytes(spec):
    plan = compiled(spec)
    if plan is None:
        return
    rows = find_rows(plan)
    counts = count_cells(plan, rows)
    found = titles(drawn(plan))
    assert len(found) == counts.nbytes.any(axis=0).sum()
    assert all(re.match(r"slots? \d", title) for title in found)


def test_bars_lie_in_their_lanes_and_are_as_high_as_their_bytes():
    plan = replicas()
    root = drawn(plan)
    cells = [group for group in root.iter(SVG + "g") if group.find(SVG + "title").text.startswith("slot 0,")]
    assert len(cells) == 8
    for cell in cells:
        frame, *bars = cell.findall(SVG + "path")
        y, high = (float(each) for each in re.match(r"M\S+ (\S+)h\S+v(\S+)h", frame.get("d")).groups())
        for bar in bars:
            top, tall = (float(each) for each in re.match(r"M\S+ (\S+)h\S+v(\S+)h", bar.get("d")).groups())
            assert y <= top
            assert top + tall <= y + high + 0.2


def test_kinds_differ_in_more_than_their_colour():
    marks = [(look.lines, bool(look.tint)) for look in LOOKS.values()]
    assert len(set(marks)) == len(Kind) == len(marks)
    assert len({look.name for look in LOOKS.values()}) == len(Kind)


def test_the_legend_names_what_the_plan_has_and_nothing_else():
    shown = words(drawn(replicas(strategy="gather-broadcast")))
    for name in ("inject", "relay", "arrive", "fan-out", "handoff", "copy"):
        assert LOOKS[next(kind for kind in Kind if LOOKS[kind].name == name)].meaning in shown
    assert LOOKS[Kind.RELAY].meaning not in words(drawn(replicas()))


def test_names_of_tensors_never_reach_the_picture():
    assert "script" not in pipeline_svg(replicas())


def test_a_plan_without_bytes_says_so():
    nothing = rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1)))
    assert "No bytes move" in words(drawn(nothing))
    assert "Nothing happens" in words(drawn(nothing, Timeline.concatenate([])))


# timelines


def slower(timeline, factor):
    columns = timeline.columns()
    return Timeline(**{**columns, "start_s": columns["start_s"] * factor, "end_s": columns["end_s"] * factor})


def test_predicted_and_measured_timelines_stand_side_by_side_on_one_scale():
    plan = replicas()
    predicted = timeline_of(predict(plan, Costs(1e11)))
    measured = slower(predicted, 2.0)
    root = drawn(plan, predicted, measured)
    ends = {
        group.find(SVG + "title").text.split(":")[0]: float(re.match(r"M(\S+)", path.get("d"))[1])
        for group in root.iter(SVG + "g")
        for path in group.findall(SVG + "path")
        if path.get("class") == "end"
    }
    heads = [
        (element.text.split(":")[0], float(element.get("x")))
        for element in root.iter(SVG + "text")
        if element.get("class") == "head"
    ]
    left = dict(heads)
    assert list(left) == ["predicted", "measured"]
    assert ends["measured"] - left["measured"] == pytest.approx(
        2 * (ends["predicted"] - left["predicted"]), abs=0.3
    )
    shown = titles(root)
    for title in ("predicted", "measured"):
        for lane in ("NIC out", "NIC in", "NVLink", "pack/unpack"):
            assert any(each.startswith(f"{title}: ") and f"\n{lane}: " in each for each in shown)


def test_uses_keep_bytes_and_no_nic_exceeds_its_rate():
    plan = replicas(8)
    rows, ports = find_rows(plan), Ports.of(plan.spec.topology, plan.ranks)
    timeline = timeline_of(predict(plan, Costs(1e11)))
    [use], span_s = measure_uses([("predicted", timeline)], rows, ports, 100)
    assert use.end_s == pytest.approx(span_s)
    moved = use.rate * (span_s / 100)
    network = plan.certificate.payload.network_nbytes
    for lane in (Lane.NIC_OUT, Lane.NIC_IN):
        assert use.nbytes[:, lane].sum() == network
        assert moved[:, lane].sum() == pytest.approx(network)
        assert use.rate[:, lane].max() <= 50e9 * (1 + 1e-9)
    assert moved[:, Lane.NVLINK].sum() == pytest.approx(2 * plan.certificate.payload.nvlink_nbytes)
    assert 0 < use.rate[:, Lane.PACK].max() <= 1 + 1e-9


def test_events_before_the_origin_and_of_unknown_ranks_are_drawn_or_left_out():
    plan = replicas()
    columns = timeline_of(predict(plan)).columns()
    shifted = Timeline(
        **{
            **columns,
            "start_s": columns["start_s"] - 1e-5,
            "end_s": columns["end_s"] - 1e-5,
            "rank": np.where(columns["rank"] == 7, 99, columns["rank"]),
        }
    )
    shown = titles(drawn(plan, None, shifted))
    assert not any("rank 7," in title for title in shown if title.startswith("measured"))
    assert any("rank 6," in title for title in shown if title.startswith("measured"))


def test_columns_join_slots_evenly(monkeypatch):
    monkeypatch.setattr(pipeline_counts, "MAX_COLUMNS", 3)
    plan = replicas()
    rows = find_rows(plan)
    counts = count_cells(plan, rows)
    assert counts.columns <= 3
    assert counts.per_column * counts.columns >= counts.slots > counts.per_column * (counts.columns - 1)
    assert any(title.startswith("slots 0-") for title in titles(drawn(plan)))
