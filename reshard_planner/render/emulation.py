"""Measurements on an emulated cluster, as a text table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.render.text import align, format_nbytes, format_s

HEADER = (
    "run",
    "elapsed",
    "x T*",
    "predicted",
    "network",
    "measured",
    "NVLink",
    "measured",
    "correct",
    "bytes",
)


@dataclass(frozen=True, slots=True)
class EmulatedRow:
    """One run.

    Attributes:
        name: of the run.
        elapsed_s: median time, in seconds.
        predicted_s: time that was predicted, in seconds; None without a prediction.
        network: bytes over the network, planned and measured; planned is None for what has no plan.
        nvlink: bytes over NVLink, likewise.
        correct: whether every element is right.
        bytes_ok: whether what was measured is what was planned; None for what has no plan.
    """

    name: str
    elapsed_s: float
    predicted_s: float | None
    network: tuple[int | None, int]
    nvlink: tuple[int | None, int]
    correct: bool
    bytes_ok: bool | None


def emulation_table(runs: Sequence[EmulatedRow], bound_s: float) -> str:
    """A table with a row per run, under the bound that holds for all of them.

    Args:
        runs: what was measured.
        bound_s: T* of the emulated cluster, in seconds.
    """
    rows = [HEADER, *(_cells(run, bound_s) for run in runs)]
    if all(run.predicted_s is None for run in runs):
        at = HEADER.index("predicted")
        rows = [row[:at] + row[at + 1 :] for row in rows]
    return f"bound T* {format_s(bound_s)}\n{align(rows)}"


def _cells(run: EmulatedRow, bound_s: float) -> tuple[str, ...]:
    return (
        run.name,
        format_s(run.elapsed_s),
        f"{run.elapsed_s / bound_s:.2f}" if bound_s else "-",
        "-" if run.predicted_s is None else format_s(run.predicted_s),
        *("-" if nbytes is None else format_nbytes(nbytes) for nbytes in (*run.network, *run.nvlink)),
        "yes" if run.correct else "NO",
        {True: "as planned", False: "NOT AS PLANNED", None: "-"}[run.bytes_ok],
    )
