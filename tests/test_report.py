"""The HTML report: its sums are those of the plan, its words fit, its text is safe, and the verb says no."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import given
from mutations import reseal
from soon import soon
from strategies import specs
from test_cli import assert_refused, call, result

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.bounds.cut import CUT_KINDS, RESOURCES
from reshard_planner.cli import each
from reshard_planner.cli.verbs import report as report_verb
from reshard_planner.compiler import outline
from reshard_planner.errors import ReshardError
from reshard_planner.intset import parse_ints
from reshard_planner.ir import timeline as events
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.forms import save_as
from reshard_planner.ir.porttimes import PortTimes
from reshard_planner.ir.ranknumbers import RankNumbers
from reshard_planner.ir.timeline import Activity
from reshard_planner.render.hops.choice import Choice
from reshard_planner.render.hops.lines import LINES
from reshard_planner.render.hops.scene import set_scene
from reshard_planner.render.pipeline.counts import Work
from reshard_planner.render.pipeline.themes import DARK
from reshard_planner.render.report import Alternative, hopdata, report_html
from reshard_planner.render.report import ports as ports_module
from reshard_planner.render.report.document import MAX_NAME
from reshard_planner.render.report.edges import EdgeTensors, FlowSums
from reshard_planner.render.report.hopdata import MAX_GRAPHS, picture_edges, tensor_graphs
from reshard_planner.render.report.loads import LANES, MAX_PLACES, measure_loads, sum_by_nic
from reshard_planner.render.report.pairs import pair_data
from reshard_planner.render.report.pictures import DARK_SCREENS, draw_pictures, element
from reshard_planner.render.report.ports import alike_domains, binding_lane, port_loads
from reshard_planner.render.report.sections import HALO, LEAST_TEXT, SIZE, explained
from reshard_planner.render.report.timeline import (
    FULL,
    MAX_BINS,
    MAX_ROWS,
    MEASURED,
    PACKING,
    PREDICTED,
    SCHEDULED,
    find_timeline,
)
from reshard_planner.render.report.words import GLOSSARY, claims
from reshard_planner.render.text import format_nbytes, format_s
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import Costs, predict, timeline_of
from reshard_planner.topology import Link, Pod
from reshard_planner.transfer import Medium

SPEC = """\
version: 1
meshes:
  train: {ranks: "0-3", axes: {tp: 4}}
  serve: {ranks: [[4, 5], [6, 7]], axes: [dp, tp]}
topology: {gpus_per_domain: 4}
tensors:
  - {name: w, shape: [64, 64], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
  - {name: norm, shape: [64], dtype: float32,
     src: {mesh: train, placements: [R]}, dst: {mesh: serve, placements: [R, R]}}
"""

NAMES = (
    "</script><script>document.title = 1</script>",
    '<img src="x" onerror="document.title = 1">',
    "</style><svg onload=alert(1)>",
    "<!--",
    "</template></textarea></title>",
    "\"'`&amp;\\",
    "a\nb\r\N{LINE SEPARATOR}\x00",
    "\N{RIGHT-TO-LEFT OVERRIDE}txt.\N{ARABIC LETTER ALEF}",
    "x" * 10_000,
    HOSTILE_NAME,
)
"""Names with all that could end an element, an attribute or a string."""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def hostile_plan():
    before = rp.Layout(rp.Mesh([0, 1], ["<b>"]), ["S(0)"])
    after = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ['"', "</svg>"]), ["R", "S(1)"])
    tensors = [
        rp.TensorSpec(name, (4 * at + 4, 6), "bfloat16", before, after) for at, name in enumerate(NAMES)
    ]
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 2)))


class Page(HTMLParser):
    """What a browser would make of a page: elements, attributes, and the content of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], []
        self.feed(text)
        self.close()
        [self.data] = [json.loads(content) for kind, content in self.scripts if kind == "application/json"]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)
        if tag == "script":
            self.scripts.append([dict(attrs).get("type"), ""])

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.cdata_elem == "script":
            self.scripts[-1][1] += data
        else:
            self.text.append(data)


# ------------------------------------------------------------------------------------ sums


def check_sums(plan):
    """Loads are what adding up operations one by one gives, by port, by tensor and by pair."""
    scene, ops = set_scene(plan, Choice()), plan.ops()
    edges = picture_edges(scene)
    loads = measure_loads(plan, 7, edges)
    number = {rank: at for at, rank in enumerate(loads.ranks.tolist())}
    place_of = {rank: at for at, place in enumerate(loads.flows.places) for rank in place.ranks}
    lanes, moved = np.zeros_like(loads.lanes), np.zeros_like(loads.moved)
    slots, flows, behind = {}, Counter(), Counter()
    for row in zip(ops.src, ops.dst, ops.medium, ops.role, ops.slot, ops.tensor, ops.nbytes, strict=True):
        src, dst, medium, role, slot, tensor, nbytes = map(int, row)
        moved[medium, tensor] += nbytes
        slots.setdefault(tensor, []).append(slot)
        flows[place_of[src], place_of[dst], medium, role] += nbytes
        [edge] = [at for at, edge in enumerate(edges) if carries(edge, src, dst, medium, role)]
        behind[edge, tensor] += nbytes
        if medium != Medium.LOCAL:
            span = int(np.searchsorted(loads.bins, slot, side="right")) - 1
            first = 0 if medium == Medium.NETWORK else 2
            lanes[first, number[src], span] += nbytes
            lanes[first + 1, number[dst], span] += nbytes
    assert np.array_equal(lanes, loads.lanes)
    assert np.array_equal(moved, loads.moved)
    for tensor, used in slots.items():
        assert (loads.first_slot[tensor], loads.last_slot[tensor]) == (min(used), max(used))
    found = loads.flows
    columns = (found.src, found.dst, found.medium, found.role)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    assert dict(zip(keys, found.nbytes.tolist(), strict=True)) == dict(+flows)
    for number_of_edge in range(len(edges)):
        largest = loads.edges.largest(number_of_edge, 100)
        mine = {at: total for (edge, at), total in (+behind).items() if edge == number_of_edge}
        assert dict(largest) == mine
        assert [nbytes for _, nbytes in largest] == sorted((nbytes for _, nbytes in largest), reverse=True)
    check_slots(plan, loads, ops)
    check_pairs(plan, loads, ops)
    check_ports(plan, loads, ops)
    check_graphs(plan, ops)
    return loads


