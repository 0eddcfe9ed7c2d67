"""What one rank has to do with one tensor, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.layout.tiling import cuts_of
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.explain.moves import UNNEEDED
from reshard_planner.render.names import check_rank
from reshard_planner.spec import TensorSpec

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Bytes of the tensor that one rank sends to, gets from, or copies within itself.

    Attributes:
        peer: the other rank, or the rank itself.
        medium: a :class:`reshard_planner.transfer.Medium`.
        role: a :class:`reshard_planner.transfer.Role`.
        forwarded: whether the sender got the bytes in this plan.
        scratch: whether the receiver keeps them aside.
        nbytes: bytes.
        operations: number of operations.
        slots: slots in which they run, ascending.
        classes: classes of the bytes, ascending; :data:`UNNEEDED` for what nobody needs.
    """

    peer: int
    medium: int
    role: int
    forwarded: bool
    scratch: bool
    nbytes: int
    operations: int
    slots: tuple[int, ...]
    classes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankStory:
    """What one rank has to do with the tensor.

    Attributes:
        rank: the rank.
        held: classes that it has before, ascending.
        held_nbytes: bytes that it has before, those that nobody needs among them.
        needed: classes that it must have after, ascending.
        received: what it gets from others, most bytes first.
        sent: what it sends to others, likewise.
        copied: what it copies from buffer to buffer, likewise.
        passing_nbytes: bytes among those received that others need, and that it neither holds nor needs.
    """

    rank: int
    held: tuple[int, ...]
    held_nbytes: int
    needed: tuple[int, ...]
    received: tuple[Exchanged, ...]
    sent: tuple[Exchanged, ...]
    copied: tuple[Exchanged, ...]
    passing_nbytes: int


def tell_rank(facts: Facts, rank: int) -> RankStory:
    """What one rank has to do with the tensor.

    Raises:
        InputError: if the plan has no such rank; the text names the nearest ones.
    """
    check_rank(facts.plan.spec, rank)
    atoms, ops = facts.atoms, facts.ops
    held = tuple(n for n, ranks in enumerate(atoms.holders) if rank in ranks and atoms.nbytes[n])
    needed = tuple(n for n, ranks in enumerate(atoms.needers) if rank in ranks and atoms.nbytes[n])
    inward, outward = ops.dst == rank, ops.src == rank
    overlaps = facts.overlaps
    strange = ~np.isin(overlaps.klass, (*held, *needed, UNNEEDED))
    passing = inward[overlaps.op] & ~outward[overlaps.op] & strange
    return RankStory(
        rank,
        held,
        _held_nbytes(facts.tensor, rank),
        needed,
        _exchanged(facts, inward & ~outward, ops.src),
        _exchanged(facts, outward & ~inward, ops.dst),
        _exchanged(facts, inward & outward, ops.dst),
        int(overlaps.nbytes[passing].sum()),
    )


def _held_nbytes(tensor: TensorSpec, rank: int) -> int:
    """Bytes of a tensor that a rank has before, each counted once."""
    tilings = [tiling for tiling in tensor.tilings("src") if rank in tiling.ranks]
    cuts = cuts_of(tilings, tensor.shape)
    held = np.zeros([max(0, len(cut) - 1) for cut in cuts], dtype=np.bool_)
    for tiling in tilings:
        for box, _ in tiling.joined(rank):
            bounds = (np.searchsorted(cut, (a, b)) for cut, a, b in zip(cuts, box.lo, box.hi, strict=True))
            held[tuple(slice(int(a), int(b)) for a, b in bounds)] = True
    volumes = np.ones((), dtype=np.int64)
    for cut in cuts:
        volumes = np.multiply.outer(volumes, np.diff(cut))
    return int(volumes[held].sum()) * tensor.bits // 8


def _exchanged(facts: Facts, chosen: NDArray[np.bool_], peers: Ints) -> tuple[Exchanged, ...]:
    ops, overlaps = facts.ops, facts.overlaps
    together: dict[tuple[int, ...], list[int]] = {}
    for at in np.flatnonzero(chosen).tolist():
        key = (
            int(peers[at]),
            int(ops.medium[at]),
            int(ops.role[at]),
            int(ops.parent[at] >= 0),
            int(ops.scratch[at] > 0),
        )
        together.setdefault(key, []).append(at)
    found = []
    for (peer, medium, role, forwarded, scratch), mine in together.items():
        first, last = np.searchsorted(overlaps.op, mine), np.searchsorted(overlaps.op, mine, side="right")
        classes = np.unique(
            np.concatenate([overlaps.klass[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)])
        )
        slots = np.unique(ops.slot[mine])
        found.append(
            Exchanged(
                peer,
                medium,
                role,
                bool(forwarded),
                bool(scratch),
                int(ops.nbytes[mine].sum()),
                len(mine),
                tuple(slots.tolist()),
                tuple(classes.tolist()),
            )
        )
    return tuple(sorted(found, key=lambda each: (-each.nbytes, each.peer, each.medium, each.role)))
