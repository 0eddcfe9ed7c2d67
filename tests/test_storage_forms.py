"""Storage and names of buffers as plans and runs know them: in files, in texts, and under which names."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from element_oracle import assert_equal, buffers
from test_storage_refusals import MESH, TO, box, good

import reshard_planner as rp
from reshard_planner.errors import LocalShapeError, PlanFileError, SpecError
from reshard_planner.ir import textform
from reshard_planner.layout import Storage, StoredBuffer, Tile
from reshard_planner.spec import spec_from_dict, spec_to_dict

# --- names ---


def test_two_layouts_that_have_whole_buffers_of_a_name_that_others_store_in_are_refused():
    storage = Storage.of([(StoredBuffer(0, (4,), (Tile(box((0,), (4,)), 0, (1,)),)),)])
    fused = rp.TensorSpec(
        "a", (4,), "int8", rp.Layout.stored(MESH, storage), rp.Layout(TO, ["R"]), src_buffers=[("b",)]
    )
    plain = [rp.Layout(MESH, ["R"])] * 2
    one = rp.TensorSpec("b", (4,), "int8", plain[:1], rp.Layout(TO, ["R"]))
    two = rp.TensorSpec("b", (4,), "int8", plain, rp.Layout(TO, ["R"]))
    rp.ReshardSpec([fused, one])
    for tensors in ([fused, two], [two, fused]):
        with pytest.raises(
            SpecError, match="src buffer 'b', rank 0: it is the whole buffer of tensor 'b' and of 'b'"
        ):
            rp.ReshardSpec(tensors)


def test_a_dense_buffer_may_have_a_name_of_its_own():
    document = good()
    document["tensors"] = [
        {
            "name": "w",
            "shape": [8, 8],
            "dtype": "int8",
            "src": {"mesh": "train", "placements": ["S(0)"], "buffers": ["here"]},
            "dst": {"mesh": "serve", "placements": ["S(1)"], "buffers": ["there"]},
        }
    ]
    spec = spec_from_dict(document)
    assert spec_from_dict(spec_to_dict(spec)) == spec
    plan = rp.compile(spec)
    result = rp.interpret(plan, buffers(spec, "src")).destinations
    assert set(result[2]) == {"there"}
    assert_equal(spec, result, buffers(spec, "dst"))
    with pytest.raises(LocalShapeError, match="'here', rank 0: 0 local buffers are given; expected 1"):
        rp.interpret(plan, {0: {"w": [np.zeros((4, 8), dtype=np.int8)]}})


# --- contents of several dtypes ---


def test_sources_of_one_tensor_may_have_any_dtypes_of_the_width():
    storage = Storage.of(
        [
            (
                StoredBuffer(0, (4,), (Tile(box((0,), (4,)), 0, (1,)),)),
                StoredBuffer(1, (4,), (Tile(box((4,), (8,)), 0, (1,)),)),
            )
        ]
    )
    layout = rp.Layout.stored(MESH, storage)
    spec = rp.ReshardSpec(
        [rp.TensorSpec("w", (8,), "float32", layout, rp.Layout(TO, ["R"]), src_buffers=[("a", "b")])]
    )
    given_buffers = buffers(spec, "src")
    for dtypes in (("<f4", "<i4"), ("<u4", "<f4")):
        mixed = {
            0: {name: [given_buffers[0][name][0].view(kind)] for name, kind in zip("ab", dtypes, strict=True)}
        }
        found = rp.interpret(rp.compile(spec), mixed).destinations
        assert_equal(spec, found, buffers(spec, "dst"))


# --- the text form ---

BROKEN_LINES = [
    (r'"offset": 0', '"offset": "0"', "spec: storages.s0.entries"),
    (r"storage s0 \{", "storage s1 {", r"is given twice|spec: tensors\[0\]"),
    (r"storage s1 \{.*\n", "", r"spec: tensors\[\d\]"),
    (r'buffers \["fused"\]', 'buffers ["fu\\qsed"]', "not valid JSON"),
    (r'buffers \["fused"\]', "buffers []", "expected 'tensor"),
    (r"bfloat16 \[", "bfloat16 to int8 [", "cast from bfloat16 to int8"),
    (r"bfloat16 \[", "bfloat16 to [", "expected 'tensor"),
]


@pytest.mark.parametrize(("old", "new", "said"), BROKEN_LINES)
def test_a_broken_line_of_storage_is_refused(old, new, said):

    text = rp.compile(spec_from_dict(good())).to_text()
    broken, count = re.subn(old, new.replace("\\", "\\\\"), text, count=1)
    assert count == 1, text
    with pytest.raises(PlanFileError, match=said) as caught:
        textform.loads(broken, check=False)
    assert "\n" not in str(caught.value)


def test_storage_is_written_once_in_json(tmp_path):
    plan = rp.compile(spec_from_dict(good()))
    raw = json.loads(plan.to_json())["spec"]
    assert len(raw["storages"]) == 4
    assert [each["src"][0]["buffers"] for each in raw["tensors"]] == [["fused"], ["fused"]]
    plan.save(tmp_path / "plan")
    assert rp.Plan.load(tmp_path / "plan").spec == plan.spec
