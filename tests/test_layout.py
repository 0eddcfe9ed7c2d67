"""Layouts: tiles partition or replicate the tensor exactly, and lie in the local buffer without overlap."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import holder_masks, local_indices, members, torch_chunk
from strategies import encode_order, layouts, meshes, shapes

import reshard_planner as rp
from reshard_planner.errors import LayoutError, PlacementError, SpecError
from reshard_planner.layout import parse_placement


@st.composite
def layouts_with_shapes(draw: st.DrawFn) -> tuple[rp.Layout, tuple[int, ...]]:
    shape = draw(shapes())
    return draw(layouts(shape)), shape


GRID = rp.Mesh([[0, 1], [2, 3], [4, 5]])


@given(layouts_with_shapes())
@example((rp.Layout(GRID, ["_S(0, sf=2)", "S(0)"]), (7, 1)))
@example((rp.Layout(GRID, ["S(0)", "S(0)"]), (7,)))
@example((rp.Layout(rp.Mesh([0, 1]), ["_S(0, sf=2)"]), (5,)))
@example((rp.Layout(GRID, ["R", "R"]), ()))
@example((rp.Layout(GRID, ["S(0)", "S(1)"]), (12, 0)))
def test_ranks_store_the_indices_that_torchs_rules_give(pair):
    layout, shape = pair
    partition = layout.partition(shape)
    wanted = local_indices(layout, shape)
    assert set(partition.rows) == set(wanted)
    for rank, per_dim in wanted.items():
        got = [[i for lo, hi in dim for i in range(lo, hi)] for dim in partition.intervals(rank)]
        assert got == [indices.tolist() for indices in per_dim]
        assert partition.local_shape(rank) == tuple(map(len, per_dim))


@given(layouts_with_shapes())
@example((rp.Layout(GRID, ["_S(0, sf=2)", "S(0)"]), (7, 1)))
@example((rp.Layout(rp.Mesh([0, 1]), ["_S(0, sf=2)"]), (5,)))
def test_tiles_put_every_element_on_exactly_the_ranks_of_the_oracle(pair):
    layout, shape = pair
    partition = layout.partition(shape)
    stored = np.zeros(shape, dtype=np.uint64)
    for rank in partition.ranks.tolist():
        once = np.zeros(shape, dtype=np.int64)
        for tile in partition.tiles(rank):
            once[tile.box.slices()] += 1
        assert once.max(initial=0) <= 1, f"tiles of rank {rank} overlap"
        stored[once == 1] |= np.uint64(1) << np.uint64(rank)
    assert np.array_equal(stored, holder_masks([layout], shape))


@given(layouts_with_shapes())
def test_every_element_is_stored_equally_often(pair):
    layout, shape = pair
    masks = holder_masks([layout], shape).reshape(-1).tolist()
    replicas = prod(
        size
        for size, placement in zip(layout.mesh.shape, layout.placements, strict=True)
        if isinstance(placement, rp.Replicate)
    )
    assert {len(members(mask)) for mask in masks} <= {replicas}


@given(layouts_with_shapes())
def test_tiles_address_the_local_buffer_bijectively_and_in_storage_order(pair):
    layout, shape = pair
    partition = layout.partition(shape)
    for rank, per_dim in local_indices(layout, shape).items():
        stored = list(product(*(indices.tolist() for indices in per_dim)))
        address = {}
        for tile in partition.tiles(rank):
            for element in product(*(range(l, h) for l, h in zip(tile.box.lo, tile.box.hi, strict=True))):
                steps = zip(element, tile.box.lo, tile.strides, strict=True)
                address[element] = tile.offset + sum((at - lo) * stride for at, lo, stride in steps)
        assert address == {element: position for position, element in enumerate(stored)}


@given(layouts_with_shapes())
def test_negative_dims_count_from_the_back(pair):
    layout, shape = pair
    normal = layout.normalized(len(shape))
    assert all(getattr(placement, "dim", 0) >= 0 for placement in normal.placements)
    assert normal == normal.normalized(len(shape))
    for rank in layout.mesh.ranks:
        assert normal.partition(shape).intervals(rank) == layout.partition(shape).intervals(rank)


@given(st.data())
def test_encoded_orders_cut_in_that_order(data):
    mesh = data.draw(meshes())
    order = data.draw(st.permutations(range(mesh.ndim)))
    size = data.draw(st.integers(0, 40))
    encoded = encode_order(mesh, 0, order)
    layout = rp.Layout(mesh, [encoded[axis] for axis in range(mesh.ndim)])
    for coordinate in np.ndindex(*mesh.shape):
        indices = np.arange(size)
        for axis in order:
            indices = torch_chunk(indices, mesh.shape[axis])[coordinate[axis]]
        rank = int(mesh.array()[coordinate])
        got = layout.partition((size,)).intervals(rank)[0]
        assert [i for lo, hi in got for i in range(lo, hi)] == indices.tolist()


def test_more_than_32_bits_of_elements_need_no_memory():
    layout = rp.Layout(rp.Mesh(list(range(8))), ["S(0)"])
    tile = layout.partition((2**40, 2**20)).tiles(7)[0]
    assert (tile.box.lo[0], tile.box.volume, tile.strides) == (7 * 2**37, 2**57, (2**20, 1))


@given(meshes(), st.data())
def test_placements_print_in_a_form_that_parses_back(mesh, data):
    layout = data.draw(layouts((4, 4, 4), mesh.ranks))
    for placement in layout.placements:
        assert parse_placement(str(placement)) == placement
    assert rp.Layout(layout.mesh, [str(p) for p in layout.placements]) == layout


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("S(0)", rp.Shard(0)),
        ("S(-1)", rp.Shard(-1)),
        (" Shard( dim = 1 ) ", rp.Shard(1)),
        ("Shard(2)", rp.Shard(2)),
        ("R", rp.Replicate()),
        ("Replicate()", rp.Replicate()),
        ("Replicate", rp.Replicate()),
        ("_S(0, sf=2)", rp.StridedShard(0, 2)),
        ("_S(0,2)", rp.StridedShard(0, 2)),
        ("_StridedShard(dim=1, sf=4)", rp.StridedShard(1, 4)),
        ("_StridedShard(dim=1, split_factor=4)", rp.StridedShard(1, 4)),
        ("StridedShard(1, 4)", rp.StridedShard(1, 4)),
    ],
)
def test_every_spelling_of_a_placement_parses(text, placement):
    assert parse_placement(text) == placement


@pytest.mark.parametrize("text", ["Partial()", "P", "Partial(sum)", "P(avg)", "_MaskPartial(offset=0)"])
def test_partial_placements_are_refused_by_name(text):
    with pytest.raises(PlacementError, match="partial sums") as caught:
        parse_placement(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["", "S", "S()", "S(x)", "S(0", "_S(0)", "_S(0, sf=-1)", "X", "S(0) S(1)"])
def test_unknown_placements_are_refused_with_the_forms_that_are_known(text):
    with pytest.raises(PlacementError, match=r"expected S\(d\), R or _S\(d, sf=k\)") as caught:
        parse_placement(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rp.Mesh([]), "no ranks"),
        (lambda: rp.Mesh([[]]), "no ranks"),
        (lambda: rp.Mesh([0, 1, 1, 3]), "duplicate rank 1"),
        (lambda: rp.Mesh([0, -1]), "rank -1"),
        (lambda: rp.Mesh([2**24]), "rank 16777216"),
        (lambda: rp.Mesh([10**30]), "out of range"),
        (lambda: rp.Mesh([0, True]), "True is not an integer"),
        (lambda: rp.Mesh([0, 1.5]), "1.5 is not an integer"),
        (lambda: rp.Mesh(["0"]), "'0' is not an integer"),
        (lambda: rp.Mesh([[0, 1], [2]]), "ragged"),
        (lambda: rp.Mesh([[0, 1], 2]), "2 are not a list"),
        (lambda: rp.Mesh([0, 1, 2], None, [2, 2]), "holds 4 ranks, but 3"),
        (lambda: rp.Mesh([0, 1], None, [-1, -2]), "-1"),
        (lambda: rp.Mesh([0, 1], ["a", "b"]), "1 axis names"),
        (lambda: rp.Mesh([[0], [1]], ["a", "a"]), "not distinct"),
        (lambda: rp.Layout(rp.Mesh([[0, 1], [2, 3]]), ["S(0)"]), "1 placement given for a mesh of 2 axes"),
        (lambda: rp.Layout(rp.Mesh([0]), ["R", "R"]), "2 placements given for a mesh of 1 axes"),
        (lambda: rp.Layout(rp.Mesh([0]), [0]), "placement 0 is not supported"),
        (lambda: rp.Layout(rp.Mesh([0]), ["S(2)"]).partition((4, 5)), "S(2) shards dim 2 of a 2-d tensor"),
        (lambda: rp.Layout(rp.Mesh([0]), ["S(-3)"]).partition((4, 5)), "dim -3 of a 2-d tensor"),
        (lambda: rp.Layout(rp.Mesh([0]), ["S(0)"]).partition(()), "dim 0 of a 0-d tensor"),
        (lambda: rp.StridedShard(0, 0), "split factor 0"),
    ],
)
def test_impossible_meshes_and_layouts_are_refused(make, said):
    with pytest.raises(LayoutError) as caught:
        make()
    assert said in str(caught.value)


def test_a_mesh_shows_and_orders_its_ranks():
    mesh = rp.Mesh(np.array([[3, 1], [0, 2]]), ("dp", "tp"))
    assert (mesh.ranks, mesh.shape, mesh.axes) == ((3, 1, 0, 2), (2, 2), ("dp", "tp"))
    assert mesh == rp.Mesh([3, 1, 0, 2], ("dp", "tp"), (2, 2))
    assert str(rp.Layout(mesh, ["R", "S(0)"])) == "(dp=2:R, tp=2:S(0))"


def test_partitions_are_read_only():
    partition = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]).partition((4,))
    with pytest.raises(ValueError, match="read-only"):
        partition.choice[0, 0] = 7
    with pytest.raises(KeyError):
        partition.intervals(2)


@pytest.mark.parametrize(
    ("dtype", "shape", "placements", "said"),
    [
        ("uint4", (4, 3), ["R"], "element 3"),
        ("uint4", (6,), ["S(0)"], "element 3"),
        ("uint1", (8, 12), ["R"], "element 12"),
        ("int3", (16,), ["_S(0, sf=2)"], "element 4"),
        ("uint2", (), ["R"], "within a byte"),
    ],
)
def test_sub_byte_dtypes_may_be_cut_at_whole_bytes_only(dtype, shape, placements, said):
    layout = rp.Layout(rp.Mesh([0, 1]), placements)
    with pytest.raises(rp.InputError) as caught:
        rp.TensorSpec("w", shape, dtype, layout, layout)
    assert said in str(caught.value)
    assert dtype in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((2, -1), "int8", "size -1"),
        ((2.0,), "int8", "size 2.0"),
        ((True,), "int8", "size True"),
        ((2**62, 4), "int8", "larger than"),
        ((0, 2**70), "int8", "larger than"),
        ((2,), "float", None),
        ((2,), "torch.half", None),
        ((2,), "float17", "'float17' is not a torch dtype"),
    ],
)
def test_shapes_and_dtypes_are_checked(shape, dtype, said):
    layout = rp.Layout(rp.Mesh([0]), ["R"])
    if said is None:
        assert rp.TensorSpec("w", shape, dtype, layout, layout).dtype in ("float32", "float16")
        return
    with pytest.raises(SpecError) as caught:
        rp.TensorSpec("w", shape, dtype, layout, layout)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rp.Shard(1.0), "1.0 is not an integer"),
        (lambda: rp.Shard(True), "True is not an integer"),
        (lambda: rp.Shard("0"), "'0' is not an integer"),
        (lambda: rp.StridedShard(0, 2.5), "2.5 is not an integer"),
        (lambda: rp.StridedShard(None, 2), "None is not an integer"),
        (lambda: rp.Mesh([0, 1], shape=(2.0,)), "2.0 is not an integer"),
        (lambda: rp.Mesh([0.0, 1.0]), "0.0 is not an integer"),
        (lambda: rp.Mesh([0, 1], [1]), "axis name 1 is not a string"),
    ],
)
def test_numbers_of_layouts_are_integers(make, said):
    with pytest.raises(rp.InputError) as caught:
        make()
    assert said in str(caught.value)
