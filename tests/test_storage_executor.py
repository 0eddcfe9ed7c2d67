"""The executor reads and writes fused buffers directly: threads on the unkind wire, and real processes."""

from __future__ import annotations

from math import prod

import _rank_calls as calls
import numpy as np
import pytest
import torch
from _ranks import Ranks
from element_oracle import assert_equal, buffers, parts
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_executors.binding import LocalMemory, whole_view
from reshard_executors.check import first_difference
from reshard_executors.ready import Staging
from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import empty_buffers, filled_buffers
from reshard_executors.worker import as_tensors
from storage_strategies import FLOATS, stored, stored_specs
from strategies import STRATEGIES, specs
from test_pipeline import CPU, bound_rank, run_in_threads

import reshard_planner as rp
from reshard_planner.box import Box
from reshard_planner.errors import InputError, LocalShapeError
from reshard_planner.ir.views import Place, View
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.transfer import Medium

WORLD = 3
POISON = 0x5A
"""What every byte of destinations is before a run."""


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def assert_arrives(plan, tensors=None):
    kept, spent = run_in_threads(plan, buffers(plan.spec, "src"), tensors)
    assert_equal(plan.spec, kept, buffers(plan.spec, "dst", padding=POISON, only=tensors))
    return spent


@given(stored_specs(max_ranks=8), st.sampled_from(STRATEGIES))
def test_fused_buffers_are_filled_in_threads_and_padding_stays(spec, strategy):
    plan = rp.compile(spec, strategy)
    spent = assert_arrives(plan)
    payload = plan.certificate.payload
    assert sum(each.sent_nbytes[Medium.NETWORK] for each in spent.values()) == payload.network_nbytes
    assert sum(each.sent_nbytes[Medium.NVLINK] for each in spent.values()) == payload.nvlink_nbytes


@given(stored_specs(max_ranks=8, dtypes=FLOATS, casts=True), st.sampled_from(STRATEGIES))
def test_fused_buffers_are_filled_with_converted_elements(spec, strategy):
    assert_arrives(rp.compile(spec, strategy))


@settings(max_examples=40)
@given(specs(max_ranks=6), st.data())
def test_some_tensors_of_fused_buffers_alone_leave_the_places_of_others(spec, data):
    other = data.draw(stored(spec))
    chosen = tuple(sorted(data.draw(st.sets(st.integers(0, len(other.tensors) - 1)))))
    assert_arrives(rp.compile(other), chosen)


@settings(max_examples=40)
@given(stored_specs(max_ranks=6))
def test_contents_of_runs_are_made_and_compared_in_storage(spec):
    plan = rp.compile(spec)
    values = SyntheticValues(spec)
    held = {rank: filled_buffers(plan, rank, "src", values) for rank in plan.ranks}
    kept, _ = run_in_threads(plan, held)
    for rank in plan.ranks:
        assert first_difference(plan, rank, kept[rank], values) is None
    filled = [part for part in parts(spec, "dst") if part.places.size]
    for part in filled[:3]:
        array = kept[part.rank][part.key[0]][part.key[1]]
        array.reshape(-1).view(np.uint8)[:] ^= 0xFF
        assert first_difference(plan, part.rank, kept[part.rank], values) is not None
        array.reshape(-1).view(np.uint8)[:] ^= 0xFF


# --- real processes ---


