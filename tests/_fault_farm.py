"""The farm: imports torch once, then forks the ranks of one case after another, and strikes one of them.

Run as a script by :class:`_faults.Farm`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _faults import (
    ALL_LIVE,
    LOST_AFTER_S,
    PATIENCE_S,
    POISON,
    REFITS,
    TIMEOUT_S,
    WORLD_TIMEOUT_S,
    Case,
    Outcome,
    Said,
)
from reshard_executors import pipeline, private, running
from reshard_executors.resharder import Resharder
from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import empty_buffers, filled_buffers
from reshard_executors.wire import Wire
from reshard_executors.worker import as_tensors
from torch._C._distributed_c10d import TCPStore

import reshard_planner as rp


@dataclass
class _Rank:
    pid: int
    connection: Connection


def main() -> None:
    """Play cases until the test closes the connection."""
    connection = Connection(int(sys.argv[1]))
    gc.freeze()
    while True:
        try:
            case, recover = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            outcome = _play(case, recover=recover)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
                outcome.children_left = True
            connection.send(outcome)
        except Exception:  # noqa: BLE001 - the test shows it
            connection.send(traceback.format_exc())


def _play(case: Case, *, recover: bool) -> Outcome:
    ranks: dict[int, _Rank] = {}
    keepers: list[_Rank] = []
    try:
        keeper, port = _keep_store() if case.store_apart else (None, _free_port())
        keepers += [keeper] if keeper else []
        for rank in case.plan.ranks:
            ranks[rank] = _fork(lambda pipe, rank=rank: _live(case, rank, port, pipe))
        began = _first_words(ranks)
        struck_at = began
        if case.point is None and case.fault not in ("absent", "none"):
            time.sleep(case.delay_s)
            struck_at = time.monotonic()
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}[case.fault]
            os.kill(ranks[case.victim].pid, number)
        survivors = [rank for rank in ranks if rank != case.victim or case.fault in ALL_LIVE]
        said, hung = _gather(ranks, survivors, struck_at)
        if case.fault == "stop":
            os.kill(ranks[case.victim].pid, signal.SIGCONT)
            if case.victim not in said:
                more, more_hung = _gather(ranks, [case.victim], time.monotonic())
                said |= more
                hung += more_hung
        recovered: dict[int, Said] = {}
        if recover and not hung:
            if case.fault in ("kill", "exit", "absent"):
                _end(ranks.pop(case.victim))
                if not case.without_victim:
                    ranks[case.victim] = _fork(lambda pipe: _replace(case, pipe))
            keeper, port = _keep_store()
            keepers.append(keeper)
            for each in ranks.values():
                each.connection.send(port)
            recovered, hung = _gather(ranks, list(ranks), time.monotonic())
        return Outcome(said, recovered, hung)
    finally:
        for each in (*ranks.values(), *keepers):
            _end(each)


def _fork(live: Callable[[Connection], None]) -> _Rank:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Rank(pid, ours)
    ours.close()
    try:
        live(theirs)
    except BaseException:  # noqa: BLE001 - seen as a rank that is gone
        traceback.print_exc()
    finally:
        os._exit(0)


def _end(rank: _Rank) -> None:
    rank.connection.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(rank.pid, signal.SIGKILL)
    os.waitpid(rank.pid, 0)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _keep_store() -> tuple[_Rank, int]:
    """A process that keeps a store, as torchrun's agent does."""
    keeper = _fork(_serve_store)
    return keeper, keeper.connection.recv()


def _serve_store(pipe: Connection) -> None:

    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=WORLD_TIMEOUT_S), False)
    pipe.send(store.port)
    pipe.poll(None)


def _first_words(ranks: dict[int, _Rank]) -> float:
    """Wait until all ranks are about to begin; when that was."""
    for each in ranks.values():
        if not each.connection.poll(PATIENCE_S):
            raise TimeoutError("a rank has not begun")
        each.connection.recv()
    for each in ranks.values():
        each.connection.send("go")
    return time.monotonic()


