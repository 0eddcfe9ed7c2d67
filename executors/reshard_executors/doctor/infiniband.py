"""InfiniBand: ports of RDMA devices, over Ethernet as well, which are no interfaces of the network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/sys/class/infiniband")

_WORD_NBYTES: Final = 4
"""Bytes in a unit of the counters."""


def _ports() -> Iterator[tuple[str, Path]]:
    """Name and folder of every port."""
    with suppress(OSError):
        for port in sorted(_DEVICES.glob("*/ports/*")):
            yield f"{port.parent.parent.name}/{port.name}", port


def read_sent() -> dict[str, int]:
    """Bytes that have left by each port, by name."""
    found = {}
    for name, port in _ports():
        with suppress(OSError, ValueError):
            words = int((port / "counters" / "port_xmit_data").read_text(encoding="ascii"))
            found[name] = _WORD_NBYTES * words
    return found


def read_rates() -> dict[str, float]:
    """Bytes per second of each port that is active, by name."""
    found = {}
    for name, port in _ports():
        with suppress(OSError):
            rate = parse_rate((port / "rate").read_text(encoding="ascii"))
            if rate is not None and "ACTIVE" in (port / "state").read_text(encoding="ascii"):
                found[name] = rate
    return found


def parse_rate(text: str) -> float | None:
    """Bytes per second of a rate as the kernel writes it; None if it is none.

    >>> parse_rate("400 Gb/sec (4X NDR)")
    50000000000.0
    """
    match = re.match(r"([\d.]+) Gb/sec", text)
    return None if match is None else float(match[1]) * 1e9 / 8
