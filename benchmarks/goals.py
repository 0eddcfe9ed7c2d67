"""Goals: what the plan of a case is to keep within, beside being right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.record import Record
from reshard_planner.render.text import format_nbytes, format_s


@dataclass(frozen=True, slots=True)
class Goals:
    """Upper limits of a case; None where nothing is asked for.

    Attributes:
        most_nic_ratio: time of the busiest NIC over T*.
        most_rows: rows of the table of routes.
        most_peers: most peers of any rank.
        most_compile_s: median time of a compile.
        most_checked_s: the same and one run of ``verify``.
        most_peak_nbytes: largest resident memory of the process.
        most_program_s: time to read one rank's program from the plan file.
        most_predict_s: time to predict a run of the plan.
        most_predict_error: relative difference of a prediction in windows from the exact one.
    """

    most_nic_ratio: float | None = None
    most_rows: int | None = None
    most_peers: int | None = None
    most_compile_s: float | None = None
    most_checked_s: float | None = None
    most_peak_nbytes: int | None = None
    most_program_s: float | None = None
    most_predict_s: float | None = None
    most_predict_error: float | None = None

    def of_the_plan(self) -> Goals:
        """Those that are the same on every machine."""
        return Goals(self.most_nic_ratio, self.most_rows, self.most_peers)


def find_missed(goals: Goals, record: Record) -> list[str]:
    """The goals that a record misses, one line each; what was not measured misses none."""
    checked_s = None
    if record.compile_s is not None and record.verify_s is not None:
        checked_s = record.compile_s + record.verify_s
    limits: tuple[tuple[str, float | None, float | None, Callable[[Any], str]], ...] = (
        ("busiest NIC over T*", record.nic_ratio, goals.most_nic_ratio, "{:.4f}".format),
        ("rows", record.rows, goals.most_rows, str),
        ("peers of a rank", record.peers_max, goals.most_peers, str),
        ("compile", record.compile_s, goals.most_compile_s, format_s),
        ("compile and verify", checked_s, goals.most_checked_s, format_s),
        ("peak memory", record.peak_nbytes, goals.most_peak_nbytes, format_nbytes),
        ("one rank's program", record.program_s, goals.most_program_s, format_s),
        ("prediction", record.predict_s, goals.most_predict_s, format_s),
        ("error of the prediction", record.predict_error, goals.most_predict_error, "{:.5f}".format),
    )
    return [
        f"{what}: {show(value)}, at most {show(most)} expected"
        for what, value, most, show in limits
        if value is not None and most is not None and value > most
    ]
