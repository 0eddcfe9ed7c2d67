"""Pipeline pictures: what moves in which slot, and when that happens in predicted and measured runs."""

from __future__ import annotations

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline
from reshard_planner.render.pipeline.counts import Work, WorkCounts, count_cells
from reshard_planner.render.pipeline.heights import height_words
from reshard_planner.render.pipeline.marks import LINE, LOOKS, WIDTH, box, fill, path, text, zigzag
from reshard_planner.render.pipeline.panels import FILLS, LABELS, PARTS, Panels, draw_panels
from reshard_planner.render.pipeline.rows import PictureRows, find_rows
from reshard_planner.render.pipeline.slots import draw_slots, full_bars, used_works
from reshard_planner.render.pipeline.themes import PREFIX, style_and_patterns
from reshard_planner.render.pipeline.times import measure_uses
from reshard_planner.render.text import format_count, format_nbytes, format_s, plain
from reshard_planner.topology import Ports


def pipeline_svg(plan: Plan, predicted: Timeline | None = None, measured: Timeline | None = None) -> str:
    """Draw what a plan does slot by slot, and below it what happens when.

    Slots go from left to right and ranks from top to bottom. Each cell has a bar for every kind of work: what
    the ranks inject, relay, receive from the network, fan out, hand over, copy and pack, with the bytes of
    each on hover. Ranks are joined by domain, and slots are added up, where there are many. Where some slots
    move far more than usual their bars are clipped, so that others keep a height. Timelines are drawn side by
    side on one scale, by how much of each link they use over time; a run that lasts many times as long as the
    other has its own. Colours follow the viewer's preference.

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
    if used_works(counts):
        legend, y = _legend(counts, rows, y)
        cells, y = draw_slots(rows, counts, y)
        parts += [*legend, *cells]
    else:
        y += 6
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
        f"{style_and_patterns()}{path(box(0, 0, WIDTH, height), 'paper')}{''.join(parts)}</svg>\n"
    )


def _headline(plan: Plan, counts: WorkCounts) -> str:
    payload = plan.certificate.payload
    moved = (
        f"{format_nbytes(payload.network_nbytes)} over the network",
        f"{format_nbytes(payload.nvlink_nbytes)} over NVLink",
        f"{format_nbytes(payload.local_nbytes)} within ranks",
    )
    size = f"{format_count(counts.slots, 'slot')}, {format_count(len(plan.ranks), 'rank')}"
    return f"{size}, strategy {plain(plan.spec.options.strategy)}: {', '.join(moved)}"


def _legend(counts: WorkCounts, rows: PictureRows, y: float) -> tuple[list[str], float]:
    """What bars mean, what a full one stands for, and what is not shown."""
    full, parts = full_bars(counts), []
    clipped = False
    for work in used_works(counts):
        total, largest = int(counts.nbytes[work].sum()), int(counts.nbytes[work].max())
        words = (
            f"{LOOKS[work].meaning}: {format_nbytes(total)} in all; a full bar is {format_nbytes(full[work])}"
        )
        if largest > full[work]:
            clipped = True
            words += f", a clipped one up to {format_nbytes(largest)}"
        parts += _entry(work, LOOKS[work].name, words, y)
        y += LINE
    sizes = {len(place.ranks) for place in rows.places}
    many = format_count(max(sizes), "rank") + (" at most" if len(sizes) > 1 else "")
    cell = f"A cell is {format_count(counts.per_column, 'slot')} of {many}."
    notes = [
        f"{cell} Its bars stand from top to bottom in this order, those that its row has; hover for bytes."
    ]
    if clipped:
        parts += [path(box(8, y - 10, 24, 11), fill(Work.INJECT)), zigzag(8, y - 3, 24)]
        parts.append(text(40, y, "clipped: the bar does not fit, since it is far above what most slots move"))
        y += LINE
    if not counts.packed:
        notes.append("What ranks pack is not worked out for so many operations.")
    for note in notes:
        parts.append(text(8, y, note))
        y += LINE
    return parts, y - LINE + 10


def _timelines(
    plan: Plan, rows: PictureRows, timelines: list[tuple[str, Timeline]], y: float
) -> tuple[list[str], float]:
    """Heading, legend and panels."""
    ports = Ports.of(plan.spec.topology, plan.ranks)
    uses = measure_uses(timelines, rows, ports, PARTS)
    panels = Panels(rows, ports, plan.certificate.bound.time_s, uses)
    parts = [text(8, y, "What happens when", "title")]
    y += LINE
    free = [
        f"Packing and unpacking are taken as free in the {title} run: no rate of packing was given."
        for title in panels.free_packing()
    ]
    if not panels.shown():
        parts.append(text(8, y + 6, "Nothing happens in the timelines.", "head"))
        for note in free:
            y += LINE
            parts.append(text(8, y + 6, note))
        return parts, y
    heights = panels.heights()
    named = [(use.title, each) for use, each in zip(uses, heights, strict=True)]
    for lane in panels.lanes():
        words = height_words(lane, rows, ports, panels.shown(), named)
        parts += _entry(FILLS[lane], LABELS[lane], words, y)
        y += LINE
    means = dict.fromkeys(format_s(use.span_s / PARTS) for use in uses)
    notes = [f"All heights are means over {' and '.join(means)}. Upright line: the end of the run."]
    notes += free
    if any(0 < panels.bound_s <= use.span_s for use in uses):
        notes[0] += " Dashed line: T*, which no plan of least payload can beat."
    if not panels.one_scale:
        notes.append("One run is many times as long as the other: each has its own scale of time and height.")
    if any(each.above(use) for use, each in zip(uses, heights, strict=True)):
        notes.append("Line on top of a lane: for that time it was above full height.")
    for note in notes:
        parts.append(text(8, y, note))
        y += LINE
    drawn, y = draw_panels(panels, y - 6)
    return [*parts, *drawn], y + LINE


def _entry(work: Work, name: str, words: str, y: float) -> list[str]:
    """One line of a legend."""
    return [path(box(8, y - 10, 24, 11), fill(work)), text(40, y, name), text(116, y, words, "faint")]
