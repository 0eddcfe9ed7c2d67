"""Predictions: no faster than ports allow, exact where a hand can count, and close to small steps in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import NamedTuple

import numpy as np
import pytest
from _plans import sample_plans
from by_hand import by_hand
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import host_costs, specs, topologies

import reshard_planner as rp
from reshard_planner.errors import InputError, MediumError, TopologyError
from reshard_planner.ir.program import Move, Program
from reshard_planner.ir.traffic import measure_traffic
from reshard_planner.ir.views import View
from reshard_planner.simulate import (
    Costs,
    LinkCosts,
    Measurement,
    Prediction,
    Workload,
    fit_costs,
    predict,
    predict_workload,
    with_link_costs,
)
from reshard_planner.simulate.costs import FREE
from reshard_planner.simulate.fair import ordered_rates
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports
from reshard_planner.transfer import Medium

CLOSE = 1e-9
"""Relative difference that is rounding."""


def with_links(topology: rp.Topology, change: Callable[[Link], Link]) -> rp.Topology:
    return replace(
        topology,
        domains=tuple(replace(domain, link=change(domain.link)) for domain in topology.domains),
        nics=tuple(replace(nic, link=change(nic.link)) for nic in topology.nics),
        pods=tuple(replace(pod, uplink=change(pod.uplink)) for pod in topology.pods),
    )


def without_latency(topology: rp.Topology) -> rp.Topology:
    return with_links(topology, lambda link: replace(link, latency_s=0.0))


def same(one: Prediction, other: Prediction) -> bool:
    """Whether two predictions are equal, bit by bit."""
    columns = [column.name for column in fields(one.intervals)]
    return (
        (one.elapsed_s, one.ports) == (other.elapsed_s, other.ports)
        and np.array_equal(one.end_s, other.end_s)
        and all(np.array_equal(getattr(one.intervals, at), getattr(other.intervals, at)) for at in columns)
    )


plans = specs().map(rp.compile)

# Laws


@given(plans, host_costs)
def test_no_run_is_faster_than_its_busiest_port(plan, costs):
    found = predict(plan, costs)
    assert all(port.nbytes / port.bytes_per_s <= found.elapsed_s * (1 + CLOSE) for port in found.ports)
    assert all(0 < port.utilisation <= 1 + CLOSE for port in found.ports)
    claims = plan.certificate
    for busiest in (claims.busiest_nic, claims.busiest_nvlink, claims.busiest_uplink):
        assert found.elapsed_s * (1 + CLOSE) >= busiest.time_s
    if found.ports:
        assert found.busiest is not None
        assert found.busiest.utilisation == max(port.utilisation for port in found.ports)


@given(specs(strategies=["optimal"]).map(rp.compile), st.sampled_from([1.0, 0.5]))
def test_no_plan_of_least_payload_is_faster_than_the_bound(plan, efficiency):
    topology = with_links(
        plan.spec.topology, lambda link: replace(link, efficiency=efficiency, latency_s=0.0)
    )
    found = predict(plan, topology=topology)
    assert found.elapsed_s * (1 + CLOSE) >= plan.certificate.bound.time_s / efficiency


@given(plans, st.sampled_from([2, 3, 1000]))
def test_faster_ports_scale_the_time(plan, factor):
    slow = without_latency(plan.spec.topology)
    fast = with_links(slow, lambda link: replace(link, bytes_per_s=link.bytes_per_s * factor))
    slow_s, fast_s = (predict(plan, topology=topology).elapsed_s for topology in (slow, fast))
    assert fast_s * factor == pytest.approx(slow_s, rel=CLOSE)


@given(plans, host_costs)
def test_where_every_cost_doubles_the_time_does(plan, costs):
    halved = with_links(plan.spec.topology, lambda link: replace(link, efficiency=link.efficiency / 2))
    slow = with_links(halved, lambda link: replace(link, latency_s=link.latency_s * 2))
    rate = costs.pack_bytes_per_s
    doubled = Costs(
        None if rate is None else rate / 2, costs.slot_s * 2, costs.message_s * 2, costs.buffered_nbytes
    )
    expected = 2 * predict(plan, costs).elapsed_s
    assert predict(plan, doubled, topology=slow).elapsed_s == pytest.approx(expected, rel=CLOSE)


@given(plans, host_costs, st.sampled_from([1e-6, 1e-3, 1.0]))
def test_more_latency_of_all_links_alike_is_never_faster(plan, costs, more_s):
    late = with_links(plan.spec.topology, lambda link: replace(link, latency_s=link.latency_s + more_s))
    before, after = predict(plan, costs), predict(plan, costs, topology=late)
    assert after.elapsed_s >= before.elapsed_s * (1 - CLOSE)


def test_more_latency_of_one_nic_may_be_faster():
    # the late NIC sends its one message to 6 later, so that those before it there have the port for longer
    work = by_hand(
        [
            *((3, 3, dst, Medium.NETWORK, 6) for dst in (6, 7)),
            *((4, 3, dst, Medium.NETWORK, 4) for dst in (5, 6, 7)),
            *((5, src, dst, Medium.NETWORK, 8) for src, dst in ((1, 7), (3, 5), (4, 6))),
            *((6, 3, dst, Medium.NETWORK, 6) for dst in (5, 6, 7)),
        ]
    )
    rates = (20, 20, 20, 10, 20, 5, 5, 5)

    def elapsed_s(late_s: float) -> float:
        nics = (Nic((gpu,), Link(rate, 1.0, late_s * (gpu == 4))) for gpu, rate in enumerate(rates))
        topology = rp.Topology(tuple(Domain((gpu,)) for gpu in range(8)), tuple(nics))
        return predict_workload(work, topology).elapsed_s

    assert elapsed_s(2.1) < 0.97 * elapsed_s(0.1)


@given(plans, host_costs)
def test_every_message_is_under_way_once_and_no_byte_is_lost(plan, costs):
    found = predict(plan, costs)
    intervals = found.intervals
    claims, traffic = (
        plan.certificate,
        measure_traffic(plan.spec, plan.tables, Ports.of(plan.spec.topology, plan.ranks)),
    )
    assert len(intervals) == claims.schedule.messages
    network = intervals.medium == Medium.NETWORK
    assert intervals.nbytes[network].sum() == claims.payload.network_nbytes
    assert intervals.nbytes[~network].sum() == claims.payload.nvlink_nbytes
    nvlink = {
        f"nvlink of rank {rank}, {name}": nbytes
        for load, name in zip(traffic.nvlink.tolist(), ("out", "in"), strict=True)
        for rank, nbytes in enumerate(load)
        if nbytes
    }
    assert {use.resource: use.nbytes for use in found.ports if "nvlink" in use.resource} == nvlink
    uplinks = {
        f"uplink of pod {pod}, {name}": nbytes
        for load, name in zip(traffic.uplink.tolist(), ("out", "in"), strict=True)
        for pod, nbytes in enumerate(load)
        if nbytes
    }
    assert {use.resource: use.nbytes for use in found.ports if "uplink" in use.resource} == uplinks
    for direction, load in zip(("out", "in"), traffic.network, strict=True):
        nics = [
            use.nbytes for use in found.ports if use.resource.startswith("nic") and direction in use.resource
        ]
        assert sum(nics) == load.sum()
    order = np.lexsort((intervals.dst, intervals.src, intervals.slot))
    assert np.array_equal(order, np.arange(len(intervals)))
    assert (intervals.end_s > intervals.start_s).all()
    for rank in plan.ranks:
        sent = (intervals.src == rank) & (intervals.nbytes > costs.buffered_nbytes)
        mine = intervals.end_s[sent | (intervals.dst == rank)]
        assert found.end_s[rank] >= mine.max(initial=0.0)
    assert found.elapsed_s == found.end_s.max(initial=0.0)


@given(specs(), host_costs)
@settings(max_examples=20)
def test_names_and_repetition_change_nothing(spec, costs):
    renamed = rp.ReshardSpec(
        [replace_name(tensor, f"z{9 - at}") for at, tensor in enumerate(spec.tensors)],
        spec.topology,
        spec.options,
    )
    first = predict(rp.compile(spec), costs)
    assert same(first, predict(rp.compile(spec), costs))
    assert same(first, predict(rp.compile(renamed), costs))


def replace_name(tensor: rp.TensorSpec, name: str) -> rp.TensorSpec:
    return rp.TensorSpec(name, tensor.shape, tensor.dtype, tensor.src, tensor.dst)


@given(st.data())
def test_fair_shares_leave_nobody_who_could_have_more(data):
    count = data.draw(st.integers(1, 6))
    rates = np.array([*data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), inf])
    paths = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    flows = data.draw(st.lists(paths, min_size=1, max_size=12))
    ports = np.array([path + [count] * (3 - len(path)) for path in flows])
    found = ordered_rates(ports, np.zeros(len(ports), dtype=np.int64), rates)
    load = [
        sum(rate for rate, path in zip(found, flows, strict=True) if port in path) for port in range(count)
    ]
    assert all(total <= rate * (1 + CLOSE) for total, rate in zip(load, rates[:-1], strict=True))
    for rate, path in zip(found, flows, strict=True):
        assert any(
            load[port] == pytest.approx(rates[port])
            and rate >= max(r for r, other in zip(found, flows, strict=True) if port in other) * (1 - CLOSE)
            for port in path
        )


@given(st.data())
def test_earlier_messages_leave_what_they_do_not_use_to_later_ones(data):
    count = data.draw(st.integers(1, 5))
    rates = np.array([*data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)), inf])
    paths = st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True)
    ports = np.array(
        [path + [count] * (3 - len(path)) for path in data.draw(st.lists(paths, min_size=1, max_size=12))]
    )
    order = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=len(ports), max_size=len(ports))))
    found = ordered_rates(ports, order, rates)
    left = rates.copy()
    for number in sorted(set(order.tolist())):
        mine = order == number
        free = (left[ports] > CLOSE).all(axis=1)
        assert found[mine & ~free] == pytest.approx(0.0, abs=CLOSE)
        chosen = ports[mine & free]
        alone = ordered_rates(chosen, np.zeros(len(chosen), dtype=np.int64), left)
        assert found[mine & free] == pytest.approx(alone, abs=1e-6)
        np.subtract.at(left, ports[mine], found[mine][:, np.newaxis])


# Small steps in time, by rules written down anew


def dense(view: View) -> bool:
    """Whether the offsets of a view's elements, listed one by one, have no gaps."""
    offsets = [0]
    for extent, stride in zip(view.shape, view.strides, strict=True):
        offsets = [offset + at * stride for offset in offsets for at in range(extent)]
    return offsets == list(range(len(offsets)))


