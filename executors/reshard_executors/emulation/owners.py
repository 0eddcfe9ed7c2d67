"""Names of clusters, which tell whose they are: of a process that runs, or of one that is gone."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TAG = re.compile(r"(reshard-(\d+)-(\d+)-[0-9a-f]+)-\w+")
_STATE, _START = 0, 19


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told from later ones of the same number by when it started.

    Attributes:
        pid: its number.
        start: when it started, in clock ticks since the system did.
    """

    pid: int
    start: int

    @classmethod
    def this(cls) -> Owner:
        """The running process."""
        found = _started(os.getpid())
        return cls(os.getpid(), 0 if found is None else found)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return _started(self.pid) == self.start

    def new_tag(self) -> str:
        """A name for one more cluster of the process."""
        return f"reshard-{self.pid}-{self.start}-{secrets.token_hex(3)}"


def _started(pid: int) -> int | None:
    """When a process started; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[_STATE] in "ZX" else int(fields[_START])


def of_tag(names: Iterable[str], tag: str) -> list[str]:
    """Those of some names that belong to a cluster, sorted."""
    return sorted(name for name in names if name.startswith(f"{tag}-"))


def stale(names: Iterable[str]) -> list[str]:
    """Those of some names that belong to clusters whose owner is gone, sorted."""
    found = []
    for name in names:
        match = _TAG.fullmatch(name)
        if match is not None and not Owner(int(match[2]), int(match[3])).alive:
            found.append(name)
    return sorted(found)
