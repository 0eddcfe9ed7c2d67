"""Checksums are 0 exactly where every destination element is that of the source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
import torch.distributed as dist
from _rank_calls import strided
from element_oracle import buffers, cast, parts, same_numbers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reshard_executors import checksums
from reshard_executors.agreement import add_up
from reshard_executors.binding import LocalSide
from reshard_executors.checksums import Checksums
from reshard_executors.worker import as_tensors
from storage_strategies import FLOATS, stored, stored_specs, with_casts
from strategies import STRATEGIES, specs
from test_pipeline import CPU, run_in_threads

import reshard_planner as rp
from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.layout import Storage, StoredBuffer, Tile

WAYS = ("as it is", "transposed", "every second")

FEWER = settings(max_examples=settings.default.max_examples * 2 // 3)
"""Examples of a law here: each compiles a plan, and nearly all laws look at every element."""


def memories(plan, rank, side, arrays, numbers, how="as it is"):
    """The memory of a rank's local tensors, which lie in it one way or another."""
    found = as_tensors(plan, side, {name: own for name, own in arrays.items() if own}, rank)
    if how != "as it is":
        found = {name: [strided(each, how) for each in own] for name, own in found.items()}
    local = LocalSide(plan.spec, rank, side, CPU)
    return local.bind(local.select(found, numbers), numbers)


def sums(plan, held, kept, numbers=None, ways=("as it is", "as it is")):
    """What all ranks together get, by position of the tensor."""
    numbers = range(len(plan.spec.tensors)) if numbers is None else numbers
    total = torch.zeros(len(numbers), dtype=torch.int64)
    for rank in plan.ranks:
        total += Checksums(plan, rank, CPU).difference(
            memories(plan, rank, "src", held.get(rank, {}), numbers, ways[0]),
            memories(plan, rank, "dst", kept.get(rank, {}), numbers, ways[1]),
            numbers,
        )
    return dict(zip(numbers, total.tolist(), strict=True))


def wrong(plan, held, kept, **more):
    """Positions of the tensors whose sums are not 0."""
    return [number for number, total in sums(plan, held, kept, **more).items() if total]


def rows_of(array, dtype):
    """The elements of a buffer, as rows of bits."""
    flat = np.unpackbits(array.reshape(-1).view(np.uint8), bitorder="little")
    return flat.reshape(-1, DTYPE_BITS[dtype])


def fill(array, rows):
    """Write elements into a buffer."""
    array.reshape(-1).view(np.uint8)[:] = np.packbits(rows.reshape(-1), bitorder="little")


def is_same(tensor, one, two):
    """Whether elements of a destination count as equal: NaNs of converted tensors all do."""
    if tensor.dtype == tensor.dst_dtype:
        return np.array_equal(one, two)
    packed = [np.packbits(each.reshape(-1), bitorder="little").tobytes() for each in (one, two)]
    return same_numbers(*packed, tensor.dst_dtype)


ANY_SPEC = specs() | stored_specs() | stored_specs(dtypes=FLOATS, casts=True)


def draw_part(data, spec, side, least=1):
    """Some elements of a tensor in one local buffer; at least so many."""
    found = [part for part in parts(spec, side) if part.places.size >= least]
    assume(found)
    return found[data.draw(st.integers(0, len(found) - 1), label="part")]


def draw_place(data, part):
    return part.places[data.draw(st.integers(0, part.places.size - 1), label="element")]


# --- what is right ---


@FEWER
@given(specs() | stored_specs(), st.sampled_from(STRATEGIES))
def test_sums_are_0_where_everything_has_arrived(spec, strategy):
    plan = rp.compile(spec, strategy)
    held = buffers(spec, "src")
    assert wrong(plan, held, rp.interpret(plan, held).destinations) == []


@FEWER
@given(specs(dtypes=FLOATS), st.data(), st.sampled_from(STRATEGIES))
def test_sums_are_0_where_everything_has_been_converted(spec, data, strategy):
    """NaNs have other bits in the interpreter's destinations than where torch converts."""
    cast_spec = data.draw(with_casts(spec))
    if data.draw(st.booleans()):
        cast_spec = data.draw(stored(cast_spec))
    plan = rp.compile(cast_spec, strategy)
    held = buffers(cast_spec, "src")
    assert wrong(plan, held, rp.interpret(plan, held).destinations) == []


@FEWER
@given(ANY_SPEC, st.sampled_from(STRATEGIES))
def test_sums_are_0_after_runs_of_the_executor(spec, strategy):
    plan = rp.compile(spec, strategy)
    held = buffers(spec, "src")
    kept, _ = run_in_threads(plan, held)
    assert wrong(plan, held, kept) == []


