"""Pictures of layouts, as SVG and as text: every cell is what its ranks store, and all of it can be read."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod

import numpy as np
import pytest
from _hash_seeds import texts_under_hash_seeds
from _plans import HOSTILE_NAME, sample_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import holder_masks, members
from soon import soon
from storage_strategies import irregular_specs
from strategies import WHOLE_BYTE_DTYPES, tensor_specs

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.render.layouts.blocks import text_points
from reshard_planner.render.layouts.cells import MAX_LAYOUTS, LayoutCells, Limits, tensor_cells
from reshard_planner.render.layouts.scale import TINTS
from reshard_planner.render.layouts.svg import MAX_WIDTH, layouts_svg
from reshard_planner.render.layouts.text import layouts_text
from reshard_planner.render.layouts.words import short_ranks, whose
from reshard_planner.render.text import format_ranks, plain
from reshard_planner.spec.values import SIDES

SVG = "{http://www.w3.org/2000/svg}"

EVERYTHING = Limits(2**20, 2**20, 2**20)

NAMES = st.text(min_size=1) | st.sampled_from(
    [
        HOSTILE_NAME,
        "<script>alert(1)</script>",
        '"onload="alert(1)',
        "]]>",
        "-->",
        "&lt;",
        "x" * 10_000,
        "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}\u202e\ufeff",
        "\N{CJK UNIFIED IDEOGRAPH-6F22}" * 70,
        "a b " * 100,
    ]
)

KINDS = (
    "uneven",
    "strided",
    "replicas",
    "several",
    "scalar",
    "nothing",
    "four",
    "sixteen",
    "wide",
    "huge",
    "stored",
    "part",
)


def layout(ranks, *placements, shape=None, axes=None) -> rp.Layout:
    return rp.Layout(rp.Mesh(ranks, axes, shape), placements)


def tensor(shape, src, dst, name="w", dtype="bfloat16") -> rp.TensorSpec:
    return rp.TensorSpec(name, shape, dtype, src, dst)


def example(which: str, name: str = "w") -> rp.TensorSpec:
    """Tensors of every kind that pictures treat in a way of its own."""
    one = layout([0], "R")
    if which in ("stored", "part"):
        stored = sample_plans()["stored"].spec.tensors
        return next(each for each in stored if each.name == {"stored": "up", "part": "part"}[which])
    shape, src, dst = {
        "uneven": ((10,), layout(range(4), "S(0)"), layout(range(4, 11), "S(0)")),
        "strided": ((64, 48), layout(range(4), "_S(0, sf=2)", "S(0)", shape=(2, 2)), layout([4], "R")),
        "replicas": ((8, 8), layout(range(4), "S(0)"), layout([[4, 5], [6, 7]], "R", "S(1)")),
        "several": ((4,), one, [layout([rank], "R") for rank in range(1, MAX_LAYOUTS + 3)]),
        "scalar": ((), layout([0, 1], "R"), one),
        "nothing": ((0, 3), layout([0, 1], "S(0)"), one),
        "four": (
            (4, 6, 8, 16),
            layout(range(16), "S(0)", "S(1)", "S(2)", "S(3)", shape=(2, 2, 2, 2)),
            layout(range(8), "S(0)", "S(1)", "R", shape=(2, 2, 2)),
        ),
        "sixteen": (
            (2,) * 16,
            layout(range(4096), *(f"S({dim})" for dim in range(12)), shape=(2,) * 12),
            layout(range(16), *(f"S({dim})" for dim in range(12, 16)), shape=(2,) * 4),
        ),
        "huge": ((1 << 31, 1 << 20), layout(range(8), "S(0)"), layout(range(8, 16), "S(1)")),
        "wide": (
            (151_936, 4096),
            layout(range(4096), "S(0)", "S(1)", shape=(64, 64)),
            layout(range(4096), "R", "S(0)", shape=(512, 8)),
        ),
    }[which]
    return tensor(shape, src, dst, name)


# ------------------------------------------------------------------------------------ what cells say


def elements(box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in zip(box.lo, box.hi, strict=True))


def cells_of(shown: LayoutCells):
    return [cell for panel in shown.panels for line in panel.cells for cell in line if cell is not None]


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES), st.sampled_from([EVERYTHING, Limits(), Limits(3, 3, 2)]))
def test_a_cell_names_exactly_the_ranks_that_store_its_elements(spec, limits):
    found = tensor_cells(spec, limits)
    for side in SIDES:
        for shown, given_layout in zip(getattr(found, side), spec.layouts(side), strict=False):
            masks = holder_masks([given_layout], spec.shape)
            for cell in cells_of(shown):
                assert {members(int(mask)) for mask in masks[elements(cell.box)].reshape(-1)} == {cell.ranks}
                assert found.groups[cell.group] == cell.ranks
                assert cell.nbytes == cell.box.volume * DTYPE_BITS[spec.side_dtype(side)] // 8


@given(irregular_specs())
def test_a_cell_names_exactly_the_ranks_whose_storage_has_its_elements(spec):
    for each in spec.tensors:
        found = tensor_cells(each, EVERYTHING)
        for side in SIDES:
            for shown, tiling in zip(getattr(found, side), each.tilings(side), strict=True):
                holders = np.zeros((len(tiling.ranks), *each.shape), dtype=bool)
                for at, rank in enumerate(tiling.ranks.tolist()):
                    for _, tile in tiling.local_tiles(rank):
                        holders[(at, *elements(tile.box))] = True
                for cell in cells_of(shown):
                    here = holders[(slice(None), *elements(cell.box))].reshape(len(tiling.ranks), -1)
                    assert (here == here[:, :1]).all()
                    assert sorted(tiling.ranks[here[:, 0]].tolist()) == list(cell.ranks)


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES), st.sampled_from([EVERYTHING, Limits(), Limits(3, 3, 2)]))
def test_cells_fill_the_tensor_once_unless_some_are_left_out(spec, limits):
    found = tensor_cells(spec, limits)
    for shown in (*found.src, *found.dst):
        filled = np.zeros(spec.shape, dtype=np.int64)
        for cell in cells_of(shown):
            filled[elements(cell.box)] += 1
        left_out = shown.left_out + sum(each.left_out for each in (*shown.rows, *shown.columns))
        assert limits is not EVERYTHING or not left_out
        assert filled.max(initial=0) <= 1
        assert left_out or filled.sum() == prod(spec.shape)


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES), st.integers(3, 9), st.integers(2, 9))
def test_no_more_is_shown_than_asked_for(spec, ranges, panels):
    found = tensor_cells(spec, Limits(ranges, ranges, panels))
    for shown in (*found.src, *found.dst):
        assert max(len(shown.rows), len(shown.columns)) <= ranges
        assert len(shown.panels) <= panels
        for bounds in (shown.rows, shown.columns):
            assert all(one.hi == other.lo for one, other in pairwise(bounds))


@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_bytes_per_rank_are_those_of_its_tiles(spec):
    found = tensor_cells(spec)
    for side in SIDES:
        bits = DTYPE_BITS[spec.side_dtype(side)]
        for shown, tiling in zip(getattr(found, side), spec.tilings(side), strict=False):
            sizes = {
                rank: sum(tile.box.volume for _, tile in tiling.local_tiles(rank)) * bits // 8
                for rank in tiling.ranks.tolist()
            }
            assert shown.nbytes == (min(sizes.values()), max(sizes.values()), sum(sizes.values()))
            assert shown.empty == tuple(sorted(rank for rank, size in sizes.items() if not size))


def test_the_dimensions_that_are_cut_most_are_the_sides_of_the_grid():
    experts = tensor((16, 4, 8), layout(range(8), "S(0)"), layout(range(8, 16), "S(0)", "S(2)", shape=(2, 4)))
    found = tensor_cells(experts)
    assert (found.down, found.across, found.src[0].whole) == (0, 2, (1,))
    assert [len(panel.place) for panel in found.src[0].panels] == [0]
    found = tensor_cells(example("four"))
    assert (found.down, found.across, found.src[0].whole) == (2, 3, ())
    assert [[dim for dim, _ in panel.place] for panel in found.dst[0].panels] == [[0, 1]] * 4


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(8, 60))
def test_thousands_of_ranks_are_shortened_as_few_are(ranks, limit):
    assert short_ranks(sorted(ranks), limit) == format_ranks(sorted(ranks), limit)


# ------------------------------------------------------------------------------------ reading SVG


@dataclass(frozen=True)
class Room:
    """What a line of text or a rectangle takes on the page."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Room, by: float = 0.1) -> bool:
        return (
            min(self.right, other.right) - max(self.left, other.left) > by
            and min(self.bottom, other.bottom) - max(self.top, other.top) > by
        )

    def contains(self, other: Room, by: float = 0.6) -> bool:
        return (
            self.left <= other.left + by
            and other.right <= self.right + by
            and self.top <= other.top + by
            and other.bottom <= self.bottom + by
        )


