"""A predicted run, as text."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.ir.plan import Plan
from reshard_planner.render.text import align, format_nbytes, format_rate, format_s
from reshard_planner.simulate import PortUse, Prediction

KINDS = (
    ("NICs, out", "nic", "out"),
    ("NICs, in", "nic", "in"),
    ("NVLink ports, out", "nvlink", "out"),
    ("NVLink ports, in", "nvlink", "in"),
    ("uplinks, out", "uplink", "out"),
    ("uplinks, in", "uplink", "in"),
)
"""Kinds of ports: how they are called, and how the names of their ports begin and end."""

MAX_PHASES = 20
"""Most phases whose ends are listed."""


def prediction_text(plan: Plan, found: Prediction, ports: int = 10) -> str:
    """The time of a run, where it goes, and the ports that are used most.

    Args:
        plan: what runs.
        found: its prediction.
        ports: most ports that are listed; no list for 0.
    """
    bound = plan.certificate.bound
    head = f"predicted {format_s(found.elapsed_s)}"
    if bound.time_s:
        head += f", {found.elapsed_s / bound.time_s:.2f} x the bound T* {format_s(bound.time_s)}"
        head += f" ({bound.term} of {bound.resource})"
    blocks = [head, _where(found)]
    if len(found.phase_ends_s) > 1:
        blocks.append(_phases(found.phase_ends_s))
    if found.ports:
        blocks += [_kinds(found.ports), _busiest(found.ports, ports) if ports else ""]
    return "\n\n".join(filter(None, blocks))


def _where(found: Prediction) -> str:
    """What the busiest port, and the rank that ends last, do all the time."""
    rows = []
    busiest = found.busiest
    if busiest is not None:
        least_s = busiest.nbytes / busiest.bytes_per_s
        rows.append((f"{busiest.resource}: its bytes", format_s(least_s), _share(least_s, found)))
        rest_s = max(0.0, found.elapsed_s - least_s)
        rows.append(("  start-ups, and waiting for others", format_s(rest_s), _share(rest_s, found)))
    rank = found.last_rank
    if rank is not None:
        spent = found.spent(rank)
        names = ("copying and packing", "beginning slots and posting messages", "unpacking", "waiting")
        times = (spent.pack_s, spent.post_s, spent.unpack_s, spent.wait_s)
        rows.append((f"rank {rank}, which ends last", format_s(sum(times)), ""))
        rows += [
            (f"  {name}", format_s(time_s), _share(time_s, found))
            for name, time_s in zip(names, times, strict=True)
        ]
    return align([("where the time goes", "time", "share"), *rows]) if rows else ""


def _share(time_s: float, found: Prediction) -> str:
    return f"{time_s / found.elapsed_s:.1%}"


def _phases(ends_s: Sequence[float]) -> str:
    """When phases end, and how long each takes."""
    shown = ends_s[:MAX_PHASES]
    rows = [
        (str(number), format_s(end_s), format_s(end_s - (ends_s[number - 1] if number else 0.0)))
        for number, end_s in enumerate(shown)
    ]
    text = align([("phase", "ends", "time"), *rows])
    more = len(ends_s) - len(shown)
    return f"{text}\n... and {more} more" if more else text


def _kinds(ports: Sequence[PortUse]) -> str:
    """How much of the time ports of each kind are used."""
    rows = [("ports", "used", "bytes", "mean", "busiest")]
    for title, first, last in KINDS:
        mine = [use for use in ports if use.resource.startswith(first) and use.resource.endswith(last)]
        if mine:
            rows.append(
                (
                    title,
                    str(len(mine)),
                    format_nbytes(sum(use.nbytes for use in mine)),
                    f"{sum(use.utilisation for use in mine) / len(mine):.1%}",
                    f"{max(use.utilisation for use in mine):.1%}",
                )
            )
    return align(rows)


def _busiest(ports: Sequence[PortUse], count: int) -> str:
    """The ports that are used most."""
    rows = [("busiest ports", "bytes", "rate", "used")]
    rows += [
        (
            use.resource,
            format_nbytes(use.nbytes),
            format_rate(round(use.bytes_per_s)),
            f"{use.utilisation:.1%}",
        )
        for use in sorted(ports, key=lambda use: -use.utilisation)[:count]
    ]
    return align(rows)
