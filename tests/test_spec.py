"""Specs: every form parses, what is written reads back, and bad input is named by field and value."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from strategies import specs

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS, canonical_dtype
from reshard_planner.errors import (
    LayoutError,
    SpecError,
)
from reshard_planner.spec import parse_spec, spec_from_dict, spec_to_dict
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.spec.values import byte_step

DOCUMENT = """
version: 1
meshes:
  train: {ranks: "0-1", axes: {tp: 2}}
  serve: {ranks: [[2, 3], [4, 5]], axes: [dp, tp]}
topology: {preset: dgx-h100, nodes: 2}
tensors:
  - {name: w, shape: [8, 8], dtype: bfloat16, src: {mesh: train, placements: [S(0)]},
     dst: {mesh: serve, placements: [R, S(1)]}}
options: {strategy: optimal, staging: 256MiB}
"""

TRAIN = rp.Mesh([0, 1], ["tp"])
SERVE = rp.Mesh([[2, 3], [4, 5]], ["dp", "tp"])


def good() -> dict[str, Any]:
    return {
        "version": 1,
        "meshes": {
            "train": {"ranks": "0-1", "axes": {"tp": 2}},
            "serve": {"ranks": [[2, 3], [4, 5]], "axes": ["dp", "tp"]},
        },
        "topology": {"preset": "dgx-h100", "nodes": 2},
        "tensors": [
            {
                "name": "w",
                "shape": [8, 8],
                "dtype": "bfloat16",
                "src": {"mesh": "train", "placements": ["S(0)"]},
                "dst": {"mesh": "serve", "placements": ["R", "S(1)"]},
            }
        ],
        "options": {"strategy": "optimal", "staging": "256MiB"},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good document with one field set, named as errors name it; without it for ``...``."""
    document = deepcopy(good())
    keys = [int(key) if key.isdigit() else key for key in path.replace("[", ".").replace("]", "").split(".")]
    at: Any = document
    for key in keys[:-1]:
        at = at[key]
    if value is ...:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    return document


def test_the_documented_spec_is_read():
    spec = parse_spec(DOCUMENT)
    tensor = rp.TensorSpec(
        "w", (8, 8), "bfloat16", rp.Layout(TRAIN, ["S(0)"]), rp.Layout(SERVE, ["R", "S(1)"])
    )
    assert spec.tensors == (tensor,)
    assert spec.topology == rp.Topology.preset("dgx-h100", 2)
    assert spec.options == rp.Options(staging_nbytes=256 * 2**20)
    assert spec.ranks == (0, 1, 2, 3, 4, 5)
    assert spec_from_dict(good()) == spec


@pytest.mark.parametrize(
    ("mesh", "wanted"),
    [
        ({"ranks": "0-3"}, rp.Mesh([0, 1, 2, 3])),
        ({"ranks": "0,2,1"}, rp.Mesh([0, 2, 1])),
        ({"ranks": " 4 - 5 , 0 "}, rp.Mesh([4, 5, 0])),
        ({"ranks": [3, 1]}, rp.Mesh([3, 1])),
        ({"ranks": [[0, 1], [2, 3]]}, rp.Mesh([[0, 1], [2, 3]])),
        ({"ranks": [[[0], [1]], [[2], [3]]]}, rp.Mesh([0, 1, 2, 3], None, (2, 2, 1))),
        ({"ranks": "0-5", "axes": {"dp": 3, "tp": 2}}, rp.Mesh([[0, 1], [2, 3], [4, 5]], ("dp", "tp"))),
        ({"ranks": [0, 1], "axes": ["tp"]}, rp.Mesh([0, 1], ("tp",))),
        ({"ranks": [[0, 1]], "axes": {"dp": 1, "tp": 2}}, rp.Mesh([[0, 1]], ("dp", "tp"))),
    ],
)
def test_every_form_of_a_mesh_is_read(mesh, wanted):
    document = good()
    document["meshes"]["train"] = mesh
    document["tensors"][0]["src"]["placements"] = ["R"] * wanted.ndim
    assert spec_from_dict(document).tensors[0].src[0].mesh == wanted


def test_yaml_flow_lists_may_split_a_strided_placement_at_its_comma():
    text = DOCUMENT.replace("[R, S(1)]", "[_S(1, sf=2), S(1)]")
    assert parse_spec(text).tensors[0].dst[0].placements == (rp.StridedShard(1, 2), rp.Shard(1))


