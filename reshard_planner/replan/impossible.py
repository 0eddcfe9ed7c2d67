"""What became impossible: bytes that some survivor needs and only ranks that are gone held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reshard_planner.atoms import Atoms, Ranks
from reshard_planner.box import Box
from reshard_planner.demand import Geometry, Member, find_geometries
from reshard_planner.layout.stored import join_boxes
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports


@dataclass(frozen=True, slots=True)
class Impossible:
    """A part of a tensor that cannot be delivered any more: elements of equal holders and needers.

    Attributes:
        tensor: its name.
        boxes: where the elements are; disjoint, in global element coordinates.
        nbytes: their bytes, each counted once, in the dtype that they would travel in.
        holders: ranks that held them, all of them gone, ascending.
        needers: ranks that are left and need them, ascending.
    """

    tensor: str
    boxes: tuple[Box, ...]
    nbytes: int
    holders: Ranks
    needers: Ranks


def find_impossible(spec: ReshardSpec, gone: frozenset[int]) -> tuple[Impossible, ...]:
    """All that cannot be delivered without some ranks, in order of the tensors.

    Args:
        spec: with all ranks.
        gone: the ranks that are gone.

    Raises:
        SpecError: if a rank needs what no rank holds, even with all of them.
        UnsupportedError: if layouts cut a tensor in too many atoms.
    """
    found: dict[int, list[Impossible]] = {}
    ports = Ports.of(spec.topology, spec.ranks)
    for geometry in find_geometries(spec, ports):
        boxes: dict[int, tuple[Box, ...]] = {}
        for member in geometry.members:
            for number, holders, needers in _classes(geometry.atoms, member, gone):
                if number not in boxes:
                    boxes[number] = _boxes(geometry, number)
                for tensor in member.tensors:
                    nbytes = geometry.atoms.nbytes[number]
                    name = spec.tensors[tensor].name
                    part = Impossible(name, boxes[number], nbytes, holders, needers)
                    found.setdefault(tensor, []).append(part)
    return tuple(part for tensor in sorted(found) for part in found[tensor])


def _classes(atoms: Atoms, member: Member, gone: frozenset[int]) -> list[tuple[int, Ranks, Ranks]]:
    """Classes that nobody is left of who holds them, with their holders, and the needers that are left."""
    found = []
    known: dict[Ranks, bool] = {}
    for number, (holders, needers) in enumerate(zip(atoms.holders, atoms.needers, strict=True)):
        if not atoms.nbytes[number] or len(holders) > len(gone):
            continue
        if holders not in known:
            known[holders] = gone.issuperset(member.substitute(holders))
        if known[holders]:
            left = tuple(rank for rank in member.substitute(needers) if rank not in gone)
            if left:
                found.append((number, member.substitute(holders), left))
    return found


def _boxes(geometry: Geometry, number: int) -> tuple[Box, ...]:
    """The boxes of a class, as few as are found."""
    atoms = geometry.atoms
    own = np.flatnonzero(atoms.class_of == number)
    boxes = [
        Box(tuple(lo), tuple(hi))
        for lo, hi in zip(atoms.lo[own].tolist(), atoms.hi[own].tolist(), strict=True)
    ]
    return tuple(box for box, _ in join_boxes(boxes))
