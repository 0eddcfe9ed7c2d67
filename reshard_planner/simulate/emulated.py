"""Costs of ranks on an emulated cluster; see :mod:`reshard_planner.topology.emulated` for its links."""

from __future__ import annotations

from reshard_planner.simulate.costs import Costs

EMULATED_COSTS = Costs(pack_bytes_per_s=2e9, buffered_nbytes=262_144)
"""Several ranks share a core, and so its memory rate, of which each has 2 GB/s while all pack. What a
connection has on its way and in the socket's buffer, some 250 kB, its sender need not wait for."""