def test_sides_may_be_lists_of_layouts_and_carry_shape_and_dtype():
    document = good()
    tensor = document["tensors"][0]
    del tensor["shape"], tensor["dtype"]
    tensor["src"] |= {"shape": [8, 8], "dtype": "half"}
    tensor["dst"] = [
        {"mesh": "serve", "placements": ["R", "R"], "shape": [8, 8], "dtype": "float16"},
        {"mesh": "train", "placements": ["S(-1)"]},
    ]
    tensor["dst"][1] |= {"shape": [8, 8], "dtype": "torch.float16"}
    read = spec_from_dict(document).tensors[0]
    assert (read.shape, read.dtype) == ((8, 8), "float16")
    assert read.dst == (rp.Layout(SERVE, ["R", "R"]), rp.Layout(TRAIN, ["S(1)"]))


@pytest.mark.parametrize(("text", "wanted"), [("off", "off"), ("'off'", "off"), ("auto", "auto")])
def test_a_bare_off_of_yaml_turns_proxies_off(text, wanted):
    spec = parse_spec(DOCUMENT.replace("options: {", f"options: {{proxies: {text}, "))
    assert spec.options.proxies == wanted
    assert spec_from_dict(spec_to_dict(spec)) == spec


def test_a_nic_of_one_gpu_is_named_by_its_number():
    document = good()
    document["topology"] = {"domains": [[0, 1, 2, 3, 4, 5]], "nics": [{"gpus": 3}, {"gpus": [[0, 1]]}]}
    assert [nic.gpus for nic in spec_from_dict(document).topology.nics] == [(3,), (0, 1)]


def test_topology_and_options_may_be_left_out():
    document = good()
    del document["topology"], document["options"]
    spec = spec_from_dict(document)
    assert spec.topology == rp.Topology.uniform(6, 8)
    assert spec.options == rp.Options()


@given(specs())
def test_a_spec_written_as_plain_data_reads_back(spec):
    plain = spec_to_dict(spec)
    assert spec_from_dict(json.loads(json.dumps(plain))) == spec
    assert spec_to_dict(spec_from_dict(plain)) == plain
    assert parse_spec(json.dumps(plain)) == spec


@given(specs())
def test_specs_are_equal_and_hashed_by_value(spec):
    again = rp.ReshardSpec(spec.tensors, spec.topology, spec.options)
    assert again == spec
    assert hash(again) == hash(spec)
    assert spec.with_options(lag=7).options.lag == 7
    assert spec.tensor(spec.tensors[-1].name) == spec.tensors[-1]
    with pytest.raises(rp.InputError, match="'nowhere'"):
        spec.tensor("nowhere")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("4KiB", 4096),
        ("4 kb", 4000),
        ("1.5MiB", 1572864),
        ("2GB", 2 * 10**9),
        ("1TiB", 2**40),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_read_in_decimal_and_binary_units(text, nbytes):
    assert parse_nbytes(text, "options.staging") == nbytes


@pytest.mark.parametrize("name", DTYPE_BITS)
def test_every_dtype_keeps_its_name_with_and_without_torch(name):
    assert canonical_dtype(name) == canonical_dtype(f"torch.{name}") == name
    assert byte_step(DTYPE_BITS[name]) * DTYPE_BITS[name] % 8 == 0


def test_every_dtype_of_torch_is_known_with_its_width():
    torch = pytest.importorskip("torch")
    names = {
        str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)
    }
    assert names <= set(DTYPE_BITS)
    for name in names:
        if DTYPE_BITS[name] >= 8:
            assert getattr(torch, name).itemsize * 8 == DTYPE_BITS[name], name


def test_files_are_read_by_their_suffix_and_named_in_errors(tmp_path):
    yaml_path, json_path = tmp_path / "spec.yaml", tmp_path / "spec.JSON"
    yaml_path.write_text(DOCUMENT, encoding="utf-8")
    json_path.write_text(json.dumps(good()), encoding="utf-8")
    assert rp.ReshardSpec.load(yaml_path) == rp.ReshardSpec.load(str(json_path)) == parse_spec(DOCUMENT)
    yaml_path.write_text(DOCUMENT.replace("S(0)", "S(7)"), encoding="utf-8")
    with pytest.raises(LayoutError) as caught:
        rp.ReshardSpec.load(yaml_path)
    assert str(caught.value).startswith(f"{yaml_path}: tensors[0]")


def test_a_topology_may_stand_in_its_own_file(tmp_path):
    (tmp_path / "cluster.yaml").write_text("{domains: ['0-3', '4-7']}", encoding="utf-8")
    (tmp_path / "loop.yaml").write_text("{file: loop.yaml}", encoding="utf-8")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        DOCUMENT.replace("{preset: dgx-h100, nodes: 2}", "{file: cluster.yaml}"), encoding="utf-8"
    )
    assert rp.ReshardSpec.load(spec).topology == rp.Topology.uniform(8, 4)
    spec.write_text(DOCUMENT.replace("{preset: dgx-h100, nodes: 2}", "{file: loop.yaml}"), encoding="utf-8")
    with pytest.raises(SpecError, match=r"loop\.yaml"):
        rp.ReshardSpec.load(spec)