def carries(edge, src, dst, medium, role):
    return src in edge.src and dst in edge.dst and (medium, role) == (edge.medium, edge.role)


def port_counts(plan, loads, ops):
    """Bytes and rate of every port by its name, and its bytes in each slot, from operations alone."""
    topology, ports = plan.spec.topology, loads.ports
    counts, rates, by_slot = Counter(), {}, Counter()
    for row in zip(ops.src, ops.dst, ops.medium, ops.slot, ops.nbytes, strict=True):
        src, dst, medium, slot, nbytes = map(int, row)
        for way, rank in (("out", src), ("in", dst)):
            used = []
            if medium == Medium.NVLINK:
                used.append((f"nvlink of rank {rank}, {way}", ports.nvlink_bytes_per_s[rank]))
            if medium == Medium.NETWORK:
                gpu = topology.gpu_of(rank)
                mine = [nic for nic in topology.nics if gpu in nic.gpus]
                rate = sum(nic.link.bytes_per_s for nic in mine)
                used.append((f"{ports.nic_name[ports.nic_group[rank]]}, {way}", rate))
                if ports.pod[src] != ports.pod[dst] and ports.pod[rank] >= 0:
                    name = f"uplink of pod {ports.pod[rank]}, {way}"
                    used.append((name, topology.pods[ports.pod[rank]].uplink.bytes_per_s))
            for name, rate in used:
                counts[name] += nbytes
                rates[name] = int(rate)
                by_slot[slot, name] += nbytes
    return +counts, rates, by_slot


def port_names(plan, loads, rank):
    """Names of all ports that bytes of a rank may pass."""
    ports, domain = loads.ports, int(loads.ports.domain[rank])
    names = [f"nvlink of rank {rank}"]
    if ports.nic_group[rank] >= 0:
        names.append(ports.nic_name[ports.nic_group[rank]])
    names += [
        f"uplink of pod {at}" for at, pod in enumerate(plan.spec.topology.pods) if domain in pod.domains
    ]
    return {f"{name}, {way}" for name in names for way in ("out", "in")}


def check_slots(plan, loads, ops):
    """Slots end with the last that occurs; each takes as long as its busiest port, and a start-up time."""
    assert len(loads.begin_s) == int(ops.slot.max(initial=-1)) + 2
    _, rates, by_slot = port_counts(plan, loads, ops)
    times = np.zeros(len(loads.begin_s) - 1)
    for (slot, name), nbytes in by_slot.items():
        times[slot] = max(times[slot], nbytes / rates[name] + plan.spec.topology.alpha_s if nbytes else 0.0)
    assert np.diff(loads.begin_s) == pytest.approx(times, rel=1e-9, abs=1e-15)
    assert loads.begin_s[-1] == pytest.approx(plan.certificate.schedule.time_s)


def check_pairs(plan, loads, ops):
    """What moves from rank to rank is there, pair by pair."""
    pairs = pair_data(plan, loads)
    found = Counter()
    for kind, begin, end in zip(pairs["kinds"], pairs["starts"], pairs["starts"][1:], strict=False):
        for at in range(begin, end):
            found[pairs["src"][at], pairs["dst"][at], *kind] += pairs["nbytes"][at]
    sums = Counter()
    for src, dst, medium, role, nbytes in zip(
        *(column.tolist() for column in (ops.src, ops.dst, ops.medium, ops.role, ops.nbytes)), strict=True
    ):
        sums[src, dst, medium, role] += nbytes
    assert +found == +sums


def check_ports(plan, loads, ops):
    """Every port that carries anything is there, with its bytes and rate, the busiest first."""
    found = port_loads(loads)
    counts, rates, _ = port_counts(plan, loads, ops)
    assert {port.name: port.nbytes for port in found} == dict(counts)
    assert {port.name: port.bytes_per_s for port in found} == {name: rates[name] for name in counts}
    assert {port.name: port.ranks for port in found} == {
        name: tuple(rank for rank in loads.ranks.tolist() if name in port_names(plan, loads, rank))
        for name in counts
    }
    times = [port.time_s for port in found]
    assert times == sorted(times, reverse=True)
    certificate = plan.certificate
    for kind, claim in (
        ("NIC", certificate.busiest_nic),
        ("NVLink", certificate.busiest_nvlink),
        ("uplink", certificate.busiest_uplink),
    ):
        mine = [port for port in found if port.kind.startswith(kind)]
        assert max((port.time_s for port in mine), default=0.0) == pytest.approx(claim.time_s)
        if claim.nbytes:
            assert claim.resource in {port.name for port in mine}


