"""A plan beside other strategies, as an HTML table of bars and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from reshard_planner.ir.plan import Plan
from reshard_planner.render.comparison import (
    BOUND_NOTE,
    REFERENCE,
    REFERENCE_REASON,
    bound_note,
    format_times,
    times_over,
)
from reshard_planner.render.report.alternatives import Alternative
from reshard_planner.render.report.sections import explained
from reshard_planner.render.text import format_nbytes, format_s
from reshard_planner.routing import STRATEGIES

PREDICTED = "Times are predicted message by message, with the topology's latencies and efficiencies."
"""What the times are where runs are predicted."""

SCHEDULED = (
    "Times are those of the schedule: every slot takes as long as its busiest port at its datasheet rate, and"
    " a start-up time. Predictions, message by message, take longer to work out: report --simulate has them."
)
"""What they are where runs are not, but every strategy was scheduled."""

ROUTED = (
    "Times are those of the busiest port, for its bytes at its datasheet rate, which no run is faster than;"
    " how much longer a run takes differs between strategies. They come from routes alone, without schedules:"
    " report --simulate plans and predicts every strategy, and compare SPEC does, which takes minutes for"
    " whole models. Limits of peers are not looked at."
)
"""What they are where other strategies were only routed."""

UNPLANNED = (
    "Other strategies were not planned for this report: reshard-planner report SPEC|PLAN -o FILE.html,"
    " without --no-baselines, plans them, and reshard-planner compare SPEC prints them."
)
"""What is said where there is nothing to compare with."""

PUBLISHED = (
    "the page \N{LEFT DOUBLE QUOTATION MARK}Published refit times, explained\N{RIGHT DOUBLE QUOTATION MARK}"
    " of the documentation, docs/published.md, compares with measured ones"
)
"""Where there is more on speedups."""

BUSIEST = ("busiest port", "x bound")
"""Heads of the columns of busiest ports, where there are other times beside them."""


def comparison(plan: Plan, mine: Alternative, others: Sequence[Alternative] | None) -> str:
    """Payload and time of a plan and of other strategies, in the words of ``compare``.

    Args:
        plan: the plan.
        mine: its own figures.
        others: those of the others; None where they were not planned.

    Returns:
        HTML. All rows have times of one sort: those of the busiest port where a strategy was only routed,
        else predicted ones where there are any, else those of schedules.
    """
    if others is None:
        return f'<p class="note">{escape(UNPLANNED)}</p>'
    rows = [mine, *others]
    times = _times_of(rows)
    table = _Table(plan, rows, times)
    body = "".join(table.row(number) for number in range(len(rows)))
    head = "".join(f'<th scope="col">{explained(name)}</th>' for name in ("strategy", *table.heads))
    notes = [*times.notes]
    if table.reference_s is not None:
        notes.append(f"{REFERENCE_REASON}; {PUBLISHED}")
    return (
        f'<table class="compare"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        + "".join(f'<p class="note">{explained(note)}</p>' for note in notes)
        + _summaries([row.strategy for row in rows])
    )


def _summaries(names: Sequence[str]) -> str:
    """What each strategy does, in a line; nothing of names that no strategy has."""
    known = [(name, STRATEGIES[name].summary) for name in names if name in STRATEGIES]
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(summary)}</dd>" for name, summary in known)
    return f'<dl class="terms strategies">{terms}</dl>'


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of one sort.

    Attributes:
        of: the time of a strategy, in seconds; None where it has none.
        heads: of the columns of times and speedups, after those of all that is known beside times.
        ratio: what a time over T* is called.
        notes: what the times are, and what they are compared with.
    """

    of: Callable[[Alternative], float | None]
    heads: tuple[str, ...]
    ratio: str
    notes: tuple[str, str]


BY_PREDICTION = _Times(
    lambda row: row.predicted_s,
    (*BUSIEST, "predicted", "speedup"),
    "T*",
    (PREDICTED, bound_note("predicted time")),
)
BY_SCHEDULE = _Times(
    lambda row: row.schedule_s,
    (*BUSIEST, "by schedule", "speedup by schedule"),
    "T*",
    (SCHEDULED, bound_note("time by schedule")),
)
BY_ROUTES = _Times(
    lambda row: row.busiest_s, (BUSIEST[0], "speedup by busiest port"), "bound", (ROUTED, BOUND_NOTE)
)


def _times_of(rows: Sequence[Alternative]) -> _Times:
    """The times that all rows can have."""
    if any(row.network_nbytes is not None and row.schedule_s is None for row in rows):
        return BY_ROUTES
    return BY_PREDICTION if any(row.predicted_s is not None for row in rows) else BY_SCHEDULE


class _Table:
    """Rows whose bars have one scale."""

    def __init__(self, plan: Plan, rows: Sequence[Alternative], times: _Times) -> None:
        self.rows = rows
        self.times = [times.of(row) for row in rows]
        self.ratio = times.ratio
        self.heads = ("network", "NVLink", *times.heads)
        self.bound_s = plan.certificate.bound.time_s
        self.least = plan.certificate.payload.minimum_network_nbytes
        self.most = max(row.network_nbytes or 0 for row in rows)
        self.longest_s = max(time_s or 0.0 for time_s in self.times)
        by_name = dict(zip((row.strategy for row in rows), self.times, strict=True))
        self.reference_s = by_name.get(REFERENCE)

    def row(self, number: int) -> str:
        """One strategy; the first is the plan itself."""
        row, time_s = self.rows[number], self.times[number]
        own = "" if number else " <em>this plan</em>"
        head = f'<th scope="row"><bdi>{escape(row.strategy)}</bdi>{own}</th>'
        if row.network_nbytes is None:
            return f'<tr>{head}<td colspan="{len(self.heads)}" class="note">{escape(row.note)}</td></tr>'
        if time_s is None:
            time_cell = escape(row.note or "-")
        else:
            ratio = _times(time_s, self.bound_s, self.ratio)
            time_cell = _bar(time_s, self.longest_s, format_s(time_s), ratio, "time")
        least = _times(row.network_nbytes, self.least, "minimum")
        busiest_s = row.busiest_s or 0.0
        busiest = (format_s(busiest_s), format_times(times_over(busiest_s, self.bound_s)))
        cells = (
            _bar(row.network_nbytes, self.most, format_nbytes(row.network_nbytes), least, "payload"),
            format_nbytes(row.nvlink_nbytes or 0),
            *(busiest if self.heads[2:4] == BUSIEST else ()),
            time_cell,
            format_times(times_over(self.reference_s, time_s)),
        )
        body = "".join(
            f'<td data-head="{name}">{cell}</td>' for name, cell in zip(self.heads, cells, strict=True)
        )
        return f"<tr>{head}{body}</tr>" if number else f'<tr class="mine">{head}{body}</tr>'


def _times(value: float, base: float, what: str) -> str:
    """How many times ``base``, as ``compare`` gives it; nothing where ``base`` is 0."""
    times = times_over(value, base)
    return "" if times is None else f"{format_times(times)} x {what}"


def _bar(value: float, most: float, figure: str, ratio: str, name: str) -> str:
    """A bar of some length with its figure below it."""
    width = 100 * value / most if most else 0.0
    return (
        f'<span class="bar"><i class="{name}" style="width:{width:.2f}%"></i></span>'
        f"<b>{figure}</b> <small>{explained(ratio)}</small>"
    )
