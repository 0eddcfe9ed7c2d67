"""Demands: what must move, joint over all tensors, with the domains on both ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reshard_planner.atoms import Atoms, Ranks, find_atoms
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.layout import Layout
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.topology import Ports


@dataclass(frozen=True, slots=True)
class Geometry:
    """Tensors that agree in all but their name, and the atoms that they share.

    Attributes:
        tensors: positions in the spec, ascending.
        sample: the first of them.
        atoms: atoms and classes of one tensor.
    """

    tensors: tuple[int, ...]
    sample: TensorSpec
    atoms: Atoms


@dataclass(frozen=True, slots=True)
class Demand:
    """One class of one geometry.

    Attributes:
        geometry: position of the geometry.
        class_index: position of the class in the geometry's atoms.
        nbytes: bytes of the class in all tensors of the geometry together.
        holders: ranks that have the bytes.
        needers: ranks that must have them.
        holder_domains: domains of the holders, ascending.
        needing_domains: domains with a needer and no holder, ascending; k of them.
    """

    geometry: int
    class_index: int
    nbytes: int
    holders: Ranks
    needers: Ranks
    holder_domains: tuple[int, ...]
    needing_domains: tuple[int, ...]


def find_geometries(spec: ReshardSpec) -> tuple[Geometry, ...]:
    """Group the tensors of a spec by geometry, in order of first appearance."""
    members: dict[tuple[tuple[int, ...], int, tuple[Layout, ...], tuple[Layout, ...]], list[int]] = {}
    for index, tensor in enumerate(spec.tensors):
        key = (tensor.shape, DTYPE_BITS[tensor.dtype], tensor.src, tensor.dst)
        members.setdefault(key, []).append(index)
    return tuple(
        Geometry(tuple(indices), spec.tensors[indices[0]], find_atoms(spec.tensors[indices[0]]))
        for indices in members.values()
    )


def find_demands(geometries: Sequence[Geometry], ports: Ports) -> tuple[Demand, ...]:
    """The classes of all geometries with their domains; classes of no bytes are left out."""
    domain_of = ports.domain.tolist()
    known: dict[Ranks, tuple[int, ...]] = {}

    def domains(ranks: Ranks) -> tuple[int, ...]:
        if ranks not in known:
            known[ranks] = tuple(sorted({domain_of[rank] for rank in ranks}))
        return known[ranks]

    demands = []
    for number, geometry in enumerate(geometries):
        atoms = geometry.atoms
        for index, nbytes in enumerate(atoms.nbytes):
            if not nbytes:
                continue
            holders, needers = atoms.holders[index], atoms.needers[index]
            holding = domains(holders)
            needing = tuple(d for d in domains(needers) if d not in holding)
            demands.append(
                Demand(number, index, nbytes * len(geometry.tensors), holders, needers, holding, needing)
            )
    return tuple(demands)


def minimum_network_nbytes(demands: Iterable[Demand]) -> int:
    """P*: every domain in need takes in every byte once, ``sum k_c W_c`` (in bytes)."""
    return sum(len(demand.needing_domains) * demand.nbytes for demand in demands)
