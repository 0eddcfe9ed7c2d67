"""What the strategies ``direct`` and ``gather-broadcast`` move, and their busiest ports, in closed form.

They follow from what :mod:`reshard_planner.routing.direct` and
:mod:`reshard_planner.routing.gather_broadcast` do: the first asks the least loaded holder for every class,
the second gathers the tensors of a stage at its first rank and passes them on whole, along one chain
through the domains in need and one within each.
"""

from __future__ import annotations

from functools import cache

from reshard_planner.symbolic.form import Form
from reshard_planner.symbolic.quantities import symbols


@cache
def baseline_forms() -> tuple[Form, ...]:
    """Payload and time of both baselines, and of plans that split no class."""
    import sympy as sp  # noqa: PLC0415 - sympy is slow to import

    nbytes, largest, stages, classes = symbols("W W_1 P C")
    shards, replicas, gathered = symbols("S_src R_src q")
    parts, copies_after, distinct, copies = symbols("S_dst R_dst p m")
    nic_src, nic_dst, nvlink_src, nvlink_dst = symbols("b_src b_dst v_src v_dst")
    needers = copies * distinct
    domains = parts * copies_after / needers
    ingress = nbytes / (parts * nic_dst)
    egress = sp.ceiling(classes * copies_after / (shards * replicas)) * largest / (classes * nic_src)
    whole = sp.ceiling(stages * classes / (copies * parts)) * nbytes / (stages * classes * nic_dst)
    return (
        Form(
            "direct_payload",
            "strategy direct: each replica is fetched over the network",
            "bytes",
            "",
            copies_after * nbytes,
        ),
        Form("direct_ingress", "strategy direct: every needer's NIC", "s", "", ingress),
        Form("direct_egress", "strategy direct: the busiest holder's NIC", "s", "", egress),
        Form("direct_time", "strategy direct: the busiest NIC", "s", "", sp.Max(ingress, egress)),
        Form(
            "whole_classes",
            "ingress of a domain in need, if it takes in each class over one NIC",
            "s",
            "X = 0, stages are equal",
            whole,
        ),
        Form(
            "gather_broadcast_payload",
            "strategy gather-broadcast: shards of other domains in, whole tensors to every domain in need",
            "bytes",
            "",
            nbytes * ((shards - gathered) / shards + domains),
        ),
        Form(
            "gather_broadcast_nvlink",
            "strategy gather-broadcast: bytes over NVLink",
            "bytes",
            "",
            nbytes * ((gathered - 1) / shards + domains * (needers - 1)),
        ),
        Form(
            "gather_broadcast_time",
            "strategy gather-broadcast: the busiest NIC",
            "s",
            "",
            sp.Max(nbytes / nic_dst, largest / nic_src),
        ),
        Form(
            "gather_broadcast_nvlink_time",
            "strategy gather-broadcast: the busiest NVLink port",
            "s",
            "",
            sp.Max(
                sp.Min(1, needers - 1) * nbytes / nvlink_dst,
                (gathered - 1) * largest / (shards * nvlink_src),
            ),
        ),
    )
