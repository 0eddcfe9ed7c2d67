"""Records: runs that have been started, and what came of them on one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from reshard_executors.pipeline import Spent
from reshard_planner.errors import ExecutionError
from reshard_planner.ir.timeline import Timeline
from reshard_planner.transfer import Medium


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one run did on one rank, counted from the messages that it sent.

    Attributes:
        network_nbytes: bytes sent between domains.
        nvlink_nbytes: bytes sent within the domain.
        messages: messages sent.
        elapsed_s: time from the moment all ranks agreed to start until this one was done, in seconds.
        prepare_s: time before that: checking and binding tensors, and agreeing.
        pack_s: time that the run spent packing, and copying within the rank. On CUDA this, like the two
            below, is the time to enqueue the work, which then goes on beside the host.
        wire_s: time that it spent posting messages and waiting for them.
        unpack_s: time that it spent unpacking.
        end_s: time after that: comparing checksums, and hearing that all ranks were done.
        version: number of the weights that arrived.
        timeline: what was done when, in seconds from the start; None unless asked for.
    """

    network_nbytes: int
    nvlink_nbytes: int
    messages: int
    elapsed_s: float
    prepare_s: float
    pack_s: float
    wire_s: float
    unpack_s: float
    end_s: float = 0.0
    version: int = 0
    timeline: Timeline | None = None

    @classmethod
    def of(
        cls, spent: Spent, prepare_s: float, elapsed_s: float, end_s: float, timeline: Timeline | None
    ) -> Self:
        """From what the slots took."""
        return cls(
            spent.sent_nbytes[Medium.NETWORK],
            spent.sent_nbytes[Medium.NVLINK],
            spent.messages,
            elapsed_s,
            prepare_s,
            spent.pack_s,
            spent.wire_s,
            spent.unpack_s,
            end_s,
            timeline=timeline,
        )


class Outcome(NamedTuple):
    """What all ranks have heard of a run.

    Attributes:
        record: of this rank.
        wrong: names of tensors whose checksums differ.
    """

    record: RunRecord
    wrong: tuple[str, ...]


class Refit:
    """A run that has been started; see :meth:`reshard_executors.resharder.Resharder.start`."""

    def __init__(self, finish: Callable[[], RunRecord]) -> None:
        self._finish: Callable[[], RunRecord] | None = finish
        self._record: RunRecord | None = None
        self._lock = threading.Lock()

    def wait(self) -> RunRecord:
        """Wait until all ranks are done; called again, or by several threads, it says the same.

        Raises:
            ContentsError: if checksums differ; naming tensors.
            ExecutionError: if the run failed on any rank; naming slot, peer and tensors.
        """
        with self._lock:
            if self._record is None:
                if self._finish is None:
                    raise ExecutionError("this run has failed; its error was raised by the first wait")
                finish, self._finish = self._finish, None
                self._record = finish()
            return self._record
