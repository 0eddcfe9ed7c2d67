"""The kernel of :mod:`reshard_executors.device_copies`, in Triton; importing this module imports Triton.

Triton comes with the CUDA builds of torch, without types and not everywhere: hence its import by name.
"""

from __future__ import annotations

from importlib import import_module

triton = import_module("triton")
tl = import_module("triton.language")


def _copy_units(
    boxes: tl.tensor,  # type: ignore[name-defined] # Triton reads annotations, and knows its own only
    dims: tl.tensor,  # type: ignore[name-defined]
    work: tl.tensor,  # type: ignore[name-defined]
    block: tl.constexpr,  # type: ignore[name-defined]
    word: tl.constexpr,  # type: ignore[name-defined]
    words: tl.constexpr,  # type: ignore[name-defined]
) -> None:
    """Copy one block of units of one box; the tables are those of :class:`CopyTable`.

    A unit is ``words`` words of the dtype ``word``. Its number within the box is taken apart into indices
    along the dimensions, the innermost first; the outermost takes what is left.
    """
    at = tl.program_id(0).to(tl.int64)
    row = boxes + 5 * tl.load(work + 2 * at)
    target = tl.load(row)
    source = tl.load(row + 1)
    count = tl.load(row + 2).to(tl.int32)
    dim = dims + 3 * tl.load(row + 3)
    levels = tl.load(row + 4).to(tl.int32)
    rest = tl.load(work + 2 * at + 1).to(tl.int32) + tl.arange(0, block)
    live = rest < count
    into = tl.zeros([block], tl.int64) + target
    out_of = tl.zeros([block], tl.int64) + source
    for _ in range(levels - 1):
        extent = tl.load(dim).to(tl.int32)
        above = rest // extent
        index = (rest - above * extent).to(tl.int64)
        into += index * tl.load(dim + 1)
        out_of += index * tl.load(dim + 2)
        rest = above
        dim += 3
    into += rest.to(tl.int64) * tl.load(dim + 1)
    out_of += rest.to(tl.int64) * tl.load(dim + 2)
    step = tl.arange(0, words)[None, :]
    targets = into.to(tl.pointer_type(word))[:, None] + step
    sources = out_of.to(tl.pointer_type(word))[:, None] + step
    if words == 2:  # lets the compiler move both words at once
        targets = tl.max_contiguous(tl.multiple_of(targets, [1, 16]), [1, 2])
        sources = tl.max_contiguous(tl.multiple_of(sources, [1, 16]), [1, 2])
    tl.store(targets, tl.load(sources, mask=live[:, None]), mask=live[:, None])


copy_units = triton.jit(_copy_units)

WORDS = {16: (tl.int64, 2), 8: (tl.int64, 1), 4: (tl.int32, 1), 2: (tl.int16, 1), 1: (tl.int8, 1)}
"""Dtype and number of the words that make a unit, by its size in bytes."""
