"""Hosts: which process plays which rank of the plan, and whether its host fits the domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.findings import Finding, Level, spell, spell_ranks
from reshard_executors.doctor.places import Place

CHECK: Final = "hosts"


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
    if not any(finding.level == Level.FAILURE for finding in found):
        found.append(_all_right(claims, places))
    return found


def _all_right(claims: Claims, places: Sequence[Place]) -> Finding:
    said = []
    for domain, members in claims.members.items():
        names = list(dict.fromkeys(places[at].host for at in members))
        said.append(f"domain {domain} is {spell_ranks(members)} on {spell(names)}")
    return Finding(
        CHECK, Level.OK, f"every rank of the plan is played, and hosts fit the domains: {spell(said)}"
    )