def _gather(
    ranks: dict[int, _Rank], wanted: list[int], struck_at: float
) -> tuple[dict[int, Said], list[int]]:
    """What ranks say, each counted from the moment that the fault struck, and those that say nothing."""
    said: dict[int, Said] = {}
    raised: dict[int, float] = {}
    until = time.monotonic() + PATIENCE_S
    open_ones = {each.connection: rank for rank, each in ranks.items()}
    while set(wanted) - set(said) and time.monotonic() < until:
        for connection in wait(list(open_ones), until - time.monotonic()):
            rank = open_ones[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError):
                said.setdefault(rank, Said("gone"))
                del open_ones[connection]
                continue
            if isinstance(message, float):
                struck_at = message
            else:
                raised[rank], said[rank] = message
    for rank, at in raised.items():
        said[rank].after_s = at - struck_at
    return said, sorted(set(wanted) - set(said))


# -- a rank ----------------------------------------------------------------------------------------------


class _Crossings:
    """Counts the places that a rank comes to, and strikes at one of them."""

    def __init__(self, case: Case, rank: int, pipe: Connection) -> None:
        self.count = 0
        self._case, self._pipe = case, pipe
        self._point = case.point if rank == case.victim else None

    def disarm(self) -> None:
        self._point = None

    def install(self) -> None:

        for home, name in (
            (private, "meet"),
            (private, "make_private_group"),
            (private, "agree"),
            (running, "agree_on_hosts"),
            (running, "add_up"),
            (Wire, "warm_up"),
            (Wire, "post"),
            (Wire, "wait"),
            (pipeline, "_copy"),
        ):
            setattr(home, name, self._crossed(getattr(home, name)))

    def _crossed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def crossed(*arguments: Any, **further: Any) -> Any:
            self.count += 1
            if self.count == self._point:
                self._strike()
            return function(*arguments, **further)

        return crossed

    def _strike(self) -> None:
        self._pipe.send(time.monotonic())
        match self._case.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            case "raise":
                raise RuntimeError("a fault of the test")