def staged(messages: tuple[tuple[int, tuple[Move, ...]], ...]) -> tuple[int, int]:
    """Bytes that are packed, and messages: of each peer the first 16 of a MiB or more go alone."""
    total = count = 0
    for _, moves in messages:
        large = [move for move in moves if move.nbytes >= 1024 * 1024][:16]
        small = [move for move in moves if not any(move is other for other in large)]
        for together in [small, *([move] for move in large)]:
            count += bool(together)
            if together:
                [view] = together[0].read or together[0].write
                if len(together) > 1 or not dense(view):
                    total += sum(move.nbytes for move in together)
    return total, count


Key = tuple[int, int, int]
"""Slot, sender and receiver of a message."""


@dataclass
class Flow:
    nbytes: float
    ports: dict[object, float]
    latency_s: float
    slot: int
    buffered: bool
    posted: int = 0
    rate: float = 0.0
    started: bool = False


class Turn(NamedTuple):
    """A slot of a rank: its number, bytes handled before and after, messages posted, and flows."""

    number: int
    begin_nbytes: int
    unpack_nbytes: int
    posted: int
    keys: list[Key]


def host(rank: int, turns: list[Turn], lag: int, costs: Costs, flows: dict[Key, Flow]) -> Iterator[float]:
    """What a rank does: yields the time that the next thing takes, infinite while it waits."""
    per_byte = 0.0 if costs.pack_bytes_per_s is None else 1 / costs.pack_bytes_per_s
    finished = 0

    def under_way(key: Key) -> bool:
        flow = flows[key]
        return not flow.started if flow.buffered and key[1] == rank else flow.nbytes > 0

    def finish_next() -> Iterator[float]:
        while any(under_way(key) for key in turns[finished].keys):
            yield inf
        yield turns[finished].unpack_nbytes * per_byte

    for at, turn in enumerate(turns):
        while finished < at - 1 or any(past.number <= turn.number - lag for past in turns[finished:at]):
            yield from finish_next()
            finished += 1
        yield costs.slot_s + costs.message_s * turn.posted + turn.begin_nbytes * per_byte
        for key in turn.keys:
            flows[key].posted += 1
    while finished < len(turns):
        yield from finish_next()
        finished += 1


