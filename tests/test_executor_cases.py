"""Conditions of executors from public bug reports: the right result, or what makes the fault impossible here.

Numbers such as RC-070 are those of a collection of such reports. Each docstring says what must hold, and for
what input: that of the report, where it has one.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from math import prod
from pathlib import Path

import _case_calls as case_calls
import _rank_calls as calls
import numpy as np
import pytest
from _ranks import Ranks
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mutations import drop_route, with_routes, with_schedule
from oracle import sources, sources_and_destinations
from reshard_executors.messages import BUFFERS, lower_program
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.errors import CausalityError, CoverageError, InputError
from reshard_planner.ir.messages import MAX_ALONE
from reshard_planner.ir.views import Place, storage_shape
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.topology import Link
from reshard_planner.transfer import Medium, Role

WORLD = 8

FEWER = settings(max_examples=settings.default.max_examples // 2)
"""Examples of a law here: each compiles a plan."""

STOPPED_S = 1.0
"""How long a rank stands still."""


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def over(ranks, placement):
    return rp.Layout(rp.Mesh(ranks), [placement])


def one_tensor(shape, dtype, src, dst, domains=None, **options):
    return rp.ReshardSpec(
        [rp.TensorSpec("w", shape, dtype, src, dst)],
        None if domains is None else rp.Topology.from_domains(domains),
        rp.Options(**options),
    )


def few_slots():
    """Two GPUs, between which every message takes so long that many tensors share a slot."""
    slow = Link(50_000_000_000, 1.0, 1.0)
    return rp.Topology.from_domains([[0], [1]], slow, slow)


def played_ranks(plan, count=WORLD):
    """Ranks that the processes of a world play: those of the plan, then some that it does not have."""
    return [*plan.ranks, *range(100, 100 + count - len(plan.ranks))]


def run_everywhere(world, plan):
    """Run for real; check all destinations, and return what each rank of the plan sent."""
    ranks = played_ranks(plan)
    held, wanted = sources_and_destinations(plan.spec)
    answers = world.call(calls.build_and_run, [(plan, ranks, held.get(rank, {})) for rank in ranks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    for rank, (kept, _) in zip(ranks, answers, strict=True):
        for name, arrays in wanted.get(rank, {}).items():
            for have, want in zip(kept[name], arrays, strict=True):
                assert have.tobytes() == want.tobytes(), (rank, name)
    return {rank: record for rank, (_, record) in zip(ranks, answers, strict=True)}


def batches_of(plan):
    """By rank, what is posted together: lists of (slot, direction, peer, bytes)."""
    found = {}
    for rank in plan.ranks:
        found[rank] = [
            [(each.slot, "send", m.peer, m.nbytes) for m in each.sends]
            + [(each.slot, "receive", m.peer, m.nbytes) for m in each.receives]
            for each in lower_program(plan.program(rank)).exchanges
            if each.sends or each.receives
        ]
    return found


def stuck(batches):
    """Ranks that wait for ever, if a batch ends only together with all those at its other ends.

    This is stricter than any backend: nothing of a batch moves before every message in it has been posted at
    its other end, and so have all others of the batch that it is in there.
    """
    waiting = {rank: [list(batch) for batch in own] for rank, own in batches.items()}
    while True:
        heads = {rank: own[0] for rank, own in waiting.items() if own}
        meeting = set(heads)
        while True:
            ready = {rank for rank in meeting if all_met(rank, heads, meeting)}
            if ready == meeting:
                break
            meeting = ready
        if not meeting:
            return sorted(heads)
        for rank in meeting:
            del waiting[rank][0]


def all_met(rank, heads, meeting):
    for _, direction, peer, nbytes in heads[rank]:
        other = "receive" if direction == "send" else "send"
        if peer not in meeting:
            return False
        mine = [(d, n) for _, d, p, n in heads[rank] if p == peer]
        theirs = [(d, n) for _, d, p, n in heads[peer] if p == rank]
        if mine.count((direction, nbytes)) != theirs.count((other, nbytes)):
            return False
    return True


def assert_ends_agree(plan):
    """For every slot and pair, messages sent are those received, in order, and so are operations in them."""
    sent, received = {}, {}
    for rank in plan.ranks:
        for exchange in lower_program(plan.program(rank)).exchanges:
            for message in exchange.sends:
                key = (exchange.slot, rank, message.peer)
                sent.setdefault(key, []).append((message.nbytes, [move.op for move in message.moves]))
            for message in exchange.receives:
                key = (exchange.slot, message.peer, rank)
                received.setdefault(key, []).append((message.nbytes, [move.op for move in message.moves]))
    assert sent == received


# --- RC-070: a send to oneself has no connection, and raises or crashes ---


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_no_message_goes_to_its_own_rank(spec, strategy):
    """RC-070: what a rank has for itself is a local copy, in any plan, and never a send."""
    plan = rp.compile(spec, strategy)
    for rank in plan.ranks:
        for slot in plan.program(rank).slots:
            assert rank not in {peer for peer, _ in (*slot.sends, *slot.receives)}
    ops = plan.ops()
    assert np.array_equal(ops.src == ops.dst, ops.medium == Medium.LOCAL)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "striped"])
def test_what_stays_on_its_rank_is_copied(world, strategy):
    """RC-070: shards of 3, 3, 3 and 1 rows become replicas on the same ranks, which copy their own rows.

    ``striped`` goes by NeMo RL's rule, by which uneven shards are broadcast.
    """
    plan = rp.compile(one_tensor((10,), "float32", over(range(4), "S(0)"), over(range(4), "R")), strategy)
    copied = Counter()
    for rank in plan.ranks:
        for slot in plan.program(rank).slots:
            copied[rank] += sum(move.nbytes for move in slot.copies)
    assert all(copied[rank] >= 4 * rows for rank, rows in enumerate((3, 3, 3, 1)))
    run_everywhere(world, plan)


# --- RC-071: so many operations in one group that ends cut it differently ---


def experts(count, src, dst):
    return rp.ReshardSpec(
        [rp.TensorSpec(f"layer {at}", (count, 8, 8), "bfloat16", src, dst) for at in range(48)]
    )


def many_experts():
    """512 experts over 16 holders, to four replicas of four ranks."""
    dst = rp.Layout(rp.Mesh(np.arange(16, 32).reshape(4, 4).tolist()), ["R", "S(0)"])
    return experts(512, over(range(16), "S(0)"), dst)


def test_what_one_holder_has_of_a_layer_is_one_receive():
    """RC-071: 4 receives a layer, 192 in all, for 512 experts; cut per expert there would be 6144."""
    ops = rp.compile(many_experts(), "direct").ops()
    assert {int((ops.dst == rank).sum()) for rank in range(16, 32)} == {192}
    ops = rp.compile(many_experts(), "optimal").ops()
    assert max(int((ops.dst == rank).sum()) for rank in range(16, 32)) <= 192


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_ends_have_the_same_messages_in_every_slot(strategy):
    """RC-071: messages of a slot agree at both ends in order, bytes and operations, for 512 experts."""
    assert_ends_agree(rp.compile(many_experts(), strategy))


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_a_slot_has_few_messages_per_peer_and_both_ends_have_the_same(spec, strategy):
    """RC-071: the same of any plan, and no slot has more than 17 messages from one rank to another."""
    plan = rp.compile(spec, strategy)
    assert_ends_agree(plan)
    for own in batches_of(plan).values():
        for batch in own:
            assert max(Counter(each[1:3] for each in batch).values()) <= 1 + MAX_ALONE


def test_thousands_of_tensors_in_a_slot_are_one_message():
    """RC-071: 3000 small tensors are packed into one message; of 300 large ones 16 go beside it."""
    layouts = over([0], "R"), over([1], "R")
    tensors = [rp.TensorSpec(f"w{at}", (4,), "float32", *layouts) for at in range(3000)]
    batches = batches_of(rp.compile(rp.ReshardSpec(tensors)))
    assert {len(batch) for own in batches.values() for batch in own} == {1}
    large = [rp.TensorSpec(f"w{at}", (2**20,), "uint8", *layouts) for at in range(300)]
    batches = batches_of(rp.compile(rp.ReshardSpec(large, few_slots())))
    assert max(len(batch) for own in batches.values() for batch in own) == 1 + MAX_ALONE


def test_experts_of_many_layers_arrive(world):
    """RC-071: 48 layers of 32 experts arrive at two replicas whole."""
    dst = rp.Layout(rp.Mesh([[4, 5], [6, 7]]), ["R", "S(0)"])
    for strategy in ("optimal", "direct"):
        run_everywhere(world, rp.compile(experts(32, over(range(4), "S(0)"), dst), strategy))


def test_a_slot_is_over_before_the_next_but_one_begins(world):
    """RC-071: on the wire are two slots at most, each a batch of its own, in the order of all ranks."""
    dst = rp.Layout(rp.Mesh([[4, 5], [6, 7]]), ["R", "S(0)"])
    plan = rp.compile(experts(32, over(range(4), "S(0)"), dst).with_options(staging_nbytes=2**14))
    held, ranks = sources(plan.spec), played_ranks(plan)
    answers = world.call(case_calls.run_profiled, [(plan, ranks, held.get(rank, {})) for rank in ranks])
    for rank, events in zip(ranks, answers, strict=True):
        assert not isinstance(events, Exception), events
        over_at, begins = {}, {}
        for slot, start_s, end_s in events:
            over_at[slot] = max(over_at.get(slot, end_s), end_s)
            begins[slot] = min(begins.get(slot, start_s), start_s)
        slots = sorted(begins)
        assert slots == [batch[0][0] for batch in batches_of(plan)[rank]]
        assert len(slots) > BUFFERS
        assert all(over_at[one] <= begins[two] for one, two in zip(slots, slots[BUFFERS:], strict=False))


# --- RC-073: two ranks that both send first block each other ---


def swap():
    return one_tensor((4,), "float32", over([0, 1], "S(0)"), over([1, 0], "S(0)"), [[0], [1]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_swap_is_one_batch_on_both_ranks(world, strategy):
    """RC-073: two ranks that swap halves post send and receive together, so that neither waits."""
    plan = rp.compile(swap(), strategy)
    batches = batches_of(plan)
    if strategy != "gather-broadcast":  # that is no swap: the whole tensor goes to one rank first
        assert [sorted(each[1] for each in batch) for own in batches.values() for batch in own] == [
            ["receive", "send"]
        ] * 2
    assert stuck(batches) == []
    run_everywhere(world, plan)


def test_sends_before_receives_are_found_to_block():
    """RC-073: the check of this file finds the deadlock of the report, where both ranks send first."""
    apart = {
        rank: [[each] for batch in own for each in batch]
        for rank, own in batches_of(rp.compile(swap())).items()
    }
    assert all(batch[0][1] == "send" for own in apart.values() for batch in own[:1])
    assert stuck(apart) == [0, 1]


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_no_program_waits_in_a_cycle_even_if_batches_end_only_together(spec, strategy):
    """RC-073, RC-075: in no plan ranks wait for one another, even where a batch ends only as a whole."""
    assert stuck(batches_of(rp.compile(spec, strategy))) == []


# --- RC-075: a batch that receives from a rank which must hear of the batch's other end first ---


def relayed(**options):
    return one_tensor((64, 16), "float32", over([0], "R"), over([1, 2], "R"), [[0], [1], [2]], **options)


def test_a_batch_behind_a_relay_is_found_to_block():
    """RC-075: so it does where a batch also receives what comes by way of a relay, as in the report."""
    batches = {
        0: [[(0, "send", 1, 4), (0, "send", 2, 4)]],
        1: [[(0, "receive", 0, 4)], [(1, "send", 2, 4)]],
        2: [[(0, "receive", 0, 4), (1, "receive", 1, 4)]],
    }
    assert stuck(batches) == [0, 1, 2]


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_what_is_passed_on_goes_in_a_later_slot_than_it_came(spec, strategy):
    """RC-075: in any plan a rank passes on no earlier than the lag after the slot in which it received."""
    plan = rp.compile(spec, strategy)
    ops = plan.ops()
    slot_of = dict(zip(ops.op.tolist(), ops.slot.tolist(), strict=True))
    for slot, parent in zip(ops.slot.tolist(), ops.parent.tolist(), strict=True):
        assert parent < 0 or slot >= slot_of[parent] + spec.options.lag


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_relay_delivers_what_it_has_heard(world, lag):
    """RC-075: of two needers in domains of their own one relays to the other, and both get all."""
    plan = rp.compile(relayed(lag=lag, min_message_nbytes=64))
    assert (plan.ops().role == Role.RELAY).any()
    assert stuck(batches_of(plan)) == []
    run_everywhere(world, plan)


def test_a_plan_that_passes_on_in_the_slot_of_arrival_is_refused():
    """RC-075: the same plan with all offsets 0 does not verify."""
    plan = rp.compile(relayed())
    routes = plan.routes
    hurried = np.where(routes.parent >= 0, 0, routes.offset)
    assert not np.array_equal(hurried, routes.offset)
    with pytest.raises(CausalityError):
        rp.verify(with_routes(plan, offset=hurried))


# --- RC-076: a first batch by some ranks only, while the group has not met ---


def some_of_four():
    return one_tensor((8,), "int32", over([0], "R"), over([1], "R"))


def test_ranks_without_part_join_and_return(world):
    """RC-076: of four ranks two have no part in the plan; they build, run and return, and send nothing."""
    plan = rp.compile(some_of_four())
    assert world.call_alike(calls.build, plan, None, [0, 1, 2, 3]) == [None] * WORLD
    answers = world.call(calls.run, [(sources(plan.spec).get(rank, {}),) for rank in range(WORLD)])
    assert answers[4:] == [None] * 4
    assert [record.messages for _, record in answers[:4]] == [1, 0, 0, 0]
    assert answers[1][0]["w"][0].tobytes() == sources(plan.spec)[0]["w"][0].tobytes()
    world.call_alike(calls.close)


def test_no_byte_moves_before_ranks_without_part_have_joined(world):
    """RC-076: where a rank without part stays away, the others fail before anything is written."""
    plan = rp.compile(some_of_four())
    world.call_alike(calls.build, plan, None, [0, 1, 2, 3], 2.0)
    held = sources(plan.spec)
    answers = world.call(case_calls.run_unless_absent, [(held.get(rank, {}), 3) for rank in range(WORLD)])
    assert answers[3:] == [None] * 5
    for said, written in answers[:3]:
        assert said.startswith("ExecutionError: the ranks did not meet to compare their tensors")
        assert not written
    world.call_alike(calls.close)


# --- RC-077: ends with different plans send and expect different sizes ---


def rows(count):
    return one_tensor((count,), "float32", over(range(4), "S(0)"), over([4, 5], "R"))


def test_plans_of_other_sizes_are_refused_on_every_rank_before_the_first_byte(world):
    """RC-077: 10 rows here, 11 there; gloo would end the process on a message larger than its buffer."""
    sender, receiver = rp.compile(rows(10)), rp.compile(rows(11))
    ranks = played_ranks(sender)
    plans = [sender] * 4 + [receiver] * 4
    answers = world.call(calls.build, [(plan, ranks) for plan in plans])
    assert len({str(answer) for answer in answers}) == 1
    for answer in answers:
        assert isinstance(answer, InputError)
        assert sender.digest in str(answer)
        assert receiver.digest in str(answer)


@pytest.mark.parametrize("change", ["shape", "dtype", "mesh", "placement", "operations"])
def test_plans_that_differ_in_anything_have_other_digests(change):
    """RC-077: the digest, which ranks compare, tells plans apart that differ in one thing."""
    plan = rp.compile(rows(10))
    other = {
        "shape": lambda: rp.compile(rows(11)),
        "dtype": lambda: rp.compile(one_tensor((10,), "int32", over(range(4), "S(0)"), over([4, 5], "R"))),
        "mesh": lambda: rp.compile(one_tensor((10,), "float32", over(range(4), "S(0)"), over([5, 4], "R"))),
        "placement": lambda: rp.compile(
            one_tensor((10,), "float32", over(range(4), "S(0)"), over([4, 5], "S(0)"))
        ),
        "operations": lambda: with_schedule(plan, round=plan.schedule.round + 1),
    }[change]()
    assert other.digest != plan.digest


# --- RC-079: tensors that are not contiguous are sent as they lie ---


def test_a_transpose_arrives_in_every_second_column_and_nothing_between_them_changes(world):
    """RC-079: neither source nor destination is contiguous; elements move, not memory as it lies."""
    plan = rp.compile(one_tensor((4, 4), "int32", over([0], "R"), over([1], "R")))
    world.call_alike(calls.build, plan, played_ranks(plan))
    answers = world.call_alike(case_calls.run_from_a_transpose_into_columns)
    matrix, arrived, between = answers[1]
    assert matrix == np.arange(16).reshape(4, 4).T.tolist()
    assert arrived == matrix
    assert between == [[-1] * 4] * 4


# --- RC-081: an empty message that one end leaves out ---


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_no_message_is_empty_on_either_end(spec, strategy):
    """RC-081: no plan has a message without bytes; RC-071 says that both ends have the same ones."""
    for own in batches_of(rp.compile(spec, strategy)).values():
        for batch in own:
            assert min(nbytes for *_, nbytes in batch) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_with_nothing_send_nothing_of_their_own(world, strategy):
    """RC-081: 3 elements over 8 ranks; those with empty shards pass on what they got, if anything."""
    plan = rp.compile(one_tensor((3,), "float32", over(range(8), "S(0)"), over(range(8), "R")), strategy)
    ops = plan.ops()
    assert set(ops.src[ops.parent < 0].tolist()) == {0, 1, 2}
    records = run_everywhere(world, plan)
    if strategy == "direct":
        assert [records[rank].messages for rank in range(3, 8)] == [0] * 5


# --- RC-082: messages of one size to one peer, told apart by their order alone ---


@pytest.mark.parametrize(("size", "messages"), [(3, 1), (2**18, 4)])
def test_a_receiver_that_names_its_tensors_in_reverse_gets_the_right_ones(world, size, messages):
    """RC-082: of 3 elements each, in one message; of 1 MiB each, in a message of its own."""
    layouts = over([0], "R"), over([1], "R")
    tensors = [rp.TensorSpec(name, (size,), "float32", *layouts) for name in "abcd"]
    plan = rp.compile(rp.ReshardSpec(tensors, few_slots()))
    assert {len(batch) for own in batches_of(plan).values() for batch in own} == {messages}
    world.call_alike(calls.build, plan, played_ranks(plan))
    held, wanted = sources_and_destinations(plan.spec)
    for backwards in (0, 1):
        arguments = [(held.get(rank, {}), rank == backwards) for rank in played_ranks(plan)]
        kept = world.call(case_calls.run_in_order, arguments)[1]
        for name, [want] in wanted[1].items():
            assert kept[name][0].tobytes() == want.tobytes()


# --- RC-084: sizes of pieces from each rank's own free memory ---


def limited(nbytes):
    return rp.compile(
        one_tensor((64,), "float32", over([0], "R"), over([1], "R"), [[0], [1]], staging_nbytes=nbytes)
    )


def test_other_limits_on_one_rank_are_refused_on_every_rank(world):
    """RC-084: limits are part of the spec, and thereby of the digest; 64 bytes on one rank, 128 on seven."""
    small, large = limited(64), limited(128)
    assert len(small.ops()) > len(large.ops())
    ranks = played_ranks(small)
    answers = world.call(calls.build, [(plan, ranks) for plan in [small] + [large] * 7])
    assert len({str(answer) for answer in answers}) == 1
    for answer in answers:
        assert isinstance(answer, InputError)
        assert small.digest in str(answer)


def test_equal_limits_give_equal_pieces_within_them(world):
    """RC-084: 256 bytes within a limit of 64: both ends cut alike, and none keeps more."""
    plan = limited(64)
    assert plan.certificate.staging_nbytes <= 64
    assert_ends_agree(plan)
    sent, received = ([nbytes for batch in own for *_, nbytes in batch] for own in batches_of(plan).values())
    assert sent == received
    assert sum(sent) == 256
    assert run_everywhere(world, plan)[0].messages == len(sent)


# --- RC-085: ranks of the world taken for ranks of the group ---


def test_peers_are_ranks_of_the_world_also_in_a_group_that_lacks_its_first(world):
    """RC-085: in a group of ranks 1, 2 and 3 their positions are 0, 1 and 2; each gets what is its own."""
    plan = rp.compile(one_tensor((7, 2), "float32", over([1], "R"), over([3, 2], "S(0)")))
    assert world.call_alike(calls.build, plan, None, [1, 2, 3]) == [None] * WORLD
    held, wanted = sources_and_destinations(plan.spec)
    answers = world.call(calls.run, [(held.get(rank, {}),) for rank in range(WORLD)])
    for rank in (2, 3):
        assert answers[rank][0]["w"][0].tobytes() == wanted[rank]["w"][0].tobytes()
    world.call_alike(calls.close)


def test_a_rank_that_the_group_lacks_is_refused_on_every_rank_of_it(world):
    """RC-085: a plan of ranks 0, 1 and 2 is refused in a group of ranks 1, 2 and 3."""
    plan = rp.compile(one_tensor((7, 2), "float32", over([0], "R"), over([1, 2], "S(0)")))
    answers = world.call_alike(calls.build, plan, None, [1, 2, 3])
    assert [answer for rank, answer in enumerate(answers) if rank not in (1, 2, 3)] == [None] * 5
    for answer in answers[1:4]:
        assert isinstance(answer, InputError)
        assert "ranks [0]" in str(answer)


# --- RC-088: one rank waits for something else in the middle of a plan ---


def wait_for_stop(process):
    """Wait until a process has stopped; its state is the word after its name."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.01)
    raise TimeoutError(f"process {process} has not stopped")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="whether a process stands still is in /proc")
