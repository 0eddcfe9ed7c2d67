"""Two jobs that know nothing of each other refit: trainers hand their weights to inference again and again.

Started plainly it starts both jobs on this machine, two processes each, with torchrun. Each job has a world
of its own, in which it goes on with its collectives. A third group joins the four processes, a Resharder over
it moves the weights, and inference compares every element with what the trainers must have by then.

On a cluster each job is started by its own launcher, with the same address for all: the host of the first
trainer, and a port that is free there.
"""

import argparse
import os
import socket
import subprocess
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from reshard_executors import Resharder, join_jobs

import reshard_planner as rp

JOBS = ("trainer", "inference")
PROCESSES = 2
REFITS = 3
TIMEOUT = timedelta(seconds=60)

trainers = rp.Mesh([0, 1], ["tp"])  # positions in the joint group
servers = rp.Mesh([2, 3], ["tp"])
spec = rp.ReshardSpec(
    [
        rp.TensorSpec("up", (8, 6), "float32", rp.Layout(trainers, ["S(0)"]), rp.Layout(servers, ["S(1)"])),
        rp.TensorSpec("down", (6, 8), "float32", rp.Layout(trainers, ["S(1)"]), rp.Layout(servers, ["R"])),
        rp.TensorSpec("norm", (8,), "float32", rp.Layout(trainers, ["R"]), rp.Layout(servers, ["R"])),
    ],
    rp.Topology.from_domains([[0, 1, 2, 3]]),  # one machine; of two, [[0, 1], [2, 3]]
)


def initial(tensor: rp.TensorSpec) -> torch.Tensor:
    """The whole tensor before training."""
    return torch.arange(tensor.nbytes // 4, dtype=torch.float32).reshape(tensor.shape)


def part(full: torch.Tensor, layout: rp.Layout, rank: int) -> torch.Tensor:
    """What a rank stores of a whole tensor; here every rank stores one box."""
    for dim, ((lo, hi),) in enumerate(layout.partition(tuple(full.shape)).intervals(rank)):
        full = full.narrow(dim, lo, hi - lo)
    return full.clone()


def train(resharder: Resharder, position: int) -> None:
    """Three steps, after each of which the weights are handed over."""
    weights = {tensor.name: part(initial(tensor), tensor.src[0], position) for tensor in spec.tensors}
    for _ in range(REFITS):
        gradient = torch.tensor(float(dist.get_rank() + 1))
        dist.all_reduce(gradient)  # 1 + 2, among the trainers alone
        for weight in weights.values():
            weight.add_(gradient)
        resharder.run(weights, {})


def serve(resharder: Resharder, position: int) -> None:
    """Take new weights three times, and compare them."""
    weights = {
        tensor.name: torch.empty_like(part(initial(tensor), tensor.dst[0], position))
        for tensor in spec.tensors
    }
    for step in range(1, REFITS + 1):
        resharder.run({}, weights)
        right = all(
            torch.equal(weights[tensor.name], part(initial(tensor) + 3 * step, tensor.dst[0], position))
            for tensor in spec.tensors
        )
        answers = [False] * PROCESSES
        dist.all_gather_object(answers, right)  # among the inference processes alone
        if dist.get_rank() == 0:
            words = ["right" if answer else "WRONG" for answer in answers]
            print(f"refit {step}: weights are {words[0]} on inference rank 0, {words[1]} on inference rank 1")


def be_process(job: str, address: str) -> None:
    """Play one process of a job; torchrun tells which."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    position = JOBS.index(job) * PROCESSES + dist.get_rank()
    joint = join_jobs(address, position, len(JOBS) * PROCESSES, timeout=TIMEOUT)
    with Resharder(rp.compile(spec), joint, timeout=TIMEOUT) as resharder:
        (train if job == "trainer" else serve)(resharder, position)
        dist.barrier(group=joint)
    dist.destroy_process_group(joint)
    count = torch.ones(())
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        print(f"the {job} job goes on with its own world of {int(count)}")
    dist.destroy_process_group()


def start_jobs() -> int:
    """Start both jobs on this machine, and wait for them; 0 if both end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    jobs = [
        subprocess.Popen(  # noqa: S603 - starts this script itself
            [*launch, __file__, "--job", job, "--address", address],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for job in JOBS
    ]
    try:
        printed = [job.communicate(timeout=3 * TIMEOUT.total_seconds())[0] for job in jobs]
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.wait()
    print("".join(printed), end="")
    return int(any(job.returncode for job in jobs))


def main() -> int:
    """Be a process of a job, or start both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--job", choices=JOBS, help="be a process of this job, started by torchrun")
    parser.add_argument("--address", help="where the jobs meet, as tcp://host:port")
    arguments = parser.parse_args()
    if arguments.job is None:
        return start_jobs()
    be_process(arguments.job, arguments.address)
    return 0


if __name__ == "__main__":
    sys.exit(main())
