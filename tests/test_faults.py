"""Whatever happens to one rank, the others hear of it in time, know what their destinations hold, and go on.

Real processes are killed, stopped and interrupted, at random places of their programs and at random times. Of
these faults some are tried in every run, and 300 with ``-m faults``.
"""

from __future__ import annotations

import random
import re
from functools import cache

import pytest
from _faults import ALL_LIVE, LOST_AFTER_S, REFITS, TIMEOUT_S, Case, Farm

import reshard_planner as rp

FAULTS = ("kill", "exit", "stop", "interrupt", "raise")
FROM_OUTSIDE = ("kill", "stop", "interrupt")

SEEDS = (2, 4, 7, 8, 9, 13, 15, 16, 17, 19, 26)
"""Random cases that are tried in every run."""

SHARE_S = 5.0
"""What a survivor may take beyond the timeout."""

LANE, WATCH = "reshard", "reshard watch"
"""Names of a Resharder's threads."""

MOST_LEFT = 0.01
"""Share of ranks whose lane may not end: on rare occasions gloo itself never returns, or does so late."""

WHERE = re.compile(
    r"(slot \d+: (.*'w\d'.* rank \d|copying failed)|the ranks did not meet to |connecting with ranks? )"
)
"""How every sentence of a survivor begins: with slot, peer and tensor where there is a slot."""


def over(ranks, placement):
    return rp.Layout(rp.Mesh(ranks), [placement])


PLANS = {
    "shards to replicas": ([0, 1], "S(0)", [2, 3], "R", [[0, 1], [2, 3]]),
    "relays": ([0], "R", [1, 2, 3], "R", [[0], [1], [2], [3]]),
    "all to all": (range(4), "S(0)", range(4), "S(1)", [[0, 1], [2, 3]]),
}


@cache
def plan_of(name):
    before, how_before, after, how_after, domains = PLANS[name]
    src, dst = over(before, how_before), over(after, how_after)
    tensors = [rp.TensorSpec(f"w{number}", (1024, 256), "int32", src, dst) for number in range(3)]
    topology = rp.Topology.from_domains(domains)
    return rp.compile(rp.ReshardSpec(tensors, topology, rp.Options(min_message_nbytes=4096)))


@pytest.fixture(scope="module")
def farm():
    found = Farm()
    yield found
    found.close()


@pytest.fixture(scope="module")
def crossings(farm):
    """Crossings of each rank in a run without faults, which ends well everywhere."""
    found = {}
    for name in PLANS:
        outcome = farm.play(Case(plan_of(name)))
        for said in outcome.said.values():
            assert said.kind == "done", said.text
            assert set(said.versions.values()) <= {REFITS}
        assert_as_claimed(outcome)
        found[name] = {rank: said.crossings for rank, said in outcome.said.items()}
    return found


def random_case(crossings, seed):
    draw = random.Random(seed)  # noqa: S311 - no secret
    name = draw.choice(list(PLANS))
    victim = draw.randrange(4)
    fault = draw.choice(FAULTS)
    outside = fault in FROM_OUTSIDE and draw.random() < 0.4
    return Case(
        plan_of(name),
        fault,
        victim,
        None if outside else draw.randrange(1, crossings[name][victim] + 1),
        draw.uniform(0, 0.5),
        store_apart=draw.random() < 0.5,
        shadow=draw.random() < 0.5,
    )


def assert_as_claimed(outcome):
    """No rank hangs, and all destinations hold what their versions say, before and after the next run."""
    assert outcome.hung == []
    assert not outcome.children_left
    for said in outcome.said.values():
        assert said.untrue == ""
        assert said.torn == (None in said.versions.values())
    for said in outcome.recovered.values():
        assert said.kind == "done", said.text
        assert said.untrue == ""
        assert not said.torn
        assert set(said.versions.values()) <= {REFITS + 1}


