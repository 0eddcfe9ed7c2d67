"""Closed forms of rounds: equal to what schedules and predictions take, and least where they say."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from _pairs import GB, Pair
from hypothesis import given
from hypothesis import strategies as st

import reshard_planner as rp
from reshard_planner.simulate import Costs, predict
from reshard_planner.symbolic import (
    Case,
    Side,
    crossovers,
    evaluate,
    find_form,
    round_forms,
)
from reshard_planner.transfer import Role


def scheduled(pair: Pair, strategy: str = "optimal", **options: object) -> tuple[rp.Plan, dict[str, object]]:
    """A plan of as many rounds as pay, and the quantities of its schedule."""
    plan = rp.compile(pair.spec(min_message_nbytes=65536, staging_nbytes=2**40, **options), strategy)
    found, case = plan.certificate, pair.case
    hops = case.hops if strategy == "optimal" else 1
    numbers = {
        "T": max(found.busiest_nic.time_s, found.busiest_nvlink.time_s),
        "T_nic": found.busiest_nic.time_s,
        "T_nvlink": found.busiest_nvlink.time_s,
        "K": int(plan.tables.schedule.round.max()) + 1,
        "H": hops,
        "L": hops + 2,
        "lag": plan.spec.options.lag,
        "alpha": pair.alpha_s,
    }
    return plan, numbers


LARGE = {"rows": 2**20, "columns": 64}
EVEN = [
    Pair((4, 1, 4), (2, 2, 4), **LARGE),
    Pair((8, 1, 8), (4, 2, 8), **LARGE),
    Pair((8, 1, 8), (8, 1, 8), **LARGE),
    Pair((8, 1, 8), (4, 2, 8), nvlink=(450 * GB, 40 * GB), **LARGE),
    Pair((4, 1, 4), (2, 2, 4), alpha_s=100e-6, **LARGE),
]
"""Pairs whose rounds are equal, and that need no relays."""


def round_value(name: str, numbers: dict[str, object]) -> float:
    return float(find_form(round_forms(), name).value(numbers))


@pytest.mark.parametrize("strategy", ["optimal", "direct"])
@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("pair", EVEN, ids=str)
def test_a_schedule_takes_what_its_rounds_say(pair, lag, strategy):
    plan, numbers = scheduled(pair, strategy, lag=lag)
    assert numbers["K"] == pytest.approx(round_value("best_rounds", numbers), rel=0.15)
    found = plan.certificate.schedule.time_s
    assert found == pytest.approx(round_value("slot_sum", numbers), rel=0.005)
    assert found <= round_value("pipelined", numbers)


@pytest.mark.parametrize("pair", EVEN, ids=str)
def test_predictions_are_the_forms_of_rounds_where_packing_is_free(pair):
    plan, numbers = scheduled(pair, lag=1)
    assert predict(plan).elapsed_s == pytest.approx(round_value("slot_sum", numbers), rel=0.005)
    plan, numbers = scheduled(pair, lag=2)
    assert predict(plan).elapsed_s == pytest.approx(round_value("overlapped", numbers), rel=0.005)


@pytest.mark.parametrize("pair", EVEN[:3], ids=str)
@pytest.mark.parametrize("rate", [400 * GB, 200 * GB])
def test_predictions_with_packing_keep_within_the_time_of_the_pipeline(pair, rate):
    plan, numbers = scheduled(pair)
    predicted = predict(plan, Costs(pack_bytes_per_s=rate)).elapsed_s
    assert numbers["T"] <= predicted <= round_value("pipelined", numbers)


@pytest.mark.parametrize(("cost", "best"), [("pipelined", "best_rounds"), ("slot_sum", "slot_sum_rounds")])
@pytest.mark.parametrize("time_s", [1e-4, 3e-3, 0.7])
@pytest.mark.parametrize("lag", [1, 2, 5])
def test_the_best_number_of_rounds_is_a_minimum(cost, best, time_s, lag):
    numbers = {
        "T": time_s,
        "T_nic": time_s,
        "T_nvlink": time_s / 3,
        "H": 2,
        "L": 4,
        "lag": lag,
        "alpha": 1e-5,
    }
    least = round_value(best, numbers)
    times = find_form(round_forms(), cost).function(["K"], numbers)
    around = times(least * np.array([0.1, 0.9, 0.999, 1, 1.001, 1.1, 10]))
    assert around.argmin() == 3
    whole = times(np.arange(1, 100_000))
    assert abs(whole.argmin() + 1 - least) < 1
    if cost == "pipelined":
        assert whole.min() >= round_value("pipelined_least", numbers) == pytest.approx(around[3])
        assert least == pytest.approx(sqrt(lag * 3 * time_s / 1e-5))


def test_the_forms_of_plans_hold_only_where_rounds_are_equal():
    """Three classes that enter by two NICs make no equal rounds; all else that is asked for holds."""
    pair = Pair((3, 1, 3), (1, 2, 2), nic=(50 * GB, 100 * GB), nvlink=(50 * GB, 50 * GB), alpha_s=1e-4)
    plan, numbers = scheduled(replace(pair, rows=2**20, columns=96), lag=1)
    assert numbers["K"] >= 1
    assert pair.neighbours == 0
    assert not (plan.tables.routes.role == Role.RELAY).any()
    assert abs(predict(plan).elapsed_s / round_value("slot_sum", numbers) - 1) > 0.005
    for name in ("slot_sum", "overlapped"):
        assert "rounds are equal" in find_form(round_forms(), name).holds


# as many rounds as pay


def one_to_one(nbytes: int, nic: int = 2**30, alpha_s: float = 2**-16, lag: int = 2) -> Case:
    """One holder and one needer: L = 3."""
    side = Side(1, 1, 1, 1, nic)
    return Case(nbytes, side, side, 1, alpha_s=alpha_s, lag=lag)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 100, 12345])
def test_one_more_round_pays_from_one_byte_above_the_crossing_on(rounds):
    nbytes = rounds * (rounds + 1) * 4096  # 2 (L - 1) T = K (K + 1) alpha
    assert evaluate(one_to_one(nbytes)).numbers["K"] == rounds
    assert evaluate(one_to_one(nbytes + 1)).numbers["K"] == rounds + 1


def test_rounds_between_two_numbers_are_those_that_take_less():
    """best_rounds is 1.46, and two rounds take 114 us where one takes 115."""
    case = one_to_one(400_000, 50 * GB, 15e-6)
    found = evaluate(case)
    assert found.values["best_rounds"] == pytest.approx(1.46, abs=0.01)
    assert found.numbers["K"] == 2
    assert found.values["pipelined"] < evaluate(case, 1).values["pipelined"]


@given(
    st.integers(1, 2**40),
    st.sampled_from([10**6, GB, 50 * GB]),
    st.floats(1e-9, 1.0),
    st.integers(1, 9),
)
def test_another_round_never_pays_where_as_many_are_made_as_pay(nbytes, nic, alpha_s, lag):
    numbers = dict(evaluate(one_to_one(nbytes, nic, alpha_s, lag)).numbers)
    another = next(crossover for crossover in crossovers() if crossover.name == "another_round")
    assert not another.is_met(numbers)
    assert numbers["K"] == 1 or another.is_met(numbers | {"K": numbers["K"] - 1})


@pytest.mark.parametrize("alpha_s", [5e-324, 1e-300, 999_999.0])
def test_start_up_times_of_any_size_have_a_number_of_rounds(alpha_s):
    found = evaluate(one_to_one(2**56, 1, alpha_s))
    assert found.numbers["K"] >= 1
    assert float(found.values["pipelined"]) >= float(found.values["bound"])
