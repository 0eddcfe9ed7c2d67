"""Where things of one column stand: each as near as there is room to where it would like to be."""

from __future__ import annotations

from collections.abc import Sequence


def spread(wanted: Sequence[float], heights: Sequence[float], gap: float) -> list[float]:
    """Centres that do not overlap, with the least sum of squared distances from those wanted.

    They keep the order of what they want, equal ones their own. Neighbours that are in each other's way are
    moved together, to where they would like to be on average.

    Args:
        wanted: centre that each would like to have.
        heights: of each.
        gap: least room from one to the next.

    >>> spread([50, 0, 0], [10, 10, 10], 2)
    [50.0, -6.0, 6.0]
    """
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    groups: list[tuple[int, float, float]] = []  # that touch: how many, sum of their wanted tops, length
    for at in order:
        groups.append((1, wanted[at] - heights[at] / 2, heights[at]))
        while len(groups) > 1:
            (above, first, length), (below, second, more) = groups[-2:]
            if first / above + length + gap <= second / below:
                break
            joined = first + second - below * (length + gap)
            groups[-2:] = [(above + below, joined, length + gap + more)]
    centres = [0.0] * len(wanted)
    rest = iter(order)
    for count, total, _ in groups:
        top = total / count
        for _, at in zip(range(count), rest, strict=False):
            centres[at] = top + heights[at] / 2
            top += heights[at] + gap
    return centres
