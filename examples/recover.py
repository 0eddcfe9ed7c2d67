"""Ranks are killed in the middle of a refit; the others notice, plan again without them, and go on.

  python examples/recover.py                         rank 5 is killed, which serves
  python examples/recover.py --kill 0 4              a trainer and a server, at once
  python examples/recover.py --kill 1 3              both that hold one half: nobody can go on, exit code 1
  python examples/recover.py --kill 1 --single-copy  the same, where trainers hold every weight only once

Ranks 0-3 train, two replicas of two halves. Ranks 4 and 5 serve, a replica each, and rank 5 alone has a draft
model. The store where they meet is their parent's and outlives ranks. Jobs need `live` of this.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from multiprocessing import Pipe, Process, active_children, get_context
from multiprocessing.connection import Connection
from textwrap import shorten

import torch
import torch.distributed as dist
from reshard_executors import ExecutionError, Resharder, agree_on_lost

import reshard_planner as rp

STEPS, FATAL_STEP = 3, 2
TIMEOUT = timedelta(seconds=15)
PATIENCE = {"timeout": TIMEOUT, "lost_after": timedelta(seconds=5)}
Ranks = Sequence[int]


def compile_plan(*, single_copy: bool) -> rp.Plan:
    halves = rp.Layout(rp.Mesh([[0, 1], [2, 3]], ["dp", "tp"]), ["R", "S(0)"])
    trained = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"]) if single_copy else halves
    served, drafted = (rp.Layout(rp.Mesh(ranks, ["dp"]), ["R"]) for ranks in ([4, 5], [5]))
    tensors = [
        rp.TensorSpec("up", (4096, 2048), "float32", trained, served),
        rp.TensorSpec("down", (2048, 4096), "float32", trained, served),
        rp.TensorSpec("draft", (1024, 1024), "float32", trained, drafted),
    ]
    return rp.compile(rp.ReshardSpec(tensors, rp.Topology.from_domains([[0, 1, 2, 3], [4], [5]])))


def parts(plan: rp.Plan, side: str, rank: int, step: int) -> dict[str, torch.Tensor]:
    """What a rank has of each tensor at a step, as trained ("src") or served ("dst"): one box, or nothing."""
    found = {}
    for tensor in plan.spec.tensors:
        [layout] = getattr(tensor, side)
        if rank in layout.mesh.ranks:
            whole = torch.arange(tensor.nbytes // 4, dtype=torch.float32).reshape(tensor.shape) + step
            box = tuple(slice(lo, hi) for ((lo, hi),) in layout.partition(tensor.shape).intervals(rank))
            found[tensor.name] = whole[box].clone()
    return found


def live(rank: int, first: rp.Plan, kill: Ranks, pipe: Connection) -> None:
    """Be one rank: hand the weights of every step over, or get them, whoever is lost meanwhile."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of Ctrl-C, and ends this process
    signal.alarm(60)  # whatever happens, it ends by then
    torch.set_num_threads(1)
    shared = dist.TCPStore("127.0.0.1", pipe.recv(), timeout=TIMEOUT)
    sources, destinations = (parts(first, side, rank, 0) for side in ("src", "dst"))
    plan, lost, world, step = first, set[int](), 0, 1
    resharder, known = None, {}
    while step <= STEPS:
        world += 1
        store = dist.PrefixStore(f"world {world}", shared)  # nothing in it is of an earlier world
        position, size = plan.ranks.index(rank), len(plan.ranks)
        dist.init_process_group("gloo", store=store, rank=position, world_size=size, timeout=TIMEOUT)
        try:
            with Resharder(plan, ranks=plan.ranks, **known, **PATIENCE) as resharder:
                while step <= STEPS:
                    for name, trained in parts(first, "src", rank, step).items():
                        if name in sources:
                            sources[name].copy_(trained)
                    refit = resharder.start(sources, destinations)
                    if step == FATAL_STEP and rank in kill:
                        os.kill(os.getpid(), signal.SIGKILL)
                    record = refit.wait()
                    wanted = parts(first, "dst", rank, step)
                    right = all(torch.equal(weight, wanted[name]) for name, weight in destinations.items())
                    if not right:
                        sys.exit(f"rank {rank}: an element of step {step} is wrong")
                    sent = f"{record.network_nbytes // 2**20} MiB sent"
                    what = "every element is right" if destinations else sent
                    pipe.send(f"step {step} is version {record.version}, {what}")
                    step += 1
        except ExecutionError as error:
            if resharder is not None:  # the last one that could be built says what is here
                known = {"versions": dict(resharder.versions), "latest_version": resharder.latest_version}
            holds = f"\n  versions are {known['versions']}" if destinations and known else ""
            pipe.send(f"lost {listed(error.lost)}: {shorten(str(error), 80, placeholder=' [...]')}{holds}")
            try:
                more, step = agree_on_lost(store, rank, plan.ranks, error.lost, step=step, timeout=TIMEOUT)
            except ExecutionError as late:
                sys.exit(str(late))  # the others go on without it
            lost.update(more)
            if lost:
                found = rp.replan(first, without=lost)  # of the first plan, which knows every replica
                pipe.send(describe(found))
                plan = found.plan
                if not found.complete or rank not in plan.ranks:
                    sys.exit(0 if found.complete else 1)  # nothing is left for it to do
                sources = found.keep(rank, "src", sources)
                destinations = found.keep(rank, "dst", destinations)
        dist.destroy_process_group()


