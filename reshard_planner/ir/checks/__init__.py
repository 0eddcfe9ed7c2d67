"""Checking a plan: every claim is recomputed from the plan alone.

The checks run in order, from what a reader must rely on to what merely describes it, so that a fault is
reported by the most telling of them. Each check is one function and raises one class of error.
"""

from __future__ import annotations

from collections.abc import Callable

from reshard_planner.ir.checks.causality import check_causality
from reshard_planner.ir.checks.claims import check_certificate, check_digest, check_payload, check_staging
from reshard_planner.ir.checks.coverage import check_coverage, check_units
from reshard_planner.ir.checks.media import check_media
from reshard_planner.ir.checks.order import check_order
from reshard_planner.ir.checks.subject import Subject
from reshard_planner.ir.checks.tables import check_tables
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress, silent

CHECKS: dict[str, Callable[[Subject], None]] = {
    "tables": check_tables,
    "units": check_units,
    "coverage": check_coverage,
    "causality": check_causality,
    "media": check_media,
    "order": check_order,
    "payload": check_payload,
    "staging": check_staging,
    "certificate": check_certificate,
    "digest": check_digest,
}
"""All checks by name, in order."""


def verify(plan: Plan, progress: Progress = silent) -> None:
    """Check every claim of a plan.

    Args:
        plan: what to check; nothing in it is trusted.
        progress: called with the name of each check as it begins.

    Raises:
        TableError: a table refers to what does not exist, or has values out of range.
        CoverageError: a destination tile or a unit is missing, or filled twice.
        CausalityError: a row sends what its source does not have by then.
        MediumError: a medium or role contradicts the topology.
        OrderError: rows are not in canonical order.
        PayloadError: a strategy that claims the least payload moves more.
        StagingError: staging and scratch exceed the budget that the strategy claims to keep.
        CertificateError: a figure of the certificate is wrong.
        DigestError: the digest is not that of the content.
    """
    subject = Subject(plan)
    for name, check in CHECKS.items():
        progress(name)
        check(subject)


__all__ = ["CHECKS", "verify"]
