"""A job that reshards, whoever has started its processes.

    torchrun --nproc-per-node 4 examples/launched.py
    srun --ntasks 4 python examples/launched.py
    mpirun -n 4 python examples/launched.py

Ranks 0 and 1 train, ranks 2 and 3 serve. Twice the trained weights change and are handed over, and the ranks
that serve compare every element with what it must be. On Ray, examples/on_ray.py starts the same.
"""

import os
import sys

import torch
import torch.distributed as dist
from reshard_executors import RankInfo, Resharder, rank_info, start_world

import reshard_planner as rp

TRAINERS, SERVERS = (0, 1), (2, 3)
REFITS = 2

trainers = rp.Mesh(TRAINERS, ["tp"])
servers = rp.Mesh(SERVERS, ["tp"])
spec = rp.ReshardSpec(
    [
        rp.TensorSpec(
            "up", (512, 96), "float32", rp.Layout(trainers, ["S(0)"]), rp.Layout(servers, ["S(1)"])
        ),
        rp.TensorSpec("norm", (512,), "float32", rp.Layout(trainers, ["S(0)"]), rp.Layout(servers, ["R"])),
    ],
    rp.Topology.from_domains([TRAINERS, SERVERS]),
)


def whole(tensor: rp.TensorSpec, step: int) -> torch.Tensor:
    """The whole tensor after some steps of training."""
    return torch.arange(tensor.nbytes // 4, dtype=torch.float32).reshape(tensor.shape) + step


def parts(rank: int, layouts: dict[str, rp.Layout], step: int) -> dict[str, torch.Tensor]:
    """What a rank stores by a layout of each tensor; here one box of each, or nothing."""
    found = {}
    for name, layout in layouts.items():
        if rank in layout.mesh.ranks:
            part = whole(spec.tensor(name), step)
            for dim, ((lo, hi),) in enumerate(layout.partition(tuple(part.shape)).intervals(rank)):
                part = part.narrow(dim, lo, hi - lo)
            found[name] = part.clone()
    return found


def play(info: RankInfo) -> list[str]:
    """Be one process of the job; what there is to say, on rank 0."""
    device = start_world(info)
    trained = {tensor.name: tensor.src[0] for tensor in spec.tensors}
    served = {tensor.name: tensor.dst[0] for tensor in spec.tensors}
    weights = {
        name: torch.zeros_like(part, device=device) for name, part in parts(info.rank, served, 0).items()
    }
    said = []
    with Resharder(rp.compile(spec), device=device) as resharder:
        for step in range(1, REFITS + 1):
            sources = {name: part.to(device) for name, part in parts(info.rank, trained, step).items()}
            record = resharder.run(sources, weights)
            wanted = parts(info.rank, served, step)
            right = all(torch.equal(weights[name].cpu(), part) for name, part in wanted.items())
            answers: list[tuple[bool, int]] = [(False, 0)] * info.world_size
            dist.all_gather_object(answers, (right, record.network_nbytes))
            word = "right" if all(each for each, _ in answers) else "WRONG"
            nbytes = sum(nbytes for _, nbytes in answers)
            said.append(f"refit {step}: every element is {word}, {nbytes} bytes over the network")
    dist.destroy_process_group()
    return said if info.rank == 0 else []


def main() -> int:
    """Be one process of the job, as the launcher's variables say."""
    info = rank_info(os.environ)
    if info.world_size != len(spec.ranks):
        print(f"expected {len(spec.ranks)} processes, not {info.world_size}; see the top of this file")
        return 2
    print("\n".join(play(info)), end="\n" if info.rank == 0 else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