def describe(found: rp.Replan) -> str:
    """What comes of planning again."""
    planned = listed(tensor.name for tensor in found.spec.tensors)
    said = f"replan without {listed(found.without)}: {planned} planned"
    if found.unneeded:
        said += f", {listed(found.unneeded)} needed by nobody"
    for part in found.impossible:
        said += f"\n  {part.nbytes} bytes of {part.tensor} were held by {listed(part.holders)} alone"
    return said if found.complete else f"{said}\n  the job cannot go on with the ranks that are left"


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def tell(ranks: dict[int, tuple[Process, Connection]]) -> int:
    """Print what ranks say, a message of each at a time, until all have ended; 0 if survivors got through."""
    codes = set()
    while ranks:
        said: dict[str, list[int]] = {}
        for rank, (process, pipe) in list(ranks.items()):
            try:
                said.setdefault(pipe.recv(), []).append(rank)
            except EOFError:
                del ranks[rank]
                process.join()
                codes.add(process.exitcode)
                if process.exitcode < 0:
                    print(f"rank {rank}: process {process.pid}: {signal.strsignal(-process.exitcode)}")
        for text, who in said.items():
            print(f"{'ranks' if len(who) > 1 else 'rank'} {listed(who)}: {text}", flush=True)
    return 0 if 0 in codes and codes <= {0, -signal.SIGKILL} else 1


def main() -> int:
    """Start the ranks, keep their store, and tell what happens; in the end no process is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kill", type=int, nargs="+", choices=range(6), default=[5], metavar="RANK")
    parser.add_argument("--single-copy", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    plan = compile_plan(single_copy=options.single_copy)
    ranks = {}
    try:
        for rank in plan.ranks:
            ours, theirs = Pipe()
            process = get_context("fork").Process(target=live, args=(rank, plan, options.kill, theirs))
            process.start()
            theirs.close()
            ranks[rank] = process, ours
        listener = socket.create_server(("127.0.0.1", 0))
        port, handle = listener.getsockname()[1], listener.detach()
        store = dist.TCPStore("127.0.0.1", port, None, True, TIMEOUT, False, master_listen_fd=handle)
        for _, pipe in ranks.values():
            pipe.send(store.port)
        return tell(ranks)
    except KeyboardInterrupt:
        return 130
    finally:
        for process in active_children():
            process.kill()
            process.join()


if __name__ == "__main__":
    sys.exit(main())