def ports_of(topology: rp.Topology, src: int, dst: int) -> tuple[dict[object, float], float]:
    """Rates of the ports between two GPUs, and the latency."""
    [(out, sender)] = [(at, domain) for at, domain in enumerate(topology.domains) if src in domain.gpus]
    [(into, receiver)] = [(at, domain) for at, domain in enumerate(topology.domains) if dst in domain.gpus]
    links: list[tuple[object, Link]]
    if out == into:
        links = [(("nvlink out", src), sender.link), (("nvlink in", dst), receiver.link)]
    else:
        links = [(("nic out", nic.gpus), nic.link) for nic in topology.nics if src in nic.gpus]
        links += [(("nic in", nic.gpus), nic.link) for nic in topology.nics if dst in nic.gpus]
        for number, pod in enumerate(topology.pods):
            if (out in pod.domains) != (into in pod.domains):
                links.append((("uplink", number, out in pod.domains), pod.uplink))
    rates: dict[object, float] = defaultdict(float)
    for name, link in links:
        rates[name] += link.bytes_per_s * link.efficiency
    return rates, max(link.latency_s for _, link in links)


def share(flows: list[Flow]) -> None:
    """Slot by slot, fix the rates of the flows through the tightest port, again and again."""
    rates = {port: rate for flow in flows for port, rate in flow.ports.items()}
    full = {port: rate * 1e-9 for port, rate in rates.items()}
    for slot in sorted({flow.slot for flow in flows}):
        rest = [flow for flow in flows if flow.slot == slot]
        while rest:
            crowd = {port: [flow for flow in rest if port in flow.ports] for port in rates}
            tightest = min(
                (port for port in rates if crowd[port]), key=lambda port: rates[port] / len(crowd[port])
            )
            fair = rates[tightest] / len(crowd[tightest]) if rates[tightest] > full[tightest] else 0.0
            for flow in crowd[tightest]:
                flow.rate = fair
                for port in flow.ports:
                    rates[port] -= fair
            rest = [flow for flow in rest if flow not in crowd[tightest]]


