"""Simulated refits beside published ones as the tables of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.published_account import (
    FITTED_CALL,
    FITTED_TENSOR,
    STRATEGIES,
    Fits,
    Moved,
    Simulated,
    fit,
)
from benchmarks.published_claims import NEAR, claims, far_rows, names, other_fits
from benchmarks.published_rows import BENCHMARK
from reshard_planner.render.text import format_s


def report(simulated: Sequence[Simulated], sizes: Sequence[Moved]) -> tuple[str, list[str]]:
    """The tables and what they show, as markdown, and the sentences that are not true.

    Args:
        simulated: the rows; without those that are fitted on, nothing is said of fitted times.
        sizes: payloads; none are left out of the text.
    """
    fits = fit(simulated) if {FITTED_TENSOR, FITTED_CALL} <= {each.row.name for each in simulated} else None
    parts = ["### Nothing fitted", "", *_unfitted_table(simulated), ""]
    shown = list(claims(simulated, fits))
    if fits is not None:
        parts += ["### Two parameters fitted", "", _fitted_text(simulated, fits), ""]
        parts += [*_fitted_table(simulated, fits), ""]
        parts += ["### What the times are made of", "", *_account_table(simulated, fits), ""]
    parts += ["### What this shows", "", *(f"- {sentence}" for sentence, _ in shown), ""]
    if sizes:
        parts += ["### Payloads of the largest models", "", *_size_table(sizes), ""]
    parts += ["### Layouts and sources", "", *_source_table(simulated)]
    return "\n".join(parts) + "\n", [sentence for sentence, holds in shown if not holds]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _unfitted_table(simulated: Sequence[Simulated]) -> Iterator[str]:
    header = (
        "row", "T*", *(f"`{name}`" for name in STRATEGIES), "`gather-broadcast`", "collectives",
        "`optimal`, own buffers",
    )  # fmt: skip
    rows = [
        (
            each.row.name,
            format_s(each.bound_s),
            *(_time(each, name) for name in STRATEGIES),
            format_s(each.chain_s),
            format_s(each.collective_s),
            "" if each.stored is None else _over(*each.stored),
        )
        for each in simulated
    ]
    return _table(header, rows)


def _time(each: Simulated, strategy: str) -> str:
    if strategy in each.times_s:
        return format_s(each.times_s[strategy])
    return "refused" if strategy in each.refusals else ""


def _over(time_s: float, bound_s: float) -> str:
    return f"{format_s(time_s)} ({time_s / bound_s:.2f} x T*)"


def _fitted_text(simulated: Sequence[Simulated], fits: Fits) -> str:
    return (
        f"Gathering and broadcasting takes {format_s(fits.tensor_s)} per tensor, fitted on the first figure"
        f" of `{FITTED_TENSOR}`; M2N takes {format_s(fits.call_s)} per call, fitted on the second figure of"
        f" `{FITTED_CALL}`. All other figures are predictions. Which row is fitted matters: with this one"
        f" speedups off by more than {NEAR:.0%} are {names(far_rows(simulated, fits))}; fitted"
        f" {'; '.join(other_fits(simulated, fits))}."
    )


def _fitted_table(simulated: Sequence[Simulated], fits: Fits) -> Iterator[str]:
    header = ("row", "", "published", "simulated", "", "published speedup", "simulated speedup", "")
    rows = []
    for each in simulated:
        row = each.row
        first = (row.before, row.before_s, fits.before_s(each), row.name == FITTED_TENSOR)
        second = (row.after, row.after_s, fits.after_s(each), row.name == FITTED_CALL)
        speedup = fits.speedup(each)
        tail = (f"{row.speedup:.2f}", f"{speedup:.2f}", _off(speedup, row.speedup))
        for name, (what, published_s, found_s, fitted), rest in (
            (row.name, first, ("", "", "")),
            ("", second, tail),
        ):
            off = "fitted" if fitted else _off(found_s, published_s)
            rows.append((name, f"`{what}`", format_s(published_s), format_s(found_s), off, *rest))
    return _table(header, rows)


def _off(found: float, published: float) -> str:
    return f"{found / published - 1:+.0%}"


def _account_table(simulated: Sequence[Simulated], fits: Fits) -> Iterator[str]:
    header = ("row", "published", "is made of", "not accounted for")
    rows = []
    for each in simulated:
        row = each.row
        calls_s = each.calls * fits.call_s
        made: tuple[tuple[str, float], ...]
        if row.before == BENCHMARK[0]:
            plain = each.times_s["direct"]
            made = (
                ("bytes", plain),
                ("waiting between patterns", each.unfitted_before_s - plain),
                (f"{each.calls} calls", calls_s),
            )
        else:
            made = (
                ("bytes, twice", each.collective_s),
                (f"{each.tensors} tensors", each.tensors * fits.tensor_s),
            )
        rows.append(_account(row.name, row.before, row.before_s, made))
        if row.after == BENCHMARK[1]:
            plain = each.times_s[row.after]
            made = (
                ("T*", each.bound_s),
                ("plan, efficiency, latency", plain - each.bound_s),
                ("waiting between patterns", each.unfitted_after_s - plain),
                (f"{each.calls} calls", calls_s),
            )
        else:
            made = (
                ("T*", each.bound_s),
                ("feed-forward weights beyond that", each.feed_forward_s - each.bound_s),
                ("others by broadcast, after them", each.unfitted_after_s - each.feed_forward_s),
                (f"{each.calls} calls", calls_s),
            )
        rows.append(_account("", row.after, row.after_s, made))
    return _table(header, rows)


def _account(
    name: str, what: str, published_s: float, made: Sequence[tuple[str, float]]
) -> tuple[str, str, str, str]:
    rest = published_s - sum(part for _, part in made)
    told = "; ".join(f"{about} {part:.2f} s" for about, part in made)
    return name, f"`{what}` {published_s:.2f} s", told, f"{rest:+.2f} s ({rest / published_s:+.0%})"


def _size_table(sizes: Sequence[Moved]) -> Iterator[str]:
    header = (
        "model", "published: size", "gathered and broadcast", "computed: twice the size",
        "reshard into all engines", "broadcast into every domain", "refit",
    )  # fmt: skip
    rows = []
    for each in sizes:
        size = each.size
        published = "" if size.after_s is None else f"; published {format_s(size.after_s)}"
        broadcast = "unknown" if each.broadcast_nbytes is None else _tb(each.broadcast_nbytes)
        rows.append(
            (
                size.about,
                _tb(size.nbytes),
                _tb(size.logical_nbytes),
                _tb(2 * each.nbytes),
                _tb(each.needed_nbytes),
                broadcast,
                each.about + published,
            )
        )
    return _table(header, rows)


def _tb(nbytes: float) -> str:
    return f"{nbytes / 1e12:,.1f} TB"


def _source_table(simulated: Sequence[Simulated]) -> Iterator[str]:
    header = ("row", "", "GPUs", "size", "tensors", "layout", "times from", "layout from")
    rows = []
    for each in simulated:
        row, spread = each.row, each.row.spread
        layout = (
            f"{spread.pp} stages of {spread.stage_gpus} GPUs, TP{spread.tp}, EP{spread.ep} to"
            f" TP{spread.gen_tp} x DP{spread.gen_dp}"
        )
        gpus, size = f"{spread.gpus}", f"{each.nbytes / 1e9:.0f} GB"
        rows.append(
            (row.name, row.about, gpus, size, f"{each.tensors}", layout, row.source, row.spread_source)
        )
    return _table(header, rows)
