"""Laws of boxes, against sets of elements, and of sets of numbers as text."""

from __future__ import annotations

import re
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard_planner.box import Box, chunk_range, outside
from reshard_planner.intset import format_ints, parse_ints


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(l, h) for l, h in zip(box.lo, box.hi, strict=True))))


@st.composite
def boxes(draw: st.DrawFn, ndim: int) -> Box:
    lo = tuple(draw(st.integers(0, 5)) for _ in range(ndim))
    return Box(lo, tuple(l + draw(st.integers(0, 4)) for l in lo))


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    ndim = draw(st.integers(0, 3))
    return draw(boxes(ndim)), draw(boxes(ndim))


@given(box_pairs())
def test_the_volume_is_the_number_of_elements(pair):
    assert pair[0].volume == len(elements(pair[0]))


@given(box_pairs())
def test_intersection_is_that_of_the_sets(pair):
    a, b = pair
    common = a.intersect(b)
    assert elements(common) == elements(a) & elements(b)
    assert all(l <= h for l, h in zip(common.lo, common.hi, strict=True))
    assert elements(b.intersect(a)) == elements(common)


@given(st.data(), st.integers(0, 3))
def test_what_lies_outside_of_others_is_the_difference_of_the_sets_in_disjoint_boxes(data, ndim):
    box = data.draw(boxes(ndim))
    others = data.draw(st.lists(boxes(ndim), max_size=4))
    parts = outside(box, others)
    assert sum(part.volume for part in parts) == len(elements(box).difference(*map(elements, others)))
    assert set().union(*map(elements, parts)) == elements(box).difference(*map(elements, others))


@given(box_pairs())
def test_containment_is_that_of_the_sets(pair):
    a, b = pair
    assert a.contains(b) == (elements(b) <= elements(a))
    assert a.contains(a.intersect(b))


@given(box_pairs())
def test_slices_select_the_box_from_an_array(pair):
    a, _ = pair
    whole = np.zeros((10,) * a.ndim, dtype=np.int64)
    whole[a.slices()] = 1
    assert set(zip(*whole.nonzero(), strict=True) if a.ndim else [()]) == elements(a)


@given(box_pairs())
def test_a_shift_moves_every_element(pair):
    a, b = pair
    moved = {tuple(i - o for i, o in zip(element, b.lo, strict=True)) for element in elements(a)}
    assert elements(a.shift(b.lo)) == moved
    assert a.shift(b.lo).shape == a.shape


@given(st.data())
def test_replacing_a_range_changes_one_dimension(data):
    a = data.draw(st.integers(1, 3).flatmap(boxes))
    dim = data.draw(st.integers(0, a.ndim - 1))
    other = a.replace(dim, 2, 7)
    assert other.shape == tuple(5 if d == dim else extent for d, extent in enumerate(a.shape))
    assert other.replace(dim, a.lo[dim], a.hi[dim]) == a


@given(st.data())
def test_chunks_partition_a_box_in_order(data):
    a = data.draw(st.integers(1, 3).flatmap(boxes))
    dim = data.draw(st.integers(0, a.ndim - 1))
    count = data.draw(st.integers(1, 6))
    parts = list(a.chunks(dim, count))
    assert len(parts) == count
    assert sum(part.volume for part in parts) == a.volume
    assert set().union(*map(elements, parts)) == elements(a)


@given(st.integers(0, 50), st.integers(0, 40), st.integers(1, 12), st.integers(1, 4))
def test_chunk_ranges_cover_in_near_equal_aligned_steps(lo, steps, count, align):
    hi = lo + steps * align
    ranges = [chunk_range(lo, hi, index, count, align) for index in range(count)]
    assert ranges[0][0] == lo
    assert ranges[-1][1] == hi
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    extents = [(stop - start) // align for start, stop in ranges]
    assert max(extents) - min(extents) <= 1
    assert all((start - lo) % align == 0 for start, _ in ranges)


def test_the_box_of_a_scalar_has_one_element():
    scalar = Box.of_shape(())
    assert (scalar.volume, scalar.ndim, scalar.shape, str(scalar)) == (1, 0, (), "[]")
    assert scalar.contains(scalar)


def test_a_box_shows_its_ranges():
    assert str(Box((0, 2), (4, 3))) == "[0:4, 2:3]"


@given(st.lists(st.integers(0, 50)))
def test_numbers_written_as_ranges_read_back(numbers):
    assert parse_ints(format_ints(numbers)) == numbers if numbers else format_ints(numbers) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "''"),
        ("a", "'a'"),
        ("3-1", "'3-1' runs backwards"),
        ("1,,2", "'1,,2'"),
        ("-1", "'-1'"),
        ("0-99999999999", "99999999999 is too large"),
    ],
)
def test_bad_ranges_are_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_ints(text)