def test_a_rank_that_stands_still_in_the_middle_delays_the_others_and_changes_nothing(world):
    """RC-088: the others go on with a collective of the world meanwhile, which needs the first one, too."""
    spec = one_tensor(
        (4096, 4096), "float32", over(range(4), "S(0)"), over(range(4), "S(1)"), staging_nbytes=2**20
    )
    plan = rp.compile(spec)
    assert plan.certificate.schedule.slots > 20
    world.call_alike(calls.build, plan, played_ranks(plan))
    [first, *_] = world.call_alike(case_calls.process_id)
    held, wanted = sources_and_destinations(spec)
    for _ in range(5):  # until it stops when some has arrived and some has not
        arguments = [(held.get(rank, {}), rank == 0) for rank in played_ranks(plan)]
        world.send(case_calls.run_standing_still, arguments)
        try:
            wait_for_stop(first)
            time.sleep(STOPPED_S)
        finally:
            os.kill(first, signal.SIGCONT)
        answers = world.receive()
        assert all(count == WORLD for *_, count in answers)
        assert answers[0][1] > STOPPED_S
        for rank in plan.ranks:
            assert answers[rank][0]["w"][0].tobytes() == wanted[rank]["w"][0].tobytes()
        if answers[0][2]:
            return
    pytest.fail("all had arrived whenever the rank stopped")


