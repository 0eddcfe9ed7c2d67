"""Conversions of elements are torch's, bit for bit, and the type on the way keeps what must be kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors.conversions import conversions
from reshard_executors.views import StridedView
from storage_strategies import FLOATS

from reshard_planner.dtypes import DTYPE_BITS, is_castable, is_exact, wire_dtype
from reshard_planner.ir.conversion import convert, is_nan

POISON = 0x5A
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SMALL = [name for name in FLOATS if DTYPE_BITS[name] <= 16]
PAIRS = [(src, dst) for src in FLOATS for dst in FLOATS]


# --- the conversion ---


def all_patterns(dtype):
    bits = DTYPE_BITS[dtype]
    return np.arange(2**bits, dtype=np.uint64).astype(UNSIGNED[bits])


def as_torch(raw, dtype):
    return torch.from_numpy(raw.copy()).view(getattr(torch, dtype))


def from_torch(tensor, dtype):
    return tensor.contiguous().view(torch.uint8).numpy().view(UNSIGNED[DTYPE_BITS[dtype]])


def samples(dtype, count=200_000):
    """All elements of a small type; of a large one random ones, and where small types begin to round."""
    bits = DTYPE_BITS[dtype]
    if bits <= 16:
        return all_patterns(dtype)
    kind = np.dtype(f"f{bits // 8}").type
    found = [np.frombuffer(np.random.default_rng(bits).bytes(count * bits // 8), dtype=kind)]
    for small in SMALL:
        values = as_torch(all_patterns(small), small).to(torch.float64).numpy()
        values = np.unique(values[np.isfinite(values)])
        edges = np.concatenate([values, (values[1:] + values[:-1]) / 2, values[-1:] * 2, values[-1:] * 1.5])
        with np.errstate(all="ignore"):
            near = edges.astype(kind)
        found += [near, -near, np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))]
    near_floats = np.float64(
        [2.0**-149, 2.0**-126, 3.4028235e38, 3.4028236e38, 2.0**128, 2.0**-150, 1e300, 5e-324]
    )
    with np.errstate(all="ignore"):
        found.append(np.concatenate([near_floats, -near_floats, [np.inf, -np.inf, 0.0, -0.0]]).astype(kind))
    return np.concatenate(found).view(UNSIGNED[bits])


def assert_same(have, want, dtype):
    """Equal bits, or no number in both."""
    neither = is_nan(have, dtype) & is_nan(want, dtype)
    wrong = np.flatnonzero((have != want) & ~neither)
    assert not len(wrong), [(hex(int(have[at])), hex(int(want[at]))) for at in wrong[:5]]


@pytest.mark.parametrize("src", FLOATS)
def test_conversions_are_those_of_torch_bit_for_bit(src):
    raw = samples(src)
    given_tensor = as_torch(raw, src)
    for dst in FLOATS:
        want = from_torch(given_tensor.to(getattr(torch, dst)), dst)
        have = convert(raw, src, dst)
        assert have.dtype == UNSIGNED[DTYPE_BITS[dst]]
        assert_same(have, want, dst)
        assert src != dst or np.array_equal(have, raw)
        nan = given_tensor.to(torch.float64).isnan().numpy()
        assert np.array_equal(is_nan(raw, src), nan)
        assert is_nan(have, dst)[nan].all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (3, 5), (2, 3, 4)])
def test_conversions_keep_shapes_and_take_any_strides(shape):
    whole = np.random.default_rng(0).random(tuple(2 * n for n in shape)).astype(np.float32)
    raw = whole[tuple(slice(None, None, 2) for _ in shape)]
    for given_array in (raw, raw.T, np.asfortranarray(raw)):
        made = convert(given_array, "float32", "bfloat16")
        assert made.shape == given_array.shape
        want = torch.from_numpy(np.array(given_array)).to(torch.bfloat16).view(torch.int16).numpy()
        assert np.array_equal(made.view(np.int16), want)


# --- the type on the way ---


@pytest.mark.parametrize(("src", "dst"), PAIRS)
def test_the_type_on_the_way_is_one_of_both_and_not_larger_than_the_destination_if_that_rounds(src, dst):
    wire = wire_dtype(src, dst)
    assert wire in (src, dst)
    assert DTYPE_BITS[wire] <= max(DTYPE_BITS[src], DTYPE_BITS[dst])
    if DTYPE_BITS[wire] > min(DTYPE_BITS[src], DTYPE_BITS[dst]):
        assert not is_exact(src, dst)
    if wire != dst:
        assert is_exact(src, dst)


def is_finite(raw, dtype):
    return as_torch(raw, dtype).to(torch.float64).isfinite().numpy()


@pytest.mark.parametrize("src", FLOATS)
def test_an_exact_conversion_keeps_every_finite_number_there_and_back(src):
    raw = samples(src)
    finite = raw[is_finite(raw, src)]
    numbers = as_torch(finite, src).to(torch.float64)
    for dst in FLOATS:
        there = as_torch(finite, src).to(getattr(torch, dst))
        if is_exact(src, dst):
            assert torch.equal(there.to(torch.float64), numbers), dst
            assert torch.equal(there.to(getattr(torch, src)).to(torch.float64), numbers), dst
        if wire_dtype(src, dst) == src != dst:  # ranks forward what they have converted, with all its bits
            assert_same(convert(convert(raw, src, dst), dst, src), raw, src)
            assert np.array_equal(from_torch(there.to(getattr(torch, src)), src), finite)
    assert all(is_castable(src, dst) for dst in FLOATS)


@pytest.mark.parametrize("src", SMALL)
def test_a_smaller_type_travels_wherever_a_larger_one_has_all_of_its_numbers(src):
    raw = all_patterns(src)
    given_tensor = as_torch(raw[is_finite(raw, src)], src)
    for dst in FLOATS:
        if DTYPE_BITS[src] < DTYPE_BITS[dst]:
            there = given_tensor.to(getattr(torch, dst)).to(torch.float64)
            exact = torch.equal(there, given_tensor.to(torch.float64))
            assert wire_dtype(src, dst) == (src if exact else dst)


# --- places in memory ---


@given(
    st.sampled_from(PAIRS),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
def test_boxes_are_converted_between_any_places(pair, shape, before, behind, turned, gaps):
    src, dst = pair
    count = int(np.prod(shape))
    size, other = (DTYPE_BITS[dtype] // 8 for dtype in pair)
    raw = np.random.default_rng(count).integers(0, 256, count * size, dtype=np.uint8)
    into = torch.full(((1 + gaps) * count * other + behind,), POISON, dtype=torch.uint8)
    room = torch.from_numpy(np.concatenate([np.zeros(before, np.uint8), raw]))
    dense = torch.empty(shape).stride()
    order = tuple(reversed(range(len(shape)))) if turned else tuple(range(len(shape)))
    turned_shape = [shape[dim] for dim in order]
    place = torch.empty(turned_shape).stride()
    strides = tuple(place[order.index(dim)] * (1 + gaps) for dim in range(len(shape)))
    one = StridedView(room.untyped_storage(), before, tuple(shape), dense, size, getattr(torch, src))
    two = StridedView(into.untyped_storage(), behind, tuple(shape), strides, other, getattr(torch, dst))
    conversions([(two, one)])()
    found = into.numpy()[behind:].reshape(-1, other)[:: 1 + gaps][:count]
    wanted = torch.from_numpy(raw).view(getattr(torch, src)).to(getattr(torch, dst)).reshape(shape)
    wanted = wanted.permute(order).contiguous().reshape(-1).view(torch.uint8).numpy().reshape(-1, other)
    kind = UNSIGNED[8 * other]
    assert_same(
        np.ascontiguousarray(found).view(kind)[:, 0], np.ascontiguousarray(wanted).view(kind)[:, 0], dst
    )
    assert (into.numpy()[:behind] == POISON).all()
    if gaps:
        assert (into.numpy()[behind:].reshape(-1, other)[1::2] == POISON).all()
