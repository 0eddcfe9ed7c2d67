"""Timelines check themselves; their Chrome traces show every event without overlap, and every message."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard_planner.errors import TableError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.timeline import NO_PEER, Activity, Timeline
from reshard_planner.transfer import Medium

US = 1e-6

ONE = {
    "rank": [3],
    "activity": [Activity.SEND],
    "medium": [Medium.NETWORK],
    "slot": [7],
    "peer": [5],
    "nbytes": [4096],
    "start_s": [0.25],
    "end_s": [0.5],
}


@st.composite
def timelines(draw, earliest_us=0):
    """Timelines with whole microseconds, so that their traces hold the same numbers."""
    events = draw(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from(Activity),
                st.sampled_from(Medium),
                st.integers(0, 2),
                st.integers(NO_PEER, 3),
                st.integers(0, 2**40),
                st.integers(earliest_us, 40),
                st.integers(0, 20),
            ),
            max_size=30,
        )
    )
    columns = [*zip(*events, strict=True)] or [()] * 8
    start = np.array(columns[6], dtype=np.float64) * US
    end = (np.array(columns[6], dtype=np.float64) + np.array(columns[7], dtype=np.float64)) * US
    return Timeline(*columns[:6], start, end)


def traced(timeline, *arguments):
    return json.loads(chrome_trace(timeline, *arguments))["traceEvents"]


def of_phase(events, phase):
    return [event for event in events if event["ph"] == phase]


def end_of(event):
    return round(event["ts"] + event["dur"], 3)


# the columns


def test_columns_have_the_types_that_the_table_states():
    timeline = Timeline(**ONE)
    assert {name: column.dtype.str for name, column in timeline.columns().items()} == dict(Timeline.DTYPES)
    assert len(timeline) == 1
    with pytest.raises(ValueError, match="read-only"):
        timeline.nbytes[0] = 1


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("slot", [1, 2], r"column slot has shape \(2,\); expected \(1,\)"),
        ("activity", [4], "activity of event 0 is 4; expected 0 to 3"),
        ("medium", [-1], "medium of event 0 is -1; expected 0 to 2"),
        ("rank", [-1], "rank of event 0 is -1; expected 0 or more"),
        ("peer", [-2], "peer of event 0 is -2; expected -1 or more"),
        ("nbytes", [-1], "nbytes of event 0 is -1; expected 0 or more"),
        ("slot", [2**40], "column slot has values that do not fit"),
        ("start_s", [np.nan], "column start_s holds a value that is no number"),
        ("end_s", [np.inf], "column end_s holds a value that is no number"),
        ("end_s", [0.125], r"event 0 ends at 0\.125 s, before it begins at 0\.25 s"),
    ],
)
def test_values_that_cannot_be_are_refused_by_column(column, values, sentence):
    with pytest.raises(TableError, match=sentence):
        Timeline(**{**ONE, column: values})


@given(st.lists(timelines(), max_size=4))
def test_concatenation_keeps_events_and_their_order(parts):
    whole = Timeline.concatenate(parts)
    assert len(whole) == sum(map(len, parts))
    for name in Timeline.DTYPES:
        assert getattr(whole, name).tolist() == [v for part in parts for v in getattr(part, name).tolist()]


# traces


@given(timelines())
def test_every_event_is_shown_once_with_its_times(timeline):
    shown = of_phase(traced(timeline), "X")
    assert len(shown) == len(timeline)
    columns = (timeline.rank, timeline.slot, timeline.nbytes, timeline.start_s, timeline.end_s)
    for event, rank, slot, nbytes, start, end in zip(shown, *columns, strict=True):
        assert (event["pid"], event["args"]["slot"], event["args"]["nbytes"]) == (rank, slot, nbytes)
        assert event["ts"] == pytest.approx(start / US)
        assert event["dur"] == pytest.approx((end - start) / US)


@given(timelines())
def test_events_of_one_track_do_not_overlap(timeline):
    tracks = defaultdict(list)
    for event in of_phase(traced(timeline), "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], end_of(event), event["cat"]))
    for track in tracks.values():
        track.sort()
        assert len({pair for _, _, pair in track}) == 1, "one activity over one medium"
        for (_, before, _), (after, _, _) in pairwise(track):
            assert before <= after


@given(timelines())
def test_an_activity_over_a_medium_takes_as_many_tracks_as_events_overlap_at_most(timeline):
    events = of_phase(traced(timeline), "X")
    tracks, times = defaultdict(set), defaultdict(list)
    for event in events:
        pair = (event["pid"], event["cat"])
        tracks[pair].add(event["tid"])
        times[pair].append((event["ts"], end_of(event)))
    for pair, own in times.items():
        most = max(sum(start <= at < end or start == at == end for start, end in own) for at, _ in own)
        assert len(tracks[pair]) <= most


@given(timelines())
def test_every_track_that_is_used_has_a_name(timeline):
    events = traced(timeline, {0: "GPU 4"})
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(named) == {(event["pid"], event["tid"]) for event in of_phase(events, "X")}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {
        rank: "rank 0 (GPU 4)" if rank == 0 else f"rank {rank}" for rank in set(timeline.rank.tolist())
    }
    per_rank = defaultdict(list)
    for (rank, _), name in named.items():
        per_rank[rank].append(name)
    assert all(len(set(names)) == len(names) for names in per_rank.values())


def inside(arrow, events, *, with_end=False):
    """The events that an end of an arrow is bound to: on its track, around it, their own end excluded."""
    return [
        event
        for event in events
        if (event["pid"], event["tid"]) == (arrow["pid"], arrow["tid"])
        and event["ts"] <= arrow["ts"]
        and (
            arrow["ts"] < end_of(event)
            or (event["dur"] == 0 and arrow["ts"] == event["ts"])
            or (with_end and arrow["ts"] == end_of(event))
        )
    ]


@given(timelines())
def test_arrows_lead_from_sends_to_receipts_of_the_same_message_forward_in_time(timeline):
    events = traced(timeline)
    shown = of_phase(events, "X")
    starts, ends = of_phase(events, "s"), of_phase(events, "f")
    assert [arrow["id"] for arrow in starts] == [arrow["id"] for arrow in ends] == list(range(len(starts)))
    for start, end in zip(starts, ends, strict=True):
        assert start["ts"] <= end["ts"]
        assert any(
            send["cat"].startswith("send")
            and receipt["cat"].startswith("receive")
            and send["args"]["slot"] == receipt["args"]["slot"]
            and (send["args"].get("peer"), receipt["args"].get("peer")) == (receipt["pid"], send["pid"])
            for send in inside(start, shown)
            for receipt in inside(end, shown, with_end=start["ts"] == end["ts"])
        )


@st.composite
def exchanges(draw):
    """Both ends of messages that are posted in the same order and arrive after they were sent."""
    rows = []
    clock = {0: 0, 1: 0}
    for _ in range(draw(st.integers(0, 8))):
        src = draw(st.integers(0, 1))
        slot, nbytes = draw(st.integers(0, 1)), draw(st.integers(1, 9))
        leaves = clock[src] = clock[src] + draw(st.integers(1, 5))
        took = draw(st.integers(1, 30))
        rows.append((src, Activity.SEND, Medium.NETWORK, slot, 1 - src, nbytes, leaves, leaves + took))
        rows.append((1 - src, Activity.RECEIVE, Medium.NETWORK, slot, src, nbytes, leaves, leaves + took + 1))
    order = draw(st.permutations(range(len(rows))))
    columns = [*zip(*(rows[at] for at in order), strict=True)] or [()] * 8
    return Timeline(*columns[:6], np.array(columns[6]) * US, np.array(columns[7]) * US)


@given(exchanges())
def test_every_message_has_an_arrow_of_its_own(timeline):
    events = traced(timeline)
    shown = of_phase(events, "X")
    starts, ends = of_phase(events, "s"), of_phase(events, "f")
    assert len(starts) == len(ends) == len(timeline) // 2
    for start, end in zip(starts, ends, strict=True):
        [send], [receipt] = inside(start, shown), inside(end, shown)
        assert send["args"]["nbytes"] == receipt["args"]["nbytes"]
        assert send["ts"] == receipt["ts"]


@given(timelines(earliest_us=-30))
def test_nothing_begins_before_zero_and_distances_stay(timeline):
    shown = of_phase(traced(timeline), "X")
    least = min([0.0, *timeline.start_s.tolist()])
    for event, start in zip(shown, timeline.start_s.tolist(), strict=True):
        assert event["ts"] >= 0
        assert event["ts"] == pytest.approx((start - least) / US, abs=1e-3)


def test_the_same_timeline_gives_the_same_bytes_and_notes_are_kept():
    timeline = Timeline(**ONE)
    notes = {"digest": "abc", "repeat": 2}
    assert chrome_trace(timeline, {3: "\N{SNOWMAN}"}, notes) == chrome_trace(
        timeline, {3: "\N{SNOWMAN}"}, notes
    )
    document = json.loads(chrome_trace(timeline, None, notes))
    assert document["otherData"] == notes
    [event] = of_phase(document["traceEvents"], "X")
    assert event["args"] == {"rank": 3, "slot": 7, "nbytes": 4096, "peer": 5, "bytes_per_s": 16384}
    assert event["name"] == "slot 7 to 5"
