"""The upper half of a pipeline picture: slots across, ranks down, and in each cell what moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reshard_planner.render.pipeline.counts import Work, WorkCounts
from reshard_planner.render.pipeline.marks import (
    GAP,
    LANE,
    LEFT,
    LOOKS,
    RIGHT,
    ROW,
    WIDTH,
    box,
    fill,
    hover,
    number,
    path,
    text,
    zigzag,
)
from reshard_planner.render.pipeline.rows import PictureRows
from reshard_planner.render.pipeline.scales import full_height
from reshard_planner.render.places import RankPlace
from reshard_planner.render.text import format_nbytes

MAX_CELL_WIDTH = 120

AXIS = 18
"""Height of the numbers of slots."""

SCALES = {
    Work.INJECT: 0,
    Work.RELAY: 0,
    Work.ARRIVE: 0,
    Work.FANOUT: 1,
    Work.HANDOFF: 1,
    Work.COPY: 2,
    Work.PACK: 2,
}
"""Kinds of work of one number have one scale."""


def used_works(counts: WorkCounts) -> tuple[Work, ...]:
    """Kinds of work of which a plan has any, in their order."""
    return tuple(work for work in Work if counts.nbytes[work].any())


def full_bars(counts: WorkCounts) -> dict[Work, int]:
    """Bytes that a bar of full height stands for, by kind of work."""
    by_scale = {
        scale: int(full_height(counts.nbytes[[work for work in Work if SCALES[work] == scale]]))
        for scale in set(SCALES.values())
    }
    return {work: by_scale[SCALES[work]] for work in Work}


def draw_slots(rows: PictureRows, counts: WorkCounts, top: float) -> tuple[list[str], float]:
    """The cells, their axis and the names of their rows.

    Args:
        rows: ranks of each row.
        counts: their bytes.
        top: where to begin, in points.

    Returns:
        Elements, and where they end.
    """
    happens = np.asarray(counts.nbytes.any(axis=2))
    width = min(MAX_CELL_WIDTH, (WIDTH - LEFT - RIGHT) / counts.columns)
    parts = _axis(counts, width, top)
    first = y = top + AXIS
    full = full_bars(counts)
    for at, place in enumerate(rows.places):
        works = tuple(work for work in Work if happens[work, at])
        if not works:
            continue
        height = row_height(len(works))
        parts += row_names(place, [LOOKS[work].name for work in works], y)
        parts.append(path(box(LEFT, y, width * counts.columns, height), "band"))
        for column in np.flatnonzero(counts.nbytes[:, at].any(axis=0)).tolist():
            moved = {work: int(counts.nbytes[work, at, column]) for work in works}
            words = f"{slots_of(counts, column)}, {place.name}, {place.where}"
            parts.append(_cell(words, moved, full, (LEFT + width * column, y, width)))
        y += height + GAP
    lines = "".join(
        f"M{number(LEFT + width * column)} {number(first)}V{number(y - GAP)}"
        for column in range(counts.columns + 1)
    )
    return [*parts, path(lines, "grid")], y


def row_height(lanes: int) -> float:
    """Height of a row with so many lanes."""
    return max(ROW, LANE * lanes)


def first_lane(y: float, lanes: int) -> float:
    """Where the lanes of a row begin that begins at ``y``: they stand in its middle."""
    return y + (row_height(lanes) - LANE * lanes) / 2


def row_names(place: RankPlace, lanes: Sequence[str], y: float) -> list[str]:
    """What stands at the left of a row: its ranks, where they are, and its lanes."""
    middle = y + row_height(len(lanes)) / 2
    names = [text(8, middle - 2, place.name), text(8, middle + 12, place.where, "small faint")]
    begin = first_lane(y, len(lanes))
    for at, lane in enumerate(lanes):
        names.append(text(LEFT - 6, begin + LANE * (at + 1) - 3, lane, "small faint", "end"))
    return names


def slots_of(counts: WorkCounts, column: int) -> str:
    """The slots of a column, in words."""
    first = column * counts.per_column
    last = min(counts.slots, first + counts.per_column) - 1
    return f"slot {first}" if first == last else f"slots {first}-{last}"


def _axis(counts: WorkCounts, width: float, top: float) -> list[str]:
    """Numbers of slots above the columns, as many as there is room for."""
    every = max(1, -(-40 // int(max(1, width))))
    columns = range(0, counts.columns, every)
    numbers = [
        text(LEFT + width * column + 2, top + 12, str(column * counts.per_column), "faint")
        for column in columns
    ]
    return [text(LEFT - 6, top + 12, "slot", "faint", "end"), *numbers]


def _cell(
    words: str, moved: Mapping[Work, int], full: Mapping[Work, int], place: tuple[float, float, float]
) -> str:
    """One cell: a bar per kind of work, clipped where it is above the scale, and on hover its bytes."""
    x, y, width = place
    lines, bars = [words], [path(box(x, y, width, row_height(len(moved))), "cell")]
    for at, (work, nbytes) in enumerate(moved.items()):
        if not nbytes:
            continue
        lines.append(f"{LOOKS[work].name}: {format_nbytes(nbytes)}")
        base = first_lane(y, len(moved)) + LANE * (at + 1)
        high = max(1.0, (LANE - 1) * min(1.0, nbytes / full[work]))
        bars.append(path(box(x + 0.5, base - high, width - 1, high), fill(work)))
        if nbytes > full[work]:
            bars.append(zigzag(x + 0.5, base - LANE / 2 + 1.5, width - 1))
    return hover(lines, *bars)
