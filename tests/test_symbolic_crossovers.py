"""Crossovers: right about what pays, and about where they apply."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from _pairs import GB, Pair, compile_in
from test_symbolic_rounds import round_value

import reshard_planner as rp
from reshard_planner.errors import InputError
from reshard_planner.symbolic import (
    Case,
    Side,
    crossovers,
    evaluate,
    find_form,
    round_forms,
    symbol,
)
from reshard_planner.symbolic.form import is_true
from reshard_planner.transfer import Role

CROSSOVERS = {crossover.name: crossover for crossover in crossovers()}


def busiest(plan: rp.Plan) -> float:
    found = plan.certificate
    return max(found.busiest_nic.time_s, found.busiest_nvlink.time_s)


def both_sides(name: str, pair: Pair) -> tuple[float, bool]:
    """The crossing for a pair to which it applies, and whether the pair is where it pays."""
    crossover, numbers = CROSSOVERS[name], evaluate(pair.case).numbers
    assert crossover.applies(numbers)
    return float(crossover.value(numbers)), crossover.is_met(numbers)


@pytest.mark.parametrize("after", [(4, 2, 8), (2, 8, 8), (2, 4, 4), (1, 8, 8)])
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_fan_out_pays_over_direct_from_its_crossing_on(after, factor):
    pair = Pair((8, 1, 8), after, nic=(400 * GB, 50 * GB), rows=4096, columns=64)
    crossing, _ = both_sides("fanout", pair)
    pair = replace(pair, nvlink=(450 * GB, round(crossing * factor)))
    found, pays = both_sides("fanout", pair)
    assert found == crossing
    spec = pair.spec()
    assert pays == (factor > 1) == (busiest(rp.compile(spec)) < busiest(rp.compile(spec, "direct")))


@pytest.mark.parametrize("after", [(4, 2, 8), (2, 4, 8), (2, 2, 4)])
@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03, 2])
def test_in_one_round_fan_out_pays_from_its_size_on(after, factor):
    pair = Pair((8, 1, 8), after, nic=(400 * GB, 50 * GB), columns=8)
    crossing, _ = both_sides("fanout_nbytes", pair)
    pair = replace(pair, rows=round(crossing * factor / 8 / 8 / 64) * 64)
    found, pays = both_sides("fanout_nbytes", pair)
    assert found == crossing
    times = [compile_in(pair.spec(), strategy, rounds=1).schedule for strategy in ("optimal", "direct")]
    assert [time.slots for time in times] == [3, 1]
    assert pays == (factor > 1) == (times[0].time_s < times[1].time_s)


@pytest.mark.parametrize("after", [(8, 4, 8), (16, 2, 8), (4, 8, 4), (4, 8, 8), (2, 16, 8)])
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_relays_pay_where_the_source_has_too_few_nics(after, factor):
    pair = Pair((8, 1, 8), after, rows=4096, columns=64)
    crossing, _ = both_sides("relays", pair)
    pair = replace(pair, nic=(round(crossing * factor), pair.nic[1]))
    found, pays = both_sides("relays", pair)
    assert found == crossing
    plan, direct = (rp.compile(pair.spec(), strategy) for strategy in ("optimal", "direct"))
    assert pays == (factor < 1) == bool((plan.tables.routes.role == Role.RELAY).any())
    if pair.case.dst.copies == 1:  # with nothing to fan out, direct is holders that emit every copy
        assert pays == (busiest(plan) < 0.99 * busiest(direct))


@pytest.mark.parametrize(("src", "dst"), [(1, (1, 8, 8)), (2, (1, 8, 8)), (4, (2, 4, 8)), (8, (2, 4, 8))])
def test_splitting_classes_pays_where_they_are_fewer_than_the_nics_of_a_domain(src, dst):
    pair = Pair((src, 1, 8), dst, nic=(400 * GB, 50 * GB), nvlink=(450 * GB, 3600 * GB), rows=1)
    crossing, pays = both_sides("striping", pair)
    assert crossing == 8
    assert pays == (src < 8)
    # an element is never split, so that its class stays whole
    whole, values = rp.compile(pair.spec()).certificate, evaluate(pair.case).values
    assert whole.busiest_nic.time_s == float(values["whole_classes"])
    pair = replace(pair, rows=2**14)
    split, values = rp.compile(pair.spec()).certificate, evaluate(pair.case).values
    assert split.busiest_nic.time_s == float(values["domain_ingress"])
    assert pays == (values["domain_ingress"] < values["whole_classes"])


@pytest.mark.parametrize("after", [(1, 2, 2), (2, 4, 8), (1, 3, 3)])
@pytest.mark.parametrize("factor", [0.9, 1.5])
def test_lent_nics_pay_where_nvlink_leaves_room_for_them(after, factor):
    pair = Pair((8, 1, 8), after, nic=(400 * GB, 50 * GB), neighbours=4, rows=4096, columns=64)
    crossing, _ = both_sides("lending", pair)
    pair = replace(pair, nvlink=(450 * GB, round(crossing * factor)))
    found, pays = both_sides("lending", pair)
    assert found == crossing
    plans = [rp.compile(pair.spec(proxies=proxies)) for proxies in ("auto", "off")]
    assert pays == (factor > 1) == (plans[0].certificate.bound.time_s < plans[0].certificate.bound.t0_s)
    assert pays == (busiest(plans[0]) < 0.99 * busiest(plans[1]))


@pytest.mark.parametrize("rounds", [1, 7, 60])
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_another_round_pays_from_its_time_on(rounds, factor):
    numbers = {"K": rounds, "L": 4, "lag": 2, "alpha": 1e-5}
    crossover = CROSSOVERS["another_round"]
    numbers["T"] = float(crossover.value(numbers)) * factor
    times = find_form(round_forms(), "pipelined").function(["K"], numbers)
    assert crossover.is_met(numbers) == (factor > 1) == (times(rounds + 1) < times(rounds))


def test_finer_rounds_of_a_plan_stop_paying_at_the_best_number():
    """Of the same routes in ever more rounds, those near the form's number take least."""
    pair = Pair((4, 1, 4), (2, 2, 4), alpha_s=1e-5, nvlink=(450 * GB, 50 * GB), rows=2**18, columns=64)
    numbers = dict(evaluate(pair.case).numbers)
    best = round_value("slot_sum_rounds", numbers)
    spec = pair.spec(min_message_nbytes=1, staging_nbytes=2**40)
    schedules = [compile_in(spec, "optimal", rounds).schedule for rounds in (2, 4, 8, 16, 32, 64)]
    times = {found.slots - spec.options.lag: found.time_s for found in schedules}
    for rounds, time_s in times.items():
        assert time_s == pytest.approx(round_value("slot_sum", numbers | {"K": rounds}), rel=1e-4)
    nearest = min(times, key=lambda rounds: abs(np.log(rounds / best)))
    assert min(times) < nearest < max(times)
    assert times[nearest] == min(times.values())