def turns_of(program: Program) -> list[Turn]:
    """The slots of a program."""
    return [
        Turn(
            slot.number,
            sum(move.nbytes for move in slot.copies) + staged(slot.sends)[0],
            staged(slot.receives)[0],
            staged(slot.sends)[1] + staged(slot.receives)[1],
            [(slot.number, program.rank, peer) for peer, _ in slot.sends]
            + [(slot.number, peer, program.rank) for peer, _ in slot.receives],
        )
        for slot in program.slots
    ]


def stepped(
    turns: list[list[Turn]],
    sizes: dict[Key, int],
    topology: rp.Topology,
    lag: int,
    costs: Costs,
    step_s: float,
    ranks: Sequence[int],
) -> float:
    """The time of a run in steps of fixed length; every event is late by up to one.

    Args:
        turns: slots of each rank.
        sizes: bytes of each message, by slot, sender and receiver.
        topology: the cluster.
        lag: slots between a message and one that sends on what it brought.
        costs: of the ranks' own work.
        step_s: length of a step.
        ranks: the ranks.
    """
    flows = {
        key: Flow(nbytes, *ports_of(topology, *key[1:]), key[0], nbytes <= costs.buffered_nbytes)
        for key, nbytes in sizes.items()
    }
    hosts = [host(rank, each, lag, costs, flows) for rank, each in zip(ranks, turns, strict=True)]
    busy = [next(each, None) for each in hosts]
    pending, active = list(flows.values()), []
    steps = 0
    while any(left is not None for left in busy):
        assert steps < 200_000, "the run does not end"
        steps += 1
        for at, each in enumerate(hosts):
            credit = step_s
            while busy[at] is not None:
                if busy[at] == inf:
                    busy[at] = next(each, None)
                    if busy[at] == inf:
                        break
                elif busy[at] > credit:
                    busy[at] -= credit
                    break
                else:
                    credit -= busy[at]
                    busy[at] = next(each, None)
        before = list(active)
        for flow in pending:
            if flow.posted == 2:
                if flow.latency_s <= 0:
                    active.append(flow)
                    flow.started = True
                flow.latency_s -= step_s
        pending = [flow for flow in pending if not any(flow is other for other in active)]
        for flow in active:
            if flow in before:
                flow.nbytes -= flow.rate * step_s
        active = [flow for flow in active if flow.nbytes > 0]
        if active != before:
            share(active)
    return steps * step_s


small = specs(max_tensors=2, max_ranks=6).map(rp.compile)


@given(small, host_costs)
@settings(max_examples=40)
def test_small_steps_through_a_plan_come_to_the_same(plan, costs):
    turns = [turns_of(plan.program(rank)) for rank in plan.ranks]
    assume(0 < max(map(len, turns), default=0) <= 12)
    expected = predict(plan, costs).elapsed_s
    assume(expected > 0)
    sizes: dict[Key, int] = defaultdict(int)
    for rank in plan.ranks:
        for slot in plan.program(rank).slots:
            for peer, moves in slot.sends:
                sizes[slot.number, rank, peer] = sum(move.nbytes for move in moves)
    step_s = expected / (200 * (max(map(len, turns)) + 3))
    options = plan.spec.options
    found = stepped(turns, sizes, plan.spec.topology, options.lag, costs, step_s, plan.ranks)
    assert found == pytest.approx(expected, rel=0.02)


