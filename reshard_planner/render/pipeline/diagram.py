"""Pipeline pictures: what moves in which slot, and when that happens in predicted and measured runs."""

from __future__ import annotations

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline
from reshard_planner.render.pipeline.counts import Counts, Kind, count_cells
from reshard_planner.render.pipeline.marks import (
    LOOKS,
    PREFIX,
    WIDTH,
    box,
    fill,
    path,
    style_and_patterns,
    text,
)
from reshard_planner.render.pipeline.panels import FILLS, LABELS, PARTS, Panels, draw_panels, meanings
from reshard_planner.render.pipeline.rows import Rows, find_rows
from reshard_planner.render.pipeline.slots import draw_slots, largest_cells, used_kinds
from reshard_planner.render.pipeline.times import measure_uses
from reshard_planner.render.text import format_count, format_nbytes, format_s, plain
from reshard_planner.topology import Ports

LINE = 16
"""Height of a line of text, in points."""


def pipeline_svg(plan: Plan, predicted: Timeline | None = None, measured: Timeline | None = None) -> str:
    """Draw what a plan does slot by slot, and below it what happens when.

    Slots go from left to right and ranks from top to bottom. Each cell has a bar for every kind of work: what
    the ranks inject, relay, receive from the network, fan out, hand over, copy and pack, with the bytes of
    each on hover. Ranks are joined by domain, and slots are added up, where there are many. Timelines are
    drawn side by side on one scale, by how much of each link they use over time.

    Args:
        plan: the plan.
        predicted: events of a predicted run, as :func:`reshard_planner.simulate.timeline_of` gives them.
        measured: events of a measured run.

    Returns:
        An SVG document without anything from elsewhere; the same text for the same arguments.

    Raises:
        VerificationError: if an operation moves what its rank does not have.
        TopologyError: if a rank runs on no GPU of the topology.
    """
    rows = find_rows(plan)
    counts = count_cells(plan, rows)
    parts = [text(8, 24, "What moves in each slot", "title"), text(8, 24 + LINE, _headline(plan, counts))]
    y = 24.0 + 2 * LINE
    if used_kinds(counts):
        legend, y = _legend(counts, rows, y)
        cells, y = draw_slots(rows, counts, y)
        parts += [*legend, *cells]
    else:
        parts.append(text(8, y, "No bytes move: every rank already has what it needs.", "head"))
        y += LINE
    timelines = [
        (title, timeline)
        for title, timeline in (("predicted", predicted), ("measured", measured))
        if timeline is not None
    ]
    if timelines:
        drawn, y = _timelines(plan, rows, timelines, y + 2 * LINE)
        parts += drawn
    height = int(y + LINE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{PREFIX}" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Pipeline of a plan">'
        f'{style_and_patterns()}<path d="M0 0H{WIDTH}V{height}H0Z" fill="#FFFFFF"/>{"".join(parts)}</svg>\n'
    )


def _headline(plan: Plan, counts: Counts) -> str:
    payload = plan.certificate.payload
    moved = (
        f"{format_nbytes(payload.network_nbytes)} over the network",
        f"{format_nbytes(payload.nvlink_nbytes)} over NVLink",
        f"{format_nbytes(payload.local_nbytes)} within ranks",
    )
    size = f"{format_count(counts.slots, 'slot')}, {format_count(len(plan.ranks), 'rank')}"
    return f"{size}, strategy {plain(plan.spec.options.strategy)}: {', '.join(moved)}"


def _legend(counts: Counts, rows: Rows, y: float) -> tuple[list[str], float]:
    """What bars mean, what a full one stands for, and what is not shown."""
    full, parts = largest_cells(counts), []
    for kind in used_kinds(counts):
        total = format_nbytes(int(counts.nbytes[kind].sum()))
        words = f"{LOOKS[kind].meaning}: {total} in all; a full bar is {format_nbytes(full[kind])}"
        parts += _entry(kind, LOOKS[kind].name, words, y)
        y += LINE
    sizes = {len(row.ranks) for row in rows.rows}
    many = format_count(max(sizes), "rank") + (" at most" if len(sizes) > 1 else "")
    words = (
        f"A cell is {format_count(counts.per_column, 'slot')} of {many}. Its bars stand in this order from"
    )
    words += " top to bottom, those that its row has; hover for bytes."
    if not counts.packed:
        words += " What ranks pack is not worked out for so many operations."
    return [*parts, text(8, y, words)], y + 8


def _timelines(
    plan: Plan, rows: Rows, timelines: list[tuple[str, Timeline]], y: float
) -> tuple[list[str], float]:
    """Heading, legend and panels."""
    ports = Ports.of(plan.spec.topology, plan.ranks)
    uses, span_s = measure_uses(timelines, rows, ports, PARTS)
    panels = Panels(rows, ports, span_s, plan.certificate.bound.time_s, uses)
    parts = [text(8, y, "What happens when", "title")]
    y += LINE
    if not panels.shown():
        return [*parts, text(8, y, "Nothing happens in the timelines.", "head")], y
    for lane, words in meanings(panels):
        parts += _entry(FILLS[lane], LABELS[lane], words, y)
        y += LINE
    marks = "Thick line: the end of the run."
    if 0 < panels.bound_s <= span_s:
        marks += " Dashed line: T*, which no plan of least payload can beat."
    parts.append(text(8, y, f"All heights are means over {format_s(span_s / PARTS)}. {marks}"))
    drawn, y = draw_panels(panels, y + 12)
    return [*parts, *drawn], y + LINE


def _entry(kind: Kind, name: str, words: str, y: float) -> list[str]:
    """One line of a legend."""
    return [path(box(8, y - 9, 24, 10), fill(kind)), text(40, y, name), text(108, y, words, "faint")]
