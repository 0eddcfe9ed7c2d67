"""Conversions are torch's, bit for bit, wherever on the way they happen."""

from __future__ import annotations

from collections import Counter

import _rank_calls as calls
import numpy as np
import pytest
from _ranks import Ranks
from element_oracle import assert_equal, buffers, contents
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_strategies import FLOATS, stored, with_casts
from strategies import STRATEGIES, specs
from test_pipeline import run_in_threads

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.ir.conversion import is_nan
from reshard_planner.ir.views import Place
from reshard_planner.transfer import Role

POISON = 0x5A


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(3)
    yield ranks
    ranks.close()


# --- plans ---


@given(specs(dtypes=FLOATS), st.data(), st.sampled_from(STRATEGIES))
def test_plans_with_casts_count_bytes_on_the_way_and_deliver_what_torch_gives(spec, data, strategy):
    cast = data.draw(with_casts(spec))
    plan = rp.compile(cast, strategy)
    rp.verify(plan)
    plain = rp.ReshardSpec(
        [rp.TensorSpec(t.name, t.shape, t.wire_dtype, t.src, t.dst) for t in cast.tensors],
        cast.topology,
        cast.options,
    )
    same = rp.compile(plain, strategy)
    assert plan.tables == same.tables
    assert plan.certificate == same.certificate
    result = rp.interpret(plan, buffers(cast, "src"))
    assert_equal(cast, result.destinations, buffers(cast, "dst", padding=0))
    assert result.measured.network_nbytes == plan.certificate.payload.network_nbytes
    assert result.measured.nvlink_nbytes == plan.certificate.payload.nvlink_nbytes


@given(specs(dtypes=FLOATS), st.data())
def test_every_move_has_the_bytes_of_its_elements_on_the_way(spec, data):
    cast = data.draw(with_casts(spec))
    plan = rp.compile(cast)
    kinds = Counter()
    for rank in plan.ranks:
        for slot in plan.program(rank).slots:
            peers = (*slot.sends, *slot.receives)
            for move in (*slot.copies, *(move for _, found in peers for move in found)):
                tensor = cast.tensors[move.tensor]
                assert move.nbytes == move.box.volume * DTYPE_BITS[tensor.wire_dtype] // 8
                for view in (*move.read, *move.write):
                    here = {
                        Place.SOURCE: tensor.dtype,
                        Place.DESTINATION: tensor.dst_dtype,
                        Place.SCRATCH: tensor.wire_dtype,
                    }[view.place]
                    assert view.converts == (here != tensor.wire_dtype)
                    kinds[view.place, view.converts] += 1


# --- the executor ---


def assert_arrives(plan):
    kept, _ = run_in_threads(plan, buffers(plan.spec, "src"))
    assert_equal(plan.spec, kept, buffers(plan.spec, "dst", padding=POISON))


@given(specs(dtypes=FLOATS, max_ranks=8), st.data(), st.sampled_from(STRATEGIES))
def test_the_executor_converts_as_torch_does(spec, data, strategy):
    assert_arrives(rp.compile(data.draw(with_casts(spec)), strategy))


@settings(max_examples=40)
@given(specs(dtypes=("uint8", "bfloat16", "float32", "float64"), max_ranks=6), st.data())
def test_elements_of_many_sizes_share_messages_and_begin_anywhere(spec, data):
    plan = rp.compile(data.draw(with_casts(spec)))
    assert_arrives(plan)


def odd_spec():
    """Tensors of elements of 1, 2 and 4 bytes, of odd sizes, that two ranks exchange in one message."""
    src, dst = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([1, 0]), ["S(0)"])
    kinds = [
        ("uint8", "uint8"),
        ("float8_e5m2", "float16"),
        ("float64", "bfloat16"),
        ("float8_e4m3fn", "float8_e5m2"),
        ("float32", "float32"),
        ("float32", "float64"),
        ("float8_e8m0fnu", "float16"),
        ("uint8", "uint8"),
        ("bfloat16", "float32"),
    ]
    return rp.ReshardSpec(
        [
            rp.TensorSpec(f"t{at}", (2 * (at + 1) + 1, 3), one, src, dst, dst_dtype=two, cast=True)
            for at, (one, two) in enumerate(kinds)
        ]
    )


def forwarding_spec(src, dst, **options):
    """One rank to five in two domains of two and one of one, which forward to one another."""
    one, everywhere = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2, 3, 4, 5]), ["R"])
    return rp.ReshardSpec(
        [
            rp.TensorSpec(f"w{at}", (24, 16), src, one, everywhere, dst_dtype=dst, cast=True)
            for at in range(3)
        ],
        rp.Topology.from_domains([[0], [1], [2, 3], [4, 5]]),
        rp.Options(min_message_nbytes=64, **options),
    )


def forwards(plan):
    """Places that ranks forward from, and whether elements are converted there."""
    return Counter(
        (view.place, view.converts)
        for rank in plan.ranks
        for slot in plan.program(rank).slots
        for _, moves in slot.sends
        for move in moves
        for view in move.read
        if view.place != Place.SOURCE
    )


