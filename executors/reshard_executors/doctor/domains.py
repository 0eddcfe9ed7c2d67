"""Domains: whether the GPUs of a domain really reach each other without a NIC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from statistics import median
from typing import Final

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.devices import Devices
from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.hosts import Place
from reshard_executors.doctor.probe import INSIDE, Edge, Measured
from reshard_executors.spelling import spell_names, spell_nbytes, spell_rate

CHECK: Final = "domains"

LEAK, TRACE = 0.5, 0.1
"""Shares of what was sent inside a domain that leave by NICs if it is none, and if it may be none: others use
them too."""

SLOW: Final = 0.25
"""Share of the usual rate of its kind below which an edge is told of."""

SHOWN: Final = 3
"""Edges that a sentence lists."""


def judge_devices(claims: Claims, everyone: Sequence[Devices], places: Sequence[Place]) -> list[Finding]:
    """Whether devices of each domain can access each other, by what drivers say of them.

    Args:
        claims: what the plan expects.
        everyone: devices by rank; all ranks have one.
        places: where each rank runs.
    """
    found: list[Finding] = []
    right: list[int] = []
    unsure: list[int] = []
    for domain, members in claims.members.items():
        pairs = list(combinations(members, 2))
        reaches = [_reaches(everyone, places, one, other) for one, other in pairs]
        apart = [pair for pair, known in zip(pairs, reaches, strict=True) if known is False]
        if apart:
            text = (
                f"domain {domain} is not one: the drivers say that {_spell_pairs(apart)} cannot access each"
                " other's memory; expected NVLink or PCIe between all GPUs of a domain, or else what the plan"
                " counts as NVLink's goes over NICs"
            )
            found.append(Finding(CHECK, Level.FAILURE, text, tuple(sorted({*chain.from_iterable(apart)}))))
        elif pairs:
            (right if all(reaches) else unsure).append(domain)
    if unsure:
        text = (
            f"{_spell_domains(unsure)} may not be what the plan takes them for: the drivers do not say"
            " whether all of their GPUs access each other's memory; expected devices that all processes of a"
            " host see, and one fabric on several hosts"
        )
        found.append(Finding(CHECK, Level.WARNING, text, _members(claims, unsure)))
    if right:
        text = f"the drivers say that GPUs of {_spell_domains(right)} access each other's memory"
        found.append(Finding(CHECK, Level.OK, text, _members(claims, right)))
    return found


def _reaches(everyone: Sequence[Devices], places: Sequence[Place], one: int, other: int) -> bool | None:
    """Whether the devices of two ranks access each other; None if the drivers do not say."""
    here, there = everyone[one].gpu, everyone[other].gpu
    if here is None or there is None:
        return None
    if places[one].machine == places[other].machine:
        return here.reaches.get(there.uuid)
    if here.fabric is None or there.fabric is None:
        return None
    return here.fabric == there.fabric


def _spell_pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return f"ranks {spell_names([f'{one} with {other}' for one, other in pairs])}"


def _spell_domains(domains: Sequence[int]) -> str:
    return f"domain{'s' * (len(domains) != 1)} {spell_names([str(domain) for domain in domains])}"


def _members(claims: Claims, domains: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rank for domain in domains for rank in claims.members[domain]))


def judge_traffic(claims: Claims, measured: Measured, backend: str) -> list[Finding]:
    """Whether what ranks of a domain send to one another stays off the NICs, and how fast it is.

    Args:
        claims: what the plan expects.
        measured: what the probe has measured.
        backend: what it was sent by.
    """
    found = [*_find_leaks(claims, measured, backend)]
    for inside in (True, False):
        numbers = [n for n, edge in enumerate(measured.edges) if (edge.kind == INSIDE) == inside]
        found.extend(_tell_rates(claims, measured, numbers, backend, inside=inside))
    return found


def _find_leaks(claims: Claims, measured: Measured, backend: str) -> Iterator[Finding]:
    inside = [domain for domain, members in claims.members.items() if len(members) > 1]
    if inside and not measured.counted:
        text = (
            "this system does not count what leaves by its ports; expected Linux; domains were not measured"
        )
        yield Finding(CHECK, Level.SKIPPED, text)
        return
    whole = []
    for domain in inside:
        shares = {
            number: measured.share(number, measured.nics)
            for number, edge in enumerate(measured.edges)
            if edge.kind == INSIDE and edge.domain == domain
        }
        leaking = [number for number, share in shares.items() if share >= TRACE]
        if not leaking:
            whole.append(domain)
            continue
        worst = max(leaking, key=lambda number: shares[number])
        certain = shares[worst] >= LEAK
        level, verb = (Level.FAILURE, "is not one") if certain else (Level.WARNING, "may not be one")
        ports = {
            port
            for number in leaking
            for port in measured.sent[number]
            if port in measured.nics and measured.share(number, [port]) >= TRACE
        }
        edge = measured.edges[worst]
        text = (
            f"domain {domain} {verb}: of {spell_nbytes(measured.nbytes[worst])} that rank {edge.sender} sent"
            f" to rank {edge.receiver} over {backend},"
            f" {spell_nbytes(measured.left(worst, measured.nics))} left by {spell_names(sorted(ports))}, and"
            f" so with {len(leaking)} of its {len(shares)} pairs of neighbours; expected them to go over"
            " NVLink or stay on the host, or else the plan's fan-out inside the domain loads the NICs"
        )
        ranks = {rank for number in leaking for rank in _ends(measured.edges[number])}
        yield Finding(CHECK, level, text, tuple(sorted(ranks)))
    if whole:
        text = f"what was sent over {backend} inside {_spell_domains(whole)} stayed off the NICs"
        yield Finding(CHECK, Level.OK, text)


def _ends(edge: Edge) -> tuple[int, int]:
    return edge.sender, edge.receiver


def _tell_rates(
    claims: Claims, measured: Measured, numbers: Sequence[int], backend: str, *, inside: bool
) -> Iterator[Finding]:
    """How fast edges of one kind are, and which of them are far slower than the others."""
    rates = {number: measured.bytes_per_s[number] for number in numbers if number in measured.bytes_per_s}
    if not rates:
        return
    expected = {}
    for number in rates:
        ends = _ends(measured.edges[number])
        expected[number] = min(map(claims.link_bytes_per_s if inside else claims.nic_bytes_per_s, ends))
    usual = median(rate / expected[number] for number, rate in rates.items())
    slow = [number for number, rate in rates.items() if rate < SLOW * usual * expected[number]]
    kind = "inside domains" if inside else "between domains"
    if slow:
        edges = [measured.edges[number] for number in slow]
        ways = [f"{edge.sender} to {edge.receiver}" for edge in edges]
        worst = min(slow, key=lambda number: rates[number] / expected[number])
        text = (
            f"the way from rank {spell_names(ways)} is slower than others {kind},"
            f" the slowest at {spell_rate(rates[worst])} over {backend}; expected about"
            f" {spell_rate(usual * expected[worst])}, and one slow pair holds up all ranks"
        )
        yield Finding(
            CHECK, Level.WARNING, text, tuple(sorted({rank for edge in edges for rank in _ends(edge)}))
        )
    text = (
        f"{kind} one pair at a time sends {spell_rate(median(rates.values()))} over {backend} at the median"
        f" of {len(rates)} pairs, {spell_rate(min(rates.values()))} at the least; the topology counts with"
        f" {spell_rate(max(expected.values()))}"
    )
    yield Finding(CHECK, Level.OK, text)