def rooms(node: ET.Element, x: float = 0, y: float = 0) -> tuple[list[Room], list[Room]]:
    """Places of all texts and rectangles, as wide as a wide font needs them."""
    texts, rects = [], []
    moved = re.match(r"translate\((\S+) (\S+)\)", node.get("transform", ""))
    x, y = (x + float(moved[1]), y + float(moved[2])) if moved else (x, y)
    if node.tag == f"{SVG}text":
        size = float(node.get("font-size"))
        wide, anchor = text_points(node.text, size), node.get("text-anchor", "start")
        before = {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        x, y = x + float(node.get("x")), y + float(node.get("y"))
        if "rotate" in node.get("transform", ""):
            room = Room(node.text, x - 0.8 * size, y - wide + before, x + 0.2 * size, y + before)
        else:
            room = Room(node.text, x - before, y - 0.8 * size, x - before + wide, y + 0.2 * size)
        texts.append(room)
    elif node.tag == f"{SVG}rect":
        left, top = (float(node.get(key, 0)) for key in "xy")
        wide, high = (float(node.get(key)) for key in ("width", "height"))
        rects.append(Room("", x + left, y + top, x + left + wide, y + top + high))
    elif node.tag != f"{SVG}defs":
        for child in node:
            found = rooms(child, x, y)
            texts += found[0]
            rects += found[1]
    return texts, rects


def read(spec: rp.TensorSpec) -> ET.Element:
    return ET.fromstring(layouts_svg(spec))  # noqa: S314 - our own picture


def drawn_cells(root: ET.Element) -> list[ET.Element]:
    return [node for node in root.iter(f"{SVG}g") if node.get("class") == "cell"]


def words(root: ET.Element) -> str:
    return "\n".join(node.text for node in root.iter(f"{SVG}text"))


def check_room(root: ET.Element) -> None:
    texts, rects = rooms(root)
    page = rects[0]
    for room in (*texts, *rects):
        assert page.contains(room), room
    for one, other in combinations(texts, 2):
        assert not one.overlaps(other), (one, other)
    cells = [rooms(cell) for cell in drawn_cells(root)]
    for written, frames in cells:
        for room in written:
            assert frames[0].contains(room), (room, frames[0])


@settings(max_examples=60)
@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_no_text_lies_on_another_or_beyond_its_cell(spec):
    check_room(read(spec))


@settings(max_examples=40)
@given(irregular_specs())
def test_no_text_of_storage_lies_on_another_or_beyond_its_cell(spec):
    for each in spec.tensors:
        check_room(read(each))


@pytest.mark.parametrize("which", KINDS)
def test_every_kind_of_layout_has_room_for_its_text(which):
    check_room(read(example(which)))


@settings(max_examples=60)
@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_the_cells_of_the_picture_are_those_of_the_layouts(spec):
    found = tensor_cells(spec)
    expected = [cell for shown in (*found.src, *found.dst) for cell in cells_of(shown)]
    drawn = drawn_cells(read(spec))
    assert [
        (tuple(parse_ints(node.get("data-ranks"))), node.get("data-box"), int(node.get("data-nbytes")))
        for node in drawn
    ] == [(cell.ranks, str(cell.box), cell.nbytes) for cell in expected]


# ------------------------------------------------------------------------------------ what is drawn


def test_a_cell_tells_ranks_box_and_bytes_when_pointed_at():
    first, *_, last = drawn_cells(read(example("replicas")))
    assert first.find(f"{SVG}title").text == "rank 0\nbox [0:2, 0:8]\n32 bytes (32 B)"
    assert last.find(f"{SVG}title").text == "ranks 5,7\nbox [0:8, 4:8]\n64 bytes (64 B) in each of 2 replicas"


def test_replicas_are_hatched_and_say_how_many_they_are():
    root = read(example("replicas"))
    pattern = root.find(f".//{SVG}pattern").get("id")
    for cell in drawn_cells(root):
        copies = len(parse_ints(cell.get("data-ranks")))
        hatched = any(rect.get("fill") == f"url(#{pattern})" for rect in cell.iter(f"{SVG}rect"))
        assert hatched == (copies > 1)
        assert (f"{copies} copies" in words(cell)) == (copies > 1)


def test_two_pictures_on_one_page_do_not_share_their_pattern():
    patterns = {read(example(which)).find(f".//{SVG}pattern").get("id") for which in ("replicas", "four")}
    assert len(patterns) == 2


def test_large_layouts_are_not_wider_than_pages():
    rows = layout(np.arange(128).reshape(8, 16).tolist(), "S(0)", "R")
    columns = layout(np.arange(128, 384).reshape(8, 32).tolist(), "R", "S(1)")
    root = read(tensor((7168, 18432), rows, columns))
    assert float(root.get("width")) <= MAX_WIDTH
    check_room(root)


def test_placements_are_said_in_words():
    before = layout([[0, 1], [2, 3], [4, 5], [6, 7]], "_S(0, sf=2)", "S(0)", axes=["fsdp", "tp"])
    text = words(read(tensor((64, 8), before, layout([[8, 9], [10, 11]], "R", "S(1)", axes=["dp", "tp"]))))
    assert "fsdp: each of 2 parts of dim 0 cut in 4; tp: dim 0 cut in 2" in text
    assert "dp: 2 copies; tp: dim 1 cut in 2" in text
    assert "Tints only set neighbours apart" in text.replace("\n", " ")


def test_uneven_shards_are_to_scale():
    widths = [float(cell.find(f"{SVG}rect").get("width")) for cell in drawn_cells(read(example("uneven")))]
    assert widths[:4] == pytest.approx([90, 90, 90, 30], abs=0.1)
    assert widths[4:] == pytest.approx([60] * 5, abs=0.1)


def test_strided_shards_stand_where_their_elements_are():
    cells = drawn_cells(read(example("strided")))[:4]
    assert [cell.get("data-ranks") for cell in cells] == ["0", "2", "1", "3"]
    tops = [float(cell.find(f"{SVG}rect").get("y")) for cell in cells]
    assert tops == pytest.approx([0, 75, 150, 225], abs=0.1)


def test_a_range_too_short_for_its_text_is_drawn_longer_and_the_legend_says_so():
    even = tensor((1000,), layout(range(2), "R"), layout(range(2, 4), "S(0)"))
    assert "drawn longer" not in words(read(even)).replace("\n", " ")
    uneven = tensor((99 * 99 + 1,), layout(range(100), "S(0)"), layout([0], "R"))  # the last has one element
    assert "drawn longer" in words(read(uneven)).replace("\n", " ")


def test_the_middle_of_many_ranks_is_left_out_and_counted():
    root = read(example("wide"))
    assert len(drawn_cells(root)) == 49 + 8
    assert "left out of dim 0: 57 ranges within 9496:144814" in words(root)
    assert "4,096 ranks: 0-4095; each stores" in words(root)
    assert len(layouts_svg(example("wide"))) < 60_000


def test_panels_name_their_place_in_the_other_dimensions():
    text = words(read(example("four")))
    for place in ("0:2, dim 1 = 0:3", "0:2, dim 1 = 3:6", "2:4, dim 1 = 0:3", "2:4, dim 1 = 3:6"):
        assert text.count(f"dim 0 = {place}") == 2


def test_too_many_panels_are_left_out():
    cube = tensor(
        (40, 40, 64, 2), layout(range(40 * 40), "S(0)", "S(1)", shape=(40, 40)), layout(range(41), "S(2)")
    )
    found = tensor_cells(cube)
    assert (found.src[0].whole, found.dst[0].whole) == ((2, 3), (3,))
    shown = {len(each.panels) for each in (*found.src, *found.dst)}
    assert shown == {Limits().panels, 1}
    assert f"... {32 - Limits().panels} panels left out ..." in words(read(cube))
    assert f"... {32 - Limits().panels} panels left out ..." in layouts_text(cube, 200)


def test_several_layouts_of_a_side_stand_one_above_the_other():
    root = read(example("several"))
    assert [cell.get("data-ranks") for cell in drawn_cells(root)] == ["0", "1", "2", "3", "4"]
    assert "layout 4 of 6" in words(root)
    assert "... and 2 more layouts" in words(root)


def test_empty_shards_are_listed_beneath():
    assert "store nothing: ranks 9-10" in words(read(example("uneven")))
    assert "store nothing: ranks 9-10" in layouts_text(example("uneven"))


def test_what_no_storage_has_is_nobodys():
    cells = drawn_cells(read(example("part")))
    nobody = [cell for cell in cells if not cell.get("data-ranks")]
    assert len(nobody) == 8
    assert all("nobody stores this" in cell.find(f"{SVG}title").text for cell in nobody)
    assert "nobody" in layouts_text(example("part"))


def test_a_scalar_is_one_cell_and_a_tensor_without_elements_none():
    assert [cell.get("data-box") for cell in drawn_cells(read(example("scalar")))] == ["[]", "[]"]
    assert drawn_cells(read(example("nothing"))) == []
    for text in (words(read(example("nothing"))), layouts_text(example("nothing"))):
        assert text.count("no elements to store") == 2


def test_neighbours_of_many_differ_in_tint():
    root = read(example("wide"))
    tints = [cell.find(f"{SVG}rect").get("fill") for cell in drawn_cells(root)][:49]
    assert set(tints) <= set(TINTS)
    square = np.array(tints).reshape(7, 7)
    for one, other in ((square[1:], square[:-1]), (square[:, 1:], square[:, :-1])):
        apart = np.ones(6, dtype=bool)
        apart[3] = False  # what is left out stands between
        differ = one != other
        assert (differ[apart] if differ.shape == (6, 7) else differ[:, apart]).all()


# ------------------------------------------------------------------------------------ names


@settings(max_examples=60)
@given(NAMES)
def test_no_name_changes_what_is_drawn(name):
    root, expected = read(example("replicas", name)), read(example("replicas"))
    assert plain(name) in words(root)
    assert [node.tag for node in root.iter()] == [node.tag for node in expected.iter()]
    assert not list(root.iter(f"{SVG}script"))
    text = layouts_text(example("replicas", name))
    assert text.splitlines()[-8:] == layouts_text(example("replicas")).splitlines()[-8:]
    text.encode()


@settings(max_examples=30)
@given(NAMES, st.integers(40, 160))
def test_names_of_mesh_axes_are_text_too(name, width):
    axes = [name, f"{name}2"]
    spec = tensor((8, 8), layout([[0, 1], [2, 3]], "R", "S(0)", axes=axes), layout([4], "R"))
    check_room(read(spec))
    assert "ranks 0 and 2 (2 copies)" in words(read(spec))
    assert "ranks 0 and 2, x2" in layouts_text(spec, width) or "0,2 x2" in layouts_text(spec, width)


# ------------------------------------------------------------------------------------ text


@settings(max_examples=60)
@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES), st.integers(60, 160))
def test_lines_are_as_wide_as_asked_for(spec, width):
    text = layouts_text(spec, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    assert text.endswith("\n")
    assert not any(line.endswith(" ") for line in text.splitlines())


@settings(max_examples=60)
@given(tensor_specs(dtypes=WHOLE_BYTE_DTYPES))
def test_the_text_names_the_ranks_of_every_cell(spec):
    text = layouts_text(spec, 4000)
    found = tensor_cells(spec)
    for shown in (*found.src, *found.dst):
        for cell in cells_of(shown):
            name, copies = short_ranks(cell.ranks, 16), len(cell.ranks)
            assert name in text or whose(cell.ranks, name) in text
            assert copies == 1 or f"x{copies}" in text or f"({copies} copies)" in text
        if shown.empty:
            assert short_ranks(shown.empty, 60) in text.replace("\n", " ")


def test_both_sides_stand_beside_one_another_in_text():
    assert layouts_text(example("replicas"), 80) == (
        "Layouts of w\n"
        "8 x 8 bfloat16, 128 B\n"
        "Cell: the ranks that store it. xN, N copies, ///: all of them store the same.\n"
        "Edges: dim 0 down, dim 1 across, in elements; to scale where the text allows.\n"
        "\n"
        "source (before)                    destination (after)\n"
        "axis0: dim 0 cut in 4              axis0: 2 copies; axis1: dim 1 cut in\n"
        "(axis0=4:S(0))                     2\n"
        "4 ranks: 0-3; each stores 32 B     (axis0=2:R, axis1=2:S(1))\n"
        "  0                        8       4 ranks: 4-7; each stores 64 B\n"
        "0 +------------------------+         0            4            8\n"
        "  |                        |       0 +------------+------------+\n"
        "  |         rank 0         |         |////////////|////////////|\n"
        "  |                        |         |////////////|////////////|\n"
        "2 +------------------------+         |////////////|////////////|\n"
        "  |                        |         |////////////|////////////|\n"
        "  |         rank 1         |         |////////////|////////////|\n"
        "  |                        |         |// 4,6 x2 //|// 5,7 x2 //|\n"
        "4 +------------------------+         |////////////|////////////|\n"
        "  |                        |         |////////////|////////////|\n"
        "  |         rank 2         |         |////////////|////////////|\n"
        "  |                        |         |////////////|////////////|\n"
        "6 +------------------------+         |////////////|////////////|\n"
        "  |                        |         |////////////|////////////|\n"
        "  |         rank 3         |       8 +------------+------------+\n"
        "  |                        |\n"
        "8 +------------------------+\n"
    )


def test_where_there_is_no_room_both_sides_stand_one_above_the_other():
    text = layouts_text(example("four"), 40)
    lines = text.splitlines()
    assert lines.index("source (before)") < lines.index("destination (after)")
    assert max(map(len, lines)) <= 40
    assert "[2:4, 3:6, :, :]" in text


def test_fewer_ranks_are_shown_where_there_is_less_room():
    wide, narrow = (layouts_text(example("wide"), width) for width in (200, 80))
    assert "61" in wide
    assert "4095" in narrow
    assert max(map(len, narrow.splitlines())) <= 80


# ------------------------------------------------------------------------------------ all of it


@pytest.mark.parametrize("which", KINDS)
def test_a_picture_needs_nothing_from_outside(which):
    svg = layouts_svg(example(which))
    assert not re.search(r"href|@import|url\((?!#hatch-)|<(script|image|foreignObject)", svg)
    assert re.findall(r"https?://[^\"']*", svg) == ["http://www.w3.org/2000/svg"]
    assert svg == layouts_svg(example(which))


def test_pictures_do_not_depend_on_the_hash_seed():
    drawn = "''.join(layouts_svg(example(each)) + layouts_text(example(each)) for each in KINDS)"
    assert len(texts_under_hash_seeds("test_layout_pictures", drawn)) == 1


def test_thousands_of_ranks_that_do_not_follow_one_another_take_little_time():
    ranks = list(range(0, 8192, 2))
    spec = tensor((1 << 20, 64), layout(ranks, "R"), layout(ranks, "_S(0, sf=256)"), name="far")
    with soon(4):
        svg, text = layouts_svg(spec), layouts_text(spec)
    assert "4096 copies" in svg
    assert "x4096" in text
    assert format_ints(ranks) not in svg
    assert len(svg) < 60_000
