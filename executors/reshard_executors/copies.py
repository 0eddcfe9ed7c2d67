"""Copies in bulk: many boxes in one call, not one call per box."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reshard_executors.conversions import conversions
from reshard_executors.views import StridedView, alike

Pair = tuple[StridedView, StridedView]
"""Where elements go, and where they come from; of equal shape, and of one element size or with dtypes."""


def copy_in_bulk(pairs: Sequence[Pair], device: torch.device) -> Callable[[], None]:
    """Make a function that copies all pairs, any number of times.

    On the CPU one call loops over them; on CUDA a few kernels do, see
    :class:`reshard_executors.device_copies.DeviceCopies`, or one per box where Triton is not installed. Boxes
    whose elements are converted are one call for all on the CPU, too, and one kernel each on CUDA.

    Args:
        pairs: places that do not overlap, but that a pair may be one place.
        device: where all of them lie.
    """
    moving = [pair for pair in pairs if not stays(pair)]
    plain = [pair for pair in moving if pair[0].dtype == pair[1].dtype]
    steps = []
    if plain:
        steps.append(_plain_copies(plain, device))
    if len(plain) < len(moving):
        steps.append(conversions([pair for pair in moving if pair[0].dtype != pair[1].dtype]))
    if len(steps) < 2:
        return steps[0] if steps else _nothing

    def copy() -> None:
        for step in steps:
            step()

    return copy


def _plain_copies(pairs: Sequence[Pair], device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        from reshard_executors.device_copies import DeviceCopies  # noqa: PLC0415 - only where CUDA is

        return DeviceCopies(pairs, device).run
    both = [alike(*pair) for pair in pairs]
    targets, sources = [target for target, _ in both], [source for _, source in both]

    def copy() -> None:
        torch._foreach_copy_(targets, sources)

    return copy


def stays(pair: Pair) -> bool:
    """Whether both places are one, so that there is nothing to copy."""
    target, source = pair
    steps = zip(target.shape, target.strides, source.strides, strict=True)
    same = target.address == source.address and target.dtype == source.dtype
    return same and all(extent < 2 or a == b for extent, a, b in steps)


def _nothing() -> None:
    """Copy nothing."""