@given(st.data(), host_costs, st.integers(1, 3))
@settings(max_examples=80)
def test_small_steps_through_any_messages_come_to_the_same(data, costs, lag):
    count = data.draw(st.integers(2, 5))
    topology = data.draw(topologies(range(count)))
    keys = st.tuples(st.integers(0, 5), st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = data.draw(st.dictionaries(keys, st.integers(100, 5000), min_size=4, max_size=16))
    sizes = {key: nbytes for key, nbytes in sorted(drawn.items()) if key[1] != key[2]}
    assume(sizes)
    rows = sorted({(rank, slot) for slot, src, dst in sizes for rank in (src, dst)})
    work = {row: data.draw(st.tuples(*[st.sampled_from([0, 300, 2000])] * 3)) for row in rows}
    home = {gpu: at for at, domain in enumerate(topology.domains) for gpu in domain.gpus}
    media = {True: Medium.NVLINK, False: Medium.NETWORK}
    expected = predict_workload(
        by_hand(
            [(*key, media[home[key[1]] == home[key[2]]], size) for key, size in sizes.items()], lag, work
        ),
        topology,
        costs,
    ).elapsed_s
    turns = [
        [
            Turn(slot, copied + packed, unpacked, len(mine), mine)
            for (who, slot), (copied, packed, unpacked) in work.items()
            for mine in [[key for key in sizes if key[0] == slot and rank in key[1:]]]
            if who == rank
        ]
        for rank in range(count)
    ]
    assert stepped(turns, sizes, topology, lag, costs, expected / 5000, range(count)) == pytest.approx(
        expected, rel=0.01
    )


# Counted by hand

RATE = 1000
SLOW_NVLINK = Link(4 * RATE, 1.0, 0.25)


def hosts(count: int, latency_s: float = 0.0, gpus: int = 1) -> rp.Topology:
    return rp.Topology.uniform(count, gpus, Link(RATE, 1.0, latency_s), SLOW_NVLINK)


def test_two_messages_share_a_port_until_the_smaller_is_done():
    work = by_hand([(0, 0, 1, Medium.NETWORK, 1000), (0, 0, 2, Medium.NETWORK, 3000)])
    found = predict_workload(work, hosts(3, latency_s=0.5))
    assert found.intervals.start_s.tolist() == [0, 0]
    assert found.intervals.end_s.tolist() == [2.5, 4.5]
    assert found.end_s.tolist() == [4.5, 2.5, 4.5]
    assert found.busiest is not None
    assert (found.busiest.resource, found.busiest.nbytes) == ("nic of gpu 0, out", 4000)
    assert found.busiest.utilisation == pytest.approx(4 / 4.5)


def test_a_message_that_is_held_up_elsewhere_leaves_its_share_to_others():
    work = by_hand(
        [
            (0, 0, 2, Medium.NETWORK, 1000),
            (0, 1, 2, Medium.NETWORK, 1000),
            (0, 3, 2, Medium.NETWORK, 1000),
            (0, 0, 4, Medium.NETWORK, 2000),
        ]
    )
    # thirds at rank 2 until 3 s; two thirds are left for the other message of rank 0, which is also done then
    found = predict_workload(work, hosts(5))
    assert found.intervals.end_s.tolist() == pytest.approx([3, 3, 3, 3])


def test_both_directions_of_a_port_are_independent():
    work = by_hand([(0, 0, 1, Medium.NETWORK, 1000), (0, 1, 0, Medium.NETWORK, 1000)])
    assert predict_workload(work, hosts(2)).elapsed_s == 1


def test_shared_nics_and_uplinks_are_ports():
    link = Link(RATE, 0.5, 0.125)
    topology = rp.Topology(
        (Domain((0, 1)), Domain((2,)), Domain((3,))),
        (
            Nic((0, 1), Link(3 * RATE, 0.5, 0.25)),
            Nic((0, 1), link),
            Nic((2,), Link(10_000, 1.0, 0.0)),
            Nic((3,), link),
        ),
        pods=(Pod((0,), Link(RATE, 1.0, 1.0)),),
    )
    work = by_hand([(0, 0, 2, Medium.NETWORK, 1000), (0, 1, 2, Medium.NETWORK, 1000)])
    # the NICs of 0 and 1 together carry 2000 bytes/s, the uplink 1000, after the latency of the uplink
    found = predict_workload(work, topology)
    assert found.elapsed_s == 3
    uses = {use.resource: use.bytes_per_s for use in found.ports}
    assert uses == {
        "nic of gpu 0,1, out": 2000,
        "nic of gpu 2, in": 10_000,
        "uplink of pod 0, out": 1000,
    }
    assert predict_workload(work, replace(topology, pods=())).elapsed_s == 1.25
    inside = by_hand([(0, 2, 3, Medium.NETWORK, 1000)])
    assert predict_workload(inside, topology).elapsed_s == 2.125


def test_at_most_two_slots_are_in_flight():
    work = by_hand([(slot, 0, 1, Medium.NETWORK, 1000) for slot in range(3)], lag=3)
    found = predict_workload(work, hosts(2, latency_s=0.5))
    # the first has the port until 1.5 s; the third is posted then, and starts while the second flows
    assert found.intervals.start_s.tolist() == [0, 0, 1.5]
    assert found.intervals.end_s.tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize(("lag", "elapsed_s"), [(1, 4.5), (2, 3.5)])
def test_a_slot_waits_for_those_a_lag_before_it(lag, elapsed_s):
    work = by_hand([(slot, 0, 1, Medium.NETWORK, 1000) for slot in range(3)], lag=lag)
    assert predict_workload(work, hosts(2, latency_s=0.5)).elapsed_s == elapsed_s


def test_a_chain_takes_its_links_one_after_another():
    weights = rp.TensorSpec(
        "w", (1000, 4), "uint8", rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2]), ["R"])
    )
    topology = rp.Topology(
        (Domain((0,), SLOW_NVLINK), Domain((1, 2), SLOW_NVLINK)),
        (Nic((0,), Link(RATE, 0.5, 0.5)), Nic((1,), Link(RATE, 0.5, 0.125))),
    )
    plan = rp.compile(rp.ReshardSpec([weights], topology, rp.Options(min_message_nbytes=4000)))
    found = predict(plan)
    assert found.intervals.slot.tolist() == [0, 2]
    assert found.intervals.start_s.tolist() == [0, 8.5]
    assert found.elapsed_s == 8.5 + 0.25 + 1