def _live(case: Case, rank: int, port: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    crossings = _Crossings(case, rank, pipe)
    crossings.install()
    _join(rank, port, len(case.plan.ranks), keep=not case.store_apart and rank == 0)
    tensors = _Tensors(case.plan, rank)
    said = Said()
    built = None
    struck = ""
    pipe.send("ready")
    try:
        pipe.recv()
        if case.fault == "absent" and rank == case.victim:
            time.sleep(PATIENCE_S)
        built = Resharder(case.plan, timeout=_TIMEOUT, lost_after=_LOST_AFTER, shadow=case.shadow)
        for number in range(1, REFITS + 1):
            tensors.weights(number)
            built.run(tensors.sources, tensors.destinations)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what comes now is too late
        said.kind = "done"
    except BaseException as error:  # noqa: BLE001 - this is what the test is about
        at = time.monotonic()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        said.kind, said.text = type(error).__name__, str(error)
        said.lost = getattr(error, "lost", ())
        if built is not None:
            built.__exit__(type(error), error, None)
        struck = said.kind
        del error
    else:
        at = time.monotonic()
    said.crossings = crossings.count
    versions: dict[str, int | None] = dict.fromkeys(tensors.names, 0)
    if built is not None:
        versions = said.versions = dict(built.versions)
        said.torn = built.torn
        if not struck:
            built.close()
    said.untrue = tensors.untrue(versions)
    said.threads = _threads_left()
    if case.fault in ALL_LIVE:
        total = torch.ones(1)
        dist.all_reduce(total)
        said.world_sum = total.item()
    pipe.send((at, said))
    port = pipe.recv()
    crossings.disarm()
    dist.destroy_process_group()
    _again(case, rank, port, pipe, tensors, versions)


def _threads_left() -> list[str]:
    """Threads of Resharders that have not ended after a while."""
    until = time.monotonic() + 2
    while True:
        left = [each.name for each in threading.enumerate() if each.name.startswith("reshard")]
        if not left or time.monotonic() > until:
            return left
        time.sleep(0.05)


_TIMEOUT, _LOST_AFTER = timedelta(seconds=TIMEOUT_S), timedelta(seconds=LOST_AFTER_S)


def _replace(case: Case, pipe: Connection) -> None:
    """Be the victim's replacement in the next run."""
    torch.set_num_threads(1)
    tensors = _Tensors(case.plan, case.victim)
    _again(case, case.victim, pipe.recv(), pipe, tensors, {})


def _again(
    case: Case, rank: int, port: int, pipe: Connection, tensors: _Tensors, versions: dict[str, int | None]
) -> None:
    """Run once more in a new world of healthy ranks, into the same destinations."""
    plan = rp.replan(case.plan, [case.victim]).plan if case.without_victim else case.plan
    _join(plan.ranks.index(rank), port, len(plan.ranks), keep=False)
    said = Said()
    tensors.weights(REFITS + 1)
    timeout = timedelta(seconds=WORLD_TIMEOUT_S)
    try:
        with Resharder(
            plan, ranks=plan.ranks, timeout=timeout, shadow=case.shadow, versions=versions
        ) as built:
            built.run(tensors.sources, tensors.destinations, version=REFITS + 1)
            said.versions, said.torn = dict(built.versions), built.torn
        said.kind = "done"
        dist.barrier()
    except Exception as error:  # noqa: BLE001 - the test shows it
        said.kind, said.text = type(error).__name__, str(error)
        said.lost = getattr(error, "lost", ())
    said.untrue = tensors.untrue(said.versions)
    pipe.send((time.monotonic(), said))
    pipe.poll(PATIENCE_S)


def _join(rank: int, port: int, size: int, *, keep: bool) -> None:

    timeout = timedelta(seconds=WORLD_TIMEOUT_S)
    store = TCPStore("127.0.0.1", port, size, keep, timeout, False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)


class _Tensors:
    """The local tensors of a rank, and what they hold in each refit."""

    def __init__(self, plan: rp.Plan, rank: int) -> None:

        self._plan, self._rank = plan, rank
        self._held = self._filled("src", 0)
        self._kept = empty_buffers(plan, rank, "dst")
        for arrays in self._kept.values():
            for array in arrays:
                array.reshape(-1).view(np.uint8).fill(POISON)
        self.sources = as_tensors(plan, "src", self._held, rank)
        self.destinations = as_tensors(plan, "dst", self._kept, rank)

    @property
    def names(self) -> list[str]:
        return list(self._kept)

    def _filled(self, side: Any, number: int) -> dict[str, list[np.ndarray]]:

        found = filled_buffers(self._plan, self._rank, side, SyntheticValues(self._plan.spec))
        for arrays in found.values():
            for array in arrays:
                array.reshape(-1).view(np.uint8)[:] += np.uint8(number)
        return found

    def weights(self, number: int) -> None:
        """Put the weights of a refit into the sources."""
        for name, arrays in self._filled("src", number).items():
            for mine, array in zip(self._held[name], arrays, strict=True):
                mine[...] = array

    def untrue(self, versions: dict[str, int | None]) -> str:
        """The first destination that does not hold the weights that its version says; empty if none."""
        for name, version in versions.items():
            if version is None:
                continue
            wanted = self._filled("dst", version)[name]
            for mine, want in zip(self._kept[name], wanted, strict=True):
                raw = mine.reshape(-1).view(np.uint8)
                right = (raw == POISON) if version == 0 else raw == want.reshape(-1).view(np.uint8)
                if not right.all():
                    return f"{name} is not of version {version}: {int((~right).sum())} bytes differ"
        return ""


if __name__ == "__main__":
    main()
