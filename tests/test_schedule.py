"""Scheduling: every chunk once, even rounds, few peers and large messages per slot."""

from __future__ import annotations

from collections import defaultdict
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import specs

import reshard_planner as rp
from reshard_planner.errors import SpecError
from reshard_planner.schedule.colouring import EVEN, Bundles, colour
from reshard_planner.schedule.cutting import NEARLY_LARGE, SLIVERS
from reshard_planner.transfer import Medium

MIB = 2**20


def layout(first: int, sizes: list[int], placements: list[str]) -> rp.Layout:
    ranks = list(range(first, first + prod(sizes)))
    return rp.Layout(rp.Mesh(ranks, None, sizes), placements)


def one(
    shape: tuple[int, ...],
    src: tuple[list[int], list[str]],
    dst: tuple[list[int], list[str]],
    domain: int,
    **options: int,
) -> rp.ReshardSpec:
    """One tensor from the first ranks to the next ones."""
    start = prod(src[0])
    tensor = rp.TensorSpec("w", shape, "bfloat16", layout(0, *src), layout(start, *dst))
    return rp.ReshardSpec([tensor], rp.Topology.uniform(start + prod(dst[0]), domain), rp.Options(**options))


def stages(count: int, layers: int, **options: int) -> rp.ReshardSpec:
    """Layers of experts, matrices and norms of pipeline stages of 8 ranks, for two replicas of 8 ranks."""
    serve = 8 * count
    tensors = []
    for layer in range(layers):
        first = layer * count // layers * 8
        experts = layout(first, [2, 4], ["R", "S(0)"]), layout(serve, [2, 8], ["R", "S(1)"])
        matrix = layout(first, [2, 4], ["R", "S(0)"]), layout(serve, [2, 8], ["R", "S(0)"])
        norm = layout(first, [8], ["R"]), layout(serve, [16], ["R"])
        tensors += [
            rp.TensorSpec(f"{layer}.experts", (64, 2048, 4096), "bfloat16", *experts),
            rp.TensorSpec(f"{layer}.matrix", (4096, 4096), "bfloat16", *matrix),
            rp.TensorSpec(f"{layer}.norm", (4096,), "bfloat16", *norm),
        ]
    return rp.ReshardSpec(tensors, rp.Topology.uniform(serve + 16, 8), rp.Options(**options))


def peers_per_slot(plan: rp.Plan) -> dict[tuple[int, int], set[int]]:
    """Peers of every rank in every slot."""
    ops = plan.ops()
    found = defaultdict(set)
    moved = ops.medium != Medium.LOCAL
    for slot, src, dst in zip(*(c[moved].tolist() for c in (ops.slot, ops.src, ops.dst)), strict=True):
        found[slot, src].add(dst)
        found[slot, dst].add(src)
    return found


@given(specs())
def test_every_chunk_of_every_part_of_every_tensor_runs_once(spec):
    plan = rp.compile(spec)
    pieces, schedule, groups = plan.pieces, plan.schedule, plan.groups
    wanted = set()
    counts = {}
    columns = (schedule.tensor, schedule.part, schedule.n_chunks)
    for tensor, part, chunks in zip(*(column.tolist() for column in columns), strict=True):
        assert counts.setdefault((tensor, part), chunks) == chunks
    for tensor, group in enumerate(groups.group_of.tolist()):
        parts = set(pieces.part[pieces.group == groups.routes_of[group]].tolist())
        assert parts == set(range(len(parts)))
        wanted |= {(tensor, part, chunk) for part in parts for chunk in range(counts[tensor, part])}
    keys = zip(*(c.tolist() for c in (schedule.tensor, schedule.part, schedule.chunk)), strict=True)
    assert sorted(keys) == sorted(wanted)


@given(specs())
def test_rows_of_a_tree_share_a_part_and_follow_one_another(spec):
    plan = rp.compile(spec)
    routes, pieces = plan.routes, plan.pieces
    fed = np.flatnonzero(routes.parent >= 0)
    parent = routes.parent[fed]
    assert (pieces.part[routes.piece[fed]] == pieces.part[routes.piece[parent]]).all()
    assert (routes.offset[fed] >= routes.offset[parent] + spec.options.lag).all()
    assert (
        np.diff(pieces.group.astype(np.int64) * (int(pieces.part.max(initial=0)) + 1) + pieces.part) >= 0
    ).all()


