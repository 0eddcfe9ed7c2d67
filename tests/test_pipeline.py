"""The pipeline reads only what has arrived, overwrites only what has been read, and keeps within its memory.

Ranks are threads of one process here, on a wire that is as unkind as a real one may be: what is received is
garbage until it is waited for, and what is sent is read at the last moment.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import sources_and_destinations
from reshard_executors.arena import Arena
from reshard_executors.binding import LocalSide
from reshard_executors.messages import ALIGNMENT_NBYTES, BUFFERS, dense_strides, lower_program
from reshard_executors.pipeline import run_slots
from reshard_executors.ready import Elements, ReadyExchange, Staging, bind
from reshard_executors.values import empty_buffers
from reshard_executors.worker import as_tensors
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.errors import UnsupportedError
from reshard_planner.ir.messages import ALONE_NBYTES, MAX_ALONE, is_dense
from reshard_planner.transfer import Medium, Role

CPU = torch.device("cpu")


@dataclass
class Letter:
    """A message on the way: where its bytes are, and word that they have been read."""

    buffer: torch.Tensor
    read: threading.Event


@dataclass
class Flight:
    """What a rank waits for."""

    sent: list[Letter]
    received: list[tuple[SimpleQueue, torch.Tensor]]


class UnkindWire:
    """Delivers at the last moment."""

    def __init__(self, rank, mail):
        self.rank, self.mail = rank, mail

    def post(self, group, exchange):
        del group
        sent = []
        for bound in exchange.sends:
            letter = Letter(bound.buffer, threading.Event())
            self.mail[self.rank, bound.message.peer].put(letter)
            sent.append(letter)
        received = []
        for bound in exchange.receives:
            bound.buffer.fill_(0xAA)
            received.append((self.mail[bound.message.peer, self.rank], bound.buffer))
        return Flight(sent, received)

    def wait(self, flight, *_):
        for queue, buffer in flight.received:
            letter = queue.get(timeout=20)
            assert letter.buffer.numel() == buffer.numel()
            buffer.copy_(letter.buffer)
            letter.read.set()
        for letter in flight.sent:
            assert letter.read.wait(20)


def bound_rank(plan, rank, held, kept, staging, tensors=None, budget=sys.maxsize):
    numbers = range(len(plan.spec.tensors)) if tensors is None else tensors
    elements = [Elements.of(tensor) for tensor in plan.spec.tensors]
    lowered = lower_program(plan.program(rank), tensors, budget)
    sides = [(LocalSide(plan.spec, rank, side, CPU), given) for side, given in (("src", held), ("dst", kept))]
    read, written = (side.bind(side.select(given, numbers), numbers) for side, given in sides)
    return bind(lowered, staging, elements, read, written)


def run_in_threads(plan, held, tensors=None, lag=None):
    """Run all ranks; their destinations, and the sum of what they sent by medium."""
    mail = defaultdict(SimpleQueue)
    for a in plan.ranks:
        for b in plan.ranks:
            mail[a, b] = SimpleQueue()
    kept, spent, errors = {}, {}, []

    def run(rank):
        try:
            kept[rank] = empty_buffers(plan, rank, "dst")
            for arrays in kept[rank].values():
                for array in arrays:
                    array.reshape(-1).view(np.uint8)[:] = 0x5A
            mine = as_tensors(
                plan, "src", {name: [a.copy() for a in each] for name, each in held.get(rank, {}).items()}
            )
            exchanges = bound_rank(
                plan, rank, mine, as_tensors(plan, "dst", kept[rank]), Staging(CPU), tensors
            )
            spent[rank] = run_slots(exchanges, UnkindWire(rank, mail), None, lag or plan.spec.options.lag)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in plan.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return kept, spent


def assert_delivers(plan):
    held, wanted = sources_and_destinations(plan.spec, 0)
    kept, spent = run_in_threads(plan, held)
    for rank, by_tensor in wanted.items():
        for name, arrays in by_tensor.items():
            for ours, want in zip(kept[rank][name], arrays, strict=True):
                assert ours.tobytes() == want.tobytes(), (rank, name)
    payload = plan.certificate.payload
    assert sum(each.sent_nbytes[Medium.NETWORK] for each in spent.values()) == payload.network_nbytes
    assert sum(each.sent_nbytes[Medium.NVLINK] for each in spent.values()) == payload.nvlink_nbytes


@settings(max_examples=60)
@given(specs(max_ranks=8), st.sampled_from(sorted(STRATEGIES)))
def test_late_delivery_and_late_reading_change_nothing(spec, strategy):
    assert_delivers(rp.compile(spec, strategy))


def relayed_spec(lag, rows=96):
    one = rp.Layout(rp.Mesh([0]), ["R"])
    everywhere = rp.Layout(rp.Mesh([1, 2, 3, 4, 5]), ["R"])
    return rp.ReshardSpec(
        [rp.TensorSpec(f"w{at}", (rows, 16), "float32", one, everywhere) for at in range(3)],
        rp.Topology.from_domains([[0], [1], [2, 3], [4, 5]]),
        rp.Options(min_message_nbytes=64, lag=lag, staging_nbytes=4096),
    )


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["optimal", "gather-broadcast"])
def test_forwarding_over_many_slots_reads_only_what_has_arrived(lag, strategy):
    plan = rp.compile(relayed_spec(lag), strategy)
    assert (plan.ops().parent >= 0).any()
    assert_delivers(plan)


def test_a_pipeline_that_does_not_keep_the_lag_is_caught():
    plan = rp.compile(relayed_spec(1))
    assert (plan.ops().role == Role.RELAY).any()
    held, wanted = sources_and_destinations(plan.spec, 0)
    kept, _ = run_in_threads(plan, held, lag=2)
    assert any(
        kept[rank][name][0].tobytes() != arrays[0].tobytes()
        for rank, by_tensor in wanted.items()
        for name, arrays in by_tensor.items()
    )


def test_some_tensors_alone_arrive_and_others_stay_as_they_are():
    plan = rp.compile(relayed_spec(2))
    held, wanted = sources_and_destinations(plan.spec, 0)
    kept, _ = run_in_threads(plan, held, tensors=(0, 2))
    for rank, by_tensor in wanted.items():
        for name, arrays in by_tensor.items():
            expected = b"\x5a" * arrays[0].nbytes if name == "w1" else arrays[0].tobytes()
            assert kept[rank][name][0].tobytes() == expected


class WatchedWire:
    """A wire that exchanges nothing and writes down what happens when."""

    def __init__(self):
        self.events = []

    def post(self, group, exchange):
        del group
        self.events.append(("post", exchange.slot))
        return exchange.slot

    def wait(self, slot, *_):
        self.events.append(("wait", slot))


def watched(lag, slots):
    wire = WatchedWire()
    exchanges = [
        ReadyExchange(
            slot,
            -1,
            lambda slot=slot: wire.events.append(("pack", slot)),
            (),
            (),
            lambda slot=slot: wire.events.append(("unpack", slot)),
            {},
            {},
        )
        for slot in slots
    ]
    run_slots(exchanges, wire, None, lag)
    return wire.events


def test_a_slot_is_on_the_wire_while_others_are_packed_and_unpacked():
    events = watched(2, range(6))
    flying = set()
    for what, slot in events:
        if what == "post":
            flying.add(slot)
        elif what == "wait":
            flying.discard(slot)
        elif what == "pack" and slot > 0:
            assert flying == {slot - 1}
        elif what == "unpack" and slot < 5:
            assert flying == {slot + 1}
    for slot in range(6):
        mine = [what for what, number in events if number == slot]
        assert mine == ["pack", "post", "wait", "unpack"]


@given(st.integers(1, 4), st.sets(st.integers(0, 12), min_size=1))
def test_a_slot_is_packed_after_all_that_it_may_forward_and_in_free_buffers(lag, numbers):
    slots = sorted(numbers)
    events = watched(lag, slots)
    for at, slot in enumerate(slots):
        before = events[: events.index(("pack", slot))]
        for other in slots[:at]:
            if other + lag <= slot or at - slots.index(other) >= BUFFERS:
                assert ("unpack", other) in before


# -- messages --------------------------------------------------------------------------------------------


def big_spec(rows, count):
    """Each of four ranks to two, in moves of ``rows`` KiB."""
    src = rp.Layout(rp.Mesh([0, 1, 2, 3]), ["S(0)"])
    dst = rp.Layout(rp.Mesh([4, 5]), ["R"])
    tensors = [rp.TensorSpec(f"w{at}", (4 * rows, 256), "float32", src, dst) for at in range(count)]
    topology = rp.Topology.from_domains([[0, 1, 2, 3], [4], [5]])
    return rp.ReshardSpec(tensors, topology, rp.Options(min_message_nbytes=2**26))


@settings(max_examples=30)
@given(
    specs(max_ranks=8) | st.builds(big_spec, st.sampled_from([3, 1024, 1500]), st.sampled_from([1, 5, 20]))
)
def test_both_ends_agree_on_every_message_and_its_order(spec):
    plan = rp.compile(spec)
    sent, received = defaultdict(list), defaultdict(list)
    for rank in plan.ranks:
        for exchange in lower_program(plan.program(rank)).exchanges:
            for message in exchange.sends:
                sent[exchange.slot, rank, message.peer].append([move.op for move in message.moves])
            for message in exchange.receives:
                received[exchange.slot, message.peer, rank].append([move.op for move in message.moves])
            for message in (*exchange.sends, *exchange.receives):
                assert message.peer != rank
                assert message.nbytes == sum(move.nbytes for move in message.moves) > 0
    assert sent == received
    ops = plan.ops()
    nbytes = dict(zip(ops.op.tolist(), ops.nbytes.tolist(), strict=True))
    for messages in sent.values():
        small, alone = (
            [each for each in messages if len(each) > 1],
            [each[0] for each in messages if len(each) == 1],
        )
        together = [op for each in small for op in each]
        assert len(small) <= 1
        assert len(messages) <= MAX_ALONE + 1
        if len(alone) < MAX_ALONE:
            assert all(nbytes[op] < ALONE_NBYTES for op in together)
        if len(messages) > 1:
            assert all(nbytes[op] >= ALONE_NBYTES for op in alone[1:])


def test_what_is_one_run_of_bytes_at_an_end_goes_straight_from_or_into_memory():
    src, dst = (rp.Layout(rp.Mesh(ranks), ["S(0)"]) for ranks in ([0, 1], [2, 3]))
    columns = rp.Layout(rp.Mesh([2, 3]), ["S(1)"])
    for side, packs in ((dst, False), (columns, True)):
        plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "float32", src, side)]))
        for rank in plan.ranks:
            held, kept = (as_tensors(plan, side, empty_buffers(plan, rank, side)) for side in ("src", "dst"))
            staging = Staging(CPU)
            exchanges = bound_rank(plan, rank, held, kept, staging)
            given_memory = {
                tensor.untyped_storage().data_ptr()
                for each in (*held.values(), *kept.values())
                for tensor in each
            }
            used = {
                bound.buffer.untyped_storage().data_ptr()
                for exchange in exchanges
                for bound in (*exchange.sends, *exchange.receives)
            }
            if packs and rank in (0, 1):
                assert not used & given_memory
                assert staging.nbytes > 0
            else:
                assert used <= given_memory
                assert staging.nbytes == 0


@settings(max_examples=100)
@given(specs(max_ranks=8), st.sampled_from(sorted(STRATEGIES)), st.booleans())
def test_staging_keeps_within_what_the_certificate_counts(spec, strategy, crowded):
    plan = rp.compile(spec, strategy)
    for rank in plan.ranks:
        program, staging = plan.program(rank), Staging(CPU)
        held, kept = (as_tensors(plan, side, empty_buffers(plan, rank, side)) for side in ("src", "dst"))
        budget = 0 if crowded else plan.certificate.staging_nbytes
        bound_rank(plan, rank, held, kept, staging, budget=budget)
        moves = sum(len(moves) for slot in program.slots for _, moves in (*slot.sends, *slot.receives))
        assert staging.nbytes <= plan.certificate.staging_nbytes + ALIGNMENT_NBYTES * (moves + 4)


@pytest.mark.parametrize("seed", range(40))
def test_scratch_of_neighbours_that_lend_their_nics_keeps_within_the_budget(seed):
    spec = proxied_spec(np.random.default_rng(seed))
    plan = rp.compile(spec)
    try:
        tight = rp.compile(spec.with_options(staging_nbytes=plan.certificate.staging_nbytes // 4))
    except UnsupportedError:
        tight = plan
    if not (tight.ops().scratch > 0).any():
        return
    for rank in tight.ranks:
        staging = Staging(CPU)
        held, kept = (as_tensors(tight, side, empty_buffers(tight, rank, side)) for side in ("src", "dst"))
        budget = max(tight.certificate.staging_nbytes, tight.spec.options.staging_nbytes)
        bound_rank(tight, rank, held, kept, staging, budget=budget)
        assert staging.nbytes <= budget + ALIGNMENT_NBYTES * 64
    assert_delivers(tight)


def proxied_spec(rng):
    """Domains in which some GPUs have slow NICs, so that neighbours take in for them."""
    domains = [[0, 1, 2], [3, 4, 5, 6]]
    links = [rp.topology.Link(50_000_000_000 // int(rng.integers(1, 20)), 0.95, 1e-5) for _ in range(7)]
    topology = rp.Topology(
        tuple(rp.topology.Domain(tuple(each)) for each in domains),
        tuple(rp.topology.Nic((gpu,), links[gpu]) for gpu in range(7)),
    )
    src = rp.Layout(rp.Mesh([0, 1, 2]), ["S(0)"])
    dst = rp.Layout(rp.Mesh([[3, 4], [5, 6]]), [str(rng.choice(["R", "S(1)"])), "S(0)"])
    tensors = [
        rp.TensorSpec(f"w{at}", (int(rng.integers(20, 90)), 64), "float32", src, dst) for at in range(3)
    ]
    return rp.ReshardSpec(tensors, topology, rp.Options(min_message_nbytes=64))


# -- the arena -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5)), max_size=40))
def test_places_in_an_arena_are_aligned_and_nobody_elses(asked):
    arena = Arena(ALIGNMENT_NBYTES)
    held = {}
    for nbytes, frees in asked:
        at = arena.take(nbytes)
        assert at % ALIGNMENT_NBYTES == 0
        assert at + nbytes <= arena.nbytes
        assert all(at + nbytes <= other or other + size <= at for other, size in held.items())
        held[at] = max(1, nbytes)
        for other in sorted(held)[:frees]:
            arena.free(other)
            del held[other]


def test_an_arena_gives_a_place_again_that_was_given_back():
    arena = Arena(ALIGNMENT_NBYTES)
    for _ in range(5):
        arena.free(arena.take(64))
    assert arena.nbytes == 64


def test_dense_views_are_those_that_numpy_calls_contiguous():
    for shape in ((), (1,), (4,), (2, 3), (3, 1, 2), (1, 5, 1)):
        array = np.zeros(shape, dtype=np.uint8)
        assert dense_strides(shape) == array.strides
        assert is_dense(shape, array.strides)
        for cut in np.ndindex(*shape):
            part = array[tuple(slice(at, None) for at in cut)]
            assert is_dense(part.shape, part.strides) == part.flags.c_contiguous
