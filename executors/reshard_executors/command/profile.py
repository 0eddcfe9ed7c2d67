"""Profiles: timelines of all ranks in one file that trace viewers show."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from reshard_executors.command.summary import Summary
from reshard_planner.errors import InputError
from reshard_planner.ir.chrometrace import chrome_trace
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.timeline import Timeline

PROBE_NBYTES: Final = 65_536
"""What a disk must have room for at least, before a run."""


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the time of a run is spent.

    Raises:
        InputError: saying why.
    """
    try:
        target = path.resolve()  # as the file is written through links
        if target.exists() and not target.is_file():
            raise InputError(f"--profile {path} is not a regular file")
        with tempfile.TemporaryFile(dir=target.parent) as probe:
            probe.write(bytes(PROBE_NBYTES))
            probe.flush()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle; names that cannot be
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"--profile {path} cannot be written: {why}") from None


def write_profile(path: Path, summary: Summary) -> None:
    """Write what all ranks did in the last run as a Chrome trace, whole or not at all.

    The times of every rank count from its own start of the run, on which all ranks have agreed just before:
    clocks of hosts differ by more.

    Raises:
        InputError: if it cannot be written.
    """
    topology = summary.plan.spec.topology
    timelines = [report.timeline for report in summary.reports if report.timeline is not None]
    times = summary.times_s
    notes = {"digest": summary.plan.digest, "repeat": len(times), "elapsed_s": times[-1]}
    write_atomically(path, chrome_trace(Timeline.concatenate(timelines), notes=notes, topology=topology))