# --- RC-089: whole tensors on one rank ---


def eight_parameters(strategy):
    tensors = [
        rp.TensorSpec(f"w{at}", (512, 512), "bfloat16", over([0, 1], "S(0)"), over([2, 3], "S(1)"))
        for at in range(8)
    ]
    return rp.compile(rp.ReshardSpec(tensors, None, rp.Options(staging_nbytes=2**18)), strategy)


def allocations(world, plan):
    """What torch allocates in three runs, on each rank of the plan."""
    assert world.call_alike(calls.build, plan, None, plan.ranks) == [None] * WORLD
    held = sources(plan.spec)
    found = world.call(case_calls.allocations, [(held.get(rank, {}),) for rank in range(WORLD)])
    world.call_alike(calls.close)
    return [found[rank] for rank in plan.ranks]


def largest_message(plan):
    return max(nbytes for own in batches_of(plan).values() for batch in own for *_, nbytes in batch)


@pytest.mark.parametrize("strategy", ["optimal", "direct"])
def test_a_rank_keeps_no_more_aside_than_its_limit_and_never_a_whole_tensor(world, strategy):
    """RC-089: measured as what torch allocates in the first run and all that it allocates later."""
    plan = eight_parameters(strategy)
    limit, message = 2**18, largest_message(plan)
    assert limit + message < plan.spec.tensors[0].nbytes
    assert plan.certificate.staging_nbytes <= limit
    for spent in allocations(world, plan):
        assert sum(spent) <= limit + message


