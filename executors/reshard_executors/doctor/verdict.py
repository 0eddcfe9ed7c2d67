"""Verdict: what the facts of all ranks say, and what is to be measured after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from reshard_executors.doctor import (
    device_checks,
    domains,
    egress,
    hosts,
    interface_checks,
    ports,
    version_checks,
)
from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.facts import Facts
from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.places import Network, find_networks
from reshard_executors.doctor.probe import Edge, plan_edges

PLANNED: Final = (hosts.CHECK, domains.CHECK, egress.CHECK)
"""Checks that need a plan."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of an examination.

    Attributes:
        backend: what the plan will be run with; when None ``nccl`` where all ranks can, else ``gloo``.
        most_nbytes: most bytes that one pair of ranks sends at a time; 0 to measure nothing.
    """

    backend: str | None = None
    most_nbytes: int = 64 * 2**20


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

    def measuring(self, against: str | None) -> Verdict:
        """The same, but with nothing measured if there is a reason against it."""
        if against is None:
            return self
        skipped = tuple(Finding(check, Level.SKIPPED, against) for check in (domains.CHECK, egress.CHECK))
        return replace(self, findings=(*self.findings, *skipped), edges=())


def judge_here(facts: Facts, claims: Claims | None, wish: Wish) -> list[Finding]:
    """What one rank finds without the others."""
    return [
        *version_checks.judge([facts.versions]),
        *interface_checks.judge(
            [facts.interfaces],
            find_networks([facts.place]),
            _fastest(claims),
            wish.backend or _usual_backend([facts]),
            alone=True,
        ),
        *device_checks.judge([facts.devices], [facts.place], wish.backend),
    ]


def judge(everyone: Sequence[Facts], claims: Claims | None, wish: Wish) -> Verdict:
    """What the facts of all ranks say; on rank 0.

    Args:
        everyone: by rank.
        claims: what the plan of rank 0 expects; None without.
        wish: what is wanted.
    """
    placed = [facts.place for facts in everyone]
    networks = find_networks(placed)
    points = [facts.point for facts in everyone if facts.point is not None]
    backend = wish.backend or _usual_backend(everyone)
    findings = [
        *version_checks.judge([facts.versions for facts in everyone]),
        *(ports.judge(points, networks) if points else ()),
        *interface_checks.judge(
            [facts.interfaces for facts in everyone], networks, _fastest(claims), backend
        ),
        *device_checks.judge([facts.devices for facts in everyone], placed, wish.backend),
    ]
    digests = {facts.versions.digest for facts in everyone}
    planned = claims is not None and len(digests) == 1
    verdict = Verdict(tuple(findings), backend, planned, tuple(networks))
    problems = [facts.versions.problem for facts in everyone]
    if all(problem is not None for problem in problems):
        return replace(verdict, refused=problems[0])
    if claims is None or not planned:
        asked = digests != {None} or any(problems)
        text = "ranks do not have the same plan" if asked else "no plan was given"
        skipped = tuple(Finding(check, Level.SKIPPED, text) for check in PLANNED)
        return replace(verdict, findings=(*findings, *skipped))
    planning = [*hosts.judge(claims, placed), *egress.judge_rule([facts.nccl for facts in everyone], backend)]
    if backend == "nccl":
        planning.extend(domains.judge_devices(claims, [facts.devices for facts in everyone], placed))
    edges = tuple(plan_edges(claims, networks))
    verdict = replace(verdict, findings=(*findings, *planning), edges=edges)
    return verdict.measuring(_reason_against(verdict, everyone, wish))


def _fastest(claims: Claims | None) -> int | None:
    return None if claims is None else claims.fastest_nic_bytes_per_s


def _usual_backend(everyone: Sequence[Facts]) -> str:
    usable = all(facts.devices.gpu is not None and facts.devices.sends_from_gpu for facts in everyone)
    return "nccl" if usable else "gloo"


def _reason_against(verdict: Verdict, everyone: Sequence[Facts], wish: Wish) -> str | None:
    """Why nothing is measured; None if it is."""
    if wish.most_nbytes == 0:
        return "nothing was measured, as was asked for"
    if not verdict.edges:
        return "the plan has a single rank, so that there is nothing to measure"
    if verdict.backend == "nccl" and not all(
        facts.devices.gpu is not None and facts.devices.sends_from_gpu for facts in everyone
    ):
        return "nothing was measured, since not all ranks have a device and NCCL"
    failed = [finding.check for finding in verdict.findings if finding.level == Level.FAILURE]
    blocking = [
        check
        for check in failed
        if check in (version_checks.CHECK, interface_checks.CHECK, device_checks.CHECK)
    ]
    if blocking:
        return f"nothing was measured, since ranks would not connect: see {blocking[0]}"
    return None
