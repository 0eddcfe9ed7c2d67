"""Planning again without ranks: survivors keep what they have, and what is lost is what brute force says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from element_oracle import assert_equal, buffers, parts
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from oracle import domains_of, local_indices
from reshard_executors.binding import LocalSide
from storage_strategies import stored_specs
from strategies import specs
from test_storage_positions import tied_specs

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir import textform
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.layout.survivors import Survivors
from reshard_planner.replan import Impossible, Remainder, changes, compare_plans, find_remainder
from reshard_planner.spec import spec_from_dict, spec_to_dict
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import SIDES, Side
from reshard_planner.transfer import Medium


@st.composite
def lost_ranks(draw: st.DrawFn, spec: rp.ReshardSpec) -> list[int]:
    """Some ranks of a spec: any, a slice of a mesh, or a whole mesh; some are left."""
    ranks = list(spec.ranks)
    if len(ranks) < 2:
        reject()
    meshes = list(
        dict.fromkeys(layout.mesh for t in spec.tensors for side in SIDES for layout in t.layouts(side))
    )
    found: set[int] = set()
    for _ in range(draw(st.integers(1, 2))):
        mesh = draw(st.sampled_from(meshes))
        kind = draw(st.sampled_from(["some", "slice", "mesh"]))
        if kind == "some":
            found.update(draw(st.lists(st.sampled_from(ranks), min_size=1, max_size=3)))
        elif kind == "slice":
            axis = draw(st.integers(0, mesh.ndim - 1))
            index = draw(st.integers(0, mesh.shape[axis] - 1))
            found.update(mesh.array().take(index, axis).reshape(-1).tolist())
        else:
            found.update(mesh.ranks)
    kept = set(ranks) - found
    return sorted(found) if kept else sorted(found)[1:]


@st.composite
def cases(draw: st.DrawFn, *, plain: bool = False) -> tuple[rp.ReshardSpec, list[int]]:
    """Specs, most with storage or with several local tensors of a name, and ranks that are gone."""
    spec = draw(specs(max_layouts=1) if plain else specs() | stored_specs() | tied_specs())
    return spec, draw(lost_ranks(spec))


@st.composite
def tied_cases(draw: st.DrawFn) -> tuple[rp.ReshardSpec, list[int]]:
    """Cases in which dense layouts become storage that share a rank with others of their name."""
    spec = draw(tied_specs())
    gone = draw(lost_ranks(spec))
    assume(
        any(
            own.at
            for tensor in remainder(spec, gone).spec.tensors
            for layout in (*tensor.src, *tensor.dst)
            if layout.storage is not None
            for entry in layout.storage.entries
            for own in entry
        )
    )
    return spec, gone


def remainder(spec: rp.ReshardSpec, gone: Sequence[int]) -> Remainder:
    return find_remainder(spec, frozenset(gone))


def stored_by(spec: rp.ReshardSpec, side: str, gone: Sequence[int] = ()):
    """Every local buffer of ranks that are left: where each element of each tensor lies in it."""
    found = {}
    for part in parts(spec, side):
        if part.rank not in gone:
            key = (spec.tensors[part.tensor].name, part.rank, part.key)
            places = dict(zip(part.places.tolist(), part.elements.tolist(), strict=True))
            assert key not in found or found[key][:2] == (part.shape, part.dtype)
            found.setdefault(key, (part.shape, part.dtype, {}))[2].update(places)
    return found


def owners(spec: rp.ReshardSpec, side: str, number: int) -> list[set[int]]:
    """The ranks that store each element of a tensor."""
    found: list[set[int]] = [set() for _ in range(prod(spec.tensors[number].shape))]
    for part in parts(spec, side):
        if part.tensor == number:
            for element in part.elements.tolist():
                found[element].add(part.rank)
    return found


def lost_elements(spec: rp.ReshardSpec, impossible: Sequence[Impossible]):
    """Holders and needers of every element, which is in one box only, by tensor and row-major number."""
    found: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for each in impossible:
        shape = spec.tensor(each.tensor).shape
        for box in each.boxes:
            elements = np.arange(prod(shape)).reshape(shape)[box.slices()].reshape(-1).tolist()
            assert not {(each.tensor, element) for element in elements} & found.keys()
            found.update({(each.tensor, element): (each.holders, each.needers) for element in elements})
    return found


@given(cases())
def test_survivors_keep_their_buffers_and_every_element_in_its_place(case):
    spec, gone = case
    rest = remainder(spec, gone)
    kept = {tensor.name for tensor in rest.spec.tensors}
    for side in SIDES:
        before = {key: value for key, value in stored_by(spec, side, gone).items() if key[0] in kept}
        assert stored_by(rest.spec, side) == before
    for tensor in rest.spec.tensors:
        for side in SIDES:
            old, new = SideTiles(spec.tensor(tensor.name), side), SideTiles(tensor, side)
            for rank in set(spec.ranks) - set(gone):
                assert new.buffers(rank) == old.buffers(rank)
                assert new.expected(rank) == old.expected(rank)
                assert {tile.box for tile in new.tiles(rank)} == {tile.box for tile in old.tiles(rank)}


@given(tied_cases())
def test_survivors_keep_their_positions_among_buffers_of_a_name(case):
    spec, gone = case
    rest = remainder(spec, gone).spec
    for tensor in rest.tensors:
        for side in SIDES:
            old, new = SideTiles(spec.tensor(tensor.name), side), SideTiles(tensor, side)
            for rank in set(spec.ranks) - set(gone):
                assert new.buffers(rank) == old.buffers(rank)
    assert spec_from_dict(spec_to_dict(rest)) == rest
    if rest.tensors:
        plan = rp.compile(rest)
        assert textform.loads(plan.to_text()) == plan
        assert rp.compile(spec_from_dict(spec_to_dict(rest))).digest == plan.digest


def torch_buffers(spec: rp.ReshardSpec, side: Side, rank: int) -> dict[str, list[torch.Tensor]]:
    """What a rank gives an executor on one side."""
    bits = {
        buffer.name: (each.side_dtype(side), DTYPE_BITS[each.side_dtype(side)])
        for each in spec.tensors
        for buffer in SideTiles(each, side).buffers(rank)
    }
    return {
        name: [
            torch.from_numpy(array.reshape(-1).view(np.uint8))
            .view(getattr(torch, bits[name][0]) if bits[name][1] >= 8 else torch.uint8)
            .reshape(array.shape)
            for array in arrays
        ]
        for name, arrays in buffers(spec, side).get(rank, {}).items()
    }


def bound(
    spec: rp.ReshardSpec, rank: int, side: Side, held: dict[str, list[torch.Tensor]], names: Sequence[str]
):
    """The memory that an executor binds for tensors of these names."""
    local = LocalSide(spec, rank, side, torch.device("cpu"))
    numbers = [number for number, each in enumerate(spec.tensors) if each.name in names]
    memories = local.bind(local.select(held, numbers), numbers)
    return {
        spec.tensors[number].name: [
            (
                each.label,
                each.whole.storage.data_ptr(),
                each.whole.start,
                each.whole.shape,
                each.whole.strides,
            )
            for each in own
        ]
        for number, own in memories.items()
    }


@given(cases() | tied_cases())
def test_executors_bind_the_same_memory_of_survivors(case):
    spec, gone = case
    found = find_remainder(spec, frozenset(gone)).spec
    names = [each.name for each in found.tensors]
    for side in SIDES:
        used = {name for each in found.tensors for names in each.buffers(side) for name in names}
        for rank in set(spec.ranks) - set(gone):
            held = torch_buffers(spec, side, rank)
            left = {name: own for name, own in held.items() if name in used}
            assert bound(found, rank, side, left, names) == bound(spec, rank, side, held, names)


@given(cases())
def test_names_order_topology_and_options_stay(case):
    spec, gone = case
    rest = remainder(spec, gone)
    names = [tensor.name for tensor in rest.spec.tensors]
    left_out = {each.tensor for each in rest.impossible} | set(rest.unneeded)
    assert names == [tensor.name for tensor in spec.tensors if tensor.name not in left_out]
    assert not {each.tensor for each in rest.impossible} & set(rest.unneeded)
    assert rest.spec.topology is spec.topology
    assert rest.spec.options is spec.options
    assert not set(rest.spec.ranks) & set(gone)
    for tensor in rest.spec.tensors:
        old = spec.tensor(tensor.name)
        assert (tensor.shape, tensor.dtype, tensor.dst_dtype) == (old.shape, old.dtype, old.dst_dtype)


@given(cases())
def test_only_tensors_without_destinations_are_unneeded(case):
    spec, gone = case
    unneeded = [
        tensor.name
        for tensor in spec.tensors
        if all(set(gone).issuperset(layout.mesh.ranks) for layout in tensor.dst)
    ]
    assert list(remainder(spec, gone).unneeded) == unneeded


@given(cases())
def test_a_tensor_whose_ranks_are_all_left_is_the_same_value(case):
    spec, gone = case
    rest = remainder(spec, gone)
    for tensor in rest.spec.tensors:
        old = spec.tensor(tensor.name)
        if not set(gone) & {rank for layout in (*old.src, *old.dst) for rank in layout.mesh.ranks}:
            assert tensor is old
        survivors = Survivors(gone)
        for layout in old.dst:
            same = survivors.layout(layout, old.shape) is layout
            assert same == (not set(gone) & set(layout.mesh.ranks))


@given(cases())
def test_the_new_plan_is_right_and_serves_survivors_as_before(case):
    spec, gone = case
    found = rp.replan(spec, gone)
    if found.plan is None:
        assert not found.spec.tensors
        return
    assert found.plan.spec == found.spec
    rp.verify(found.plan)
    ops = found.plan.ops()
    assert not set(gone) & {*found.plan.ranks, *ops.src.tolist(), *ops.dst.tolist()}
    kept = [number for number, t in enumerate(spec.tensors) if t.name in {n.name for n in found.spec.tensors}]
    sources = {rank: own for rank, own in buffers(spec, "src").items() if rank not in gone}
    if len(kept) < len(spec.tensors):
        sources = {
            rank: {name: arrays for name, arrays in own.items() if name in found.buffers(rank, "src")}
            for rank, own in sources.items()
        }
    wanted = buffers(spec, "dst", padding=0, only=kept)
    result = rp.interpret(found.plan, sources).destinations
    left = {rank: {name: wanted[rank][name] for name in found.buffers(rank, "dst")} for rank in result}
    assert_equal(spec, result, left)
    for rank, own in result.items():
        assert {name for name, arrays in own.items() if arrays} == left[rank].keys()


@given(cases())
def test_impossible_is_what_no_survivor_holds_and_some_survivor_needs(case):
    spec, gone = case
    dead = set(gone)
    impossible = remainder(spec, gone).impossible
    wanted = {}
    for number, tensor in enumerate(spec.tensors):
        holders, needers = owners(spec, "src", number), owners(spec, "dst", number)
        for element, (held, needed) in enumerate(zip(holders, needers, strict=True)):
            if needed - dead and not held - dead:
                wanted[tensor.name, element] = tuple(sorted(held)), tuple(sorted(needed - dead))
    assert lost_elements(spec, impossible) == wanted
    for each in impossible:
        assert each.nbytes == sum(box.volume for box in each.boxes) * spec.tensor(each.tensor).bits // 8


@given(cases())
def test_the_payload_is_the_least_for_survivors(case):
    spec, gone = case
    plan = rp.replan(spec.with_options(strategy="optimal"), gone).plan
    if plan is None:
        reject()
    home, dead = domains_of(spec.topology), set(gone)
    names = {tensor.name for tensor in plan.spec.tensors}
    bits = 0
    for number, tensor in enumerate(spec.tensors):
        if tensor.name in names:
            for held, needed in zip(owners(spec, "src", number), owners(spec, "dst", number), strict=True):
                near = {home[rank] for rank in held - dead}
                bits += tensor.bits * len({home[rank] for rank in needed - dead} - near)
    payload = plan.certificate.payload
    assert payload.network_nbytes == payload.minimum_network_nbytes == bits // 8


@given(cases(plain=True))
def test_replicas_are_incomplete_that_lost_some_elements_and_not_all_ranks(case):
    spec, gone = case
    wanted: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for tensor in spec.tensors:
        [layout] = tensor.dst
        copies = [axis for axis, each in enumerate(layout.placements) if isinstance(each, rp.Replicate)]
        stored = local_indices(layout, tensor.shape)
        for index in product(*(range(layout.mesh.shape[axis]) for axis in copies)):
            chosen: list[int | slice] = [slice(None)] * layout.mesh.ndim
            for axis, at in zip(copies, index, strict=True):
                chosen[axis] = at
            ranks = set(np.atleast_1d(layout.mesh.array()[tuple(chosen)]).reshape(-1).tolist())
            left, lost = ranks - set(gone), ranks & set(gone)
            missing = sum(prod(map(len, stored[rank])) for rank in lost)
            if left and missing:
                wanted.setdefault((tuple(sorted(left)), tuple(sorted(lost))), []).append(tensor.name)
    found = find_remainder(spec, frozenset(gone)).incomplete
    assert {(each.ranks, each.gone): list(each.tensors) for each in found} == wanted


def described(plan: rp.Plan) -> list[tuple[object, ...]]:
    """Every operation by all that counts."""
    ops = plan.ops()
    found = []
    for at in range(len(ops)):
        tensor = plan.spec.tensors[int(ops.tensor[at])]
        ndim = len(tensor.shape)
        corners = (*ops.lo[at, :ndim].tolist(), *ops.hi[at, :ndim].tolist())
        labels = (int(ops.src[at]), int(ops.dst[at]), int(ops.medium[at]), int(ops.role[at]))
        found.append((tensor.name, corners, labels))
    return found


@given(cases())
def test_operations_of_both_plans_are_the_same_gone_or_new(case):
    spec, gone = case
    before = rp.compile(spec)
    found = rp.replan(before, gone)
    if found.plan is None:
        assert found.changes is None
        return
    columns = found.changes
    assert columns is not None
    old, new = before.ops(), found.plan.ops()
    assert sorted([*columns.before.tolist(), *columns.gone.tolist()]) == old.op.tolist()
    assert sorted([*columns.after.tolist(), *columns.new.tolist()]) == new.op.tolist()
    by_old = dict(zip(old.op.tolist(), described(before), strict=True))
    by_new = dict(zip(new.op.tolist(), described(found.plan), strict=True))
    for one, two in zip(columns.before.tolist(), columns.after.tolist(), strict=True):
        assert by_old[one] == by_new[two]
    assert not {by_old[op] for op in columns.gone.tolist()} & {by_new[op] for op in columns.new.tolist()}
    for column in (columns.before, columns.gone, columns.new):
        assert (np.diff(column) > 0).all()
    for sums, plan in (
        (columns.same_nbytes + columns.gone_nbytes, before),
        (columns.same_nbytes + columns.new_nbytes, found.plan),
    ):
        payload = plan.certificate.payload
        assert sums[Medium.NETWORK] == payload.network_nbytes
        assert sums[Medium.NVLINK] == payload.nvlink_nbytes
        assert sums[Medium.LOCAL] == payload.local_nbytes


@given(specs())
def test_a_plan_has_all_in_common_with_itself(spec):
    plan = rp.compile(spec)
    columns = compare_plans(plan, plan)
    assert columns.before.tolist() == columns.after.tolist() == plan.ops().op.tolist()
    assert not len(columns.gone)
    assert not len(columns.new)


@given(cases())
def test_comparing_in_blocks_gives_the_same(case):
    spec, gone = case
    before = rp.compile(spec)
    found = rp.replan(before, gone)
    if found.plan is None:
        reject()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "BLOCK_OPS", 1)
        blocks = compare_plans(before, found.plan)
    whole = compare_plans(before, found.plan)
    for name in ("before", "after", "gone", "new", "same_nbytes", "gone_nbytes", "new_nbytes"):
        assert getattr(blocks, name).tolist() == getattr(whole, name).tolist()


@given(cases(), st.data())
def test_ranks_left_out_one_after_another_are_as_left_out_together(case, data):
    spec, gone = case
    first = remainder(spec, gone)
    if len(first.spec.ranks) < 2:
        reject()
    more = data.draw(lost_ranks(first.spec))
    second, both = remainder(first.spec, more), remainder(spec, sorted({*gone, *more}))
    early = {each.tensor for each in first.impossible}
    together = [tensor for tensor in both.spec.tensors if tensor.name not in early]
    assert [tensor.name for tensor in second.spec.tensors] == [tensor.name for tensor in together]
    needed = [
        {element: needers for element, (_, needers) in lost_elements(spec, found.impossible).items()}
        for found in (second, both)
    ]
    assert needed[0] == {key: needers for key, needers in needed[1].items() if key[0] not in early}
    left = set(spec.ranks) - {*gone, *more}
    for one, two in zip(second.spec.tensors, together, strict=True):
        for side in SIDES:
            tiles = SideTiles(one, side), SideTiles(two, side)
            for rank in left:
                assert tiles[0].buffers(rank) == tiles[1].buffers(rank)
                assert tiles[0].tiles(rank) == tiles[1].tiles(rank)
    if second.spec.tensors and len(together) == len(both.spec.tensors):
        plans = rp.compile(second.spec), rp.compile(both.spec)
        payloads = [plan.certificate.payload for plan in plans]
        assert payloads[0].minimum_network_nbytes == payloads[1].minimum_network_nbytes


# by hand


TRAIN = rp.Mesh([0, 1, 2, 3], ["tp"])
SERVE = rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"])


def spec_of(*tensors: rp.TensorSpec) -> rp.ReshardSpec:
    return rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4))


def tensor(
    src: rp.Layout | list[rp.Layout], dst: rp.Layout | list[rp.Layout], shape: tuple[int, ...] = (8, 8)
) -> rp.TensorSpec:
    return rp.TensorSpec("w", shape, "bfloat16", src, dst)


ROWS = tensor(rp.Layout(TRAIN, ["S(0)"]), rp.Layout(SERVE, ["R", "S(0)"]))


def left_of(layout: rp.Layout, gone: Sequence[int], shape: tuple[int, ...] = (8, 8)) -> rp.Layout:
    found = Survivors(gone).layout(layout, shape)
    assert found is not None
    return found


@pytest.mark.parametrize("gone", [[4, 5], [6, 7]])
def test_a_layout_without_a_replica_keeps_its_placements_on_a_smaller_mesh(gone):
    left = [rank for rank in SERVE.ranks if rank not in gone]
    assert left_of(ROWS.dst[0], gone) == rp.Layout(rp.Mesh([left], ["dp", "tp"]), ["R", "S(0)"])


def test_a_layout_keeps_its_placements_where_those_that_are_gone_had_nothing():
    layout = rp.Layout(TRAIN, ["S(0)"])
    assert left_of(layout, [3], (3, 8)) == rp.Layout(rp.Mesh([0, 1, 2], ["tp"]), ["S(0)"])
    assert not left_of(layout, [3]).placements


def test_storage_says_what_is_left_where_placements_cannot():
    left = left_of(ROWS.dst[0], [6])
    assert left.mesh.ranks == (4, 5, 7)
    assert left.storage == Storage.of(
        (StoredBuffer(0, (4, 8), (Tile(rp.Box((lo, 0), (lo + 4, 8)), 0, (8, 1)),)),) for lo in (0, 4, 4)
    )


def test_layouts_and_storages_that_tensors_share_are_shared_afterwards():
    names = [f"layers.{number}.w" for number in range(20)]
    shared = spec_of(*(rp.TensorSpec(name, (8, 8), "bfloat16", ROWS.src, ROWS.dst) for name in names))
    left = find_remainder(shared, frozenset([6])).spec
    assert len({id(each.dst[0]) for each in left.tensors}) == 1
    assert len({id(each.src[0]) for each in left.tensors}) == 1
    sizes = spec_of(*(rp.TensorSpec(f"w{n}", (4 * n, 8), "bfloat16", ROWS.src, ROWS.dst) for n in (1, 2, 3)))
    left = find_remainder(sizes, frozenset([4, 5])).spec
    assert len({id(each.dst[0]) for each in left.tensors}) == 1


def test_no_layouts_of_a_side_are_left_where_all_of_its_ranks_are_gone():
    spare = rp.Layout(rp.Mesh([4, 5], ["tp"]), ["S(1)"])
    both = tensor([ROWS.src[0], spare], [ROWS.dst[0], rp.Layout(rp.Mesh([6], ["x"]), ["R"])])
    found = rp.replan(spec_of(both), [0, 1, 2, 3, 6])
    [left] = found.spec.tensors
    assert left.src == (spare,)
    assert [layout.mesh.ranks for layout in left.dst] == [(4, 5, 7)]
    assert not found.impossible
    assert found.complete


def test_what_only_those_held_that_are_gone_is_impossible_and_left_out():
    copied = rp.TensorSpec("copied", (8, 8), "bfloat16", rp.Layout(TRAIN, ["R"]), ROWS.dst)
    found = rp.replan(rp.compile(spec_of(ROWS, copied)), [1])
    [lost] = found.impossible
    assert lost.tensor == "w"
    assert lost.boxes == (rp.Box((2, 0), (4, 8)),)
    assert (lost.holders, lost.needers, lost.nbytes) == ((1,), (4, 6), 32)
    assert found.plan is not None
    assert [each.name for each in found.plan.spec.tensors] == ["copied"]
    assert not found.complete


def test_what_is_not_needed_by_survivors_is_not_impossible():
    found = rp.replan(spec_of(ROWS), [1, 4, 6])
    assert found.complete
    assert found.plan is not None
    assert found.plan.certificate.payload.network_nbytes == 64


@pytest.mark.parametrize(("gone", "unneeded"), [([4, 5, 6, 7], ("w",)), ([0, 1, 2, 3], ())])
def test_there_is_no_plan_where_nothing_is_left_to_move(gone, unneeded):
    found = rp.replan(rp.compile(spec_of(ROWS)), gone)
    assert found.plan is None
    assert found.changes is None
    assert not found.complete
    assert found.unneeded == unneeded
    assert bool(found.impossible) is not bool(unneeded)


def test_a_tensor_without_bytes_stays_when_its_sources_are_gone():
    empty = tensor(ROWS.src[0], ROWS.dst[0], (0, 8))
    found = rp.replan(spec_of(empty), [0, 1, 2, 3])
    assert found.complete
    assert found.plan is not None
    rp.verify(found.plan)
    [left] = found.plan.spec.tensors
    assert SideTiles(left, "dst").expected(4) == {"w": [(0, 8)]}
    assert SideTiles(left, "src").expected(4) == {}
    assert rp.interpret(found.plan, {}).destinations[4]["w"][0].shape == (0, 8)


REPEATED = rp.Layout.stored(
    rp.Mesh([4, 5, 6, 7], ["rank"]),
    Storage(
        [(StoredBuffer(0, (4, 8), (Tile(rp.Box((lo, 0), (lo + 4, 8)), 0, (8, 1)),)),) for lo in (0, 4)],
        [0, 1, 0, 1],
    ),
)


@pytest.mark.parametrize(
    ("layout", "gone", "incomplete"),
    [
        (ROWS.dst[0], [6], [((7,), (6,))]),
        (ROWS.dst[0], [4, 7], [((5,), (4,)), ((6,), (7,))]),
        (ROWS.dst[0], [6, 7], []),
        (rp.Layout(rp.Mesh([[4, 6], [5, 7]], ["tp", "dp"]), ["S(0)", "R"]), [6], [((7,), (6,))]),
        (rp.Layout(SERVE, ["S(0)", "R"]), [6], [((4,), (6,))]),
        (rp.Layout(SERVE, ["R", "R"]), [6], []),
        (REPEATED, [6], [((7,), (6,))]),
        (REPEATED, [5, 4], []),
    ],
)
def test_replicas_that_lost_a_part_are_named(layout, gone, incomplete):
    found = rp.replan(spec_of(tensor(ROWS.src[0], layout)), gone).incomplete
    assert [(each.ranks, each.gone) for each in found] == incomplete
    assert all(each.tensors == ("w",) for each in found)


def test_copies_in_a_replica_keep_it_complete():
    entries = [
        (StoredBuffer(0, (8, 8), (Tile(rp.Box((lo, 0), (hi, 8)), 8 * lo, (8, 1)),)),)
        for lo, hi in ((0, 5), (3, 8), (4, 6))
    ]
    layout = rp.Layout.stored(rp.Mesh([4, 5, 6], ["rank"]), Storage(entries, [0, 1, 2]))
    spec = spec_of(tensor(ROWS.src[0], layout))
    assert not rp.replan(spec, [6]).incomplete
    [found] = rp.replan(spec, [5]).incomplete
    assert found.ranks == (4, 6)


TURNED = rp.Layout(rp.Mesh([[7, 6], [5, 4]], ["dp", "tp"]), ["R", "S(1)"])


@pytest.mark.parametrize("gone", [[4, 5], [6], [4], [1, 5, 6]])
def test_dense_buffers_of_several_layouts_are_never_mixed_up(gone):
    copied = rp.Layout(TRAIN, ["R"])
    found = rp.replan(spec_of(tensor(copied, [ROWS.dst[0], TURNED])), gone)
    [left] = found.spec.tensors
    for rank in {4, 5, 6, 7} - set(gone):
        assert SideTiles(left, "dst").expected(rank) == {"w": [(4, 8), (8, 4)]}


def test_layouts_that_lose_no_rank_keep_their_placements_beside_positions():
    other = rp.Layout(rp.Mesh([4, 5], ["tp"]), ["S(1)"])
    apart = rp.Layout(rp.Mesh([3], ["tp"]), ["R"])
    [left] = rp.replan(spec_of(tensor(ROWS.src[0], [other, ROWS.dst[0]])), [6]).spec.tensors
    assert [layout.placements for layout in left.dst] == [other.placements, ()]
    assert [[own.at for entry in layout.storage.entries for own in entry] for layout in left.dst] == [
        [0, 0],
        [1, 1, 0],
    ]
    [left] = rp.replan(spec_of(tensor(ROWS.src[0], [apart, ROWS.dst[0]])), [6]).spec.tensors
    assert left.dst[0] is apart


def test_layouts_of_different_names_have_no_positions():
    split = rp.TensorSpec(
        "split", (8, 8), "bfloat16", ROWS.src, [ROWS.dst[0], TURNED], dst_buffers=[("one",), ("two",)]
    )
    joint = tensor(ROWS.src[0], [ROWS.dst[0], TURNED])
    for tensors in ((joint, split), (split, joint)):
        left = rp.replan(spec_of(*tensors), [6]).spec
        for each in left.tensors:
            keys = [own.key for own in SideTiles(each, "dst").buffers(4)]
            assert keys == ([("w", 0), ("w", 1)] if each.name == "w" else [("one", 0), ("two", 0)])


def test_replicas_are_known_wherever_their_buffers_are():
    first = rp.Layout(rp.Mesh([4, 9], ["tp"]), ["S(0)"])
    spec = rp.ReshardSpec([tensor(ROWS.src[0], [first, ROWS.dst[0]])], rp.Topology.uniform(10, 5))
    one = find_remainder(spec, frozenset([9]))
    assert [own.at for entry in one.spec.tensors[0].dst[1].storage.entries for own in entry] == [1, 0, 0]
    assert one.spec.tensors[0].dst[1].placements
    [(left, lost)] = [(each.ranks, each.gone) for each in find_remainder(one.spec, {6}).incomplete]
    assert (left, lost) == ((7,), (6,))


def test_buffers_that_only_tensors_used_that_are_left_out_are_not_given_any_more():
    copied = rp.TensorSpec("copied", (8, 8), "bfloat16", rp.Layout(TRAIN, ["R"]), ROWS.dst)
    found = rp.replan(spec_of(ROWS, copied), [1])
    assert found.buffers(0, "src") == found.buffers(4, "dst") == {"copied"}
    assert found.buffers(1, "src") == found.buffers(0, "dst") == frozenset()


@given(cases())
def test_survivors_keep_exactly_the_local_tensors_that_the_new_plan_uses(case):
    spec, gone = case
    found = rp.replan(rp.compile(spec), gone)
    for side in SIDES:
        given_before = buffers(spec, side)
        for rank in set(spec.ranks) - set(gone):
            held = given_before.get(rank, {}) | {"of nobody": []}
            kept = found.keep(rank, side, held)
            assert list(kept) == [name for name in held if name in found.buffers(rank, side)]
            assert all(kept[name] is held[name] for name in kept)
            assert found.keep(rank, side, kept) == kept
    if found.plan is not None:
        sources = {
            rank: found.keep(rank, "src", own)
            for rank, own in buffers(spec, "src").items()
            if rank not in gone
        }
        rp.interpret(found.plan, sources)  # takes them as they are


def test_a_survivor_that_the_new_plan_does_not_need_keeps_nothing():
    copied = rp.TensorSpec("copied", (8, 8), "bfloat16", rp.Layout(TRAIN, ["R"]), ROWS.dst)
    alone = tensor(ROWS.src[0], rp.Layout(rp.Mesh([8], ["x"]), ["R"]))
    spec = rp.ReshardSpec([alone, copied], rp.Topology.uniform(9, 4))
    for start in (spec, rp.compile(spec)):
        found = rp.replan(start, [1])
        assert [each.tensor for each in found.impossible] == ["w"]
        assert 8 not in found.plan.ranks
        assert found.keep(8, "dst", {"w": 1}) == {}
        assert found.keep(np.int64(0), "src", {"w": 1, "copied": 2}) == {"copied": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((1, "src", {"w": 1}), "rank is 1, which is gone; expected a rank that is left"),
        ((8, "src", {"w": 1}), "rank is 8, which is no rank of the plan; expected one of 0,2-7"),
        (("0", "src", {"w": 1}), "rank is '0', which is no rank of the plan; expected one of 0,2-7"),
        ((0, "source", {"w": 1}), "side is 'source'; expected 'src' or 'dst'"),
        ((0, "src", [1]), "tensors is a list; expected a mapping of names"),
        (
            (0, "src", {"v": 1}),
            (
                "tensors of rank 0, src, lack 'w', which the new plan uses; expected all local tensors of the"
                " old plan"
            ),
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(arguments, says):
    copied = rp.TensorSpec("w", (8, 8), "bfloat16", rp.Layout(TRAIN, ["R"]), ROWS.dst)
    found = rp.replan(rp.compile(spec_of(copied)), [1])
    with pytest.raises(InputError) as caught:
        found.keep(*arguments)
    assert str(caught.value) == says


def test_other_options_may_be_given():
    options = rp.Options(strategy="direct", lag=1)
    plan = rp.replan(rp.compile(spec_of(ROWS)), [6, 7], options=options).plan
    assert plan is not None
    assert plan.spec.options == options
    tight = rp.Options(max_network_peers=1)
    with pytest.raises(UnsupportedError, match="max_network_peers"):
        rp.replan(spec_of(ROWS), [6, 7], options=tight)


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ([], "without is empty; expected at least one rank"),
        ([8], "without has 8, which is no rank of the plan; expected some of 0-7"),
        ([1, -1], "without has -1, which is no rank"),
        ([True], "without has True, which is no rank"),
        (["1"], "without has '1', which is no rank"),
        ([3, 1, 3], "without has rank 3 twice; expected distinct ranks"),
        (range(8), "without has all 8 ranks of the plan; expected that some are left"),
    ],
)
def test_ranks_that_cannot_be_left_out_are_refused(gone, says):
    with pytest.raises(InputError) as caught:
        rp.replan(spec_of(ROWS), gone)
    assert str(caught.value).startswith(says)


def test_a_spec_that_was_impossible_before_is_refused():
    half = rp.Layout.stored(rp.Mesh([0, 1], ["rank"]), Storage(REPEATED.storage.entries[:1], [0, 0]))
    with pytest.raises(InputError, match="which no source holds"):
        rp.replan(spec_of(tensor(half, ROWS.dst[0])), [6])