def test_gathering_first_is_seen_to_keep_whole_tensors(world):
    """RC-089: what the same measurement says of the way that the report is about."""
    plan = eight_parameters("gather-broadcast")
    assert plan.certificate.staging_nbytes > plan.spec.tensors[0].nbytes
    assert max(map(sum, allocations(world, plan))) >= plan.spec.tensors[0].nbytes


# --- RC-093: experts that change hosts ---


def shuffled(ranks):
    """Eight experts, one per rank, that go to these ranks; hosts have four."""
    layouts = over(range(8), "S(0)"), over(ranks, "S(0)")
    return rp.compile(one_tensor((8, 16, 4), "bfloat16", *layouts, [[0, 1, 2, 3], [4, 5, 6, 7]]))


def test_experts_that_change_hosts_all_cross_the_network(world):
    """RC-093: eight experts on two hosts change sides; all bytes of the tensor cross the network, once."""
    plan = shuffled([4, 5, 6, 7, 0, 1, 2, 3])
    payload = plan.certificate.payload
    assert payload.network_nbytes == payload.minimum_network_nbytes == plan.spec.tensors[0].nbytes
    records = run_everywhere(world, plan)
    assert sum(record.network_nbytes for record in records.values()) == payload.network_nbytes


def test_experts_of_hosts_with_changed_names_stay_where_they_are(world):
    """RC-093: ranks that are given the names of those whose experts they have move nothing."""
    plan = shuffled(range(8))
    assert plan.certificate.payload.network_nbytes == plan.certificate.payload.nvlink_nbytes == 0
    assert all(record.messages == 0 for record in run_everywhere(world, plan).values())


