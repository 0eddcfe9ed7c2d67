"""Pairs of ranks that end in some way while they have a Resharder: ``_exits.py FOLDER HOW...``.

torch is imported once, and each rank is forked, and ends as Python ends a process. What came of it is printed
as JSON: for each way and rank the exit code, what it printed, and what it printed on stderr.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from reshard_executors.resharder import Resharder

import reshard_planner as rp
from reshard_planner.errors import ExecutionError


def live(how: str, rank: int, store: str) -> None:
    """Build, run, and leave."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    rows, columns = (rp.Layout(rp.Mesh([0, 1]), [placement]) for placement in ("S(0)", "S(1)"))
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (64, 64), "float32", rows, columns)]))
    sources, destinations = {"w": torch.ones(32, 64)}, {"w": torch.zeros(64, 32)}
    resharder = Resharder(plan, timeout=timedelta(seconds=5))
    resharder.run(sources, destinations)
    match how:
        case "without closing":
            pass
        case "with a run in flight":
            resharder.start(sources, destinations)
        case "after destroying the world":
            dist.destroy_process_group()
        case "by dropping it":
            del resharder
        case "by a run in a world that is destroyed":
            dist.destroy_process_group()
            try:
                resharder.run(sources, destinations)
            except ExecutionError as error:
                print(str(error).split("; before that")[0], flush=True)  # noqa: T201 - the test reads it
        case "by an error that is kept":
            try:
                resharder.run({}, {}, tensors=["w"])
            except Exception as error:  # noqa: BLE001 - as above
                sys.kept = error
        case "by a wait that fails":
            refit = resharder.start(sources, destinations)
            if rank == 1:
                sys.exit(0)
            try:
                refit.wait()
                resharder.run(sources, destinations)
            except ExecutionError:
                pass
        case "by ending before another":
            if rank == 1:
                sys.exit(0)
            try:
                resharder.run(sources, destinations)
            except ExecutionError as error:
                said = {"rank 1 has left the group", "rank 1: its process has ended"}
                named = any(each in str(error) for each in said)
                print("named" if named else error, error.lost, flush=True)  # noqa: T201 - as elsewhere here


def main(folder: Path, ways: list[str]) -> None:
    """Fork the ranks of one way after another; returns in these, too, so that they end by themselves."""
    found = {}
    for number, how in enumerate(ways):
        processes = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                for stream in (1, 2):
                    os.dup2(os.open(folder / f"{number}-{rank}-{stream}", os.O_WRONLY | os.O_CREAT), stream)
                live(how, rank, str(folder / f"{number}-store"))
                return
            processes.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes]
        found[how] = [
            (code, *((folder / f"{number}-{rank}-{stream}").read_text() for stream in (1, 2)))
            for rank, code in enumerate(codes)
        ]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
