"""Findings: what a check has found, and the report that they make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

LOST: Final = 75
"""Exit code when ranks were lost, or did not meet: the same command may succeed later."""

SHOWN: Final = 4
"""Runs of ranks, and names of hosts, that a sentence lists."""


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
        return spell(self.hosts) if self.hosts else "all"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found; the same on all ranks, unless they did not meet.

    Attributes:
        size: number of ranks.
        findings: in the order of the checks.
        lost: ranks that ended or stopped answering.
    """

    size: int
    findings: tuple[Finding, ...]
    lost: tuple[int, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if nothing failed, 1 if something did, 75 if ranks were lost."""
        if self.lost:
            return LOST
        return int(any(finding.level == Level.FAILURE for finding in self.findings))

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
            "exit_code": self.exit_code,
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


def spell_ranks(ranks: Iterable[int]) -> str:
    """Ranks in words, in few of them.

    >>> spell_ranks([3]), spell_ranks([0, 1, 2, 7]), spell_ranks(range(0, 20, 2))
    ('rank 3', 'ranks 0-2 and 7', 'ranks 0, 2, 4, 6 and 6 more')
    """
    found = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in found:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(words) > SHOWN:
        hidden = sum(last - first + 1 for first, last in runs[SHOWN:])
        words = [*words[:SHOWN], f"{hidden} more"]
    return f"rank{'s' * (len(found) != 1)} {_joined(words)}"


def spell(names: Sequence[str]) -> str:
    """Names in words, in few of them.

    >>> spell(["a", "b", "c"]), spell(list("abcdefg"))
    ('a, b and c', 'a, b, c, d and 3 more')
    """
    if len(names) > SHOWN:
        return _joined([*names[:SHOWN], f"{len(names) - SHOWN} more"])
    return _joined(names)


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"


def spell_nbytes(nbytes: float) -> str:
    """A number of bytes for people.

    >>> spell_nbytes(3 * 2**30), spell_nbytes(1536), spell_nbytes(7)
    ('3 GiB', '1.5 KiB', '7 bytes')
    """
    for exponent, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if nbytes >= 1024**exponent:
            return f"{nbytes / 1024**exponent:.3g} {prefix}iB"
    return f"{nbytes:.0f} bytes"


def spell_rate(bytes_per_s: float) -> str:
    """A rate for people.

    >>> spell_rate(50e9), spell_rate(12_400_000)
    ('50 GB/s', '12.4 MB/s')
    """
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {prefix}B/s"
    return f"{bytes_per_s:.3g} B/s"
