"""Links: what the kernel says of ports of the network: how fast they are, and how much has left by each.

Ports of RDMA devices, over Ethernet as well, are no interfaces of the network: the kernel lists them apart.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_INTERFACES: Final = Path("/sys/class/net")
_INFINIBAND: Final = Path("/sys/class/infiniband")

_COUNTERS: Final = Path("/proc/self/net/dev")
"""Counters of interfaces; in contrast to those in /sys of this process's network at any rate."""

_SENT: Final = 8
"""Column of the bytes sent, after those of what was received."""

_WORD_NBYTES: Final = 4
"""Bytes in a unit of the counters of InfiniBand."""


def interface_rate(number: int, name: str) -> float | None:
    """Rate of an interface in bytes per second; None where the driver does not tell.

    Args:
        number: of the interface, as the files may be those of another network, whose numbers differ.
        name: its name.
    """
    folder = _INTERFACES / name
    try:
        if int((folder / "ifindex").read_text(encoding="ascii")) != number:
            return None
        megabits = int((folder / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def infiniband_rates() -> dict[str, float]:
    """Bytes per second of each port of InfiniBand that is active, by name."""
    found = {}
    for name, port in _infiniband_ports():
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


def _infiniband_ports() -> Iterator[tuple[str, Path]]:
    """Name and folder of every port."""
    with suppress(OSError):
        for port in sorted(_INFINIBAND.glob("*/ports/*")):
            yield f"{port.parent.parent.name}/{port.name}", port


def read_sent(loopbacks: Collection[str]) -> dict[str, int]:
    """Bytes that have left by each port: interfaces of this process's network, and InfiniBand ports.

    Traffic that leaves by RDMA, over InfiniBand or Ethernet, shows in the latter alone.

    Args:
        loopbacks: names of the interfaces that lead back to the host, which are left out.
    """
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in _COUNTERS.read_text(encoding="ascii").splitlines():
            name, colon, figures = line.partition(":")
            if colon and name.strip() not in loopbacks:
                found[name.strip()] = int(figures.split()[_SENT])
    for name, port in _infiniband_ports():
        with suppress(OSError, ValueError):
            words = int((port / "counters" / "port_xmit_data").read_text(encoding="ascii"))
            found[name] = _WORD_NBYTES * words
    return found


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What has left by each port between two readings; ports that nothing has left by are not in it."""
    found = {port: count - before.get(port, count) for port, count in after.items()}
    return {port: count for port, count in found.items() if count > 0}
