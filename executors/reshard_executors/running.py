"""Running: what one rank does in every run, on its device and its stream."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.distributed as dist

from reshard_executors.agreement import HOSTS, add_up, agree_on_hosts, not_met, reason
from reshard_executors.checksums import Checksums
from reshard_executors.rank import BoundRun, RankProgram
from reshard_executors.record import Outcome, RunRecord
from reshard_executors.recorder import Recorder
from reshard_executors.shadow import Shadow
from reshard_executors.spelling import spell_names
from reshard_executors.waiting import Waiting
from reshard_planner.errors import ContentsError, ExecutionError
from reshard_planner.ir.plan import Plan
from reshard_planner.spec import ReshardSpec

END: Final = "compare how the run ended"
"""What the ranks meet to do in the end."""


@dataclass(frozen=True, slots=True)
class Running:
    """What runs of one rank have in common.

    Attributes:
        program: of the rank.
        device: where tensors lie.
        stream: what all work is given to; None on the CPU.
        checksums: compared after every run; None if they are not.
        profile: whether to keep timelines.
    """

    program: RankProgram
    device: torch.device
    stream: torch.cuda.Stream | None
    checksums: Checksums | None
    profile: bool

    @classmethod
    def of(
        cls,
        plan: Plan,
        ranks: Sequence[int],
        position: int,
        device: torch.device,
        shadow: bool,  # noqa: FBT001 - as a Resharder has it
        checksums: bool,  # noqa: FBT001 - as above
        profile: bool,  # noqa: FBT001 - as above
    ) -> Running:
        """Prepare the runs of one rank.

        Args:
            plan: what will be run.
            ranks: rank of the plan that each process of the group plays.
            position: of this process in the group.
            device: where tensors lie.
            shadow: see :class:`reshard_executors.resharder.Resharder`, as for the others.
            checksums: likewise.
            profile: likewise.

        Raises:
            VerificationError: if the plan cannot be lowered to programs.
            RuntimeError: if the device has no room for a stream.
        """
        positions = {each: at for at, each in enumerate(ranks)}
        rank = ranks[position]
        stream = None
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return cls(
            RankProgram(plan, rank, positions, device, shadow=shadow),
            device,
            stream,
            Checksums(plan, rank, device) if checksums else None,
            profile,
        )

    def follow_caller(self) -> None:
        """Let what is given to the stream begin after what the caller's stream has been given."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def connect(
        self, spec: ReshardSpec, ranks: Sequence[int], group: dist.ProcessGroup, waiting: Waiting
    ) -> None:
        """Compare hosts, and connect with peers; in the lane.

        Args:
            spec: of the plan.
            ranks: rank of the plan that each process of the group plays.
            group: of all ranks.
            waiting: told what is waited for.

        Raises:
            InputError: on every rank, if domains mix GPUs of different hosts.
            ExecutionError: if a rank is lost.
        """
        waiting.begin(lambda: not_met(HOSTS))
        agree_on_hosts(group, self.device, spec, ranks)
        with self.on_stream():
            self.program.connect(group, waiting.begin)

    def run(self, run: BoundRun, prepare_s: float, group: dist.ProcessGroup, waiting: Waiting) -> Outcome:
        """Run all slots, and hear how they ended on all ranks; in the lane.

        Args:
            run: the program, bound to tensors.
            prepare_s: what that took.
            group: of all ranks.
            waiting: told what is waited for.

        Raises:
            ExecutionError: if a message fails, or a rank is lost.
        """
        begin = time.perf_counter()
        recorder = Recorder(self.program.rank) if self.profile else None
        with self.on_stream():
            spent = self.program.run(group, run, waiting.begin, recorder)
            if self.stream is not None:
                self.stream.synchronize()
            done = time.perf_counter()
            sums = torch.zeros(1, dtype=torch.int64, device=self.device)
            if self.checksums is not None:
                sums = self.checksums.difference(run.sources, run.written, run.tensors)
            waiting.begin(lambda: not_met(END), for_all=True)
            found = add_up(group, sums, END)
        wrong = tuple(name for name, off in zip(run.names, found, strict=False) if off)
        end_s = time.perf_counter() - done
        timeline = None if recorder is None else recorder.timeline()
        return Outcome(RunRecord.of(spent, prepare_s, done - begin, end_s, timeline), wrong)

    def publish(self, shadow: Shadow, record: RunRecord) -> RunRecord:
        """Copy shadows to the destinations, after what the caller's stream has been given so far.

        Raises:
            ExecutionError: if that fails.
        """
        begin = time.perf_counter()
        try:
            self.follow_caller()
            with self.on_stream(), torch.inference_mode(mode=False):
                shadow.publish()
            if self.stream is not None:
                self.stream.synchronize()
        except RuntimeError as failure:
            text = f"copying what has arrived to the destinations failed: {reason(failure)}"
            raise ExecutionError(text) from failure
        spent_s = time.perf_counter() - begin
        return replace(record, elapsed_s=record.elapsed_s + spent_s, unpack_s=record.unpack_s + spent_s)

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Give everything to the stream, if there is one."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield


def check_contents(outcome: Outcome) -> RunRecord:
    """The record of a run whose checksums agree.

    Raises:
        ContentsError: naming the tensors whose checksums differ.
    """
    if outcome.wrong:
        names = spell_names(list(map(repr, outcome.wrong)))
        raise ContentsError(
            f"tensors {names} arrived with other contents than their sources have: the checksums differ"
        )
    return outcome.record