def check_graphs(plan, ops):
    """The diagram of a tensor has its transfers, pair by pair."""
    drawn = tensor_graphs(plan, range(len(plan.spec.tensors)))
    for tensor, number in enumerate(drawn.graph_of):
        graph = drawn.graphs[number]
        place_of = {rank: at for at, place in enumerate(graph["places"]) for rank in parse_ints(place[1])}
        sums, rows = Counter(), {}
        for at in np.flatnonzero((ops.tensor == tensor) & (ops.nbytes > 0)).tolist():
            key = (
                place_of.get(ops.src[at]),
                place_of.get(ops.dst[at]),
                int(ops.medium[at]),
                int(ops.role[at]),
            )
            sums[key] += int(ops.nbytes[at])
            rows.setdefault(key, set()).add(int(ops.row[at]))
        flows = {tuple(flow[:4]): tuple(flow[4:]) for flow in graph["flows"]}
        assert flows == {key: (len(rows[key]), sums[key]) for key in sums}


@pytest.mark.parametrize("name", sample_plans())
def test_sums_are_those_of_all_operations(name):
    check_sums(sample_plans()[name])


@given(specs())
def test_sums_are_those_of_all_operations_for_any_spec(spec):
    try:
        plan = rp.compile(spec)
    except ReshardError:
        return
    check_sums(plan)


def plus_one(self, *columns):
    """Operations with a byte more."""
    return ORIGINALS[type(self)](self, *columns[:-1], columns[-1] + 1)


def swapped(self, src, dst, *columns):
    """Operations the other way around."""
    return ORIGINALS[type(self)](self, dst, src, *columns)


def next_tensor(self, src, dst, medium, role, tensor, nbytes):
    return ORIGINALS[EdgeTensors](self, src, dst, medium, role, (tensor + 1) % len(self.column), nbytes)


def first_slot_only(self, network, nvlink, uplink):
    return 0 * BUSIEST(self, network, nvlink, uplink) + BUSIEST(self, network, nvlink, uplink)[0]


def without_nvlink(self, network, nvlink, uplink):
    return BUSIEST(self, network, 0 * nvlink, uplink)


def ranks_of_the_first(self, *columns):
    """As if no ranks were renamed."""
    src, dst = columns[-2:]
    return self.names[0, src], self.names[0, dst]


def all_alike(_, tensors):
    """As if all tensors moved alike."""
    return iter([()] * len(tensors))


def all_of_their_chunks(plan, tensors):
    """As if no chunks were left out."""
    for group, bits, parts, _ in MOVES_ALIKE(plan, tensors):
        yield group, bits, parts


ORIGINALS = {FlowSums: FlowSums.add, EdgeTensors: EdgeTensors.add}
BUSIEST = PortTimes.busiest_s
MOVES_ALIKE = hopdata._moves_alike  # noqa: SLF001 - mutated below

MUTATIONS = (
    (FlowSums, "add", plus_one),
    (FlowSums, "add", swapped),
    (EdgeTensors, "add", plus_one),
    (EdgeTensors, "add", swapped),
    (EdgeTensors, "add", next_tensor),
    (PortTimes, "busiest_s", first_slot_only),
    (PortTimes, "busiest_s", without_nvlink),
    (RankNumbers, "ends", ranks_of_the_first),
    (hopdata, "_moves_alike", all_alike),
    (hopdata, "_moves_alike", all_of_their_chunks),
    (ports_module, "sum_by_nic", lambda loads, ranks, ports: sum_by_nic(loads[::-1], ranks, ports)),
)


@pytest.mark.parametrize(("where", "name", "mutation"), MUTATIONS)
def test_wrong_sums_are_noticed(monkeypatch, where, name, mutation):
    monkeypatch.setattr(where, name, mutation)
    caught = 0
    for plan in mutable_plans():
        try:
            check_sums(plan)
        except AssertionError:
            caught += 1
    assert caught


@cache
def mutable_plans():
    """A plan with all media in several slots, one whose tensors take turns, and one whose NVLink is slow."""
    before, after = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2, 3]), ["S(1)"])
    later = rp.Layout(rp.Mesh([4, 5]), ["S(0)"]), rp.Layout(rp.Mesh([6, 7]), ["S(1)"])
    layouts = ((before, after), later) * 2
    stages = [rp.TensorSpec(f"w{at}", (64, 64), "bfloat16", *pair) for at, pair in enumerate(layouts)]
    spec = rp.ReshardSpec(stages, rp.Topology.uniform(8, 2))
    return (
        sample_plans()["optimal"],
        rp.compile(spec),
        rp.compile(spec_of_slow_nvlink()),
        *(plan_without_a_chunk(), plan_with_pods()),
    )


def plan_without_a_chunk():
    """Two tensors that are alike, of one of which a chunk is left out: what a part of a run would do."""
    before, after = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2, 3]), ["S(1)"])
    tensors = [rp.TensorSpec(name, (8192, 8192), "bfloat16", before, after) for name in ("a", "b")]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(4, 2)))
    schedule = plan.schedule
    assert (schedule.n_chunks > 1).any()
    left_out = np.flatnonzero((schedule.tensor == 1) & (schedule.n_chunks > 1))[0]
    columns = {name: np.delete(column, left_out) for name, column in schedule.columns().items()}
    tables = replace(plan.tables, schedule=type(schedule).of(columns))
    return reseal(plan, tables)


def spec_of_slow_nvlink():
    domains = rp.Topology.uniform(4, 4).domains
    slow = tuple(replace(domain, link=Link(10**6, 1.0, 0.0)) for domain in domains)
    before, after = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2, 3]), ["S(1)"])
    topology = rp.Topology(slow, rp.Topology.uniform(4, 4).nics)
    return rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "bfloat16", before, after)], topology)


