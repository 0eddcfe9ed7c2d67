"""Several local buffers of one name on a rank: storage says which is which, as the order of layouts does."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from element_oracle import assert_equal, buffers
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    MAX_RANKS,
    SUB_BYTE_DTYPES,
    WHOLE_BYTE_DTYPES,
    layouts,
    options,
    shapes,
    topologies,
)
from test_storage_refusals import ENTRY, FIRST, good, put

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import LayoutError, LocalShapeError, SpecError
from reshard_planner.ir import textform
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.layout.stored import MAX_LOCALS
from reshard_planner.spec import spec_from_dict, spec_to_dict
from reshard_planner.spec.tiles import SideTiles
from reshard_planner.spec.values import SIDES, Side, byte_step


@st.composite
def _dense(draw: st.DrawFn, shape: Sequence[int], ranks: Sequence[int], dims: Sequence[int] | None):
    """Up to three layouts, most of them over ranks of the first."""
    found = [draw(layouts(shape, ranks, dims))]
    for _ in range(draw(st.integers(0, 2))):
        again = draw(layouts(shape, found[0].mesh.ranks, dims) | layouts(shape, ranks, dims))
        found.append(again)
    return found


@st.composite
def tied_specs(draw: st.DrawFn, max_ranks: int = MAX_RANKS) -> rp.ReshardSpec:
    """Specs whose ranks have several dense local tensors of one tensor, as with tied ones."""
    pool = range(draw(st.integers(2, max_ranks)))
    tensors = []
    for number in range(draw(st.integers(1, 2))):
        dtype = draw(st.sampled_from((*WHOLE_BYTE_DTYPES, *SUB_BYTE_DTYPES)))
        step = byte_step(DTYPE_BITS[dtype])
        shape = draw(shapes(last_multiple_of=step))
        dims = range(len(shape) - 1) if step > 1 else None
        src, dst = (draw(_dense(shape, pool, dims)) for _ in SIDES)
        tensors.append(rp.TensorSpec(f"t{number}", shape, dtype, src, dst))
    return rp.ReshardSpec(tensors, draw(topologies(pool)), draw(options()))


def spelled(spec: rp.ReshardSpec, *, keep: bool) -> rp.ReshardSpec:
    """The spec with storage that says where its dense buffers are; with placements besides, or without."""
    tensors = []
    for tensor in spec.tensors:
        sides: dict[Side, list[rp.Layout]] = {"src": [], "dst": []}
        for side in SIDES:
            seen: dict[int, int] = {}
            for layout in tensor.layouts(side):
                partition = layout.partition(tensor.shape)
                entries = []
                for rank in layout.mesh.ranks:
                    seen[rank] = seen.get(rank, -1) + 1
                    own = partition.local_shape(rank), partition.tiles(rank)
                    entries.append((StoredBuffer(0, *own, at=seen[rank]),))
                placements = layout.placements if keep else ()
                sides[side].append(rp.Layout(layout.mesh, placements, Storage.of(entries)))
        tensors.append(rp.TensorSpec(tensor.name, tensor.shape, tensor.dtype, sides["src"], sides["dst"]))
    return rp.ReshardSpec(tensors, spec.topology, spec.options)


# --- laws ---


@given(tied_specs(), st.booleans())
def test_positions_say_what_the_order_of_layouts_says(spec, keep):
    other = spelled(spec, keep=keep)
    for plain, stored in zip(spec.tensors, other.tensors, strict=True):
        for side in SIDES:
            one, two = SideTiles(plain, side), SideTiles(stored, side)
            assert one.ranks() == two.ranks()
            for rank in one.ranks():
                assert one.buffers(rank) == two.buffers(rank)
                assert one.expected(rank) == two.expected(rank)
    plan = rp.compile(other)
    rp.verify(plan)
    result = rp.interpret(plan, buffers(spec, "src")).destinations
    assert_equal(spec, result, buffers(spec, "dst"))


@given(tied_specs(max_ranks=6), st.booleans())
def test_every_form_keeps_positions(tmp_path_factory, spec, keep):
    other = spelled(spec, keep=keep)
    again = spec_from_dict(json.loads(json.dumps(spec_to_dict(other))))
    assert again == other
    plan = rp.compile(other)
    assert rp.compile(again).digest == plan.digest
    assert textform.loads(plan.to_text()) == plan
    path = tmp_path_factory.mktemp("plan") / "plan"
    for form in (path, path.with_suffix(".json")):
        plan.save(form)
        assert rp.Plan.load(form) == plan


@given(tied_specs())
def test_storage_is_equal_only_with_equal_positions(spec):
    stored = spelled(spec, keep=False)
    for tensor in stored.tensors:
        for layout in tensor.dst:
            assert layout.storage is not None
            moved = Storage(
                [
                    tuple(StoredBuffer(own.buffer, own.shape, own.tiles, own.at + 1) for own in entry)
                    for entry in layout.storage.entries
                ],
                layout.storage.entry_of,
            )
            assert moved != layout.storage


# --- by hand ---

HERE, THERE = rp.Mesh([0, 1]), rp.Mesh([2, 3])
WHOLE = Tile(rp.Box((0,), (4,)), 0, (1,))


def at(*positions: int, shape: tuple[int, ...] = (4,)) -> tuple[StoredBuffer, ...]:
    """An entry of whole tensors, each in a buffer of its own."""
    return tuple(StoredBuffer(0, shape, (WHOLE,), position) for position in positions)


def of(*entries: tuple[StoredBuffer, ...], mesh: rp.Mesh = THERE) -> rp.Layout:
    """A layout by storage, the same on all ranks where one entry is given."""
    return rp.Layout.stored(mesh, Storage.of(entries if len(entries) > 1 else entries * mesh.size))


def to(*layouts: rp.Layout, name: str = "w", buffers: Sequence[str] = ("w",)) -> rp.TensorSpec:
    """A tensor with these destinations, each in buffers of one name."""
    names = [buffers] * len(layouts)
    return rp.TensorSpec(name, (4,), "int8", rp.Layout(HERE, ["R"]), list(layouts), dst_buffers=names)


def test_one_layout_may_have_several_buffers_of_a_name():
    halves = tuple(
        StoredBuffer(0, (2,), (Tile(rp.Box((lo,), (lo + 2,)), 0, (1,)),), position)
        for position, lo in ((1, 0), (0, 2))
    )
    spec = rp.ReshardSpec([to(of(halves))])
    assert [own.key for own in SideTiles(spec.tensors[0], "dst").buffers(2)] == [("w", 1), ("w", 0)]
    result = rp.interpret(rp.compile(spec), buffers(spec, "src")).destinations
    wanted = buffers(spec, "dst")
    assert_equal(spec, result, wanted)
    assert [len(arrays) for arrays in wanted[2].values()] == [2]


def test_tensors_may_share_several_buffers_of_a_name():
    second = Tile(rp.Box((0,), (4,)), 4, (1,))
    ones = of(tuple(StoredBuffer(0, (8,), (WHOLE,), position) for position in (0, 1)))
    twos = of(tuple(StoredBuffer(0, (8,), (second,), position) for position in (0, 1)))
    spec = rp.ReshardSpec([to(ones, name="a", buffers=["f"]), to(twos, name="b", buffers=["f"])])
    result = rp.interpret(rp.compile(spec), buffers(spec, "src")).destinations
    assert_equal(spec, result, buffers(spec, "dst"))
    assert [array.shape for array in result[3]["f"]] == [(8,), (8,)]


def test_a_dense_buffer_is_the_first_beside_storage():
    spec = rp.ReshardSpec([to(rp.Layout(THERE, ["R"]), of(at(1)))])
    assert [own.key for own in SideTiles(spec.tensors[0], "dst").buffers(2)] == [("w", 0), ("w", 1)]


def test_executors_are_told_how_many_buffers_of_a_name_are_missing():
    whole = rp.Layout(HERE, ["R"])
    twice = rp.Layout.stored(HERE, Storage.of([at(0, 1)] * 2))
    spec = rp.ReshardSpec([rp.TensorSpec("w", (4,), "int8", twice, whole)])
    held = buffers(spec, "src")
    held[1]["w"].pop()
    with pytest.raises(LocalShapeError, match="'w', rank 1: 1 local buffers are given; expected 2"):
        rp.interpret(rp.compile(spec), held)


def test_a_position_of_0_is_not_written():
    spec = rp.ReshardSpec([to(of(at(0, 1)))])
    [storage] = spec_to_dict(spec)["storages"].values()
    assert [own.get("at") for own in storage["entries"][0]] == [None, 1]


HOLES = {
    "none at 0": (
        [to(of(at(1)))],
        r"dst buffer 'w', rank 2: tensor 'w' has one at 1 and none at 0; expected",
    ),
    "a gap on one rank": (
        [to(of(at(0, 1, 2), at(0, 2)))],
        r"dst buffer 'w', rank 3: tensor 'w' has one at 2 and none at 1; expected positions from 0",
    ),
    "a gap after another layout": (
        [to(rp.Layout(THERE, ["R"]), of(at(2)))],
        "rank 2: tensor 'w' has one at 2 and none at 1",
    ),
    "fewer of another tensor": (
        [to(of(at(0, 1), at(0))), to(of(at(0), at(0), mesh=rp.Mesh([3, 2])), name="b")],
        r"dst buffer 'w'.* the place of two elements",
    ),
    "two in one place": (
        [to(of(at(0, 1)), of(at(1)))],
        "dst buffer 'w' at 1, rank 2: element 0 is the place of two elements, of tensor 'w' and of 'w'",
    ),
    "two shapes": (
        [to(of(at(0, 1)), of(at(1, shape=(5,)), mesh=rp.Mesh([2])))],
        r"dst buffer 'w' at 1, rank 2: .* its shape is \[4\], tensor 'w' \[5\]",
    ),
    "several dense ones beside storage": (
        [to(*[rp.Layout(THERE, ["R"])] * 2, of(at(2)))],
        "rank 2: it is the whole buffer of tensor 'w' and of 'w'",
    ),
}


@pytest.mark.parametrize("name", HOLES)
def test_positions_that_do_not_count_are_refused(name):
    tensors, said = HOLES[name]
    with pytest.raises(SpecError, match=said) as caught:
        rp.ReshardSpec(tensors)
    assert "\n" not in str(caught.value)


def test_tensors_that_share_a_name_have_as_many_buffers_of_it():
    second = Tile(rp.Box((0,), (4,)), 4, (1,))
    twice = tuple(StoredBuffer(0, (8,), (WHOLE,), position) for position in (0, 1))
    once = (StoredBuffer(0, (8,), (second,)),)
    many, few = to(of(twice)), to(of(once, mesh=rp.Mesh([3, 4])), name="b")
    for tensors in ([many, few], [few, many]):
        with pytest.raises(
            SpecError, match="'w', rank 3: tensor 'b' has 1 of the name, tensor 'w' 2; expected as many"
        ):
            rp.ReshardSpec(tensors)
    rp.ReshardSpec([many, to(of(once, mesh=rp.Mesh([4, 5])), name="b")])


def test_every_position_has_places_of_its_own():
    def tensor(name, *offsets):
        tiles = [Tile(WHOLE.box, offset, (1,)) for offset in offsets]
        return to(of(tuple(StoredBuffer(0, (8,), (own,), at) for at, own in enumerate(tiles))), name=name)

    rp.ReshardSpec([tensor("w", 0, 4), tensor("b", 4, 0)])
    with pytest.raises(SpecError, match="'w' at 1, rank 2: element 2 is the place of two elements"):
        rp.ReshardSpec([tensor("w", 0, 0), tensor("b", 4, 2)])


@pytest.mark.parametrize("value", [-1, MAX_LOCALS, 10**400])
@pytest.mark.parametrize("path", [FIRST, ENTRY])
def test_a_position_out_of_range_is_refused(path, value):
    with pytest.raises(LayoutError, match=f"at {value}; expected an integer from 0 to {MAX_LOCALS - 1}"):
        spec_from_dict(put(good(), (*path, "at"), value))


@pytest.mark.parametrize("value", [1.5, "0", None])
def test_a_position_that_is_no_integer_is_refused(value):
    with pytest.raises(SpecError, match=r"storage\[0\].at is .*; expected int"):
        spec_from_dict(put(good(), (*FIRST, "at"), value))
    layout = of((StoredBuffer(0, (4,), (WHOLE,), value),))
    with pytest.raises(LayoutError, match=f"storage has a buffer 0 at {value!r}; expected an integer"):
        to(layout)


def spelled_out(*positions):
    """A document of one tensor whose storage has an item per position, on both ranks of a side."""
    whole = {"box": [[0, 4]], "offset": 0, "strides": [1]}
    items = [{"ranks": "2-3", "buffer": "f", "shape": [4], "tiles": [whole], **own} for own in positions]
    return {
        "version": 1,
        "meshes": {"train": {"ranks": "0-1"}, "serve": {"ranks": "2-3"}},
        "tensors": [
            {
                "name": "w",
                "shape": [4],
                "dtype": "int8",
                "src": {"mesh": "train", "placements": ["R"]},
                "dst": {"mesh": "serve", "storage": items},
            }
        ],
    }


def test_positions_may_be_given_where_storage_is_spelled_out():
    spec = spec_from_dict(spelled_out({}, {"at": 1}))
    assert spec.tensors == (to(of(at(0, 1)), buffers=["f"]),)
    with pytest.raises(
        SpecError, match=r"storage\[2\]: buffer 'f' at 1 of rank 2 is described twice; expected"
    ):
        spec_from_dict(spelled_out({}, {"at": 1}, {"at": 1}))
