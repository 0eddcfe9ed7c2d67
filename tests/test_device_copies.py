"""Bulk copies on a device: tables say what plain strided copies do, and the kernel does what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from reshard_executors import device_copies  # noqa: E402 - after the check that torch is there
from reshard_executors.device_copies import DeviceCopies, copy_tables  # noqa: E402
from reshard_executors.views import StridedView, alike  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:triton")  # on floats, which are not moved
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def random_storage(nbytes, seed):
    raw = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    return torch.from_numpy(raw).untyped_storage()


@st.composite
def places(draw, shape, itemsize):
    """Start in bytes, strides in elements, and end in bytes of a view whose elements do not overlap."""
    strides = []
    step = draw(st.sampled_from([1, 1, 1, 2, 3]))
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
        step += draw(st.sampled_from([0, 0, 1, 5, 8]))
    start = draw(st.sampled_from([0, 16, 8, 4, 2, 1, 7]))
    return start, tuple(reversed(strides)), start + max(1, step) * itemsize


@st.composite
def copies(draw):
    """Some copies, as shape, item size and both places."""
    found = []
    for _ in range(draw(st.integers(0, 5))):
        shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 0]), max_size=4)))
        itemsize = draw(st.sampled_from([1, 2, 4, 8, 16]))
        found.append((shape, itemsize, draw(places(shape, itemsize)), draw(places(shape, itemsize))))
    return found


def bind(found, seed=0):
    """Pairs of views over random memory of their own."""
    pairs = []
    for number, (shape, itemsize, *both) in enumerate(found):
        views = [
            StridedView(random_storage(end, [seed, number, side]), start, shape, strides, itemsize)
            for side, (start, strides, end) in enumerate(both)
        ]
        pairs.append(tuple(views))
    return pairs


def memory_of(pairs):
    """Copies of all bytes of the storages."""
    storages = [view.storage for pair in pairs for view in pair]
    return [
        torch.empty(0, dtype=torch.uint8, device=each.device).set_(each).cpu().numpy().copy()
        for each in storages
    ]


def contents(pairs):
    return [each.tobytes() for each in memory_of(pairs)]


def copied_plainly(pairs):
    """All memory after plain strided copies by numpy, element by element."""
    raw = memory_of(pairs)
    for at, (target, source) in enumerate(pairs):
        for index in np.ndindex(*target.shape):
            into, out_of = (
                view.start
                + view.itemsize * sum(i * step for i, step in zip(index, view.strides, strict=True))
                for view in (target, source)
            )
            raw[2 * at][into : into + target.itemsize] = raw[2 * at + 1][out_of : out_of + target.itemsize]
    return [each.tobytes() for each in raw]


def copied_by_tables(pairs, tables):
    """All memory after what the tables say: each unit of each block, by its addresses."""
    raw = memory_of(pairs)
    bases = [view.storage.data_ptr() for pair in pairs for view in pair]

    def memory(address):
        # empty storages have no address of their own, and nothing lies there
        at = next(i for i, base in enumerate(bases) if base <= address < base + len(raw[i]))
        return raw[at], address - bases[at]

    for table in tables:
        for box, first in table.work.tolist():
            target, source, count, at, levels = table.boxes[box].tolist()
            for unit in range(first, min(first + table.block, count)):
                into, out_of, rest = target, source, unit
                for extent, target_step, source_step in table.dims[at : at + levels].tolist():
                    rest, index = divmod(rest, extent)
                    into, out_of = into + index * target_step, out_of + index * source_step
                assert rest == 0
                assert into % table.unit == out_of % table.unit == 0
                (into_raw, i), (out_raw, o) = memory(into), memory(out_of)
                into_raw[i : i + table.unit] = out_raw[o : o + table.unit]
    return [each.tobytes() for each in raw]


@given(copies())
def test_tables_say_what_a_plain_copy_does(found):
    pairs = bind(found)
    assert copied_by_tables(pairs, copy_tables(pairs)) == copied_plainly(pairs)


@settings(max_examples=30)
@given(copies(), st.integers(1, 40))
def test_boxes_of_too_many_units_are_cut(found, most):
    pairs = bind(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_copies, "MAX_UNITS", most)
        tables = copy_tables(pairs)
    assert all(table.boxes[:, 2].max() <= most for table in tables)
    assert copied_by_tables(pairs, tables) == copied_plainly(pairs)


def test_each_unit_is_in_one_block_and_blocks_are_as_few_as_they_can_be():
    pairs = [(view(300_000, 0), view(300_000, 0)), (view(64, 8), view(64, 0)), (view(10, 0), view(10, 1))]
    tables = copy_tables(pairs)
    assert [(table.unit, len(table.work)) for table in tables] == [(16, 19), (8, 1), (1, 1)]
    assert tables[0].work[:, 1].tolist() == list(range(0, 300_000 // 16, 1024))


def view(nbytes, start):
    return StridedView(random_storage(nbytes + 64, 0), start, (nbytes,), (1,), 1)


def test_dimensions_that_are_one_run_become_one():
    storage = random_storage(4096, 0)
    both = [StridedView(storage, start, (4, 1, 8, 16), (128, 7, 16, 1), 2) for start in (0, 2048)]
    (table,) = copy_tables([tuple(both)])
    assert table.dims.tolist() == [[64, 16, 16]]


@given(copies())
@settings(max_examples=20)
def test_the_fallback_without_triton_copies_the_same(found):
    pairs = bind(found)
    wanted = copied_plainly(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "reshard_executors.copy_kernel", None)  # any import of it fails
        patch.delattr("reshard_executors.copy_kernel", raising=False)
        DeviceCopies(pairs, torch.device("cpu")).run()
    assert contents(pairs) == wanted


@needs_triton
def test_the_kernel_copies_the_same_under_the_interpreter_of_triton():
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_triton
@pytest.mark.parametrize("unit", device_copies.UNITS)
def test_the_kernel_compiles_to_moves_of_whole_units_where_no_gpu_is(unit):
    from reshard_executors import copy_kernel  # noqa: PLC0415 - only where Triton is
    from triton import compile as compile_kernel  # noqa: PLC0415
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    tables, sizes = ("boxes", "dims", "work"), ("block", "word", "words")
    source = ASTSource(
        copy_kernel.copy_units,
        {**dict.fromkeys(tables, "*i64"), **dict.fromkeys(sizes, "constexpr")},
        {(3,): device_copies.BLOCKS[unit], **dict(zip([(4,), (5,)], copy_kernel.WORDS[unit], strict=True))},
    )
    compiled = compile_kernel(source, GPUTarget("cuda", 90, 32), {"num_warps": device_copies.WARPS})
    assert f"st.global.{'v2.b64' if unit == 16 else f'b{8 * unit}'}" in compiled.asm["ptx"]


def run_under_the_interpreter():
    """The body of the test above, in a process where Triton interprets."""

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(copies())
    def check(found):
        pairs = bind(found)
        wanted = copied_plainly(pairs)
        DeviceCopies(pairs, torch.device("cpu")).run()
        assert contents(pairs) == wanted

    check()
    large = [(view(100_000, 16), view(100_000, 32)), (view(30_001, 1), view(30_001, 0))]
    wanted = memory_of(large)
    for at, (target, source) in enumerate(large):
        into, out_of = (slice(each.start, each.start + each.shape[0]) for each in (target, source))
        wanted[2 * at][into] = wanted[2 * at + 1][out_of]
    DeviceCopies(large, torch.device("cpu")).run()
    assert contents(large) == [each.tobytes() for each in wanted]


def on_gpu(pairs):
    return [
        tuple(
            StridedView(each.storage.cuda(), each.start, each.shape, each.strides, each.itemsize)
            for each in pair
        )
        for pair in pairs
    ]


@pytest.mark.gpu
@needs_gpu
@settings(max_examples=60)
@given(copies())
def test_the_kernel_copies_the_same_on_the_gpu(found):
    pairs = on_gpu(bind(found))
    plain = on_gpu(bind(found))
    for target, source in plain:
        if prod(target.shape):
            into, out_of = alike(target, source)
            into.copy_(out_of)
    DeviceCopies(pairs, torch.device("cuda")).run()
    torch.cuda.synchronize()
    assert contents(pairs) == contents(plain)


def rows_of_a_matrix(run_nbytes, nbytes, boxes):
    """Copies of every second run of a storage into a dense one, as many boxes as asked for."""
    rows = nbytes // boxes // run_nbytes
    source = torch.randint(0, 256, (2 * nbytes,), dtype=torch.uint8, device="cuda").untyped_storage()
    target = torch.zeros(nbytes, dtype=torch.uint8, device="cuda").untyped_storage()
    half = run_nbytes // 2
    return [
        (
            StridedView(target, at * rows * run_nbytes, (rows, half), (half, 1), 2),
            StridedView(source, 2 * at * rows * run_nbytes, (rows, half), (2 * half, 1), 2),
        )
        for at in range(boxes)
    ]


def seconds(call):
    """Least time of a call on the GPU over several tries, in seconds."""
    times = []
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return min(times)


@pytest.mark.gpu
@needs_gpu
def test_the_bandwidth_of_the_kernel_is_shown_beside_that_of_a_plain_copy(capsys):
    nbytes = 2**30
    device = torch.device("cuda")
    one, other = (torch.zeros(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    plain_s = seconds(lambda: one.copy_(other))
    lines = [f"plain copy of 1 GiB: {nbytes / plain_s / 1e9:.0f} GB/s"]
    for run_nbytes in (32, 256, 1024, 4096, 65536, 2**20):
        pairs = rows_of_a_matrix(run_nbytes, nbytes, 256)
        bulk_s = seconds(DeviceCopies(pairs, device).run)
        target, source = pairs[-1]
        expected = torch.empty(0, dtype=torch.uint8, device=device).set_(source.storage)
        got = torch.empty(0, dtype=torch.uint8, device=device).set_(target.storage)
        assert torch.equal(got, expected.reshape(-1, 2, run_nbytes)[:, 0].reshape(-1))
        lines.append(
            f"runs of {run_nbytes} bytes, 256 boxes: {nbytes / bulk_s / 1e9:.0f} GB/s,"
            f" {plain_s / bulk_s:.0%} of the plain copy"
        )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    run_under_the_interpreter()
