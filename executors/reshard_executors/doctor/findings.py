"""Findings: what a check has found, and the report that they make up."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reshard_executors.spelling import spell_names, spell_ranks

LEAST_WIDTH: Final = 40
"""Columns that sentences have at least, on however narrow a terminal."""

MOST_WHERE: Final = 24
"""Columns that say what a finding is about; longer ones begin the sentence instead."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found.

    Attributes:
        check: name of the check.
        level: how bad it is.
        text: a sentence that says what is, what was expected, and what follows.
        ranks: of the world that it is about; none if it is about hosts, or about all ranks.
        hosts: names of the hosts that it is about.
    """

    check: str
    level: Level
    text: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What it is about, in a few words."""
        if self.ranks:
            return spell_ranks(self.ranks)
        return spell_names(self.hosts) if self.hosts else "all"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found; the same on all ranks, unless they did not meet.

    Attributes:
        size: number of ranks.
        findings: in the order of the checks.
        lost: ranks that ended or stopped answering, or did not meet this one.
    """

    size: int
    findings: tuple[Finding, ...]
    lost: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return has_failure(self.findings)

    @property
    def summary(self) -> str:
        """How many findings there are of each level."""
        count = Counter(finding.level for finding in self.findings)
        return ", ".join(f"{count[level]} {level}" for level in Level)

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "ranks": self.size,
            "lost": list(self.lost),
            "findings": [
                {
                    "check": finding.check,
                    "level": finding.level.value,
                    "ranks": list(finding.ranks),
                    "hosts": list(finding.hosts),
                    "text": finding.text,
                }
                for finding in self.findings
            ],
        }

    def to_text(self, width: int) -> str:
        """For people: a table of level, check, what it is about and the sentence, then a line of totals.

        Args:
            width: columns of the terminal.
        """
        rows = [_row(finding) for finding in self.findings]
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
        ranks = "this host alone" if self.size == 1 else f"{self.size} ranks"
        return "\n".join([*lines, f"{ranks}: {self.summary}"])


def _row(finding: Finding) -> tuple[str, str, str, str]:
    where, text = finding.where, finding.text
    if len(where) > MOST_WHERE:
        where, text = (
            f"{len(finding.ranks or finding.hosts)} {'ranks' if finding.ranks else 'hosts'}",
            f"{where}: {text}",
        )
    return finding.level.value, finding.check, where, text


def has_failure(findings: Iterable[Finding]) -> bool:
    """Whether any of them is a failure."""
    return any(finding.level == Level.FAILURE for finding in findings)


def alike(check: str, level: Level, texts: Mapping[str, str]) -> list[Finding]:
    """Findings about hosts: one for each text, about all hosts that it was found on.

    Args:
        check: name of the check.
        level: how bad they are.
        texts: sentence per host.
    """
    hosts: dict[str, list[str]] = {}
    for host, text in texts.items():
        hosts.setdefault(text, []).append(host)
    return [Finding(check, level, text, hosts=tuple(found)) for text, found in hosts.items()]
