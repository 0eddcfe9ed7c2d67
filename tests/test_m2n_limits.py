"""What NCCL M2N accepts: every limit from both sides, and every layout of its own test grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_m2n_layouts import GRID, build

import reshard_planner as rp
from benchmarks.m2n import RESHARDS, m2n_cases
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.routing.m2n_limits import DTYPES, MAX_SOURCES, MAX_TARGETS, why_refused

SHAPE = (64, 64)


def on(first, sizes, *placements):
    """A layout of contiguous ranks."""
    count = 1
    for size in sizes:
        count *= size
    return rp.Layout(rp.Mesh(list(range(first, first + count)), None, sizes), list(placements))


def refusal(src, dst, shape=SHAPE, dtype="bfloat16", dst_dtype=None, buffers=None):
    many = [[side] if isinstance(side, rp.Layout) else list(side) for side in (src, dst)]
    tensor = rp.TensorSpec(
        "w", shape, dtype, *many, dst_dtype=dst_dtype, cast=True, src_buffers=buffers and [buffers]
    )
    return why_refused(tensor)


ROWS, COLUMNS = on(0, (4,), "S(0)"), on(4, (4,), "S(1)")
"""What is accepted, of which every refusal below is a step away."""


def test_rows_to_columns_are_accepted():
    assert refusal(ROWS, COLUMNS) is None


@pytest.mark.parametrize("shape", [(64,), (64, 4), (64, 4, 4)])
def test_one_to_three_dimensions_are_accepted(shape):
    assert refusal(ROWS, on(4, (8,), "S(0)"), shape) is None


@pytest.mark.parametrize("shape", [(), (64, 2, 2, 2)])
def test_other_numbers_of_dimensions_are_refused(shape):
    told = refusal(on(0, (4,), "R"), on(4, (4,), "R"), shape)
    assert told == "it has fewer than 1 or more than 3 dimensions"


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_dtypes_of_nccl_are_accepted(dtype):
    assert refusal(ROWS, COLUMNS, dtype=dtype) is None


@pytest.mark.parametrize("dtype", ["bool", "int16", "int4", "complex64", "float8_e8m0fnu"])
def test_other_dtypes_are_refused(dtype):
    assert refusal(ROWS, COLUMNS, dtype=dtype) == f"its dtype is {dtype}"


def test_casts_are_refused():
    assert refusal(ROWS, COLUMNS, dst_dtype="bfloat16") is None
    told = refusal(ROWS, COLUMNS, dtype="float32", dst_dtype="bfloat16")
    assert told == "it is converted from float32 to bfloat16"


def test_a_side_of_two_layouts_is_refused():
    more = on(8, (4,), "S(0)")
    assert refusal(ROWS, [COLUMNS, more]) == "it has several destination layouts"
    assert refusal([ROWS, more], COLUMNS) == "it has several source layouts"


def test_ranks_with_a_hole_are_refused():
    holed = rp.Layout(rp.Mesh([0, 1, 2, 8], None, (4,)), ["S(0)"])
    assert refusal(holed, COLUMNS) == "source: its ranks are no contiguous interval"


def test_ranks_may_be_in_any_order_as_long_as_shards_are_in_that_of_ranks():
    def over(ranks, *placements):
        return rp.Layout(rp.Mesh(ranks), list(placements))

    assert refusal(over([3, 2, 1, 0], "R"), COLUMNS) is None
    assert refusal(over([[2, 3], [0, 1]], "R", "S(0)"), COLUMNS) is None
    unordered = "source: its shards are not in the order of their ranks"
    assert refusal(over([3, 2, 1, 0], "S(0)"), COLUMNS) == unordered
    assert refusal(over([[1, 0], [3, 2]], "R", "S(0)"), COLUMNS) == unordered


def test_sides_that_share_ranks_are_refused_and_neighbours_accepted():
    assert refusal(ROWS, on(4, (4,), "S(1)")) is None
    assert refusal(ROWS, on(3, (4,), "S(1)")) == "source and destination have ranks in common"


@pytest.mark.parametrize(
    ("sizes", "placements"),
    [((4,), ["R"]), ((2, 2), ["R", "S(0)"]), ((2, 2), ["S(0)", "R"]), ((2, 2), ["S(0)", "S(0)"])],
)
def test_a_mesh_that_cuts_one_dimension_is_accepted(sizes, placements):
    assert refusal(on(0, sizes, *placements), COLUMNS) is None
    assert refusal(ROWS, on(4, sizes, *placements)) is None


def test_a_mesh_that_cuts_two_dimensions_is_refused():
    told = refusal(on(0, (2, 2), "S(0)", "S(1)"), COLUMNS)
    assert told == "source: it is cut in more than one dimension"


def test_a_third_axis_is_accepted_only_where_two_say_the_same():
    assert refusal(on(0, (2, 2, 2), "R", "R", "S(0)"), on(8, (4,), "S(1)")) is None
    told = refusal(on(0, (2, 2, 2), "R", "S(0)", "R"), on(8, (4,), "S(1)"))
    assert told == "source: its shards do not lie on a mesh of two axes"


def test_shards_of_other_sizes_are_refused():
    uneven = "its shards are not equal in size and number of copies"
    assert refusal(ROWS, COLUMNS, (62, 64)) == f"source: {uneven}"
    assert refusal(ROWS, COLUMNS, (64, 62)) == f"destination: {uneven}"


def test_a_rank_with_nothing_is_refused():
    assert refusal(ROWS, COLUMNS, (4, 64)) is None
    assert refusal(ROWS, COLUMNS, (3, 64)) == "source: a rank holds several boxes, or none"


def test_a_rank_of_several_boxes_is_refused():
    strided = on(0, (2, 2), "_S(0, sf=2)", "S(0)")  # each with one box
    assert refusal(strided, COLUMNS) == "source: its shards are not in the order of their ranks"
    apart = rp.Layout.stored(rp.Mesh([0, 1]), striped(64))
    assert refusal(apart, COLUMNS) == "source: a rank holds several boxes, or none"


def striped(rows):
    """Every second row to one of two ranks."""
    halves = []
    for rank in range(2):
        tiles = tuple(
            Tile(rp.Box((row, 0), (row + 1, 64)), 64 * (row // 2), (64, 1)) for row in range(rank, rows, 2)
        )
        halves.append((StoredBuffer(0, (rows // 2, 64), tiles),))
    return Storage(halves, (0, 1))


def stored(extents, offset=0, strides=None, *, buffers=1):
    """Each of two ranks stores half of the rows, in one buffer of these extents or in several."""
    strides, step = strides or (extents[1], 1), 32 // buffers

    def buffer(number, lo):
        box = rp.Box((lo, 0), (lo + step, 64))
        return StoredBuffer(number, extents, (Tile(box, offset, strides),))

    entries = [tuple(buffer(n, 32 * rank + n * step) for n in range(buffers)) for rank in range(2)]
    return rp.Layout.stored(rp.Mesh([0, 1]), Storage(entries, (0, 1)))


def test_storage_that_is_dense_and_alone_is_accepted():
    assert refusal(stored((32, 64)), COLUMNS) is None


@pytest.mark.parametrize(("extents", "offset"), [((33, 64), 0), ((64, 64), 2048)])
def test_dense_parts_of_fused_and_padded_buffers_are_accepted(extents, offset):
    assert refusal(stored(extents, offset), COLUMNS) is None


def test_parts_of_buffers_with_gaps_are_refused():
    told = refusal(stored((32, 96), 0, (96, 1)), COLUMNS)
    assert told == "source: shards are not dense in their buffers"


def test_a_shard_in_several_buffers_is_refused():
    told = refusal(stored((16, 64), buffers=2), COLUMNS, buffers=("v", "w"))
    assert told == "source: a shard lies in several places"


def test_transposed_storage_is_refused():
    told = refusal(stored((64, 32), 0, (1, 32)), COLUMNS)
    assert told == "source: shards are not dense in their buffers"


def test_a_destination_shard_has_at_most_sixteen_sources():
    after = on(128, (2,), "S(1)")
    assert refusal(on(0, (MAX_SOURCES,), "S(0)"), after) is None
    told = refusal(on(0, (2 * MAX_SOURCES,), "S(0)"), after)
    assert told == "a destination shard is made of more than 16 source shards"


def test_a_source_shard_has_at_most_sixty_four_targets():
    shape = (2, 2 * MAX_TARGETS)
    assert refusal(on(0, (2,), "S(0)"), on(2, (MAX_TARGETS,), "S(1)"), shape) is None
    told = refusal(on(0, (2,), "S(0)"), on(2, (2 * MAX_TARGETS,), "S(1)"), shape)
    assert told == "a source shard is cut in more than 64 destination shards"


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1), st.integers(0, 1), st.booleans())
def test_copies_and_shards_in_either_order_are_accepted_wherever_sizes_divide(
    shards, copies, dim, other, turn
):
    sizes, placements = (copies, shards), ["R", f"S({dim})"]
    if turn:
        sizes, placements = sizes[::-1], placements[::-1]
    shape = (60, 60)
    assert refusal(on(0, sizes, *placements), on(25, (4,), f"S({other})"), shape) is None
    assert refusal(on(25, (4,), f"S({other})"), on(0, sizes, *placements), shape) is None


@pytest.mark.parametrize("entry", GRID, ids=lambda entry: entry["cases"][0].replace("/", "-"))
def test_the_grid_of_m2n_is_accepted_and_refused_as_m2n_does(entry):
    [tensor] = build(entry).tensors
    assert (why_refused(tensor) is None) == entry["m2n_runs"]


@pytest.mark.parametrize("name", RESHARDS)
def test_layouts_that_m2n_moves_badly_are_accepted(name):
    [case] = [case for case in m2n_cases() if case.name == f"m2n/{name}"]
    [tensor] = case.build().tensors
    assert why_refused(tensor) is None