def test_the_work_of_a_rank_is_serial():
    work = by_hand(
        [(0, 0, 1, Medium.NETWORK, 1000), (1, 0, 1, Medium.NETWORK, 1000)],
        host_nbytes={(0, 0): (100, 500, 0), (0, 1): (0, 400, 0), (1, 0): (0, 0, 300)},
    )
    found = predict_workload(work, hosts(2), Costs(1000, 0.25, 0.125))
    # rank 0: 0.25 + 0.125 + 0.6 = 0.975 posts slot 0; 0.375 + 0.4 later, at 1.75, slot 1
    # slot 0 comes first, and is through at 1.975
    assert found.intervals.start_s.tolist() == pytest.approx([0.975, 1.75])
    assert found.intervals.end_s.tolist() == pytest.approx([1.975, 2.975])
    # rank 1 unpacks 300 bytes from 1.975 to 2.275, and waits for slot 1
    assert found.end_s.tolist() == pytest.approx([2.975, 2.975])


def test_a_sender_is_done_with_what_is_buffered_as_soon_as_it_starts():
    messages = [(slot, 0, slot + 1, Medium.NETWORK, 1000) for slot in range(3)]
    waiting = predict_workload(by_hand(messages), hosts(4), Costs(buffered_nbytes=999))
    buffered = predict_workload(by_hand(messages), hosts(4), Costs(buffered_nbytes=1000))
    assert waiting.intervals.start_s.tolist() == [0, 0, 1]
    assert buffered.intervals.start_s.tolist() == [0, 0, 0]
    assert waiting.elapsed_s == buffered.elapsed_s == 3


def test_copies_alone_take_the_time_of_their_bytes():
    work = by_hand([], host_nbytes={(0, 0): (500, 0, 0), (0, 3): (250, 0, 0)})
    found = predict_workload(work, hosts(1), Costs(1000, slot_s=1.0))
    assert found.elapsed_s == 2.75
    assert found.busiest is None


def test_messages_with_gaps_are_packed_and_unpacked():
    columns = rp.Layout(rp.Mesh([0, 1]), ["S(1)"])
    rows = rp.Layout(rp.Mesh([2, 3]), ["S(0)"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "uint8", columns, rows)], hosts(4))
    work = Workload.of(rp.compile(spec, "direct"))
    # a sender's half of the columns is one run over any rows; a receiver's is not
    assert work.rank_slots.pack_nbytes.sum() == 0
    assert work.rank_slots.unpack_nbytes.sum() == 64


@pytest.mark.parametrize(("rows", "count"), [(1024, 5), (1024, 20), (1023, 5)])
def test_large_moves_are_posted_one_by_one_and_small_ones_together(rows, count):
    source, target = (rp.Layout(rp.Mesh(ranks), ["S(0)"]) for ranks in ([0], [1]))
    tensors = [rp.TensorSpec(f"w{at}", (rows, 256), "float32", source, target) for at in range(count)]
    plan = rp.compile(rp.ReshardSpec(tensors, hosts(2), rp.Options(min_message_nbytes=2**26)), "direct")
    found = Workload.of(plan).rank_slots
    for row, slot in enumerate(plan.program(0).slots):
        [(_, moves)] = slot.sends
        nbytes, messages = staged(slot.sends)
        assert found.posted[row] == messages == (1 if rows == 1023 else min(17, len(moves)))
        assert found.pack_nbytes[row] == nbytes


def test_one_slot_takes_the_least_time():
    for src, dst, domains in (
        ([0, 1], [2, 3], 1),
        ([0], [1, 2, 3], 1),
        ([0, 1, 2], [3], 1),
    ):
        source = rp.Layout(rp.Mesh(src), ["S(0)"])
        target = rp.Layout(rp.Mesh(dst), ["S(0)"])
        spec = rp.ReshardSpec([rp.TensorSpec("w", (12, 8), "uint8", source, target)], hosts(4, gpus=domains))
        plan = rp.compile(spec)
        assert plan.certificate.schedule.slots == 1
        assert predict(plan).elapsed_s == pytest.approx(plan.certificate.bound.time_s)


