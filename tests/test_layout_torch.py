"""Layouts agree with torch itself: every rank of a fake process group cuts a whole tensor as DTensor does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from oracle import local_indices
from strategies import encode_order, layouts, shapes

import reshard_planner as rp

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - after the check that torch is there
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about its own fake backend


@contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """A process group in which this process is ``rank`` and nobody else is there."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def torch_placement(placement: rp.Shard | rp.Replicate | rp.StridedShard):
    if isinstance(placement, rp.Replicate):
        return Replicate()
    if isinstance(placement, rp.StridedShard):
        return _StridedShard(placement.dim, split_factor=placement.split_factor)
    return Shard(placement.dim)


def torch_local(layout: rp.Layout, shape: Sequence[int], rank: int) -> np.ndarray:
    """Numbers of the elements that torch leaves on a rank, from a replicated tensor on the same mesh."""
    whole = torch.arange(prod(shape)).reshape(tuple(shape))
    with fake_rank(rank, max(layout.mesh.ranks) + 1):
        mesh = DeviceMesh("cpu", layout.mesh.array(), _init_backend=False)
        replicated = DTensor.from_local(whole, mesh, [Replicate()] * layout.mesh.ndim, run_check=False)
        wanted = [torch_placement(placement) for placement in layout.placements]
        return replicated.redistribute(mesh, wanted).to_local().numpy()


def planned_local(layout: rp.Layout, shape: Sequence[int], rank: int) -> np.ndarray:
    whole = np.arange(prod(shape)).reshape(tuple(shape))
    per_dim = layout.partition(tuple(shape)).intervals(rank)
    lists = [np.array([i for lo, hi in dim for i in range(lo, hi)], dtype=np.int64) for dim in per_dim]
    return whole[np.ix_(*lists)] if lists else whole


@st.composite
def layouts_with_shapes(draw: st.DrawFn) -> tuple[rp.Layout, tuple[int, ...]]:
    shape = draw(shapes())
    return draw(layouts(shape, range(8))).normalized(len(shape)), shape


GRID = rp.Mesh([[0, 1], [2, 3], [4, 5]])
CUBE = rp.Mesh([[[0, 1], [2, 3]], [[4, 5], [6, 7]]])


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(layouts_with_shapes())
@example((rp.Layout(GRID, ["_S(0, sf=2)", "S(0)"]), (7, 1)))
@example((rp.Layout(GRID, ["S(0)", "S(0)"]), (7,)))
@example((rp.Layout(rp.Mesh([0, 1]), ["_S(0, sf=2)"]), (5,)))
@example((rp.Layout(rp.Mesh([0, 1]), ["_S(0, sf=3)"]), (12, 2)))
@example((rp.Layout(CUBE, ["_S(0, sf=2)", "_S(0, sf=2)", "S(0)"]), (17,)))
@example((rp.Layout(CUBE, ["_S(0, sf=2)", "_S(1, sf=2)", "S(0)"]), (9, 7)))
@example((rp.Layout(CUBE, ["_S(0, sf=4)", "R", "S(0)"]), (9, 7)))
@example((rp.Layout(rp.Mesh([[1, 0], [3, 2]]), ["S(0)", "S(1)"]), (5, 3)))
@example((rp.Layout(GRID, ["R", "R"]), ()))
@example((rp.Layout(GRID, ["S(0)", "S(1)"]), (12, 0)))
def test_ranks_store_what_dtensor_leaves_them(pair):
    layout, shape = pair
    for rank in layout.mesh.ranks:
        got = planned_local(layout, shape, rank)
        wanted = torch_local(layout, shape, rank)
        assert got.shape == wanted.shape, rank
        assert np.array_equal(got, wanted), rank


@settings(max_examples=20)
@given(layouts_with_shapes())
def test_the_oracle_of_these_tests_agrees_with_dtensor(pair):
    layout, shape = pair
    whole = np.arange(prod(shape)).reshape(shape)
    for rank, per_dim in local_indices(layout, shape).items():
        assert np.array_equal(whole[np.ix_(*per_dim)] if shape else whole, torch_local(layout, shape, rank))


@st.composite
def plain_layouts(draw: st.DrawFn) -> tuple[rp.Layout, tuple[int, ...]]:
    """Layouts without strided placements, for which torch's offset helper can be trusted."""
    layout, shape = draw(layouts_with_shapes())
    plain = [rp.Shard(p.dim) if isinstance(p, rp.StridedShard) else p for p in layout.placements]
    return rp.Layout(layout.mesh, plain), shape


@given(plain_layouts())
def test_shapes_and_offsets_are_those_of_torchs_helper(pair):
    layout, shape = pair
    partition = layout.partition(shape)
    for coordinate in np.ndindex(*layout.mesh.shape):
        rank = int(layout.mesh.array()[coordinate])
        local_shape, offset = _compute_local_shape_and_global_offset(
            shape,
            layout.mesh.shape,
            lambda axis, at=coordinate: at[axis],
            [torch_placement(p) for p in layout.placements],
        )
        assert partition.local_shape(rank) == tuple(local_shape)
        if prod(local_shape):
            assert tuple(dim[0][0] for dim in partition.intervals(rank)) == tuple(offset)


@given(st.integers(0, 40), st.integers(1, 3), st.integers(1, 4), st.permutations([0, 1, 2]))
def test_orders_are_encoded_as_torch_encodes_them(size, small, large, order):
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry  # noqa: PLC0415

    mesh = rp.Mesh(list(range(2 * small * large)), None, [small, 2, large])
    ours = encode_order(mesh, 0, order)
    with fake_rank(0, mesh.size):
        theirs = DTensorSpec._convert_shard_order_to_StridedShard(  # noqa: SLF001 - the rule under test
            (ShardOrderEntry(tensor_dim=0, mesh_dims=tuple(order)),),
            (Shard(0),) * 3,
            DeviceMesh("cpu", mesh.array(), _init_backend=False),
        )
    assert [torch_placement(ours[axis]) for axis in range(3)] == list(theirs)
    assert rp.Layout(mesh, [ours[axis] for axis in range(3)]).partition((size,)).ranks.size == mesh.size
