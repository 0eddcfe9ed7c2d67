"""The upper half of a pipeline picture: slots across, ranks down, and in each cell what moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reshard_planner.render.pipeline.counts import Counts, Kind
from reshard_planner.render.pipeline.marks import (
    LEFT,
    LOOKS,
    RIGHT,
    WIDTH,
    box,
    fill,
    hover,
    number,
    path,
    text,
)
from reshard_planner.render.pipeline.rows import Row, Rows
from reshard_planner.render.text import format_nbytes

HEIGHT = 940
"""Height of all cells together that is aimed at, in points."""

LEAST_LANE, MOST_LANE = 5, 16
"""Heights of one kind within a row."""

NAMED_LANE = 7.5
"""Height from which a kind has its name beside every row."""

TWO_LINES = 22
"""Height from which a row has its names on two lines."""

GAP = 5
"""Height between rows."""

MAX_CELL_WIDTH = 120

SCALES = {
    Kind.INJECT: 0,
    Kind.RELAY: 0,
    Kind.ARRIVE: 0,
    Kind.FANOUT: 1,
    Kind.HANDOFF: 1,
    Kind.COPY: 2,
    Kind.PACK: 2,
}
"""Kinds of one number have one scale."""


def used_kinds(counts: Counts) -> tuple[Kind, ...]:
    """Kinds of work of which a plan has any, in their order."""
    return tuple(kind for kind in Kind if counts.nbytes[kind].any())


def largest_cells(counts: Counts) -> dict[Kind, int]:
    """Bytes that a bar of full height stands for, by kind."""
    largest = counts.nbytes.max(axis=(1, 2), initial=0).tolist()
    return {kind: max(largest[each] for each in Kind if SCALES[each] == SCALES[kind]) for kind in Kind}


def draw_slots(rows: Rows, counts: Counts, top: float) -> tuple[list[str], float]:
    """The cells, their axis and the names of their rows.

    Args:
        rows: ranks of each row.
        counts: their bytes.
        top: where to begin, in points.

    Returns:
        Elements, and where they end.
    """
    happens = np.asarray(counts.nbytes.any(axis=2))
    shown = [at for at in range(len(rows.rows)) if happens[:, at].any()]
    lane = min(MOST_LANE, max(LEAST_LANE, (HEIGHT - GAP * len(shown)) / max(1, int(happens.sum()))))
    two_lines = lane * int(happens.sum(axis=0)[shown].min()) >= TWO_LINES
    width = min(MAX_CELL_WIDTH, (WIDTH - LEFT - RIGHT) / counts.columns)
    parts, y = _axis(counts, width, top)
    first = y
    full = largest_cells(counts)
    for at in shown:
        row = rows.rows[at]
        kinds = tuple(kind for kind in Kind if happens[kind, at])
        parts += row_names(row, y, lane * len(kinds), two_lines=two_lines)
        parts.append(path(box(LEFT, y, width * counts.columns, lane * len(kinds)), "band"))
        parts += lane_names([LOOKS[kind].name for kind in kinds], y, lane)
        parts.extend(
            _cell(row, counts, at, column, kinds, full, (LEFT + width * column, y, width, lane))
            for column in np.flatnonzero(counts.nbytes[:, at].any(axis=0)).tolist()
        )
        y += lane * len(kinds) + GAP
    lines = "".join(
        f"M{number(LEFT + width * column)} {number(first)}V{number(y - GAP)}"
        for column in range(counts.columns + 1)
    )
    return [*parts, path(lines, "line")], y


def lane_names(names: Sequence[str], y: float, lane: float) -> list[str]:
    """The names of the lanes of a row at its left, if they are high enough."""
    if lane < NAMED_LANE:
        return []
    return [
        text(LEFT - 5, y + lane * (place + 0.5) + 3, name, "lane faint", "end")
        for place, name in enumerate(names)
    ]


def row_names(row: Row, y: float, height: float, *, two_lines: bool) -> list[str]:
    """The names at the left of a row."""
    middle = y + height / 2
    if two_lines:
        return [text(8, middle - 1, row.name), text(8, middle + 9, row.place, "small faint")]
    return [text(8, middle + 4, f"{row.name}: {row.place}", "small")]


def slots_of(counts: Counts, column: int) -> str:
    """The slots of a column, in words."""
    first = column * counts.per_column
    last = min(counts.slots, first + counts.per_column) - 1
    return f"slot {first}" if first == last else f"slots {first}-{last}"


def _axis(counts: Counts, width: float, top: float) -> tuple[list[str], float]:
    """Numbers of slots above the columns, as many as there is room for."""
    every = max(1, -(-30 // int(max(1, width))))
    columns = range(0, counts.columns, every)
    numbers = [
        text(LEFT + width * column + 2, top + 10, str(column * counts.per_column), "faint")
        for column in columns
    ]
    return [text(LEFT - 5, top + 10, "slot", "faint", "end"), *numbers], top + 16


def _cell(
    row: Row,
    counts: Counts,
    at: int,
    column: int,
    kinds: tuple[Kind, ...],
    full: dict[Kind, int],
    place: tuple[float, float, float, float],
) -> str:
    """One cell: a bar per kind, and on hover its bytes."""
    x, y, width, lane = place
    words = [f"{slots_of(counts, column)}, {row.name}, {row.place}"]
    bars = [path(box(x, y, width, lane * len(kinds)), "cell")]
    for place_in_row, kind in enumerate(kinds):
        nbytes = int(counts.nbytes[kind, at, column])
        if nbytes:
            words.append(f"{LOOKS[kind].name}: {format_nbytes(nbytes)}")
            high = max(1.0, (lane - 1) * nbytes / full[kind])
            bars.append(path(box(x + 0.5, y + lane * (place_in_row + 1) - high, width - 1, high), fill(kind)))
    return hover(words, *bars)