@pytest.mark.parametrize("name", sorted(sample_plans()))
def test_sample_plans_are_predicted(name):
    plan = sample_plans()[name]
    found = predict(plan, Costs(1e9, 1e-6, 1e-7))
    assert (found.elapsed_s > 0) == bool(len(plan.ops()))
    assert len(found.end_s) == max(plan.ranks, default=-1) + 1


def test_a_network_message_without_a_nic_is_refused():
    topology = rp.Topology((Domain((0,)), Domain((1,))), (Nic((0,)),))
    with pytest.raises(MediumError, match="rank 1, which has no NIC"):
        predict_workload(by_hand([(0, 0, 1, Medium.NETWORK, 1)]), topology)


# Costs, and where they come from


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"pack_bytes_per_s": 0.0}, "above 0"),
        ({"pack_bytes_per_s": float("nan")}, "above 0"),
        ({"pack_bytes_per_s": 1e-320}, "above 0, from 1e-09 on"),
        ({"pack_bytes_per_s": "1"}, "pack_bytes_per_s is '1'"),
        ({"pack_bytes_per_s": True}, "pack_bytes_per_s is True"),
        ({"slot_s": -1.0}, "slot_s is -1.0"),
        ({"slot_s": 1e6}, "slot_s is 1000000.0; .* below 1000000"),
        ({"slot_s": 10**400}, "slot_s is 1000"),
        ({"slot_s": False}, "slot_s is False"),
        ({"message_s": inf}, "message_s is inf"),
        ({"message_s": 1e308}, "message_s is 1e"),
        ({"message_s": "soon"}, "message_s is 'soon'"),
        ({"buffered_nbytes": True}, "buffered_nbytes is True"),
        ({"buffered_nbytes": -1}, "buffered_nbytes is -1"),
    ],
)
def test_impossible_costs_are_refused(costs, message):
    with pytest.raises(InputError, match=message):
        Costs(**costs)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (LinkCosts(nic_efficiency=1e-320), "efficiency 1e-320 .* at least 1e-09"),
        (LinkCosts(nvlink_efficiency=0.999e-9), "at least 1e-09"),
        (LinkCosts(nic_efficiency=True), "efficiency True is not a number"),
        (LinkCosts(nvlink_latency_s="1"), "latency_s '1' is not a number"),  # type: ignore[arg-type]
        (LinkCosts(nic_latency_s=10**400), "latency_s is larger than any"),
        (LinkCosts(nic_latency_s=1e6), "latency_s 1000000.0 .* below 1000000"),
        (LinkCosts(nic_latency_s=1e-320), "latency_s 1e-320 .* at least 1e-15"),
        (LinkCosts(nvlink_latency_s=-1e-20), "0 or more"),
        (LinkCosts(nvlink_latency_s=float("nan")), "latency_s nan"),
    ],
)
def test_link_costs_beyond_all_clusters_are_refused(links, message):
    with pytest.raises(TopologyError, match=message):
        with_link_costs(rp.Topology.uniform(2, 1), links)


def test_costs_at_their_limits_are_predicted_as_finite_times():
    work = by_hand([(0, 0, 1, Medium.NETWORK, 2**62)], host_nbytes={(0, 0): (0, 2**62, 0)})
    slow = Link(1, 1e-9, 999_999.0)
    found = predict_workload(work, rp.Topology.uniform(2, 1, slow, slow), Costs(1e-9, 999_999.0, 999_999.0))
    assert found.elapsed_s == pytest.approx(2**63 * 1e9)
    quick = Link(2**53 - 1, 1.0, 1e-15)
    assert 0 < predict_workload(work, rp.Topology.uniform(2, 1, quick, quick)).elapsed_s < 1e4


def test_what_is_no_plan_is_not_predicted():
    with pytest.raises(InputError, match=r"plan is 'plan\.reshard'; expected a Plan"):
        predict("plan.reshard")  # type: ignore[arg-type]


def test_a_workload_whose_ranks_wait_for_each_other_is_refused():
    work = by_hand([(0, 0, 1, Medium.NETWORK, 1), (5, 0, 1, Medium.NETWORK, 1)], lag=1)
    crossed = replace(work, receiver=work.receiver[::-1].copy())
    with pytest.raises(InputError, match="2 messages, of which 0 arrive"):
        predict_workload(crossed, hosts(2))


def test_an_infinite_rate_is_none():
    assert Costs(inf) == Costs()


