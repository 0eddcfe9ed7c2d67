"""Facts: all that one rank finds out about itself, and what those of all ranks say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reshard_executors.doctor import (
    device_checks,
    devices,
    domains,
    egress,
    hosts,
    interface_checks,
    interfaces,
    ports,
    versions,
)
from reshard_executors.doctor.claims import Claims, Wish
from reshard_executors.doctor.devices import Devices
from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.hosts import Network, Place, find_networks
from reshard_executors.doctor.interfaces import Interfaces
from reshard_executors.doctor.ports import MeetingPoint
from reshard_executors.doctor.probe import Edge, plan_edges
from reshard_executors.doctor.versions import Versions

PLANNED: Final = (hosts.CHECK, domains.CHECK, egress.CHECK)
"""Checks that need a plan."""

CONNECTING: Final = (versions.CHECK, interface_checks.CHECK, device_checks.CHECK)
"""Checks that must not fail, or else ranks do not connect to measure anything."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one rank has found out about itself.

    Attributes:
        place: where it runs.
        versions: of what it runs.
        point: where ranks meet, as it sees it; None without a launcher and an address.
        interfaces: of its network.
        devices: what it computes on.
        nccl: variables that say which NIC NCCL sends by.
    """

    place: Place
    versions: Versions
    point: MeetingPoint | None
    interfaces: Interfaces
    devices: Devices
    nccl: dict[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the facts of all ranks say.

    Attributes:
        findings: of the checks that need nothing more.
        backend: what is measured with.
        planned: whether all ranks have the same plan.
        networks: which ranks share interfaces.
        edges: what is measured; none if nothing is.
        refused: why nothing can be checked: no rank can read the plan. None if something can.
    """

    findings: tuple[Finding, ...]
    backend: str
    planned: bool
    networks: tuple[Network, ...]
    edges: tuple[Edge, ...] = ()
    refused: str | None = None


def gather(
    environ: Mapping[str, str],
    rank: int,
    local_rank: int,
    meeting_at: tuple[str, int] | None,
    claims: Claims | None,
    problem: str | None = None,
) -> Facts:
    """Find out about this process all that can be known without others.

    Args:
        environ: its environment.
        rank: of this process in the world.
        local_rank: its number on the host.
        meeting_at: address and port at which ranks meet; None if nothing names them.
        claims: what the plan expects; None without a plan.
        problem: why there is no plan, if one was asked for.
    """
    place = hosts.gather()
    return Facts(
        place,
        versions.gather(None if claims is None else claims.plan, problem),
        None if meeting_at is None else ports.gather(*meeting_at),
        interfaces.gather(environ, place.host),
        devices.gather(environ, local_rank, 0 if claims is None else claims.need_nbytes(rank)),
        egress.gather(environ),
    )


def judge_one(facts: Facts, claims: Claims | None, wish: Wish) -> list[Finding]:
    """What one rank finds without the others."""
    return _judge_each([facts], find_networks([facts.place]), claims, wish, alone=True)


def judge(everyone: Sequence[Facts], claims: Claims | None, wish: Wish) -> Verdict:
    """What the facts of all ranks say; on rank 0.

    Args:
        everyone: by rank.
        claims: what the plan of rank 0 expects; None without.
        wish: what is wanted.
    """
    networks, backend = find_networks([facts.place for facts in everyone]), _backend(everyone, wish)
    points = [facts.point for facts in everyone if facts.point is not None]
    findings = _judge_each(everyone, networks, claims, wish)
    findings += ports.judge(points, networks) if points else []
    digests = {facts.versions.digest for facts in everyone}
    verdict = Verdict(tuple(findings), backend, claims is not None and len(digests) == 1, tuple(networks))
    problems = [facts.versions.problem for facts in everyone]
    if all(problem is not None for problem in problems):
        return replace(verdict, refused=problems[0])
    if claims is None or not verdict.planned:
        asked = digests != {None} or any(problems)
        text = "ranks do not have the same plan" if asked else "no plan was given"
        return replace(verdict, findings=(*findings, *skipped(PLANNED, text)))
    findings += hosts.judge(claims, [facts.place for facts in everyone])
    findings += egress.judge_rule([facts.nccl for facts in everyone], backend)
    if backend == "nccl":
        used = [facts.devices for facts in everyone]
        findings += domains.judge_devices(claims, used, [facts.place for facts in everyone])
    edges = tuple(plan_edges(claims, networks))
    against = _reason_against(findings, edges, everyone, backend, wish)
    if against is not None:
        findings += skipped((domains.CHECK, egress.CHECK), against)
    return replace(verdict, findings=tuple(findings), edges=() if against else edges)


def skipped(checks: Sequence[str], why: str) -> list[Finding]:
    """Findings that say why checks were not done."""
    return [Finding(check, Level.SKIPPED, why) for check in checks]


def _judge_each(
    everyone: Sequence[Facts],
    networks: Sequence[Network],
    claims: Claims | None,
    wish: Wish,
    *,
    alone: bool = False,
) -> list[Finding]:
    """The checks that need neither a plan nor other ranks."""
    fastest = None if claims is None else claims.fastest_nic_bytes_per_s
    seen = [facts.interfaces for facts in everyone]
    return [
        *versions.judge([facts.versions for facts in everyone]),
        *interface_checks.judge(seen, networks, fastest, _backend(everyone, wish), alone=alone),
        *device_checks.judge(
            [facts.devices for facts in everyone], [facts.place for facts in everyone], wish.backend
        ),
    ]


def _backend(everyone: Sequence[Facts], wish: Wish) -> str:
    """What the plan will be run with."""
    return wish.backend or ("nccl" if _all_send_from_gpus(everyone) else "gloo")


def _all_send_from_gpus(everyone: Sequence[Facts]) -> bool:
    return all(facts.devices.gpu is not None and facts.devices.sends_from_gpu for facts in everyone)


def _reason_against(
    findings: Sequence[Finding], edges: Sequence[Edge], everyone: Sequence[Facts], backend: str, wish: Wish
) -> str | None:
    """Why nothing is measured; None if it is."""
    if wish.most_nbytes == 0:
        return "nothing was measured, as was asked for"
    if not edges:
        return "the plan has a single rank, so that there is nothing to measure"
    if backend == "nccl" and not _all_send_from_gpus(everyone):
        return "nothing was measured, since not all ranks have a device and NCCL"
    failed = [finding.check for finding in findings if finding.level == Level.FAILURE]
    blocking = next((check for check in failed if check in CONNECTING), None)
    return blocking and f"nothing was measured, since ranks would not connect: see {blocking}"
