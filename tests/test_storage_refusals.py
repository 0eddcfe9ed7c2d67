"""Bad storage: every kind is refused in one sentence that names field and value, and never later."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
from element_oracle import assert_equal, buffers
from hypothesis import given
from hypothesis import strategies as st

import reshard_planner as rp
from reshard_planner.errors import LayoutError, SpecError, UnsupportedError
from reshard_planner.ir import textform
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.layout.stored import MAX_ELEMENTS
from reshard_planner.spec import spec_from_dict, spec_to_dict

HUGE = 10**400


def tile(lo, hi, offset, strides=(8, 1)):
    return {
        "box": [list(ends) for ends in zip(lo, hi, strict=True)],
        "offset": offset,
        "strides": list(strides),
    }


def entry(ranks, tiles, buffer="fused", shape=(8, 8)):
    return {"ranks": ranks, "buffer": buffer, "shape": list(shape), "tiles": tiles}


def good():
    """Two tensors that share buffers on both sides, on two ranks each; up is stored by name."""
    halves = {
        "entries": [
            [{"buffer": 0, "shape": [8, 8], "tiles": [tile((row, 0), (row + 4, 8), 32)]}] for row in (0, 4)
        ],
        "entry_of": [0, 1],
    }
    rows = [entry([r], [tile((4 * r, 0), (4 * r + 4, 8), 0)]) for r in (0, 1)]
    columns = [entry("2-3", [tile((0, 0), (8, 8), 0, (1, 8))], "out", (16, 8))]
    return {
        "version": 1,
        "meshes": {"train": {"ranks": "0-1"}, "serve": {"ranks": [2, 3]}},
        "storages": {"halves": halves},
        "tensors": [
            {
                "name": "gate",
                "shape": [8, 8],
                "dtype": "bfloat16",
                "src": {"mesh": "train", "placements": ["S(0)"], "storage": rows},
                "dst": {"mesh": "serve", "storage": columns},
            },
            {
                "name": "up",
                "shape": [8, 8],
                "dtype": "bfloat16",
                "src": {"mesh": "train", "storage": "halves", "buffers": ["fused"]},
                "dst": {
                    "mesh": "serve",
                    "placements": ["R"],
                    "storage": [entry("2-3", [tile((0, 0), (8, 8), 64)], "out", (16, 8))],
                },
            },
        ],
    }


def put(document, path, value):
    """The document with another value at a path."""
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def gate(side, *rest):
    return ("tensors", 0, side, *rest)


FIRST = gate("src", "storage", 0)
TILE = (*FIRST, "tiles", 0)
INTO = gate("dst", "storage", 0, "tiles", 0)
ENTRY = ("storages", "halves", "entries", 0, 0)

BAD = {
    "a tile beyond its buffer": (
        (*TILE, "offset"),
        33,
        LayoutError,
        r"puts the last element of the box \[0:4, 0:8\] at 64; its buffer of shape \[8, 8\] has 64 elements",
    ),
    "strides beyond the buffer": ((*TILE, "strides"), [20, 1], LayoutError, "at 67; its buffer"),
    "a box beyond the tensor": (
        (*TILE, "box"),
        [[6, 9], [0, 8]],
        LayoutError,
        r"box \[6:9, 0:8\]; expected a non-empty one within \[8, 8\]",
    ),
    "a box before the tensor": (
        (*TILE, "box"),
        [[-1, 4], [0, 8]],
        LayoutError,
        r"box \[-1:4, 0:8\]; expected",
    ),
    "an empty box": ((*TILE, "box"), [[4, 4], [0, 8]], LayoutError, r"\[4:4, 0:8\]; expected a non-empty"),
    "a box that ends before it begins": (
        (*TILE, "box"),
        [[4, 3], [0, 8]],
        LayoutError,
        "expected a non-empty",
    ),
    "a box of other dimensions": (
        (*TILE, "box"),
        [[0, 4]],
        LayoutError,
        r"box of 1 dimensions; the tensor has 2: \[8, 8\]",
    ),
    "too few strides": ((*TILE, "strides"), [8], LayoutError, r"1 strides for the box .*; expected 2"),
    "a negative stride": (
        (*TILE, "strides"),
        [8, -1],
        LayoutError,
        r"strides \[8, -1\] .* expected 0 or more",
    ),
    "a negative offset": ((*TILE, "offset"), -1, LayoutError, "offset -1 and strides .* expected 0 or more"),
    "a negative shape": ((*FIRST, "shape"), [8, -8], LayoutError, r"shape \[8, -8\]; expected 0 or more"),
    "a huge buffer": ((*FIRST, "shape"), [HUGE, 8], LayoutError, f"dimensions and {MAX_ELEMENTS} elements"),
    "an empty huge buffer": ((*FIRST, "shape"), [0, HUGE], LayoutError, f"and {MAX_ELEMENTS} elements"),
    "a buffer of many dimensions": (
        (*FIRST, "shape"),
        [1] * 70,
        LayoutError,
        "expected at most 16 dimensions",
    ),
    "a huge stride": (
        INTO,
        {"box": [[0, 1], [0, 8]], "offset": 0, "strides": [HUGE, 1]},
        LayoutError,
        "expected at most",
    ),
    "a huge offset": ((*TILE, "offset"), HUGE, LayoutError, "puts the last element"),
    "a rank outside of the mesh": (
        (*FIRST, "ranks"),
        [0, 2],
        SpecError,
        r"tensors\[0\].src.storage\[0\].ranks has rank 2, which is not in the layout's mesh",
    ),
    "ranks that are no numbers": ((*FIRST, "ranks"), "0-x", SpecError, r"storage\[0\].ranks: .*'0-x'"),
    "a buffer described twice": (
        (*FIRST, "ranks"),
        "0-1",
        SpecError,
        "buffer 'fused' of rank 1 is described twice; expected all of its tiles in one entry",
    ),
    "a buffer without a name": ((*FIRST, "buffer"), "", SpecError, "buffer name is ''; expected a non-empty"),
    "a storage of no name": (
        ("tensors", 1, "src", "storage"),
        "thirds",
        SpecError,
        r"tensors\[1\].src.storage is 'thirds'; expected one of the storages \(halves\)",
    ),
    "names beside storage spelled out": (
        gate("src", "buffers"),
        ["fused"],
        SpecError,
        r"tensors\[0\].src has the field 'buffers'; expected names in its storage only",
    ),
    "too few names": (
        (*ENTRY, "buffer"),
        1,
        SpecError,
        r"'up', src: buffers are named \['fused'\]; expected 2 distinct names",
    ),
    "names that repeat": (
        ("tensors", 1, "src", "buffers"),
        ["fused", "fused"],
        SpecError,
        r"\['fused', 'fused'\]; expected 1 distinct name",
    ),
    "a negative number of a buffer": (
        (*ENTRY, "buffer"),
        -1,
        LayoutError,
        "buffer number -1; expected 0 or more",
    ),
    "a buffer twice in an entry": (
        ("storages", "halves", "entries", 0),
        [good()["storages"]["halves"]["entries"][at][0] for at in (0, 1)],
        LayoutError,
        "describes buffer 0 twice in entry 0; expected all of its tiles in one",
    ),
    "an entry that does not exist": (
        ("storages", "halves", "entry_of"),
        [0, 2],
        LayoutError,
        "storages.halves: storage names entry 2; expected one of its 2 entries",
    ),
    "entries for other ranks": (
        ("storages", "halves", "entry_of"),
        [0],
        LayoutError,
        "storage is for 1 ranks; the mesh has 2; expected one entry for each",
    ),
    "an unknown field": ((*TILE, "stride"), 1, SpecError, "stride"),
    "a box that placements do not give": (
        (*TILE, "box"),
        [[1, 5], [0, 8]],
        LayoutError,
        r"gives rank 0 the box \[1:5, 0:8\], which its placements do not",
    ),
    "less than placements give": (
        (*TILE, "box"),
        [[0, 3], [0, 8]],
        LayoutError,
        "gives 24 elements to rank 0; its placements give it 32",
    ),
    "boxes that overlap, with placements": (
        (*FIRST, "tiles"),
        [tile((0, 0), (4, 8), 0), tile((1, 0), (2, 2), 0)],
        LayoutError,
        r"gives rank 0 boxes of its placements' shard that overlap",
    ),
    "two elements in one place of a tensor": (
        (*INTO, "strides"),
        [1, 7],
        SpecError,
        "dst buffer 'out', rank 2: element 7 is the place of two elements, of tensor 'gate' and of 'gate'",
    ),
    "steps of nothing in a destination": (
        (*INTO, "strides"),
        [0, 8],
        SpecError,
        "is the place of two elements",
    ),
    "two tensors in one place": (
        (*INTO, "offset"),
        1,
        SpecError,
        "element 64 is the place of two elements, of tensor 'gate' and of 'up'; expected a place of its own",
    ),
    "two shapes of one buffer": (
        gate("dst", "storage", 0, "shape"),
        [8, 16],
        SpecError,
        r"dst buffer 'out', rank 2: tensor 'gate' says that its shape is \[8, 16\], tensor 'up' \[16, 8\]",
    ),
    "two dtypes of one buffer": (
        ("tensors", 0, "dtype"),
        "float32",
        SpecError,
        "tensor 'gate' has dtype float32, tensor 'up' bfloat16; expected it equal",
    ),
    "neither placements nor storage": (
        gate("dst", "storage"),
        ...,
        SpecError,
        r"tensors\[0\].dst lacks the field 'placements'; expected it, or storage",
    ),
}


def test_the_good_document_is_read_moved_and_written():
    spec = spec_from_dict(good())
    assert spec_from_dict(spec_to_dict(spec)) == spec
    assert_equal(
        spec,
        rp.interpret(rp.compile(spec), buffers(spec, "src")).destinations,
        buffers(spec, "dst", padding=0),
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_storage_is_refused_in_one_sentence(name):
    path, value, kind, said = BAD[name]
    with pytest.raises(kind, match=said) as caught:
        spec_from_dict(put(good(), path, copy.deepcopy(value)))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_what_nobody_holds_cannot_be_needed():
    document = put(good(), ("storages", "halves", "entry_of"), [0, 0])
    with pytest.raises(SpecError, match=r"tensor 'up': rank 2 needs \[4:8, 0:8\], which no source holds"):
        rp.compile(spec_from_dict(document))


SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-9, 99) | st.text(max_size=3)
VALUES = st.recursive(SCALARS | st.sampled_from([HUGE, 2**63, 2**31]), st.lists, max_leaves=4)


@given(VALUES, st.sampled_from(sorted({path for path, _, _, _ in BAD.values()}, key=str)))
def test_no_value_of_any_field_of_storage_escapes_as_another_error(value, path):
    with suppress(rp.InputError):
        plan = rp.compile(spec_from_dict(put(good(), path, value)))
        rp.verify(plan)
        assert textform.loads(plan.to_text()) == plan


# --- below eight bits ---

MESH, TO = rp.Mesh([0]), rp.Mesh([1])


def packed(*tiles, shape=(2, 8)):
    storage = Storage.of([(StoredBuffer(0, shape, tiles),)])
    return rp.TensorSpec("w", (2, 8), "uint4", rp.Layout(MESH, ["R"]), rp.Layout.stored(TO, storage))


def box(lo, hi):
    return rp.Box(lo, hi)


@pytest.mark.parametrize(
    "tiles",
    [
        [Tile(box((0, 0), (2, 8)), 1, (8, 1))],
        [Tile(box((0, 0), (2, 8)), 0, (9, 1))],
        [Tile(box((0, 0), (2, 2)), 0, (8, 2))],
        [Tile(box((0, 0), (2, 8)), 0, (1, 2))],
        [Tile(box((0, 0), (2, 3)), 0, (4, 1)), Tile(box((0, 3), (2, 8)), 8, (6, 1))],
        [Tile(box((0, 0), (2, 1)), 0, (2, 1)), Tile(box((0, 1), (2, 2)), 4, (2, 1))],
    ],
)
def test_storage_below_eight_bits_is_of_whole_bytes_also_where_boxes_join(tiles):
    with pytest.raises(
        UnsupportedError, match=r"uint4 .*within a byte|uint4 does not keep rows in whole bytes"
    ):
        packed(*tiles, shape=(4, 12))
    with pytest.raises(UnsupportedError):
        packed(*tiles, shape=(48,))


def test_buffers_below_eight_bits_have_rows_of_whole_bytes():
    whole = Tile(box((0, 0), (2, 8)), 0, (8, 1))
    packed(whole, shape=(16,))
    with pytest.raises(UnsupportedError, match="whole bytes"):
        packed(whole, shape=(17,))
