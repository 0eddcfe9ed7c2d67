"""Traces keep the rules of the Trace Event format, whatever the timeline, predicted or measured."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import specs
from test_timeline import timelines

import reshard_planner as rp
from reshard_planner.errors import InputError, TopologyError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.linkuse import match_messages, mean_rates, rate_steps, within_rate
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.ir.tracecounters import MAX_STEPS
from reshard_planner.ir.traceread import measured_timeline, parse_trace, read_trace
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


def rounded(time_us):
    return round(time_us * 1000)


def cut_off(time_us):
    """As importers do that truncate; the product is rounded to a float first."""
    return int(time_us * 1000.0)


def nanoseconds(event, *fields, read=rounded):
    return sum(read(event[field]) for field in fields)


def check_rules(data: bytes) -> dict[str, list[dict]]:
    """Check a file against the rules of the format; returns its events by phase."""
    document = json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData", "timeline"}
    by_phase = defaultdict(list)
    for event in document["traceEvents"]:
        assert FIELDS[event["ph"]] == set(event) - {"ph"}, event
        by_phase[event["ph"]].append(event)
    for event in [*by_phase["X"], *by_phase["s"], *by_phase["f"], *by_phase["C"]]:
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        assert rounded(event["ts"]) == cut_off(event["ts"])
    for read in (rounded, cut_off):
        check_nesting(by_phase["X"], read)
    check_names(by_phase)
    check_places([event for event in document["traceEvents"] if event["ph"] == "M"])
    check_flows(by_phase["X"], by_phase["s"], by_phase["f"])
    check_counters(by_phase["C"])
    return by_phase


def check_nesting(slices, read):
    """Slices of one thread do not overlap at all, however viewers make nanoseconds of the times."""
    threads = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append(
            (nanoseconds(event, "ts", read=read), nanoseconds(event, "ts", "dur", read=read))
        )
    for spans in threads.values():
        for (_, before), (after, _) in pairwise(sorted(spans)):
            assert before <= after


def check_places(metadata):
    """Names and places of processes stand in their order, and then those of the threads of all."""
    for kind, fields in (("process", ("pid",)), ("thread", ("pid", "tid"))):
        for said in ("name", "sort_index"):
            at = [
                tuple(event[field] for field in fields)
                for event in metadata
                if event["name"] == f"{kind}_{said}"
            ]
            assert at == sorted(at)
    for event in metadata:
        if event["name"].endswith("sort_index"):
            assert event["args"] == {
                "sort_index": event["pid"] if event["name"].startswith("process") else event["tid"]
            }


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
        assert math.isfinite(value)
        assert value >= 0
        series[event["pid"], event["name"]].append((nanoseconds(event, "ts"), value))
    for points in series.values():
        assert points[-1][1] == 0
        for (before, low), (after, high) in pairwise(points):
            assert before < after
            assert low != high


@st.composite
def fine_timelines(draw):
    """Timelines whose times are whole nanoseconds of all sizes, from before the origin on."""
    timeline = draw(timelines(earliest_us=-20))
    step_ns = draw(st.sampled_from([1, 7, 1001, 10**6 + 1, 10**12 + 1]))
    columns = timeline.columns()
    times = {name: np.rint(columns[name] * 1e6) * step_ns / 1e9 for name in ("start_s", "end_s")}
    return Timeline(**{**columns, **times})


@given(fine_timelines(), CLUSTERS)
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


def small_plan():
    """Two tensors from one domain to the other."""
    train, serve = (rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(0)"]) for ranks in ([0, 1], [2, 3]))
    tensors = [rp.TensorSpec(name, (8192, 8192), "bfloat16", train, serve) for name in "ab"]
    return rp.compile(rp.ReshardSpec(tensors, HALVES))


def small_document():
    """A trace that keeps the rules."""
    plan = small_plan()
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


@pytest.mark.parametrize(("sent_s", "arrows"), [(1.0, 1), (1.0 + 1e-9, 0), (1.0 - 1e-9, 1)])
def test_a_message_has_an_arrow_unless_it_arrives_before_it_is_sent(sent_s, arrows):
    timeline = run(
        (0, Activity.SEND, Medium.NVLINK, 0, 1, 1, sent_s, sent_s + 1e-12),
        (1, Activity.RECEIVE, Medium.NVLINK, 0, 0, 1, 0.5, 1.0),
    )
    events = check_rules(chrome_trace(timeline, topology=HALVES))
    assert (len(events["s"]), len(events["f"])) == (arrows, arrows)


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
@example([(0, 9, 1), (9, 1, 50)], 10)
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


@st.composite
def ends_of_messages(draw):
    """Timelines of many ends of messages from one rank to another and back, posted in any order."""
    ends = st.tuples(
        st.sampled_from([Activity.SEND, Activity.RECEIVE]), st.integers(0, 1), st.sampled_from([0, 0, 0, 1])
    )
    rows = draw(st.lists(ends, min_size=8, max_size=16))
    # few moments, so that some are posted at the same one
    starts = draw(st.lists(st.integers(0, 9), min_size=len(rows), max_size=len(rows)))
    took = draw(st.permutations(range(len(rows))))
    peer_of_first = draw(st.sampled_from([0, NO_PEER]))
    events = [
        (
            src if activity == Activity.SEND else 1 - src,
            activity,
            slot,
            1 - src if activity == Activity.SEND else src,
        )
        for activity, slot, src in rows
    ]
    return run(
        (1, Activity.SEND, Medium.NETWORK, 0, peer_of_first, 1, 0, 1),
        (1, Activity.PACK, Medium.NETWORK, 0, 0, 1, 0, 1),
        *(
            (rank, activity, Medium.NETWORK, slot, peer, 1, start, start + last)
            for (rank, activity, slot, peer), start, last in zip(events, starts, took, strict=True)
        ),
    )


@given(ends_of_messages())
def test_the_nth_send_to_be_posted_belongs_to_the_nth_receipt_between_the_same_ranks_in_a_slot(timeline):
    waiting = defaultdict(lambda: ([], []))
    events = zip(
        timeline.activity, timeline.rank, timeline.peer, timeline.slot, timeline.start_s, strict=True
    )
    for at, (activity, rank, peer, slot, start) in enumerate(events):
        if peer != NO_PEER and activity == Activity.SEND:
            waiting[slot, rank, peer][0].append((start, at))
        elif peer != NO_PEER and activity == Activity.RECEIVE:
            waiting[slot, peer, rank][1].append((start, at))
    expected = {
        (send, receipt)
        for sends, receipts in waiting.values()
        for (_, send), (_, receipt) in zip(sorted(sends), sorted(receipts), strict=False)
    }
    sends, receipts = (ends.tolist() for ends in match_messages(timeline))
    assert sorted(zip(sends, receipts, strict=True)) == sorted(expected)
    assert (np.diff(timeline.start_s[sends]) >= 0).all()


# reading back

PLAN_NOTES = {"digest": "d" * 64, "repeat": 2, "elapsed_s": 0.1 + 0.2}


def same_events(one, other):
    """Whether two timelines have the same events in the same order, times to the nanosecond."""
    for name in Timeline.DTYPES:
        left, right = getattr(one, name), getattr(other, name)
        if name.endswith("_s"):
            left, right = np.rint(left * 1e9), np.rint(right * 1e9)
        if not np.array_equal(left, right):
            return False
    return True


@given(fine_timelines(), CLUSTERS)
def test_a_written_timeline_is_read_back_with_the_same_events(timeline, cluster):
    data = chrome_trace(timeline, {1: "\u2028</script>"}, PLAN_NOTES, topology=cluster)
    trace = parse_trace(data)
    assert same_events(trace.timeline, timeline)
    assert dict(trace.notes) == PLAN_NOTES
    assert chrome_trace(trace.timeline, {1: "\u2028</script>"}, trace.notes, topology=cluster) == data


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6))
def test_times_are_read_back_to_the_nearest_nanosecond(times):
    start_s, end_s = np.array(times), np.array(times)
    count = len(times)
    columns = [range(count), [0] * count, [0] * count, [0] * count, [NO_PEER] * count, [1] * count]
    found = parse_trace(chrome_trace(Timeline(*columns, start_s, end_s))).timeline
    assert np.abs(found.start_s - start_s).max() <= 0.5e-9 + 2e-10


@pytest.mark.parametrize("time_s", [1.1e6, -2e6, 1e300])
def test_times_too_far_for_nanoseconds_are_refused(time_s):
    with pytest.raises(InputError, match="expected at most 1000000"):
        chrome_trace(run((0, Activity.PACK, Medium.LOCAL, 0, -1, 1, time_s, time_s)))


def damages(data, random):
    """A trace with one random damage."""
    at = random.randrange(len(data))
    size = random.randrange(1, 40)
    return random.choice(
        [
            lambda: data[:at],
            lambda: data[:at] + data[at + size :],
            lambda: data[:at] + bytes([random.randrange(256)]) + data[at + 1 :],
            lambda: data[:at] + data[at : at + size] + data[at:],
            lambda: data[:at] + random.choice([b"-1", b"NaN", b"1e999", b"null", b"[", b"{}"]) + data[at:],
            lambda: data[:at] + data[at:].replace(b"1", b"7", 1),
            lambda: data[:at] + data[at:].replace(b"send", b"receive", 1),
            lambda: data[:at] + data[at:].replace(b'"slot":', b'"slot":9', 1),
            lambda: data[:at] + b'"' + b"n" * 10_000 + data[at:],
        ]
    )()


def test_a_damaged_trace_is_refused_or_says_the_same():
    plan = small_plan()
    timeline = timeline_of(predict(plan, Costs(1e9)))
    data = chrome_trace(timeline, {0: "name"}, PLAN_NOTES, topology=HALVES)
    random = Random(5)  # noqa: S311 - which damages, not secrets
    sentences = []
    for _ in range(300):
        try:
            trace = parse_trace(damages(data, random))
        except InputError as error:
            sentences.append(str(error))
        else:
            assert same_events(trace.timeline, timeline)
            assert dict(trace.notes) == PLAN_NOTES
    assert len(sentences) > 150
    assert all(len(sentence) < 400 and sentence.isprintable() for sentence in sentences)


def change(**fields):
    """A change of the first slice of a document."""

    def apply(document):
        first = next(event for event in document["traceEvents"] if event["ph"] == "X")
        for name, value in fields.items():
            (first if name in first else first["args"])[name] = value

    return apply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change(ts=-1.0), r"damaged: Expected `float` >= 0.*\$\[\d+\].ts"),
        (change(ts=1e300), r"damaged: Expected `float` <= "),
        (change(nbytes=-1), "damaged: Expected `int` >= 0.*nbytes"),
        (change(slot=2**31), "damaged: Expected `int` <= 2147483647.*slot"),
        (change(peer=-2), "damaged: Expected `int` >= -1.*peer"),
        (change(cat="send,pigeon"), "cat of slice 0 is 'send,pigeon'; expected an activity and a medium"),
        (change(cat="x" * 10_000), "cat of slice 0 is 'x+[.]{3}x+'"),
        (change(slot=1), "damaged or was changed"),
        (lambda document: document["traceEvents"].pop(), None),  # a counter, which is no event of a timeline
        (lambda document: document["traceEvents"].append({"ph": "B", "name": "b"}), "Invalid value 'B'"),
        (lambda document: document["otherData"].update(digest="e" * 64), "damaged or was changed"),
        (lambda document: document.pop("timeline"), "has no field 'timeline'.*run --profile"),
        (lambda document: document["timeline"].update(version=2), "version 2; expected 'reshard-planner', 1"),
        (lambda document: document["timeline"].update(origin_ns=1), "damaged: Expected `int` <= 0"),
        (lambda document: document["timeline"].update(origin_ns=-1), "damaged or was changed"),
        (lambda document: document.pop("otherData"), "missing required field `otherData`"),
    ],
)
def test_a_changed_trace_is_refused_by_what_is_wrong(damage, sentence):
    document = small_document()
    damage(document)
    data = json.dumps(document).encode()
    if sentence is None:
        assert len(parse_trace(data).timeline)
        return
    with pytest.raises(InputError, match=sentence):
        parse_trace(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"null", b"\xff\xfe", b'{"traceEvents":[]}', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_what_is_no_trace_of_this_project_is_refused(data):
    with pytest.raises(InputError, match=r"no trace that this project wrote|has no field 'timeline'"):
        parse_trace(data)


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, monkeypatch):
    for path, sentence in (
        (tmp_path / "missing.json", "cannot be read: No such file"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "a\0b", "cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_trace(path)
    large = tmp_path / "large.json"
    large.write_bytes(b"{}")
    monkeypatch.setattr("reshard_planner.ir.traceread.MAX_TRACE_NBYTES", 1)
    with pytest.raises(InputError, match=r"trace .*large.json has 2 bytes; expected at most 1"):
        read_trace(large)


@pytest.mark.parametrize(
    ("notes", "column", "sentence"),
    [
        ({"predicted": True}, {}, "is of a predicted run; expected one of a measured run"),
        ({"digest": "0" * 64}, {}, "is of a plan with digest 0+; expected the plan given, "),
        ({"digest": 5}, {}, "is of a plan with digest 5"),
        ({}, {"rank": 9}, "has rank 9; expected ranks of the plan, which has 4"),
        ({}, {"peer": 7}, "has peer 7; expected ranks of the plan"),
        (
            {},
            {"slot": small_plan().certificate.schedule.slots},
            "has slot [0-9]+; expected slots of the plan, which has ",
        ),
        ({}, {"slot": small_plan().certificate.schedule.slots - 1}, None),
        ({}, {}, None),
    ],
)
def test_a_trace_of_another_plan_is_refused(tmp_path, notes, column, sentence):
    plan = small_plan()
    columns = timeline_of(predict(plan)).columns()
    changed = {name: np.where(columns[name] >= 0, value, columns[name]) for name, value in column.items()}
    timeline = Timeline(**{**columns, **changed})
    path = tmp_path / "profile.json"
    path.write_bytes(chrome_trace(timeline, notes=notes))
    if sentence is None:
        assert same_events(measured_timeline(path, plan), timeline)
        return
    with pytest.raises(InputError, match=f"trace .*profile.json {sentence}"):
        measured_timeline(path, plan)