def run_everywhere(world, plan):
    held = buffers(plan.spec, "src")
    ranks = [*plan.ranks, *range(100, 100 + WORLD - len(plan.ranks))]
    answers = world.call(calls.build_and_run, [(plan, ranks, held.get(rank, {})) for rank in ranks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return {rank: kept for rank, (kept, _) in zip(ranks, answers, strict=True)}


@settings(max_examples=15)
@given(stored_specs(max_ranks=WORLD))
def test_processes_fill_fused_buffers_and_leave_padding(world, spec):
    plan = rp.compile(spec)
    assert_equal(spec, run_everywhere(world, plan), buffers(spec, "dst", padding=POISON))


@settings(max_examples=15)
@given(stored_specs(max_ranks=WORLD, dtypes=FLOATS, casts=True))
def test_processes_fill_fused_buffers_with_converted_elements(world, spec):
    plan = rp.compile(spec)
    assert_equal(spec, run_everywhere(world, plan), buffers(spec, "dst", padding=POISON))


def stages():
    """Layers of two pipeline stages, whose buffers have one name but other shapes and dtypes."""
    tensors = []
    for stage, (dtype, rows) in enumerate((("bfloat16", 6), ("float64", 4))):
        mesh = rp.Mesh([stage])
        half = rows // 2
        for part in range(2):
            box = Box((0, 0), (half, 4))
            storage = Storage.of([(StoredBuffer(0, (rows, 4), (Tile(box, part * half * 4, (4, 1)),)),)])
            tensors.append(
                rp.TensorSpec(
                    f"layer{stage}.{part}",
                    (half, 4),
                    dtype,
                    rp.Layout.stored(mesh, storage),
                    rp.Layout(rp.Mesh([2, stage]), ["S(0)"]),
                    src_buffers=[("layers.0.weight",)],
                )
            )
    return rp.ReshardSpec(tensors)


def test_one_name_is_another_buffer_on_every_stage(world):
    spec = stages()
    plan = rp.compile(spec)
    assert_equal(spec, rp.interpret(plan, buffers(spec, "src")).destinations, buffers(spec, "dst"))
    assert_equal(spec, run_everywhere(world, plan), buffers(spec, "dst"))
    one, two = (as_tensors(plan, "src", empty_buffers(plan, rank, "src"), rank) for rank in (0, 1))
    assert one["layers.0.weight"][0].dtype == torch.bfloat16
    assert two["layers.0.weight"][0].dtype == torch.float64


# --- strided and shared memory ---


def bound(plan, rank, held, kept):
    return bound_rank(plan, rank, held, kept, Staging(CPU))


def one_rank(tiles, shape, *, dst=None, dst_shape=None):
    """A tensor of (4, 6) elements on one rank, from these tiles to its own dense buffer or to others."""
    mesh = rp.Mesh([0])
    src = rp.Layout.stored(mesh, Storage.of([(StoredBuffer(0, shape, tiles),)]))
    to = rp.Layout(mesh, ["R"])
    if dst is not None:
        to = rp.Layout.stored(mesh, Storage.of([(StoredBuffer(0, dst_shape, dst),)]))
    return rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (4, 6), "int32", src, to)]))


WHOLE = Box((0, 0), (4, 6))
LINEAR = {
    "columns": ((Tile(WHOLE, 0, (1, 4)),), (6, 4)),
    "a part of wider rows": ((Tile(WHOLE, 1, (8, 1)),), (4, 8)),
    "a part of wider columns": ((Tile(WHOLE, 5, (1, 5)),), (7, 5)),
    "flat": ((Tile(WHOLE, 3, (6, 1)),), (30,)),
    "every second row": ((Tile(WHOLE, 6, (12, 1)),), (8, 6)),
    "one row of a matrix each": (
        tuple(Tile(Box((row, 0), (row + 1, 6)), 8 * (3 - row) + 1, (99, 1)) for row in range(4)),
        (4, 8),
    ),
}
BENT = {
    "rows of three dimensions": ((Tile(WHOLE, 0, (6, 1)),), (2, 2, 6)),
    "rows over the ends of rows": ((Tile(WHOLE, 0, (6, 1)),), (5, 5)),
    "columns over the ends of rows": ((Tile(WHOLE, 0, (1, 4)),), (3, 8)),
}


def gapped(array, how):
    """A tensor of the same values with gaps between elements of every dimension, or all but the first."""
    shape = array.shape
    steps = [2] * len(shape) if how == "everywhere" else [1] * (len(shape) - 1) + [2]
    room = torch.full([n * step for n, step in zip(shape, steps, strict=True)], 7, dtype=torch.int32)
    part = room[tuple(slice(None, None, step) for step in steps)]
    part.copy_(torch.from_numpy(array.copy()))
    return part


@pytest.mark.parametrize("how", ["everywhere", "in the last dimension"])
@pytest.mark.parametrize("name", LINEAR)
def test_storage_in_tensors_with_gaps_is_read_and_written_in_its_own_steps(name, how):
    tiles, shape = LINEAR[name]
    plan = one_rank(tiles, shape, dst=tiles, dst_shape=shape)
    given_array = buffers(plan.spec, "src")[0]["w"][0].view(np.int32)
    wanted = buffers(plan.spec, "dst", padding=0)[0]["w"][0].view(np.int32)
    held, kept = gapped(given_array, how), gapped(np.zeros(shape, dtype=np.int32), how)
    for exchange in bound(plan, 0, {"w": [held]}, {"w": [kept]}):
        exchange.pack()
        exchange.unpack()
    assert np.array_equal(kept.numpy(), wanted)
    base = kept._base if kept._base is not None else kept  # noqa: SLF001 - the room around it
    between = np.ones(base.shape, dtype=bool)
    between[tuple(slice(None, None, 2 if n != m else 1) for n, m in zip(base.shape, shape, strict=True))] = (
        False
    )
    assert (base.numpy()[between] == 7).all()


