"""``verify`` accepts what the compiler makes and refuses every single mutation with the right error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mutations import (
    changed,
    drop_route,
    drop_unit,
    duplicate_route,
    duplicate_unit,
    reseal,
    swap_routes,
    with_pieces,
    with_routes,
    with_schedule,
)
from oracle import assert_interprets_exactly
from renamed import staged_plans
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.errors import (
    CausalityError,
    CertificateError,
    CoverageError,
    DigestError,
    MediumError,
    OrderError,
    PayloadError,
    PlanFileError,
    StagingError,
    TableError,
    VerificationError,
)
from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.checks.order import first_descent
from reshard_planner.ir.tables import Groups, Pieces, Routes, Schedule, Tables
from reshard_planner.layout.disjoint import are_disjoint
from reshard_planner.transfer import Medium, Role

GB = 10**9


def compiled(draw_spec: rp.ReshardSpec, strategy: str) -> rp.Plan:
    plan = rp.compile(draw_spec, strategy)
    assume(len(plan.routes) > 0)
    return plan


@st.composite
def plans(draw: st.DrawFn) -> rp.Plan:
    return compiled(draw(specs()), draw(st.sampled_from(STRATEGIES)))


@st.composite
def plans_with_row(draw: st.DrawFn) -> tuple[rp.Plan, int]:
    plan = draw(plans())
    return plan, draw(st.integers(0, len(plan.routes) - 1))


@given(specs(), st.sampled_from(STRATEGIES))
def test_every_compiled_plan_is_accepted(spec, strategy):
    rp.verify(rp.compile(spec, strategy))


def holders(plan: rp.Plan, row: int) -> set[int]:
    """Ranks that store part of the tensor that a row moves, before."""
    piece = plan.routes.piece[row]
    tensor = plan.spec.tensors[int(np.flatnonzero(plan.groups.group_of == plan.pieces.group[piece])[0])]
    return {rank for layout in tensor.src for rank in layout.mesh.ranks}


@given(specs(), st.data())
def test_a_dropped_row_that_others_read_is_refused_for_causality(spec, data):
    plan = compiled(spec, "gather-broadcast")
    read = [
        row
        for row in np.flatnonzero(plan.routes.scratch).tolist()
        if (plan.routes.parent == row).any() and plan.routes.dst[row] not in holders(plan, row)
    ]
    assume(read)
    row = data.draw(st.sampled_from(read))
    with pytest.raises(CausalityError):
        rp.verify(drop_route(plan, row))


@given(plans_with_row())
def test_a_dropped_row_that_fills_a_tile_is_refused_for_coverage(case):
    plan, row = case
    assume(not plan.routes.scratch[row])
    with pytest.raises(CoverageError):
        rp.verify(drop_route(plan, row))


@given(plans_with_row())
def test_a_row_given_twice_is_refused_for_coverage(case):
    plan, row = case
    with pytest.raises(CoverageError):
        rp.verify(duplicate_route(plan, row))


@given(plans_with_row(), st.data())
def test_a_row_sent_to_another_rank_is_refused(case, data):
    plan, row = case
    others = [rank for rank in plan.ranks if rank != plan.routes.dst[row]]
    # bytes in scratch that nobody reads may be anywhere
    assume(others and (not plan.routes.scratch[row] or (plan.routes.parent == row).any()))
    to = data.draw(st.sampled_from(others))
    bad = with_routes(plan, dst=changed(plan.routes.dst, row, to))
    expected = CoverageError if not plan.routes.scratch[row] else (CausalityError, CoverageError, MediumError)
    with pytest.raises(expected):
        rp.verify(bad)


@given(plans_with_row(), st.data())
def test_a_row_sent_by_a_rank_without_the_bytes_is_refused_for_causality(case, data):
    plan, row = case
    strangers = [rank for rank in plan.ranks if rank not in holders(plan, row)]
    assume(strangers and plan.routes.parent[row] < 0)
    to = data.draw(st.sampled_from(strangers))
    with pytest.raises(CausalityError):
        rp.verify(with_routes(plan, src=changed(plan.routes.src, row, to)))


@given(plans(), st.data())
def test_a_shifted_piece_is_refused(plan, data):
    row = data.draw(st.integers(0, len(plan.pieces) - 1))
    dims = plan.pieces.lo.shape[1]
    assume(dims > 0)
    dim = data.draw(st.integers(0, dims - 1))
    step = data.draw(st.sampled_from([-1, 1]))
    lo, hi = plan.pieces.lo.copy(), plan.pieces.hi.copy()
    lo[row, dim] += step
    hi[row, dim] += step
    with pytest.raises((TableError, CoverageError, CausalityError)):
        rp.verify(with_pieces(plan, lo=lo, hi=hi))


@given(plans(), st.data())
def test_a_grown_or_shrunk_piece_is_refused(plan, data):
    row = data.draw(st.integers(0, len(plan.pieces) - 1))
    dims = plan.pieces.lo.shape[1]
    assume(dims > 0)
    dim = data.draw(st.integers(0, dims - 1))
    column = data.draw(st.sampled_from(["lo", "hi"]))
    values = getattr(plan.pieces, column).copy()
    values[row, dim] += data.draw(st.sampled_from([-1, 1]))
    with pytest.raises((TableError, CoverageError, CausalityError)):
        rp.verify(with_pieces(plan, **{column: values}))


@given(plans_with_row(), st.data())
def test_rows_out_of_order_are_refused_for_order(case, data):
    plan, row = case
    other = data.draw(st.integers(0, len(plan.routes) - 1))
    keys = [getattr(plan.routes, key) for key in ("src", "piece", "offset", "dst", "tile")]
    assume(any(key[row] != key[other] for key in keys))
    with pytest.raises(OrderError, match="routes"):
        rp.verify(swap_routes(plan, row, other))


@given(specs(), st.data())
def test_a_row_that_runs_too_soon_after_its_parent_is_refused_for_causality(spec, data):
    plan = compiled(spec, data.draw(st.sampled_from(["gather-broadcast", "optimal"])))
    fed = np.flatnonzero(plan.routes.parent >= 0).tolist()
    assume(fed)
    row = data.draw(st.sampled_from(fed))
    early = plan.routes.offset[plan.routes.parent[row]] + plan.spec.options.lag - 1
    with pytest.raises(CausalityError, match="slots after its parent"):
        rp.verify(with_routes(plan, offset=changed(plan.routes.offset, row, early)))


@given(plans_with_row())
def test_a_last_row_delayed_is_a_plan_with_a_certificate_of_its_own(case):
    plan, row = case
    offset = changed(plan.routes.offset, row, plan.routes.offset[row] + 1)
    late = with_routes(plan, offset=offset)
    keys = [getattr(late.routes, key) for key in ("src", "piece", "offset", "dst", "tile")]
    assume(not (plan.routes.parent == row).any() and first_descent(keys) is None)
    assume(late.certificate.staging_nbytes <= plan.spec.options.staging_nbytes)
    rp.verify(late)
    if late.certificate != plan.certificate:
        with pytest.raises(CertificateError):
            rp.verify(rp.Plan.seal(plan.spec, late.tables, plan.certificate))
    with pytest.raises((CertificateError, DigestError)):
        rp.verify(rp.Plan(plan.spec, late.tables, plan.certificate, plan.digest))


@given(plans_with_row(), st.sampled_from(list(Medium)))
def test_a_wrong_medium_is_refused(case, medium):
    plan, row = case
    assume(medium != plan.routes.medium[row])
    # baselines may use the network within a domain, for which the row has the wrong role
    within = plan.routes.medium[row] == Medium.NVLINK and medium == Medium.NETWORK
    baseline = plan.spec.options.strategy != "optimal"
    with pytest.raises(MediumError, match="over|role" if within and baseline else "over"):
        rp.verify(with_routes(plan, medium=changed(plan.routes.medium, row, medium)))


@given(plans_with_row(), st.sampled_from(list(Role)))
def test_a_role_that_contradicts_medium_or_tree_is_refused(case, role):
    plan, row = case
    medium, parent, scratch = plan.routes.medium[row], plan.routes.parent[row], plan.routes.scratch
    aside = scratch[row] or (parent >= 0 and scratch[parent])  # a neighbour's NIC keeps the piece aside
    fits = {
        Medium.LOCAL: {Role.COPY},
        Medium.NVLINK: {Role.FANOUT, Role.HANDOFF} if aside else {Role.FANOUT},
        Medium.NETWORK: {Role.RELAY if parent >= 0 else Role.INJECT},
    }[Medium(int(medium))]
    assume(role not in fits)
    with pytest.raises(MediumError, match="role"):
        rp.verify(with_routes(plan, role=changed(plan.routes.role, row, role)))


@given(plans_with_row(), st.sampled_from([-2, 10**6]))
def test_a_parent_that_does_not_exist_is_refused(case, parent):
    plan, row = case
    with pytest.raises(TableError, match="parent"):
        rp.verify(with_routes(plan, parent=changed(plan.routes.parent, row, parent)))


@given(plans_with_row())
def test_a_row_that_is_its_own_parent_is_refused_for_causality(case):
    plan, row = case
    with pytest.raises(CausalityError):
        rp.verify(with_routes(plan, parent=changed(plan.routes.parent, row, row)))


@given(plans_with_row())
def test_another_tile_number_is_refused_for_coverage(case):
    plan, row = case
    assume(not plan.routes.scratch[row])
    with pytest.raises(CoverageError):
        rp.verify(with_routes(plan, tile=changed(plan.routes.tile, row, plan.routes.tile[row] + 1)))


@given(plans_with_row(), st.sampled_from(["piece", "src", "dst", "medium", "role", "scratch"]))
def test_values_out_of_range_are_refused_for_the_tables(case, column):
    plan, row = case
    beyond = 255 if column in ("medium", "role", "scratch") else 10**6
    with pytest.raises(TableError, match=f"routes: row {row} has {column} {beyond}"):
        rp.verify(with_routes(plan, **{column: changed(getattr(plan.routes, column), row, beyond)}))


@given(plans_with_row())
def test_negative_offsets_and_tiles_are_refused_for_the_tables(case):
    plan, row = case
    with pytest.raises(TableError, match=f"routes: row {row} has offset -1"):
        rp.verify(with_routes(plan, offset=changed(plan.routes.offset, row, -1)))
    other = 0 if plan.routes.scratch[row] else -1
    with pytest.raises(TableError, match=f"routes: row {row} has tile {other} and scratch"):
        rp.verify(with_routes(plan, tile=changed(plan.routes.tile, row, other)))


@given(plans(), st.data())
def test_a_dropped_unit_is_refused_for_coverage(plan, data):
    row = data.draw(st.integers(0, len(plan.schedule) - 1))
    with pytest.raises(CoverageError, match="chunks"):
        rp.verify(drop_unit(plan, row))


@given(plans(), st.data())
def test_a_unit_given_twice_is_refused_for_coverage(plan, data):
    row = data.draw(st.integers(0, len(plan.schedule) - 1))
    with pytest.raises(CoverageError, match="chunks"):
        rp.verify(duplicate_unit(plan, row))


@given(plans(), st.data())
def test_units_out_of_order_are_refused_for_order(plan, data):
    assume(len(plan.schedule) > 1)
    row = data.draw(st.integers(0, len(plan.schedule) - 2))
    order = np.arange(len(plan.schedule))
    order[[row, row + 1]] = [row + 1, row]
    columns = {name: column[order] for name, column in plan.schedule.columns().items()}
    with pytest.raises(OrderError, match="schedule"):
        rp.verify(with_schedule(plan, **columns))


@given(plans(), st.data())
def test_a_unit_of_another_group_or_chunk_is_refused(plan, data):
    row = data.draw(st.integers(0, len(plan.schedule) - 1))
    chunk = changed(plan.schedule.chunk, row, plan.schedule.chunk[row] + 1)
    with pytest.raises((TableError, CoverageError)):
        rp.verify(with_schedule(plan, chunk=chunk))
    group = changed(plan.schedule.group, row, plan.schedule.group[row] + 1)
    with pytest.raises(TableError, match="group"):
        rp.verify(with_schedule(plan, group=group))


@given(plans(), st.integers(0, 63))
def test_a_flipped_digit_of_the_digest_is_refused(plan, place):
    digit = "0" if plan.digest[place] != "0" else "1"
    bad = replace(plan, digest=plan.digest[:place] + digit + plan.digest[place + 1 :])
    with pytest.raises(DigestError, match=bad.digest):
        rp.verify(bad)


def figures(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all figures of a certificate in plain types."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from figures(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from figures(inner, (*path, index))
    else:
        yield path


def other(value: Any) -> Any:
    """A value of the same type that differs."""
    match value:
        case str():
            return value + "x"
        case float():
            return value * (1 + 1e-6) if value else 1e-3
        case None:
            return 0.5
        case _:
            return value + 1


@given(plans(), st.data())
def test_a_certificate_with_any_figure_changed_is_refused(plan, data):
    raw = plan.certificate.to_dict()
    path = data.draw(st.sampled_from(sorted(figures(raw), key=repr)))
    inner = raw
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other(inner[path[-1]])
    with pytest.raises((CertificateError, PlanFileError)):  # a figure may stand where a mapping belongs
        rp.verify(rp.Plan.seal(plan.spec, plan.tables, Certificate.from_dict(raw)))


def replicas(**options: Any) -> rp.ReshardSpec:
    """Four ranks cut by rows to two replicas of two in one domain of four."""
    src = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"])
    dst = rp.Layout(rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(0)"])
    tensor = rp.TensorSpec("w", (64, 32), "bfloat16", src, dst)
    return rp.ReshardSpec([tensor], rp.Topology.uniform(8, 4), rp.Options(**options))


def test_more_than_the_least_payload_is_refused_of_a_strategy_that_claims_it():
    wasteful = rp.compile(replicas(), "direct")
    assert (
        wasteful.certificate.payload.network_nbytes == 2 * wasteful.certificate.payload.minimum_network_nbytes
    )
    claimed = rp.Plan.seal(replicas(), wasteful.tables, wasteful.certificate)
    with pytest.raises(PayloadError, match=r"8192 bytes go over the network; the least possible is 4096"):
        rp.verify(claimed)
    rp.verify(wasteful)


def test_staging_above_the_budget_is_refused_of_a_strategy_that_claims_it():
    plan = rp.compile(replicas())
    least = plan.certificate.staging_nbytes
    short = plan.spec.with_options(staging_nbytes=least - 1)
    with pytest.raises(StagingError, match=rf"{least} bytes .* options.staging is {least - 1}"):
        rp.verify(rp.Plan.seal(short, plan.tables, plan.certificate))


def test_a_smaller_staging_budget_gives_more_rounds_and_is_kept():
    plan = rp.compile(replicas())
    tight = rp.compile(replicas(staging_nbytes=plan.certificate.staging_nbytes // 4))
    rp.verify(tight)
    assert tight.certificate.staging_nbytes <= plan.certificate.staging_nbytes // 4
    assert tight.schedule.round.max() > plan.schedule.round.max()


def stages() -> rp.ReshardSpec:
    """Two pipeline stages of two ranks each, whose tensors go to the same two ranks."""
    serve = rp.Layout(rp.Mesh([4, 5], ["tp"]), ["S(1)"])
    tensors = [
        rp.TensorSpec(name, (8, 8), "float32", rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(0)"]), serve)
        for name, ranks in (("first", [0, 1]), ("second", [2, 3]))
    ]
    return rp.ReshardSpec(tensors, rp.Topology.from_domains([[0, 1], [2, 3], [4, 5]]))


def shared_routes(subst_to: tuple[int, int]) -> rp.Plan:
    """The two stages with one route table, used by the second under a rank substitution."""
    plan = rp.compile(stages())
    first = np.flatnonzero(plan.pieces.group == 0)
    pieces = Pieces.of({name: column[first] for name, column in plan.pieces.columns().items()})
    rows = np.flatnonzero(plan.pieces.group[plan.routes.piece] == 0)
    assert (plan.routes.parent[rows] < 0).all()
    routes = Routes.of({name: column[rows] for name, column in plan.routes.columns().items()})
    groups = Groups(plan.groups.group_of, [0, 0], [1, 1], [0, 1], subst_to)
    schedule: Schedule = plan.schedule
    return reseal(plan, Tables(groups, pieces, routes, schedule))


def test_a_group_may_use_another_ones_routes_under_a_rank_substitution():
    plan = shared_routes((2, 3))
    rp.verify(plan)
    assert plan.certificate.payload == rp.compile(stages()).certificate.payload
    whole = {
        name: np.arange(64, dtype=np.float32).reshape(8, 8) + shift
        for name, shift in (("first", 0), ("second", 99))
    }
    sources = {
        rank: {name: [whole[name][4 * half : 4 * half + 4]]}
        for name, ranks in (("first", (0, 1)), ("second", (2, 3)))
        for half, rank in enumerate(ranks)
    }
    result = rp.interpret(plan, sources)
    for name, values in whole.items():
        assert np.array_equal(result.destinations[4][name][0], values[:, :4])
        assert np.array_equal(result.destinations[5][name][0], values[:, 4:])


@given(staged_plans())
def test_stages_that_share_routes_under_other_ranks_are_accepted_and_deliver(plan):
    rp.verify(plan)
    assert_interprets_exactly(plan)


@given(staged_plans(), st.data())
def test_a_wrong_name_of_a_rank_is_refused_unless_the_plan_still_delivers(plan, data):
    groups = plan.groups
    assume(len(groups.subst_to) > 1)
    group = int(data.draw(st.sampled_from(np.unique(groups.subst_group).tolist())))
    rows = np.flatnonzero(groups.subst_group == group).tolist()
    first, second = data.draw(st.sampled_from(rows)), data.draw(st.sampled_from(rows))
    swapped = groups.subst_to.copy()
    swapped[[first, second]] = swapped[[second, first]]
    bad = reseal(plan, replace(plan.tables, groups=Groups.of({**groups.columns(), "subst_to": swapped})))
    try:
        rp.verify(bad)
    except VerificationError:
        return
    assert_interprets_exactly(bad)


@given(staged_plans())
def test_two_ranks_of_one_name_are_refused(plan):
    groups = plan.groups
    last = groups.subst_group == groups.subst_group[-1]
    named = np.flatnonzero(last & (groups.subst_from == int(plan.routes.dst[0])))
    other = np.flatnonzero(last & (groups.subst_from == int(plan.routes.src[0])))
    assume(len(named) and len(other) and named[0] != other[0])
    twice = changed(groups.subst_to, named[0], groups.subst_to[other[0]])
    with pytest.raises(TableError, match="twice"):
        rp.verify(
            reseal(plan, replace(plan.tables, groups=Groups.of({**groups.columns(), "subst_to": twice})))
        )


def test_a_wrong_rank_substitution_is_refused():
    with pytest.raises(CausalityError, match="does not hold"):
        rp.verify(shared_routes((3, 2)))
    with pytest.raises(TableError, match="twice"):
        rp.verify(shared_routes((2, 2)))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)), max_size=6
    )
)
def test_disjointness_agrees_with_pairwise_intersection(rows):
    boxes = [rp.Box((a, c), (a + b, c + d)) for a, b, c, d in rows]
    pairs = [(x, y) for i, x in enumerate(boxes) for y in boxes[i + 1 :]]
    lo = np.array([box.lo for box in boxes], dtype=np.int64).reshape(-1, 2)
    hi = np.array([box.hi for box in boxes], dtype=np.int64).reshape(-1, 2)
    assert are_disjoint(lo, hi) == all(x.intersect(y).volume == 0 for x, y in pairs)


def test_disjointness_of_more_boxes_than_fit_one_grid_is_found(monkeypatch):
    monkeypatch.setattr("reshard_planner.layout.disjoint.MAX_CORNERS", 16)
    grid = np.indices((12, 12)).reshape(2, -1).T.astype(np.int64)
    assert are_disjoint(grid, grid + 1)
    wide = grid + 1
    wide[77, 0] += 1
    assert not are_disjoint(grid, wide)


LENDERS = {
    "element size": (((10,), "uint8"), ((10,), "uint4"), ([[0], [5]], [[5], [10]]), 0),
    "dimensions": (((4, 4), "uint8"), ((4,), "uint8"), ([[0, 0]], [[4, 4]]), 0),
    "cut dimension": (((4, 4), "uint8"), ((4,), "uint8"), ([[0, 0]], [[4, 4]]), 1),
}
FROM, TO = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1]), ["R"])


@pytest.mark.parametrize("name", sorted(LENDERS))
def test_routes_are_not_lent_to_another_shape_or_element_size(name):
    lender, borrower, (lo, hi), cut_dim = LENDERS[name]
    tensors = [rp.TensorSpec(name, *kind, FROM, TO) for name, kind in (("a", lender), ("b", borrower))]
    zeros, ones = [0] * len(lo), [1] * len(lo)
    nvlink, fanout = [Medium.NVLINK] * len(lo), [Role.FANOUT] * len(lo)
    tables = Tables(
        Groups([0, 1], [0, 0], [], [], []),
        Pieces(zeros, zeros, [cut_dim] * len(lo), lo, hi),
        Routes(range(len(lo)), [-1] * len(lo), zeros, ones, nvlink, fanout, zeros, zeros, zeros),
        Schedule([0, 1], [0, 1], [0, 0], [0, 0], [1, 1], [0, 0]),
    )
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.from_domains([[0, 1]])))
    with pytest.raises(TableError, match="group 1 uses the routes of group 0"):
        rp.verify(reseal(plan, tables))


@pytest.mark.parametrize("size", [2**53, 2**55])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensors_of_petabytes_are_counted_to_the_byte(size, strategy):
    tensor = rp.TensorSpec("w", (size,), "uint8", FROM, TO)
    options = rp.Options(staging_nbytes=2**56, min_message_nbytes=2**50)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.from_domains([[0], [1]]), options), strategy)
    rp.verify(plan)
    assert plan.certificate.payload.network_nbytes == size


def test_tensors_too_large_to_count_are_refused():
    with pytest.raises(rp.InputError, match="larger than"):
        rp.TensorSpec("w", (2**57,), "uint8", FROM, TO)
