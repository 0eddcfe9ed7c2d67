"""What is left of a launched run that did not end well: the figures of one rank alone."""

from __future__ import annotations

from typing import Any

from reshard_executors.command.summary import MEDIA, Summary, spell_sent, spell_shares, spell_times


def partial_dict(summary: Summary, asked: int) -> dict[str, Any]:
    """In plain JSON types.

    Args:
        summary: of the one rank, and of the runs that ended well.
        asked: how many runs there should have been.
    """
    [report] = summary.reports
    times = summary.times_s
    sums = {medium: summary.sent(medium) for medium in MEDIA}
    return {
        "digest": summary.plan.digest,
        "partial": {"rank": report.rank, "repeats": len(times), "asked_repeats": asked},
        "elapsed_s": {"repeats": times, "median": summary.median_s, "min": min(times), "max": max(times)},
        "sent": {
            medium: {"planned_nbytes": planned, "measured_nbytes": measured}
            for medium, (planned, measured, _) in sums.items()
        },
        "correct": summary.first_error is None if summary.checked else None,
        "first_error": summary.first_error,
    }


def partial_text(summary: Summary, asked: int) -> str:
    """For people, a line per figure; see :func:`partial_dict`."""
    [report] = summary.reports
    times = summary.times_s
    lines = [
        f"plan      {summary.plan.digest[:12]}",
        f"PARTIAL   {len(times)} of {asked} runs ended well; figures of rank {report.rank} alone",
        f"time      {spell_times(times)}",
        *(f"{medium:<9} {spell_sent(*summary.sent(medium))}" for medium in MEDIA),
    ]
    rank, repeat = summary.slowest
    if repeat.elapsed_s > 0:
        lines.append(f"shares    rank {rank}: {spell_shares(repeat)}")
    if summary.checked:
        wrong = summary.first_error
        right = f"every destination element of rank {report.rank}"
        lines.append(f"correct   {right}" if wrong is None else f"WRONG     {wrong}")
    return "\n".join(lines)