def plan_with_pods():
    """From one pod of two domains to another."""
    domains, link = rp.Topology.uniform(8, 2), Link(10**9, 1.0, 0.0)
    pods = (Pod((0, 1), link), Pod((2, 3), link))
    topology = rp.Topology(domains.domains, domains.nics, pods=pods)
    before, after = rp.Layout(rp.Mesh([0, 2]), ["S(0)"]), rp.Layout(rp.Mesh([4, 6]), ["S(1)"])
    return rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", before, after)], topology))


def test_uplinks_of_pods_are_ports():
    loads = check_sums(plan_with_pods())
    assert loads.uplink.tolist() == [[128, 0], [0, 128]]


def amounts(loads, timeline, lane, at):
    """Bytes of one rank that the cells of a timeline stand for, and how far rounding may be off."""
    rate = loads.ports.nvlink_bytes_per_s[loads.ranks[at]]
    if timeline.lanes[lane][1].startswith("NIC"):
        rate = loads.ports.nic_bytes_per_s[loads.ports.nic_group[loads.ranks[at]]]
    room = np.diff(timeline.edges_s) * rate / FULL
    cells = timeline.cells[lane, at].astype(float)
    return (cells * room).sum(), (room * (cells > 0)).sum() + 1e-6 * (room * FULL).sum()


def measured_run(plan, times=1.25):
    """Events of a run that takes longer than predicted, which begins before its origin."""
    events = timeline_of(predict(plan, Costs(pack_bytes_per_s=10**12)))
    first_s = 1e-5
    return replace(events, start_s=events.start_s * times - first_s, end_s=events.end_s * times - first_s)


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("measured", [False, True])
def test_cells_of_the_timeline_hold_all_bytes(spec, predicted, measured):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    loads = measure_loads(plan, MAX_BINS)
    run = measured_run(plan) if measured else None
    timeline = find_timeline(plan, loads, predict(plan) if predicted else None, run)
    first = [(0, name) for name in LANES]
    assert timeline.lanes == (*first, *((1, name) for name in (*LANES, PACKING) if measured))
    assert [kind for kind, _ in timeline.runs] == [PREDICTED if predicted else SCHEDULED, MEASURED][
        : 1 + measured
    ]
    assert timeline.elapsed_s == pytest.approx(max(time_s for _, time_s in timeline.runs))
    assert timeline.rows == tuple((rank,) for rank in range(8))
    for lane, (_, name) in enumerate(timeline.lanes):
        for at in range(8 if name != PACKING else 0):
            found, error = amounts(loads, timeline, lane, at)
            assert found == pytest.approx(loads.lanes[LANES.index(name), at].sum(), abs=error)
    begin_s, end_s = timeline.tensor_s
    assert (begin_s < end_s).all()
    assert (end_s <= timeline.runs[0][1] * (1 + 1e-9)).all()


