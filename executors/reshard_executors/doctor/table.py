"""A report as a table of text."""

from __future__ import annotations

import textwrap

from reshard_executors.doctor.findings import Finding, Report

LEAST_WIDTH = 40
"""Columns that sentences have at least, on however narrow a terminal."""

MOST_WHERE = 24
"""Columns that say what a finding is about; longer ones begin the sentence instead."""


def table(report: Report, width: int) -> str:
    """Lines of a report: level, check, what it is about, and the sentence; then a line of totals.

    Args:
        report: the report.
        width: columns of the terminal.
    """
    rows = [_row(finding) for finding in report.findings]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    indent = sum(widths) + 6
    lines = []
    for row in rows:
        head = "  ".join(word.ljust(size) for word, size in zip(row, widths, strict=False))
        text = textwrap.wrap(
            row[3], max(width - indent, LEAST_WIDTH), break_long_words=False, break_on_hyphens=False
        )
        lines.append(f"{head}  {text[0]}")
        lines.extend(f"{'':{indent}}{line}" for line in text[1:])
    ranks = "this host alone" if report.size == 1 else f"{report.size} ranks"
    return "\n".join([*lines, f"{ranks}: {report.summary}"])


def _row(finding: Finding) -> tuple[str, str, str, str]:
    where, text = finding.where, finding.text
    if len(where) > MOST_WHERE:
        where, text = (
            f"{len(finding.ranks or finding.hosts)} {'ranks' if finding.ranks else 'hosts'}",
            f"{where}: {text}",
        )
    return finding.level.value, finding.check, where, text
