"""The front for DTensor users delivers what torch itself would distribute, or says on every rank why not."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import _dtensor_calls as calls
import pytest
from _ranks import Ranks
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from strategies import layouts, shapes

import reshard_planner as rp
from reshard_planner.errors import (
    DtypeMismatchError,
    ExecutionError,
    InputError,
    LayoutError,
    LocalShapeError,
    PlacementError,
    ShapeMismatchError,
)

WORLD = 4
FLAT = [0, 1, 2, 3]
GRID = [[0, 1], [2, 3]]
FSDP_TP = (GRID, ["_S(0, sf=2)", "S(0)"])
"""How FSDP2 stores rows that tensor parallelism has cut before."""

OUTSIDE = ("none", "described", "dtensor")
"""What ranks outside of the source mesh give."""


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


@pytest.fixture
def front(world):
    """The world, with a Redistributor on every rank."""
    assert world.call_alike(calls.keep) == [None] * WORLD
    yield world
    world.call_alike(calls.drop)


def of(layout):
    return layout.mesh.array().tolist(), [str(placement) for placement in layout.placements]


@st.composite
def reshards(draw):
    shape = draw(shapes())
    src, dst = (draw(layouts(shape, FLAT)).normalized(len(shape)) for _ in range(2))
    return shape, of(src), of(dst)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reshards(), st.sampled_from(OUTSIDE), st.sampled_from(["", "transposed"]))
@example(((7, 1), FSDP_TP, (FLAT, ["S(0)"])), "none", "")
@example(((7, 3), (FLAT, ["S(0)"]), FSDP_TP), "none", "transposed")
@example(((9, 5), ([0, 1], ["S(1)"]), ([2, 3], ["S(0)"])), "none", "transposed")
@example(((9, 5), ([0, 1, 2], ["R"]), ([[3, 1], [2, 0]], ["S(0)", "S(1)"])), "described", "")
@example(((5,), ([2], ["R"]), ([2], ["R"])), "dtensor", "")
@example(((), ([3], ["R"]), (FLAT, ["R"])), "none", "")
@example(((3, 0), (FLAT, ["S(0)"]), (GRID, ["S(1)", "S(0)"])), "none", "")
@example(((4, 6), (FLAT, ["S(-1)"]), (FLAT, ["S(-2)"])), "none", "")
def test_a_dtensor_arrives_as_torch_would_distribute_it(front, reshard, outside, strides):
    answers = front.call_alike(calls.redistribute, *reshard, outside, strides)
    assert answers == [[]] * WORLD


def test_a_redistributor_of_a_subgroup_takes_ranks_of_the_world(world):
    members = [1, 2, 3]
    world.call(calls.keep_within, [(members,)] * WORLD)
    arguments = ((6, 4), ([1, 3], ["S(0)"]), ([[2], [1]], ["S(0)", "S(1)"]))
    answers = world.call(calls.redistribute_within, [arguments] * WORLD)
    assert answers == [None, [], [], []]
    answers = world.call(calls.transfer_within, [((6, 4), ([0], ["R"]), ([1, 2], ["S(1)"]))] * WORLD)
    assert answers == [None, [], [], []]
    world.call_alike(calls.drop)


def test_a_single_call_needs_no_redistributor(world):
    assert world.call_alike(calls.redistribute_once, (6, 5), FSDP_TP, ([3, 1], ["S(1)"])) == [[]] * WORLD


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reshards())
@example(((7, 2), FSDP_TP, (FLAT, ["S(0)"])))
@example(((6, 4), ([0, 1], ["S(1)"]), ([2], ["R"])))
def test_xferdtensor_fills_strided_tensors_in_place(front, reshard):
    answers = front.call_alike(calls.transfer_in_world, *reshard)
    assert answers == [[]] * WORLD


# -- plans are kept --------------------------------------------------------------------------------------


def test_layouts_that_were_met_before_are_not_compiled_again(front):
    one = ((6, 4), (FLAT, ["S(0)"]), (FLAT, ["S(1)"]))
    two = ((6, 4), ([0, 1], ["S(0)"]), ([2, 3], ["S(1)"]))
    other_shape = ((6, 5), *one[1:])
    for cases, compiled in (([one], 1), ([one, one], 0), ([two, one, two], 1), ([other_shape, two], 1)):
        assert front.call_alike(calls.count_compiled, cases) == [(compiled, [])] * WORLD


def test_the_plan_not_used_for_longest_makes_room(world):
    world.call_alike(calls.keep, 2)
    a, b, c = (((size, 4), (FLAT, ["S(0)"]), (FLAT, ["S(1)"])) for size in (3, 4, 5))
    for cases, compiled in (([a, b, a], 2), ([c], 1), ([a], 0), ([b], 1)):
        assert world.call_alike(calls.count_compiled, cases) == [(compiled, [])] * WORLD
    world.call_alike(calls.drop)


def test_a_rank_without_memory_for_the_result_fails_all_and_closes_the_front(front):
    for answer in front.call_alike(calls.redistribute_with_little_memory, 2):
        assert type(answer) is ExecutionError
        assert "rank 2 has no memory for the result" in str(answer)
    for answer in front.call_alike(calls.redistribute, (4,), ([0], ["R"]), ([1], ["R"])):
        assert "this Redistributor is closed" in str(answer)


# -- refusals --------------------------------------------------------------------------------------------

RIGHT = ((4, 6), "float32", (FLAT, ["S(0)"]), (FLAT, ["S(1)"]), (1, 6))


def change(**changes):
    names = ("shape", "dtype", "src", "dst", "local_shape")
    return tuple(changes.get(name, value) for name, value in zip(names, RIGHT, strict=True))


@pytest.mark.parametrize(
    ("everywhere", "on_rank_2", "kind", "said"),
    [
        ({"src": (FLAT, ["P"])}, {}, PlacementError, "source: placement 'P(sum)' is not supported: partial"),
        ({"dst": (FLAT, ["P"])}, {}, PlacementError, "destination: placement 'P(sum)' is not supported"),
        ({}, {"shape": (5, 6)}, ShapeMismatchError, "the shape is [4, 6] on rank 0 of the group, but [5, 6]"),
        ({}, {"dtype": "int8"}, DtypeMismatchError, "the dtype is float32 on rank 0 of the group, but int8"),
        ({}, {"dst": (FLAT, ["R"])}, InputError, 'the list of destination placements is ["S(1)"] on rank 0'),
        ({}, {"src": (FLAT, ["P"])}, InputError, 'but ["P(sum)"] on rank 2; expected the same on all ranks'),
        ({}, {"local_shape": (2, 6)}, LocalShapeError, "source tensor 'tensor', rank 2"),
        ({"dst": ([0, 9], ["S(0)"])}, {}, InputError, "the destination mesh has ranks [9]"),
        ({"dst": (FLAT, ["S(2)"])}, {}, LayoutError, "shards dim 2 of a 2-d tensor"),
        ({"dtype": "uint8", "src": (FLAT, ["R"]), "local_shape": (4, 6)}, {}, None, ""),
    ],
)
def test_what_cannot_be_redistributed_is_refused_on_every_rank_in_one_sentence(
    front, everywhere, on_rank_2, kind, said
):
    arguments = [change(**everywhere)] * WORLD
    arguments[2] = change(**everywhere, **on_rank_2)
    answers = front.call(calls.redistribute_as, arguments)
    if kind is None:
        assert answers == [None] * WORLD
        return
    for answer in answers:
        assert type(answer) is kind, answer
        assert said in str(answer)
        assert str(answer) == str(answers[0])
        assert "\n" not in str(answer)
    arguments = ((6, 4), (FLAT, ["S(0)"]), (FLAT, ["S(1)"]))
    assert front.call_alike(calls.redistribute, *arguments) == [[]] * WORLD


@pytest.mark.parametrize(
    ("src", "dst", "kind", "said"),
    [
        (
            ((4,), "int32"),
            ((5,), "int32"),
            ShapeMismatchError,
            "the shape is [4] on rank 0 of the group, but [5]",
        ),
        (((4,), "int32"), ((4,), "int64"), DtypeMismatchError, "the dtype is int32 on rank 0 of the group"),
    ],
)
def test_xferdtensor_refuses_sides_that_differ(front, src, dst, kind, said):
    for answer in front.call_alike(calls.transfer_wrongly, src, dst):
        assert type(answer) is kind
        assert said in str(answer)


def test_xferdtensor_refuses_sides_that_differ_on_one_rank(front):
    for answer in front.call_alike(calls.transfer_on_one_rank, (4,), (5,)):
        assert type(answer) is ShapeMismatchError
        assert str(answer) == "the shape is [4] at the source, but [5] at the destination; expected it equal"


def test_what_is_no_dtensor_on_one_rank_is_refused_on_all(front):
    for answer in front.call_alike(calls.redistribute_a_plain_tensor, 3):
        assert type(answer) is InputError
        assert str(answer) == "source is of type Tensor; expected DTensor, Described or None"


def test_xferdtensor_that_nobody_knows_the_shape_of_is_refused(front):
    answers = front.call(calls.transfer_nothing, [()] * WORLD)
    for answer in answers:
        assert str(answer) == "the shape is known to no rank; expected a tensor on every rank of a mesh"


def test_a_closed_redistributor_refuses_to_work(front):
    for answer in front.call_alike(calls.use_after_closing):
        assert type(answer) is ExecutionError
        assert "closed" in str(answer)


def test_redistributors_that_differ_are_refused_on_every_rank(world):
    options = [None, None, rp.Options(lag=3), None]
    for answer in world.call(calls.build_with, [(each, 1) for each in options]):
        assert type(answer) is InputError
        assert "the digest of the options is" in str(answer)
    for answer in world.call_alike(calls.build_with, None, 0):
        assert str(answer) == "kept is 0; expected an integer of at least 1"


def test_a_process_outside_of_the_group_is_refused(world):
    answers = world.call_alike(calls.build_over, [0, 1])
    assert answers[:2] == [2, 2]
    for rank, answer in enumerate(answers[2:], 2):
        assert str(answer) == f"rank {rank} of the world is not a member of the group"


def test_a_rank_that_does_not_come_fails_the_others(world):
    world.call_alike(calls.keep, 8, 1.5)
    answers = world.call_alike(calls.redistribute_unless, 1)
    assert answers[1] is None
    for answer in (answers[0], *answers[2:]):
        assert type(answer) is ExecutionError
        assert str(answer).startswith("the ranks did not meet to compare tensors")
    world.call_alike(calls.drop)
    assert world.call_alike(calls.add_up, 1) == [4.0] * WORLD


# -- several jobs ----------------------------------------------------------------------------------------


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def call_both(jobs, function, arguments):
    """Call in all processes of all jobs at once; ``arguments`` by position in the joint group."""
    found, at = [], 0
    for job in jobs:
        job.send(function, arguments[at : at + job.count])
        at += job.count
    for job in jobs:
        found += job.receive()
    return found


@pytest.fixture(scope="module")
def jobs():
    found = [Ranks(2), Ranks(3)]
    yield found
    for job in found:
        job.close()


def test_processes_of_two_jobs_join_and_reshard_and_each_job_stays_as_it_is(jobs):
    address = free_address()
    for _ in range(2):
        answers = call_both(jobs, calls.join, [(address, at, 5) for at in range(5)])
        for at, answer in enumerate(answers):
            assert answer == (at, 5, at, [0, 1, 2, 3, 4], 10, [0, 1, 2, 3, 4], 4, (at - 1) % 5)
        for src, dst in (
            (([0, 1], ["S(0)"]), ([2, 3, 4], ["S(1)"])),
            (([[4, 2], [0, 1]], ["S(0)", "R"]), ([3, 0], ["R"])),
        ):
            answers = call_both(jobs, calls.transfer_between_jobs, [((7, 5), src, dst)] * 5)
            assert answers == [[]] * 5
        assert call_both(jobs, calls.add_up, [(1,)] * 5) == [2.0, 2.0, 3.0, 3.0, 3.0]
        assert call_both(jobs, calls.leave, [()] * 5) == [True] * 5
        assert call_both(jobs, calls.add_up, [(1,)] * 5) == [2.0, 2.0, 3.0, 3.0, 3.0]


def test_a_process_without_a_world_joins_too(jobs):
    address = free_address()
    transfers = [((7, 5), ([0, 1], ["S(0)"]), ([2], ["R"])), ((6,), ([[2]], ["R", "R"]), ([1, 0], ["S(0)"]))]
    code = f"import _dtensor_calls\n_dtensor_calls.visit({address!r}, 2, 3, *{transfers!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as visitor:
        answers = jobs[0].call(calls.join, [(address, at, 3, 60.0) for at in (0, 1)])
        assert [answer[:4] for answer in answers] == [(at, 3, at, [0, 1, 2]) for at in (0, 1)]
        for transfer in transfers:
            assert jobs[0].call_alike(calls.transfer_between_jobs, *transfer) == [[], []]
        assert jobs[0].call_alike(calls.leave) == [True, True]
        printed, _ = visitor.communicate(timeout=180)
    assert printed == "(2, 3, 2, [0, 1, 2]) 2 [] False\n"


def test_nobody_at_the_address_fails_within_the_timeout(jobs):
    address = free_address()
    for answer in jobs[0].call(calls.join, [(address, at, 3, 1.0) for at in (0, 1)]):
        assert type(answer) is ExecutionError
        assert str(answer).startswith(f"the 3 processes of the jobs did not meet at {address}: ")
        assert "\n" not in str(answer)
    assert jobs[0].call_alike(calls.add_up, 1) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"address": "127.0.0.1:80"}, "address is '127.0.0.1:80'; expected tcp://host:port"),
        ({"address": "tcp://127.0.0.1"}, "address is 'tcp://127.0.0.1'; expected tcp://host:port"),
        ({"address": "tcp://127.0.0.1:x"}, "address is 'tcp://127.0.0.1:x'; expected tcp://host:port"),
        ({"address": "tcp://127.0.0.1:99999"}, "expected tcp://host:port"),
        ({"address": "tcp://:80"}, "expected tcp://host:port"),
        ({"rank": 1}, "rank is 1; expected an integer from 0 to 0"),
        ({"rank": True}, "rank is True; expected an integer from 0 to 0"),
        ({"world_size": 0}, "world_size is 0; expected an integer of at least 1"),
        ({"backend": "smoke"}, "backend is 'smoke'; expected one of "),
    ],
)
def test_wrong_arguments_are_refused_before_anybody_is_waited_for(jobs, change, said):
    for answer in jobs[0].call_alike(calls.join_with, change):
        assert type(answer) is InputError
        assert said in str(answer)


def test_a_rank_that_is_taken_is_refused(jobs):
    address = free_address()
    answers = jobs[1].call(calls.join, [(address, at, 3, 3.0) for at in (0, 1, 1)])
    assert sorted(type(answer).__name__ for answer in answers) == [
        "ExecutionError",
        "ExecutionError",
        "InputError",
    ]
    said = [str(answer) for answer in answers if type(answer) is InputError]
    assert said == ["rank is 1, which another process has joined with; expected distinct ranks"]


def test_jobs_that_expect_different_sizes_are_refused(jobs):
    address = free_address()
    arguments = [(address, 0, 2, 3.0), (address, 1, 2, 3.0), (address, 2, 3, 3.0)]
    answers = jobs[1].call(calls.join, arguments)
    assert any(type(answer) is InputError and "world_size is" in str(answer) for answer in answers), answers
    jobs[1].call(calls.leave_if_joined, [()] * 3)


def test_two_jobs_refit_as_the_script_shows():
    script = Path(__file__).parent.parent / "examples" / "two_jobs.py"
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the trainer job goes on with its own world of 2",
        *(
            f"refit {step}: weights are right on inference rank 0, right on inference rank 1"
            for step in (1, 2, 3)
        ),
        "the inference job goes on with its own world of 2",
    ]
