"""Closed forms: equal to what the planner proves and compiles, and right about what pays."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import sqrt

import numpy as np
import pytest
from _pairs import GB, Pair, compile_in, is_small, parts_of, prove
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import reshard_planner as rp
from reshard_planner.bounds.cut import pack_weights
from reshard_planner.bounds.sums import evaluate as cut_sum
from reshard_planner.errors import InputError
from reshard_planner.layout import StridedShard
from reshard_planner.simulate import Costs, predict
from reshard_planner.symbolic import (
    Case,
    Side,
    all_forms,
    bound_forms,
    case_of,
    count_classes,
    crossovers,
    evaluate,
    find_form,
    round_forms,
    symbol,
)
from reshard_planner.symbolic.quantities import QUANTITIES
from reshard_planner.topology import Domain, Link, Nic, Pod
from reshard_planner.transfer import Role

FORMS = all_forms()
CROSSOVERS = {crossover.name: crossover for crossover in crossovers()}

SOURCES = [(1, 1), (4, 1), (2, 2), (8, 1), (16, 1), (4, 8), (64, 1)]
DESTINATIONS = [(1, 1), (2, 2), (4, 1), (8, 2), (2, 8), (16, 2), (2, 32), (64, 2)]


def grid(*kinds: dict[str, object]) -> list[Pair]:
    """Pairs of domains of 4, 8 and 64 GPUs that are regular."""
    found = []
    for gpus, before, after, kind in product((4, 8, 64), SOURCES, DESTINATIONS, kinds):
        neighbours = kind.get("neighbours", 0)
        pair = Pair((*before, gpus), (*after, gpus - neighbours), **kind)
        try:
            sides = pair.sides
        except InputError:
            continue
        if sum(side.shards * side.replicas for side in sides) <= 136:
            found.append(pair)
    return found


def binding(values, case: Case) -> set[str]:
    """Kinds of the cuts that take as long as T*."""
    terms = [form for form in bound_forms() if form.cuts and values[form.name] == values["bound"]]
    return {kind for term in terms for kind in term.cuts if case.neighbours or kind != "prices"}


def check_bounds(pair: Pair) -> None:
    values, spec = evaluate(pair.case).values, pair.spec()
    least, bound = prove(spec)
    assert values["least_payload"] == least
    if pair.neighbours and not is_small(spec):  # the planner may prove less than the optimum
        assert values["bound"] >= bound.time
        return
    assert values["bound"] == bound.time
    assert values["t0"] == bound.t0
    assert bound.cut.kind in binding(values, pair.case)


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"nvlink": (450 * GB, 60 * GB)},
        {"nic": (5 * GB, 50 * GB), "cross": True},
        {"nic": (50 * GB, 400 * GB), "stages": 2, "largest": 3},
        {"neighbours": 1, "cross": True},
        {"neighbours": 3, "nvlink": (450 * GB, 20 * GB)},
    ],
    ids=["plain", "slow NVLink", "few NICs emit", "stages", "neighbours", "slow neighbours"],
)
def test_payload_bound_and_t0_are_those_that_the_planner_proves(kind):
    pairs = grid(kind)
    assert {pair.sides[1].distinct * pair.sides[1].copies for pair in pairs} >= (
        {4, 8, 64} if not kind.get("neighbours") else set()
    )
    for pair in pairs:
        check_bounds(pair)


@st.composite
def pairs(draw) -> Pair:
    counts, rates = st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([5, 25, 50, 100, 400])
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    pair = Pair(
        (draw(counts), draw(counts), draw(sizes)),
        (draw(counts), draw(counts), draw(sizes)),
        draw(st.booleans()),
        stages,
        draw(st.sampled_from([1, 2, 5])) if stages > 1 else 1,
        draw(st.sampled_from([0, 0, 1, 2, 5])),
        (draw(rates) * GB, draw(rates) * GB),
        (draw(rates) * GB, draw(rates) * GB),
        rows=12,
    )
    try:
        case = pair.case
    except InputError:
        assume(False)
    assume(case.stages * case.src.shards * case.src.replicas + case.dst.shards * case.dst.replicas <= 60)
    return pair


@settings(max_examples=100)
@given(pairs())
def test_bounds_of_any_regular_pair_are_those_that_the_planner_proves(pair):
    check_bounds(pair)


@given(pairs())
def test_the_numbers_of_a_spec_are_those_of_its_pair(pair):
    assert case_of(pair.spec()) == pair.case


@given(pairs())
def test_every_term_is_the_sum_of_a_cut(pair):
    values, spec = evaluate(pair.case).values, pair.spec()
    ports, needs, capacities = parts_of(spec)
    own = [frozenset(ports.domain[list(tensor.src[0].mesh.ranks)].tolist()) for tensor in spec.tensors]
    holding = sorted(frozenset().union(*own[: pair.stages]))
    needers = spec.tensors[0].dst[0].mesh.ranks
    needing = sorted(set(ports.domain[list(needers)].tolist()))
    others = set(spec.ranks) - {rank for rank in spec.ranks if ports.domain[rank] in holding} - set(needers)

    def time_of(kind, members):
        return cut_sum(kind, tuple(members), needs, capacities).time

    def priced(**ranks):
        weights = {(resource, rank): 1 for resource, own in ranks.items() for rank in own}
        return cut_sum("prices", (), needs, capacities, pack_weights(weights)).time

    inside = [rank for rank in needers if ports.domain[rank] == needing[0]]
    lent = [rank for rank in others if ports.domain[rank] == needing[0]]
    nics = ports.nic_group[inside].tolist()
    assert values["domain_ingress"] == time_of("domain_ingress", needing[:1])
    assert values["unique_bytes"] == time_of("egress", holding)
    assert values["stage_bytes"] == time_of("egress", sorted(own[0]))
    assert values["all_copies"] == time_of("egress", sorted({*holding, *needing}))
    assert values["all_copies"] < values["domain_ingress"]
    if pair.case.src.replicas == pair.case.src.copies:  # what one domain alone holds
        assert values["stage_bytes"] == time_of("egress", sorted(own[0])[:1])
    assert values["port_in"] == time_of("port_in", inside[:1])
    assert values["nvlink_domain"] == priced(nvlink_in=inside)
    if pair.case.neighbours == 0 and pair.case.dst.copies > 1:
        assert values["nvlink_domain"] == time_of("nvlink_domain", needing[:1])
    assert values["handoff"] == priced(nic_in=nics, nvlink_out=lent)


@settings(max_examples=40)
@given(pairs())
def test_baselines_move_and_take_what_their_forms_say(pair):
    values, spec = evaluate(pair.case).values, pair.spec()
    direct = rp.compile(spec, "direct").certificate
    assert direct.payload.network_nbytes == values["direct_payload"]
    assert direct.payload.nvlink_nbytes == 0
    assert direct.busiest_nic.time_s == float(values["direct_time"])
    gather = rp.compile(spec, "gather-broadcast").certificate
    assert gather.payload.network_nbytes == values["gather_broadcast_payload"]
    assert gather.payload.nvlink_nbytes == values["gather_broadcast_nvlink"]
    assert gather.busiest_nic.time_s == float(values["gather_broadcast_time"])
    assert gather.busiest_nvlink.time_s == float(values["gather_broadcast_nvlink_time"])


@pytest.mark.parametrize(
    ("src", "dst"),
    [((4, 3, 4), (4, 1, 4)), ((2, 3, 2), (4, 1, 4)), ((2, 4, 8), (8, 3, 8)), ((1, 5, 1), (2, 3, 2))],
)
@pytest.mark.parametrize("cross", [False, True])
def test_direct_deals_fetches_that_do_not_divide_one_by_one(src, dst, cross):
    pair = Pair(src, dst, cross, nic=(5 * GB, 400 * GB))
    values, found = evaluate(pair.case).values, rp.compile(pair.spec(), "direct").certificate
    assert values["direct_egress"] > values["direct_ingress"]
    assert found.busiest_nic.time_s == float(values["direct_egress"])


@pytest.mark.parametrize("sizes", [(11, 12, 12, 11), (1, 2, 9)])
def test_stages_may_hold_different_amounts(sizes):
    dst = layout(np.arange(100, 124).reshape(3, 8), "R", "S(0)")
    tensors = [
        tensor(layout(range(4 * stage, 4 * stage + 4), "S(0)"), dst, (8 * size, 8), f"w{stage}")
        for stage, size in enumerate(sizes)
    ]
    spec = rp.ReshardSpec(tensors, rp.Topology.uniform(124, 4))
    case = case_of(spec)
    assert (case.stages, case.largest_stage_nbytes) == (len(sizes), 64 * max(sizes))
    assert evaluate(case).values["bound"] == prove(spec)[1].time


COMPILED = [
    pair
    for nvlink in (450, 40)
    for pair in grid({"rows": 4096, "columns": 64, "nvlink": (450 * GB, nvlink * GB)})
    if pair.dst[0] * pair.dst[1] <= 64
][::5]


@pytest.mark.parametrize("pair", COMPILED, ids=str)
def test_the_certificate_of_a_compiled_plan_is_what_the_forms_say(pair):
    values, found = evaluate(pair.case).values, rp.compile(pair.spec()).certificate
    assert found.payload.network_nbytes == found.payload.minimum_network_nbytes == values["least_payload"]
    assert Fraction(found.bound.cut_nbytes, found.bound.cut_bytes_per_s) == values["bound"]
    assert found.bound.time_s == float(values["bound"])
    assert found.bound.t0_s == float(values["t0"])
    assert found.bound.term in binding(values, pair.case)
    assert found.gap <= 0.01
    if values["nic_time"] >= values["nvlink_time"] or pair.case.dst.replicas == pair.case.dst.copies:
        assert found.busiest_nic.time_s == pytest.approx(float(values["nic_time"]), rel=0.01)
    assert found.busiest_nvlink.time_s == pytest.approx(float(values["nvlink_time"]), rel=0.01)


def test_the_sample_of_compiled_pairs_has_domains_of_all_sizes_and_every_kind_of_bound():
    assert {size for pair in COMPILED for size in (pair.src[2], pair.dst[2])} == {4, 8, 64}
    cases = [pair.case for pair in COMPILED]
    kinds = {kind for case in cases for kind in binding(evaluate(case).values, case)}
    assert kinds >= {"domain_ingress", "egress", "nvlink_domain"}


@pytest.mark.parametrize(("src", "dst"), [(4, 8), (16, 8), (8, 32)])
def test_several_tensors_and_shapes_have_the_forms_of_their_sum(src, dst):
    pair = Pair((src, 1, 8), (dst, 2, 8))
    spec = pair.spec()
    [tensor] = spec.tensors
    tensors = [
        rp.TensorSpec(f"t{number}", (size, 32), "bfloat16", tensor.src, tensor.dst)
        for number, size in enumerate((32, 64, 64, 96))
    ]
    spec = rp.ReshardSpec(tensors, spec.topology)
    case = case_of(spec)
    assert case == replace(pair.case, nbytes=256 * 32 * 2, largest_stage_nbytes=None)
    values = evaluate(case).values
    assert prove(spec)[1].time == values["bound"]
    direct = rp.compile(spec, "direct").certificate
    assert direct.busiest_nic.time_s == float(values["direct_time"])


# rounds


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


# crossovers


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


# conveniences


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_function_of_arrays_gives_the_exact_values(form):
    case = Pair((4, 2, 4), (2, 8, 8), stages=2, largest=3, nvlink=(450 * GB, 90 * GB)).case
    numbers = evaluate(case).numbers
    names = [name for name in form.quantities if name not in ("S_src", "S_dst", "C")][:2]
    found = form.function(names, numbers)
    first, second = (np.array([1, 2, 4]) * float(numbers[name]) for name in names)
    table = found(first[:, np.newaxis], second)
    assert table.shape == (3, 3)
    for (row, x), (column, y) in product(enumerate(first), enumerate(second)):
        expected = float(form.value(numbers | {names[0]: x, names[1]: y}))
        assert table[row, column] == pytest.approx(expected, rel=1e-12)
    assert found(first[0], second[0]) == pytest.approx(float(form.value(numbers)), rel=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_text_reads_back_as_the_form(form):
    import sympy as sp  # noqa: PLC0415 - as lazily as the library

    names = {quantity.name: symbol(quantity.name) for quantity in QUANTITIES}
    assert sp.sympify(form.text, locals=names) == form.expression
    assert form.latex.count("{") == form.latex.count("}")


def test_names_are_distinct_and_every_quantity_is_used():
    names = [form.name for form in FORMS]
    assert len(set(names)) == len(names)
    used = {name for form in FORMS for name in form.quantities}
    assert used == {quantity.name for quantity in QUANTITIES}


def test_a_missing_quantity_and_an_unknown_form_are_named():
    bound = find_form(FORMS, "least_payload")
    with pytest.raises(InputError, match=r"least_payload needs a value of R_dst, replicas.*; m, needers"):
        bound.value({"W": 1})
    with pytest.raises(InputError, match="least_payload needs a value of R_dst"):
        bound.function(["W"], {"m": 2})
    with pytest.raises(InputError, match="quantity 'w' is unknown; expected one of W, "):
        bound.function(["w"])
    with pytest.raises(InputError, match="form 'best' is unknown; expected one of least_payload"):
        find_form(FORMS, "best")


def test_sympy_is_loaded_on_use():
    code = (
        "import sys, reshard_planner.symbolic, reshard_planner.cli.main; print('sympy' in sys.modules);"
        " reshard_planner.symbolic.crossovers(); print('sympy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]


# pairs that are not regular

ONE = Side.packed(4)


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (lambda: Side.packed(0), ["shards is 0", "integer of 1 or more"]),
        (lambda: Side.packed(4, True), ["replicas is True"]),
        (lambda: Side.packed(4, 3, 8), ["4 shards in 3 replicas", "domains of 8 GPUs", "multiple of 8"]),
        (lambda: Side.packed(6, 4, 8), ["6 shards and domains of 8 GPUs", "divide"]),
        (lambda: Side(4, 2, 3, 1), ["3 shards, 1 times", "4 shards in 2 replicas"]),
        (lambda: Case(0, ONE, ONE, 4), ["nbytes is 0"]),
        (lambda: Case(8, ONE, ONE, 6), ["classes is 6", "4 shards of src"]),
        (lambda: Case(8, ONE, ONE, 32), ["classes is 32", "at most 16"]),
        (lambda: Case(8, ONE, ONE, 4, largest_stage_nbytes=4), ["largest_stage_nbytes is 4", "8 bytes"]),
        (lambda: Case(8, ONE, ONE, 4, 2, 9), ["largest_stage_nbytes is 9"]),
        (lambda: Case(8, ONE, ONE, 4, neighbours=-1), ["neighbours is -1"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s=0.0), ["alpha_s is 0.0"]),
        (lambda: Case(8, ONE, ONE, 4, lag=0), ["lag is 0"]),
        (lambda: evaluate(Case(8, ONE, ONE, 4), 0), ["rounds is 0"]),
        (lambda: count_classes({"tp": 4}, {"tp": 6}), ["tp is cut in 4 shards before and 6 after"]),
    ],
)
def test_numbers_that_are_not_regular_are_refused(make, mentions):
    with pytest.raises(InputError) as error:
        make()
    assert all(mention in str(error.value) for mention in mentions), error.value


def layout(ranks, *placements):
    return rp.Layout(rp.Mesh(ranks), placements)


SRC, DST = layout([0, 1, 2, 3], "S(0)"), layout([[4, 5], [6, 7]], "R", "S(0)")
FOURS = rp.Topology.uniform(16, 4)


def tensor(src=SRC, dst=DST, shape=(8, 8), name="w"):
    return rp.TensorSpec(name, shape, "int8", src, dst)


def topology(**changes):
    return replace(FOURS, **changes)


SLOW = Link(10**9, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("tensors", "cluster", "mentions"),
    [
        ([tensor(shape=(0, 8))], FOURS, ["moves no bytes"]),
        ([tensor(src=[SRC, layout([4], "R")])], FOURS, ["'w'", "src has 2 layouts"]),
        ([tensor(shape=(6, 8))], FOURS, ["'w'", "shards of src are not equal"]),
        (
            [tensor(dst=layout([4, 5, 6, 8], "S(0)"))],
            FOURS,
            ["'w', dst", "(1, 1), (3, 1)", "the same for all domains"],
        ),
        (
            [tensor(), tensor(dst=layout([4, 5, 6, 7], "S(0)"), name="v")],
            FOURS,
            ["'w'", "'v'", "2 shards in 2 replicas", "4 shards in 1 replicas"],
        ),
        (
            [tensor(), tensor(dst=layout([[8, 9], [10, 11]], "R", "S(0)"), name="v")],
            FOURS,
            ["'w'", "'v'", "needed by other ranks"],
        ),
        ([tensor(dst=layout([0, 1, 2, 3], "S(1)"))], FOURS, ["domains of their own"]),
        (
            [tensor(layout([0, 1], "S(0)")), tensor(layout([2, 3], "S(0)"), name="v")],
            FOURS,
            ["several stages"],
        ),
        (
            [tensor(layout([0, 1], "S(0)")), tensor(layout([3], "R"), layout([3], "R"), (0,), "o")],
            FOURS,
            ["domain 0 has holders and 1 ranks that hold nothing"],
        ),
        (
            [
                tensor(dst=layout([4, 5, 6, 8, 9, 10], "S(0)"), shape=(24, 8)),
                tensor(layout([7], "R"), layout([7], "R"), (0,), "o"),
            ],
            FOURS,
            ["differ in how many of their ranks need nothing"],
        ),
        (
            [tensor(layout([[0, 2, 1, 3], [4, 6, 5, 7]], "S(0)", "R"), layout([8, 9], "S(0)"))],
            rp.Topology.from_domains([[0, 4], [1, 2], [3, 6], [5, 7], [8, 9]]),
            ["'w', src"],
        ),
        (
            [tensor(layout([[0, 3], [2, 1]], "R", "S(0)"))],
            rp.Topology.from_domains([[0, 1], [2, 3], [4, 5, 6, 7]]),
            ["'w', src", "first holders", "replica after replica"],
        ),
        ([tensor(layout([0, 1, 2], "S(0)"), shape=(6, 8))], FOURS, ["'w'", "classes differ in size"]),
        (
            [tensor(), tensor(dst=layout([[4, 5], [6, 7]], "R", "S(1)"), name="v")],
            FOURS,
            ["4 and 8 classes"],
        ),
        (
            [
                tensor(layout([[0, 1], [2, 3]], "R", "S(0)"), layout([4, 5], "S(0)"), (size, 8), f"w{size}")
                for size in (8, 16)
            ],
            FOURS,
            ["differ in shape", "2 classes for 1 replicas", "4 holders"],
        ),
        ([tensor()], topology(pods=(Pod((0, 1), SLOW),)), ["pods"]),
        ([tensor()], topology(nics=FOURS.nics[1:]), ["share a NIC or have none"]),
        ([tensor()], topology(nics=(Nic((0,), SLOW), *FOURS.nics[1:])), ["differ in rate"]),
        (
            [tensor()],
            topology(domains=(Domain((0, 1, 2, 3), SLOW), *FOURS.domains[1:])),
            [],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_specs_that_are_not_regular_are_refused(tensors, cluster, mentions):
    spec = rp.ReshardSpec(tensors, cluster)
    if not mentions:  # the two sides may differ in rates
        assert case_of(spec).src.nvlink_bytes_per_s == SLOW.bytes_per_s
        return
    with pytest.raises(InputError) as error:
        case_of(spec)
    assert all(mention in str(error.value) for mention in mentions), error.value


def test_strided_shards_count_as_shards():
    strided = rp.Layout(rp.Mesh([4, 5]), [StridedShard(0, 2)])
    case = case_of(rp.ReshardSpec([tensor(dst=strided)], FOURS))
    assert (case.dst.shards, case.classes) == (2, 4)
