"""Whole models between published layouts: what is covered, how fast it can be, and how near plans come."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
from _bindings import make, megatron, text, vllm
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bindings import cases

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import SpecError
from reshard_planner.models.coverage import SideCoverage, measure_coverage
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.whole import assign_ranks, build_spec
from reshard_planner.topology.model import NIC_LINK

SIDES = ("src", "dst")

COMPILED = {
    "qwen3-235b": WHOLE["qwen3-235b"],
    "deepseek-v3": WHOLE["deepseek-v3"],
    "deepseek-v3-nvl64": WHOLE["deepseek-v3-nvl64"],
    "qwen3.5-397b": WHOLE["qwen3.5-397b"],
    # with a quarter of the replicas before, and an eighth after; the benchmark has all
    "kimi-k3": replace(WHOLE["kimi-k3"], train="megatron tp=8 pp=16 ep=64", serve="vllm tp=8 dp=32 ep=64"),
}

by_case = pytest.mark.parametrize("name", COMPILED)


@functools.cache
def built(name):
    return build_whole(COMPILED[name])


@functools.cache
def compiled(name):
    return rp.compile(built(name))


# published models


@by_case
def test_every_byte_is_held_before_and_needed_after(name):
    for side in SIDES:
        found = measure_coverage(built(name), side)
        assert found.covered_nbytes == found.nbytes
        assert found.stored_nbytes >= found.nbytes
        assert found.padding_nbytes >= 0


def padding(vocab, multiple, hidden, copies, tables=2):
    """Bytes of the rows that embedding and head are padded by, in bfloat16."""
    return (-vocab % multiple) * hidden * 2 * tables * copies


@pytest.mark.parametrize(
    ("name", "before"),
    [
        # 151,936 rows to multiples of 128 * tp, on 16 ranks of the first and of the last stage, 4 copies
        ("qwen3-235b", padding(151_936, 128 * 4, 4096, 16 // 4)),
        ("deepseek-v3", padding(129_280, 128, 7168, 16)),
        ("qwen3.5-397b", padding(248_320, 128 * 8, 4096, 32 // 8)),
    ],
)
def test_padding_is_that_of_the_vocabulary(name, before):
    assert [measure_coverage(built(name), side).padding_nbytes for side in SIDES] == [before, 0]


def test_padding_of_kimi_after_is_that_of_its_fused_projections():
    spec = built("kimi-k3")
    # in every layer of delta attention a rank has 12 of 96 heads of size 128: their queries, keys, values and
    # gates, one number of each, and the 128 rows of f_a; padded to a multiple of 16 rows of 7168 elements
    layers = sum(tensor.name.endswith("self_attn.f_a_proj.weight") for tensor in spec.tensors)
    rows = 4 * 12 * 128 + 12 + 128
    assert layers == 69
    assert measure_coverage(spec, "dst").padding_nbytes == layers * (-rows % 16) * 7168 * 2 * 256


@pytest.mark.parametrize(
    ("name", "seconds"),
    [("qwen3-235b", 1.18), ("deepseek-v3", 0.843), ("deepseek-v3-nvl64", 0.419), ("qwen3.5-397b", 0.991)],
)
def test_the_bound_is_the_published_time(name, seconds):
    assert compiled(name).certificate.bound.time_s == pytest.approx(seconds, rel=5e-3)


@pytest.mark.parametrize("name", ["qwen3-235b", "deepseek-v3-nvl64"])
def test_domains_that_need_the_whole_model_take_it_over_all_their_nics(name):
    spec = built(name)
    size = len(spec.topology.domains[0].gpus)
    nbytes = sum(tensor.nbytes for tensor in spec.tensors)
    assert compiled(name).certificate.bound.time_s == pytest.approx(nbytes / (size * NIC_LINK.bytes_per_s))
    engines = parse_parallelism(COMPILED[name].serve, "").gpus // size
    assert compiled(name).certificate.payload.network_nbytes == engines * nbytes


@by_case
def test_plans_move_the_least_and_keep_every_nic_within_two_percent_of_the_bound(name):
    certificate = compiled(name).certificate
    assert certificate.payload.network_nbytes == certificate.payload.minimum_network_nbytes
    assert certificate.payload.logical_nbytes == 2 * sum(tensor.nbytes for tensor in built(name).tensors)
    assert certificate.busiest_nic.time_s <= 1.02 * certificate.bound.time_s
    assert certificate.staging_nbytes <= built(name).options.staging_nbytes
    assert certificate.gap <= 0.02


@by_case
def test_every_claim_of_their_plans_is_what_verify_recomputes(name):
    rp.verify(compiled(name))


# small models


def counted(spec, side):
    """Coverage by a look at every rank and element."""
    nbytes = covered = stored = 0
    buffers = {}
    for tensor in spec.tensors:
        bits = DTYPE_BITS[tensor.side_dtype(side)]
        held = np.zeros(tensor.shape, dtype=bool)
        for layout, names in zip(tensor.layouts(side), tensor.buffers(side), strict=True):
            tiling = layout.tiling(tensor.shape)
            for rank in layout.mesh.ranks:
                for number, shape in tiling.buffers(rank):
                    buffers[rank, names[number]] = prod(shape) * bits // 8
                for _, tile in tiling.local_tiles(rank):
                    held[tile.box.slices()] = True
                    stored += tile.box.volume * bits // 8
        nbytes += prod(tensor.shape) * bits // 8
        covered += int(held.sum()) * bits // 8
    return SideCoverage(nbytes, covered, stored, sum(buffers.values()))


def small(model, before, after, dtypes=("bfloat16", "bfloat16"), ranks=("", "")):
    """The spec of a small model of bfloat16 parameters."""
    sides = [
        parse_parallelism(f"{text(*side)} dtype={dtype} {own}", "")
        for side, dtype, own in zip((before, after), dtypes, ranks, strict=True)
    ]
    floats = tuple(replace(parameter, dtype="bfloat16") for parameter in model.parameters)
    return build_spec(replace(model, parameters=floats), sides[0], [sides[1]])


@given(cases(), st.tuples(*[st.sampled_from(("bfloat16", "float32"))] * 2), st.booleans())
def test_coverage_is_what_a_count_over_ranks_gives(case, dtypes, together):
    model, before, after = case
    gpus = [parse_parallelism(text(*side), "").gpus for side in (megatron(**before), vllm(**after))]
    ranks = [f"ranks=0-{count - 1}" for count in gpus] if together else ("", "")
    spec = small(model, megatron(**before), vllm(**after), dtypes, ranks)
    for side in SIDES:
        assert measure_coverage(spec, side) == counted(spec, side)
        assert counted(spec, side).covered_nbytes == counted(spec, side).nbytes


@settings(max_examples=20)
@given(cases(), st.tuples(*[st.sampled_from(("bfloat16", "float32"))] * 2))
def test_plans_of_small_models_hold_their_laws(case, dtypes):
    model, before, after = case
    plan, again = (rp.compile(small(model, megatron(**before), vllm(**after), dtypes)) for _ in range(2))
    rp.verify(plan)
    assert plan.digest == again.digest
    payload = plan.certificate.payload
    assert payload.network_nbytes == payload.minimum_network_nbytes


def test_coverage_counts_a_buffer_once_however_many_parameters_and_groups_use_it():
    model = make("attention+dense", outside=True, heads=4, kv_heads=2, head_dim=2, size=4, vocab=100)
    floats = tuple(replace(parameter, dtype="bfloat16") for parameter in model.parameters)
    train = parse_parallelism("megatron tp=2", "")
    groups = [parse_parallelism(f"vllm tp={tp}", "") for tp in (1, 2)]
    both = build_spec(replace(model, parameters=floats), train, groups)
    assert measure_coverage(both, "dst") == counted(both, "dst")
    alone = [
        measure_coverage(build_spec(replace(model, parameters=floats), train, [group]), "dst")
        for group in groups
    ]
    assert measure_coverage(both, "dst").padding_nbytes == sum(one.padding_nbytes for one in alone)
    assert measure_coverage(both, "dst").buffers_nbytes == sum(one.buffers_nbytes for one in alone)


# ranks


@dataclass(frozen=True)
class Group:
    """As much of a parallelism as ranks are assigned by."""

    gpus: int
    ranks: tuple[int, ...] | None = None
    dtype: str | None = None


groups = st.builds(Group, st.integers(1, 9)) | st.lists(
    st.integers(0, 30), min_size=1, max_size=6, unique=True
).map(lambda ranks: Group(len(ranks), tuple(ranks)))


@given(groups, st.lists(groups, max_size=4))
def test_named_ranks_are_kept_and_the_others_are_the_first_that_are_free(train, serve):
    found = assign_ranks(train, serve)
    named = {rank for group in (train, *serve) for rank in group.ranks or ()}
    free = (rank for rank in range(1000) if rank not in named)
    for group, own in zip((train, *serve), found, strict=True):
        assert len(own) == group.gpus
        assert own == (group.ranks or tuple(next(free) for _ in range(group.gpus)))


def test_more_ranks_than_there_can_be_are_refused_at_once():
    assert len(assign_ranks(Group(2**19), [Group(2**19)])[1]) == 2**19
    with pytest.raises(SpecError, match="have 1048577 GPUs together; expected at most 1048576"):
        assign_ranks(Group(2**19), [Group(2**19 + 1)])
    with pytest.raises(SpecError, match="serve is empty"):
        build_spec(make("dense", size=4), parse_parallelism("megatron", ""), [])


def test_the_digest_does_not_depend_on_the_process():
    command = [
        *(sys.executable, "-m", "reshard_planner", "model", "examples/configs/Qwen3-4B.json", "--json"),
        *("--train", "megatron tp=2 pp=4", "--serve", "vllm tp=4", "--serve", "vllm tp=2"),
    ]
    digests = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1
