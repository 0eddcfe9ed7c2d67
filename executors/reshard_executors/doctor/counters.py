"""Counters: what the kernel has seen leave by each port of this process's network."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from reshard_executors.doctor import infiniband
from reshard_executors.doctor.interfaces import Interface

_INTERFACES: Final = Path("/proc/self/net/dev")
"""Counters of interfaces; in contrast to those in /sys of this process's network at any rate."""

_SENT: Final = 8
"""Column of the bytes sent, after those of what was received."""


def read_sent(interfaces: tuple[Interface, ...]) -> dict[str, int]:
    """Bytes that have left by each port: interfaces other than loopback, and ports of InfiniBand devices.

    Traffic that leaves by RDMA, over InfiniBand or Ethernet, shows in the latter alone.

    Args:
        interfaces: of this process's network.
    """
    back = {one.name for one in interfaces if one.loopback}
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in _INTERFACES.read_text(encoding="ascii").splitlines():
            name, colon, figures = line.partition(":")
            if colon and name.strip() not in back:
                found[name.strip()] = int(figures.split()[_SENT])
    return found | infiniband.read_sent()


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What has left by each port between two readings; ports that nothing has left by are not in it."""
    found = {port: count - before.get(port, count) for port, count in after.items()}
    return {port: count for port, count in found.items() if count > 0}
