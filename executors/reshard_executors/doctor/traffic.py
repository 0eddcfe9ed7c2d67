"""Traffic: running the probe on a process group of its own, and counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from reshard_executors.agreement import ENDLESS, reason
from reshard_executors.doctor.council import Council, Trouble
from reshard_executors.doctor.links import difference, read_sent
from reshard_executors.doctor.probe import FIRST_NBYTES, Edge, Sample, choose_nbytes
from reshard_executors.groups import abort_group, errors_left_to_us
from reshard_executors.lane import Lane

PATIENCE_S: Final = 20.0
SHARE: Final = 0.6
"""How long one transfer may take, in seconds; at most this share of how long ranks wait for one another."""

OVERDUE: Final = 1.2
"""How many times longer a rank waits for its backend, which may say itself what takes too long."""

ABORT_S: Final = 2.0
"""How long aborting a group may take, in seconds, before it is left to itself."""


class Traffic:
    """The probe on one rank: collective, step by step with all others.

    What waits for other ranks runs in a thread that is left behind if it does not end in time: neither
    connecting over NCCL nor waiting for its kernels knows a deadline.
    """

    def __init__(
        self, council: Council, backend: str, device: torch.device, loopbacks: Collection[str]
    ) -> None:
        """Prepare to send; connects to nobody.

        Args:
            council: of all ranks.
            backend: ``gloo`` or ``nccl``.
            device: what is sent from.
            loopbacks: names of interfaces whose counters say nothing.
        """
        self._council, self._backend, self._device = council, backend, device
        self._loopbacks = loopbacks
        self._patience_s = min(PATIENCE_S, SHARE * council.timeout_s)
        self._lane = Lane("doctor probe")
        self._group: Any = None
        self._samples: list[Sample] = []
        self._steps = 0

    def run(self, edges: Sequence[Edge], most_nbytes: int) -> tuple[Sample, ...] | Trouble:
        """Connect, and send over every edge twice: a little, and then as much as there is time for.

        Args:
            edges: the same on all ranks.
            most_nbytes: what no edge exceeds.

        Returns:
            Samples of all ranks and both rounds, or why that was not finished; the same on all ranks.

        Raises:
            RanksLostError: if ranks are lost meanwhile.
        """
        found: tuple[Sample, ...] | Trouble | None = None
        try:
            found = self._run(edges, most_nbytes)
        finally:
            self._close(in_order=isinstance(found, tuple))
        return found

    def _run(self, edges: Sequence[Edge], most_nbytes: int) -> tuple[Sample, ...] | Trouble:
        trouble = self._step(self._tried("connect", self._connect)) or self._round(
            edges, [min(FIRST_NBYTES, most_nbytes)] * len(edges)
        )
        if trouble is not None:
            return trouble
        nbytes = choose_nbytes(edges, self._share("tell what the first round has shown"), most_nbytes)
        return self._round(edges, nbytes) or self._share("tell what was measured")

    def _round(self, edges: Sequence[Edge], nbytes: Sequence[int]) -> Trouble | None:
        """All turns; what stopped them, None if nothing did."""
        rank = self._council.rank
        for turn in range(1 + max((edge.turn for edge in edges), default=-1)):
            mine = [
                number
                for number, edge in enumerate(edges)
                if edge.turn == turn and rank in (edge.sender, edge.receiver)
            ]
            before = read_sent(self._loopbacks)
            self._step(None)
            problem = self._play(mine[0], edges[mine[0]], nbytes[mine[0]]) if mine else None
            trouble = self._step(problem)
            if trouble is not None:
                return trouble
            if mine and edges[mine[0]].sender == rank:
                sent = difference(before, read_sent(self._loopbacks))
                self._samples.append(Sample(mine[0], nbytes[mine[0]], sent=sent))
        return None

    def _play(self, number: int, edge: Edge, nbytes: int) -> str | None:
        """Send or receive; why that failed, None if it did not."""
        if edge.sender == self._council.rank:
            work = partial(self._transfer, self._group.send, edge.receiver, nbytes)
            return self._tried(f"send {nbytes} bytes to rank {edge.receiver}", work)

        def receive() -> None:
            elapsed_s = self._transfer(self._group.recv, edge.sender, nbytes)
            self._samples.append(Sample(number, nbytes, elapsed_s=elapsed_s))

        return self._tried(f"receive {nbytes} bytes from rank {edge.sender}", receive)

    def _tried(self, what: str, work: Callable[[], object]) -> str | None:
        """Do something in the lane; why that failed or did not end in time, None if it did."""
        ticket = self._lane.ask(work)
        if ticket.done(OVERDUE * self._patience_s):
            try:
                ticket.result()
            except RuntimeError as failure:
                return f"{self._backend} cannot {what}: {reason(failure)}"
            return None
        return f"{self._backend} cannot {what}: nothing has happened for {OVERDUE * self._patience_s:g} s"

    def _connect(self) -> None:
        """Make a process group outside of any world; in the lane."""
        store = PrefixStore("probe", self._council.store)
        rank, size = self._council.rank, self._council.size
        if self._backend == "gloo":
            self._group = ProcessGroupGloo(store, rank, size, timedelta(seconds=self._patience_s))
            return
        from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 - not in every torch

        torch.cuda.set_device(self._device)  # threads begin on device 0
        options = ProcessGroupNCCL.Options()
        options._timeout = ENDLESS  # noqa: SLF001 - it has no other name; NCCL would end the process
        with errors_left_to_us(self._backend):
            self._group = ProcessGroupNCCL(store, rank, size, options)
        self._group.allreduce([torch.zeros(1, device=self._device)]).wait()  # what all do comes first
        torch.cuda.synchronize(self._device)

    def _transfer(self, call: Callable[..., Any], peer: int, nbytes: int) -> float:
        """Send or receive a byte and then all others; how long the latter took, in seconds. In the lane."""
        start, bulk = (torch.ones(size, dtype=torch.uint8, device=self._device) for size in (1, nbytes))
        self._move(call, start, peer)
        begin = time.perf_counter()  # both ends are ready now
        self._move(call, bulk, peer)
        return time.perf_counter() - begin

    def _move(self, call: Callable[..., Any], tensor: torch.Tensor, peer: int) -> None:
        """Send or receive one tensor, to the end; in the lane."""
        if self._backend != "nccl":
            call([tensor], peer, 0).wait()
            return
        # grouped, as in runs of plans: alone a pair would get a communicator of its own, in which no GPU
        # beside the sender can lend its NIC
        self._group._start_coalescing()  # noqa: SLF001 - it has no other name
        call([tensor], peer, 0)
        self._group._end_coalescing().wait()  # noqa: SLF001 - likewise
        torch.cuda.synchronize(self._device)

    def _step(self, problem: str | None) -> Trouble | None:
        """Wait for all ranks; what has stopped one of them, None if nothing has."""
        self._steps += 1
        return self._council.proceed(f"step {self._steps} of the probe", problem)

    def _share(self, what: str) -> tuple[Sample, ...]:
        """What all ranks have measured so far."""
        return self._council.decide(what, _Measured(tuple(self._samples)), _together, _Measured).samples

    def _close(self, *, in_order: bool) -> None:
        """Give the group up. NCCL's is aborted in any case: its orderly end would wait for other ranks."""
        group, self._group = self._group, None
        if group is not None and not (in_order and self._backend == "gloo"):
            aborting = Lane("doctor abort")
            aborted = aborting.ask(partial(abort_group, group, self._backend))
            aborting.close()
            aborted.done(ABORT_S)
        self._lane.close()


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured, by one rank or by all."""

    samples: tuple[Sample, ...]


def _together(everyone: list[_Measured]) -> _Measured:
    return _Measured(tuple(sample for one in everyone for sample in one.samples))
