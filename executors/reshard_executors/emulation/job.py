"""What the owner of a cluster and the ranks in it tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

JOB_FILE = "job.json"
"""Name of the file in the cluster's folder that holds the job."""

RANK_VARIABLE = "RESHARD_EMULATED_RANK"
"""Environment variable that tells a process which rank of the plan it plays."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run, as ranks are told.

    Attributes:
        name: of the run.
        plan: plan file.
        baseline: name of what moves the tensors of the plan's spec instead of the plan; None for the plan.
        repeat: how many times to run, at least once.
    """

    name: str
    plan: str
    baseline: str | None
    repeat: int


@dataclass(frozen=True, slots=True)
class Job:
    """All that ranks do in one launch.

    Attributes:
        runs: one after the other.
        timeout_s: how long ranks wait for each other, in seconds.
    """

    runs: tuple[RunOrder, ...]
    timeout_s: float

    def write(self, folder: Path) -> None:
        """Leave the job for the ranks."""
        (folder / JOB_FILE).write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job that was left."""
        return msgspec.json.decode((folder / JOB_FILE).read_bytes(), type=cls)


def report_pipe(folder: Path, rank: int) -> Path:
    """Name of the pipe that a rank reports over."""
    return folder / f"report-{rank}"


def log_file(folder: Path, rank: int | None) -> Path:
    """File that holds what the processes of a rank print, or, when None, the one that starts the ranks."""
    return folder / ("log" if rank is None else f"log-{rank}")


@dataclass(frozen=True, slots=True)
class PortBytes:
    """Bytes through the ports of one GPU, by the kernel's counters.

    Attributes:
        nic_sent: out of the NIC.
        nic_received: into the NIC.
        nvlink_sent: out of the NVLink port.
        nvlink_received: into the NVLink port.
    """

    nic_sent: int
    nic_received: int
    nvlink_sent: int
    nvlink_received: int

    def since(self, before: PortBytes) -> PortBytes:
        """What has passed since an earlier count."""
        return PortBytes(
            self.nic_sent - before.nic_sent,
            self.nic_received - before.nic_received,
            self.nvlink_sent - before.nvlink_sent,
            self.nvlink_received - before.nvlink_received,
        )


@dataclass(frozen=True, slots=True)
class Repeat:
    """What one rank measured in one repeat of a run.

    Attributes:
        elapsed_s: from the moment that all ranks were ready until this one was done, in seconds.
        ports: what passed the ports of its GPU meanwhile.
        difference: a sentence on the first wrong element; None if all are right.
    """

    elapsed_s: float
    ports: PortBytes
    difference: str | None


@dataclass(frozen=True, slots=True)
class RunDone:
    """What one rank measured in a run.

    Attributes:
        run: position of the run in the job.
        repeats: one entry per repeat.
        refused: why the baseline cannot do it, with no repeats; None if it can.
    """

    run: int
    repeats: tuple[Repeat, ...]
    refused: str | None = None
