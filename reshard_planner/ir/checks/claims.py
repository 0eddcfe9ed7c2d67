"""Checks ``payload``, ``staging``, ``certificate`` and ``digest``: what the plan says of itself is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reshard_planner.bounds import CUT_KINDS, Bound, Cut, evaluate, largest_closed_cut, restricted_time
from reshard_planner.demand import minimum_network_nbytes
from reshard_planner.errors import CertificateError, DigestError, InputError, PayloadError, StagingError
from reshard_planner.ir.certificate import certify
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.ir.digest import digest_of
from reshard_planner.ir.memory import staging_of
from reshard_planner.transfer import Medium

TOLERANCE = 1e-9
"""Relative difference allowed between times, which are rounded when summed; bytes must be equal."""


def check_payload(subject: Subject) -> None:
    """A strategy that claims the least payload moves exactly P* over the network.

    Raises:
        PayloadError: with both figures.
    """
    if not subject.claims_least:
        return
    moved = subject.traffic.nbytes[Medium.NETWORK]
    least = minimum_network_nbytes(subject.demands)
    if moved != least:
        raise PayloadError(f"{moved} bytes go over the network; the least possible is {least}")


def check_staging(subject: Subject) -> None:
    """A strategy that claims it keeps within the staging budget on every rank.

    Raises:
        StagingError: with both figures.
    """
    if not subject.claims_least:
        return
    used, budget = staging_of(subject.traffic), subject.plan.spec.options.staging_nbytes
    if used > budget:
        raise StagingError(f"a rank needs {used} bytes for staging and scratch; options.staging is {budget}")


def check_certificate(subject: Subject) -> None:
    """The stored cuts prove T* and T0, and every figure is what the plan gives.

    Raises:
        CertificateError: naming the figure, what it says and what is right.
    """
    bound = _prove(subject)
    plan = subject.plan
    right = certify(
        plan.spec, plan.tables, subject.demands, subject.ports, bound, traffic=subject.traffic
    ).to_dict()
    says = plan.certificate.to_dict()
    for name, have, want in _differences("", says, right):
        raise CertificateError(f"certificate: {name} is {have}; the plan gives {want}")


def _prove(subject: Subject) -> Bound:
    """Sum the stored cuts from the demands; no search is involved."""
    needs, capacities = subject.needs, subject.capacities
    claim = subject.plan.certificate.bound
    kind = next((known for known in CUT_KINDS if known == claim.term), None)
    if kind is None:
        raise CertificateError(
            f"certificate: bound.term is {claim.term!r}; expected one of {', '.join(CUT_KINDS)}"
        )
    stored = Cut(kind, claim.cut_members, claim.cut_nbytes, claim.cut_bytes_per_s, claim.cut_weights)
    cut = _sum(subject, stored, "bound.cut", restricted=False)
    if not _close(claim.time_s, float(cut.time)):
        raise CertificateError(
            f"certificate: bound.time_s is {claim.time_s}; its cut gives {float(cut.time)}"
        )
    closed = largest_closed_cut(needs, capacities)
    if cut.time < closed.time:
        raise CertificateError(
            f"certificate: bound.time_s is {claim.time_s}; {closed.kind} of {closed.resource} alone takes"
            f" {float(closed.time)}"
        )
    t0_cut = cut
    if claim.t0_cut is not None:
        prices = claim.t0_cut
        stored = Cut("prices", (), prices.nbytes, prices.bytes_per_s, prices.weights)
        t0_cut = _sum(subject, stored, "bound.t0_cut", restricted=True)
    least = max(cut.time, restricted_time(needs, capacities))
    if t0_cut.time < least or (t0_cut.time == cut.time and claim.t0_cut is not None):
        raise CertificateError(
            f"certificate: bound.t0_cut proves {float(t0_cut.time)} s; expected at least {float(least)} s,"
            " or no such cut where T0 is T*"
        )
    if not _close(claim.t0_s, float(t0_cut.time)):
        raise CertificateError(f"certificate: bound.t0_s is {claim.t0_s}; its cut gives {float(t0_cut.time)}")
    return Bound(cut.time, t0_cut.time, (), cut, t0_cut)


def _sum(subject: Subject, stored: Cut, name: str, *, restricted: bool) -> Cut:
    try:
        cut = evaluate(
            stored.kind,
            stored.members,
            subject.needs,
            subject.capacities,
            stored.weights,
            restricted=restricted,
        )
    except InputError as error:
        raise CertificateError(
            f"certificate: {name}, {stored.kind} of {list(stored.members)}, is no cut: {error}"
        ) from None
    if cut != stored:
        raise CertificateError(
            f"certificate: {stored.nbytes} bytes at {stored.bytes_per_s} bytes/s pass {name}, {stored.kind}"
            f" of {list(stored.members)}; summing it gives {cut.nbytes} bytes at {cut.bytes_per_s} bytes/s"
        )
    return cut


def _close(have: float, want: float) -> bool:
    return abs(have - want) <= TOLERANCE * max(abs(have), abs(want))


def _differences(name: str, have: Any, want: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(want, dict) and isinstance(have, dict):
        for key in sorted({*want, *have}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, have.get(key), want.get(key))
    elif isinstance(want, float) and isinstance(have, float):
        if not _close(have, want):
            yield name, have, want
    elif have != want:
        yield name, have, want


def check_digest(subject: Subject) -> None:
    """The digest is that of the content.

    Raises:
        DigestError: with both digests.
    """
    plan = subject.plan
    right = digest_of(plan.version, plan.spec, plan.tables, plan.certificate)
    if plan.digest != right:
        raise DigestError(f"digest is {plan.digest}; the content gives {right}")
