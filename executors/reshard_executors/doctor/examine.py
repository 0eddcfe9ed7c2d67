"""Examine: all checks in their order, over all ranks of a world or on one host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from reshard_executors.doctor import (
    device_checks,
    domains,
    egress,
    facts,
    hosts,
    interface_checks,
    ports,
    reach,
    versions,
)
from reshard_executors.doctor.claims import Claims, Wish
from reshard_executors.doctor.council import Council, RanksLostError, Trouble
from reshard_executors.doctor.facts import PLANNED, Facts, Verdict, judge_one, skipped
from reshard_executors.doctor.findings import Finding, Level, Report, has_failure
from reshard_executors.doctor.links import read_sent
from reshard_executors.doctor.probe import collect
from reshard_executors.launchers import device_index
from reshard_planner.errors import InputError

RANKS: Final = "ranks"
"""Name of the check that all ranks are there."""

ORDER: Final = (
    RANKS,
    versions.CHECK,
    ports.CHECK,
    interface_checks.CHECK,
    device_checks.CHECK,
    hosts.CHECK,
    domains.CHECK,
    egress.CHECK,
)
"""The checks as reports have them."""

TOKEN_NBYTES: Final = 16


def examine_alone(here: Facts, claims: Claims | None, wish: Wish) -> Report:
    """Check this host alone.

    Args:
        here: facts about this process.
        claims: what the plan expects; None without a plan.
        wish: what is wanted.
    """
    text = "this needs a plan and all ranks; expected doctor PLAN under the launcher that will run it"
    findings = [*ports.judge_alone(here.point), *judge_one(here, claims, wish), *skipped(PLANNED, text)]
    return _report(1, findings)


def report_unmet(
    here: Facts, claims: Claims | None, wish: Wish, size: int, lost: Sequence[int], text: str
) -> Report:
    """What a rank can say that has not met the others.

    Args:
        here: facts about it.
        claims: what the plan expects; None without a plan.
        wish: what is wanted.
        size: number of ranks.
        lost: ranks that it has not met.
        text: why, as a sentence.
    """
    return _report(size, [Finding(RANKS, Level.FAILURE, text), *judge_one(here, claims, wish)], lost)


def examine(council: Council, here: Facts, claims: Claims | None, wish: Wish) -> Report:
    """Check all ranks together; called by all of them.

    Args:
        council: of all ranks.
        here: facts about this one.
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
        found = council.decide(
            "tell what they run on", here, lambda everyone: facts.judge(everyone, claims, wish), Verdict
        )
        if found.refused is not None:
            raise InputError(found.refused)
        findings.extend(found.findings)
        reached = _reach(council, here, claims if found.planned else None)
        findings.extend(reached)
        if claims is not None and found.edges:
            if has_failure(reached):
                text = "nothing was measured, since ranks would not connect: see ports"
                findings.extend(skipped((domains.CHECK, egress.CHECK), text))
            else:
                findings.extend(_measure(council, here, claims, wish, found))
    except RanksLostError as error:
        lost = error.ranks
        findings = findings or judge_one(here, claims, wish)
        findings.append(Finding(RANKS, Level.FAILURE, str(error), lost))
    finally:
        council.leave(lost)
    return _report(council.size, findings, lost)


def _report(size: int, findings: Sequence[Finding], lost: Sequence[int] = ()) -> Report:
    return Report(size, tuple(sorted(findings, key=lambda one: ORDER.index(one.check))), tuple(lost))


def _reach(council: Council, here: Facts, claims: Claims | None) -> list[Finding]:
    """Whether ranks reach one another where gloo would listen."""
    peers = () if claims is None else claims.peers_of(council.rank)
    with reach.listening(here.interfaces.choice.address, os.urandom(TOKEN_NBYTES)) as mine:
        everyone = council.decide("tell where they listen", mine, lambda all_: all_, list[reach.Listening])
        reached = reach.gather(council.rank, peers, everyone)
        where = {rank: f"{one.address}:{one.port}" for rank, one in enumerate(everyone)}
        return council.decide(
            "tell whom they reach", reached, lambda all_: reach.judge(all_, where), list[Finding]
        )


def _measure(council: Council, here: Facts, claims: Claims, wish: Wish, found: Verdict) -> list[Finding]:
    """What the probe shows of domains and NICs."""
    import torch  # noqa: PLC0415 - ranks without it do not come here

    from reshard_executors.doctor.traffic import Traffic  # noqa: PLC0415 - as above

    device = torch.device("cpu")
    if found.backend == "nccl":
        device = torch.device("cuda", device_index(here.devices.local_rank, here.devices.count) or 0)
    loopbacks = [one.name for one in here.interfaces.known if one.loopback]
    samples = Traffic(council, found.backend, device, loopbacks).run(found.edges, wish.most_nbytes)
    if isinstance(samples, Trouble):
        text = f"{samples.text}; expected the probe to end, as the plan would fail likewise"
        return [Finding(domains.CHECK, Level.FAILURE, text, samples.ranks)]
    measured = collect(found.edges, samples, counted=bool(read_sent(loopbacks)))
    return [
        *domains.judge_traffic(claims, measured, found.backend),
        *egress.judge_traffic(claims, measured, found.networks),
    ]
