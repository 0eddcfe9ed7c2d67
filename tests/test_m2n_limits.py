"""What NCCL M2N accepts: every limit from both sides, and every layout of its own test grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_m2n_layouts import GRID, build

import reshard_planner as rp
from benchmarks.m2n import RESHARDS, m2n_cases
from reshard_planner.errors import UnsupportedError
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.routing import m2n_node_aware, m2n_uniform
from reshard_planner.routing.m2n_limits import DTYPES, M2nLimits
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

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


DEALS = {"m2n-uniform": m2n_uniform.deal, "m2n-node-aware": m2n_node_aware.deal}


def limits_of(spec, strategy="m2n-node-aware"):
    """What NCCL M2N accepts of the tensors of a spec."""
    return M2nLimits(Ports.of(spec.topology, spec.ranks), DEALS[strategy])


def why_refused(tensor, strategy="m2n-node-aware", domains=1):
    """Why NCCL M2N would refuse a tensor that is alone, with as many ranks in each domain."""
    return limits_of(rp.ReshardSpec([tensor], rp.Topology.uniform(512, domains)), strategy).why_refused(
        tensor
    )


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


UNEVEN = "its shards are not equal in size and number of copies"


def test_shards_of_other_sizes_are_refused():
    assert refusal(ROWS, COLUMNS, (62, 64)) == f"source: {UNEVEN}"
    assert refusal(ROWS, COLUMNS, (64, 62)) == f"destination: {UNEVEN}"


def test_a_rank_with_nothing_has_a_shard_of_another_size():
    assert refusal(ROWS, COLUMNS, (4, 64)) is None
    assert refusal(ROWS, COLUMNS, (3, 64)) == f"source: {UNEVEN}"


@pytest.mark.parametrize("shape", [(0,), (64, 0), (0, 2, 2, 2)])
@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
def test_a_tensor_without_elements_is_not_refused(shape, dtype):
    """Nothing of it moves, whatever its layouts: NCCL M2N is not asked."""
    assert refusal(on(0, (4,), "R"), on(3, (4,), "S(0)"), shape, dtype) is None


def test_storage_that_is_not_all_of_the_tensor_is_refused():
    def rows(*bounds):
        entries = [
            (StoredBuffer(0, (hi - lo, 64), (Tile(rp.Box((lo, 0), (hi, 64)), 0, (64, 1)),)),)
            for lo, hi in bounds
        ]
        ranks = list(range(len(bounds)))
        return rp.Layout.stored(rp.Mesh(ranks), Storage(entries, tuple(ranks)))

    half = rp.Layout.stored(rp.Mesh([4]), rows((32, 64)).storage)
    assert refusal(rows((0, 32), (32, 64)), half) == "destination: its shards do not make up the tensor"
    for bounds in ([(32, 64)], [(0, 40), (24, 64)]):
        assert refusal(rows(*bounds), half) == "source: its shards do not make up the tensor"


def test_a_rank_of_several_boxes_is_refused():
    strided = on(0, (2, 2), "_S(0, sf=2)", "S(0)")  # each with one box
    assert refusal(strided, COLUMNS) == "source: its shards are not in the order of their ranks"
    apart = rp.Layout.stored(rp.Mesh([0, 1]), striped(64))
    assert refusal(apart, COLUMNS) == "source: a rank holds several boxes"


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
    after, shape = on(128, (2,), "S(1)"), (16 * 17, 4)
    assert refusal(on(0, (16,), "S(0)"), after, shape) is None
    told = refusal(on(0, (17,), "S(0)"), after, shape)
    assert told == "a destination shard is made of more than 16 source shards"


def test_a_source_shard_has_at_most_sixty_four_targets():
    shape = (2, 64 * 65)
    assert refusal(on(0, (2,), "S(0)"), on(2, (64,), "S(1)"), shape) is None
    told = refusal(on(0, (2,), "S(0)"), on(2, (65,), "S(1)"), shape)
    assert told == "a source shard is cut in more than 64 destination shards"


def over_nics(src, dst, shape, strategy, domains=72):
    """Whether the strategy moves something from NIC to NIC."""
    tensor = rp.TensorSpec("w", shape, "uint8", src, dst)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(144, domains)), strategy)
    return bool((plan.routes.medium == Medium.NETWORK).any())


@pytest.mark.parametrize("strategy", DEALS)
def test_sixty_four_ranks_of_one_domain_stay_on_nvlink_and_one_more_does_not(strategy):
    assert not over_nics(on(0, (1,), "R"), on(1, (63,), "R"), (4,), strategy)
    assert over_nics(on(0, (1,), "R"), on(1, (64,), "R"), (4,), strategy)


@pytest.mark.parametrize("strategy", DEALS)
def test_thirty_two_source_shards_in_one_domain_stay_on_nvlink_and_one_more_does_not(strategy):
    """Few of them meet one destination shard, so that neither is refused."""
    assert not over_nics(on(0, (32,), "S(0)"), on(32, (8,), "S(0)"), (32,), strategy)
    assert over_nics(on(0, (33,), "S(0)"), on(33, (11,), "S(0)"), (33,), strategy)


@pytest.mark.parametrize("strategy", DEALS)
def test_in_one_domain_a_destination_shard_has_at_most_thirty_two_sources(strategy):
    shape, after = (32 * 33, 8), on(33, (8,), "S(1)")
    assert not over_nics(on(1, (32,), "S(0)"), after, shape, strategy)
    more = rp.TensorSpec("w", shape, "uint8", on(0, (33,), "S(0)"), after)
    assert why_refused(more, strategy, 72) == "a destination shard is made of more than 16 source shards"


@pytest.mark.parametrize(
    ("src", "dst", "domains"),
    [
        (on(0, (32,), "S(0)"), on(32, (8,), "S(1)"), 36),  # two domains
        (on(8, (32,), "S(0)"), on(0, (8,), "S(1)"), 72),  # the destination comes first
        (on(0, (32,), "S(0)"), on(32, (33,), "R"), 72),  # 65 ranks
    ],
)
def test_elsewhere_a_destination_shard_has_no_more_than_sixteen_sources_either(src, dst, domains):
    for strategy in DEALS:
        told = why_refused(rp.TensorSpec("w", SHAPE, "uint8", src, dst), strategy, domains)
        assert told == "a destination shard is made of more than 16 source shards"


def test_copies_in_a_domain_are_counted_for_each_source_replica_that_serves_them():
    """Of 130 copies of the second shard in one domain each of two source replicas serves 65."""
    copies = "more than 129 copies of a destination shard are in one domain and have one sender"
    after = on(4, (2, 130), "S(0)", "R")
    domains = [[*range(4)], [*range(4, 69)], [*range(69, 134)], [*range(134, 264)]]
    topology = rp.Topology.from_domains(domains)
    for replicas, told in ((2, None), (1, copies)):
        before = on(0, (replicas, 2), "R", "S(0)")
        spec = rp.ReshardSpec([rp.TensorSpec("w", (4, 8), "uint8", before, after)], topology)
        for strategy in DEALS:
            assert limits_of(spec, strategy).why_refused(spec.tensors[0]) == told
            if told:
                with pytest.raises(UnsupportedError, match=f"'w': {told}"):
                    rp.compile(spec, strategy)
            else:
                rp.compile(spec, strategy)


@pytest.mark.parametrize("strategy", DEALS)
def test_a_copy_within_the_only_rank_is_accepted_and_not_where_there_are_more(strategy):
    tensor = rp.TensorSpec("w", (8, 8), "bfloat16", on(0, (1,), "R"), on(0, (1,), "R"))
    plan = rp.compile(rp.ReshardSpec([tensor]), strategy)
    rp.verify(plan)
    assert plan.certificate.payload.local_nbytes == tensor.nbytes
    other = rp.TensorSpec("v", (8, 8), "bfloat16", on(0, (1,), "R"), on(1, (1,), "R"))
    with pytest.raises(UnsupportedError, match="'w': source and destination have ranks in common"):
        rp.compile(rp.ReshardSpec([other, tensor]), strategy)


@pytest.mark.parametrize("strategy", DEALS)
def test_a_tensor_without_elements_has_no_transfers(strategy):
    sides = on(0, (4,), "S(0)"), on(4, (4,), "S(1)")
    tensors = [rp.TensorSpec(name, shape, "uint8", *sides) for name, shape in (("a", SHAPE), ("b", (0, 64)))]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)), strategy)
    rp.verify(plan)
    assert set(plan.ops().tensor.tolist()) == {0}


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
