"""The executor over NCCL on as many GPUs as there are.

All of it runs over gloo on the CPU as well, so that nothing but calls of CUDA itself is left untried where
there are no GPUs.
"""

from __future__ import annotations

import _cuda_calls as calls
import pytest
import torch
from _ranks import Ranks

import reshard_planner as rp

TIMEOUT_S, LOST_AFTER_S = 5.0, 2.0
"""What ranks wait for one that is killed: for the messages of a slot, and for a sign of life."""

SHARE_S = 5.0
"""What a survivor may take beyond the timeout."""

ON_CPU = 3
"""Ranks where there are no GPUs."""

BACKENDS = (
    "gloo",
    pytest.param(
        "nccl",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ],
    ),
)


def made_world(backend, folder):
    """Processes that are the ranks of a world of this backend."""
    ranks = Ranks(ON_CPU if backend == "gloo" else torch.cuda.device_count())
    assert ranks.call_alike(calls.enter, backend, str(folder), ranks.count) == [None] * ranks.count
    return ranks


@pytest.fixture(scope="module", params=BACKENDS)
def world(request, tmp_path_factory):
    ranks = made_world(request.param, tmp_path_factory.mktemp("world"))
    yield ranks
    ranks.close()


@pytest.fixture(params=BACKENDS)
def doomed_world(request, tmp_path):
    ranks = made_world(request.param, tmp_path)
    yield ranks
    ranks.close()


def needs_several(ranks):
    if ranks.count < 2:
        pytest.skip("there are fewer than 2 CUDA devices")


def plan_for(count, tensors=20):
    """Rows become columns and replicas on the same ranks; one tensor is large and many are small."""
    ranks = list(range(count))
    src = rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(0)"])
    dst = [rp.Layout(rp.Mesh(ranks, ["tp"]), ["S(1)"]), rp.Layout(rp.Mesh(ranks, ["dp"]), ["R"])]
    shapes = [(4096, 2048), *((1024, 96 + at) for at in range(tensors))]
    spec = rp.ReshardSpec(
        [rp.TensorSpec(f"w{at}", shape, "bfloat16", src, dst) for at, shape in enumerate(shapes)],
        rp.Topology.from_domains([ranks]),
        rp.Options(min_message_nbytes=2**14),
    )
    return rp.compile(spec)


@pytest.mark.parametrize("options", [{}, {"shadow": True, "checksums": True, "profile": True}])
def test_every_run_delivers_every_bit(world, options):
    assert world.call_alike(calls.run_often, plan_for(world.count), options) == [[]] * world.count


def test_a_run_begins_after_what_the_stream_of_the_caller_has_been_given(world):
    assert world.call_alike(calls.run_behind_a_queue, plan_for(world.count)) == [[]] * world.count


def test_shadows_are_published_after_what_the_stream_of_the_caller_has_been_given(world):
    answers = world.call_alike(calls.read_during_a_run, plan_for(world.count))
    assert answers == [([], [])] * world.count


@pytest.mark.parametrize("back", [False, True])
def test_a_redistributor_gives_every_rank_its_result_on_its_own_device(world, back):
    needs_several(world)
    every, others = list(range(world.count)), list(range(1, world.count))
    sides = [(every, ["S(0)"]), (others[::-1], ["S(1)"])]
    src, dst = sides[::-1] if back else sides
    expected = [(2 if rank in dst[0] else 0, []) for rank in every]
    assert world.call_alike(calls.redistribute, (5, 7), src, dst) == expected


def test_where_a_rank_is_killed_the_others_raise_in_time_and_live_on(doomed_world):
    needs_several(doomed_world)
    count = doomed_world.count
    victim, plan = count - 1, plan_for(count, tensors=40)
    before = doomed_world.call_alike(calls.live_on)
    *answers, gone = doomed_world.call_alike(
        calls.run_until_one_is_killed, plan, victim, TIMEOUT_S, LOST_AFTER_S
    )
    assert gone == "gone"
    for said, after_s, torn, served in answers:
        assert f"rank {victim}" in said
        assert after_s < TIMEOUT_S + SHARE_S
        assert torn == served
    assert doomed_world.call_alike(calls.live_on) == [*before[:-1], "gone"]
