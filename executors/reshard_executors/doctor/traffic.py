"""Traffic: running the probe on a process group of its own, and counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from reshard_executors.agreement import reason
from reshard_executors.doctor.counters import difference, read_sent
from reshard_executors.doctor.interfaces import Interface
from reshard_executors.doctor.meeting import Meeting
from reshard_executors.doctor.probe import FIRST_NBYTES, Edge, Sample, choose_nbytes

PATIENCE_S, SHARE = 20.0, 0.8
"""How long one transfer may take, in seconds; at most this share of how long ranks wait for one another."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the probe.

    Attributes:
        samples: of all ranks, both rounds.
        problem: why it was not finished; None if it was.
        ranks: which ranks have the problem.
    """

    samples: tuple[Sample, ...] = ()
    problem: str | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank says at the end of a step: why it cannot go on; None if it can."""

    problem: str | None = None


class Traffic:
    """The probe on one rank: collective, step by step with all others."""

    def __init__(
        self, meeting: Meeting, backend: str, device: torch.device, interfaces: tuple[Interface, ...]
    ) -> None:
        """Prepare to send; connects to nobody.

        Args:
            meeting: of all ranks.
            backend: ``gloo`` or ``nccl``.
            device: what is sent from.
            interfaces: whose counters tell.
        """
        self._meeting, self._backend, self._device = meeting, backend, device
        self._interfaces = interfaces
        self._group: Any = None
        self._samples: list[Sample] = []
        self._steps = 0

    def run(self, edges: Sequence[Edge], most_nbytes: int) -> Outcome:
        """Connect, and send over every edge twice: a little, and then as much as there is time for.

        Args:
            edges: the same on all ranks.
            most_nbytes: what no edge exceeds.

        Returns:
            The same on all ranks.

        Raises:
            RanksLostError: if ranks are lost meanwhile.
        """
        first = [min(FIRST_NBYTES, most_nbytes)] * len(edges)
        stopped = self._step(self._connect()) or self._round(edges, first)
        if stopped is None:
            own = Outcome(tuple(self._samples))

            def size(everyone: list[Outcome]) -> list[int]:
                samples = [sample for one in everyone for sample in one.samples]
                return choose_nbytes(edges, samples, most_nbytes)

            nbytes = self._meeting.decide("choose how much to send", own, size, list[int])
            stopped = self._round(edges, nbytes)
        mine = Outcome(tuple(self._samples))
        if stopped is not None:
            return stopped
        return self._meeting.decide("tell what was measured", mine, _together, Outcome)

    def _connect(self) -> str | None:
        """Make the process group; why that failed, None if it did not."""
        store = PrefixStore("probe", self._meeting.store)
        try:
            self._group = _make_group(self._backend, store, self._meeting, self._device)
        except RuntimeError as failure:
            return f"{self._backend} cannot connect: {reason(failure)}"
        return None

    def _round(self, edges: Sequence[Edge], nbytes: Sequence[int]) -> Outcome | None:
        """All turns; what stopped them, None if nothing did."""
        rank = self._meeting.rank
        for turn in range(1 + max((edge.turn for edge in edges), default=-1)):
            mine = [
                number
                for number, edge in enumerate(edges)
                if edge.turn == turn and rank in (edge.sender, edge.receiver)
            ]
            before = read_sent(self._interfaces)
            self._step(None)
            problem = self._play(mine[0], edges[mine[0]], nbytes[mine[0]]) if mine else None
            stopped = self._step(problem)
            if stopped is not None:
                return stopped
            if mine and edges[mine[0]].sender == rank:
                sent = difference(before, read_sent(self._interfaces))
                self._samples.append(Sample(mine[0], nbytes[mine[0]], sent=sent))
        return None

    def _play(self, number: int, edge: Edge, nbytes: int) -> str | None:
        """Send or receive; why that failed, None if it did not."""
        sends = edge.sender == self._meeting.rank
        start, bulk = (torch.ones(size, dtype=torch.uint8, device=self._device) for size in (1, nbytes))
        try:
            if sends:
                self._move(self._group.send, start, edge.receiver)
                self._move(self._group.send, bulk, edge.receiver)
                return None
            self._move(self._group.recv, start, edge.sender)
            begin = time.perf_counter()  # both ends are ready now
            self._move(self._group.recv, bulk, edge.sender)
        except RuntimeError as failure:
            other = edge.receiver if sends else edge.sender
            what = f"send {nbytes} bytes to" if sends else f"receive {nbytes} bytes from"
            return f"cannot {what} rank {other} over {self._backend}: {reason(failure)}"
        self._samples.append(Sample(number, nbytes, elapsed_s=time.perf_counter() - begin))
        return None

    def _move(
        self, call: Callable[[list[torch.Tensor], int, int], Any], tensor: torch.Tensor, peer: int
    ) -> None:
        """Send or receive one tensor, to the end."""
        if self._backend != "nccl":
            call([tensor], peer, 0).wait()
            return
        # grouped, as in runs of plans: alone a pair would get a communicator of its own, in which no GPU
        # beside the sender can lend its NIC
        self._group._start_coalescing()  # noqa: SLF001 - it has no other name
        call([tensor], peer, 0)
        self._group._end_coalescing().wait()  # noqa: SLF001 - likewise
        torch.cuda.synchronize(self._device)

    def _step(self, problem: str | None) -> Outcome | None:
        """Wait for all ranks; what has stopped one of them, None if nothing has."""
        self._steps += 1
        what = f"step {self._steps} of the probe"
        outcome = self._meeting.decide(what, _Word(problem), _first_problem, Outcome)
        return outcome if outcome.problem is not None else None


def _make_group(backend: str, store: Store, meeting: Meeting, device: torch.device) -> Any:
    """A process group outside of any world, connected."""
    rank, size = meeting.rank, meeting.size
    timeout = timedelta(seconds=min(PATIENCE_S, SHARE * meeting.timeout_s))
    if backend == "gloo":
        return ProcessGroupGloo(store, rank, size, timeout)
    from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 - not in every torch

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout  # noqa: SLF001 - it has no other name
    group: Any = ProcessGroupNCCL(store, rank, size, options)
    with torch.cuda.device(device):  # what all ranks do together comes first
        group.allreduce([torch.zeros(1, device=device)]).wait()
        torch.cuda.synchronize(device)
    return group


def _first_problem(everyone: list[_Word]) -> Outcome:
    problems = {rank: word.problem for rank, word in enumerate(everyone) if word.problem is not None}
    if not problems:
        return Outcome()
    text = problems[min(problems)]
    return Outcome((), text, tuple(rank for rank, problem in problems.items() if problem == text))


def _together(everyone: list[Outcome]) -> Outcome:
    return Outcome(tuple(sample for one in everyone for sample in one.samples))