@FEWER
@given(ANY_SPEC, st.sampled_from(WAYS), st.sampled_from(WAYS), st.data())
def test_where_local_tensors_lie_in_memory_changes_nothing(spec, source, destination, data):
    plan = rp.compile(spec, "direct")
    held, kept = buffers(spec, "src"), buffers(spec, "dst")
    if data.draw(st.booleans()):
        part = draw_part(data, spec, "dst")
        array = kept[part.rank][part.key[0]][part.key[1]]
        rows = rows_of(array, part.dtype)
        rows[draw_place(data, part)] ^= 1
        fill(array, rows)
    assert sums(plan, held, kept, ways=(source, destination)) == sums(plan, held, kept)


@FEWER
@given(stored_specs(max_ranks=6), st.data())
def test_tensors_that_are_not_moved_do_not_count(spec, data):
    chosen = data.draw(st.lists(st.integers(0, len(spec.tensors) - 1), unique=True))
    plan = rp.compile(spec, "direct")
    held = buffers(spec, "src")
    kept = buffers(spec, "dst", only=chosen)
    assert sums(plan, held, kept, numbers=chosen) == dict.fromkeys(chosen, 0)


# --- what is wrong ---


@FEWER
@given(ANY_SPEC, st.data())
def test_any_changed_element_of_a_destination_shows_in_its_tensor_alone(spec, data):
    plan = rp.compile(spec, "direct")
    kept = buffers(spec, "dst")
    part = draw_part(data, spec, "dst")
    array, place = kept[part.rank][part.key[0]][part.key[1]], draw_place(data, part)
    rows = rows_of(array, part.dtype)
    before = rows[place].copy()
    flipped = data.draw(st.sets(st.integers(0, rows.shape[1] - 1), min_size=1), label="bits")
    rows[place, sorted(flipped)] ^= 1
    tensor = spec.tensors[part.tensor]
    fill(array, rows)
    expected = [] if is_same(tensor, before, rows[place]) else [part.tensor]
    assert wrong(plan, buffers(spec, "src"), kept) == expected


@FEWER
@given(ANY_SPEC, st.sampled_from(["two change places", "one is its neighbour", "all move by one"]), st.data())
def test_elements_at_wrong_places_show_in_their_tensor_alone(spec, change, data):
    plan = rp.compile(spec, "direct")
    kept = buffers(spec, "dst")
    part = draw_part(data, spec, "dst", least=2)
    array = kept[part.rank][part.key[0]][part.key[1]]
    rows = rows_of(array, part.dtype)
    before = rows[part.places]
    match change:
        case "two change places":
            ends = st.lists(st.integers(0, part.places.size - 1), min_size=2, max_size=2, unique=True)
            two = part.places[data.draw(ends)]
            rows[two] = rows[two[::-1]]
        case "one is its neighbour":
            at = data.draw(st.integers(1, part.places.size - 1))
            rows[part.places[at]] = rows[part.places[at - 1]]
        case _:
            rows[part.places] = np.roll(before, 1, axis=0)
    same = [is_same(spec.tensors[part.tensor], *pair) for pair in zip(before, rows[part.places], strict=True)]
    fill(array, rows)
    expected = [] if all(same) else [part.tensor]
    assert wrong(plan, buffers(spec, "src"), kept) == expected


@FEWER
@given(ANY_SPEC, st.sampled_from(STRATEGIES), st.data())
def test_replicas_of_a_source_that_differ_show_where_another_than_the_lowest_has_been_sent(
    spec, strategy, data
):
    plan = rp.compile(spec, strategy)
    held = buffers(spec, "src")
    chosen = draw_part(data, spec, "src")
    number, tensor = chosen.tensor, spec.tensors[chosen.tensor]
    element = data.draw(st.sampled_from(chosen.elements.tolist()))
    flipped = data.draw(st.integers(0, DTYPE_BITS[tensor.dtype] - 1), label="bit")
    lowest, values = chosen.rank, {}
    for part in parts(spec, "src"):
        if part.tensor != number or element not in part.elements:
            continue
        array = held[part.rank][part.key[0]][part.key[1]]
        rows = rows_of(array, part.dtype)
        mine = part.places[part.elements == element]
        if part.rank == chosen.rank:  # in all places of this rank
            rows[mine, flipped] ^= 1
            fill(array, rows)
        lowest = min(lowest, part.rank)
        values[part.rank] = rows[mine[0]]
    kept = rp.interpret(plan, held).destinations
    wanted = values[lowest]
    if tensor.dtype != tensor.dst_dtype:
        packed = np.packbits(wanted, bitorder="little").reshape(1, -1)
        wanted = np.unpackbits(cast(packed, tensor.dtype, tensor.dst_dtype), bitorder="little")
    arrived = [
        row
        for part in parts(spec, "dst")
        if part.tensor == number
        for row in rows_of(kept[part.rank][part.key[0]][part.key[1]], part.dtype)[
            part.places[part.elements == element]
        ]
    ]
    right = all(is_same(tensor, row, wanted) for row in arrived)
    assert wrong(plan, held, kept) == ([] if right else [number])


