"""Bad specs: every one is refused in one sentence that names field and value, within bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_spec import DOCUMENT, changed, good

import reshard_planner as rp
from reshard_planner.errors import (
    DtypeMismatchError,
    LayoutError,
    PlacementError,
    ShapeMismatchError,
    SpecError,
    TopologyError,
    UnsupportedError,
)
from reshard_planner.spec import parse_spec, spec_from_dict

HUGE = 10**400

BAD: list[tuple[str, Any, type[Exception], tuple[str, ...]]] = [
    # missing fields, at every level
    ("version", ..., SpecError, ("version",)),
    ("meshes", ..., SpecError, ("meshes",)),
    ("tensors", ..., SpecError, ("tensors",)),
    ("meshes.train.ranks", ..., SpecError, ("meshes.train", "ranks")),
    ("tensors[0].name", ..., SpecError, ("tensors[0]", "name")),
    ("tensors[0].shape", ..., SpecError, ("tensors[0]", "shape")),
    ("tensors[0].dtype", ..., SpecError, ("tensors[0]", "dtype")),
    ("tensors[0].src", ..., SpecError, ("tensors[0]", "src")),
    ("tensors[0].dst.mesh", ..., SpecError, ("tensors[0].dst", "mesh")),
    ("tensors[0].dst.placements", ..., SpecError, ("tensors[0].dst", "placements")),
    # unknown fields, at every level
    ("verison", 1, SpecError, ("verison", "version")),
    ("meshes.train.rank", 1, SpecError, ("meshes.train", "rank")),
    ("topology.node", 1, SpecError, ("topology", "node")),
    ("tensors[0].dtpye", "x", SpecError, ("tensors[0]", "dtpye")),
    ("tensors[0].src.placement", "x", SpecError, ("tensors[0].src", "placement")),
    ("options.stagin", 1, SpecError, ("options", "stagin")),
    # wrong types
    ("version", "1", SpecError, ("version", "'1'", "int")),
    ("version", 1.0, SpecError, ("version", "1.0")),
    ("version", True, SpecError, ("version", "True")),
    ("version", None, SpecError, ("version", "None")),
    ("meshes", [], SpecError, ("meshes", "[]", "mapping")),
    ("meshes.train", "0-1", SpecError, ("meshes.train", "'0-1'")),
    ("meshes.train.ranks", 3, SpecError, ("meshes.train.ranks", "3")),
    ("meshes.train.axes", "tp", SpecError, ("meshes.train.axes", "'tp'")),
    ("meshes.train.axes", {"tp": "2"}, SpecError, ("meshes.train.axes", "'2'")),
    ("tensors", {}, SpecError, ("tensors", "{}", "list")),
    ("tensors", "w", SpecError, ("tensors", "'w'", "list")),
    ("tensors[0]", "w", SpecError, ("tensors[0]", "'w'")),
    ("tensors[0].name", 7, SpecError, ("tensors[0].name", "7")),
    ("tensors[0].shape", 8, SpecError, ("tensors[0].shape", "8", "list")),
    ("tensors[0].shape", [8, "8"], SpecError, ("tensors[0].shape[1]", "'8'")),
    ("tensors[0].shape", [8, 8.0], SpecError, ("tensors[0].shape[1]", "8.0")),
    ("tensors[0].dtype", 16, SpecError, ("tensors[0].dtype", "16")),
    ("tensors[0].src", "train", SpecError, ("tensors[0].src", "'train'")),
    ("tensors[0].dst", ["serve"], SpecError, ("tensors[0].dst[0]", "'serve'")),
    ("tensors[0].src.mesh", 0, SpecError, ("tensors[0].src.mesh", "0")),
    ("tensors[0].src.placements", "S(0)", SpecError, ("tensors[0].src.placements", "'S(0)'")),
    ("tensors[0].src.placements", [0], SpecError, ("tensors[0].src.placements[0]", "0")),
    ("tensors[0].cast", "yes", SpecError, ("tensors[0].cast", "'yes'")),
    ("topology", "dgx-h100", SpecError, ("topology", "'dgx-h100'")),
    ("topology.nodes", "two", SpecError, ("topology.nodes", "'two'")),
    ("topology.nodes", 2.5, SpecError, ("topology.nodes", "2.5")),
    ("options", 3, SpecError, ("options", "3")),
    ("options.strategy", 3, SpecError, ("options.strategy", "3")),
    ("options.lag", "2", SpecError, ("options.lag", "'2'")),
    ("options.proxies", True, SpecError, ("options.proxies is True; expected auto or off",)),
    ("options.proxies", 0, SpecError, ("options.proxies is 0; expected auto or off",)),
    ("options.proxies", ["off"], SpecError, ("options.proxies is ['off']; expected auto or off",)),
    ("options.proxies", "no", SpecError, ("options.proxies is 'no'; expected auto or off",)),
    # wrong values
    ("version", 2, SpecError, ("version", "2", "1")),
    ("version", HUGE, SpecError, ("version", "1000")),
    ("meshes.train.ranks", "0-x", SpecError, ("meshes.train.ranks", "'0-x'")),
    ("meshes.train.ranks", "", SpecError, ("meshes.train.ranks", "''")),
    ("meshes.train.ranks", [], LayoutError, ("meshes.train", "no ranks")),
    ("meshes.train.ranks", [0, 0], LayoutError, ("meshes.train", "duplicate rank 0")),
    ("meshes.train.ranks", "1,1", LayoutError, ("meshes.train", "duplicate rank 1")),
    ("meshes.train.ranks", [0, -1], LayoutError, ("meshes.train", "-1")),
    ("meshes.train.ranks", [0, "1"], LayoutError, ("meshes.train", "'1'")),
    ("meshes.train.ranks", [0, 1.5], LayoutError, ("meshes.train", "1.5")),
    ("meshes.train.ranks", [0, HUGE], LayoutError, ("meshes.train", "1000")),
    ("meshes.serve.ranks", [[2, 3], [4]], LayoutError, ("meshes.serve", "ragged")),
    ("meshes.train.axes", {"tp": 3}, LayoutError, ("meshes.train", "3")),
    ("meshes.train.axes", {"tp": 0}, LayoutError, ("meshes.train", "0")),
    ("meshes.train.axes", {"dp": -1, "tp": -2}, LayoutError, ("meshes.train", "-1")),
    ("meshes.train.axes", {}, LayoutError, ("meshes.train", "[]")),
    ("meshes.train.axes", ["a", "b"], LayoutError, ("meshes.train", "['a', 'b']")),
    ("meshes.serve.axes", ["a", "a"], LayoutError, ("meshes.serve", "['a', 'a']")),
    ("meshes.serve.axes", {"dp": 4, "tp": 1}, LayoutError, ("meshes.serve", "[2, 2]")),
    ("tensors[0].name", "", SpecError, ("tensors[0]", "name", "''")),
    ("tensors[0].shape", [8, -8], SpecError, ("tensors[0]", "'w'", "-8")),
    ("tensors[0].shape", [8, HUGE], SpecError, ("tensors[0]", "'w'", "1000")),
    ("tensors[0].dtype", "float33", SpecError, ("'float33'",)),
    ("tensors[0].dtype", "", SpecError, ("''",)),
    ("tensors[0].src.mesh", "trian", SpecError, ("tensors[0].src.mesh", "'trian'", "train, serve")),
    ("tensors[0].src", [], SpecError, ("'w'", "src")),
    ("tensors[0].src.placements", [], LayoutError, ("tensors[0].src.placements", "0 placements")),
    ("tensors[0].src.placements", ["R", "R"], LayoutError, ("tensors[0].src.placements", "2 placements")),
    ("tensors[0].src.placements", ["S(2)"], LayoutError, ("'w'", "src", "S(2)", "2-d")),
    ("tensors[0].src.placements", ["S(-3)"], LayoutError, ("'w'", "src", "-3", "2-d")),
    ("tensors[0].src.placements", ["Partial()"], PlacementError, ("tensors[0].src", "'Partial()'")),
    ("tensors[0].src.placements", ["P"], PlacementError, ("tensors[0].src.placements", "'P'")),
    ("tensors[0].src.placements", ["shard 0"], PlacementError, ("tensors[0].src", "'shard 0'", "S(d)")),
    ("tensors[0].src.placements", ["_S(0, sf=0)"], PlacementError, ("tensors[0].src", "split factor 0")),
    ("tensors[0].src.placements", [f"S({'9' * 5000})"], PlacementError, ("tensors[0].src", "999")),
    ("tensors[0].dst.shape", [8, 9], ShapeMismatchError, ("tensors[0]", "[8, 8]", "[8, 9]")),
    ("tensors[0].dst.dtype", "float32", DtypeMismatchError, ("tensors[0]", "bfloat16", "float32", "cast")),
    ("topology.preset", "dgx-z9", TopologyError, ("'dgx-z9'", "dgx-h100")),
    ("topology.nodes", 0, TopologyError, ("topology.nodes", "0")),
    ("topology.gpus_per_domain", 4, TopologyError, ("gpus_per_domain 4", "dgx-h100")),
    ("topology.domains", [[0]], SpecError, ("topology.domains", "topology.preset")),
    ("topology", {}, SpecError, ("topology", "preset")),
    ("topology", {"domains": []}, TopologyError, ("no domains",)),
    ("topology", {"domains": [[0, 1], []]}, TopologyError, ("domain 1",)),
    ("topology", {"domains": [[0, 1], [1, 2]]}, TopologyError, ("GPU 1", "domain 0")),
    ("topology", {"domains": [[0, -1]]}, TopologyError, ("GPU -1",)),
    ("topology", {"domains": ["0-3"]}, TopologyError, ("rank 4", "4 GPUs")),
    ("topology", {"domains": ["0-x"]}, SpecError, ("topology.domains[0]", "'0-x'")),
    ("topology", {"domains": [[0, "1"]]}, SpecError, ("topology.domains[0]", "'1'")),
    ("topology", {"domains": [{"gpu": "0-5"}]}, SpecError, ("topology.domains[0]", "'gpu'")),
    ("topology", {"domains": ["0-5"], "nics": [{"gpus": "0-6"}]}, TopologyError, ("GPU 6",)),
    (
        "topology",
        {"domains": ["0-2", "3-5"], "nics": [{"gpus": [[2, 3]]}]},
        TopologyError,
        ("NIC 0", "[2, 3]"),
    ),
    ("topology", {"domains": ["0-5"], "nics": [{"gpus": [[]]}]}, TopologyError, ("NIC without GPUs",)),
    ("topology", {"domains": ["0-5"], "nic": {"bytes_per_s": 0}}, TopologyError, ("bytes_per_s", "0")),
    ("topology", {"domains": ["0-5"], "nic": {"bytes_per_s": -5}}, TopologyError, ("bytes_per_s", "-5")),
    ("topology", {"domains": ["0-5"], "nic": {"bytes_per_s": HUGE}}, TopologyError, ("bytes_per_s", "1000")),
    (
        "topology",
        {"domains": ["0-5"], "nic": {"bytes_per_s": "50G"}},
        SpecError,
        ("topology.nic.bytes_per_s",),
    ),
    (
        "topology",
        {"gpus_per_domain": 2, "nic": {"bytes_per_s": "50GB"}},
        SpecError,
        ("nic.bytes_per_s is '50GB'; expected a number of bytes per second, such as 50.0e+9",),
    ),
    (
        "topology",
        {"gpus_per_domain": 2, "nic": {"latency_s": "5us"}},
        SpecError,
        ("nic.latency_s is '5us'; expected a number of seconds, such as 5.0e-6",),
    ),
    (
        "topology",
        {"gpus_per_domain": 2, "nic": {"efficiency": "high"}},
        SpecError,
        ("nic.efficiency is 'high'; expected a number from 0 to 1, such as 0.95",),
    ),
    ("topology", {"domains": ["0-5"], "nvlink": {"efficiency": 1.5}}, TopologyError, ("efficiency", "1.5")),
    ("topology", {"domains": ["0-5"], "nvlink": {"efficiency": HUGE}}, TopologyError, ("efficiency", "1000")),
    ("topology", {"domains": ["0-5"], "nvlink": {"latency_s": -1}}, TopologyError, ("latency_s", "-1")),
    ("topology", {"domains": ["0-5"], "nvlink": {"latency_s": HUGE}}, TopologyError, ("latency_s", "1000")),
    ("topology", {"gpus_per_domain": 0}, TopologyError, ("topology.gpus_per_domain", "0")),
    ("topology", {"gpus_per_domain": 8, "nodes": 2}, SpecError, ("topology.nodes", "gpus_per_domain")),
    ("topology", {"gpus_per_domain": 8, "rank_map": [0, 1]}, TopologyError, ("rank 2", "rank_map")),
    ("topology", {"gpus_per_domain": 8, "rank_map": "0-4,4"}, TopologyError, ("rank_map", "GPU 4")),
    ("topology", {"gpus_per_domain": 8, "rank_map": "4-0"}, SpecError, ("topology.rank_map", "'4-0'")),
    ("topology", {"gpus_per_domain": 8, "rank_map": [0, 1, 2, 3, 4, -5]}, TopologyError, ("rank_map", "-5")),
    ("topology", {"file": "no/such/file.yaml"}, SpecError, ("no/such/file.yaml",)),
    ("topology", {"file": "nul\0.yaml"}, SpecError, ("topology.file",)),
    ("options.strategy", "fastest", SpecError, ("'fastest'", "optimal")),
    ("options.staging", 0, SpecError, ("options", "staging", "0")),
    ("options.staging", "-1", SpecError, ("options.staging", "'-1'")),
    ("options.staging", "12 bananas", SpecError, ("options.staging", "'12 bananas'")),
    ("options.staging", "1e3", SpecError, ("options.staging", "'1e3'")),
    ("options.staging", "9" * 400, SpecError, ("options", "staging", "999")),
    ("options.staging", HUGE, SpecError, ("options", "staging", "1000")),
    ("options.staging", 0.5, SpecError, ("options.staging", "0.5")),
    ("options.lag", 0, SpecError, ("options", "lag", "0")),
    ("options.lag", 2**40, SpecError, ("options", "lag", str(2**40))),
    ("options.min_message", -1, SpecError, ("options", "min_message", "-1")),
]


def compile_document(document: object) -> rp.Plan:
    return rp.compile(spec_from_dict(document))


@pytest.mark.parametrize(
    ("path", "value", "error", "said"), BAD, ids=[f"{p}={str(v)[:30]}" for p, v, _, _ in BAD]
)
def test_bad_values_are_refused_by_field_and_value(path, value, error, said):
    with pytest.raises(error) as caught:
        compile_document(changed(path, value))
    assert type(caught.value) is error
    message = str(caught.value)
    assert all(text in message for text in said), message
    assert "\n" not in message


@pytest.mark.parametrize("spec", ["spec.yaml", None, 3, {"version": 1}, good()], ids=str)
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(SpecError) as caught:
        rp.compile(spec)
    said = str(caught.value)
    assert said.startswith("spec is ")
    assert said.endswith("; expected a ReshardSpec, which ReshardSpec.load reads from a file")
    assert len(said) < 200


@pytest.mark.parametrize("strategy", ["fastest", "", 3, ["direct"]], ids=str)
def test_what_is_no_strategy_is_refused(strategy):
    with pytest.raises(SpecError, match=r"^strategy .* is unknown; expected one of optimal, direct, "):
        rp.compile(spec_from_dict(good()), strategy)


def test_two_tensors_of_one_name_are_refused():
    document = good()
    document["tensors"].append(document["tensors"][0])
    with pytest.raises(SpecError, match="tensor name 'w' is used twice"):
        spec_from_dict(document)


def test_a_cast_is_between_real_floating_point_types():
    document = changed("tensors[0].cast", value=True)
    for dtype in ("int16", "complex64", "uint4"):
        document["tensors"][0]["dst"]["dtype"] = dtype
        with pytest.raises(UnsupportedError, match=f"bfloat16 to {dtype}"):
            spec_from_dict(document)
    document["tensors"][0]["dst"]["dtype"] = "torch.bfloat16"
    [tensor] = spec_from_dict(document).tensors
    assert tensor.dtype == tensor.dst_dtype == "bfloat16"


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize(("field", "values"), [("shape", ([8, 8], [8, 9])), ("dtype", ("int8", "int16"))])
def test_layouts_of_one_side_must_agree(side, field, values):
    document = good()
    tensor = document["tensors"][0]
    entry = tensor[side]
    tensor[side] = [{**entry, field: value} for value in values]
    with pytest.raises((SpecError, ShapeMismatchError, DtypeMismatchError)) as caught:
        spec_from_dict(document)
    assert all(str(value) in str(caught.value) for value in values), str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "None"),
        ("hello", "'hello'"),
        ("- 1", "[1]"),
        ("version: [1", "line"),
        ("\tversion: 1", "line 1"),
        ("version: 1\nversion: 1", "line 2"),
        ("meshes: {a: 1, a: 2}", "'a' twice"),
        ("{version: 1, meshes: {m: {ranks: '0', ranks: '1'}}}", "'ranks' twice"),
        ("1: 2", "key 1"),
        ("? [a, b]\n: 1", "a sequence as a key"),
        ("2020-01-01: x", "key"),
        ("name: !!python/object/apply:os.getcwd []", "python/object"),
        ("a: 1\n--- \nb: 2", "document"),
        ("version: " + "9" * 5000, "not valid"),
        ("version: " + "[" * 20_000 + "]" * 20_000, "not valid"),
        ('{"version": "\x00"}', "not valid"),
    ],
)
def test_broken_yaml_is_refused_with_the_place(text, said):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ('{"version": 1,\n}', "line 2"),
        ('{"version": 1} x', "line 1"),
        ('{"version": 1, "version": 2}', "'version' is given twice"),
        ('{"meshes": {"a": 1, "a": 2}}', "'a' is given twice"),
        ("{'version': 1}", "line 1"),
        ("[" * 100_000, "nests too deeply"),
        ('{"version": ' + "9" * 5000 + "}", "not valid"),
    ],
)
def test_broken_json_is_refused_with_the_place(text, said, tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        rp.ReshardSpec.load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_numbers_that_are_not_finite_are_refused():
    for text in (".nan", ".inf", "-.inf"):
        for field in ("bytes_per_s", "efficiency", "latency_s"):
            document = DOCUMENT.replace(
                "{preset: dgx-h100, nodes: 2}", f"{{gpus_per_domain: 8, nic: {{{field}: {text}}}}}"
            )
            with pytest.raises(TopologyError, match=field):
                parse_spec(document)


def test_files_that_are_no_documents_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*nothing\.yaml: No such file"):
        rp.ReshardSpec.load(tmp_path / "nothing.yaml")
    with pytest.raises(SpecError, match=r"cannot read .*: it is not a regular file"):
        rp.ReshardSpec.load(tmp_path)
    binary = tmp_path / "weights.yaml"
    binary.write_bytes(b"\x93NUMPY\xff\xfe\x00")
    with pytest.raises(SpecError, match="not a text file"):
        rp.ReshardSpec.load(binary)


OVERSIZED = {
    "split factor": ("tensors[0].src.placements", ["_S(0, sf=1000000000)"]),
    "nodes": ("topology.nodes", 10**12),
    "domain size": ("topology", {"gpus_per_domain": 10**12}),
    "mapped GPU": ("topology", {"gpus_per_domain": 8, "rank_map": [0, 1, 2, 3, 4, 10**12]}),
    "lag": ("options.lag", 10**9),
    "ranks as text": ("meshes.train.ranks", "0-99999999999"),
}

GUARDED = """
import json, resource, sys
limit = 2 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import reshard_planner as rp
from reshard_planner.spec import parse_spec
try:
    rp.compile(parse_spec(sys.stdin.read()))
