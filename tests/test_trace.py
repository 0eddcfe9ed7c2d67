"""Traces keep the rules of the Trace Event format, whatever the timeline, predicted or measured."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import specs
from test_timeline import timelines

import reshard_planner as rp
from reshard_planner.errors import InputError, TopologyError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.linkuse import match_messages, mean_rates, rate_steps, within_rate
from reshard_planner.ir.timeline import Activity, Timeline
from reshard_planner.ir.tracecounters import MAX_STEPS
from reshard_planner.simulate import Costs, predict, timeline_of
from reshard_planner.topology import Ports
from reshard_planner.topology.model import Domain, Nic
from reshard_planner.transfer import Medium

HALVES = rp.Topology.from_domains([[0, 1], [2, 3]])
SHARED = rp.Topology((Domain((2, 0)), Domain((1, 3))), (Nic((0, 2)), Nic((1,)), Nic((3,))), (3, 2, 1, 0))
CLUSTERS = st.sampled_from([None, HALVES, SHARED])

FIELDS = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "cat", "pid", "ts", "args"},
}
"""What events of each phase must have."""


def nanoseconds(event, *fields):
    return round(sum(event[field] for field in fields) * 1000)


def check_rules(data: bytes) -> dict[str, list[dict]]:
    """Check a file against the rules of the format; returns its events by phase."""
    document = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    by_phase = defaultdict(list)
    for event in document["traceEvents"]:
        assert FIELDS[event["ph"]] == set(event) - {"ph"}, event
        by_phase[event["ph"]].append(event)
    for event in [*by_phase["X"], *by_phase["s"], *by_phase["f"], *by_phase["C"]]:
        assert event["ts"] >= 0
    check_nesting(by_phase["X"])
    check_names(by_phase)
    check_flows(by_phase["X"], by_phase["s"], by_phase["f"])
    check_counters(by_phase["C"])
    return by_phase


def check_nesting(slices):
    """Slices of one thread are within each other or apart."""
    threads = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append(
            (nanoseconds(event, "ts"), nanoseconds(event, "ts", "dur"))
        )
    for spans in threads.values():
        open_until = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def check_names(by_phase):
    """Every process and every thread that has events has a name and a place, once, and names differ."""
    said = defaultdict(dict)
    for event in by_phase["M"]:
        key = (event["pid"],) if event["name"].startswith("process") else (event["pid"], event["tid"])
        assert key not in said[event["name"]]
        said[event["name"]][key] = next(iter(event["args"].values()))
    threads = {(event["pid"], event["tid"]) for event in by_phase["X"]}
    assert set(said["thread_name"]) == set(said["thread_sort_index"]) == threads
    processes = {(event["pid"],) for event in [*by_phase["X"], *by_phase["C"]]}
    assert set(said["process_name"]) == set(said["process_sort_index"]) == processes
    assert len(set(said["process_name"].values())) == len(processes)
    assert len({(key[0], name) for key, name in said["thread_name"].items()}) == len(threads)


def check_flows(slices, starts, ends):
    """Flows have both ends, one of each, forward in time, each within a slice of its thread."""
    assert [event["id"] for event in starts] == [event["id"] for event in ends]
    assert len({event["id"] for event in starts}) == len(starts)
    threads = defaultdict(list)
    for event in slices:
        threads[event["pid"], event["tid"]].append(event)
    for start, end in zip(starts, ends, strict=True):
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        for event, kind in ((start, "send"), (end, "receive")):
            at = nanoseconds(event, "ts")
            assert any(
                each["cat"].startswith(kind)
                and nanoseconds(each, "ts") <= at <= nanoseconds(each, "ts", "dur")
                for each in threads[event["pid"], event["tid"]]
            )


def check_counters(counters):
    """Times of each counter ascend, its values are numbers that change, and it ends at 0."""
    series = defaultdict(list)
    for event in counters:
        [(unit, value)] = event["args"].items()
        assert unit == "GB/s"
        assert value >= 0
        series[event["pid"], event["name"]].append((nanoseconds(event, "ts"), value))
    for points in series.values():
        assert points[-1][1] == 0
        for (before, low), (after, high) in pairwise(points):
            assert before < after
            assert low != high


@given(timelines(earliest_us=-20), CLUSTERS)
def test_traces_of_any_events_keep_the_rules(timeline, cluster):
    slices = check_rules(chrome_trace(timeline, {1: "</script>\n"}, topology=cluster))["X"]
    assert len(slices) == len(timeline)


@given(specs(), st.sampled_from([Costs(), Costs(1e11, slot_s=1e-5)]))
def test_traces_of_predicted_runs_keep_the_rules_and_no_nic_exceeds_its_rate(spec, costs):
    try:
        plan = rp.compile(spec)
    except InputError:
        return
    found = predict(plan, costs)
    events = check_rules(chrome_trace(timeline_of(found), topology=spec.topology))
    assert len(events["s"]) == len(found.intervals)
    rates = Ports.of(spec.topology, plan.ranks)
    most = dict(zip(rates.nic_name, rates.nic_bytes_per_s.tolist(), strict=True))
    for event in events["C"]:
        name = event["name"].rpartition(" ")[0]
        assert event["args"]["GB/s"] <= most[name] / 1e9 * 1.001 + 1e-3


@pytest.mark.parametrize(
    ("phase", "change"),
    [
        ("X", {"pid": 77}),
        ("X", {"ts": -1.0}),
        ("M", {"pid": 77}),
        ("s", {"id": 10_000}),
        ("s", {"ts": 1e9}),
        ("f", {"tid": 1}),
        ("C", {"ts": 1e9}),
        ("C", {"args": {"GB/s": -1.0}}),
    ],
)
def test_the_rules_refuse_a_trace_that_breaks_one(phase, change):
    document = small_document()
    next(event for event in document["traceEvents"] if event["ph"] == phase).update(change)
    with pytest.raises(AssertionError):
        check_rules(json.dumps(document).encode())


def test_the_rules_refuse_slices_that_overlap():
    document = small_document()
    first = next(event for event in document["traceEvents"] if event["ph"] == "X")
    document["traceEvents"].append({**first, "ts": first["ts"] + first["dur"] / 2})
    with pytest.raises(AssertionError):
        check_rules(json.dumps(document).encode())


def small_document():
    """A trace that keeps the rules."""
    train, serve = (rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(0)"]) for ranks in ([0, 1], [2, 3]))
    tensors = [rp.TensorSpec(name, (8192, 8192), "bfloat16", train, serve) for name in "ab"]
    plan = rp.compile(rp.ReshardSpec(tensors, HALVES))
    document = json.loads(chrome_trace(timeline_of(predict(plan, Costs(1e9))), topology=HALVES))
    check_rules(json.dumps(document).encode())
    return document


@given(timelines())
def test_a_process_is_a_domain_and_its_rows_are_those_of_its_ranks(timeline):
    events = check_rules(chrome_trace(timeline, topology=SHARED))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    lanes = {
        ("send", "network"): "NIC tx",
        ("receive", "network"): "NIC rx",
        ("send", "nvlink"): "NVLink tx",
        ("receive", "nvlink"): "NVLink rx",
    }
    for event, rank in zip(events["X"], timeline.rank.tolist(), strict=True):
        gpu = SHARED.gpu_of(rank)
        assert gpu in SHARED.domains[event["pid"]].gpus
        lane = lanes.get(tuple(event["cat"].split(",")), "pack/unpack")
        assert names[event["pid"], event["tid"]].startswith(f"rank {rank} on GPU {gpu} {lane}")


def run(*rows):
    """A timeline of (rank, activity, medium, slot, peer, nbytes, start, end)."""
    columns = list(zip(*rows, strict=True))
    return Timeline(*columns[:6], np.array(columns[6], float), np.array(columns[7], float))


def test_counters_add_up_what_a_shared_nic_sends_from_when_both_ends_have_posted():
    timeline = run(
        (3, Activity.SEND, Medium.NETWORK, 0, 0, 2_000_000_000, 0.0, 3.0),
        (0, Activity.RECEIVE, Medium.NETWORK, 0, 3, 2_000_000_000, 1.0, 3.0),
        (1, Activity.SEND, Medium.NETWORK, 0, 2, 1_000_000_000, 2.0, 3.0),
    )
    events = check_rules(chrome_trace(timeline, topology=SHARED))["C"]
    seen = defaultdict(list)
    for event in events:
        seen[event["name"]].append((event["ts"], event["args"]["GB/s"]))
    assert seen == {
        "nic of gpu 0,2 tx": [(1e6, 1.0), (2e6, 2.0), (3e6, 0.0)],
        "nic of gpu 3 rx": [(1e6, 1.0), (3e6, 0.0)],
    }


def test_long_counters_show_means_that_keep_the_bytes():
    count = 5000
    start = np.arange(count) * 1e-3
    rows = [
        (0, Activity.SEND, Medium.NETWORK, 0, 2, 1_000_000 * (1 + at % 7), start[at], start[at] + 1e-3)
        for at in range(count)
    ]
    events = check_rules(chrome_trace(run(*rows), topology=HALVES))["C"]
    assert 0 < len(events) <= MAX_STEPS
    moved = sum(one["args"]["GB/s"] * 1e3 * (two["ts"] - one["ts"]) for one, two in pairwise(events))
    assert moved == pytest.approx(sum(row[5] for row in rows), rel=1e-3)


def test_a_rank_without_a_gpu_is_refused():
    timeline = run((9, Activity.PACK, Medium.LOCAL, 0, -1, 1, 0.0, 1.0))
    with pytest.raises(TopologyError, match="rank 9 has no GPU"):
        chrome_trace(timeline, topology=HALVES)


def test_an_empty_timeline_gives_an_empty_trace():
    assert check_rules(chrome_trace(Timeline.concatenate([]), topology=HALVES)) == {
        phase: [] for phase in "XsfCM"
    }


# the use of links

spans = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 100)), min_size=1, max_size=12
)


def as_columns(rows):
    start, took, amount = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return start, start + took, amount


@given(spans)
def test_rates_add_up_to_what_events_move(rows):
    start, end, amount = as_columns(rows)
    times, rates = rate_steps(start, end, amount)
    for at, until, rate in zip(times, times[1:], rates, strict=False):
        middle = (at + until) / 2
        busy = (start < middle) & (middle < end)
        assert rate == pytest.approx((amount / (end - start))[busy].sum(), abs=1e-6)
    edges = np.linspace(-1.0, 31.0, 9)
    assert (mean_rates((times, rates), edges) * np.diff(edges)).sum() == pytest.approx(amount.sum())


@given(spans, st.integers(1, 200))
def test_a_link_that_has_the_time_keeps_within_its_rate_and_moves_all(rows, most):
    steps = rate_steps(*as_columns(rows))
    times, rates = within_rate(steps, most)
    assert (times == steps[0]).all()
    moved, before = ((each[:-1] * np.diff(times)).sum() for each in (rates, steps[1]))
    assert moved == pytest.approx(before)
    if before <= most * (times[-1] - times[0]):
        assert rates.max() <= most * (1 + 1e-9)
    else:
        assert (rates == steps[1]).all()


@given(timelines())
def test_messages_are_matched_in_the_order_of_their_ends(timeline):
    sends, receipts = match_messages(timeline)
    assert len(set(sends.tolist())) == len(sends) == len(set(receipts.tolist()))
    assert (np.diff(timeline.start_s[sends]) >= 0).all()
    last = {}
    for send, receipt in zip(sends.tolist(), receipts.tolist(), strict=True):
        ends = (int(timeline.slot[send]), int(timeline.rank[send]), int(timeline.peer[send]))
        assert ends == (timeline.slot[receipt], timeline.peer[receipt], timeline.rank[receipt])
        assert last.get(ends, -np.inf) <= timeline.start_s[receipt]
        last[ends] = timeline.start_s[receipt]
