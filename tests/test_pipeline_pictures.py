"""Pipeline pictures show every byte of a plan in its slot, and stay small and safe for any plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from soon import soon
from strategies import specs

import reshard_planner as rp
from reshard_planner.cli import main
from reshard_planner.errors import InputError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.ir.traceread import read_trace
from reshard_planner.render.pipeline import counts as pipeline_counts
from reshard_planner.render.pipeline.counts import MAX_COLUMNS, Work, count_cells
from reshard_planner.render.pipeline.diagram import pipeline_svg
from reshard_planner.render.pipeline.heights import find_heights
from reshard_planner.render.pipeline.marks import LOOKS, WIDTH
from reshard_planner.render.pipeline.rows import MAX_ROWS, find_rows
from reshard_planner.render.pipeline.scales import full_height
from reshard_planner.render.pipeline.slots import draw_slots, slots_of
from reshard_planner.render.pipeline.themes import DARK, LIGHT, TINTED
from reshard_planner.render.pipeline.times import PanelLane, TimelineUse, measure_uses, nic_rate
from reshard_planner.render.places import RankFacts, choose_places, place_numbers
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
    works = {Role.INJECT: Work.INJECT, Role.RELAY: Work.RELAY, Role.FANOUT: Work.FANOUT}
    works |= {Role.HANDOFF: Work.HANDOFF, Role.COPY: Work.COPY}
    for src, dst, role, medium, slot, nbytes in zip(
        ops.src, ops.dst, ops.role, ops.medium, ops.slot, ops.nbytes, strict=True
    ):
        column = slot // counts.per_column
        expected[works[Role(role)], rows.row_of[src], column] += nbytes
        if medium == Medium.NETWORK:
            expected[Work.ARRIVE, rows.row_of[dst], column] += nbytes
    work = Workload.of(plan).rank_slots
    np.add.at(expected[Work.PACK], (rows.row_of[work.rank], work.slot // counts.per_column), work.pack_nbytes)
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
    assert counts.nbytes[Work.PACK].sum() == Workload.of(plan).rank_slots.pack_nbytes.sum()


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


@pytest.mark.parametrize("ranks", [MAX_ROWS, MAX_ROWS + 16, 256, 4096])
def test_rows_are_ranks_then_domains_then_several_that_are_alike(ranks):
    plan = big(ranks, 1)
    found = find_rows(plan)
    assert [rank for row in found.places for rank in row.ranks] == list(range(ranks))
    assert len(found) <= MAX_ROWS
    assert all((len(row.ranks) == 1) == (ranks <= MAX_ROWS) for row in found.places)
    assert all(row.holds != row.needs for row in found.places)
    for number, row in enumerate(found.places):
        assert (found.row_of[list(row.ranks)] == number).all()


def test_a_rank_with_an_empty_shard_holds_nothing_before():
    over = [rp.Layout(rp.Mesh(list(ranks)), ["S(0)"]) for ranks in (range(4), range(4, 8), [3])]
    tensors = [
        rp.TensorSpec("w", (3, 4), "float32", over[0], over[1]),
        rp.TensorSpec("v", (4, 4), "float32", over[1], over[2]),
    ]
    [row] = [row for row in find_rows(rp.compile(rp.ReshardSpec(tensors))).places if row.ranks == (3,)]
    assert (row.holds, row.needs) == (False, True)


def test_a_large_plan_has_few_cells_and_a_small_file():
    plan = big(256, 200)
    assert count_cells(plan, find_rows(plan)).slots > MAX_COLUMNS
    counts = count_cells(plan, find_rows(plan))
    works, rows, columns = counts.nbytes.shape
    assert works == len(Work)
    assert rows <= MAX_ROWS
    assert columns <= MAX_COLUMNS
    assert counts.nbytes[Work.INJECT].sum() == plan.certificate.payload.network_nbytes
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
    marks = [(look.lines, work in TINTED) for work, look in LOOKS.items()]
    assert len(set(marks)) == len(Work) == len(marks)
    assert len({look.name for look in LOOKS.values()}) == len(Work)


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_and_bars_stand_out_in_both_themes(theme):
    for ground in (theme.paper, theme.band):
        assert contrast(theme.ink, ground) >= 4.5
        assert contrast(theme.faint, ground) >= 4.5
    for ground, lines in theme.bars.values():
        assert contrast(ground, lines) >= 1.9
    assert set(theme.bars) == set(Work)


def test_the_viewers_preference_chooses_the_theme():
    style = drawn(replicas()).find(SVG + "style").text
    light, dark = style.split("@media (prefers-color-scheme:dark)")
    for rules, theme in ((light, LIGHT), (dark, DARK)):
        for said in (
            f".paper{{fill:{theme.paper}}}",
            f" text{{fill:{theme.ink}}}",
            f".faint{{fill:{theme.faint}}}",
        ):
            assert said in rules
    assert DARK.ink not in light


@pytest.mark.parametrize("ranks", [16, 4096])
def test_no_text_is_small_or_leaves_the_picture_or_meets_another_line(ranks):
    plan = big(ranks, 3)
    timeline = timeline_of(predict(plan, Costs(1e11)))
    root = drawn(plan, timeline, slower(timeline, 2.0))
    sizes = [int(size) for size in re.findall(r"font-size:(\d+)px", root.find(SVG + "style").text)]
    assert min(sizes) >= 11
    lines, names, lanes = [], [], []
    for element in root.iter(SVG + "text"):
        wide = {"title": 10, "head": 8.5}.get(element.get("class"), 6.2) * len(element.text)
        shift = {"end": wide, "middle": wide / 2}.get(element.get("text-anchor"), 0)
        left = float(element.get("x")) - shift
        assert left >= 0
        assert left + wide <= WIDTH + 20
        y = float(element.get("y"))
        if element.get("x") == "8":
            lines.append(y)
            if element.text.startswith(("rank", "domain")):
                names.append((y, left + wide))
        elif element.get("text-anchor") == "end":
            lanes.append((y, left))
    assert len(lines) > 20
    assert all(after - before >= 12 for before, after in pairwise(lines))
    assert all(end < begin for one, end in names for other, begin in lanes if abs(one - other) < 12)


@given(st.lists(st.lists(st.integers(0, 1000), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_full_bar_is_the_largest_or_twice_what_is_usual(rows):
    values = np.array(rows)
    full = full_height(values)
    peaks = sorted(peak for peak in values.max(axis=0).tolist() if peak)
    if not peaks:
        assert full == 0
        return
    above = [peak for peak in peaks if peak > full]
    assert len(above) <= len(peaks) / 2
    if above:
        assert full == 2 * peaks[(len(peaks) - 1) // 2]
        assert peaks[-1] > 1.5 * full
    else:
        assert full == peaks[-1]


def test_what_is_three_times_as_usual_still_has_its_height():
    assert full_height(np.array([[1.0, 1.0, 3.0]])) == 3
    assert full_height(np.array([[1.0, 1.0, 3.01]])) == 2


def test_one_slot_far_above_all_others_leaves_them_their_height_and_is_marked():
    plan = big(16, 40)
    rows = find_rows(plan)
    counts = count_cells(plan, rows)
    outlier = counts.nbytes.copy()
    outlier[:, :, 3] *= 500

    def heights(of):
        parts, _ = draw_slots(rows, of, 0.0)
        root = ET.fromstring(f"<svg>{''.join(parts)}</svg>")  # noqa: S314 - our own text
        bars, clipped = {}, set()
        for group in root.iter("g"):
            slot = group.find("title").text.split(",")[0]
            for path in group.findall("path"):
                if path.get("class") == "k0":
                    bars[slot] = float(re.match(r"M\S+ \S+h\S+v(\S+)h", path.get("d"))[1])
                elif path.get("class") == "zigzag":
                    clipped.add(slot)
        return bars, clipped

    before, whole = heights(counts)
    after, clipped = heights(replace(counts, nbytes=outlier))
    marked = slots_of(counts, 3)
    assert (whole, clipped) == (set(), {marked})
    assert max(before.values()) == after[marked]
    for slot, high in before.items():
        if slot != marked:
            assert after[slot] >= high / 2 - 0.1


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_every_rank_is_in_one_place_with_its_domain_and_only_alike_domains_are_joined(ranks, most, places):
    domain, holds, needs = (np.array(column) for column in zip(*ranks, strict=True))
    facts = RankFacts(domain.astype(np.int64) * 3, holds, needs)
    found = choose_places(range(len(ranks)), facts, most_ranks=most, most_places=places)
    assert sorted(rank for place in found for rank in place.ranks) == list(range(len(ranks)))
    numbers = place_numbers(found, len(ranks) + 1)
    assert numbers[-1] == -1
    whole = choose_places(range(len(ranks)), facts, most_ranks=0, most_places=len(ranks))
    for number, place in enumerate(found):
        members = list(place.ranks)
        assert (numbers[members] == number).all()
        assert place.domains == tuple(sorted(set(facts.domain[members].tolist())))
        assert (place.holds, place.needs) == (holds[members].any(), needs[members].any())
        if len(ranks) <= most:
            assert len(place.ranks) == 1
        else:
            inside = [each for each in whole if set(each.ranks) <= set(place.ranks)]
            assert sum(len(each.ranks) for each in inside) == len(place.ranks)
            assert len({(each.holds, each.needs) for each in inside}) == 1
    if len(ranks) > most:
        kinds = {(each.holds, each.needs) for each in whole}
        assert len(found) <= max(places, len(kinds))


def test_the_legend_names_what_the_plan_has_and_nothing_else():
    shown = words(drawn(replicas(strategy="gather-broadcast")))
    for name in ("inject", "relay", "arrive", "fan-out", "handoff", "copy"):
        assert LOOKS[next(work for work in Work if LOOKS[work].name == name)].meaning in shown
    assert LOOKS[Work.RELAY].meaning not in words(drawn(replicas()))


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


def test_a_run_that_packs_in_no_time_says_so_and_has_no_empty_lane():
    plan = replicas()
    free, at_a_rate = (drawn(plan, timeline_of(predict(plan, costs))) for costs in (Costs(), Costs(1e11)))
    note = "Packing and unpacking are taken as free in the predicted run: no rate of packing was given."
    assert note in words(free)
    assert note not in words(at_a_rate)
    assert not any("pack/unpack" in each for each in (*titles(free), words(free)))
    assert any("pack/unpack" in each for each in titles(at_a_rate))


def areas(root, title):
    """Heights of the parts of all areas of a panel, and whether any is marked as above full height.

    What marks mean is said where there are any.
    """
    found, above = [], False
    for group in root.iter(SVG + "g"):
        if group.find(SVG + "title").text.startswith(f"{title}: rank"):
            for path in group.findall(SVG + "path"):
                if path.get("class").endswith(" area"):
                    base = float(re.match(r"M\S+ ([\d.]+)V", path.get("d"))[1])
                    found += [base - float(y) for y in re.findall(r"V([\d.]+)H", path.get("d"))]
                above |= path.get("class") == "over"
    assert above == ("it was above full height" in words(root))
    return found, above


def test_a_run_many_times_as_long_has_its_own_scales_and_looks_alike():
    plan = replicas()
    predicted = timeline_of(predict(plan, Costs(1e11)))
    near, far = (drawn(plan, predicted, slower(predicted, factor)) for factor in (2.0, 1000.0))
    assert "has its own scale" not in words(near)
    assert "has its own scale" in words(far)
    assert areas(far, "predicted")[0] == areas(drawn(plan, predicted), "predicted")[0]
    assert max(areas(near, "measured")[0]) > 3
    assert max(areas(far, "measured")[0]) > 10
    assert "% of the row's NICs, 50 GB/s (measured)" in words(far)


def test_a_moment_far_above_the_others_leaves_them_their_height_and_is_marked():
    count = 100
    start_s = np.arange(count) * 1e-3

    def panel(nbytes):
        sends = [Activity.SEND] * count, [Medium.NVLINK] * count, [0] * count, [5] * count
        timeline = Timeline([4] * count, *sends, nbytes, start_s, start_s + 1e-3)
        return areas(drawn(replicas(), None, timeline), "measured")

    usual, marked = panel([10**6] * count)
    assert (usual, marked) == ([13], False)
    unusual, marked = panel([10**6] * 50 + [10**9] + [10**6] * 49)
    assert marked
    assert min(unusual) == pytest.approx(6.5, abs=0.1)
    assert max(unusual) == 13

    nearly, marked = panel([10**6] * 50 + [3_500_000] + [10**6] * 49)
    assert marked
    assert sorted(set(nearly)) == [6.5, 13]


def test_t_star_stands_where_its_time_is():
    plan = replicas()
    timeline = timeline_of(predict(plan, Costs(1e11)))
    root = drawn(plan, timeline)
    [left] = [float(each.get("x")) for each in root.iter(SVG + "text") if each.get("class") == "head"]
    at = {
        path.get("class"): float(re.match(r"M(\S+)", path.get("d"))[1]) - left
        for path in root.iter(SVG + "path")
        if path.get("class") in ("end", "bound")
    }
    share = plan.certificate.bound.time_s / float(timeline.end_s.max())
    assert 0.2 < share < 1
    assert at["bound"] / at["end"] == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(("share", "factor"), [(0.05, 0.05), (0.1, 1.0), (0.5, 1.0), (1.0, 1.0), (1.5, 1.5)])
def test_nics_fill_their_lane_at_their_rate_unless_runs_are_far_from_it(share, factor):
    plan = replicas()
    rows, ports = find_rows(plan), Ports.of(plan.spec.topology, plan.ranks)
    rate = np.zeros((len(rows), len(PanelLane), 10))
    for at in range(len(rows)):
        rate[at, PanelLane.NIC_OUT] = share * nic_rate(rows, ports, at)
    use = TimelineUse("measured", 1.0, 1.0, rate, rate[..., 0].astype(np.int64))
    assert find_heights(rows, ports, [use]).factor[PanelLane.NIC_OUT] == pytest.approx(factor)


@given(st.floats(1e-3, 1e12))
def test_nvlink_fills_its_lane_at_the_rate_that_is_usual_whatever_that_is(rate_of_rank):
    plan = replicas()
    rows, ports = find_rows(plan), Ports.of(plan.spec.topology, plan.ranks)
    rate = np.zeros((len(rows), len(PanelLane), 10))
    rate[:, PanelLane.NVLINK] = rate_of_rank
    use = TimelineUse("measured", 1.0, 1.0, rate, rate[..., 0].astype(np.int64))
    assert find_heights(rows, ports, [use]).factor[PanelLane.NVLINK] == pytest.approx(rate_of_rank)


def test_uses_keep_bytes_and_no_nic_exceeds_its_rate():
    plan = replicas(8)
    rows, ports = find_rows(plan), Ports.of(plan.spec.topology, plan.ranks)
    timeline = timeline_of(predict(plan, Costs(1e11)))
    [use] = measure_uses([("predicted", timeline)], rows, ports, 100)
    assert use.end_s == pytest.approx(use.span_s)
    moved = use.rate * (use.span_s / 100)
    network = plan.certificate.payload.network_nbytes
    for lane in (PanelLane.NIC_OUT, PanelLane.NIC_IN):
        assert use.nbytes[:, lane].sum() == network
        assert moved[:, lane].sum() == pytest.approx(network)
        assert use.rate[:, lane].max() <= 50e9 * (1 + 1e-9)
    assert moved[:, PanelLane.NVLINK].sum() == pytest.approx(2 * plan.certificate.payload.nvlink_nbytes)
    assert 0 < use.rate[:, PanelLane.PACK].max() <= 1 + 1e-9


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


# from the command line

TWO_TENSORS = """\
version: 1
meshes:
  train: {ranks: "0-3", axes: {tp: 4}}
  serve: {ranks: [[4, 5], [6, 7]], axes: [dp, tp]}