# --- RC-094: parts that nobody sends ---


@FEWER
@given(specs(), st.sampled_from(STRATEGIES), st.data())
def test_a_plan_that_lacks_any_one_transfer_is_refused(spec, strategy, data):
    """RC-094: any one that fills a part of a destination; others may bring what the rank has already."""
    plan = rp.compile(spec, strategy)
    filling = np.flatnonzero(plan.routes.scratch == 0)
    assume(len(filling))
    row = int(filling[data.draw(st.integers(0, len(filling) - 1))])
    with pytest.raises((CoverageError, CausalityError)):
        rp.verify(drop_route(plan, row))


@FEWER
@given(specs(), st.sampled_from(STRATEGIES))
def test_what_comes_in_and_what_stays_tile_every_destination_exactly(spec, strategy):
    """RC-094: counted element by element, in every local buffer."""
    plan = rp.compile(spec, strategy)
    written = {
        (rank, number, at): np.zeros(prod(storage_shape(buffer.shape, tensor.bits)), dtype=np.int64)
        for number, tensor in enumerate(spec.tensors)
        for rank in plan.ranks
        for at, buffer in enumerate(SideTiles(tensor, "dst").buffers(rank))
    }
    for rank in plan.ranks:
        for slot in plan.program(rank).slots:
            for move in (*slot.copies, *(move for _, moves in slot.receives for move in moves)):
                for view in move.write:
                    if view.place == Place.DESTINATION:
                        places = np.full(1, view.offset)
                        for extent, stride in zip(view.shape, view.strides, strict=True):
                            places = (places[:, None] + np.arange(extent) * stride).reshape(-1)
                        np.add.at(written[rank, move.tensor, view.buffer], places, 1)
    assert all((counts == 1).all() for counts in written.values())


