"""A plan without some ranks, as text: what is impossible, unneeded or incomplete, and what has changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from reshard_planner.atoms import Ranks
from reshard_planner.layout.stored import join_boxes
from reshard_planner.render.text import align, format_count, format_nbytes, format_ranks, plain
from reshard_planner.replan import Changes, Impossible, Replan
from reshard_planner.transfer import Medium

MOST_BOXES = 3
"""Boxes of an impossible tensor that are named."""

MOST_LINES = 24
"""Lines that are written about one thing; what is behind them is counted."""

MOST_RANKS = 40
"""Characters that a set of ranks may take before its middle is left out."""

_MEDIA = (Medium.NETWORK, Medium.NVLINK, Medium.LOCAL)

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def describe(found: Replan) -> str:
    """What became of a plan, without the new plan itself.

    Returns:
        Lines without a newline at the end: a few for each pattern of names, however many tensors there are.
    """
    lines = [f"without {_ranks(found.without)}: {_left(found)}"]
    lines += _impossible(found.impossible)
    if found.unneeded:
        lines.append(
            f"not needed any more: {format_count(len(found.unneeded), 'tensor')} without destinations"
        )
        lines += _listed(found.unneeded)
    for each in found.incomplete:
        lines.append(
            f"incomplete: destination {_ranks(each.ranks)}, which lost {_ranks(each.gone)}, lacks parts of"
            f" {format_count(len(each.tensors), 'tensor')}"
        )
        lines += _listed(each.tensors)
    if found.changes is not None:
        lines += _changes(found.changes)
    return "\n".join(lines)


def name_patterns(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what they have in common: parts between dots that are numbers are left out.

    >>> name_patterns(["layers.0.up.weight", "layers.1.up.weight", "norm"])
    {'layers.*.up.weight': ['layers.0.up.weight', 'layers.1.up.weight'], 'norm': ['norm']}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_NUMBER.sub("*", name), []).append(name)
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {format_ranks(ranks, MOST_RANKS)}"


def _left(found: Replan) -> str:
    if found.plan is None:
        return "nothing is left to move, so that there is no plan"
    lost = len({each.tensor for each in found.impossible}) + len(found.unneeded)
    tensors = format_count(len(found.spec.tensors) + lost, "tensor")
    return f"{len(found.spec.tensors):,} of {tensors} planned, {format_count(len(found.spec.ranks), 'rank')}"


def _listed(names: Iterable[str]) -> list[str]:
    return _shortened(
        [
            f"  {plain(pattern)}: {len(own):,}" if len(own) > 1 else f"  {plain(own[0])}"
            for pattern, own in name_patterns(names).items()
        ]
    )


def _shortened(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], f"  and {len(lines) - MOST_LINES + 1:,} more"]


def _impossible(lost: Sequence[Impossible]) -> Iterator[str]:
    """Impossible parts by pattern of the name and by who held them; equal tensors of a pattern are one."""
    if not lost:
        return
    by_tensor: dict[str, list[Impossible]] = {}
    for each in lost:
        by_tensor.setdefault(each.tensor, []).append(each)
    alike: dict[object, list[str]] = {}
    for pattern, names in name_patterns(by_tensor).items():
        for name in names:
            parts = tuple((each.boxes, each.holders, each.needers) for each in by_tensor[name])
            alike.setdefault((pattern, parts), []).append(name)
    nbytes = format_nbytes(sum(each.nbytes for each in lost))
    yield f"impossible, and left out: {format_count(len(by_tensor), 'tensor')}, of which {nbytes} are lost"
    yield from _shortened([line for names in alike.values() for line in _lost(names, by_tensor[names[0]])])


def _lost(names: Sequence[str], lost: Sequence[Impossible]) -> Iterator[str]:
    """What tensors have lost that have all lost the same, a line for all that the same ranks held."""
    [pattern] = name_patterns(names)
    name = f"{plain(pattern)} ({len(names):,} tensors)" if len(names) > 1 else plain(names[0])
    by_holders: dict[Ranks, list[Impossible]] = {}
    for each in lost:
        by_holders.setdefault(each.holders, []).append(each)
    for holders, own in by_holders.items():
        boxes = [box for box, _ in join_boxes([box for each in own for box in each.boxes])]
        needers = sorted({rank for each in own for rank in each.needers})
        shown = " ".join(map(str, boxes[:MOST_BOXES]))
        if len(boxes) > MOST_BOXES:
            shown += f" and {len(boxes) - MOST_BOXES:,} more"
        yield f"  {name}: {shown} held by {_ranks(holders)}, needed by {_ranks(needers)}"


def _changes(changes: Changes) -> Iterator[str]:
    """Operations and bytes of both plans, as a table."""
    same, gone, new = changes.same_nbytes, changes.gone_nbytes, changes.new_nbytes
    rows = [("", "operations", *(medium.label for medium in _MEDIA))]
    for word, count, sums in (
        ("same", len(changes.before), same),
        ("gone", len(changes.gone), gone),
        ("new", len(changes.new), new),
        ("before", len(changes.before) + len(changes.gone), same + gone),
        ("after", len(changes.after) + len(changes.new), same + new),
    ):
        rows.append((word, f"{count:,}", *(format_nbytes(int(sums[medium])) for medium in _MEDIA)))
    yield align(rows)