def assert_survived(case, outcome):
    assert_as_claimed(outcome)
    store_stopped = case.fault == "stop" and case.victim == 0 and not case.store_apart
    for said in outcome.said.values():
        assert store_stopped or WATCH not in said.threads  # it ends when the store answers
    for rank, said in outcome.said.items():
        if rank == case.victim and case.fault in ("kill", "exit"):
            continue
        assert said.after_s < TIMEOUT_S + SHARE_S
        if case.shadow:
            assert not said.torn
        if said.kind == "done":  # it had heard of the others that they were done
            assert set(said.versions.values()) <= {REFITS}
        elif rank == case.victim and case.fault != "stop":
            if case.fault == "raise":
                assert "a fault of the test" in said.text
            else:
                assert said.kind == "KeyboardInterrupt"
        else:
            assert said.kind == "ExecutionError"
            assert WHERE.match(said.text), said.text
            unnamed = case.victim == 0 and not case.store_apart
            unnamed |= case.fault == "interrupt" and case.point is None  # it may not have begun to listen
            assert f"rank {case.victim}" in said.text or unnamed or rank == case.victim, said.text
            if rank != case.victim:
                assert set(said.lost) <= {case.victim}, said.text
                unknown = unnamed or "did not come" in said.text  # who is late may live
                assert said.lost or unknown or case.fault not in ("kill", "exit", "stop"), said.text
        if case.fault in ALL_LIVE:
            assert said.world_sum == len(outcome.said)


def test_the_cases_of_every_run_are_of_all_kinds():
    anywhere = {name: dict.fromkeys(range(4), 100) for name in PLANS}
    cases = [random_case(anywhere, seed) for seed in SEEDS]
    kinds = {(case.fault, case.point is None) for case in cases}
    assert kinds == {(fault, False) for fault in FAULTS} | {(fault, True) for fault in FROM_OUTSIDE}
    for field, values in (("victim", range(4)), ("store_apart", (True, False)), ("shadow", (True, False))):
        assert {getattr(case, field) for case in cases} == set(values)
    assert {id(case.plan) for case in cases} == {id(plan_of(name)) for name in PLANS}


@pytest.mark.parametrize("seed", SEEDS)
def test_survivors_of_a_random_fault_raise_in_time_and_the_next_run_succeeds(farm, crossings, seed):
    case = random_case(crossings, seed)
    assert_survived(case, farm.play(case))


@pytest.mark.faults
def test_survivors_of_300_random_faults_raise_in_time_and_the_next_runs_succeed(farm, crossings):
    kinds = dict.fromkeys(FAULTS, 0)
    left = survivors = 0
    for seed in range(1000, 1300):
        case = random_case(crossings, seed)
        outcome = farm.play(case)
        try:
            assert_survived(case, outcome)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {case.fault} of rank {case.victim} at {case.point}, {outcome}")
            raise
        kinds[case.fault] += 1
        connected = [said for said in outcome.said.values() if "to make a group" not in said.text]
        left += sum(LANE in said.threads for said in connected)
        survivors += len(connected)
    assert min(kinds.values()) > 30
    assert left <= MOST_LEFT * survivors


def test_a_rank_that_does_not_begin_is_named_by_all_others_when_the_time_is_over(farm):
    outcome = farm.play(Case(plan_of("relays"), "absent", victim=2), recover=False)
    assert outcome.hung == []
    for rank in (0, 1, 3):
        said = outcome.said[rank]
        assert (
            said.text == f"the ranks did not meet to make a group: rank 2 did not come within {TIMEOUT_S:g} s"
        )
        assert TIMEOUT_S <= said.after_s < TIMEOUT_S + SHARE_S


def test_a_stopped_rank_is_lost_before_the_timeout_and_hears_of_it_when_it_goes_on(farm, crossings):
    name = "shards to replicas"
    case = Case(plan_of(name), "stop", victim=1, point=crossings[name][1] // 2)
    outcome = farm.play(case)
    assert_survived(case, outcome)
    assert LOST_AFTER_S < min(outcome.said[rank].after_s for rank in (0, 2, 3)) < TIMEOUT_S
    for said in outcome.said.values():
        assert "rank 1 has given no sign of life" in said.text


@pytest.mark.parametrize("shadow", [False, True])
def test_only_shadows_leave_the_old_weights_in_use(farm, crossings, shadow):
    name = "all to all"
    last = crossings[name][3] - 1
    outcome = farm.play(Case(plan_of(name), "raise", victim=3, point=last, shadow=shadow))
    assert_as_claimed(outcome)
    wanted = {REFITS - 1} if shadow else {None}
    for said in outcome.said.values():
        assert set(said.versions.values()) == wanted
        assert said.torn is not shadow


@pytest.mark.parametrize("victim", [2, 3])
def test_survivors_go_on_by_a_plan_without_the_dead(farm, crossings, victim):
    name = "shards to replicas"
    point = crossings[name][victim] // 2
    case = Case(plan_of(name), "kill", victim, point, without_victim=True)
    outcome = farm.play(case)
    assert_survived(case, outcome)
    assert sorted(outcome.recovered) == sorted({0, 1, 2, 3} - {victim})
    assert set(outcome.recovered[5 - victim].versions.values()) == {REFITS + 1}