def test_a_rank_whose_plan_lacks_a_transfer_is_refused_on_every_rank(world):
    """RC-094: seven ranks have the whole plan and one lacks a transfer: its digest tells."""
    plan = rp.compile(rows(10))
    plans = [plan] * 7 + [drop_route(plan, 0)]
    for answer in world.call(calls.build, [(each, played_ranks(plan)) for each in plans]):
        assert isinstance(answer, InputError)
        assert "the digest of the plan" in str(answer)


# --- RC-095: a rank with nothing to give ---


def test_a_rank_with_nothing_has_an_empty_program_and_returns(world):
    """RC-095: of three ranks the last holds and needs nothing; its program is empty, its run returns."""
    plan = rp.compile(one_tensor((4,), "float32", over([0], "R"), over([1], "R")))
    assert plan.program(2).slots == ()
    assert world.call_alike(calls.build, plan, None, [0, 1, 2]) == [None] * WORLD
    held = sources(plan.spec)
    answers = world.call(calls.run, [(held.get(rank, {}),) for rank in range(WORLD)])
    assert answers[1][0]["w"][0].tobytes() == held[0]["w"][0].tobytes()
    assert answers[2][0] == {}
    assert answers[2][1].messages == 0
    world.call_alike(calls.close)


def test_a_rank_with_an_empty_shard_sends_nothing(world):
    """RC-095: one row over two ranks of the sources; the second has no element, and sends no message."""
    plan = rp.compile(one_tensor((1, 4), "float32", over([0, 1], "S(0)"), over([2], "R")))
    assert plan.program(1).slots == ()
    assert run_everywhere(world, plan)[1].messages == 0