def test_link_costs_change_what_they_name():
    topology = rp.Topology.uniform(4, 2)
    changed = with_link_costs(topology, LinkCosts(nic_efficiency=0.5, nvlink_latency_s=1e-3))
    assert {nic.link for nic in changed.nics} == {replace(topology.nics[0].link, efficiency=0.5)}
    assert {domain.link for domain in changed.domains} == {replace(topology.domains[0].link, latency_s=1e-3)}
    assert with_link_costs(topology, LinkCosts()) == topology


def sized(columns: int, tensors: int, min_message: int) -> rp.Plan:
    """Two ranks on each side that move matrices of one layout, each side in a domain."""
    source = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
    target = rp.Layout(rp.Mesh([[2, 3], [4, 5]]), ["R", "S(1)"])
    members = [rp.TensorSpec(f"w{at}", (64, columns), "bfloat16", source, target) for at in range(tensors)]
    options = rp.Options(min_message_nbytes=min_message, staging_nbytes=2**26)
    return rp.compile(rp.ReshardSpec(members, rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]), options))


RUNS = (
    sized(2**17, 2, 2**20),
    sized(2**14, 8, 2**14),
    sized(2**10, 8, 2**10),
    sized(2**6, 4, 1),
    sized(2**18, 1, 2**22),
)


def measured(links: LinkCosts, costs: Costs = FREE, *, noise: float = 0.0) -> list[Measurement]:
    found = []
    for at, plan in enumerate(RUNS):
        topology = with_link_costs(plan.spec.topology, links)
        elapsed_s = predict(plan, costs, topology=topology).elapsed_s
        found.append(Measurement(plan, elapsed_s * (1 + noise * (-1) ** at)))
    return found


@pytest.mark.parametrize(("efficiency", "latency_s"), [(0.8, 2e-5), (0.3, 1e-4), (1.0, 0.0), (0.02, 3e-6)])
def test_known_link_costs_are_found_again(efficiency, latency_s):
    runs = measured(LinkCosts(nic_efficiency=efficiency, nic_latency_s=latency_s))
    found = fit_costs([runs[0], runs[3]])
    assert found.links.nic_efficiency == pytest.approx(efficiency, rel=1e-3)
    assert found.links.nic_latency_s == pytest.approx(latency_s, rel=1e-3, abs=1e-9)
    assert found.links.nvlink_efficiency is None
    assert found.error < 1e-4


def test_costs_of_ranks_are_found_again():
    links = LinkCosts(nic_efficiency=0.6, nic_latency_s=3e-5)
    runs = measured(links, Costs(2e10, 1e-5))
    found = fit_costs(runs, ("nic_efficiency", "nic_latency_s", "pack_bytes_per_s"), Costs(slot_s=1e-5))
    assert found.links.nic_efficiency == pytest.approx(0.6, rel=1e-2)
    assert found.links.nic_latency_s == pytest.approx(3e-5, rel=1e-2)
    assert found.costs.pack_bytes_per_s == pytest.approx(2e10, rel=1e-2)
    assert found.costs.slot_s == 1e-5
    assert found.error < 1e-3


def test_noise_moves_the_fit_by_as_much():
    links = LinkCosts(nic_efficiency=0.6, nic_latency_s=3e-5)
    found = fit_costs(measured(links, noise=0.03))
    assert found.links.nic_efficiency == pytest.approx(0.6, rel=0.1)
    assert found.links.nic_latency_s == pytest.approx(3e-5, rel=0.1)
    assert found.error < 0.06


def test_nothing_free_only_compares():
    links = LinkCosts()
    found = fit_costs(measured(links)[:1], ())
    assert (found.links, found.costs, found.error) == (links, Costs(), 0.0)


@pytest.mark.parametrize(
    ("free", "count", "message"),
    [
        (("speed",), 2, "free names 'speed'"),
        (("slot_s", "slot_s"), 2, "each field once"),
        (("slot_s", "message_s"), 1, "at least 2"),
        ((), 0, "at least 1"),
    ],
)
def test_fits_that_cannot_be_are_refused(free, count, message):
    runs = measured(LinkCosts())[:count]
    with pytest.raises(InputError, match=message):
        fit_costs(runs, free)


def test_a_cost_that_no_run_shows_is_refused():
    plan = rp.compile(
        rp.ReshardSpec(
            [
                rp.TensorSpec(
                    "w", (8,), "uint8", rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1]), ["R"])
                )
            ],
            hosts(2),
        )
    )
    with pytest.raises(InputError, match="'nvlink_latency_s', which changes the time of no measured run"):
        fit_costs([Measurement(plan, 1.0)], ("nvlink_latency_s",))
    with pytest.raises(InputError, match="elapsed_s is 0"):
        fit_costs([Measurement(plan, 0.0)], ("nic_latency_s",))
    with pytest.raises(InputError, match="elapsed_s is '1'"):
        fit_costs([Measurement(plan, "1")], ("nic_latency_s",))  # type: ignore[arg-type]
