"""Conversions: boxes of one floating-point type written as another, while they are packed or unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from reshard_executors.views import StridedView, alike, typed


def conversions(pairs: Sequence[tuple[StridedView, StridedView]]) -> Callable[[], None]:
    """Make a function that converts all pairs, any number of times.

    Args:
        pairs: target and source, of equal shape, each with its dtype; they do not overlap.
    """
    aligned = [pair for pair in pairs if all(view.start % view.itemsize == 0 for view in pair)]
    others = [pair for pair in pairs if any(view.start % view.itemsize for view in pair)]
    targets, sources = [typed(target) for target, _ in aligned], [typed(source) for _, source in aligned]
    steps = [partial(_by_way_of_bytes, *pair) for pair in others]

    def convert() -> None:
        if targets:
            torch._foreach_copy_(targets, sources)
        for step in steps:
            step()

    return convert


def _by_way_of_bytes(target: StridedView, source: StridedView) -> None:
    """Convert where a place in a message, after elements of other sizes, is not a multiple of its own."""
    given = _dense(source)
    if source.start % source.itemsize:
        _move(given, source)
        read = typed(given)
    else:
        read = typed(source)
    if target.start % target.itemsize:
        made = _dense(target)
        typed(made).copy_(read)
        _move(target, made)
    else:
        typed(target).copy_(read)


def _move(target: StridedView, source: StridedView) -> None:
    into, out_of = alike(target, source)
    into.copy_(out_of)


def _dense(view: StridedView) -> StridedView:
    """Memory of its own for the elements of a view, in row-major order."""
    made = torch.empty(view.shape, dtype=view.dtype, device=view.storage.device)
    return StridedView(made.untyped_storage(), 0, view.shape, made.stride(), view.itemsize, view.dtype)
