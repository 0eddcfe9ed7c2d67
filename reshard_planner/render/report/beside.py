"""A plan beside other strategies, as an HTML table of bars and figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from reshard_planner.ir.plan import Plan
from reshard_planner.render.report.alternatives import Alternative
from reshard_planner.render.text import format_nbytes, format_s

HEADS = ("Strategy", "Payload", "NVLink", "Busiest port", "Time", "against this plan")
"""What the columns show."""

PREDICTED = "Times are predicted message by message, with the topology's latencies and efficiencies."
"""What the times are where runs are predicted."""

SCHEDULED = (
    "Times are those of the schedule: every slot takes as long as its busiest port at its datasheet rate, and"
    " a start-up time. Predictions, message by message, take longer to work out: report --simulate has them."
)
"""What they are elsewhere."""


def comparison(plan: Plan, mine: Alternative, others: Sequence[Alternative] | None) -> str:
    """Payload and time of a plan and of other strategies.

    Args:
        plan: the plan.
        mine: its own figures.
        others: those of the others; None where they were not planned.

    Returns:
        HTML. All rows have times of one sort: predicted where any is, else those of schedules.
    """
    if others is None:
        return '<p class="note">Other strategies were not planned for this report.</p>'
    rows = [mine, *others]
    predicted = any(row.predicted_s is not None for row in rows)
    times = [row.predicted_s if predicted else row.schedule_s for row in rows]
    table = _Table(plan, rows, times)
    body = "".join(table.row(number) for number in range(len(rows)))
    names = [
        f"{name} {'predicted' if predicted else 'by schedule'}" if name == "Time" else name for name in HEADS
    ]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f'<div class="scroll"><table class="compare"><thead><tr>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="note">{PREDICTED if predicted else SCHEDULED}</p>'
    )


class _Table:
    """Rows whose bars have one scale."""

    def __init__(self, plan: Plan, rows: Sequence[Alternative], times: Sequence[float | None]) -> None:
        self.rows, self.times = rows, times
        self.bound_s = plan.certificate.bound.time_s
        self.least = plan.certificate.payload.minimum_network_nbytes
        self.most = max(row.network_nbytes or 0 for row in rows)
        self.longest_s = max(time_s or 0.0 for time_s in times)

    def row(self, number: int) -> str:
        """One strategy; the first is the plan itself."""
        row, time_s, own_s = self.rows[number], self.times[number], self.times[0]
        own = "" if number else " <em>this plan</em>"
        head = f'<th scope="row"><bdi>{escape(row.strategy)}</bdi>{own}</th>'
        if row.network_nbytes is None:
            return f'<tr>{head}<td colspan="5" class="note">{escape(row.note)}</td></tr>'
        busiest_s = row.busiest_s or 0.0
        if time_s is None:
            time_cell = escape(row.note or "-")
        else:
            ratio = _times(time_s, self.bound_s, "T*")
            time_cell = _bar(time_s, self.longest_s, format_s(time_s), ratio, "time")
        least = _times(row.network_nbytes, self.least, "least")
        cells = (
            _bar(row.network_nbytes, self.most, format_nbytes(row.network_nbytes), least, "payload"),
            format_nbytes(row.nvlink_nbytes or 0),
            f"{format_s(busiest_s)} <small>{_times(busiest_s, self.bound_s, 'T*')}</small>",
            time_cell,
            _times(time_s, own_s, "") if time_s is not None and own_s else "-",
        )
        body = "".join(f"<td>{cell}</td>" for cell in cells)
        return f"<tr>{head}{body}</tr>" if number else f'<tr class="mine">{head}{body}</tr>'


def _times(value: float, base: float, what: str) -> str:
    """How many times ``base``, with a digit more where it is nearly that; nothing where ``base`` is 0."""
    if not base:
        return ""
    ratio = value / base
    digits = 3 if value != base and abs(ratio - 1) < 0.005 else 2
    return f"{ratio:.{digits}f} \N{MULTIPLICATION SIGN} {what}".rstrip()


def _bar(value: float, most: float, figure: str, ratio: str, name: str) -> str:
    """A bar of some length with its figure below it."""
    width = 100 * value / most if most else 0.0
    return (
        f'<span class="bar"><i class="{name}" style="width:{width:.2f}%"></i></span>'
        f"<b>{figure}</b> <small>{ratio}</small>"
    )
