"""Closed forms of bounds and baselines: equal to what the planner proves and compiles."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from _pairs import GB, Pair, is_small, parts_of, prove
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import reshard_planner as rp
from reshard_planner.bounds.cut import pack_weights
from reshard_planner.bounds.sums import evaluate as cut_sum
from reshard_planner.errors import InputError
from reshard_planner.symbolic import (
    Case,
    all_forms,
    bound_forms,
    case_of,
    evaluate,
    find_form,
)

FORMS = all_forms()

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
    def layout(ranks, *placements):
        return rp.Layout(rp.Mesh(ranks), placements)

    dst = layout(np.arange(100, 124).reshape(3, 8), "R", "S(0)")
    tensors = [
        rp.TensorSpec(
            f"w{stage}", (8 * size, 8), "int8", layout(range(4 * stage, 4 * stage + 4), "S(0)"), dst
        )
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
    check_busiest_ports(found, pair.case)


CLAIMS = {
    "X = 0": lambda numbers: numbers["X"] == 0,
    "nvlink_time is not above it": lambda numbers: numbers["nvlink_time"] <= numbers["nic_time"],
}
"""What the forms of the busiest ports say about where they hold."""


def claimed(name: str, case: Case) -> bool:
    """Whether a form of a busiest port says that it holds for a case, within 1 %."""
    clauses, accuracy = find_form(FORMS, name).holds.split("; ")
    assert accuracy == "within 1 %"
    found = evaluate(case)
    return all(CLAIMS[clause]({**found.numbers, **found.values}) for clause in clauses.split(", "))


def check_busiest_ports(found: rp.Certificate, case: Case) -> None:
    values = evaluate(case).values
    for name, port in (("nic_time", found.busiest_nic), ("nvlink_time", found.busiest_nvlink)):
        if claimed(name, case):
            assert port.time_s == pytest.approx(float(values[name]), rel=0.01)


@pytest.mark.parametrize(
    ("pair", "rate", "whether"),
    [
        (Pair((1, 3, 1), (2, 2, 4), rows=12288, columns=24576), 25, False),
        (Pair((2, 3, 1), (2, 2, 4), rows=12288, columns=24576, nic=(50 * GB, 100 * GB)), 50, False),
        (Pair((1, 3, 1), (2, 2, 4), rows=12288, columns=24576), 450, True),
        (Pair((2, 3, 1), (2, 2, 4), rows=12288, columns=24576, nic=(50 * GB, 100 * GB)), 450, True),
    ],
    ids=["one shard, slow NVLink", "two shards, slow NVLink", "one shard", "two shards"],
)
def test_where_nvlink_takes_longest_nothing_is_claimed_of_the_busiest_nic(pair, rate, whether):
    pair = replace(pair, nvlink=(450 * GB, rate * GB))
    assert claimed("nvlink_time", pair.case)
    assert claimed("nic_time", pair.case) == whether
    assert pair.case.dst.replicas == pair.case.dst.copies  # without relays
    check_busiest_ports(rp.compile(pair.spec()).certificate, pair.case)


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
