"""Places: which ranks share a host, and which share its network."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reshard_executors.doctor.findings import spell_ranks

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs.

    Attributes:
        host: name of the host.
        machine: what ranks on one machine have in common: its memory and processors, whatever they call it.
        network: what ranks with the same interfaces have in common; containers and network namespaces of one
            machine have networks of their own.
    """

    host: str
    machine: str
    network: str


def gather() -> Place:
    """Where this process runs."""
    host = socket.gethostname()
    try:
        machine = _BOOT.read_text(encoding="ascii").strip()
        space = os.stat(_NETWORK)  # noqa: PTH116 - of what the link leads to, which is no path
        network = f"{machine} {space.st_dev} {space.st_ino}"
    except OSError:  # not Linux
        machine = network = host
    return Place(host, _short(machine), _short(network))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Network:
    """Ranks that share interfaces.

    Attributes:
        name: of the host, with its ranks where several networks have hosts of that name.
        ranks: ascending.
    """

    name: str
    ranks: tuple[int, ...]


def find_networks(places: Sequence[Place]) -> list[Network]:
    """The networks of all ranks, in the order of their first ranks."""
    members: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        members.setdefault(place.network, []).append(rank)
    found = [Network(places[ranks[0]].host, tuple(ranks)) for ranks in members.values()]
    names = [network.name for network in found]
    return [
        network
        if names.count(network.name) == 1
        else Network(f"{network.name} ({spell_ranks(network.ranks)})", network.ranks)
        for network in found
    ]