@pytest.mark.parametrize("name", BENT)
def test_storage_that_goes_over_the_ends_of_rows_needs_a_contiguous_tensor(name):
    tiles, shape = BENT[name]
    plan = one_rank(tiles, shape)
    dense = {"w": [torch.zeros(shape, dtype=torch.int32)]}
    kept = {"w": [torch.zeros((4, 6), dtype=torch.int32)]}
    bound(plan, 0, dense, kept)
    with pytest.raises(LocalShapeError, match=r"'w': it has strides .* expected a contiguous tensor"):
        bound(plan, 0, {"w": [gapped(np.zeros(shape, dtype=np.int32), "everywhere")]}, kept)


@st.composite
def parts_of_buffers(draw):
    """A buffer, in memory with gaps or without, and a part of it by offset, shape and strides."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    steps = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    room = torch.zeros([n * step for n, step in zip(shape, steps, strict=True)], dtype=torch.int16)
    local = room[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        local = local.permute(*draw(st.permutations(range(len(shape)))))
    dense = [prod(local.shape[dim + 1 :]) for dim in range(local.ndim)]
    if draw(st.booleans()):
        ends = [sorted(draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))) for n in local.shape]
        offset = sum(lo * stride for (lo, _), stride in zip(ends, dense, strict=True))
        order = draw(st.permutations(range(local.ndim)))
        extents, strides = [ends[dim][1] - ends[dim][0] + 1 for dim in order], [dense[dim] for dim in order]
        return local, View(Place.SOURCE, 0, offset, tuple(extents), tuple(strides)), True
    count = local.numel()
    offset = draw(st.integers(0, count - 1))
    extents, strides, left = [], [], count - 1 - offset
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(1, max(1, left)) | st.sampled_from([1, *dense]))
        extent = draw(st.integers(1, left // stride + 1))
        left -= (extent - 1) * stride
        extents.append(extent)
        strides.append(stride)
    return local, View(Place.SOURCE, 0, offset, tuple(extents), tuple(strides)), local.is_contiguous()


@settings(max_examples=400)
@given(parts_of_buffers())
def test_a_part_of_a_tensor_with_gaps_is_found_in_its_own_steps(case):
    local, part, must_be_found = case
    counts = [
        part.offset + sum(i * s for i, s in zip(at, part.strides, strict=True))
        for at in np.ndindex(*part.shape)
    ]
    room = torch.arange(local.untyped_storage().nbytes() // 2)
    lying = room.as_strided(local.shape, local.stride()).reshape(-1)
    try:
        found = LocalMemory("x", frozenset(), whole_view(local, 2)).view(part)
    except LocalShapeError:
        assert not must_be_found
        return
    wanted = lying[torch.tensor(counts)].reshape(part.shape)
    assert torch.equal(room.as_strided(found.shape, found.strides, found.start // 2), wanted)


def in_place(shift, padding=0):
    """Two tensors fused in one buffer of two ranks, which stays where it is, or lies elsewhere afterwards."""
    mesh = rp.Mesh([0])
    layouts = []
    for first in (0, 12):
        box = Box((0,), (12,))
        before = StoredBuffer(0, (24 + padding,), (Tile(box, first, (1,)),))
        after = StoredBuffer(0, (24 + padding,), (Tile(box, (first + shift) % 24, (1,)),))
        layouts.append([rp.Layout.stored(mesh, Storage.of([(each,)])) for each in (before, after)])
    tensors = [
        rp.TensorSpec(name, (12,), "int32", src, dst, src_buffers=[("fused",)], dst_buffers=[("fused",)])
        for name, (src, dst) in zip("ab", layouts, strict=True)
    ]
    return rp.compile(rp.ReshardSpec(tensors))


def test_fused_buffers_may_share_memory_where_all_of_it_stays():
    memory = torch.arange(24, dtype=torch.int32)
    for exchange in bound(in_place(0), 0, {"fused": memory}, {"fused": memory}):
        exchange.pack()
    assert torch.equal(memory, torch.arange(24, dtype=torch.int32))


@pytest.mark.parametrize("shift", [12, 0])
def test_fused_buffers_that_share_memory_are_refused_where_some_does_not_stay(shift):
    memory = torch.arange(30, dtype=torch.int32)
    held = memory[:24]
    kept = memory[:24] if shift else memory[3:27]
    with pytest.raises(InputError, match=r"tensor 'fused' and .* tensor 'fused' share memory"):
        bound(in_place(shift), 0, {"fused": held}, {"fused": kept})