FORWARDED = [
    ("bfloat16", "float32", True),
    ("float8_e4m3fnuz", "float16", True),
    ("float8_e8m0fnu", "float64", True),
    ("float32", "bfloat16", False),
    ("float8_e8m0fnu", "float16", False),
]


@pytest.mark.parametrize("strategy", ["optimal", "gather-broadcast"])
@pytest.mark.parametrize(("src", "dst", "converted"), FORWARDED)
def test_what_has_been_converted_is_forwarded_as_it_came(src, dst, converted, strategy):
    plan = rp.compile(forwarding_spec(src, dst), strategy)
    rp.verify(plan)
    assert (plan.ops().parent >= 0).any()
    if strategy == "optimal":
        assert (plan.ops().role == Role.RELAY).any()
        assert set(forwards(plan)) == {(Place.DESTINATION, converted)}
    result = rp.interpret(plan, buffers(plan.spec, "src")).destinations
    assert_equal(plan.spec, result, buffers(plan.spec, "dst"))
    assert_arrives(plan)


def test_scratch_is_in_the_type_of_the_way():
    train, serve = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2, 3, 4, 5]), ["S(1)"])
    spec = rp.ReshardSpec(
        [
            rp.TensorSpec("up", (9, 12), "bfloat16", train, serve, dst_dtype="float32", cast=True),
            rp.TensorSpec("down", (9, 12), "float64", train, serve, dst_dtype="float8_e5m2", cast=True),
        ],
        rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]),
    )
    plan = rp.compile(spec, "gather-broadcast")
    assert (plan.ops().scratch > 0).any()
    assert (Place.SCRATCH, False) in forwards(plan)
    assert_arrives(plan)


@given(specs(dtypes=("float8_e4m3fn", "bfloat16"), max_ranks=3), st.data())
def test_copies_within_a_rank_are_converted(spec, data):
    cast = data.draw(with_casts(spec))
    tensors = [
        rp.TensorSpec(t.name, t.shape, t.dtype, t.src, t.src, dst_dtype=t.dst_dtype, cast=True)
        for t in cast.tensors
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, cast.topology, cast.options))
    assert_arrives(plan)
    assert_arrives(rp.compile(data.draw(stored(plan.spec))))


# --- real processes ---


def run_everywhere(world, plan, call=calls.build_and_run):
    held = buffers(plan.spec, "src")
    ranks = [*plan.ranks, *range(100, 103 - len(plan.ranks))]
    answers = world.call(call, [(plan, ranks, held.get(rank, {})) for rank in ranks])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return {rank: kept for rank, (kept, _) in zip(ranks, answers, strict=True)}


@settings(max_examples=15)
@given(specs(dtypes=FLOATS, max_ranks=3), st.data(), st.sampled_from(STRATEGIES))
def test_processes_convert_as_torch_does(world, spec, data, strategy):
    plan = rp.compile(data.draw(with_casts(spec)), strategy)
    assert_equal(plan.spec, run_everywhere(world, plan), buffers(plan.spec, "dst", padding=POISON))


def test_messages_of_elements_that_begin_at_odd_places_arrive(world):
    plan = rp.compile(odd_spec())
    starts, at = [], 0
    [(_, moves)] = plan.program(0).slots[0].sends
    for move in moves:
        starts.append(at % (DTYPE_BITS[plan.spec.tensors[move.tensor].wire_dtype] // 8))
        at += move.nbytes
    assert any(starts)
    assert_arrives(plan)
    assert_equal(plan.spec, run_everywhere(world, plan), buffers(plan.spec, "dst", padding=POISON))


@pytest.mark.parametrize("how", ["transposed", "every second"])
def test_strided_local_tensors_are_converted(world, how):
    plan = rp.compile(odd_spec())
    world.call_alike(calls.build, plan, [0, 1, 100])
    held = buffers(plan.spec, "src")
    answers = world.call(calls.run_strided, [(held.get(rank, {}), (how, how)) for rank in (0, 1, 100)])
    for answer in answers:
        assert not isinstance(answer, Exception), answer
    wanted = buffers(plan.spec, "dst")
    kept = {
        rank: {
            name: [
                array.view(want.dtype).reshape(want.shape)
                for array, want in zip(found, wanted[rank][name], strict=True)
            ]
            for name, found in answer[0].items()
        }
        for rank, answer in zip((0, 1), answers, strict=False)
    }
    assert_equal(plan.spec, kept, wanted)
    assert all(changed == 0 for _, changed in answers)


def test_random_contents_have_numbers_of_every_kind():
    spec = forwarding_spec("bfloat16", "float32")
    raw = np.concatenate(contents(spec, 0)).reshape(-1).view(np.uint16)
    assert is_nan(raw, "bfloat16").any()
    assert (~is_nan(raw, "bfloat16")).sum() > 1000
