"""What simulated refits show, as sentences that are checked whenever they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.published_account import FITTED_CALL, FITTED_TENSOR, Fits, Simulated, needed_tensor_s
from benchmarks.published_rows import BENCHMARK
from reshard_planner.render.text import format_s

NEAR = 0.25
"""Goal for speedups on rows that were not fitted: how far they may be from the published ones."""

FAR = frozenset(("deepseek-v3-h100", "deepseek-v3-gb200"))
"""Rows whose speedup is known to miss it; the page accounts for them."""

NEAR_BOUND = 1.15
"""Goal for the simulated time of ``optimal``, over T*."""

BEHIND = 0.02
"""How much longer than ``m2n-node-aware`` the simulated ``optimal`` may take."""

NEAR_PLAN = 1.05
"""The busiest NIC over T*, from which on a plan's routes would be to blame."""

SPREAD = 1.5
"""Largest over least time per tensor from which on no one value is said to fit all rows."""

Claim = tuple[str, bool]
"""A sentence, and whether it is true."""


def claims(simulated: Sequence[Simulated], fits: Fits | None) -> Iterator[Claim]:
    """All that is said of these rows."""
    yield from _of_optimal(simulated)
    refits = [each for each in simulated if each.row.after != BENCHMARK[1]]
    if refits:
        yield from _of_refits(refits)
    if fits is not None:
        yield from _of_speedups(simulated, fits)


def _of_optimal(simulated: Sequence[Simulated]) -> Iterator[Claim]:
    ratios = {each.row.name: each.times_s["optimal"] / each.bound_s for each in simulated}
    sentence = f"`optimal` is simulated at {_each(ratios)} x T*, on no row above {NEAR_BOUND:.2f}."
    yield sentence, max(ratios.values()) <= NEAR_BOUND
    busiest = max(each.busiest_s / each.bound_s for each in simulated)
    sentence = (
        f"Over the whole plan of `optimal` the busiest NIC takes {busiest:.2f} x T* at most, within the"
        f" {NEAR_PLAN:.2f} that routes may cost; the rest is efficiency, latency and waiting in rounds."
    )
    yield sentence, busiest <= NEAR_PLAN
    shares = {
        each.row.name: each.times_s["optimal"] / each.times_s["m2n-node-aware"]
        for each in simulated
        if "m2n-node-aware" in each.times_s
    }
    if shares:
        sentence = (
            f"`optimal` is simulated at {_each(shares)} x the time of `m2n-node-aware`, on no row more than"
            f" {BEHIND:.0%} slower."
        )
        yield sentence, max(shares.values()) <= 1 + BEHIND


def _of_refits(refits: Sequence[Simulated]) -> Iterator[Claim]:
    shares = [each.unfitted_after_s / each.row.after_s for each in refits]
    sentence = (
        f"Refits by `hybrid` are simulated at {_range(shares, '.2f')} x the published times, never above"
        " them, nothing fitted."
    )
    yield sentence, max(shares) <= 1
    faster = [each.row.after_s / each.times_s["optimal"] for each in refits]
    sentence = (
        f"`optimal` is simulated at {_range(faster, '.1f')} times the speed of the published refits, never"
        " slower than they are."
    )
    yield sentence, min(faster) >= 1
    chains = [each.chain_s / each.row.before_s for each in refits]
    sentence = (
        f"The strategy `gather-broadcast` takes {_range(chains, '.1f')} times as long as what was published,"
        " never less: NCCL uses more than one NIC of a domain."
    )
    yield sentence, min(chains) > 1
    if len(refits) > 1:
        needed = {each.row.name: needed_tensor_s(each) for each in refits}
        told = ", ".join(f"{format_s(value)} on `{name}`" for name, value in needed.items())
        sentence = (
            f"The published times of gathering and broadcasting need {told} per tensor, the largest above"
            f" {SPREAD:.1f} x the least: no one value is right."
        )
        yield sentence, max(needed.values()) > SPREAD * min(needed.values())


def _of_speedups(simulated: Sequence[Simulated], fits: Fits) -> Iterator[Claim]:
    predicted = [each for each in simulated if each.row.name not in (FITTED_TENSOR, FITTED_CALL)]
    if not predicted:
        return
    far = far_rows(predicted, fits)
    near = [each.row.name for each in predicted if each.row.name not in far]
    sentence = (
        f"Where nothing was fitted, the simulated speedup is within {NEAR:.0%} of the published one on:"
        f" {names(near)}; it is further off on those that are accounted for below: {names(far)}."
    )
    yield sentence, set(far) == FAR.intersection(near + far)


def far_rows(rows: Iterable[Simulated], fits: Fits) -> list[str]:
    """Names of the rows whose simulated speedup is far from the published one."""
    return [each.row.name for each in rows if abs(fits.speedup(each) / each.row.speedup - 1) > NEAR]


def other_fits(simulated: Sequence[Simulated], fits: Fits) -> Iterator[str]:
    """What would be far if the time per tensor were fitted on another row, as sentences."""
    for other in simulated:
        if other.row.name != FITTED_TENSOR and other.row.before != BENCHMARK[0]:
            found = Fits(needed_tensor_s(other), fits.call_s)
            kept = (each for each in simulated if each.row.name not in (other.row.name, FITTED_CALL))
            yield f"on `{other.row.name}`, they would be {names(far_rows(kept, found))}"


def _each(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{ratio:.2f} (`{name}`)" for name, ratio in ratios.items())


def _range(values: Sequence[float], form: str) -> str:
    least, most = f"{min(values):{form}}", f"{max(values):{form}}"
    return least if least == most else f"{least} to {most}"


def names(rows: Iterable[str]) -> str:
    """Names of rows, as the page spells them.

    >>> names(["a", "b"]), names([])
    ('`a`, `b`', 'none')
    """
    return ", ".join(f"`{name}`" for name in rows) or "none"
