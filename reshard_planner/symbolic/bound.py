"""The least payload, T* with all its terms, and T0, in closed form.

In a regular pair (:mod:`reshard_planner.symbolic.case`) all domains of a side are alike, so that the cuts
of docs/mathematics.md have few values: every set of domains that may bind is a stage, all holders, or all
domains.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from reshard_planner.symbolic.form import Form
from reshard_planner.symbolic.quantities import symbols

if TYPE_CHECKING:
    import sympy as sp


@cache
def bound_forms() -> tuple[Form, ...]:
    """P*, the terms of T*, T*, and T0."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    (neighbours,) = symbols("X")
    terms = bound_terms()
    bound = sp.Max(*(term.expression for term in terms))
    nics = [term for term in terms if set(term.cuts) & {"domain_ingress", "egress"}]
    (nvlink,) = (term.expression for term in terms if term.name == "nvlink_domain")
    return (
        Form("least_payload", "P*: k = R_dst/m domains lack each byte", "bytes", "", _copies() * _bytes()),
        *terms,
        Form("bound", "T*: the largest of its terms", "s", "", bound, short=_largest(terms)),
        Form(
            "t0",
            "T0: as T* when no rank lends its NIC",
            "s",
            "",
            sp.Max(*(term.subs(neighbours, 0) for term in bound.args)),
            short="bound at X = 0",
        ),
        Form(
            "nic_time",
            "busiest NIC of strategy optimal",
            "s",
            "X = 0, nvlink_time is not above it; within 1 %",
            sp.Max(*(term.expression for term in nics)),
            short=_largest(nics),
        ),
        Form("nvlink_time", "busiest NVLink port of strategy optimal", "s", "X = 0; within 1 %", nvlink),
    )


def bound_terms() -> tuple[Form, ...]:
    """The terms of T*, named after the cuts of a certificate where there is one for each."""
    nbytes, largest, stages = symbols("W W_1 P")
    holders = _holders()
    shards, distinct, copies, neighbours = symbols("S_dst p m X")
    nic_src, nic_dst, nvlink = symbols("b_src b_dst v_dst")
    needers = copies * distinct
    domain = nbytes * distinct / shards
    needing = _destination_rate()
    return (
        Form(
            "domain_ingress",
            "what a domain in need lacks, over its NICs",
            "s",
            "",
            domain / ((needers + neighbours) * nic_dst),
            ("domain_ingress",),
        ),
        Form(
            "unique_bytes",
            "all bytes once, over all NICs of holders",
            "s",
            "",
            nbytes / (stages * holders * nic_src),
            ("egress",),
        ),
        Form(
            "stage_bytes",
            "what the holders of one stage alone have, over their NICs; each of their domains takes as long",
            "s",
            "",
            largest / (holders * nic_src),
            ("egress",),
        ),
        Form(
            "all_copies",
            "P*, over the NICs of holders and of domains in need; below domain_ingress",
            "s",
            "",
            _copies() * nbytes / (stages * holders * nic_src + needing),
            ("egress",),
        ),
        Form(
            "nvlink_domain",
            "what the needers of a domain lack beside its ingress, over their NVLink",
            "s",
            "",
            (copies - 1) * nbytes / (copies * shards * nvlink),
            ("nvlink_domain", "prices"),
        ),
        Form(
            "port_in",
            "what one needer lacks, over its NVLink and its NIC; binds only where X > 0",
            "s",
            "",
            nbytes / (shards * (nvlink + nic_dst)),
            ("port_in", "prices"),
        ),
        Form(
            "handoff",
            "a domain's ingress, over NICs of needers and NVLink of all others; domain_ingress where X = 0",
            "s",
            "",
            domain / (needers * nic_dst + neighbours * nvlink),
            ("prices",),
        ),
    )


def _largest(forms: Iterable[Form]) -> str:
    return f"Max({', '.join(form.name for form in forms)})"


def _bytes() -> sp.Expr:
    (nbytes,) = symbols("W")
    return nbytes


def _copies() -> sp.Expr:
    """k: domains in need of each class."""
    replicas, copies = symbols("R_dst m")
    return replicas / copies


def _holders() -> sp.Expr:
    """Ranks of one stage."""
    shards, replicas = symbols("S_src R_src")
    return shards * replicas


def _destination_rate() -> sp.Expr:
    """NICs of all domains in need together."""
    shards, replicas, distinct, copies, neighbours, nic = symbols("S_dst R_dst p m X b_dst")
    return shards * replicas / (copies * distinct) * (copies * distinct + neighbours) * nic