@given(specs(strategies=("optimal",)), st.integers(1, 4))
def test_no_rank_has_more_peers_in_a_slot_than_allowed_or_than_one_tree_gives_it(spec, limit):
    plan = rp.compile(spec.with_options(max_peers_per_slot=limit))
    ops = plan.ops()
    of_tree = defaultdict(set)
    moved = ops.medium != Medium.LOCAL
    piece = plan.routes.piece[ops.row]
    for at, src, dst in zip(
        piece[moved].tolist(), ops.src[moved].tolist(), ops.dst[moved].tolist(), strict=True
    ):
        of_tree[at, src].add(dst)
        of_tree[at, dst].add(src)
    most = max([limit, *map(len, of_tree.values())])
    assert all(len(peers) <= most for peers in peers_per_slot(plan).values())


@pytest.mark.parametrize("limit", [2, 3, 8])
def test_peers_rotate_where_every_rank_talks_to_all(limit):
    spec = one((4096, 4096), ([16], ["S(0)"]), ([16], ["S(1)"]), 1, max_peers_per_slot=limit)
    plan = rp.compile(spec)
    rp.verify(plan)
    assert max(map(len, peers_per_slot(plan).values())) <= limit
    assert plan.certificate.schedule.peers_max == 16
    assert plan.certificate.schedule.gap == pytest.approx(0, abs=0.02)


@given(specs(max_tensors=1), st.sampled_from([1, 8, 64, 512]))
def test_messages_are_not_cut_below_the_least_size_but_for_slivers(spec, least):
    spec = spec.with_options(min_message_nbytes=least)
    plan = rp.compile(spec)
    ops, routes = plan.ops(), plan.routes
    root = np.where(routes.parent >= 0, routes.piece[routes.parent], routes.piece)
    ways = defaultdict(set)
    for row in np.flatnonzero(routes.medium != Medium.LOCAL).tolist():
        ways[int(root[row])].add((int(routes.src[row]), int(routes.dst[row]), int(routes.offset[row])))
    number = {way: index for index, way in enumerate(dict.fromkeys(map(frozenset, ways.values())))}
    bundle = {piece: number[frozenset(way)] for piece, way in ways.items()}
    bits = spec.tensors[0].bits
    volume = np.prod(plan.pieces.hi - plan.pieces.lo, axis=1, dtype=np.int64) * bits // 8
    whole, part_of = defaultdict(int), {}
    for piece, of in bundle.items():
        whole[of] += int(volume[piece])
        part_of[of] = int(plan.pieces.part[piece])
    sums = defaultdict(int)
    for at in np.flatnonzero((ops.parent < 0) & (ops.medium != Medium.LOCAL)).tolist():
        of = bundle[int(root[ops.row[at]])]
        sums[of, int(ops.unit[at]), int(ops.src[at]), int(ops.dst[at])] += int(ops.nbytes[at])
    smallest = {}
    for (of, *_), nbytes in sums.items():
        smallest[of] = min(smallest.get(of, nbytes), nbytes)
    chunks = {int(p): int(n) for p, n in zip(plan.schedule.part, plan.schedule.n_chunks, strict=True)}
    below = defaultdict(int)
    for of, nbytes in smallest.items():
        if nbytes < whole[of] and nbytes < max(1, int(least * NEARLY_LARGE)):
            below[chunks[part_of[of]]] += whole[of]
    assert all(nbytes <= SLIVERS * sum(whole.values()) for nbytes in below.values())