except rp.InputError as error:
    print(type(error).__name__, error)
"""


def run_guarded(text: str) -> str:
    """Compile a document in a process of little memory and time; returns its refusal."""
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], input=text, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.parametrize("name", OVERSIZED)
def test_a_typing_error_cannot_take_all_memory_or_time(name):
    refused = run_guarded(json.dumps(changed(*OVERSIZED[name])))
    assert "Error" in refused or name == "split factor"  # parts beyond the extent are simply empty


def test_references_in_yaml_cannot_take_all_memory_or_time():
    levels = [f"&l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    bomb = "[&l0 [0, 1], " + ", ".join(levels) + "]"
    assert "Error" in run_guarded(DOCUMENT.replace('"0-1"', bomb))
    assert "Error" in run_guarded(DOCUMENT.replace('"0-1"', "&a [*a, *a]"))


HALF = "\\ud800"
"""JSON's escape of half a surrogate pair, which is no character."""


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(good()).replace('"w"', f'"{HALF}"'),
        json.dumps(good()).replace('"train"', f'"{HALF}"'),
        json.dumps(good()).replace('"version"', f'"{HALF}"'),
        json.dumps(good()).replace('"bfloat16"', f'"{HALF}"'),
    ],
)
def test_half_surrogate_pairs_are_refused_or_kept_but_never_escape(text, tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(text)
    with suppress(rp.InputError):
        plan = rp.compile(rp.ReshardSpec.load(path))
        plan.save(tmp_path / "plan.reshard")
        assert rp.Plan.load(tmp_path / "plan.reshard").digest == plan.digest


@pytest.mark.parametrize("depth", [9, 100, 600, 5000])
def test_ranks_that_nest_too_deep_are_refused(depth):
    ranks: object = [0, 1]
    for _ in range(depth):
        ranks = [ranks]
    with pytest.raises((LayoutError, SpecError), match=r"nest|deep"):
        spec_from_dict(changed("meshes.train.ranks", ranks))


EXPENSIVE = {
    "interleaved layouts": """\
version: 1
meshes: {a: {ranks: "0-1", axes: {x: 2}}, b: {ranks: "2-3", axes: {x: 2}}}
topology: {gpus_per_domain: 2}
tensors:
  - {name: w, shape: [4004000, 4], dtype: bfloat16,
     src: {mesh: a, placements: ["_S(0, sf=2000)"]}, dst: {mesh: b, placements: ["_S(0, sf=2001)"]}}
""",
    "layouts cut to dust": """\
version: 1
meshes: {a: {ranks: "0-1", axes: {x: 2}}, b: {ranks: "2-3", axes: {x: 2}}}
topology: {gpus_per_domain: 2}
tensors:
  - {name: w, shape: [100000, 100000], dtype: bfloat16,
     src: {mesh: a, placements: ["_S(0, sf=20000)"]}, dst: {mesh: b, placements: ["_S(1, sf=20001)"]}}
""",
    "tiny staging": """\
version: 1
meshes: {a: {ranks: "0-7", axes: {x: 8}}, b: {ranks: "8-15", axes: {x: 8}}}
topology: {gpus_per_domain: 8}
tensors:
  - {name: w, shape: [1000000, 4096], dtype: bfloat16,
     src: {mesh: a, placements: ["S(0)"]}, dst: {mesh: b, placements: ["S(1)"]}}
options: {staging: 64KiB}
""",
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_layouts_are_planned_or_refused_in_bounded_memory_and_time(name):
    refused = run_guarded(EXPENSIVE[name])
    assert not refused or "Error" in refused


SCALARS = st.none() | st.booleans() | st.integers(-99, 99) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(VALUES, st.sampled_from(sorted({path for path, _, _, _ in BAD})))
def test_no_value_of_any_field_escapes_as_another_error(value, path):
    with suppress(rp.InputError):
        compile_document(changed(path, value))
