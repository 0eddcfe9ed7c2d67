"""Examine: all checks in their order, over all ranks of a world or on one host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from reshard_executors.doctor import (
    device_checks,
    domains,
    egress,
    hosts,
    interface_checks,
    ports,
    reach,
    verdict,
    version_checks,
)
from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.counters import read_sent
from reshard_executors.doctor.devices import device_index
from reshard_executors.doctor.facts import Facts
from reshard_executors.doctor.findings import Finding, Level, Report
from reshard_executors.doctor.meeting import Meeting, RanksLostError
from reshard_executors.doctor.samples import collect
from reshard_executors.doctor.verdict import Verdict, Wish
from reshard_planner.errors import InputError

RANKS: Final = "ranks"
"""Name of the check that all ranks are there."""

ORDER: Final = (
    RANKS,
    version_checks.CHECK,
    ports.CHECK,
    interface_checks.CHECK,
    device_checks.CHECK,
    hosts.CHECK,
    domains.CHECK,
    egress.CHECK,
)
"""The checks as reports have them."""

TOKEN_NBYTES: Final = 16


def examine_alone(facts: Facts, claims: Claims | None, wish: Wish) -> Report:
    """Check this host alone.

    Args:
        facts: about this process.
        claims: what the plan expects; None without a plan.
        wish: what is wanted.
    """
    text = "this needs all ranks; expected the same command under the launcher that will run the plan"
    skipped = [Finding(check, Level.SKIPPED, text) for check in verdict.PLANNED]
    return _report(1, [*ports.judge_alone(facts.point), *verdict.judge_here(facts, claims, wish), *skipped])


def report_unmet(
    facts: Facts, claims: Claims | None, wish: Wish, size: int, lost: Sequence[int], text: str
) -> Report:
    """What a rank can say that has not met the others.

    Args:
        facts: about it.
        claims: what the plan expects; None without a plan.
        wish: what is wanted.
        size: number of ranks.
        lost: ranks that it has not met.
        text: why, as a sentence.
    """
    return _report(
        size, [Finding(RANKS, Level.FAILURE, text), *verdict.judge_here(facts, claims, wish)], lost
    )


def examine(meeting: Meeting, facts: Facts, claims: Claims | None, wish: Wish) -> Report:
    """Check all ranks together; called by all of them.

    Args:
        meeting: of all ranks.
        facts: about this one.
        claims: what its plan expects; None without a plan.
        wish: what is wanted, the same on all ranks.

    Returns:
        The same on all ranks, except for ranks that have lost the others.

    Raises:
        InputError: on all ranks, if a plan was asked for and no rank can read it.
    """
    findings: list[Finding] = []
    lost: tuple[int, ...] = ()
    try:
        found = meeting.decide(
            "tell what they run on", facts, lambda everyone: verdict.judge(everyone, claims, wish), Verdict
        )
        if found.refused is not None:
            raise InputError(found.refused)
        findings.extend(found.findings)
        reached = _reach(meeting, facts, claims if found.planned else None)
        findings.extend(reached)
        if claims is not None and found.edges:
            unreached = any(finding.level == Level.FAILURE for finding in reached)
            findings.extend(_measure(meeting, facts, claims, wish, found, unreached=unreached))
    except RanksLostError as error:
        lost = error.ranks
        findings = findings or verdict.judge_here(facts, claims, wish)
        findings.append(Finding(RANKS, Level.FAILURE, str(error), lost))
    finally:
        meeting.leave(lost)
    return _report(meeting.size, findings, lost)


def _report(size: int, findings: Sequence[Finding], lost: Sequence[int] = ()) -> Report:
    return Report(size, tuple(sorted(findings, key=lambda one: ORDER.index(one.check))), tuple(lost))


def _reach(meeting: Meeting, facts: Facts, claims: Claims | None) -> list[Finding]:
    """Whether ranks reach one another where gloo would listen."""
    peers = () if claims is None else claims.peers_of(meeting.rank)
    with reach.listening(facts.interfaces.choice.address, os.urandom(TOKEN_NBYTES)) as mine:
        everyone = meeting.decide("tell where they listen", mine, lambda all_: all_, list[reach.Listening])
        reached = reach.reach(meeting.rank, peers, everyone)
        where = {rank: f"{one.address}:{one.port}" for rank, one in enumerate(everyone)}
        return meeting.decide(
            "tell whom they reach", reached, lambda all_: reach.judge(all_, where), list[Finding]
        )


def _measure(
    meeting: Meeting, facts: Facts, claims: Claims, wish: Wish, found: Verdict, *, unreached: bool
) -> list[Finding]:
    """What the probe shows of domains and NICs."""
    if unreached:
        text = "nothing was measured, since ranks would not connect: see ports"
        return [Finding(check, Level.SKIPPED, text) for check in (domains.CHECK, egress.CHECK)]
    import torch  # noqa: PLC0415 - ranks without it do not come here

    from reshard_executors.doctor.traffic import Traffic  # noqa: PLC0415 - as above

    device = torch.device("cpu")
    if found.backend == "nccl":
        device = torch.device("cuda", device_index(facts.devices.local_rank, facts.devices.count) or 0)
        torch.cuda.set_device(device)
    known = facts.interfaces.known
    outcome = Traffic(meeting, found.backend, device, known).run(found.edges, wish.most_nbytes)
    if outcome.problem is not None:
        text = f"{outcome.problem}; expected the probe to end, as the plan would fail likewise"
        return [Finding(domains.CHECK, Level.FAILURE, text, outcome.ranks)]
    measured = collect(found.edges, outcome.samples, counted=bool(read_sent(known)))
    return [
        *domains.judge_traffic(claims, measured, found.backend),
        *egress.judge_traffic(claims, measured, found.networks),
    ]