@given(
    st.sampled_from([1, 2, 3, 4, 6]),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.integers(1, 8),
    st.sampled_from([1, 2]),
)
def test_products_of_shards_load_every_slot_evenly(holders, needers, scale, lag):
    shape = (holders * 64 * scale, needers * 4096)
    spec = one(shape, ([holders], ["S(0)"]), ([needers], ["S(1)"]), 1, lag=lag, min_message_nbytes=1024)
    assert rp.compile(spec).certificate.schedule.gap == pytest.approx(0, abs=0.02)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_diagonals_are_even_where_the_parts_divide_both_sides(holders, needers, parts):
    source, destination = np.divmod(np.arange(holders * needers), needers)
    bundle = np.tile(np.arange(len(source)), 2)
    port = np.concatenate((source, destination + holders))
    bundles = Bundles.of(source, destination, 2, bundle, 0 * bundle, port, np.ones(len(port)))
    assert bundles.most_even == min(holders, needers) or bundles.busiest > min(holders, needers)
    parts = min(parts, bundles.count)
    part, found = colour(bundles, [(parts, 1.0)], parts)
    assert found == parts
    assert set(part.tolist()) == set(range(parts))
    if holders % parts == 0 and needers % parts == 0:
        assert bundles.order(part, parts)[0] <= EVEN


LARGE = {
    "rows to rows": one((65536, 65536), ([4, 8], ["R", "S(0)"]), ([2, 16], ["R", "S(0)"]), 8),
    "rows to columns": one((65536, 65536), ([4, 8], ["R", "S(0)"]), ([2, 16], ["R", "S(1)"]), 8),
    "experts to columns": one((256, 4096, 32768), ([2, 16], ["R", "S(0)"]), ([4, 16], ["R", "S(1)"]), 8),
    "no replicas": one((256, 4096, 32768), ([16], ["S(0)"]), ([32], ["S(0)"]), 8),
    "two layers of each of four stages": stages(4, 8),
}


@pytest.mark.parametrize("name", LARGE)
def test_slots_of_large_tensors_add_up_to_the_busiest_port_but_for_filling_the_pipeline(name):
    plan = rp.compile(LARGE[name].with_options(min_message_nbytes=64 * 1024))
    rp.verify(plan)
    rounds = len(np.unique(plan.schedule.round))
    certificate = plan.certificate
    pipeline = int(plan.routes.offset.max()) / rounds
    busiest = max(certificate.busiest_nic.time_s, certificate.busiest_nvlink.time_s)
    over = (certificate.schedule.gap + 1) * certificate.bound.time_s / busiest - 1
    assert -1e-9 <= over <= 0.02 + pipeline
    assert certificate.staging_nbytes <= plan.spec.options.staging_nbytes


@pytest.mark.parametrize("budget", [4 * MIB, 16 * MIB])
def test_rounds_are_as_many_as_staging_demands(budget):
    spec = stages(2, 4, staging_nbytes=budget)
    plan = rp.compile(spec)
    rp.verify(plan)
    loose = rp.compile(spec.with_options(staging_nbytes=2**40))
    assert plan.certificate.staging_nbytes <= budget < loose.certificate.staging_nbytes
    assert plan.schedule.round.max() > loose.schedule.round.max()


def test_stages_run_side_by_side():
    plan = rp.compile(stages(4, 8))
    rounds = int(plan.schedule.round.max()) + 1
    stage_of = np.array(
        [plan.spec.tensors[at].src[0].mesh.ranks[0] // 8 for at in plan.schedule.tensor.tolist()]
    )
    for quarter in range(4):
        at = plan.schedule.round * 4 // rounds == quarter
        assert set(stage_of[at].tolist()) == {0, 1, 2, 3}


def test_small_tensors_of_one_way_share_messages():
    tensors = [
        rp.TensorSpec(f"norm{i}", (4096,), "bfloat16", layout(0, [4], ["S(0)"]), layout(4, [4], ["S(0)"]))
        for i in range(64)
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)))
    assert plan.certificate.schedule.messages == 4


@settings(max_examples=20)
@given(specs())
def test_equal_specs_get_equal_schedules(spec):
    again = rp.ReshardSpec(spec.tensors, spec.topology, spec.options)
    assert rp.compile(spec).tables == rp.compile(again).tables


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "8", 2**40])
def test_a_limit_of_peers_must_be_a_positive_integer(value):
    with pytest.raises(SpecError, match=r"options\.max_peers_per_slot"):
        rp.Options(max_peers_per_slot=value)
