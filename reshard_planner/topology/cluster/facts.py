"""What is known of a cluster: values, each with where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from reshard_planner.topology.wording import listed

Value = TypeVar("Value")


class Origin(StrEnum):
    """Where a value comes from, the most trustworthy first."""

    MEASURED = "measured"
    FILE = "file"
    PRESET = "preset"
    ASSUMED = "assumed"

    @property
    def trust(self) -> int:
        """Larger wins where two sources differ."""
        return len(Origin) - list(Origin).index(self)


@dataclass(frozen=True, slots=True)
class Fact(Generic[Value]):
    """One value that is known.

    Attributes:
        value: the value.
        origin: what kind of source says so.
        source: which one, such as a file's name; "" where the cluster file itself says it.
    """

    value: Value
    origin: Origin = Origin.FILE
    source: str = ""


@dataclass(frozen=True, slots=True)
class PortFacts:
    """What is known of a port's speed, per direction; None is unknown.

    Attributes:
        bytes_per_s: datasheet rate.
        efficiency: share of it that large messages reach.
        latency_s: start-up time of one message, in seconds.
    """

    bytes_per_s: Fact[int] | None = None
    efficiency: Fact[float] | None = None
    latency_s: Fact[float] | None = None

    def over(self, other: PortFacts) -> PortFacts:
        """These facts, and those of ``other`` where this port has none."""
        return PortFacts(
            self.bytes_per_s or other.bytes_per_s,
            self.efficiency or other.efficiency,
            self.latency_s or other.latency_s,
        )


class FindingKind(StrEnum):
    """What a finding about a cluster is."""

    CONFLICT = "conflict"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that people should know about a cluster, or about the file that describes it.

    Attributes:
        kind: conflict: sources differ; degraded: hardware is less than its like; unknown: a source could not
            say something, or was not understood; assumed: a value was taken without a source.
        place: what it is about, such as ``host a, GPU3``.
        text: one sentence with the consequence.

    What cannot be printed in either, as names may have it, is escaped.
    """

    kind: FindingKind
    place: str
    text: str

    def __post_init__(self) -> None:
        for name in ("place", "text"):
            given: str = getattr(self, name)
            if not given.isprintable():
                shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in given)
                object.__setattr__(self, name, shown)

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}: {self.text}"

    def to_dict(self) -> dict[str, str]:
        """In plain JSON types."""
        return {"kind": self.kind.value, "place": self.place, "text": self.text}


def join_alike(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that say the same of several places as one, which names the first and counts the others."""
    places: dict[tuple[FindingKind, str], dict[str, None]] = {}
    for finding in findings:
        places.setdefault((finding.kind, finding.text), {})[finding.place] = None
    return tuple(Finding(kind, listed(list(names), 1), text) for (kind, text), names in places.items())
