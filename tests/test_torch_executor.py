"""The torch executor delivers what the interpreter delivers, bit by bit, or says on every rank why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import _rank_calls as calls
import pytest
import reshard_executors
from _ranks import Ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import sources, sources_and_destinations
from reshard_executors.agreement import find_mixed
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import ExecutionError, InputError, LocalShapeError
from reshard_planner.transfer import Role

WORLD = 6
TRAIN = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
SERVE = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
EIGHT = rp.ReshardSpec(
    [rp.TensorSpec(name, (8, 8), "bfloat16", TRAIN, SERVE) for name in ("first", "second")],
    rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]),
)


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def played_ranks(plan, count=WORLD):
    """Ranks that the processes of a world play: those of the plan, then some that it does not have."""
    return [*plan.ranks, *range(100, 100 + count - len(plan.ranks))]


def destinations(spec, seed=0):
    """What every destination buffer must contain, by rank and tensor name."""
    return sources_and_destinations(spec, seed)[1]


def run_everywhere(world, plan):
    ranks = played_ranks(plan, world.count)
    held = sources(plan.spec)
    answers = world.call(calls.build_and_run, [(plan, ranks, held.get(rank, {})) for rank in ranks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return {rank: kept for rank, (kept, _) in zip(ranks, answers, strict=True)}, [
        record for _, record in answers
    ]


def assert_runs_exactly(world, plan):
    received, records = run_everywhere(world, plan)
    interpreted = rp.interpret(plan, sources(plan.spec))
    for rank, by_tensor in destinations(plan.spec).items():
        for name, wanted in by_tensor.items():
            for ours, theirs, want in zip(
                received[rank][name], interpreted.destinations[rank][name], wanted, strict=True
            ):
                assert ours.tobytes() == theirs.tobytes() == want.tobytes(), (rank, name)
    claims = plan.certificate
    assert sum(record.network_nbytes for record in records) == claims.payload.network_nbytes
    assert sum(record.nvlink_nbytes for record in records) == claims.payload.nvlink_nbytes
    assert sum(record.messages for record in records) == claims.schedule.messages


@settings(max_examples=40)
@given(specs(max_ranks=WORLD))
def test_both_executors_deliver_the_same_bits_and_count_them_alike(world, spec):
    assert_runs_exactly(world, rp.compile(spec))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_dtype_arrives_bit_for_bit(world, strategy):
    replicas = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ["dp", "tp"]), ["R", "S(1)"])
    tensors = [rp.TensorSpec(dtype, (6, 32), dtype, TRAIN, [SERVE, replicas]) for dtype in DTYPE_BITS]
    topology = rp.Topology.from_domains([[0], [1], [2, 4], [3, 5]])
    assert_runs_exactly(world, rp.compile(rp.ReshardSpec(tensors, topology), strategy))


def over(ranks, placement):
    return rp.Layout(rp.Mesh(ranks), [placement])


@pytest.mark.parametrize(
    ("name", "shape", "src", "dst"),
    [
        ("a permutation in place", (12, 4), over([0, 1, 2], "S(0)"), over([2, 0, 1], "S(0)")),
        ("meshes that overlap", (10, 6), over(range(4), "S(0)"), over([2, 3, 4], "S(1)")),
        ("to all of its own ranks", (10,), over(range(4), "S(0)"), over(range(4), "R")),
        ("fewer elements than ranks", (3,), over(range(6), "S(0)"), over(range(6), "R")),
        ("nothing to move", (0, 3), TRAIN, SERVE),
        ("a scalar", (), over([3], "R"), over([0, 5], "R")),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_cases_run_exactly(world, strategy, name, shape, src, dst):
    spec = rp.ReshardSpec(
        [rp.TensorSpec(name, shape, "float32", src, dst)], rp.Topology.from_domains([[0, 1, 2], [3, 4, 5]])
    )
    assert_runs_exactly(world, rp.compile(spec, strategy))


def test_relays_and_scratch_run_exactly(world):
    one = rp.Layout(rp.Mesh([0]), ["R"])
    everywhere = rp.Layout(rp.Mesh([1, 2, 3, 4, 5]), ["R"])
    spec = rp.ReshardSpec(
        [rp.TensorSpec("w", (64, 16), "float32", one, everywhere)],
        rp.Topology.from_domains([[0], [1], [2, 3], [4, 5]]),
        rp.Options(min_message_nbytes=64),
    )
    relayed = rp.compile(spec)
    assert (relayed.ops().role == Role.RELAY).any()
    assert_runs_exactly(world, relayed)
    gathered = rp.compile(EIGHT, "gather-broadcast")
    assert gathered.ops().scratch.any()
    assert_runs_exactly(world, gathered)


def test_a_resharder_runs_many_times_and_a_rank_outside_of_the_plan_takes_part(world):
    spec = rp.ReshardSpec([rp.TensorSpec("w", (9, 5), "int64", TRAIN, rp.Layout(rp.Mesh([3]), ["R"]))])
    plan = rp.compile(spec)
    ranks = [3, 8, 1, 0, 9, 7]
    assert world.call_alike(calls.build, plan, ranks) == [None] * WORLD
    for seed in range(3):
        held = sources(spec, seed)
        answers = world.call(calls.run, [(held.get(rank, {}),) for rank in ranks])
        kept, record = answers[0]
        assert kept["w"][0].tobytes() == destinations(spec, seed)[3]["w"][0].tobytes()
        assert record.messages == 0
        outside = answers[1]
        assert outside[0] == {}
        assert outside[1].network_nbytes == outside[1].nvlink_nbytes == 0


def test_a_run_in_inference_mode_delivers_the_same(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    answers = world.call(calls.run_serving, [(held.get(rank, {}),) for rank in ranks])
    for rank, (kept, _) in zip(ranks, answers, strict=True):
        for name, arrays in kept.items():
            assert arrays[0].tobytes() == destinations(EIGHT)[rank][name][0].tobytes()


def test_parameters_are_moved_without_their_gradients_taking_part(world):
    ranks = played_ranks(rp.compile(EIGHT))
    world.call_alike(calls.build, rp.compile(EIGHT), ranks)
    assert (
        world.call(calls.run_parameters, [(sources(EIGHT).get(rank, {}),) for rank in ranks])
        == [True] * WORLD
    )


# -- groups ----------------------------------------------------------------------------------------------


def one_to_three(*ranks):
    dst = rp.Layout(rp.Mesh(ranks[1:]), ["S(0)"])
    return rp.ReshardSpec([rp.TensorSpec("w", (7, 2), "float32", rp.Layout(rp.Mesh(ranks[:1]), ["R"]), dst)])


def test_a_resharder_over_a_part_of_the_world_is_built_again_and_again(world):
    spec = one_to_three(1, 2, 4)
    assert world.call_alike(calls.build, rp.compile(spec), None, [1, 2, 4]) == [None] * WORLD
    for _ in range(3):
        answers = world.call(calls.run, [(sources(spec).get(rank, {}),) for rank in range(WORLD)])
        assert [answer is None for answer in answers] == [True, False, False, True, False, True]
        for rank in (2, 4):
            assert answers[rank][0]["w"][0].tobytes() == destinations(spec)[rank]["w"][0].tobytes()
        assert world.call_alike(calls.rebuild) == [None] * WORLD
    world.call_alike(calls.close)


def test_a_plan_with_a_rank_outside_of_the_group_is_refused_on_every_rank(world):
    answers = world.call_alike(calls.build, rp.compile(one_to_three(0, 1, 2)), None, [1, 2, 3])
    assert answers[0] is None
    assert answers[4] is None
    for answer in answers[1:4]:
        assert isinstance(answer, InputError)
        assert "ranks [0]" in str(answer)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([0, 1, 2], "3 entries"),
        ([0, 1, 2, 3, 4, 4], "twice"),
        ([0, 1, 2, 3, 4, 9], "ranks [5]"),
        ([0, 1, 2, 3, 4, None], "entry None"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_on_every_rank(world, ranks, said):
    for answer in world.call_alike(calls.build, rp.compile(EIGHT), ranks):
        assert isinstance(answer, InputError)
        assert said in str(answer)


def test_ranks_that_differ_between_processes_are_refused_on_every_rank(world):
    ranks = [[0, 1, 2, 3, 4, 5]] * 5 + [[5, 4, 3, 2, 1, 0]]
    answers = world.call(calls.build, [(rp.compile(EIGHT), mine) for mine in ranks])
    said = (
        "the list of ranks is [0, 1, 2, 3, 4, 5] on rank 0 of the group, but [5, 4, 3, 2, 1, 0] on rank 5;"
        " expected the same on all ranks"
    )
    assert {str(answer) for answer in answers} == {said}


def test_another_plan_on_one_rank_is_refused_on_every_rank(world):
    plans = [rp.compile(EIGHT)] * 5 + [rp.compile(EIGHT, "direct")]
    ranks = played_ranks(plans[0])
    answers = world.call(calls.build, [(plan, ranks) for plan in plans])
    for answer in answers:
        assert isinstance(answer, InputError)
        assert plans[0].digest in str(answer)
        assert plans[5].digest in str(answer)


# -- local tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rank", "kind", "said"),
    [
        (
            "source of another shape",
            1,
            LocalShapeError,
            "tensor 'first', rank 1: local shape is [3, 8]",
        ),
        ("destination of another shape", 4, LocalShapeError, "local shape is [16]; its layout gives [8, 2]"),
        ("destination of another dtype", 5, LocalShapeError, "float16; expected torch.bfloat16"),
        (
            "destination that repeats itself",
            3,
            LocalShapeError,
            "strides [0, 1] for shape [8, 2]; expected elements with memory of their own",
        ),
        ("missing destination", 3, LocalShapeError, "rank 3: 0 local buffers are given; expected 1"),
        ("source given twice", 0, LocalShapeError, "rank 0: 2 local buffers are given; expected 1"),
        ("source without its storage", 0, LocalShapeError, "its storage has 3 bytes; expected at least 64"),
        ("source that is None", 0, LocalShapeError, "rank 0: NoneType is given; expected a torch tensor"),
        (
            "source that is a DTensor",
            1,
            LocalShapeError,
            "rank 1: a DTensor is given; expected a plain tensor",
        ),
        (
            "sparse source",
            0,
            LocalShapeError,
            "rank 0: its layout is torch.sparse_coo; expected torch.strided",
        ),
        (
            "sources that are a list",
            1,
            InputError,
            "sources of rank 1 are a list; expected a mapping of names",
        ),
        ("source that is an array", 1, LocalShapeError, "rank 1: ndarray is given; expected a torch tensor"),
        ("source on another device", 1, LocalShapeError, "rank 1: it is on device meta; expected cpu"),
        ("unknown destination", 2, InputError, "destination tensor 'stranger', rank 2, is not in the plan"),
        ("destination given to two tensors", 3, InputError, "'first' and destination tensor 'second' share"),
    ],
)
def test_a_wrong_local_tensor_on_one_rank_is_refused_on_every_rank(world, change, rank, kind, said):
    plan = rp.compile(EIGHT)
    world.call_alike(calls.build, plan, plan.ranks)
    held = sources(EIGHT)
    arguments = [(change if each == rank else "", held.get(each, {})) for each in plan.ranks]
    answers = world.call(calls.run_with, arguments)
    assert len({str(answer) for answer in answers}) == 1
    for answer in answers:
        assert type(answer) is kind
        assert said in str(answer)
    kept, _ = world.call(calls.run, [(held.get(each, {}),) for each in plan.ranks])[5]
    assert kept["first"][0].tobytes() == destinations(EIGHT)[5]["first"][0].tobytes()


def on_both(dtype):
    """A tensor that goes from rows to columns of the same two ranks."""
    return rp.ReshardSpec([rp.TensorSpec("w", (8, 8), dtype, over([0, 1], "S(0)"), over([0, 1], "S(1)"))])


@pytest.mark.parametrize(
    ("change", "dtype", "said"),
    [
        ("destination within a source", "float32", "tensor 'w' and source tensor 'w' share memory"),
        ("conjugated source", "complex64", "its conjugation or negation is pending"),
    ],
)
def test_values_that_are_not_where_they_seem_are_refused_on_every_rank(world, change, dtype, said):
    plan = rp.compile(on_both(dtype))
    world.call_alike(calls.build, plan, played_ranks(plan))
    held = sources(plan.spec)
    answers = world.call(calls.run_with, [("", held[0]), (change, held[1]), *[("", {})] * 4])
    for answer in answers:
        assert isinstance(answer, InputError)
        assert said in str(answer)


# -- failures --------------------------------------------------------------------------------------------


@pytest.fixture
def small_world():
    """A world that a test may break."""
    ranks = Ranks(3, timeout_s=10)
    yield ranks
    ranks.close()


def test_a_rank_without_memory_for_its_buffers_fails_every_rank_before_the_first_byte(small_world):
    src = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
    dst = rp.Layout(rp.Mesh([1, 2]), ["R"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (4096, 4096), "float32", src, dst)])
    plan = rp.compile(spec, "gather-broadcast")  # gathers the whole tensor in scratch, which takes memory
    gatherer = int(plan.ops().dst[plan.ops().scratch == 1][0])
    held = sources(spec)
    small_world.call_alike(calls.build, plan, None, None, 8.0)
    arguments = [(held.get(rank, {}), 2**20 if rank == gatherer else None) for rank in range(3)]
    answers = small_world.call(calls.run_with_little_memory, arguments)
    assert len({str(answer) for answer in answers}) == 1
    for answer in answers:
        assert type(answer) is ExecutionError, answer
        assert f"rank {gatherer} cannot make its buffers" in str(answer)
    assert small_world.call_alike(calls.torn) == [False] * 3
    for answer in small_world.call(calls.run, [(held.get(rank, {}),) for rank in range(3)]):
        assert "must be built anew" in str(answer)
    assert small_world.call_alike(calls.add_up) == [3.0] * 3
    assert_runs_exactly(small_world, plan)


def test_a_rank_that_ends_within_a_run_fails_it_everywhere(small_world):
    src = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
    dst = rp.Layout(rp.Mesh([1, 2]), ["R"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (4096, 4096), "float32", src, dst)])
    held = sources(spec)
    small_world.call_alike(calls.build, rp.compile(spec), None, None, 4.0)
    answers = small_world.call(calls.run_until_one_ends, [(2, held.get(rank, {})) for rank in range(3)])
    assert answers[2] == "gone"
    for answer in answers[:2]:
        assert type(answer) is ExecutionError, answer
        assert str(answer).startswith("slot ")
        assert "'w'" in str(answer)
    assert small_world.call_alike(calls.torn)[:2] == [False, True]  # rank 0 has no destination


def test_a_rank_that_does_not_come_or_is_gone_fails_the_others(small_world):
    spec = one_to_three(0, 1, 2)
    held = [sources(spec).get(rank, {}) for rank in range(3)]
    small_world.call_alike(calls.build, rp.compile(spec), None, None, 1.5)
    answers = small_world.call(calls.run_unless, [(1, mine) for mine in held])
    assert answers[1] is None
    for answer in (answers[0], answers[2]):
        assert type(answer) is ExecutionError
        assert "the ranks did not meet" in str(answer)
    small_world.call_alike(calls.build, rp.compile(spec), None, None, 1.5)
    small_world.call_alike(calls.end, 1)
    answers = small_world.call(calls.run, [(mine,) for mine in held])
    assert answers[1] == "gone"
    for answer in (answers[0], answers[2]):
        assert type(answer) is ExecutionError


def test_a_process_outside_of_the_group_is_refused(world):
    answers = world.call_alike(calls.build_over, rp.compile(one_to_three(0, 1)), [0, 1])
    assert answers[:2] == [0, 1]
    for rank, answer in enumerate(answers[2:], 2):
        assert str(answer) == f"rank {rank} of the world is not a member of the group"


def test_a_resharder_needs_a_process_group():
    with pytest.raises(InputError, match="call init_process_group first"):
        reshard_executors.Resharder(rp.compile(EIGHT))


def test_a_closed_resharder_refuses_to_run(world):
    for answer in world.call_alike(calls.run_after_closing, rp.compile(one_to_three(0, 1, 2))):
        assert type(answer) is ExecutionError
        assert "closed" in str(answer)


# -- runs ------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    specs(max_ranks=WORLD),
    st.sampled_from(["transposed", "every second"]),
    st.sampled_from(["transposed", "every second"]),
)
def test_strided_tensors_are_read_and_written_and_nothing_between_them(world, spec, source, destination):
    plan = rp.compile(spec)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(spec)
    answers = world.call(calls.run_strided, [(held.get(rank, {}), (source, destination)) for rank in ranks])
    for rank, answer in zip(ranks, answers, strict=True):
        assert not isinstance(answer, Exception), answer
        kept, changed = answer
        for name, arrays in destinations(spec).get(rank, {}).items():
            for ours, want in zip(kept[name], arrays, strict=True):
                assert ours.tobytes() == want.tobytes()
        assert changed == 0


def test_bytes_that_stay_may_share_their_memory(world):
    spec = rp.ReshardSpec([rp.TensorSpec("w", (18, 4), "int16", over(range(6), "S(0)"), over(range(6), "R"))])
    plan = rp.compile(spec)
    world.call_alike(calls.build, plan)
    held = sources(spec)
    for kept, same in world.call(calls.run_in_place, [(held[rank], 0) for rank in range(WORLD)]):
        assert same
        assert kept["w"][0].tobytes() == destinations(spec)[0]["w"][0].tobytes()
    answers = world.call(calls.run_in_place, [(held[rank], 1 if rank == 2 else 0) for rank in range(WORLD)])
    for answer in answers:
        assert type(answer) is InputError
        assert "tensor 'w' and" in str(answer)
        assert "tensor 'w' share memory" in str(answer)


def test_some_tensors_can_be_moved_alone(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    for names in (["second"], ["first", "second"], [], None, ("first",)):
        answers = world.call(calls.run_some, [(held.get(rank, {}), names) for rank in ranks])
        for rank, (kept, _) in zip(ranks, answers, strict=True):
            for name in kept:
                assert kept[name][0].tobytes() == destinations(EIGHT)[rank][name][0].tobytes()
        moved = sum(record.network_nbytes for _, record in answers)
        count = 2 if names is None else len(names)
        assert moved == plan.certificate.payload.network_nbytes * count // 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([["first"]] * 5 + [["second"]], "the list of tensors to move is ['first'] on rank 0 of the group"),
        ([["first"]] * 5 + [["third"]], "tensors names 'third'"),
        ([["first"]] * 5 + [5], "tensors is 5; expected a collection of names"),
        ([["first"]] * 5 + [[5]], "tensors has the entry 5; expected names"),
        ([["first"]] * 5 + ["first"], "tensors is the string 'first'; expected a collection of names"),
    ],
)
def test_other_tensors_on_one_rank_are_refused_on_every_rank(world, names, said):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    answers = world.call(
        calls.run_some, [(held.get(rank, {}), mine) for rank, mine in zip(ranks, names, strict=True)]
    )
    for answer in answers:
        assert isinstance(answer, InputError)
        assert said in str(answer)


def test_a_run_that_was_started_is_waited_for_before_the_next(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    said = "a run has been started; expected its wait before another one"
    answers = world.call(calls.start_twice, [(held.get(rank, {}),) for rank in ranks])
    for rank, answer in zip(ranks, answers, strict=True):
        assert answer == (said, rank in SERVE.mesh.ranks, True, False)


def test_a_run_that_was_started_is_waited_for_by_closing(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    answers = world.call(calls.start_and_close, [(held.get(rank, {}),) for rank in ranks])
    for rank, kept in zip(ranks, answers, strict=True):
        for name, arrays in kept.items():
            assert arrays[0].tobytes() == destinations(EIGHT)[rank][name][0].tobytes()


def test_other_tensors_than_the_last_time_are_looked_at_again(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    assert all(
        answer is None for answer in world.call(calls.regroup, [(held.get(rank, {}),) for rank in ranks])
    )
    for answer in world.call(calls.regroup_on_one, [(held.get(rank, {}), rank == 0) for rank in ranks]):
        assert type(answer) is LocalShapeError
        assert "rank 0: 2 local buffers are given; expected 1" in str(answer)


@pytest.mark.parametrize("device", ["gpu", "cuda:3", "meta"])
def test_a_device_that_cannot_be_used_on_one_rank_is_refused_on_every_rank(world, device):
    plan = rp.compile(one_to_three(0, 1, 2))
    for answer in world.call(
        calls.build_on_device, [(plan, device if at == 1 else None) for at in range(WORLD)]
    ):
        assert isinstance(answer, InputError)
        assert "device is" in str(answer)


def test_later_runs_into_the_same_tensors_allocate_nothing(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    for first, second, third in world.call(calls.allocations, [(held.get(rank, {}),) for rank in ranks]):
        assert second == third
        assert second <= 1024  # hashes to agree on
        assert first >= second


def test_tensors_that_the_caller_has_given_up_are_not_held_on_to(world):
    plan = rp.compile(EIGHT)
    ranks = played_ranks(plan)
    world.call_alike(calls.build, plan, ranks)
    held = sources(EIGHT)
    assert world.call(calls.weak_sources, [(held.get(rank, {}),) for rank in ranks]) == [0] * WORLD


def test_hundreds_of_refits_on_four_ranks_use_no_more_than_the_first():
    layouts = (over([0, 1], "S(0)"), [over([1, 2], "S(1)"), over([3, 0], "R")])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "float32", *layouts)])
    plan = rp.compile(spec)
    assert plan.ranks == (0, 1, 2, 3)
    held = sources(spec)
    four = Ranks(4)
    try:
        assert four.call_alike(calls.build, plan) == [None] * 4
        for early, late in four.call(calls.run_often, [(held.get(rank, {}), 300) for rank in range(4)]):
            assert late[:2] == early[:2]
            assert late[2] <= early[2] + 2**20
    finally:
        four.close()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_refit_takes_no_more_memory_than_its_staging(small_world, strategy):
    tensors = [
        rp.TensorSpec(f"w{at}", (8192, 2048), "float32", over([0, 1], "S(0)"), over([1, 2], "S(1)"))
        for at in range(4)
    ]
    spec = rp.ReshardSpec(tensors, None, rp.Options(staging_nbytes=2**25))
    plan = rp.compile(spec, strategy)
    small_world.call_alike(calls.build, plan)
    for beyond in small_world.call_alike(calls.peak_of_a_refit):
        assert beyond <= plan.certificate.staging_nbytes + 2**24


def test_a_resharder_that_is_dropped_without_closing_leaves_nothing_behind(small_world):
    plan = rp.compile(one_to_three(0, 1, 2))
    assert small_world.call_alike(calls.build_and_drop, plan, 12) == [(0, 0)] * 3


# -- hosts -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_hosts_and_domains_fit_if_one_of_any_two_that_meet_holds_the_other(pairs):
    domain_of = {at: domain for at, (domain, _) in enumerate(pairs)}
    hosts = [host for _, host in pairs]
    members = [{at for at in domain_of if domain_of[at] == domain} for domain in range(4)]
    inside = [{at for at in domain_of if hosts[at] == host} for host in range(4)]
    fits = all(not a & b or a <= b or b <= a for a in members for b in inside)
    mixed = find_mixed(domain_of, hosts)
    assert (mixed is None) == fits
    if mixed is not None:
        one, other = mixed
        assert hosts[one] == hosts[other]
        assert domain_of[one] != domain_of[other]


def test_processes_on_hosts_that_domains_do_not_fit_are_refused_on_every_rank(world):
    names = ["left", "right", "left", "left", "right", "right"]
    spec = one_to_three(0, 1, 2, 3)
    plan = rp.compile(rp.ReshardSpec(spec.tensors, rp.Topology.from_domains([[0, 1, 2], [3, 4, 5]])))
    answers = world.call(calls.build_on_host, [(plan, name) for name in names])
    for answer in answers:
        assert isinstance(answer, InputError)
        assert str(answer).startswith(
            "ranks 0 and 3 are both on host left, but in domains 0 and 1 of the topology"
        )


# -- imports ---------------------------------------------------------------------------------------------


def run_python(text):
    return subprocess.run(
        [sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=300
    )


def test_everything_but_the_resharder_works_without_torch():
    done = run_python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import reshard_executors, reshard_executors.local, reshard_planner as rp\n"
        "layouts = [rp.Layout(rp.Mesh([0, 1]), [placement]) for placement in ('S(0)', 'R')]\n"
        "plan = rp.compile(rp.ReshardSpec([rp.TensorSpec('w', (4,), 'bfloat16', *layouts)]))\n"
        "print(reshard_executors.local.run_plan(plan).correct)\n"
        "try:\n"
        "    reshard_executors.local.run_plan(plan, 'torch')\n"
        "except rp.InputError as error:\n"
        "    print(error)\n"
        "from reshard_executors import Resharder\n"
    )
    assert done.stdout.splitlines() == [
        "True",
        "the torch executor needs torch, which is not installed; install the extra reshard-planner[torch]",
    ]
    assert done.stderr.splitlines()[-1] == (
        "ImportError: Resharder needs torch, which is not installed; install the extra reshard-planner[torch]"
    )


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="nothing"):
        _ = reshard_executors.nothing