@pytest.mark.parametrize("crossover", CROSSOVERS.values(), ids=lambda crossover: crossover.name)
def test_costs_are_equal_at_the_crossing(crossover):
    import sympy as sp  # noqa: PLC0415 - as lazily as the library

    there = [cost.subs(symbol(crossover.quantity), crossover.threshold) for cost in crossover.costs]
    assert sp.simplify(there[0] - there[1]) == 0


FANOUT = Pair((8, 1, 8), (4, 2, 8), nic=(400 * GB, 50 * GB))
RELAYS = Pair((8, 1, 8), (8, 4, 8))
STRIPING = Pair((8, 1, 8), (2, 4, 8), nic=(400 * GB, 50 * GB), nvlink=(450 * GB, 3600 * GB))
LENDING = Pair((8, 1, 8), (2, 4, 8), nic=(400 * GB, 50 * GB), neighbours=4)

WITHOUT = {
    ("fanout", 0): replace(FANOUT, neighbours=1),
    ("fanout", 1): replace(FANOUT, dst=(8, 1, 8)),
    ("fanout", 2): replace(FANOUT, nic=(25 * GB, 50 * GB)),
    ("fanout_nbytes", 0): replace(FANOUT, neighbours=1),
    ("fanout_nbytes", 1): replace(FANOUT, dst=(8, 1, 8)),
    ("fanout_nbytes", 2): replace(FANOUT, nic=(25 * GB, 50 * GB)),
    ("fanout_nbytes", 3): replace(FANOUT, nvlink=(450 * GB, 50 * GB)),
    ("relays", 0): replace(RELAYS, neighbours=1),
    ("relays", 1): replace(RELAYS, dst=(4, 2, 8)),
    ("relays", 2): replace(RELAYS, stages=2, largest=3),
    ("relays", 3): replace(RELAYS, dst=(4, 8, 8), nvlink=(450 * GB, 10 * GB)),
    ("striping", 0): replace(STRIPING, neighbours=1),
    ("striping", 1): replace(STRIPING, stages=2),
    ("striping", 2): replace(STRIPING, src=(12, 1, 12), dst=(4, 2, 8)),
    ("striping", 3): replace(STRIPING, nvlink=(450 * GB, 20 * GB)),
    ("lending", 0): replace(LENDING, neighbours=0),
    ("lending", 1): replace(LENDING, nic=(5 * GB, 50 * GB)),
}
"""For each relation that a crossover asks for, a pair for which it alone does not hold."""


