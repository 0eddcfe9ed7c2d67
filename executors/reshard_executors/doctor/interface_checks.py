"""What is wrong with the interfaces of all hosts together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from reshard_executors.doctor.findings import Finding, Level, alike, has_failure
from reshard_executors.doctor.hosts import Network
from reshard_executors.doctor.interfaces import VARIABLE, Choice, Interface, Interfaces
from reshard_executors.doctor.ports import is_loopback
from reshard_executors.spelling import spell_names, spell_rate

CHECK: Final = "interfaces"

ENOUGH: Final = 0.9
"""Share of the NIC's rate in the topology that an interface must have not to be told of."""


def judge(
    everyone: Sequence[Interfaces],
    networks: Sequence[Network],
    nic_bytes_per_s: float | None,
    backend: str = "gloo",
    *,
    alone: bool = False,
) -> list[Finding]:
    """Compare what all ranks see.

    Args:
        everyone: by rank.
        networks: which ranks share interfaces.
        nic_bytes_per_s: rate of the fastest NIC in the topology; None without a plan.
        backend: what the plan will be run with; NCCL sends by RDMA devices where there are any.
        alone: whether this is a check of one host, before anybody knows of others.
    """
    found: list[Finding] = []
    whole: dict[Level, dict[str, str]] = {Level.FAILURE: {}, Level.WARNING: {}}
    for network in networks:
        for choice in dict.fromkeys(everyone[rank].choice for rank in network.ranks):
            ranks = tuple(rank for rank in network.ranks if everyone[rank].choice == choice)
            trouble = _trouble(choice, alone=alone, several=len(networks) > 1)
            if trouble is not None and ranks != network.ranks:
                found.append(Finding(CHECK, *trouble, ranks))
            elif trouble is not None:
                whole[trouble[0]][network.name] = trouble[1]
    found.extend(finding for level, texts in whole.items() for finding in alike(CHECK, level, texts))
    first = {network.name: everyone[network.ranks[0]] for network in networks}
    found.extend(_find_others(first))
    found.extend(_compare_mtu(first))
    if nic_bytes_per_s is not None:
        found.extend(_compare_rates(first, nic_bytes_per_s, backend))
    if not any(one.known for one in everyone):
        text = "this system does not tell of its interfaces; expected Linux; nothing was checked"
        return [Finding(CHECK, Level.SKIPPED, text), *found]
    if not has_failure(found):
        found.insert(0, _all_right(first))
    return found


def _trouble(choice: Choice, *, alone: bool, several: bool) -> tuple[Level, str] | None:
    """What is wrong with what gloo will use on a rank, and how bad that is; None if nothing is."""
    level = Level.FAILURE if several or choice.named else Level.WARNING
    if choice.problem is not None and (alone or several or choice.named):
        return level, choice.problem
    if choice.address is None or not is_loopback(choice.address) or not (alone or several):
        return None
    source = VARIABLE if choice.named else "the host's name"
    text = f"gloo will use {choice.address}, to which {source} leads, and which leads back to the host"
    if several:
        return Level.FAILURE, (
            f"{text}, but ranks are on several hosts; expected an address that they reach, by {VARIABLE} or"
            " by the host's name, or else they wait for one another in vain"
        )
    return Level.WARNING, f"{text}: enough for ranks on this host; expected {VARIABLE} for ranks on several"


def _find_others(first: dict[str, Interfaces]) -> list[Finding]:
    """Hosts with interfaces that gloo could use as well, where nobody has said which."""
    texts = {}
    for name, one in first.items():
        chosen, usable = one.chosen, [each.name for each in one.known if _usable(each)]
        if chosen is not None and not one.choice.named and set(usable) - {chosen.name} and len(usable) > 1:
            texts[name] = (
                f"there are {len(usable)} interfaces with addresses, {spell_names(usable)}, and gloo will use"
                f" {chosen.name} alone; expected {VARIABLE} to say which, or a list of them"
            )
    return alike(CHECK, Level.WARNING, texts)


def _usable(one: Interface) -> bool:
    return one.up and not one.loopback and bool(one.addresses)


def _compare_mtu(first: dict[str, Interfaces]) -> list[Finding]:
    frames = {name: one.chosen.mtu for name, one in first.items() if one.chosen is not None}
    counts = Counter(frames.values())
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]
    texts = {
        name: f"frames have {mtu} bytes (MTU), but {usual} on {counts[usual]} of {len(frames)} hosts;"
        " expected the same, or else frames are cut on the way, or vanish"
        for name, mtu in frames.items()
        if mtu != usual
    }
    return alike(CHECK, Level.WARNING, texts)


def _compare_rates(first: dict[str, Interfaces], nic_bytes_per_s: float, backend: str) -> list[Finding]:
    texts = {}
    for host, one in first.items():
        name, rate = _sends_by(one, backend)
        if rate is not None and rate < ENOUGH * nic_bytes_per_s:
            texts[host] = (
                f"{name}, which {backend} will use, runs at {spell_rate(rate)}; the topology expects"
                f" {spell_rate(nic_bytes_per_s)} of a NIC, so that over it the plan takes longer than it says"
            )
    return alike(CHECK, Level.WARNING, texts)


def _sends_by(one: Interfaces, backend: str) -> tuple[str, float | None]:
    """The port that a backend sends by, of several the slowest, and its rate as far as it is known."""
    if backend == "nccl" and one.infiniband:
        return min(one.infiniband.items(), key=lambda port: port[1])
    if backend == "nccl" or one.chosen is None or one.chosen.loopback:
        return "", None
    return one.chosen.name, one.chosen.bytes_per_s


def _all_right(first: dict[str, Interfaces]) -> Finding:
    kinds = Counter(
        "an unknown one" if one.chosen is None else f"{one.chosen.name} (MTU {one.chosen.mtu})"
        for one in first.values()
    )
    said = spell_names(
        [kind if len(kinds) == 1 else f"{kind} on {count} hosts" for kind, count in kinds.items()]
    )
    addresses = spell_names([str(one.choice.address) for one in first.values()])
    return Finding(CHECK, Level.OK, f"gloo will use {said}, with {addresses}")
