"""Checks ``payload``, ``staging``, ``certificate`` and ``digest``: what the plan says of itself is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reshard_planner.bounds import CUT_KINDS, Cut, evaluate
from reshard_planner.demand import minimum_network_nbytes
from reshard_planner.errors import CertificateError, DigestError, InputError, PayloadError, StagingError
from reshard_planner.ir.certificate import certify
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.ir.digest import digest_of
from reshard_planner.ir.memory import staging_nbytes
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
    ops = subject.ops
    moved = int(ops.nbytes[ops.medium == Medium.NETWORK].sum())
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
    used, budget = staging_nbytes(subject.ops), subject.plan.spec.options.staging_nbytes
    if used > budget:
        raise StagingError(f"a rank needs {used} bytes for staging and scratch; options.staging is {budget}")


def check_certificate(subject: Subject) -> None:
    """The stored cut proves T*, and every figure is what the plan gives.

    Raises:
        CertificateError: naming the figure, what it says and what is right.
    """
    _prove(subject)
    plan = subject.plan
    right = certify(plan.spec, subject.ops, subject.demands, subject.ports, subject.bound).to_dict()
    says = plan.certificate.to_dict()
    for name, have, want in _differences("", says, right):
        raise CertificateError(f"certificate: {name} is {have}; the plan gives {want}")


def _prove(subject: Subject) -> None:
    """Sum the stored cut from the demands; no search is involved."""
    claim = subject.plan.certificate.bound
    kind = next((known for known in CUT_KINDS if known == claim.term), None)
    if kind is None:
        raise CertificateError(
            f"certificate: bound.term is {claim.term!r}; expected one of {', '.join(CUT_KINDS)}"
        )
    try:
        cut = evaluate(kind, claim.cut_members, subject.needs, subject.capacities)
    except (InputError, IndexError) as error:
        raise CertificateError(
            f"certificate: the cut {kind} of {list(claim.cut_members)} is no cut: {error}"
        ) from None
    stored = Cut(kind, claim.cut_members, claim.cut_nbytes, claim.cut_bytes_per_s)
    if cut != stored:
        raise CertificateError(
            f"certificate: {stored.nbytes} bytes at {stored.bytes_per_s} bytes/s pass the cut {kind} of"
            f" {list(stored.members)}; summing it gives {cut.nbytes} bytes at {cut.bytes_per_s} bytes/s"
        )
    if not _close(claim.time_s, float(cut.time)):
        raise CertificateError(
            f"certificate: bound.time_s is {claim.time_s}; its cut gives {float(cut.time)}"
        )


def _close(have: float, want: float) -> bool:
    return abs(have - want) <= TOLERANCE * max(abs(have), abs(want))


def _differences(name: str, have: Any, want: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(want, dict) and isinstance(have, dict):
        for key in sorted({*want, *have}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(inner, have.get(key), want.get(key))
    elif isinstance(want, float) and isinstance(have, float):
        # gaps are differences of ratios, so that rounding shows against 1 and not against themselves
        if not _close(1 + have, 1 + want) or (not name.endswith("gap") and not _close(have, want)):
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
