"""What destinations hold is known: by versions, by checksums, and with shadows it is old or new weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import _rank_calls
import _refit_calls as calls
import numpy as np
import pytest
from _ranks import Ranks
from element_oracle import assert_equal, buffers
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import sources, sources_and_destinations
from reshard_executors.local import ENVIRONMENT
from storage_strategies import FLOATS, stored_specs
from strategies import STRATEGIES

import reshard_planner as rp
from reshard_planner.errors import ContentsError, ExecutionError, InputError
from reshard_planner.ir.timeline import Activity
from reshard_planner.transfer import Medium

WORLD = 4
ROWS = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
COLUMNS = rp.Layout(rp.Mesh([1, 2, 3]), ["S(1)"])
SPEC = rp.ReshardSpec(
    [rp.TensorSpec(name, (12, 9), "float32", ROWS, COLUMNS) for name in ("a", "b", "c")],
    rp.Topology.from_domains([[0, 1], [2, 3]]),
)
PLAN = rp.compile(SPEC)
RANKS = list(range(WORLD))
PLAN_OF_OTHERS = rp.compile(
    rp.ReshardSpec(
        [
            rp.TensorSpec(
                "a",
                (12, 9),
                "float32",
                *(rp.Layout(rp.Mesh(ranks), ["S(0)"]) for ranks in ([10, 11], [12, 13])),
            )
        ]
    )
)


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def unless_error(answers):
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def prepared(world, plan=PLAN, **options):
    ranks = [*plan.ranks, *range(100, 100 + WORLD - len(plan.ranks))]
    unless_error(world.call_alike(calls.prepare, plan, ranks, options))
    return ranks


def refit(world, seed=0, names=None, version=None):
    held = sources(SPEC, seed)
    return world.call(calls.refit, [(held.get(rank, {}), names, version) for rank in RANKS])


def assert_holds(kept, rank, seed, names=("a", "b", "c")):
    wanted = sources_and_destinations(SPEC, seed)[1].get(rank, {})
    for name in names:
        for ours, want in zip(kept.get(name, []), wanted.get(name, []), strict=True):
            assert ours.tobytes() == want.tobytes()


@settings(max_examples=25)
@given(stored_specs(max_ranks=WORLD, dtypes=FLOATS, casts=True), st.sampled_from(STRATEGIES), st.booleans())
def test_shadows_and_checksums_change_nothing_about_what_arrives(world, spec, strategy, shadow):
    plan = rp.compile(spec, strategy)
    ranks = prepared(world, plan, shadow=shadow, checksums=True, profile=True)
    held = buffers(spec, "src")
    answers = world.call(calls.refit, [(held.get(rank, {}), None, None) for rank in ranks])
    kept = {}
    for rank, answer in zip(ranks, unless_error(answers), strict=True):
        kept[rank] = answer["kept"]
        record = answer["record"]
        assert answer["untouched until the end"] or not shadow
        assert not answer["torn"]
        assert set(answer["versions"].values()) <= {1}
        sent = record.timeline.activity == Activity.SEND
        assert sent.sum() == record.messages
        for medium, nbytes in (
            (Medium.NETWORK, record.network_nbytes),
            (Medium.NVLINK, record.nvlink_nbytes),
        ):
            assert record.timeline.nbytes[sent & (record.timeline.medium == medium)].sum() == nbytes
        assert (record.timeline.end_s <= record.elapsed_s + record.end_s).all()
    assert_equal(spec, kept, buffers(spec, "dst", padding=calls.POISON))


def test_destinations_are_torn_while_they_are_written_and_with_shadows_never_seen_so(world):
    for shadow in (False, True):
        prepared(world, shadow=shadow)
        for rank, answer in enumerate(unless_error(refit(world))):
            assert answer["torn meanwhile"] == (not shadow and rank in COLUMNS.mesh.ranks)
            assert not answer["torn"]


def test_versions_count_refits_on_all_ranks_and_go_on_in_the_next_resharder(world):
    prepared(world)
    for number in (1, 2):
        for rank, answer in enumerate(unless_error(refit(world, seed=number))):
            assert answer["record"].version == number
            mine = ("a", "b", "c") if rank in COLUMNS.mesh.ranks else ()
            assert answer["versions"] == dict.fromkeys(mine, number)
    for answer in unless_error(refit(world, names=["b"], version=40)):
        assert answer["record"].version == 40
    for rank, answer in enumerate(unless_error(refit(world, seed=5, names=["c"]))):
        assert answer["record"].version == 41
        if rank in COLUMNS.mesh.ranks:
            assert answer["versions"] == {"a": 2, "b": 40, "c": 41}
            assert_holds(answer["kept"], rank, 2, ["a"])
            assert_holds(answer["kept"], rank, 5, ["c"])
    unless_error(world.call_alike(calls.prepare_again, PLAN, RANKS))
    for answer in unless_error(refit(world)):
        assert answer["record"].version == 42


def test_a_rank_that_knows_a_higher_version_raises_that_of_all(world):
    options = [({"versions": {"a": 7, "b": None}} if rank == 2 else {}) for rank in RANKS]
    unless_error(world.call(calls.prepare, [(PLAN, RANKS, each) for each in options]))
    assert [torn for torn, _, _ in world.call_alike(calls.left_behind)] == [False, False, True, False]
    for answer in unless_error(refit(world, names=["a"])):
        assert answer["record"].version == 8
    assert world.call_alike(calls.left_behind)[2][:2] == (True, {"a": 8, "b": None, "c": 0})
    for answer in unless_error(refit(world)):
        assert not answer["torn"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (0, "version is 0; expected an integer from 1 to 4611686018427387904"),
        (True, "version is True; expected an integer from 1 to 4611686018427387904"),
        (2**63, f"version is {2**63}; expected an integer from 1 to 4611686018427387904"),
        ("7", "version is '7'; expected an integer from 1 to 4611686018427387904"),
        (5, "the version is None on rank 0 of the group, but 5 on rank 3"),
    ],
)
def test_a_wrong_version_on_one_rank_is_refused_on_every_rank(world, version, said):
    prepared(world)
    held = sources(SPEC)
    arguments = [(held.get(rank, {}), None, version if rank == 3 else None) for rank in RANKS]
    for answer in world.call(calls.refit, arguments):
        assert isinstance(answer, InputError)
        assert said in str(answer)
    for answer in unless_error(refit(world)):
        assert answer["record"].version == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shadow": True}, "shadow is False on rank 0 of the group, but True on rank 2"),
        ({"checksums": True}, "checksums is False on rank 0 of the group, but True on rank 2"),
        (
            {"versions": {"a": -1}},
            "versions has -1 for 'a'; expected an integer from 0 to 4611686018427387904, or None",
        ),
        ({"versions": 3}, "versions is a int; expected a mapping of names"),
    ],
)
def test_other_options_on_one_rank_are_refused_on_every_rank(world, options, said):
    for answer in world.call(calls.prepare, [(PLAN, RANKS, options if rank == 2 else {}) for rank in RANKS]):
        assert isinstance(answer, InputError)
        assert said in str(answer)


def test_what_is_no_plan_is_refused(world):
    for answer in world.call_alike(calls.prepare, "plan.reshard", RANKS, {}):
        assert str(answer) == "plan is a str; expected a Plan, such as Plan.load reads from a file"


@pytest.mark.parametrize("option", ["timeout", "lost_after"])
@pytest.mark.parametrize("time", [timedelta(), timedelta.max, 5, "5 s"])
def test_a_wrong_time_on_one_rank_is_refused_and_all_others_hear_of_it_at_once(world, option, time):
    options = [({option: time} if rank == 2 else {}) for rank in RANKS]
    said = f"{option} is {time!r}; expected a timedelta from 1 ms to 7 days"
    for rank, answer in enumerate(world.call(_rank_calls.build_with, [(PLAN, each) for each in options])):
        if rank == 2:
            assert isinstance(answer, InputError)
            assert str(answer) == said
        else:
            assert str(answer) == f"the ranks did not meet to make a group: rank 2: {said}"


def test_integers_of_numpy_are_integers(world):
    ranks = np.arange(WORLD)
    options = {"versions": {"a": np.int64(4)}, "latest_version": np.uint8(6)}
    unless_error(world.call_alike(calls.prepare, PLAN, ranks, options))
    for answer in unless_error(refit(world, version=np.int32(9))):
        assert answer["record"].version == 9


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (iter([0, 1, 2, 2]), "ranks [0, 1, 2, 2] has a rank twice; expected distinct ranks"),
        (5, "ranks is 5; expected a list of one integer per process of the group"),
        ("0123", "ranks has the entry '0'; expected an integer"),
        ([0, 1, 2, 3.0], "ranks has the entry 3.0; expected an integer"),
        ([0, 1, 2, np.array([3, 4])], "ranks has the entry array([3, 4]); expected an integer"),
    ],
)
def test_what_is_no_list_of_ranks_is_refused_on_every_rank(world, ranks, said):
    options = [({"ranks": ranks} if rank == 1 else {}) for rank in RANKS]
    for answer in world.call(_rank_calls.build_with, [(PLAN, each) for each in options]):
        assert isinstance(answer, InputError)
        assert str(answer) == said


@pytest.mark.parametrize("how", ["by closing it", "by dropping it"])
def test_a_rank_that_leaves_alone_is_named_and_counted_as_lost_by_all_others(world, how):
    prepared(world)
    held = sources(SPEC)
    answers = world.call(calls.leave_alone, [(held.get(rank, {}), 3, how) for rank in RANKS])
    assert answers.pop() is None
    for said, lost in answers:
        assert "rank 3 has left the group" in said
        assert lost == (3,)


def test_several_threads_may_wait_for_a_run_and_close_meanwhile(world):
    prepared(world)
    held = sources(SPEC)
    for answer in unless_error(world.call(calls.wait_in_threads, [(held.get(rank, {}),) for rank in RANKS])):
        *records, closed = sorted(answer, key=lambda each: each is None)
        assert closed is None
        assert [record.version for record in records] == [1, 1]


def test_an_interrupt_while_ranks_meet_is_told_to_the_others_at_once(world):
    unless_error(world.call_alike(calls.close))
    answers = world.call_alike(calls.interrupt_while_building, PLAN, 3, 2)
    assert answers.pop()[0] == "KeyboardInterrupt"
    for kind, said, after_s in answers:
        assert kind == "ExecutionError"
        assert said.startswith("the ranks did not meet to make a group: rank 3: ")
        assert said.endswith("KeyboardInterrupt")
        assert after_s < 10


def test_a_living_rank_that_is_held_up_is_not_lost_because_another_one_fails(world):
    prepared(world)
    held = sources(SPEC)
    arguments = [(held.get(rank, {}), 1, 2) for rank in RANKS]
    for rank, (said, lost) in enumerate(world.call(calls.refit_while_one_is_held_up, arguments)):
        assert "a fault of the test" in said
        assert "rank 2 has given no sign of life" not in said
        assert lost == (), rank


def test_ranks_build_together_after_one_of_them_has_missed_a_build(world):
    unless_error(world.call_alike(calls.close))
    for rank, said in enumerate(unless_error(world.call_alike(calls.build_after_one_missed_it, PLAN, 2))):
        late = "the ranks did not meet to make a group: rank 2 did not come within 2 s"
        assert said == (None if rank == 2 else late)
    for answer in unless_error(refit(world)):
        assert answer["record"].version == 1


def test_a_forked_process_can_build_no_resharder_in_the_world_of_its_parent(world):
    unless_error(world.call_alike(calls.close))
    for rank, said in enumerate(unless_error(world.call_alike(calls.fork_and_build, PLAN, 1))):
        assert (said is not None and said.startswith("this process was forked")) == (rank == 1)
    for answer in unless_error(refit(world)):
        assert answer["record"].version == 1


def test_a_rank_that_closes_while_its_run_begins_is_told_so(world):
    prepared(world)
    held = sources(SPEC)
    arguments = [(held.get(rank, {}), 0, 3) for rank in RANKS]
    answers = world.call(calls.close_in_a_thread_while_a_run_agrees, arguments)
    said, after_s = answers[0]
    assert "this rank has closed the process group" in said
    assert after_s < 10
    for said, _ in answers[1:]:
        assert "rank 0 has left the group" in said


def test_ranks_are_called_what_they_are_in_the_plan_while_they_build(world):
    unless_error(world.call_alike(calls.close))
    options = [{"ranks": [10, 11, 12, 13], **({"timeout": 5} if rank == 2 else {})} for rank in RANKS]
    answers = world.call(_rank_calls.build_with, [(PLAN_OF_OTHERS, each) for each in options])
    assert str(answers[0]).startswith("the ranks did not meet to make a group: rank 12: timeout is 5;")


def test_the_highest_version_is_the_last_without_a_number_of_ones_own(world):
    prepared(world)
    for answer in unless_error(refit(world, version=2**62)):
        assert answer["record"].version == 2**62
    for answer in refit(world):
        assert isinstance(answer, InputError)
    for answer in unless_error(refit(world, version=7)):
        assert answer["record"].version == 7


def test_a_forked_process_can_do_nothing_to_the_resharder_of_its_parent(world):
    prepared(world)
    held = sources(SPEC)
    unless_error(refit(world))
    answers = world.call(calls.fork_and_refit, [(held.get(rank, {}), 1) for rank in RANKS])
    for rank, (said, version) in enumerate(unless_error(answers)):
        assert version == 2
        assert (said is not None and "this process was forked" in said) == (rank == 1)


@pytest.mark.parametrize("shadow", [False, True])
def test_a_bit_that_changes_on_one_rank_fails_the_refit_everywhere_and_names_the_tensor(world, shadow):
    prepared(world, shadow=shadow, checksums=True)
    unless_error(refit(world, seed=1))
    held = sources(SPEC, 2)
    answers = world.call(calls.spoiled_refit, [(held.get(rank, {}), 2, "b") for rank in RANKS])
    said = "tensors 'b' arrived with other contents than their sources have: the checksums differ"
    assert [(type(answer), str(answer)) for answer in answers] == [(ContentsError, said)] * WORLD
    for rank, (torn, versions, kept) in enumerate(world.call_alike(calls.left_behind)):
        if rank in COLUMNS.mesh.ranks:
            assert torn is not shadow
            assert set(versions.values()) == ({1} if shadow else {None})
        if shadow:
            assert_holds(kept, rank, 1)
    unless_error(world.call_alike(calls.prepare_again, PLAN, RANKS))
    for answer in unless_error(refit(world)):
        assert answer["record"].version == 3  # 2 is what has failed


def test_a_rank_that_leaves_by_an_error_of_its_own_tells_the_others(world):
    prepared(world)
    held = sources(SPEC)
    answers = world.call(calls.leave, [(held.get(rank, {}), 3) for rank in RANKS])
    assert answers.pop() is None
    for answer in answers:
        assert isinstance(answer, ExecutionError)
        assert "rank 3: it was ended by InputError: a fault of the test" in str(answer)


def test_an_error_that_is_kept_keeps_no_connections_and_threads(world):
    held = sources(SPEC)
    for answer in world.call(calls.fail_and_keep, [(PLAN, held.get(rank, {}), 2) for rank in RANKS]):
        assert not isinstance(answer, Exception), answer
        assert max(answer) <= 0


EXITS = {
    "without closing": "",
    "with a run in flight": "",
    "after destroying the world": "",
    "by dropping it": "",
    "by a run in a world that is destroyed": (
        "the process group was destroyed with the world; expected destroy_process_group after closing"
        " what uses it\n"
    ),
    "by an error that is kept": "",
    "by a wait that fails": "",
    "by ending before another": "named (1,)\n",
}


@pytest.fixture(scope="module")
def exits(tmp_path_factory):
    script = [sys.executable, Path(__file__).parent / "_exits.py", tmp_path_factory.mktemp("exits"), *EXITS]
    done = subprocess.run(
        script, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", EXITS)
def test_a_process_ends_well_however_it_leaves_its_resharder(exits, how):
    first, *others = exits[how]
    assert first == [0, EXITS[how], ""]
    assert others == [[0, "" if "before another" in how else EXITS[how], ""]]


@pytest.mark.soak
def test_ten_thousand_refits_on_four_ranks_use_no_more_than_the_first():
    held = sources(SPEC)
    four = Ranks(WORLD)
    try:
        unless_error(four.call_alike(_rank_calls.build, PLAN))
        found = []
        for _ in range(20):
            arguments = [(held.get(rank, {}), 500) for rank in RANKS]
            found.append([late for _, late in unless_error(four.call(_rank_calls.run_often, arguments))])
        for rank in RANKS:
            files, threads, resident = np.array([each[rank] for each in found]).T
            assert set(files) == {files[1]}
            assert set(threads) == {threads[1]}
            assert resident[-1] <= resident[2] + 2**20
    finally:
        four.close()