@pytest.mark.parametrize(("name", "number"), WITHOUT)
def test_a_crossover_does_not_apply_where_one_of_its_relations_fails(name, number):
    crossover, numbers = CROSSOVERS[name], evaluate(WITHOUT[name, number].case).numbers
    failing = [at for at, each in enumerate(crossover.given) if not is_true(each, numbers, name)]
    assert failing == [number]
    assert crossover.applies(numbers) is False


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("fanout", FANOUT),
        ("fanout_nbytes", FANOUT),
        ("relays", RELAYS),
        ("striping", STRIPING),
        ("lending", LENDING),
    ],
)
def test_a_crossover_applies_where_all_its_relations_hold(name, pair):
    assert CROSSOVERS[name].applies(evaluate(pair.case).numbers) is True


def test_every_relation_of_a_crossover_is_broken_alone():
    assert set(WITHOUT) == {
        (name, number) for name, crossover in CROSSOVERS.items() for number in range(len(crossover.given))
    }


def test_every_relation_between_quantities_is_said_in_words():
    """One clause each, but for those that need no words: another round may always be made."""
    for crossover in CROSSOVERS.values():
        clauses = [clause for part in crossover.holds.split("; ") for clause in part.split(", ") if clause]
        assert len(clauses) == len(crossover.given), crossover.name


@pytest.mark.parametrize(("copies", "share"), [(2, Fraction(1, 2)), (4, Fraction(3, 4)), (8, Fraction(7, 8))])
def test_fan_out_pays_over_nvlink_that_is_slower_than_a_nic(copies, share):
    numbers = Case(2**30, Side.packed(8), Side.packed(4, copies, 4 * copies), 8).numbers
    assert CROSSOVERS["fanout"].value(numbers) == share * numbers["b_dst"]


@pytest.mark.parametrize("shards", [1, 4, 32])
def test_the_size_at_which_fan_out_pays_is_one_per_shard(shards):
    crossing = CROSSOVERS["fanout_nbytes"]
    twice, often = (
        Case(2**30, Side.packed(1), Side(shards, copies, shards, copies), shards).numbers
        for copies in (2, 1024)
    )
    assert float(crossing.value(twice)) / shards == pytest.approx(1.69e6, rel=0.01)
    assert float(crossing.value(often)) / shards == pytest.approx(0.84e6, rel=0.01)


def test_a_crossover_that_lacks_its_quantity_says_so():
    for crossover in CROSSOVERS.values():
        with pytest.raises(InputError, match=f"{crossover.name} needs a value of {crossover.quantity}, "):
            crossover.is_met({})


def test_costs_that_never_cross_have_no_crossing():
    numbers = Pair((8, 1, 8), (8, 1, 8)).case.numbers  # nothing to fan out
    with pytest.raises(InputError, match="fanout_nbytes has no finite value where S_dst = 8, alpha = "):
        CROSSOVERS["fanout_nbytes"].value(numbers)


def test_striping_tells_itself_from_the_strategy_of_that_name():
    assert "strategy striped splits boxes" in CROSSOVERS["striping"].question
