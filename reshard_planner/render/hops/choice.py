"""Choices: which transfers of a plan a picture shows, down to one class or one tree, and in whose words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Atoms, find_atoms
from reshard_planner.box import Box
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.render.names import check_rank, find_tensor
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, plain

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Some transfers of a plan.

    Attributes:
        tensors: positions in the spec; None for all.
        rank: rank that sends or receives them; None for any.
        pieces: numbers of the pieces whose trees they belong to; None for all.
        holders: ranks that hold what is chosen; None where it is whole tensors.
        needers: ranks that need it, likewise.
        words: lines that say what was chosen besides the tensor.
        hints: lines that say how to look closer.
        one_tree: whether it is a single tree.
        boxes: boxes of which alone bytes count, first indices and those past the last; None for all bytes.
    """

    tensors: tuple[int, ...] | None = None
    rank: int | None = None
    pieces: Ints | None = None
    holders: frozenset[int] | None = None
    needers: frozenset[int] | None = None
    words: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    one_tree: bool = False
    boxes: tuple[Ints, Ints] | None = None


def choose(
    plan: Plan,
    tensor: str | None = None,
    *,
    rank: int | None = None,
    klass: int | None = None,
    tree: int | None = None,
) -> Choice:
    """Choose transfers.

    Args:
        plan: the plan.
        tensor: name of a tensor; all when None, or the only one where a class or a tree asks for one.
        rank: keep what this rank sends or receives.
        klass: keep the bytes of this class of the tensor, numbered from 0 as
            :func:`reshard_planner.atoms.find_atoms` does.
        tree: keep the tree that carries the piece of this number in the plan.

    Raises:
        InputError: if the plan has no such tensor, rank, class or tree, a class or tree is asked for without
            saying of which tensor, or the rank takes no part in the tree.
    """
    tensors = plan.spec.tensors
    if rank is not None:
        check_rank(plan.spec, rank)
    said = () if rank is None else (f"what rank {rank} sends or gets",)
    if tensor is None and len(tensors) != 1:
        if klass is None and tree is None:
            return Choice(rank=rank, words=said)
        asked = f"class {klass}" if klass is not None else f"tree {tree}"
        raise InputError(
            f"{asked} is of one tensor, and the plan has {len(tensors)}; expected a tensor's name with it"
        )
    at = 0 if tensor is None else find_tensor(plan.spec, tensor)
    pieces = _pieces_of(plan, at)
    if klass is None:
        if tree is not None:
            return _one_tree(plan, at, rank, said, pieces, tree)
        return Choice((at,), rank, words=said, hints=_tree_hint(pieces))
    atoms = find_atoms(tensors[at])
    if not 0 <= klass < atoms.class_count:
        expected = f"one of 0 to {atoms.class_count - 1}" if atoms.class_count else "none: it has no elements"
        raise InputError(f"class {klass} is no class of tensor {_quoted(plan, at)}; expected {expected}")
    pieces = pieces[_touching(plan, pieces, atoms, klass)]
    if tree is not None:
        if tree not in pieces:
            raise InputError(
                f"tree {tree} brings nothing of class {klass}; expected {_numbers(pieces, 'none')}"
            )
        return _one_tree(plan, at, rank, said, pieces, tree)
    held, needed = atoms.holders[klass], atoms.needers[klass]
    what = (
        f"class {klass} of 0 to {atoms.class_count - 1}: {format_nbytes(atoms.nbytes[klass])}, held by"
        f" {_ranks(held)}, needed by {_ranks(needed)}"
    )
    mine = atoms.class_of == klass
    return Choice(
        (at,),
        rank,
        pieces,
        frozenset(held),
        frozenset(needed),
        (what, *said),
        _tree_hint(pieces),
        boxes=(atoms.lo[mine], atoms.hi[mine]),
    )


def _pieces_of(plan: Plan, tensor: int) -> Ints:
    """Numbers of the pieces that trees carry for a tensor."""
    group = int(plan.groups.group_of[tensor])
    if group < 0:
        return np.zeros(0, dtype=np.int64)
    roots = np.unique(plan.routes.piece[plan.routes.parent < 0]).astype(np.int64)
    chosen: Ints = roots[plan.pieces.group[roots] == plan.groups.routes_of[group]]
    return chosen


def _touching(plan: Plan, pieces: Ints, atoms: Atoms, klass: int) -> NDArray[np.bool_]:
    """Which pieces overlap the class; baselines carry some that lie in several."""
    dims = atoms.lo.shape[1]
    lo, hi = plan.pieces.lo[pieces][:, :dims], plan.pieces.hi[pieces][:, :dims]
    mine = np.flatnonzero(atoms.class_of == klass)
    first, last = atoms.lo[mine], atoms.hi[mine]
    if len(pieces) < len(mine):
        found = [bool(((first < b) & (a < last)).all(axis=1).any()) for a, b in zip(lo, hi, strict=True)]
        return np.array(found, dtype=np.bool_)
    touching = np.zeros(len(pieces), dtype=np.bool_)
    for a, b in zip(first, last, strict=True):
        touching |= ((lo < b) & (a < hi)).all(axis=1)
    return touching


def _one_tree(
    plan: Plan, at: int, rank: int | None, said: tuple[str, ...], pieces: Ints, tree: int
) -> Choice:
    if tree not in pieces:
        raise InputError(
            f"tree {tree} carries nothing of tensor {_quoted(plan, at)}; expected"
            f" {_numbers(pieces, 'none: no transfer moves it')}"
        )
    tensor, routes = plan.spec.tensors[at], plan.routes
    dims = len(tensor.shape)
    box = Box(tuple(plan.pieces.lo[tree][:dims].tolist()), tuple(plan.pieces.hi[tree][:dims].tolist()))
    piece, parent = routes.piece.astype(np.int64), routes.parent.astype(np.int64)
    rows = np.where(parent >= 0, piece[np.maximum(parent, 0)], piece) == tree
    renamed_by, names = plan.groups.renamings(int(max(routes.src.max(), routes.dst.max())) + 1)
    name = names[renamed_by[plan.groups.group_of[at]]]
    held = np.unique(name[routes.src[rows & (parent < 0)]]).tolist()
    needed = np.unique(name[routes.dst[rows & (routes.scratch == 0)]]).tolist()
    members = np.union1d(name[routes.src[rows]], name[routes.dst[rows]]).tolist()
    if rank is not None and rank not in members:
        raise InputError(
            f"rank {rank} takes no part in tree {tree} of tensor {_quoted(plan, at)}; expected one of"
            f" {format_ranks(members, 60)}"
        )
    size = format_nbytes(box.volume * tensor.bits // 8)
    words = (f"tree {tree}: piece {box}, {size}, from {_ranks(held)} to {_ranks(needed)}", *said)
    return Choice((at,), rank, np.array([tree]), frozenset(held), frozenset(needed), words, one_tree=True)


def _quoted(plan: Plan, at: int) -> str:
    return repr(plain(plan.spec.tensors[at].name))


def _ranks(ranks: tuple[int, ...] | list[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks, 40) or 'none'}"


def _numbers(pieces: Ints, none: str) -> str:
    return f"one of {format_ranks(pieces.tolist(), 60)}" if len(pieces) else none


def _tree_hint(pieces: Ints) -> tuple[str, ...]:
    """Numbers to name by ``--tree``."""
    if not len(pieces):
        return ()
    numbers = format_ranks(pieces.tolist(), 60)
    return (f"{format_count(len(pieces), 'tree')} to look closer at: {numbers}.",)