def test_runs_of_very_different_lengths_have_scales_of_their_own_which_hold_all_bytes(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    loads = measure_loads(plan, MAX_BINS)
    for predicted in (None, predict(plan)):
        run = measured_run(plan, 190)
        timeline = find_timeline(plan, loads, predicted, run)
        (_, first_s), (_, other_s) = timeline.runs
        assert timeline.stretch == (1.0, pytest.approx(other_s / first_s))
        assert timeline.elapsed_s == pytest.approx(first_s)
        for lane, (number, name) in enumerate(timeline.lanes):
            if name == PACKING:
                assert timeline.tops[lane] == 1
                continue
            top = timeline.tops[lane]
            assert 0 < top < 0.1 if number else 0 < top <= 1
            wide = replace(timeline, edges_s=timeline.edges_s * timeline.stretch[number] * top)
            shown = timeline.cells[lane]
            for at in np.flatnonzero((shown < FULL).all(axis=1)).tolist():
                found, error = amounts(loads, wide, lane, at)
                assert found == pytest.approx(loads.lanes[LANES.index(name), at].sum(), abs=error)
        assert timeline.cells[[number == 1 for number, _ in timeline.lanes]].max() == FULL
    text = report_html(plan, measured=measured_run(plan, 190))
    assert "so that each has its own scale of time. Bars say how busy a port is" in text
    assert re.search(
        r"0 to 100 % of its datasheet rate, in the schedule to [\d.]+ %, in the measured run to [\d.]+ %\.",
        text,
    )


def test_measured_messages_that_end_together_keep_their_bytes(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    loads = measure_loads(plan, MAX_BINS)
    rate, time_s = int(loads.ports.nic_bytes_per_s[loads.ports.nic_group[4]]), 1e-3
    nbytes = int(0.45 * rate * time_s)
    begin_s = np.array([0.0, time_s * (1 - 1e-4)])
    same = np.ones(2, dtype=np.int64)
    run = events.Timeline(
        4 * same, Activity.RECEIVE * same, Medium.NETWORK * same, 0 * same, np.array([0, 1]), nbytes * same,
        begin_s, time_s * np.ones(2),
    )  # fmt: skip
    timeline = find_timeline(plan, loads, None, run)
    lane = timeline.lanes.index((1, "NIC, in"))
    top, times = timeline.tops[lane], timeline.stretch[1]
    found = (timeline.cells[lane, 4] / FULL * top * np.diff(timeline.edges_s) * times * rate).sum()
    assert found == pytest.approx(2 * nbytes, rel=0.01)


def test_events_of_ranks_that_are_not_the_plans_are_left_out(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    loads, run = measure_loads(plan, MAX_BINS), measured_run(plan)
    foreign = np.array([8, 10**6])
    more = events.Timeline(
        **{
            name: np.concatenate((column, foreign if name == "rank" else column[:2] + (name == "end_s")))
            for name, column in run.columns().items()
        }
    )
    found, expected = (find_timeline(plan, loads, None, each) for each in (more, run))
    assert found.runs == expected.runs
    assert np.array_equal(found.cells, expected.cells)


def test_nothing_is_shown_before_a_measured_message_is_posted_or_after_it_has_arrived(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    run = measured_run(plan)
    timeline = find_timeline(plan, measure_loads(plan, MAX_BINS), None, run)
    origin_s = run.start_s.min()
    for lane, (number, name) in enumerate(timeline.lanes):
        if number == 0 or name == PACKING:
            continue
        medium = Medium.NETWORK if name.startswith("NIC") else Medium.NVLINK
        activity = Activity.SEND if name.endswith("out") else Activity.RECEIVE
        for rank in range(8):
            mine = (run.rank == rank) & (run.medium == medium) & (run.activity == activity)
            busy = np.flatnonzero(timeline.cells[lane, rank])
            assert len(busy) > 0 or not mine.any()
            if len(busy):
                assert timeline.edges_s[busy[0] + 1] > run.start_s[mine].min() - origin_s
                # a sender may be done with what is still under way
                assert timeline.edges_s[busy[-1]] < run.end_s[run.medium == medium].max() - origin_s


def test_what_ranks_do_themselves_is_a_lane_of_predictions_with_such_costs(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    found = predict(plan, Costs(pack_bytes_per_s=10**9))
    timeline = find_timeline(plan, measure_loads(plan, 480), found)
    assert [name for _, name in timeline.lanes] == [*LANES, PACKING]
    spent = found.spent(4)
    shown = (timeline.cells[-1, 4] * np.diff(timeline.edges_s) / FULL).sum()
    assert spent.pack_s + spent.unpack_s > 0
    assert shown == pytest.approx(spent.pack_s + spent.unpack_s, rel=0.05)


def test_ranks_of_a_domain_share_a_row_where_there_are_too_many():
    ranks = 4 * MAX_ROWS
    before = rp.Layout(rp.Mesh(range(ranks // 2)), ["S(0)"])
    after = rp.Layout(rp.Mesh(range(ranks // 2, ranks)), ["S(0)"])
    tensor = rp.TensorSpec("w", (ranks, 2), "bfloat16", before, after)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(ranks, 8)))
    data = Page(report_html(plan)).data
    rows = [parse_ints(text) for _, text in data["timeline"]["rows"]]
    assert len(rows) <= MAX_ROWS
    assert sorted(rank for row in rows for rank in row) == list(range(ranks))
    assert {len(row) for row in rows} == {8}
    assert len(data["flows"]["places"]) <= MAX_PLACES
    assert sum(data["flows"]["nbytes"]) == tensor.nbytes


# ------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("name", sample_plans())
def test_claims_say_what_the_certificate_does(name):
    plan = sample_plans()[name]
    found = {claim.title: claim for claim in claims(plan)}
    payload = plan.certificate.payload
    assert found["Payload"].good == (payload.network_nbytes == payload.minimum_network_nbytes)
    assert ("least time of any plan" in found["Bound T*"].text) == (plan.certificate.bound.cut_nbytes > 0)
    assert not any("{" in claim.text.replace(HOSTILE_NAME, "") for claim in claims(plan))


def test_a_prediction_says_its_time_over_the_bound_and_without_one_the_load_is_said_to_be_bytes(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    time_s = 1.5 * plan.certificate.bound.time_s
    predicted = {claim.title: claim for claim in claims(plan, time_s)}
    assert predicted["Predicted time"].value == f"{format_s(time_s)}, 1.50 \N{MULTIPLICATION SIGN} T*"
    assert "Load of the busiest port" not in predicted
    load = {claim.title: claim for claim in claims(plan)}["Load of the busiest port"]
    assert load.value == f"{plan.certificate.gap * 100:.1f} % above T*"
    assert load.text.startswith("This compares bytes, not times of runs")


def test_short_names_are_explained_wherever_they_stand(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    body = text[text.index("<main>") : text.index("<script")]
    for name, meaning in GLOSSARY.items():
        assert f"<dt>{name}</dt><dd>{meaning}</dd>" in body
    bare = re.sub(r"<abbr title=[^>]*>T\*</abbr>|<dt>.*?</dt>|<svg.*?</svg>", "", body, flags=re.DOTALL)
    assert "<h3>Bound T*" not in bare
    t0, bound = (f'<abbr title="{GLOSSARY[name]}">{name}</abbr>' for name in ("T0", "T*"))
    assert explained("T0, T* & <XT*>") == f"{t0}, {bound} &amp; &lt;XT*&gt;"


def test_the_lane_of_every_cut_is_known():
    bound = rp.compile(sample_plans()["optimal"].spec).certificate.bound
    for term in CUT_KINDS:
        if term not in {"none", "prices"}:
            assert binding_lane(replace(bound, term=term, cut_weights=())) in LANES
    for resource in RESOURCES:
        lane = binding_lane(
            replace(bound, term="prices", cut_weights=(("nic_in", "0", 1), (resource, "1", 2)))
        )
        port, _, way = resource.partition("_")
        assert lane == f"{'NVLink' if port == 'nvlink' else 'NIC'}, {way}"
    assert binding_lane(replace(bound, cut_nbytes=0)) is None


def test_domains_that_bind_alike_are_named_and_only_in_plans_of_least_payload():
    before = rp.Layout(rp.Mesh(range(2)), ["S(0)"])
    after = rp.Layout(rp.Mesh([[2, 3], [4, 5], [6, 7]], ["dp", "tp"]), ["R", "R"])
    small = rp.Layout(rp.Mesh([2, 3], ["tp"]), ["R"])
    topology = rp.Topology.uniform(8, 2)
    for target, alike in ((after, 2), (small, 0)):
        spec = rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "bfloat16", before, target)], topology)
        plan = rp.compile(spec)
        assert plan.certificate.bound.term == "domain_ingress"
        found = alike_domains(plan, measure_loads(plan, 1))
        assert {*found, *plan.certificate.bound.cut_members} == set(range(1, alike + 2))
        [bound] = [claim for claim in claims(plan, None, found) if claim.title == "Bound T*"]
        assert ("It is one of 3 alike" in bound.text) == bool(alike)
        direct = rp.compile(spec, "direct")
        payload = direct.certificate.payload
        assert payload.network_nbytes > payload.minimum_network_nbytes
        assert alike_domains(direct, measure_loads(direct, 1)) == ()


def test_roles_are_spelled_alike_and_no_figure_is_called_a_gap(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    data = Page(text).data
    spelled = [kind[1] for kind in data["kinds"].values()] + [
        kind.split()[1] for kind in data["flows"]["kind"]
    ]
    assert "fan-out" in spelled
    assert "fanout" not in spelled
    assert '<th scope="row">gap</th>' not in text
    assert re.search(r'<th scope="row">busiest port</th><td>[\d.]+ % above T\*</td>', text)


def test_a_strategy_that_moves_too_much_is_said_to():
    plan = rp.compile(
        rp.ReshardSpec(sample_plans()["optimal"].spec.tensors, rp.Topology.uniform(6, 3)), "direct"
    )
    [payload] = [claim for claim in claims(plan) if claim.title == "Payload"]
    assert payload.good is False
    assert "times the least possible" in payload.text


def test_times_beside_one_another_are_of_one_sort(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    other = rp.compile(plan.spec, "direct")
    scheduled = report_html(plan, alternatives=[Alternative.of(other)])
    assert ">by schedule</th>" in scheduled
    routed = Alternative.routed("striped", dict(outline(plan.spec, ["striped"]))["striped"])
    for others, run in (([routed], None), ([Alternative.of(other, 1.0), routed], predict(plan))):
        page = report_html(plan, alternatives=others, prediction=run)
        assert ">speedup by busiest port</th>" in page
        assert "which no run is faster than" in page
        assert not re.search(r">(by schedule|predicted|x bound)</th>", page)
    run = predict(plan)
    mixed = report_html(plan, alternatives=[Alternative.of(other, None, "not <predicted>")], prediction=run)
    assert ">predicted</th>" in mixed
    assert "not &lt;predicted&gt;" in mixed
    assert "were not planned" in report_html(plan)


def test_the_comparison_has_the_words_and_figures_of_compare(spec, tmp_path, capsys):
    _, out, _ = call(capsys, "compare", spec)
    lines = out.splitlines()
    head, *rows = (re.split(r"\s{2,}", line) for line in lines[1 : 2 + len(STRATEGIES)])
    page = tmp_path / "plan.html"
    call(capsys, "report", spec, "-o", page)
    text = page.read_text(encoding="utf-8")
    found = figures_of(text)
    for row in rows:
        theirs = dict(zip(head, row, strict=True))
        mine = found[theirs["strategy"]]
        assert mine["network"] == f"{theirs['network']} {theirs['x minimum']} x minimum"
        assert mine["predicted"] == f"{theirs['predicted']} {theirs['x T*']} x T*"
        for name in ("NVLink", "x bound", "speedup"):
            assert mine[name] == theirs[name]
    said = [line for line in lines if line.startswith(("T*:", "speedup is over"))]
    assert len(said) == 2
    for line in said:
        assert escape(line.partition(": see docs/")[0]) in re.sub(r"<.*?>", "", text)
    for name in STRATEGIES:
        assert f"<dt>{name}</dt><dd>{escape(STRATEGIES[name].summary)}</dd>" in text


# ------------------------------------------------------------------------------------ pages


def check_page(text, known=None):
    """The page loads nothing, runs nothing but its own script, and is one document."""
    page = Page(text)
    assert page.tags[0] == "html"
    assert page.tags.count("html") == page.tags.count("body") == 1
    assert len(page.scripts) == 2
    assert not {"iframe", "object", "embed", "base", "form", "foreignobject"} & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in {"src", "href", "xlink:href", "action", "data", "srcset"}:
            assert value.startswith("#") or value == "data:,", (tag, name, value)
    if known is not None:
        assert set(page.tags) <= known
    return page


@pytest.mark.parametrize("name", sample_plans())
def test_pages_load_nothing_and_are_the_same_each_time(name):
    plan = sample_plans()[name]
    text = report_html(plan)
    check_page(text)
    assert text == report_html(plan)


def test_names_are_text_whatever_they_are(spec):
    harmless = rp.compile(rp.ReshardSpec.load(spec))
    others = [Alternative.without("<i>x</i>", "</td><script>1</script>")]
    known = set(check_page(report_html(harmless, alternatives=others)).tags)
    plan = hostile_plan()
    page = check_page(
        report_html(plan, alternatives=others, name="<u>.reshard"), known | {"path", "polyline"}
    )
    shown = page.data["tensors"]["name"]
    assert shown[:2] == list(NAMES[:2])
    assert all(len(name) <= MAX_NAME and name.isprintable() for name in shown)
    assert "\\u202etxt." in shown[NAMES.index(NAMES[7])]


def test_nothing_in_the_data_ends_the_script():
    text = report_html(hostile_plan())
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search(r"[<>&]", data)
    json.loads(data)


def test_the_policy_of_a_page_lets_its_own_script_run_and_no_other(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    script = Page(text).scripts[1][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_all_tensors_and_their_layouts_are_there(spec):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    tensors = Page(report_html(plan)).data["tensors"]
    assert tensors["name"] == ["w", "norm"]
    assert tensors["nbytes"] == [8192, 256]
    assert [tensors["sides"][at] for at in tensors["side"]] == [["0-3", "4-7"]] * 2
    assert tensors["network"] == measure_loads(plan, 1).moved[Medium.NETWORK].tolist()
    assert tensors["picture"] == [0, 1]
    assert [picture.tensors for picture in draw_pictures(plan).layouts] == [(0,), (1,)]


def test_dark_styles_of_pictures_are_for_screens():
    media = "@media (prefers-color-scheme: dark)"
    dark = f"<?xml?><svg><style>{media} {{a{{}}}}</style><text>{media}</text></svg>"
    assert element(dark) == f"<svg><style>{DARK_SCREENS} {{a{{}}}}</style><text>{media}</text></svg>"


def test_diagrams_and_the_picture_of_transfers_have_one_palette_and_what_is_chosen_another(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    works = (Work.INJECT, Work.RELAY, Work.FANOUT, Work.HANDOFF)
    for line, work in zip(LINES.values(), works, strict=True):
        found = re.findall(rf"--{line.name}: (#\w+);", text)
        assert Counter(found) == {line.colour.lower(): 2, DARK.bars[work][0].lower(): 2}  # screens and paper
    halo = set(re.findall(r"#\w{6}", HALO.lower()))
    assert not halo & {colour.lower() for line in LINES.values() for colour in (line.colour, line.ink)}
    assert all(colour in text.lower().split("<main>")[0] for colour in halo)


def test_text_of_pictures_is_legible_however_narrow_they_get(spec):
    text = report_html(rp.compile(rp.ReshardSpec.load(spec)))
    pictures = re.findall(r"min-width:(\d+)px.*?</template>", text, re.DOTALL)
    roots = re.findall(r"min-width:\d+px.*?(<svg.*?</svg>)", text, re.DOTALL)
    assert len(pictures) == len(roots) >= 2
    for least, svg in zip(pictures, roots, strict=True):
        size = SIZE.search(svg)
        natural = float(size["width"]) * (96 / 72 if size["unit"] == "pt" else 1)
        smallest = min(map(float, re.findall(r'font-size="([\d.]+)"', svg)))
        assert int(least) <= natural
        assert smallest * int(least) / float(size["units"]) >= 0.98 * min(
            LEAST_TEXT, smallest * natural / float(size["units"])
        )


def test_thousands_of_tensors_take_seconds_and_a_few_megabytes():
    before, after = rp.Layout(rp.Mesh(range(64)), ["S(0)"]), rp.Layout(rp.Mesh(range(64, 128)), ["S(1)"])
    names = [f"layers.{at}.weight" for at in range(3000)]
    tensors = [rp.TensorSpec(name, (256, 256), "bfloat16", before, after) for name in names]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(128, 8)))
    with soon(10):
        text = report_html(plan)
    assert len(text) < 5_000_000
    assert len(Page(text).data["tensors"]["name"]) == 3000


def test_a_whole_model_on_256_gpus_takes_seconds_and_every_tensor_has_its_diagram():
    plan = rp.compile(build_whole(WHOLE["qwen3-235b"]))
    with soon(5):
        text = report_html(plan)
    assert len(text.encode()) < 5_000_000
    data = Page(text).data
    assert data["timeline"]["slots"][-1][1] == plan.certificate.schedule.slots - 1
    assert data["timeline"]["binds"] == "NIC, in"
    assert "It is one of 16 alike: domains 17-31 need as long." in text
    assert min(data["tensors"]["graph"]) == 0
    assert len(data["graphs"]) <= MAX_GRAPHS
    sums = [sum(flow[5] for flow in graph["flows"] if flow[2] == Medium.NETWORK) for graph in data["graphs"]]
    assert [sums[at] for at in data["tensors"]["graph"]] == data["tensors"]["network"]


# ------------------------------------------------------------------------------------ the verb


def test_the_verb_writes_the_page_with_every_other_strategy(spec, tmp_path, capsys):
    page = tmp_path / "plan.html"
    code, out, _ = call(capsys, "report", spec, "-o", page)
    assert code == 0
    assert out.startswith(f"wrote {page}, ")
    text = page.read_text(encoding="utf-8")
    check_page(text)
    for name in STRATEGIES:
        assert f"<bdi>{name}</bdi>" in text
    assert ">predicted</th>" in text
    found = result(capsys, "report", spec, "-o", page, "--no-baselines", "--no-simulate")
    assert found == {
        "file": str(page),
        "nbytes": page.stat().st_size,
        "simulated": False,
        "measured": None,
        "strategies": None,
    }
    assert "were not planned" in page.read_text(encoding="utf-8")


def figures_of(text):
    """Cells of the comparison by strategy and head."""
    table = re.search(r'<table class="compare">.*?</table>', text, re.DOTALL)[0]
    found = {}
    for line in re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]:
        cells = re.findall(r'<td data-head="(.*?)">(.*?)</td>', line, re.DOTALL)
        found[re.search(r"<bdi>(.*?)</bdi>", line)[1]] = {
            head: re.sub(r"<.*?>", "", cell) for head, cell in cells
        }
    return found


@pytest.mark.parametrize("options", [(), ("--no-simulate",)])
def test_beside_large_plans_others_are_only_routed(spec, tmp_path, capsys, monkeypatch, options):
    plan, page = rp.compile(rp.ReshardSpec.load(spec)), tmp_path / "plan.html"
    save_as(plan, tmp_path / "plan.reshard")
    monkeypatch.setattr(report_verb, "FEW_MESSAGES", plan.certificate.schedule.messages - 1)
    plans = {name: rp.compile(plan.spec, name) for name in STRATEGIES}
    monkeypatch.setattr(each, "compile_spec", None)  # nothing is compiled
    found = result(capsys, "report", tmp_path / "plan.reshard", "-o", page, *options)
    assert found["simulated"] is False
    assert found["strategies"] == [name for name in STRATEGIES if name != "optimal"]
    text = page.read_text(encoding="utf-8")
    assert "which no run is faster than" in text
    assert "report --simulate plans and predicts every strategy, and compare SPEC does" in text
    rows = figures_of(text)
    for name, other in plans.items():
        busiest_s = Alternative.of(other).busiest_s
        ratio = busiest_s / plan.certificate.bound.time_s
        assert rows[name]["busiest port"] == f"{format_s(busiest_s)} {ratio:.2f} x bound"
        assert rows[name]["network"].startswith(format_nbytes(other.certificate.payload.network_nbytes))
        assert rows[name]["NVLink"] == format_nbytes(other.certificate.payload.nvlink_nbytes)


def test_every_plan_is_asked_for_itself_whether_its_run_takes_long_to_predict(
    spec, tmp_path, capsys, monkeypatch
):
    plan, page = rp.compile(rp.ReshardSpec.load(spec)), tmp_path / "plan.html"
    messages = {name: rp.compile(plan.spec, name).certificate.schedule.messages for name in STRATEGIES}
    few = messages["optimal"]
    assert max(messages.values()) > few
    monkeypatch.setattr(report_verb, "FEW_MESSAGES", few)
    call(capsys, "report", spec, "-o", page)
    for name, cells in figures_of(page.read_text(encoding="utf-8")).items():
        large = f"not predicted: its {messages[name]:,} messages are more than {few:,}"
        assert cells["predicted"].startswith(large) == (messages[name] > few)
    call(capsys, "report", spec, "-o", page, "--simulate")
    assert "not predicted" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["reshard", "json", "txt"])
def test_plans_of_all_forms_are_reported_alike(spec, tmp_path, capsys, suffix):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    file = tmp_path / f"plan.{suffix}"
    save_as(plan, file)
    page = tmp_path / "plan.htm"
    result(capsys, "report", file, "-o", page, "--no-baselines")
    assert page.read_text(encoding="utf-8") == report_html(plan, prediction=predict(plan), name=file.name)


def test_strategies_that_take_too_long_are_left_out_with_the_reason(spec, tmp_path, capsys):
    page = tmp_path / "plan.html"
    found = result(capsys, "report", spec, "-o", page, "--limit", "1e-9")
    assert found["strategies"] == [name for name in STRATEGIES if name != "optimal"]
    assert page.read_text(encoding="utf-8").count("takes more than 1e-09 s") >= len(STRATEGIES) - 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "plan.pdf"), "its suffix is '.pdf'; expected .html or .htm"),
        (("-o", "plan.html", "--limit", "0"), "--limit is 0.0; expected a number of seconds above 0"),
        (("-o", "plan.html", "--limit", "nan"), "--limit is nan; expected"),
        (("-o", "plan.html", "--strategy", "best"), "strategy 'best' is unknown; expected one of"),
        (("-o", "missing/plan.html", "--no-baselines"), "cannot write"),
        (("-o", "plan.html", "--simulate", "--no-simulate"), "not allowed with argument --simulate"),
    ],
)
def test_what_cannot_be_written_is_refused(spec, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert_refused(call(capsys, "report", spec, *arguments), words)
    assert not (tmp_path / "plan.html").exists()


def test_the_file_that_is_read_is_not_written_over(spec, tmp_path, capsys):
    odd = tmp_path / "spec.html"
    odd.write_text(spec.read_text())
    assert_refused(call(capsys, "report", odd, "-o", odd), "is the file that is read")


def test_a_measured_run_is_shown_beside_and_another_plans_is_refused(spec, tmp_path, capsys):
    plan = rp.compile(rp.ReshardSpec.load(spec))
    trace, page = tmp_path / "trace.json", tmp_path / "plan.html"
    trace.write_bytes(chrome_trace(measured_run(plan), notes={"digest": plan.digest}))
    found = result(capsys, "report", spec, "-o", page, "--no-baselines", "--measured", trace)
    assert found["measured"] == str(trace)
    timeline = Page(page.read_text(encoding="utf-8")).data["timeline"]
    assert [kind for kind, _ in timeline["runs"]] == [PREDICTED, MEASURED]
    assert "Beside it a measured run" in page.read_text(encoding="utf-8")
    trace.write_bytes(chrome_trace(measured_run(plan), notes={"digest": "0" * 64}))
    refused = call(capsys, "report", spec, "-o", page, "--measured", trace)
    assert_refused(refused, f"trace {trace} is of a", "0" * 64, plan.digest)
    odd = tmp_path / "trace.html"
    odd.write_bytes(trace.read_bytes())
    assert_refused(call(capsys, "report", spec, "-o", odd, "--measured", odd), "is the file that is read")
