"""Sums over a plan's operations agree with the operations, expanded and counted one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from renamed import staged_plans
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.ir import stream
from reshard_planner.ir import traffic as counting
from reshard_planner.ir.chunks import share
from reshard_planner.ir.memory import scratch_ends
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.traffic import Traffic, measure_traffic
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

CONSTANTS = (
    (stream, "BLOCK_OPS"),
    (stream, "MAX_HELD_ROWS"),
    (stream, "BLOCK_COUNTERS"),
    (counting, "MAX_PENDING_PAIRS"),
)
"""What decides how much is counted at a time."""

LIMITS = st.sampled_from(
    [
        (2**17, 2**22, 2**20, 2**22),
        (5, 2**22, 2**20, 0),
        (1, 3, 2**20, 3),
        (40, 0, 1, 1),
        (2**17, 2**22, 20, 0),
    ]
)


@st.composite
def plans(draw: st.DrawFn) -> rp.Plan:
    if draw(st.booleans()):
        return draw(staged_plans())
    return rp.compile(draw(specs()), draw(st.sampled_from(STRATEGIES)))


def measured(plan: rp.Plan) -> tuple[Traffic, Ports]:
    ports = Ports.of(plan.spec.topology, plan.ranks)
    return measure_traffic(plan.spec, plan.tables, ports), ports


def most(sums: dict[tuple[int, int], int], rank: int) -> int:
    return max((value for (who, _), value in sums.items() if who == rank), default=0)


def most_held(ops: Ops, ends: list[int], ports: Ports) -> np.ndarray:
    """Most bytes that each rank keeps in scratch at one time, each up to its last slot."""
    held = np.zeros((len(ports.domain), max(ends, default=0) + 2), dtype=np.int64)
    for at in np.flatnonzero(ops.scratch).tolist():
        held[ops.dst[at], ops.slot[at] : ends[at] + 1] += ops.nbytes[at]
    return held.max(axis=1, initial=0)


@given(plans(), LIMITS)
def test_traffic_is_the_sum_of_all_operations(plan, limits):
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), limit in zip(CONSTANTS, limits, strict=True):
            patch.setattr(module, name, limit)
        found, ports = measured(plan)
    ops = plan.ops()
    assert found.slots == ops.slot.max(initial=-1) + 1
    for medium in Medium:
        assert found.nbytes[medium] == ops.nbytes[ops.medium == medium].sum()
        assert found.transfers[medium] == (ops.medium[ops.transfers()] == medium).sum()
    for tensor in range(len(plan.spec.tensors)):
        assert found.arriving[tensor] == ops.nbytes[(ops.tensor == tensor) & (ops.scratch == 0)].sum()
    uplink = np.zeros((2, len(ports.uplink_bytes_per_s)), dtype=np.int64)
    times: dict[int, dict[object, float]] = defaultdict(lambda: defaultdict(int))
    sums = [defaultdict(int), defaultdict(int)]
    pairs, peers, near = set(), defaultdict(set), {medium: defaultdict(set) for medium in Medium}
    loads = {medium: np.zeros((2, len(ports.domain)), dtype=np.int64) for medium in Medium}
    columns = (ops.src, ops.dst, ops.medium, ops.slot, ops.nbytes)
    for src, dst, medium, slot, nbytes in zip(*(column.tolist() for column in columns), strict=True):
        for way, pod in enumerate((ports.pod[src], ports.pod[dst])):
            if medium == Medium.NETWORK and pod >= 0 and ports.pod[src] != ports.pod[dst]:
                uplink[way, pod] += nbytes
                times[slot][way, "uplink", int(pod), int(ports.uplink_bytes_per_s[pod])] += nbytes
        for way, rank in enumerate((src, dst)):
            loads[medium][way, rank] += nbytes
            if medium == Medium.LOCAL:
                continue
            sums[way][rank, slot] += nbytes
            rate, port = ports.nvlink_bytes_per_s[rank], rank
            if medium == Medium.NETWORK:
                port = int(ports.nic_group[rank])
                rate = ports.nic_bytes_per_s[port]
            times[slot][way, medium, port, int(rate)] += nbytes
        if medium != Medium.LOCAL:
            pairs.add((slot, src, dst))
            for rank, peer in ((src, dst), (dst, src)):
                peers[slot, rank].add(peer)
                near[medium][rank].add(peer)
    assert np.array_equal(found.network, loads[Medium.NETWORK])
    assert np.array_equal(found.nvlink, loads[Medium.NVLINK])
    assert np.array_equal(found.uplink, uplink)
    busiest = [max(nbytes / key[3] for key, nbytes in times[slot].items()) for slot in sorted(times)]
    assert found.busiest_s.tolist() == busiest
    assert found.messages == len(pairs)
    assert found.peers_in_slot_max == max(map(len, peers.values()), default=0)
    for rank in range(len(ports.domain)):
        over = [near[medium][rank] for medium in (Medium.NETWORK, Medium.NVLINK)]
        assert (found.network_peers[rank], found.nvlink_peers[rank]) == (len(over[0]), len(over[1]))
        assert found.send_nbytes[rank] == most(sums[0], rank)
        assert found.receive_nbytes[rank] == most(sums[1], rank)
    assert found.peers_max == max(
        (len(near[Medium.NETWORK][r] | near[Medium.NVLINK][r]) for r in range(len(ports.domain))), default=0
    )


@given(plans())
def test_scratch_is_kept_until_the_last_row_that_reads_it_has_run(plan):
    found, ports = measured(plan)
    ops, routes = plan.ops(), plan.routes
    last = dict(enumerate(routes.offset.tolist()))
    for parent, offset in zip(routes.parent.tolist(), routes.offset.tolist(), strict=True):
        if parent >= 0:
            last[parent] = max(last[parent], offset)
    begun = plan.schedule.round[ops.unit]
    by_rows = [int(begun[at]) + last[row] for at, row in enumerate(ops.row.tolist())]
    # of a chunk that no copy has a share of, the operations that read it are fewer than the rows
    by_ops = scratch_ends(ops)
    assert (by_ops <= by_rows).all()
    assert np.array_equal(found.scratch_nbytes, most_held(ops, by_rows, ports))
    assert (found.scratch_nbytes >= most_held(ops, by_ops.tolist(), ports)).all()
    if (plan.schedule.n_chunks == 1).all():
        assert np.array_equal(by_ops, by_rows)


@given(plans())
def test_operations_of_a_rank_are_those_of_all_that_it_sends_or_receives(plan):
    ops = plan.ops()
    for rank in (*plan.ranks, max(plan.ranks) + 1):
        alone, these = plan.ops(rank=rank), ops.select((ops.src == rank) | (ops.dst == rank))
        for column in fields(Ops):
            assert np.array_equal(getattr(alone, column.name), getattr(these, column.name))


@given(
    st.lists(
        st.tuples(st.integers(0, 20) | st.integers(0, 2**57), st.integers(1, 2**30) | st.integers(1, 9)),
        min_size=1,
    ),
    st.data(),
)
def test_chunks_are_cut_where_exact_division_says(cases, data):
    extents, counts = zip(*cases, strict=True)
    parts = [data.draw(st.sampled_from([0, count, count // 2, count - 1])) for count in counts]
    columns = (np.array(column, dtype=np.int64) for column in (extents, parts, counts))
    exact = [extent * part // count for extent, part, count in zip(extents, parts, counts, strict=True)]
    assert share(*columns).tolist() == exact
    for extent, part, count in zip(extents, parts, counts, strict=True):
        one = (np.array([value], dtype=np.int64) for value in (extent, part, count))
        assert share(*one).tolist() == [extent * part // count]
