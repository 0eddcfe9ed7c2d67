"""Hosts: where each rank runs, and whether that fits the domains of the plan."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.findings import Finding, Level, has_failure
from reshard_executors.spelling import spell_names, spell_ranks

CHECK: Final = "hosts"

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


def judge(claims: Claims, places: Sequence[Place]) -> list[Finding]:
    """Compare where the ranks of the plan run with the domains of its topology.

    Args:
        claims: what the plan expects.
        places: where each process runs.
    """
    from reshard_executors.agreement import find_mixed  # noqa: PLC0415 - needs torch

    found = []
    if claims.missing:
        text = (
            f"the plan has {len(claims.plan.ranks)} ranks, and no process plays"
            f" {spell_ranks(claims.missing)}; expected a process for each, but the world has {len(places)};"
            " the plan cannot be run"
        )
        found.append(Finding(CHECK, Level.FAILURE, text))
    idle = tuple(at for at in range(len(places)) if at not in claims.domain_of)
    if idle:
        text = (
            "play no rank of the plan; expected only if others use them meanwhile, since they wait in its"
            " runs"
        )
        found.append(Finding(CHECK, Level.WARNING, text, idle))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(place.host for place in places))}
    mixed = find_mixed(claims.domain_of, [numbers[place.host] for place in places])
    if mixed is not None:
        one, other = mixed
        text = (
            f"{spell_ranks(mixed)} are both on host {places[one].host}, but in domains"
            f" {claims.domain_of[one]} and {claims.domain_of[other]} of the topology, one of which has ranks"
            " on other hosts; expected processes in the order of the topology, or else traffic that the plan"
            " counts as NVLink's goes over the network"
        )
        found.append(Finding(CHECK, Level.FAILURE, text, (one, other)))
    if not has_failure(found):
        found.append(_all_right(claims, places))
    return found


def _all_right(claims: Claims, places: Sequence[Place]) -> Finding:
    said = []
    for domain, members in claims.members.items():
        names = list(dict.fromkeys(places[at].host for at in members))
        said.append(f"domain {domain} is {spell_ranks(members)} on {spell_names(names)}")
    return Finding(
        CHECK, Level.OK, f"every rank of the plan is played, and hosts fit the domains: {spell_names(said)}"
    )
