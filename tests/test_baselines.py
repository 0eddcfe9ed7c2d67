"""Baselines of torch's own collectives deliver exactly what must be there, or say why they cannot."""

from __future__ import annotations

import _baseline_calls as calls
import pytest
from _ranks import Ranks
from hypothesis import given, settings
from oracle import sources_and_destinations
from reshard_executors.baselines import BASELINES, find_baseline
from strategies import WHOLE_BYTE_DTYPES, specs

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import InputError, LocalShapeError, UnsupportedError

WORLD = 6
TRAIN = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
SERVE = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
BOTH = rp.Layout(rp.Mesh([[0, 1, 2], [3, 4, 5]], ["dp", "tp"]), ["R", "S(0)"])


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def spec_of(src, dst, shape=(6, 9), dtype="bfloat16", name="w"):
    return rp.ReshardSpec([rp.TensorSpec(name, shape, dtype, src, dst)], rp.Topology.uniform(WORLD, 2))


def assert_delivers(world, name, spec, *, played=None, times=1):
    plan = rp.compile(spec)  # names the dtypes of the local tensors
    ranks = played or [*plan.ranks, *range(100, 100 + WORLD - len(plan.ranks))]
    held, wanted = sources_and_destinations(spec)
    arguments = [(name, plan, ranks, held.get(rank, {}), wanted.get(rank, {}), times) for rank in ranks]
    for rank, answer in zip(ranks, world.call(calls.run_baseline, arguments), strict=True):
        if isinstance(answer, Exception):
            raise answer
        for tensor, arrays in wanted.get(rank, {}).items():
            for got, want in zip(answer[tensor], arrays, strict=True):
                assert got.tobytes() == want.tobytes(), (rank, tensor)


@settings(max_examples=60)
@given(specs(max_ranks=WORLD, dtypes=WHOLE_BYTE_DTYPES))
def test_specs_that_a_baseline_accepts_get_exactly_their_bits(world, spec):
    for name, baseline in BASELINES.items():
        if baseline.applies(spec) is None:
            assert_delivers(world, name, spec)


@pytest.mark.parametrize("name", BASELINES)
def test_every_dtype_of_whole_bytes_arrives_bit_for_bit(world, name):
    tensors = [
        rp.TensorSpec(dtype, (7, 3), dtype, BOTH, [rp.Layout(BOTH.mesh, ["S(1)", "S(0)"]), BOTH])
        for dtype, bits in DTYPE_BITS.items()
        if bits >= 8
    ]
    assert_delivers(world, name, rp.ReshardSpec(tensors, rp.Topology.uniform(WORLD, 2)))


def test_pipeline_stages_are_broadcast_from_meshes_of_their_own(world):
    stages = [rp.Layout(rp.Mesh(ranks, ["fsdp"]), ["S(0)"]) for ranks in ([0, 1], [2, 3])]
    serve = rp.Layout(rp.Mesh([4, 5], ["tp"]), ["S(1)"])
    tensors = [rp.TensorSpec(f"layer{at}", (7, 5), "float32", stages[at % 2], serve) for at in range(4)]
    assert_delivers(
        world, "gather-broadcast", rp.ReshardSpec(tensors, rp.Topology.uniform(WORLD, 2)), times=3
    )


def test_of_several_source_layouts_the_first_is_read(world):
    again = rp.Layout(rp.Mesh([1, 2], ["tp"]), ["S(1)"])
    assert_delivers(world, "gather-broadcast", spec_of([TRAIN, again], SERVE))


def test_strided_sources_of_fsdp_with_tensor_parallelism_are_gathered(world):
    train = rp.Layout(rp.Mesh([[0, 1], [2, 3]], ["fsdp", "tp"]), ["_S(0, sf=2)", "S(0)"])
    serve = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(0)"])
    assert_delivers(world, "gather-broadcast", spec_of(train, serve, (16, 3)))


def test_processes_play_the_ranks_that_they_are_told(world):
    assert_delivers(world, "gather-broadcast", spec_of(TRAIN, SERVE), played=[2, 0, 5, 1, 4, 3])


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("gather-broadcast", spec_of(TRAIN, SERVE, (8, 8), "uint4"), "cannot shard below a byte"),
        (
            "gather-broadcast",
            spec_of(rp.Layout(rp.Mesh([1, 0], ["tp"]), ["S(0)"]), SERVE),
            "which do not ascend along every axis",
        ),
        (
            "gather-broadcast",
            spec_of(rp.Layout(rp.Mesh([[0, 1], [2, 3]]), ["S(0)", "S(0)"]), SERVE, (7, 4)),
            "cut unevenly in 4",
        ),
        (
            "gather-broadcast",
            spec_of(rp.Layout(rp.Mesh([[0, 1], [2, 3]]), ["_S(0, sf=4)", "S(0)"]), SERVE, (8, 4)),
            r"rightly only as _S\(0, sf=2\)",
        ),
        ("full-tensor", spec_of(TRAIN, SERVE), "destination rank 2 outside of its source mesh"),
    ],
)
def test_what_torch_cannot_express_is_refused_with_a_reason(world, name, spec, reason):
    assert find_baseline(name).applies(spec) is not None
    for answer in world.call_alike(calls.prepare, name, spec, range(WORLD)):
        assert isinstance(answer, UnsupportedError)
        with pytest.raises(UnsupportedError, match=reason):
            raise answer


def test_an_unknown_baseline_is_refused():
    with pytest.raises(
        InputError, match="'scatter' is unknown; expected one of gather-broadcast, full-tensor"
    ):
        find_baseline("scatter")


@pytest.mark.parametrize(
    ("played", "reason"),
    [
        (range(5), "5 entries; expected one for each of the 6 processes"),
        ([0, 1, 2, 3, 4, 4], "has a rank twice"),
        ([0, 1, 2, 3, 4, 9], r"lacks the ranks \[5\]"),
        ([1, 0, 2, 3, 4, 5], "expected processes that ascend as the ranks do"),
    ],
)
def test_a_cast_that_does_not_fit_is_refused(world, played, reason):
    for answer in world.call_alike(calls.prepare, "gather-broadcast", spec_of(TRAIN, SERVE), played):
        with pytest.raises(InputError, match=reason):
            raise answer


def test_a_group_of_part_of_the_world_is_refused(world):
    answers = world.call_alike(calls.prepare_within, "gather-broadcast", spec_of(TRAIN, SERVE), range(5))
    for answer in answers[:5]:
        with pytest.raises(InputError, match="group has 5 processes; expected all 6 of the world"):
            raise answer
    assert answers[5] is None


def test_local_tensors_of_a_wrong_shape_are_refused(world):
    plan = rp.compile(spec_of(TRAIN, SERVE))
    held, wanted = sources_and_destinations(plan.spec)
    spoilt = {rank: {name: [array[:1] for array in arrays] for name, arrays in found.items()}
              for rank, found in held.items()}  # fmt: skip
    arguments = [
        ("gather-broadcast", plan, spoilt.get(rank, {}), {} if rank > 1 else wanted.get(rank, {}))
        for rank in range(WORLD)
    ]
    for rank, answer in enumerate(world.call(calls.run_spoilt, arguments)):
        side = "source" if rank < 2 else "destination"
        with pytest.raises(LocalShapeError, match=f"{side} tensor 'w', rank {rank}"):
            raise answer