def over(ranks, placement):
    return rp.Layout(rp.Mesh(ranks), [placement])


@pytest.mark.parametrize("changed", [0, 1])
def test_replicas_that_differ_show_whichever_of_them_does(changed):
    tensors = [rp.TensorSpec(name, (8,), "int32", over([0, 1], "R"), over([2, 3], "S(0)")) for name in "ab"]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.from_domains([[0], [1], [2], [3]])))
    ops = plan.ops()
    assert {(int(tensor), int(src)) for tensor, src in zip(ops.tensor, ops.src, strict=True)} >= {
        (0, 0),
        (0, 1),
    }
    held = buffers(plan.spec, "src")
    held[changed]["a"][0].view(np.int32)[:] += 1
    assert wrong(plan, held, rp.interpret(plan, held).destinations) == [0]


def test_a_tensor_that_has_not_been_written_shows():
    """Even one of zeros, as the index of an element counts, too."""
    tensors = [rp.TensorSpec(name, (8,), "int32", over([0], "R"), over([1, 2], "S(0)")) for name in "ab"]
    plan = rp.compile(rp.ReshardSpec(tensors))
    held = {0: {name: [np.zeros(8, dtype=np.int32)] for name in "ab"}}
    kept = {rank: {name: [np.zeros(4, dtype=np.int32)] for name in "ab"} for rank in (1, 2)}
    assert wrong(plan, held, kept) == []
    held[0]["b"][0][:] = 7
    assert wrong(plan, held, kept) == [1]
    nothing = Checksums(plan, 0, CPU).difference(memories(plan, 0, "src", held[0], [0]), {0: ()}, [0])
    assert nothing.item() != 0


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_no_two_contents_of_a_small_tensor_have_one_sum(dtype):
    """Values so small and alike that sums of worse hashes meet: those without factors, for one."""
    spec = rp.ReshardSpec([rp.TensorSpec("w", (4,), dtype, over([0], "R"), over([1], "R"))])
    plan = rp.compile(spec)
    contents = np.array(list(product(range(4), repeat=4)), dtype=dtype)
    found = {
        Checksums(plan, 0, CPU).difference(memories(plan, 0, "src", {"w": [each]}, [0]), {0: ()}, [0]).item()
        for each in contents
    }
    assert len(found) == len(contents)


# --- storage ---


def test_a_rank_that_holds_a_box_twice_counts_it_once_and_is_counted_twice_where_it_needs_it_twice():
    box, half = Box((0,), (6,)), Box((2,), (5,))
    twice = Storage.of([(StoredBuffer(0, (16,), (Tile(box, 0, (1,)), Tile(half, 6, (2,)))),)])
    stored_layouts = [rp.Layout.stored(rp.Mesh([rank]), twice) for rank in (0, 1)]
    for src, dst in (
        (stored_layouts[0], over([1, 2], "S(0)")),
        (over([2, 3], "S(0)"), stored_layouts[1]),
        (stored_layouts[0], stored_layouts[1]),
        ([stored_layouts[1], over([0], "R")], [stored_layouts[0], over([3, 1], "R")]),
    ):
        names = [[("f",)] * len(side) if isinstance(side, list) else [("f",)] for side in (src, dst)]
        tensor = rp.TensorSpec("w", (6,), "int64", src, dst, src_buffers=names[0], dst_buffers=names[1])
        plan = rp.compile(rp.ReshardSpec([tensor]))
        held, kept = buffers(plan.spec, "src"), buffers(plan.spec, "dst")
        assert wrong(plan, held, kept) == []
        for part in parts(plan.spec, "dst"):
            array = kept[part.rank][part.key[0]][part.key[1]]
            for place in part.places:
                array.reshape(-1).view(np.int64)[place] ^= 1
                assert wrong(plan, held, kept) == [0]
                array.reshape(-1).view(np.int64)[place] ^= 1


