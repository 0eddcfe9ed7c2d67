"""The executor on GPUs; skipped where there are none, or fewer than a test needs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from reshard_executors import Resharder
from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import Buffers, empty_buffers, filled_buffers
from reshard_executors.worker import as_tensors

import reshard_planner as rp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def spec_for(count):
    ranks = list(range(count))
    src = rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(0)"])
    dst = rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(1)"])
    whole = rp.Layout(rp.Mesh(ranks, ["dp"]), ["R"])
    tensors = [rp.TensorSpec(f"w{at}", (1024, 96 + at), "bfloat16", src, [dst, whole]) for at in range(20)]
    return rp.ReshardSpec(tensors, rp.Topology.from_domains([ranks]), rp.Options(min_message_nbytes=2**14))


def on_device(plan, buffers: Buffers):
    return {
        name: [tensor.to("cuda") for tensor in tensors] for name, tensors in as_tensors(plan, buffers).items()
    }


def run_rank(rank, count, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=count)
    plan = rp.compile(spec_for(count))
    values = SyntheticValues(plan.spec)
    sources = on_device(plan, filled_buffers(plan, rank, "src", values))
    destinations = on_device(plan, empty_buffers(plan, rank, "dst"))
    wanted = as_tensors(plan, filled_buffers(plan, rank, "dst", values))
    side = torch.cuda.Stream()
    with Resharder(plan) as resharder:
        for _ in range(3):
            for tensors in destinations.values():
                for tensor in tensors:
                    tensor.zero_()
            resharder.run(sources, destinations)
        with torch.cuda.stream(side):  # what was given to the caller's stream comes first, however long
            torch.cuda._sleep(500_000_000)  # noqa: SLF001 - torch tests its own streams with it
            for tensors in destinations.values():
                for tensor in tensors:
                    tensor.zero_()
            refit = resharder.start(sources, destinations)
        refit.wait()
    for name, tensors in wanted.items():
        for ours, want in zip(destinations[name], tensors, strict=True):
            assert torch.equal(ours.cpu().view(torch.uint8), want.view(torch.uint8)), name
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_over_nccl_delivers_every_bit(tmp_path, count):
    if torch.cuda.device_count() < count:
        pytest.skip(f"there are fewer than {count} CUDA devices")
    mp.spawn(run_rank, (count, tmp_path / "store"), nprocs=count)
