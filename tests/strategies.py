"""Hypothesis strategies that build related inputs: placements drawn for a shape, meshes drawn for a cluster.

Naive strategies would almost never yield a valid spec. Everything stays small: tensors below about 2000
elements, at most 12 ranks, so that brute-force oracles are quick. Words as in the planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hypothesis import strategies as st

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import UnsupportedError
from reshard_planner.layout import Placement
from reshard_planner.simulate import Costs
from reshard_planner.spec.values import byte_step
from reshard_planner.topology import Domain, Link, Nic, Pod

MAX_ELEMENTS = 2000
MAX_RANKS = 12
STRATEGIES = ("optimal", "direct", "gather-broadcast", "striped", "hybrid")
"""Strategies that compile every spec whose GPUs have NICs."""

M2N_STRATEGIES = ("m2n-uniform", "m2n-node-aware")
"""Strategies that refuse what NCCL M2N would refuse."""

ALL_STRATEGIES = (*STRATEGIES, *M2N_STRATEGIES)

WHOLE_BYTE_DTYPES = ("uint8", "bfloat16", "float32", "float64", "complex128")
SUB_BYTE_DTYPES = ("uint1", "uint2", "int3", "uint4", "int5", "quint4x2", "quint2x4")

LINKS = (
    (Link(50_000_000_000, 0.95, 15e-6), Link(450_000_000_000, 0.7, 10e-6), Link(25_000_000_000, 1.0, 0.0)),
    (Link(3_000, 1.0, 0.0), Link(1_000, 0.5, 1e-3), Link(4_096, 1.0, 1e-6)),
)
"""Fast ports; and ports so slow that even small tensors are worth many rounds."""


@st.composite
def shapes(draw: st.DrawFn, max_dims: int = 3, last_multiple_of: int = 1) -> tuple[int, ...]:
    """Shapes of 0 to 3 dimensions, sometimes with a dimension of size zero or one."""
    dims = draw(st.integers(0 if last_multiple_of == 1 else 1, max_dims))
    widest = {0: 1, 1: 40, 2: 16, 3: 9}[dims]
    sizes = [draw(st.integers(1, widest)) for _ in range(dims)]
    if dims and draw(st.integers(0, 9)) == 0:
        sizes[draw(st.integers(0, dims - 1))] = 0
    if last_multiple_of > 1:
        sizes[-1] = last_multiple_of * min(sizes[-1], 4)
    return tuple(sizes)


@st.composite
def meshes(draw: st.DrawFn, ranks: Sequence[int] | None = None, max_ranks: int = 8) -> rp.Mesh:
    """Meshes of 1 to 3 axes over distinct ranks in any order; over all of ``ranks`` or fewer of them."""
    pool = list(range(MAX_RANKS)) if ranks is None else list(ranks)
    most = min(len(pool), max_ranks)
    axes = draw(st.integers(1, 3))
    shape: list[int] = []
    for _ in range(axes):
        room = most // prod(shape)
        shape.append(draw(st.sampled_from([size for size in (2, 3, 1, 4) if size <= max(1, room)])))
    order = draw(st.permutations(pool))
    return rp.Mesh(order[: prod(shape)], None, shape)


def encode_order(mesh: rp.Mesh, dim: int, order: Sequence[int]) -> dict[int, Placement]:
    """Placements by axis that say: cut ``dim`` over the axes in this order.

    An axis that is cut after axes to its right becomes strided, by the product of their sizes.
    """
    placements: dict[int, Placement] = {}
    for position, axis in enumerate(order):
        factor = prod(mesh.shape[before] for before in order[:position] if before > axis)
        placements[axis] = rp.StridedShard(dim, factor) if factor > 1 else rp.Shard(dim)
    return placements


@st.composite
def placements(
    draw: st.DrawFn, mesh: rp.Mesh, ndim: int, dims: Sequence[int] | None = None
) -> list[Placement]:
    """One placement per axis, for tensors of ``ndim`` dimensions; only ``dims`` are cut.

    Half of the time every dimension is cut over its axes in a drawn order, encoded as FSDP with tensor
    parallelism does; the other half placements are independent, also strided ones of any factor, and
    dimensions may count from the back.
    """
    usable = list(range(ndim)) if dims is None else list(dims)
    if not usable:
        return [rp.Replicate()] * mesh.ndim
    cut = [draw(st.sampled_from([None, *usable])) for _ in range(mesh.ndim)]
    found: list[Placement] = [rp.Replicate()] * mesh.ndim
    if draw(st.booleans()):
        for dim in usable:
            axes = [axis for axis, chosen in enumerate(cut) if chosen == dim]
            for axis, placement in encode_order(mesh, dim, draw(st.permutations(axes))).items():
                found[axis] = placement
        return found
    for axis, chosen in enumerate(cut):
        if chosen is None:
            continue
        dim = chosen - ndim if draw(st.booleans()) else chosen
        factor = draw(st.sampled_from([None, None, 1, 2, 3, 4, 6]))
        found[axis] = rp.Shard(dim) if factor is None else rp.StridedShard(dim, factor)
    return found


@st.composite
def layouts(
    draw: st.DrawFn,
    shape: Sequence[int],
    ranks: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
) -> rp.Layout:
    """Layouts of tensors of this shape, over some of these ranks."""
    mesh = draw(meshes(ranks))
    return rp.Layout(mesh, draw(placements(mesh, len(shape), dims)))


@st.composite
def _side(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    ranks: Sequence[int],
    dims: Sequence[int] | None,
    most: int,
) -> list[rp.Layout]:
    """One or more layouts; a second one is drawn over the same mesh in another order half of the time."""
    found = [draw(layouts(shape, ranks, dims))]
    if most > 1 and draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            first = found[0].mesh
            again = rp.Mesh(draw(st.permutations(first.ranks)), None, first.shape)
            found.append(rp.Layout(again, draw(st.sampled_from([found[0].placements]))))
        else:
            found.append(draw(layouts(shape, ranks, dims)))
    return found


@st.composite
def tensor_specs(
    draw: st.DrawFn,
    name: str = "t",
    ranks: Sequence[int] | None = None,
    dtypes: Sequence[str] = (*WHOLE_BYTE_DTYPES, *SUB_BYTE_DTYPES),
    max_layouts: int = 2,
) -> rp.TensorSpec:
    """Tensors with layouts on both sides: disjoint, overlapping or equal meshes, one or two layouts each.

    Sub-byte dtypes get shapes of whole bytes; where a drawn layout would cut within a byte, the last
    dimension is left whole instead.
    """
    pool = list(range(draw(st.integers(1, MAX_RANKS) | st.just(MAX_RANKS)))) if ranks is None else list(ranks)
    dtype = draw(st.sampled_from(list(dtypes)))
    shape = draw(shapes(last_multiple_of=byte_step(DTYPE_BITS[dtype])))
    cut = draw(st.integers(0, len(pool)) | st.just(len(pool) // 2))
    src_ranks, dst_ranks = draw(
        st.sampled_from([(pool[:cut] or pool, pool[cut:] or pool), (pool, pool), (pool[cut:] or pool, pool)])
    )

    def build(dims: Sequence[int] | None) -> rp.TensorSpec:
        src = draw(_side(shape, src_ranks, dims, max_layouts))
        dst = src if draw(st.integers(0, 9)) == 0 else draw(_side(shape, dst_ranks, dims, max_layouts))
        return rp.TensorSpec(name, shape, dtype, src, dst)

    try:
        return build(None)
    except UnsupportedError:
        return build(range(len(shape) - 1))


@st.composite
def domain_lists(draw: st.DrawFn, ranks: Sequence[int]) -> list[list[int]]:
    """Partitions of the ranks into domains, also ones whose members do not follow one another."""
    count = draw(st.sampled_from([3, 2, 4, 1, 5, len(ranks)]))
    home = [draw(st.integers(0, count - 1)) for _ in ranks]
    if draw(st.booleans()):
        home.sort()
    domains = [[rank for rank, at in zip(ranks, home, strict=True) if at == index] for index in range(count)]
    return [domain for domain in domains if domain]


@st.composite
def topologies(
    draw: st.DrawFn, ranks: Sequence[int], *, uniform: bool | None = None, uplinks: bool = True
) -> rp.Topology:
    """Clusters that hold these ranks; every GPU has a NIC, alone or shared.

    Args:
        draw: from hypothesis.
        ranks: ranks that must find a GPU.
        uniform: whether every GPU has one NIC of its own and all ports are equal; either when None.
        uplinks: whether domains may lie in pods.
    """
    domains = draw(domain_lists(ranks))
    links = st.sampled_from(draw(st.sampled_from(LINKS)))
    if uniform if uniform is not None else draw(st.booleans()):
        return rp.Topology.from_domains(domains, draw(links), draw(links))
    pods: list[Pod] = []
    if uplinks and len(domains) > 1 and draw(st.integers(0, 3)) == 0:
        cut = draw(st.integers(1, len(domains)))
        halves = [half for half in (range(cut), range(cut, len(domains))) if half]
        pods = [Pod(tuple(half), draw(links)) for half in halves[: draw(st.integers(1, 2))]]
    nics: list[Nic] = []
    rails = draw(st.sampled_from([0, 0, 2, 3]))
    for members in domains:
        step = draw(st.integers(1, len(members)))
        for start in range(0, len(members), step):
            group = tuple(members[start : start + step])
            rail = draw(st.integers(0, rails - 1)) if rails else None
            nics.extend(Nic(group, draw(links), rail) for _ in range(draw(st.integers(1, 2))))
    return rp.Topology(
        tuple(Domain(tuple(members), draw(links)) for members in domains), tuple(nics), pods=tuple(pods)
    )


@st.composite
def options(draw: st.DrawFn, strategies: Sequence[str] = STRATEGIES) -> rp.Options:
    """Options that let even small tensors be cut in chunks, spread over many rounds."""
    return rp.Options(
        strategy=draw(st.sampled_from(list(strategies))),
        lag=draw(st.integers(1, 3)),
        min_message_nbytes=draw(st.sampled_from([1, 16, 4 * 2**20])),
        rails=draw(st.sampled_from(["prefer", "prefer", "ignore"])),
    )


@st.composite
def specs(
    draw: st.DrawFn,
    max_tensors: int = 3,
    dtypes: Sequence[str] = (*WHOLE_BYTE_DTYPES, *SUB_BYTE_DTYPES),
    max_layouts: int = 2,
    *,
    uniform: bool | None = None,
    max_ranks: int = MAX_RANKS,
    strategies: Sequence[str] = STRATEGIES,
) -> rp.ReshardSpec:
    """Specs of a few tensors over one cluster, which every strategy can compile.

    A further tensor has the geometry of the one before half of the time, as the layers of a model do.
    """
    pool = range(draw(st.integers(1, max_ranks) | st.integers((max_ranks + 1) // 2, max_ranks)))
    tensors = [draw(tensor_specs("t0", pool, dtypes, max_layouts))]
    while len(tensors) < max_tensors and draw(st.booleans()):
        name = f"t{len(tensors)}"
        if draw(st.booleans()):
            last = tensors[-1]
            tensors.append(rp.TensorSpec(name, last.shape, last.dtype, last.src, last.dst))
        else:
            tensors.append(draw(tensor_specs(name, pool, dtypes, max_layouts)))
    return rp.ReshardSpec(tensors, draw(topologies(pool, uniform=uniform)), draw(options(strategies)))


host_costs = st.builds(
    Costs,
    st.sampled_from([None, 1e3, 5e4, 1e9]),
    st.sampled_from([0.0, 1e-5, 0.02]),
    st.sampled_from([0.0, 2e-6, 0.01]),
    st.sampled_from([0, 0, 1000]),
)
"""What ranks' own work may cost in predictions."""