def test_tiles_that_go_over_the_ends_of_strided_rows_are_read_all_the_same():
    tile = Tile(Box((0,), (24,)), 3, (2,))
    layout = rp.Layout.stored(rp.Mesh([0]), Storage.of([(StoredBuffer(0, (6, 9), (tile,)),)]))
    tensor = rp.TensorSpec("w", (24,), "int16", layout, over([1], "R"), src_buffers=[("rows",)])
    plan = rp.compile(rp.ReshardSpec([tensor]))
    held, kept = buffers(plan.spec, "src"), buffers(plan.spec, "dst")
    assert wrong(plan, held, kept, ways=("every second", "every second")) == []
    kept[1]["w"][0].view(np.int16)[23] ^= 1
    assert wrong(plan, held, kept, ways=("every second", "every second")) == [0]


# --- size ---


@pytest.mark.parametrize("dtype", ["uint4", "bfloat16", "complex128"])
@pytest.mark.parametrize("way", WAYS)
def test_tensors_of_many_blocks_are_summed_up_and_only_a_block_is_ever_copied(monkeypatch, dtype, way):
    shape, block_elements = (130, 258), 2**14
    monkeypatch.setattr(checksums, "BLOCK_ELEMENTS", block_elements)
    assert prod(shape) > 2 * block_elements
    spec = rp.ReshardSpec([rp.TensorSpec("w", shape, dtype, over([0], "R"), over([1], "R"))])
    plan = rp.compile(spec, "direct")
    held, kept = buffers(spec, "src"), buffers(spec, "dst")
    assert wrong(plan, held, kept, ways=(way, way)) == []
    for place in (0, -1):
        kept[1]["w"][0].reshape(-1).view(np.uint8)[place] ^= 1
        assert wrong(plan, held, kept, ways=(way, way)) == [0]
        kept[1]["w"][0].reshape(-1).view(np.uint8)[place] ^= 1
    read = memories(plan, 0, "src", held[0], [0], way)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        Checksums(plan, 0, CPU).difference(read, {0: ()}, [0])
    words = 2 if dtype == "complex128" else 1
    largest = max(event.cpu_memory_usage for event in seen.events())
    assert 0 < largest <= 8 * words * block_elements


def test_destinations_of_hundreds_of_ranks_are_counted():
    train = rp.Layout(rp.Mesh(np.arange(8).reshape(4, 2).tolist()), ["S(1)", "R"])
    serve = rp.Layout(rp.Mesh(np.arange(8, 520).reshape(2, 16, 16).tolist()), ["R", "S(0)", "S(1)"])
    tensor = rp.TensorSpec("w", (64, 64), "bfloat16", train, [serve, over([7, 3, 9], "S(0)")])
    plan = rp.compile(rp.ReshardSpec([tensor]), "direct")
    held, kept = buffers(plan.spec, "src"), buffers(plan.spec, "dst")
    assert wrong(plan, held, kept) == []
    kept[519]["w"][0].view(np.int16)[-1, -1] ^= 1
    assert wrong(plan, held, kept) == [0]


def test_a_rank_outside_of_the_plan_adds_nothing():
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (8,), "int32", over([0], "R"), over([1], "R"))]))
    assert Checksums(plan, 5, CPU).difference({0: ()}, {0: ()}, [0]).tolist() == [0]
    assert Checksums(plan, 0, CPU).difference({}, {}, []).tolist() == []


# --- adding up ---


def connected(store, rank, count):
    """A process group of gloo for one of several threads, over loopback."""
    options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 - torch gives them no other name
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]  # noqa: SLF001 - as above
    options._timeout = timedelta(seconds=20)  # noqa: SLF001 - as above
    return dist.ProcessGroupGloo(store, rank, count, options)


def test_sums_over_ranks_are_modulo_two_to_the_64():
    words = [[2**63 - 1, -(2**63), 2**62, 5], [1, -1, 2**62, -7], [0, 1, 2**63 - 1, 2]]
    expected = [(sum(column) + 2**63) % 2**64 - 2**63 for column in zip(*words, strict=True)]
    assert expected[0] == -(2**63)
    store = dist.HashStore()

    def add(rank):
        return add_up(connected(store, rank, len(words)), torch.tensor(words[rank]), "their sums")

    with ThreadPoolExecutor(len(words)) as threads:
        assert list(threads.map(add, range(len(words)))) == [expected] * len(words)
