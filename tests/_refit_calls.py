"""What the processes of ``_ranks`` do to see what refits leave behind; tests give and get numpy arrays."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _rank_calls import Arrays, State, usage
from reshard_executors.rank import BoundRun, RankProgram
from reshard_executors.resharder import Resharder
from reshard_executors.values import empty_buffers
from reshard_executors.worker import as_tensors

import reshard_planner as rp
from reshard_planner.errors import ExecutionError, InputError

POISON = 0x5A
"""What every byte of destinations is before the first run."""


def close(state: State) -> None:
    """Close what is kept."""
    if "refits" in state:
        state.pop("refits")[0].close()


def prepare(state: State, plan: rp.Plan, ranks: Sequence[int], options: dict[str, Any]) -> None:
    """Build a Resharder and destinations, and keep both."""
    close(state)
    mine = ranks[state["rank"]]
    resharder = Resharder(plan, ranks=ranks, timeout=timedelta(seconds=20), **options)
    kept = empty_buffers(plan, mine, "dst")
    for arrays in kept.values():
        for array in arrays:
            array.reshape(-1).view(np.uint8).fill(POISON)
    state["refits"] = (resharder, plan, mine, kept)


def prepare_again(state: State, plan: rp.Plan, ranks: Sequence[int]) -> None:
    """The same, and tell it what the last one said that destinations hold."""
    last = state["refits"][0]
    prepare(state, plan, ranks, {"versions": dict(last.versions), "latest_version": last.latest_version})


def refit(state: State, sources: Arrays, names: Sequence[str] | None, version: int | None) -> dict[str, Any]:
    """Start a run and wait for it; what destinations held in between and after, and what was said of it."""
    resharder, plan, mine, kept = state["refits"]
    held = {name: [array.copy() for array in arrays] for name, arrays in sources.items()}
    sides = as_tensors(plan, "src", held, mine), as_tensors(plan, "dst", kept, mine)
    before = _copies(kept)
    started = resharder.start(*sides, tensors=names, version=version)
    torn = resharder.torn
    meanwhile = _copies(kept)
    record = started.wait()
    return {
        "record": record,
        "torn meanwhile": torn,
        "torn": resharder.torn,
        "untouched until the end": all(
            np.array_equal(a, b)
            for name in before
            for a, b in zip(before[name], meanwhile[name], strict=True)
        ),
        "kept": _copies(kept),
        "versions": dict(resharder.versions),
    }


def spoiled_refit(state: State, sources: Arrays, spoiler: int, name: str) -> Any:
    """The same, but that a bit of a tensor changes on one rank between its last message and the end."""
    plan = state["refits"][1]
    honest = RankProgram.run

    def spoil(self: RankProgram, group: Any, run: BoundRun, *others: Any) -> Any:
        found = honest(self, group, run, *others)
        number = [tensor.name for tensor in plan.spec.tensors].index(name)
        storage = run.written[number][0].whole.storage
        raw = torch.tensor([], dtype=torch.uint8).set_(
            storage, run.written[number][0].whole.start, (1,), (1,)
        )
        raw ^= 0x10
        return found

    if state["refits"][2] == spoiler:
        RankProgram.run = spoil
    try:
        return refit(state, sources, None, None)
    finally:
        RankProgram.run = honest


def leave(state: State, sources: Arrays, leaver: int) -> Any:
    """Run, but on one rank leave the ``with`` of the Resharder by an exception of one's own instead."""
    resharder, mine = state["refits"][0], state["refits"][2]
    if mine != leaver:
        return refit(state, sources, None, None)
    with contextlib.suppress(InputError), resharder:
        raise InputError("a fault of the test")
    return None


def leave_alone(state: State, sources: Arrays, leaver: int, how: str) -> Any:
    """Run, but on one rank leave the group without a word; the others say what they hear, and who is lost."""
    if state["refits"][2] == leaver:
        if how == "by closing it":
            state["refits"][0].close()
        del state["refits"]
        gc.collect()
        return None
    try:
        return refit(state, sources, None, None)
    except ExecutionError as error:
        return str(error), error.lost


