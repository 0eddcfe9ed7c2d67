"""Laws of predictions, an independent simulator in exact fractions, phases, timelines, and windows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from by_hand import by_hand
from exact_run import ExactRun
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from storage_strategies import stored_specs
from strategies import host_costs, specs, topologies

import reshard_planner as rp
from benchmarks.models import build_system, load_systems
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.messages import goes_straight, split_moves
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Activity
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import (
    Costs,
    Workload,
    count_events,
    phases_by_pattern,
    phases_by_strategy,
    plan_phases,
    predict,
    predict_phases,
    predict_workload,
    timeline_of,
)
from reshard_planner.simulate.engine import Engine
from reshard_planner.simulate.paths import Paths
from reshard_planner.simulate.phases import serial
from reshard_planner.simulate.straight import StraightBytes
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports, Topology
from reshard_planner.transfer import Medium

CLOSE = 1e-9
"""Relative difference that is rounding."""

WINDOW_ERROR = 0.002
"""Largest relative error of a run in windows of the default length."""

STRATEGY_NAMES = sorted(STRATEGIES)


def compiled(spec: rp.ReshardSpec, strategy: str) -> Plan:
    """A plan by any strategy; specs that it refuses are passed over."""
    try:
        return rp.compile(spec, strategy)
    except UnsupportedError:
        assume(False)
        raise


plans = st.builds(compiled, specs(), st.sampled_from(STRATEGY_NAMES))
small = st.builds(compiled, specs(max_tensors=2, max_ranks=6), st.sampled_from(STRATEGY_NAMES))


def changed(topology: Topology, **values: float) -> Topology:
    """The same cluster with other values in all of its links."""
    return replace(
        topology,
        domains=tuple(replace(each, link=replace(each.link, **values)) for each in topology.domains),
        nics=tuple(replace(each, link=replace(each.link, **values)) for each in topology.nics),
        pods=tuple(replace(each, uplink=replace(each.uplink, **values)) for each in topology.pods),
    )


# Workloads


def check_workload(plan: Plan) -> None:
    """Compare a workload with what the programs of all ranks say, move by move."""
    found = Workload.of(plan)
    rows, sent = {}, {}
    for program in plan.scatter():
        for slot in program.slots:
            copied = sum(move.nbytes for move in slot.copies)
            packed, posted = {}, 0
            for side, pairs in (("read", slot.sends), ("write", slot.receives)):
                total = nvlink = 0
                for _, moves in pairs:
                    for message in split_moves(moves):
                        posted += 1
                        if not goes_straight([getattr(move, side) for move in message]):
                            nbytes = sum(move.nbytes for move in message)
                            total += nbytes
                            nvlink += nbytes * (message[0].medium == Medium.NVLINK)
                packed[side] = total, nvlink
            rows[program.rank, slot.number] = (copied, *packed["read"], *packed["write"], posted)
            for peer, moves in slot.sends:
                for move in moves:
                    key = slot.number, program.rank, peer, int(move.medium)
                    sent[key] = sent.get(key, 0) + move.nbytes
    table = found.rank_slots
    columns = [getattr(table, column.name).tolist() for column in fields(table)]
    assert [*zip(*columns, strict=True)] == [(*key, *rows[key]) for key in sorted(rows)]
    messages = found.messages
    keys = [messages.slot, messages.src, messages.dst, messages.medium, messages.nbytes]
    assert [*zip(*(key.tolist() for key in keys), strict=True)] == [(*key, sent[key]) for key in sorted(sent)]
    for at, ends in ((found.sender, messages.src), (found.receiver, messages.dst)):
        assert np.array_equal(table.rank[at], ends)
        assert np.array_equal(table.slot[at], messages.slot)


@given(plans)
def test_a_workload_is_what_programs_say(plan):
    check_workload(plan)


@given(stored_specs(), st.sampled_from(["optimal", "gather-broadcast"]))
@settings(max_examples=50)
def test_a_workload_is_what_programs_say_with_storage(spec, strategy):
    check_workload(rp.compile(spec, strategy))


def test_a_workload_of_large_messages_is_what_programs_say():
    check_workload(model_plan("dsv3-toy-64"))


@given(small, host_costs)
@settings(max_examples=60)
def test_a_simulator_in_fractions_comes_to_the_same(plan, costs):
    workload = Workload.of(plan)
    assume(0 < len(workload.messages) <= 60)
    expected = ExactRun(workload, plan.spec.topology, costs).elapsed_s()
    assert predict(plan, costs).elapsed_s == pytest.approx(float(expected), rel=1e-6)


@given(st.data(), host_costs, st.integers(1, 3))
@settings(max_examples=60)
def test_the_simulator_in_fractions_agrees_on_any_messages(data, costs, lag):
    count = data.draw(st.integers(2, 5))
    topology = data.draw(topologies(range(count)))
    home = {gpu: at for at, domain in enumerate(topology.domains) for gpu in domain.gpus}
    keys = st.tuples(st.integers(0, 5), st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = data.draw(st.dictionaries(keys, st.integers(100, 5000), min_size=4, max_size=16))
    messages = [
        (slot, src, dst, Medium.NVLINK if home[src] == home[dst] else Medium.NETWORK, nbytes)
        for (slot, src, dst), nbytes in drawn.items()
        if src != dst
    ]
    assume(messages)
    rows = sorted({(rank, slot) for slot, src, dst, *_ in messages for rank in (src, dst)})
    work = {row: data.draw(st.tuples(*[st.sampled_from([0, 300, 2000])] * 3)) for row in rows}
    workload = by_hand(messages, lag, work)
    expected = ExactRun(workload, topology, costs).elapsed_s()
    assert predict_workload(workload, topology, costs).elapsed_s == pytest.approx(float(expected), rel=1e-6)


@given(small, host_costs)
@settings(max_examples=40)
def test_windows_come_to_the_same_within_their_error(plan, costs):
    exact = predict(plan, costs, tolerance=0.0).elapsed_s
    assert predict(plan, costs, tolerance=2e-4).elapsed_s == pytest.approx(exact, rel=WINDOW_ERROR)


# Messages of one slot over NICs of 1000 bytes/s; ranks 0 and 1 share an uplink of 700. The first need that
# traffic past no uplink does not mix with all other such traffic, the others that a change at ports beyond
# their own does not count from the end of the window.
UPLINKED = (
    [
        (0, 5, 1611), (1, 2, 2977), (1, 3, 1267), (2, 0, 2217), (2, 1, 453), (3, 2, 1374), (4, 0, 974),
        (4, 1, 2640), (4, 3, 281), (4, 5, 633), (5, 2, 2719), (5, 3, 188), (5, 4, 2264),
    ],
    [
        (0, 1, 1703), (0, 2, 854), (0, 3, 304), (1, 2, 912), (1, 3, 439), (2, 0, 875), (3, 0, 1780),
        (3, 2, 2223),
    ],
)  # fmt: skip


@pytest.mark.parametrize("messages", UPLINKED)
def test_windows_keep_account_of_ports_that_change_within_them(messages):
    work = by_hand([(0, src, dst, Medium.NETWORK, nbytes) for src, dst, nbytes in messages])
    ranks = work.ranks
    topology = Topology(
        tuple(Domain((rank,)) for rank in ranks),
        tuple(Nic((rank,), Link(1000, 1.0, 0.0)) for rank in ranks),
        pods=(Pod((0, 1), Link(700, 1.0, 0.0)),),
    )
    exact, windows = (predict_workload(work, topology, tolerance=x).elapsed_s for x in (0.0, 1e-3))
    assert windows == pytest.approx(exact, rel=CLOSE)


# Laws


@given(plans, st.sampled_from([1.0, 0.5]))
def test_no_plan_of_least_payload_by_any_strategy_is_faster_than_the_bound(plan, efficiency):
    payload = plan.certificate.payload
    assume(payload.network_nbytes == payload.minimum_network_nbytes)
    topology = changed(plan.spec.topology, efficiency=efficiency, latency_s=0.0)
    found = predict(plan, topology=topology)
    assert found.elapsed_s * (1 + CLOSE) >= plan.certificate.bound.time_s / efficiency


@given(plans, host_costs)
def test_no_port_is_above_its_rate_and_every_flow_has_a_full_one(plan, costs):
    workload = Workload.of(plan)
    paths = Paths.of(workload, plan.spec.topology)
    run = Engine(workload, paths, costs, 0.0)
    run.start()
    while run.next_window():
        passed = paths.ports[run.flowing]
        load = np.bincount(passed.ravel(), run.rate.repeat(passed.shape[1]), len(paths.bytes_per_s))
        assert (load[:-1] <= paths.bytes_per_s[:-1] * (1 + CLOSE)).all()
        full = load >= paths.bytes_per_s * (1 - 1e-8)
        assert full[passed].any(axis=1).all()
    assert run.arrived == len(workload.messages)


@given(
    st.integers(1, 10**9),
    st.integers(1, 4),
    st.tuples(*[st.integers(1_000, 10**9)] * 2),
    st.sampled_from([0.0, 1e-6, 0.5]),
    host_costs,
)
def test_transfers_that_meet_no_other_take_the_closed_form(nbytes, count, rates, latency_s, costs):
    layouts = [rp.Layout(rp.Mesh([2 * at + side for at in range(count)]), ["S(0)"]) for side in (0, 1)]
    topology = Topology(
        tuple(Domain((gpu,)) for gpu in range(2 * count)),
        tuple(Nic((gpu,), Link(rates[gpu % 2], 0.5, latency_s)) for gpu in range(2 * count)),
    )
    spec = rp.ReshardSpec(
        [rp.TensorSpec("w", (count * nbytes,), "uint8", *layouts)],
        topology,
        rp.Options(min_message_nbytes=2**40, staging_nbytes=2**40),
    )
    plan = rp.compile(spec, "direct")
    assume(plan.certificate.schedule.slots == 1)
    wire = latency_s + nbytes / (min(rates) * 0.5)
    own = costs.slot_s + costs.message_s  # one run of bytes, which nobody packs
    assert predict(plan, costs).elapsed_s == pytest.approx(own + wire, rel=CLOSE)


# Windows


@cache
def model_plan(name: str) -> Plan:
    return rp.compile(build_system(load_systems()[name]))


@pytest.mark.parametrize(
    "costs",
    [Costs(), Costs(2e12, 2e-6, 1e-7), Costs(2e11, buffered_nbytes=2**16)],
    ids=["free", "gpu", "slow"],
)
@pytest.mark.parametrize("name", ["dsv3-toy-64", "dsv3-toy-128", "qwen3-32b-tp4"])
def test_windows_are_as_exact_as_they_claim_on_whole_models(name, costs):
    plan = model_plan(name)
    workload = Workload.of(plan)
    exact, windows = (
        predict_workload(workload, plan.spec.topology, costs, tolerance=tolerance)
        for tolerance in (0.0, 2e-4)
    )
    assert windows.elapsed_s == pytest.approx(exact.elapsed_s, rel=WINDOW_ERROR)
    assert np.abs(windows.end_s - exact.end_s).max() <= WINDOW_ERROR * exact.elapsed_s
    assert windows.ports[0].nbytes == exact.ports[0].nbytes


@pytest.mark.parametrize("tolerance", [-1e-9, 0.0011, float("nan"), float("inf"), "x", True])
def test_impossible_tolerances_are_refused(tolerance):
    with pytest.raises(InputError, match="tolerance is"):
        predict(model_plan("qwen3-32b-tp4"), tolerance=tolerance)


# Phases


@given(plans, host_costs, st.data())
def test_phases_run_one_after_another_and_move_the_same_bytes(plan, costs, data):
    count = len(plan.spec.tensors)
    order = data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(0, count))
    phases = [order[:cut], order[cut:]]
    found, whole = predict(plan, costs, phases=phases), predict(plan, costs)
    assert found.elapsed_s == found.phase_ends_s[-1] == found.end_s.max(initial=0.0)
    first = found.phase_ends_s[0]
    ops = plan.ops()
    early = {int(slot) for slot in ops.slot[np.isin(ops.tensor, phases[0])]}
    flows = found.intervals
    assert {int(slot) for slot in flows.slot[flows.end_s <= first]} <= early
    assert (flows.start_s[flows.end_s > first * (1 + CLOSE)] >= first).all()
    assert {use.resource: use.nbytes for use in found.ports} == {
        use.resource: use.nbytes for use in whole.ports
    }
    assert all(use.nbytes / use.bytes_per_s <= found.elapsed_s * (1 + CLOSE) for use in found.ports)


@given(plans)
def test_serial_phases_pack_before_all_messages_and_unpack_after_them(plan):
    workload = Workload.of(plan)
    rows, before = serial(workload).rank_slots, workload.rank_slots
    for rank in np.unique(rows.rank).tolist():
        mine = np.flatnonzero(rows.rank == rank)
        assert rows.pack_nbytes[mine[0]] == before.pack_nbytes[mine].sum() == rows.pack_nbytes[mine].sum()
        assert rows.unpack_nbytes[mine[-1]] == before.unpack_nbytes[mine].sum()
        assert rows.unpack_nbytes[mine].sum() == rows.unpack_nbytes[mine[-1]]


def test_serial_phases_take_the_sum_of_their_parts():
    sides = [rp.Layout(rp.Mesh(ranks), ["S(1)" if ranks[0] else "S(0)"]) for ranks in ([0, 1], [2, 3])]
    tensors = [rp.TensorSpec(f"layers.{at}.w", (8, 8), "uint8", *sides) for at in range(2)]
    topology = Topology.uniform(4, 1, Link(1000, 1.0, 0.0))
    plan = rp.compile(rp.ReshardSpec(tensors, topology), "direct")
    costs = Costs(pack_bytes_per_s=100)
    # per tensor each rank packs 2 x 16 bytes (half a row is no run), sends 32, and unpacks none
    pieces = [predict(plan, costs, phases=[[at], [1 - at]], overlapped=False) for at in (0, 1)]
    packed = int(Workload.of(plan).rank_slots.pack_nbytes.sum()) // 2  # per rank, of both tensors
    unpacked = int(Workload.of(plan).rank_slots.unpack_nbytes.sum()) // 2
    for found in pieces:
        assert found.elapsed_s == pytest.approx((packed + unpacked) / 100 + 2 * 32 / 1000)
        assert found.phase_ends_s == pytest.approx((found.elapsed_s / 2, found.elapsed_s))


def test_patterns_join_layers_and_experts_but_not_words_with_digits():
    layout = rp.Layout(rp.Mesh([0]), ["R"])
    names = ["embed", "layers.0.experts.3.w1", "layers.12.experts.0.w1", "layers.0.experts.3.w2", "block_7.a"]
    names.append("block_8.a")
    tensors = [rp.TensorSpec(name, (4,), "int8", layout, layout) for name in names]
    found = phases_by_pattern(rp.ReshardSpec(tensors, Topology.uniform(1, 1)))
    assert found == ((0,), (1, 2), (3,), (4, 5))


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([[0]], "'w1' is in no phase"),
        ([[0, 1], [1]], "in phases 0 and 1"),
        ([[0, 1, 2]], "has tensor 2"),
        ([0, 1], "phase 0 is 0; expected positions"),
        ([[0.5], [1]], r"phase 0 has 0\.5"),
        ([[0], [True]], "phase 1 has True"),
        (["w0", "w1"], "phase 0 has 'w'"),
        (2, "phases is 2"),
    ],
)
def test_phases_that_miss_or_repeat_a_tensor_are_refused(phases, message):
    sides = [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in (0, 1)]
    tensors = [rp.TensorSpec(f"w{at}", (4,), "int8", *sides) for at in range(2)]
    plan = rp.compile(rp.ReshardSpec(tensors, Topology.uniform(2, 1)))
    with pytest.raises(InputError, match=message):
        predict(plan, phases=phases)


def test_phases_are_found_without_looking_at_the_whole_plan_each_time(monkeypatch):
    sides = [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in (0, 1)]
    tensors = [rp.TensorSpec(f"w{at}", (4,), "int8", *sides) for at in range(30)]
    plan = rp.compile(rp.ReshardSpec(tensors, Topology.uniform(2, 1)))
    made = Counter()

    def counted(self, *arguments):
        made["straight"] += 1
        return begin(self, *arguments)

    def seen(topology, ranks):
        made["ports"] += 1
        return ports_of(topology, ranks)

    begin, ports_of = StraightBytes.__init__, Ports.of
    monkeypatch.setattr(StraightBytes, "__init__", counted)
    monkeypatch.setattr(Ports, "of", seen)
    found = predict(plan, phases=[[at] for at in range(30)])
    assert len(found.phase_ends_s) == 30
    assert made == {"straight": 1, "ports": 1}


def fed_forward(*names: str) -> rp.ReshardSpec:
    source, target = (rp.Layout(rp.Mesh(ranks), ["S(0)"]) for ranks in ([0, 1], [2, 3]))
    tensors = [rp.TensorSpec(name, (64, 64), "bfloat16", source, target) for name in names]
    return rp.ReshardSpec(tensors, Topology.uniform(4, 2))


MIXED = "layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight", "norm.weight"


def test_only_hybrid_runs_in_phases_and_only_with_weights_of_both_kinds():
    mixed = fed_forward(*MIXED)
    assert phases_by_strategy(mixed.with_options(strategy="hybrid")) == ((1,), (0, 2))
    assert phases_by_strategy(rp.compile(mixed, "hybrid").spec) == ((1,), (0, 2))
    assert {phases_by_strategy(mixed.with_options(strategy=n)) for n in STRATEGIES if n != "hybrid"} == {None}
    for names in (MIXED[:1], MIXED[1:2], ()):
        assert phases_by_strategy(fed_forward(*names).with_options(strategy="hybrid")) is None


def test_one_phase_is_the_whole_plan():
    plan = rp.compile(fed_forward(*MIXED))
    [phase] = plan_phases(plan, None)
    assert len(phase.workload.messages) == plan.certificate.schedule.messages
    alone, whole = (
        predict_phases([phase], plan.spec.topology),
        predict_workload(phase.workload, plan.spec.topology),
    )
    assert (alone.elapsed_s, alone.ports) == (whole.elapsed_s, whole.ports)
    assert np.array_equal(alone.intervals.end_s, whole.intervals.end_s)
    assert np.array_equal(alone.slots.slot, whole.slots.slot)


# Timelines


@given(plans, host_costs, st.booleans(), st.data())
def test_events_are_counted_before_a_run_as_it_has_them(plan, costs, serially, data):
    ranks = data.draw(st.none() | st.lists(st.sampled_from(plan.ranks), unique=True))
    phases = plan_phases(plan, None, overlapped=not serially)
    found = predict_phases(phases, plan.spec.topology, costs)
    counted = sum(count_events(phase.workload, ranks) for phase in phases)
    assert counted == len(timeline_of(found, ranks))


@pytest.mark.parametrize("rank", [-1, 4, "0", True, 0.5])
def test_ranks_that_a_run_does_not_have_are_refused(rank):
    plan = rp.compile(fed_forward(*MIXED))
    found = predict(plan)
    with pytest.raises(InputError, match="expected ranks from 0 to 3"):
        timeline_of(found, [rank])
    with pytest.raises(InputError, match="expected ranks from 0 to 3"):
        count_events(Workload.of(plan), [rank])
    with pytest.raises(InputError, match="expected a rank from 0 to 3"):
        found.spent(rank)


@given(plans, host_costs, st.booleans())
def test_a_timeline_has_the_bytes_of_the_plan_and_no_rank_copies_twice_at_once(plan, costs, serially):
    found = predict(plan, costs, overlapped=not serially)
    timeline = timeline_of(found)
    payload = plan.certificate.payload
    for activity in (Activity.SEND, Activity.RECEIVE):
        for medium, nbytes in (
            (Medium.NETWORK, payload.network_nbytes),
            (Medium.NVLINK, payload.nvlink_nbytes),
        ):
            chosen = (timeline.activity == activity) & (timeline.medium == medium)
            assert timeline.nbytes[chosen].sum() == nbytes
    copies = (timeline.activity == Activity.PACK) & (timeline.medium == Medium.LOCAL)
    assert timeline.nbytes[copies].sum() == payload.local_nbytes
    rows = Workload.of(plan).rank_slots
    for activity, total in ((Activity.PACK, rows.pack_nbytes), (Activity.UNPACK, rows.unpack_nbytes)):
        chosen = (timeline.activity == activity) & (timeline.medium != Medium.LOCAL)
        assert timeline.nbytes[chosen].sum() == total.sum()
    assert timeline.end_s.max(initial=0.0) <= found.elapsed_s * (1 + CLOSE)
    copying = np.isin(timeline.activity, [Activity.PACK, Activity.UNPACK])
    for rank in plan.ranks:
        mine = np.flatnonzero(copying & (timeline.rank == rank))
        mine = mine[np.lexsort((timeline.end_s[mine], timeline.start_s[mine]))]
        assert (timeline.start_s[mine][1:] >= timeline.end_s[mine][:-1] - CLOSE * found.elapsed_s).all()


@given(plans, host_costs)
def test_what_a_rank_does_adds_up_to_its_end(plan, costs):
    found = predict(plan, costs)
    for rank in plan.ranks:
        spent = found.spent(rank)
        total = spent.pack_s + spent.post_s + spent.unpack_s + spent.wait_s
        assert total == pytest.approx(found.end_s[rank], rel=1e-6)
        rows = found.slots.rank == rank
        handled = found.slots.copy_nbytes[rows].sum() + found.slots.pack_nbytes[rows].sum()
        assert spent.pack_s == pytest.approx(handled * costs.pack_s_per_byte, rel=1e-6, abs=1e-9)


def test_a_trace_of_some_ranks_has_theirs_alone():
    found = predict(model_plan("qwen3-32b-tp4"), Costs(1e12))
    timeline = timeline_of(found, ranks=[1, 6])
    assert sorted(set(timeline.rank.tolist())) == [1, 6]
    events = json.loads(chrome_trace(timeline))["traceEvents"]
    assert {event["pid"] for event in events} == {1, 6}
