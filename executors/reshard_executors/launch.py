"""The process that starts one process per rank: imports torch once, forks, and reports.

Started by :mod:`reshard_executors.local` as ``python -m reshard_executors.launch IN OUT``, the numbers of two
inherited connections. It ends its ranks and itself when the first one closes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from reshard_executors.jobs import ENDED, Failure, Job, RankReport, Stage, weight_of

GRACE_S = 2.0
"""How long other ranks may go on after one has failed, so that the best reason is found."""


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's process, and the end of the connection that it writes to."""

    rank: int
    process: ForkProcess
    connection: Connection


def main() -> None:
    """Run the job that comes over the first connection, and report over the second."""
    asked, answering = (Connection(int(handle)) for handle in sys.argv[1:3])
    try:
        job = asked.recv()
    except EOFError:
        return
    ranks: list[_Rank] = []
    try:
        ranks.extend(_start_ranks(job))
        _collect(ranks, asked, answering)
    finally:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.join()


def _start_ranks(job: Job) -> Iterator[_Rank]:
    from reshard_executors.worker import be_rank  # noqa: PLC0415 - imports torch, once for all ranks

    gc.freeze()  # or else every rank's first collection copies all of torch's pages
    context = multiprocessing.get_context("fork")
    life, held = os.pipe()  # closed by the end of this process, however it ends
    for position, rank in enumerate(job.plan.ranks):
        readable, writable = multiprocessing.Pipe(duplex=False)

        def live(position: int = position, writable: Connection = writable) -> None:
            os.close(held)
            threading.Thread(target=_end_with, args=(life,), daemon=True).start()
            be_rank(job, position, writable.send)

        process = context.Process(target=live, daemon=True)
        process.start()
        writable.close()
        yield _Rank(rank, process, readable)


def _end_with(life: int) -> None:
    """Wait until the process at the other end of a pipe is gone, and end this one then."""
    os.read(life, 1)
    os._exit(1)


def _collect(ranks: Sequence[_Rank], asked: Connection, answering: Connection) -> None:
    """Pass on what the ranks say, of failures only the best, until all have ended or the parent has gone."""
    waiting = {rank.connection: rank for rank in ranks}
    reached: Counter[Stage] = Counter()
    failures: list[tuple[int, Failure]] = []
    while waiting:
        ready = wait([asked, *waiting], GRACE_S if failures else None)
        if not ready or asked in ready:
            break
        for connection, rank in list(waiting.items()):
            if connection not in ready:
                continue
            try:
                message = connection.recv()
            except EOFError:
                message = _unexpected_end(rank)
            if isinstance(message, Stage):
                reached[message] += 1
                if reached[message] == len(ranks):
                    answering.send(message)
                continue
            del waiting[connection]
            if isinstance(message, RankReport):
                answering.send(message)
            else:
                failures.append((weight_of(message), message))
    if failures:
        answering.send(min(failures, key=lambda failure: failure[0])[1])


def _unexpected_end(rank: _Rank) -> Failure:
    rank.process.join()
    code = rank.process.exitcode or 0
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return Failure(ENDED, f"the process of rank {rank.rank} ended {how} before its run was over")


if __name__ == "__main__":
    main()
