"""Ranks in network namespaces, one of which is cut off in the middle of a refit: ``_cut_ranks.py TAG SIZE``.

Talks in lines of JSON: says when all ranks are in the run, then what each said in the end; when told that the
link is up again, all run once more in a new world.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from reshard_executors.emulation.launch import ENVIRONMENT, enter
from reshard_executors.emulation.namespaces import FIRST_PORT, address, namespace_of
from reshard_executors.resharder import Resharder
from torch._C._distributed_c10d import TCPStore

import reshard_planner as rp

TIMEOUT_S, LOST_AFTER_S = 5.0, 2.0
ROWS = 768


def plan_of(size: int) -> rp.Plan:
    """One rank's rows to all others, each in a domain of its own."""
    layouts = (rp.Layout(rp.Mesh(ranks), ["R"]) for ranks in ([0], range(1, size)))
    topology = rp.Topology.from_domains([[rank] for rank in range(size)])
    options = rp.Options(min_message_nbytes=65536)
    return rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (ROWS, 256), "int64", *layouts)], topology, options))


def live(tag: str, rank: int, size: int, pipe: Connection) -> None:
    """Be one rank."""
    os.environ.update(ENVIRONMENT)
    torch.set_num_threads(1)
    enter(namespace_of(tag, rank))
    plan = plan_of(size)
    whole = torch.arange(ROWS * 256).reshape(ROWS, 256)
    held = {"w": whole} if rank == 0 else {}
    kept = {} if rank == 0 else {"w": torch.zeros_like(whole)}
    for world in range(2):
        timeout = timedelta(seconds=20)
        store = TCPStore(address(0), FIRST_PORT + world, size, rank == 0, timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        said = {"rank": rank, "kind": "done", "text": ""}
        times = {"timeout": timedelta(seconds=TIMEOUT_S), "lost_after": timedelta(seconds=LOST_AFTER_S)}
        try:
            with Resharder(plan, **times) as resharder:
                refit = resharder.start(held, kept)
                pipe.send("running")
                refit.wait()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            said |= {"kind": type(error).__name__, "text": str(error)}
        said["torn"] = resharder.torn
        said["right"] = rank == 0 or torch.equal(kept["w"], whole)
        said["at"] = time.monotonic()
        pipe.send(said)
        pipe.recv()
        dist.destroy_process_group()


def main() -> None:
    """Fork the ranks, and pass on what they say."""
    tag, size = sys.argv[1], int(sys.argv[2])
    pipes = []
    for rank in range(size):
        ours, theirs = Pipe()
        if os.fork() == 0:
            ours.close()
            try:
                live(tag, rank, size, theirs)
            finally:
                os._exit(0)
        theirs.close()
        pipes.append(ours)
    for _ in range(2):
        for _ in range(2):
            sys.stdout.write(json.dumps([pipe.recv() for pipe in pipes]) + "\n")
            sys.stdout.flush()
        sys.stdin.readline()
        for pipe in pipes:
            pipe.send("again")
    for _ in pipes:
        os.wait()


if __name__ == "__main__":
    main()
