"""Atoms and classes agree with an element-wise brute force, and atoms are as large as they can be."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from hypothesis import example, given
from oracle import domains_of, holder_masks, members
from strategies import specs, tensor_specs

import reshard_planner as rp
from reshard_planner.atoms import Atoms, find_atoms
from reshard_planner.demand import find_demands, find_geometries
from reshard_planner.topology import Ports

ROWS = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
ROWS_BACKWARDS = rp.Layout(rp.Mesh([1, 0]), ["S(0)"])
WHOLE = rp.Layout(rp.Mesh([0, 1]), ["R"])
ELSEWHERE = rp.Layout(rp.Mesh([2]), ["R"])

LISTS = [
    rp.TensorSpec("t", (4,), "int8", [ROWS, ROWS_BACKWARDS], ELSEWHERE),
    rp.TensorSpec("t", (4,), "int8", ELSEWHERE, [ROWS, ROWS_BACKWARDS]),
    rp.TensorSpec("t", (4, 2), "int8", WHOLE, [WHOLE, ROWS]),
]
"""Lists of layouts in which neighbouring tiles of one side are stored by the same ranks."""

STRIDED = rp.TensorSpec("t", (5,), "float32", rp.Layout(rp.Mesh([0, 1]), ["_S(0, sf=2)"]), ELSEWHERE)
SCALAR = rp.TensorSpec("t", (), "float32", WHOLE, ELSEWHERE)
EMPTY = rp.TensorSpec("t", (12, 0), "float32", ROWS, ELSEWHERE)


def boxes(atoms: Atoms) -> list[rp.Box]:
    return [rp.Box(tuple(l), tuple(h)) for l, h in zip(atoms.lo.tolist(), atoms.hi.tolist(), strict=True)]


@given(tensor_specs())
@example(LISTS[0])
@example(STRIDED)
@example(SCALAR)
@example(EMPTY)
def test_atoms_cover_every_element_once_with_its_holders_and_needers(tensor):
    atoms = find_atoms(tensor)
    holders = holder_masks(tensor.src, tensor.shape)
    needers = holder_masks(tensor.dst, tensor.shape)
    covered = np.zeros(tensor.shape, dtype=np.int64)
    for box, number in zip(boxes(atoms), atoms.class_of.tolist(), strict=True):
        covered[box.slices()] += 1
        assert {members(m) for m in np.unique(holders[box.slices()]).tolist()} <= {atoms.holders[number]}
        assert {members(m) for m in np.unique(needers[box.slices()]).tolist()} <= {atoms.needers[number]}
    assert (covered == 1).all()


@given(tensor_specs())
@example(LISTS[1])
@example(SCALAR)
@example(EMPTY)
def test_classes_are_the_distinct_pairs_of_holders_and_needers_with_their_bytes(tensor):
    atoms = find_atoms(tensor)
    holders = holder_masks(tensor.src, tensor.shape).reshape(-1).tolist()
    needers = holder_masks(tensor.dst, tensor.shape).reshape(-1).tolist()
    counts = Counter(zip(map(members, holders), map(members, needers), strict=True))
    wanted = {pair: count * tensor.bits // 8 for pair, count in counts.items()}
    assert dict(zip(zip(atoms.holders, atoms.needers, strict=True), atoms.nbytes, strict=True)) == wanted
    assert len(wanted) == atoms.class_count
    assert sum(atoms.nbytes) == tensor.nbytes
    assert set(atoms.class_of.tolist()) == set(range(atoms.class_count))
    assert (np.diff(atoms.class_of) >= 0).all()


def tile_sets(tensor: rp.TensorSpec) -> list[tuple[int, list[rp.Box]]]:
    """Every buffer on either side, as its rank and the boxes of its tiles."""
    return [
        (rank, [tile.box for _, tile in tiling.local_tiles(rank)])
        for side in ("src", "dst")
        for tiling in tensor.tilings(side)
        for rank in tiling.ranks.tolist()
    ]


@given(tensor_specs())
@example(LISTS[0])
@example(LISTS[1])
@example(LISTS[2])
@example(STRIDED)
def test_no_atom_reaches_beyond_a_tile(tensor):
    buffers = tile_sets(tensor)
    for box in boxes(find_atoms(tensor)):
        for rank, tiles in buffers:
            met = [tile for tile in tiles if tile.intersect(box).volume]
            assert all(tile.contains(box) for tile in met), f"{box} is cut by a tile of rank {rank}"
            assert len(met) <= 1


def joined(a: rp.Box, b: rp.Box) -> rp.Box | None:
    """The two boxes as one, if they touch along one dimension and agree in all others."""
    differing = [d for d in range(a.ndim) if (a.lo[d], a.hi[d]) != (b.lo[d], b.hi[d])]
    if len(differing) != 1:
        return None
    dim = differing[0]
    first, second = sorted((a, b), key=lambda box: box.lo[dim])
    return first.replace(dim, first.lo[dim], second.hi[dim]) if first.hi[dim] == second.lo[dim] else None


@given(tensor_specs())
@example(LISTS[0])
@example(STRIDED)
def test_neighbouring_atoms_of_one_class_join_unless_a_tile_ends_between_them(tensor):
    atoms = find_atoms(tensor)
    buffers = tile_sets(tensor)
    numbered = list(zip(boxes(atoms), atoms.class_of.tolist(), strict=True))
    for (a, class_a), (b, class_b) in combinations(numbered, 2):
        whole = joined(a, b)
        if class_a != class_b or whole is None:
            continue
        assert any(
            tile.intersect(whole).volume and not tile.contains(whole)
            for _, tiles in buffers
            for tile in tiles
        ), f"{a} and {b} could be one atom"


@given(tensor_specs())
def test_element_width_does_not_change_the_boxes(tensor):
    if tensor.bits < 8:
        return
    other = rp.TensorSpec("other", tensor.shape, "float32", tensor.src, tensor.dst)
    assert boxes(find_atoms(tensor)) == boxes(find_atoms(other))


@given(specs())
def test_demands_carry_the_domains_of_holders_and_of_those_in_need(spec):
    home = domains_of(spec.topology)
    ports = Ports.of(spec.topology, spec.ranks)
    geometries = find_geometries(spec, ports)
    demands = find_demands(geometries, ports)
    assert sorted(
        index for geometry in geometries for member in geometry.members for index in member.tensors
    ) == list(range(len(spec.tensors)))
    for demand in demands:
        holding = {home[rank] for rank in demand.holders}
        assert demand.holder_domains == tuple(sorted(holding))
        assert demand.needing_domains == tuple(sorted({home[rank] for rank in demand.needers} - holding))
        assert demand.nbytes > 0
    assert sum(demand.nbytes for demand in demands) == sum(tensor.nbytes for tensor in spec.tensors)


@given(specs())
def test_tensors_are_members_together_if_they_differ_in_nothing_but_their_name(spec):
    geometries = find_geometries(spec, Ports.of(spec.topology, spec.ranks))
    keys = [(t.shape, t.bits, t.src, t.dst) for t in spec.tensors]
    home = {
        tensor: (number, position)
        for number, geometry in enumerate(geometries)
        for position, member in enumerate(geometry.members)
        for tensor in member.tensors
    }
    for a, b in combinations(range(len(keys)), 2):
        assert (home[a] == home[b]) == (keys[a] == keys[b])


@given(specs())
def test_members_of_a_geometry_are_renamings_that_keep_domains_and_rates(spec):
    ports = Ports.of(spec.topology, spec.ranks)
    for geometry in find_geometries(spec, ports):
        for member in geometry.members[1:]:
            tensor = spec.tensors[member.tensors[0]]
            for mine, others in zip(
                (*geometry.sample.src, *geometry.sample.dst), (*tensor.src, *tensor.dst), strict=True
            ):
                assert mine.placements == others.placements
                assert member.ranks[list(mine.mesh.ranks)].tolist() == list(others.mesh.ranks)
            sample, ranks = (
                np.unique([rank for layout in (*one.src, *one.dst) for rank in layout.mesh.ranks])
                for one in (geometry.sample, tensor)
            )
            renamed = member.ranks[sample]
            assert sorted(renamed.tolist()) == ranks.tolist()
            assert (ports.nvlink_bytes_per_s[sample] == ports.nvlink_bytes_per_s[renamed]).all()
            for column in (ports.domain, ports.nic_group):
                pairs = np.unique(np.stack((column[sample], column[renamed])), axis=1)
                assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]
