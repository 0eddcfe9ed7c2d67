"""Copies in bulk: many boxes in one call, not one call per box."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from reshard_executors.views import StridedView, alike

Pair = tuple[StridedView, StridedView]
"""Where bytes go, and where they come from; of equal shape and element size."""


def copy_in_bulk(pairs: Sequence[Pair], device: torch.device) -> Callable[[], None]:
    """Make a function that copies all pairs, any number of times.

    On the CPU one call loops over them; on CUDA a few kernels do, see
    :class:`reshard_executors.device_copies.DeviceCopies`, or one per box where Triton is not installed.

    Args:
        pairs: places that do not overlap, but that a pair may be one place.
        device: where all of them lie.
    """
    moving = [pair for pair in pairs if not stays(pair)]
    if not moving:
        return _nothing
    if device.type == "cuda":
        from reshard_executors.device_copies import DeviceCopies  # noqa: PLC0415 - only where CUDA is

        return DeviceCopies(moving, device).run
    both = [alike(*pair) for pair in moving]
    targets, sources = [target for target, _ in both], [source for _, source in both]

    def copy() -> None:
        torch._foreach_copy_(targets, sources)

    return copy


def stays(pair: Pair) -> bool:
    """Whether both places are one, so that there is nothing to copy."""
    target, source = pair
    steps = zip(target.shape, target.strides, source.strides, strict=True)
    return target.address == source.address and all(extent < 2 or a == b for extent, a, b in steps)


def _nothing() -> None:
    """Copy nothing."""
