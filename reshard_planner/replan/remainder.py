"""The spec of those that are left."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from reshard_planner.atoms import Ranks
from reshard_planner.layout import Layout, Storage
from reshard_planner.layout.survivors import Survivors
from reshard_planner.replan.impossible import Impossible, find_impossible
from reshard_planner.replan.positions import keep_positions
from reshard_planner.replan.replicas import find_incomplete
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.values import SIDES, Side

Kept = tuple[tuple[int, Layout], ...]
"""What is left of the layouts of a side, each with its position among them."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A replica of a destination that is not served any more: it lacks parts of tensors that ranks held.

    Attributes:
        ranks: those of its ranks that are left, ascending.
        gone: those that are gone, ascending.
        tensors: names of the tensors that it does not have all of.
    """

    ranks: Ranks
    gone: Ranks
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remainder:
    """A spec without some ranks.

    Attributes:
        spec: the tensors that can still be delivered, as far as ranks are left that need them. Ranks,
            topology, options, names and local buffers are what they were.
        impossible: what can not; tensors with such parts are left out, by tensor and class.
        unneeded: names of tensors that no rank is left of that would need them; they are left out, too.
        incomplete: replicas of destinations that have lost a part.
    """

    spec: ReshardSpec
    impossible: tuple[Impossible, ...]
    unneeded: tuple[str, ...]
    incomplete: tuple[Incomplete, ...]


def find_remainder(spec: ReshardSpec, gone: frozenset[int]) -> Remainder:
    """Leave out ranks that are gone, and tensors that cannot be delivered or are not needed without them.

    Args:
        spec: with all ranks.
        gone: some of its ranks.

    Raises:
        SpecError: if a rank needs what no rank holds, even with all of them.
        UnsupportedError: if layouts cut a tensor in too many atoms.
    """
    impossible = find_impossible(spec, gone)
    left_out = {each.tensor for each in impossible}
    sides = _Sides(gone)
    tensors: list[TensorSpec] = []
    unneeded: list[str] = []
    for tensor in spec.tensors:
        src, dst = (sides.rest(tensor, side) for side in SIDES)
        if not dst:
            unneeded.append(tensor.name)
        elif tensor.name not in left_out:
            tensors.append(_rebuilt(tensor, src, dst))
    left = ReshardSpec(tensors, spec.topology, spec.options)
    return Remainder(left, impossible, tuple(unneeded), tuple(_incomplete(spec, gone)))


class _Sides:
    """What is left of the layouts of one side of tensors, each kind looked at once."""

    def __init__(self, gone: frozenset[int]) -> None:
        self._survivors = Survivors(gone)
        self._rests: dict[Hashable, Kept] = {}

    def rest(self, tensor: TensorSpec, side: Side) -> Kept:
        layouts, names = tensor.layouts(side), tensor.buffers(side)
        same = tuple(map(names.index, names))  # layers of a model differ in names, not in which are equal
        key = layouts, same, tensor.shape
        if key not in self._rests:
            left = {}
            for number, layout in enumerate(layouts):
                rest = self._survivors.layout(layout, tensor.shape)
                if rest is not None:
                    left[number] = rest
            dense = [
                own[0] if layout.storage is None else None for layout, own in zip(layouts, names, strict=True)
            ]
            self._rests[key] = tuple(keep_positions(dense, left, tensor.shape).items())
        return self._rests[key]


def _rebuilt(tensor: TensorSpec, src: Kept, dst: Kept) -> TensorSpec:
    """The tensor with what is left of its layouts; the same value where that is all."""
    kept = {"src": src, "dst": dst}
    if all(
        len(kept[side]) == len(tensor.layouts(side))
        and all(layout == whole for (_, layout), whole in zip(kept[side], tensor.layouts(side), strict=True))
        for side in SIDES
    ):
        return tensor
    layouts: dict[str, list[Layout]] = {}
    names: dict[str, list[Sequence[str]]] = {}
    for side in SIDES:
        layouts[side] = [layout for _, layout in kept[side]]
        names[side] = [tensor.buffers(side)[at] for at, _ in kept[side]]
    if not src:  # what is left needs no bytes of it; its empty buffers are still given
        mesh = dst[0][1].mesh
        layouts["src"] = [Layout.stored(mesh, Storage(((),), (0,) * mesh.size))]
        names["src"] = [tensor.src_buffers[0]]
    return TensorSpec(
        tensor.name,
        tensor.shape,
        tensor.dtype,
        layouts["src"],
        layouts["dst"],
        dst_dtype=tensor.dst_dtype,
        cast=True,
        src_buffers=names["src"],
        dst_buffers=names["dst"],
    )


def _incomplete(spec: ReshardSpec, gone: frozenset[int]) -> Iterator[Incomplete]:
    """Replicas that have lost a part, with all tensors that they lack something of."""
    known: dict[tuple[Layout, tuple[int, ...]], tuple[tuple[Ranks, Ranks], ...]] = {}
    found: dict[tuple[Ranks, Ranks], dict[str, None]] = {}
    for tensor in spec.tensors:
        for layout in tensor.dst:
            key = layout, tensor.shape
            if key not in known:
                known[key] = find_incomplete(layout, tensor.shape, gone)
            for replica in known[key]:
                found.setdefault(replica, {})[tensor.name] = None
    for (ranks, without), names in found.items():
        yield Incomplete(ranks, without, tuple(names))