topology: {gpus_per_domain: 4}
tensors:
  - {name: layers.0.w, shape: [64, 64], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
  - {name: layers.1.w, shape: [64, 64], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(TWO_TENSORS)
    return path


def draw(capsys, *arguments):
    """Exit code and stderr of the verb."""
    code = main(["draw", *map(str, arguments)])
    return code, capsys.readouterr().err


def test_a_measured_trace_is_drawn_beside_the_prediction(plan, tmp_path, capsys):
    loaded = rp.Plan.load(plan)
    timeline = slower(timeline_of(predict(loaded, Costs(1e11))), 3.0)
    trace, picture = tmp_path / "profile.json", tmp_path / "p.svg"
    notes = {"digest": loaded.digest, "repeat": 1, "elapsed_s": 1.0}
    trace.write_bytes(chrome_trace(timeline, notes=notes, topology=loaded.spec.topology))
    options = ("-o", picture, "--picture", "pipeline", "--predicted", "--measured", trace)
    assert draw(capsys, plan, *options) == (0, "")
    root = ET.fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 - our own text
    heads = [each.text.split(":")[0] for each in root.iter(SVG + "text") if each.get("class") == "head"]
    assert heads == ["predicted", "measured"]
    predicted = timeline_of(predict(loaded))
    picture_of_values = pipeline_svg(loaded, predicted, read_trace(trace).timeline)
    assert picture.read_text(encoding="utf-8") == picture_of_values


def test_traces_that_do_not_fit_are_refused_in_one_sentence(plan, spec, tmp_path, capsys):
    loaded = rp.Plan.load(plan)
    trace, picture = tmp_path / "profile.json", tmp_path / "p.svg"
    data = chrome_trace(timeline_of(predict(loaded)), notes={"digest": loaded.digest})
    options = ("-o", picture, "--picture", "pipeline", "--measured", trace)
    foreign = json.dumps({"traceEvents": [{"ph": "B", "name": "n" * 10_000, "pid": 1, "tid": 1, "ts": 0}]})
    predicted = chrome_trace(timeline_of(predict(loaded)), notes={"predicted": True})
    for given_data, said in (
        (data[:-9], "is no trace that this project wrote"),
        (foreign.encode(), "has no field 'timeline'"),
        (predicted, "is of a predicted run"),
        (None, "cannot be read: No such file"),
    ):
        trace.unlink(missing_ok=True)
        if given_data is not None:
            trace.write_bytes(given_data)
        code, err = draw(capsys, plan, *options)
        assert (code, err.count("\n")) == (2, 1)
        assert f"trace {trace} {said}" in err
    trace.write_bytes(data)
    code, err = draw(capsys, spec, *options, "--strategy", "direct")
    assert code == 2
    assert "is of a plan with digest" in err
    odd_name = trace.rename(tmp_path / "profile.svg")
    code, err = draw(capsys, plan, "-o", odd_name, "--picture", "pipeline", "--measured", odd_name)
    assert (code, odd_name.read_bytes()) == (2, data)
    assert "is the file that is read" in err
    assert not picture.exists()


def test_a_spec_is_drawn_by_any_strategy(spec, plan, tmp_path, capsys):
    picture = tmp_path / "p.svg"
    for strategy in ("direct", "gather-broadcast"):
        options = ("-o", picture, "--picture", "pipeline", "--strategy", strategy)
        assert draw(capsys, spec, *options) == (0, "")
        assert f"strategy {strategy}:" in picture.read_text(encoding="utf-8")
        code, err = draw(capsys, plan, *options)
        assert code == 2
        assert "--strategy" in err


@pytest.mark.parametrize("picture", ["layouts", "transfers"])
def test_a_tensor_that_is_none_is_refused_with_the_nearest_names(plan, tmp_path, capsys, picture):
    name = "nope" * 2_000
    for given_name in ("layers.7.w", name):
        code, err = draw(capsys, plan, "-o", tmp_path / "p.svg", "--picture", picture, "--tensor", given_name)
        assert (code, err.count("\n")) == (2, 1)
        assert "the nearest: " in err
        assert "'layers." in err
        assert len(err) < 500


def test_a_plan_without_tensors_has_no_layouts_to_draw(tmp_path, capsys):
    plan = tmp_path / "none.reshard"
    rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1))).save(plan)
    for options in ((), ("--tensor", "w")):
        code, err = draw(capsys, plan, "-o", tmp_path / "l.svg", "--picture", "layouts", *options)
        assert code == 2
        assert "the plan has no tensor whose layouts could be drawn" in err
    assert draw(capsys, plan, "-o", tmp_path / "p.svg", "--picture", "pipeline", "--predicted") == (0, "")


def test_four_thousand_gpus_are_drawn_within_seconds():
    plan = big(4096, 1)
    with soon(5):
        assert len(pipeline_svg(plan)) < 100_000