def wait_in_threads(state: State, sources: Arrays) -> list[Any]:
    """Start a run; several threads wait for it, and one closes the Resharder; what they get."""
    resharder, plan, mine, kept = state["refits"]
    refit = resharder.start(as_tensors(plan, "src", sources, mine), as_tensors(plan, "dst", kept, mine))
    found: list[Any] = []

    def get(what: Callable[[], Any]) -> None:
        try:
            found.append(what())
        except ExecutionError as error:
            found.append(str(error))

    threads = [
        threading.Thread(target=get, args=(what,)) for what in (refit.wait, refit.wait, resharder.close)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def interrupt_while_building(state: State, plan: rp.Plan, victim: int, late: int) -> Any:
    """Build; one rank is interrupted while it waits for one that comes late. What they raise, and when."""
    began = time.monotonic()
    if state["rank"] == late:
        time.sleep(2)
    if state["rank"] == victim:
        threading.Timer(0.5, interrupt_main).start()
    try:
        Resharder(plan, timeout=timedelta(seconds=20))
    except (ExecutionError, KeyboardInterrupt) as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return None


def refit_while_one_is_held_up(state: State, sources: Arrays, faulty: int, held_up: int) -> Any:
    """Run; one rank fails of its own, while Python stands still in another. All say what they hear."""
    if state["refits"][2] == held_up:
        ctypes.PyDLL(None).usleep(4_000_000)  # with the lock of Python
    try:
        if state["refits"][2] == faulty:
            with state["refits"][0]:
                raise ValueError("a fault of the test")  # noqa: TRY301 - leaves the Resharder
        return refit(state, sources, None, None)
    except (ExecutionError, ValueError) as error:
        return str(error), getattr(error, "lost", ())


def build_after_one_missed_it(state: State, plan: rp.Plan, missing: int) -> Any:
    """Build in vain without one rank, then with all; what the first time came to."""
    said = None
    if state["rank"] != missing:
        try:
            Resharder(plan, timeout=timedelta(seconds=2))
        except ExecutionError as error:
            said = str(error)
    dist.barrier()
    prepare(state, plan, plan.ranks, {})
    return said


def fork_and_build(state: State, plan: rp.Plan, forker: int) -> Any:
    """In one rank fork a process that builds; what it says. Then all build."""
    said = None
    if state["rank"] == forker:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                Resharder(plan, timeout=timedelta(seconds=2))
            except InputError as error:
                os.write(theirs, str(error).encode())
            atexit._run_exitfuncs()  # noqa: SLF001 - as the end of a process does
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(ours, 1000).decode()
        os.close(ours)
    prepare(state, plan, plan.ranks, {})
    return said


def close_in_a_thread_while_a_run_agrees(state: State, sources: Arrays, closer: int, late: int) -> Any:
    """Run; one rank closes meanwhile, before a late one comes. What they hear, and after how long."""
    began = time.monotonic()
    if state["refits"][2] == late:
        time.sleep(2)
    if state["refits"][2] == closer:
        threading.Timer(0.5, state["refits"][0].close).start()
    try:
        return refit(state, sources, None, None)
    except ExecutionError as error:
        return str(error), time.monotonic() - began


def fork_and_refit(state: State, sources: Arrays, forker: int) -> Any:
    """Refit, after one rank has forked a process that tries to, closes and drops all it has, and ends.

    The rank says what came of that.
    """
    said = None
    if state["refits"][2] == forker:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            try:
                refit(state, sources, None, None)
            except ExecutionError as error:
                os.write(theirs, str(error).encode())
            state.pop("refits")[0].close()
            gc.collect()
            atexit._run_exitfuncs()  # noqa: SLF001 - as the end of a process does
            os._exit(0)
        os.close(theirs)
        os.waitpid(child, 0)
        said = os.read(ours, 1000).decode()
        os.close(ours)
    return said, refit(state, sources, None, None)["record"].version


def fail_and_keep(state: State, plan: rp.Plan, sources: Arrays, victim: int) -> tuple[int, int]:
    """Build, fail in a run, and keep the error; open files and threads before and after."""
    close(state)
    before = usage()[:2]
    prepare(state, plan, plan.ranks, {})
    resharder, _, mine, kept = state["refits"]
    honest = RankProgram.run

    def fail(*_: Any) -> Any:
        raise RuntimeError("a fault of the test")

    if mine == victim:
        RankProgram.run = fail
    try:
        resharder.run(as_tensors(plan, "src", sources, mine), as_tensors(plan, "dst", kept, mine))
    except ExecutionError as error:
        state["kept error"] = error
    finally:
        RankProgram.run = honest
    del state["refits"], resharder
    gc.collect()
    time.sleep(1)  # threads end on their own
    return tuple(late - early for early, late in zip(before, usage()[:2], strict=True))


def left_behind(state: State) -> tuple[bool, dict[str, int | None], Arrays]:
    """Whether destinations are torn, their versions, and what they hold."""
    resharder, _, _, kept = state["refits"]
    return resharder.torn, dict(resharder.versions), _copies(kept)


def _copies(kept: Arrays) -> Arrays:
    return {name: [array.copy() for array in arrays] for name, arrays in kept.items()}
