"""``reshard-planner model`` on bad input: one sentence on stderr, exit code 2, and nothing written."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import assert_refused, call
from test_cli_model import FAMILIES, GROUPS, SERVE, TINY, TRAIN, written

from reshard_planner.cli import main
from reshard_planner.models.parallelism import FRAMEWORKS


def changed(**fields: object) -> dict[str, object]:
    """The tiny configuration with other values; a field that is given as ``...`` is left out."""
    return {name: value for name, value in {**TINY, **fields}.items() if value is not ...}


def serve(text: str) -> tuple[str, ...]:
    return ("--train", TRAIN, "--serve", text)


def train(text: str) -> tuple[str, ...]:
    return ("--train", text, "--serve", SERVE)


def topology(text: str) -> tuple[str, ...]:
    return (*GROUPS, "--topology", text)


BAD_CONFIGS = {
    "unknown family": (changed(model_type="gpt2"), ["model_type", "'gpt2'", "qwen3_moe"]),
    "no family": (changed(model_type=...), ["no model", "model_type"]),
    "missing field": (changed(hidden_size=...), ["lacks the field 'hidden_size'"]),
    "wrong type": (changed(hidden_size="64"), ["hidden_size is '64'", "whole number"]),
    "a bool is no number": (changed(vocab_size=True), ["vocab_size is True"]),
    "a float is no number": (changed(vocab_size=1e3), ["vocab_size is 1000.0"]),
    "nothing of it": (changed(num_experts=0), ["num_experts is 0", "at least 1"]),
    "unknown meaning": (changed(mlp_only_layers=[5]), ["mlp_only_layers is [5]", "from 0 to 1"]),
    "heads that share no keys": (
        changed(num_key_value_heads=3),
        ["num_key_value_heads is 3", "divisor of 8"],
    ),
    "unknown dtype": (changed(dtype="bf16"), ["'bf16'"]),
    "too many layers": (changed(num_hidden_layers=10**9), ["num_hidden_layers is 1000000000", "at most"]),
    "too many experts": (changed(num_experts=10**300), ["num_experts is 1000", "at most"]),
    "too large": (changed(hidden_size=10**30), ["model.embed_tokens.weight", "bytes together"]),
    "more digits than Python writes": (
        changed(hidden_size=10**4000, moe_intermediate_size=10**4000, head_dim=10**4000),
        ["bytes together"],
    ),
    "a list of nothing": ([], ["empty list"]),
    "a list of something else": ([{"name": "w"}], ["[0]", "shape"]),
    "a size in a list": ([{"name": "w", "shape": [10**4000, 2], "dtype": "half"}], ["bytes together"]),
    "a number": (4, ["no model"]),
}

BAD_ARGUMENTS = {
    "train alone": (("--train", TRAIN), ["--serve is missing"]),
    "serve alone": (("--serve", SERVE), ["--train is missing"]),
    "output alone": (("-o", "p"), ["--train and --serve are missing"]),
    "spec alone": (("--spec", "s"), ["--train and --serve are missing"]),
    "heads that tp does not divide": (serve("vllm tp=3"), ["vllm tp is 3"]),
    "ep that does not divide": (train("megatron ep=3"), ["megatron ep is 3", "8 experts"]),
    "ep without tp": (serve("vllm tp=2 dp=3 ep=4"), ["vllm ep is 4", "multiple of tp=2"]),
    "gpus that do not match": (train("megatron tp=2 dp=2 gpus=8"), ["gpus is 8", "is 4"]),
    "gpus that do not divide": (serve("vllm tp=2 gpus=5"), ["--serve: vllm gpus is 5", "multiple of 2"]),
    "more stages than layers": (train("megatron pp=3"), ["megatron pp is 3", "2 layers"]),
    "a rank twice": (serve("vllm tp=2 ranks=8,8"), ["--serve: vllm ranks is '8,8'", "once"]),
    "too few ranks": (serve("vllm tp=4 ranks=8-10"), ["--serve: vllm is given 3 ranks; expected 4"]),
    "no ranks": (serve("vllm ranks=x"), ["--serve: vllm ranks is 'x'", "0-7"]),
    "engines that share a rank": (
        (*serve("vllm tp=2 ranks=8-9"), "--serve", "vllm tp=2 ranks=9-10"),
        ["rank 9", "buffer"],
    ),
    "unknown option": (train("megatron tpp=2"), ["--train: megatron has no option 'tpp=2'", "tp, cp"]),
    "an option without value": (train("megatron tp"), ["'tp'", "key=value"]),
    "an option twice": (train("megatron tp=1 tp=2"), ["megatron tp is given twice"]),
    "an option that is no number": (train("megatron tp=0"), ["megatron tp is '0'", "at least 1"]),
    "unknown framework": (serve("sglang tp=2"), ["--serve is 'sglang tp=2'", *FRAMEWORKS]),
    "no framework": (serve(""), ["--serve is ''", *FRAMEWORKS]),
    "more ranks than any cluster has": (train("megatron tp=9999999 dp=9999999"), ["GPUs", "at most 1048576"]),
    "unknown dtype": (train(f"{TRAIN} dtype=bf16"), ["--train: megatron dtype is 'bf16'"]),
    "a dtype that nothing is converted to": (train(f"{TRAIN} dtype=int8"), ["dtype is 'int8'", "floating"]),
    "engines of two dtypes": (
        (*GROUPS, "--serve", "vllm dtype=float32"),
        ["serve", "model.embed_tokens.weight", "bfloat16 and float32"],
    ),
    "a framework that needs roles": (serve("plain file=p.yaml"), ["p.yaml", "No such file"]),
    "patterns without a file": (serve("plain"), ["--serve: plain lacks the option file"]),
    "patterns that are none": (serve("plain file=tiny.json"), ["--serve: tiny.json", "'model_type'"]),
    "topology too small": (topology("dgx-h100 nodes=1"), ["rank 8", "8 GPUs"]),
    "unknown topology": (topology("dgx-h10"), ["--topology is 'dgx-h10'", "dgx-h100"]),
    "no topology": (topology(""), ["--topology is ''"]),
    "misspelt option of a topology": (
        topology("gb200-nvl72 gpus_per_domian=8"),
        ["--topology has 'gpus_per_domian=8'", "gpus_per_domain=N"],
    ),
    "option of a topology twice": (topology("dgx-h100 nodes=2 nodes=3"), ["'nodes=3'", "once"]),
    "domains of nothing": (topology("gpus_per_domain=0"), ["gpus_per_domain is 0"]),
    "domains that the machine lacks": (topology("dgx-h100 gpus_per_domain=4"), ["4", "dgx-h100"]),
    "an endless number": (topology(f"gpus_per_domain={'1' * 5000}"), ["--topology has"]),
    "an endless name": (topology("x" * 5000), ["--topology is"]),
    "a file that is no topology": (topology("tiny.json"), ["tiny.json", "'model_type'"]),
    "unknown strategy": ((*GROUPS, "--strategy", "best"), ["'best'", "optimal"]),
    "staging that is no size": ((*GROUPS, "--staging", "much"), ["--staging", "'much'"]),
    "staging too small": ((*GROUPS, "--staging", "64"), ["staging is 64 bytes"]),
    "no such dtype": (("--dtype", "bf16"), ["'bf16'"]),
    "no such override": (("--override", "o.yaml"), ["o.yaml", "No such file"]),
    "output in no folder": ((*GROUPS, "-o", "no/p", "--spec", "s"), ["--output no/p", "no folder no"]),
    "spec in no folder": ((*GROUPS, "-o", "p", "--spec", "no/s"), ["--spec no/s", "no folder no"]),
    "output that is a folder": ((*GROUPS, "-o", "."), ["--output .", "a folder"]),
    "output that is the configuration": (
        (*GROUPS, "-o", "tiny.json"),
        ["--output tiny.json", "another file"],
    ),
    "spec that is the plan": ((*GROUPS, "-o", "p", "--spec", "p"), ["--output p", "another file"]),
    "output of an endless name": ((*GROUPS, "-o", "x" * 5000), ["--output xxx"]),
}


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", sorted(BAD_CONFIGS))
def test_a_bad_configuration_is_refused_and_nothing_is_written(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw, mentions = BAD_CONFIGS[name]
    path = written(tmp_path, raw, "c.json")
    for more in ((), ("--json",), (*GROUPS, "-o", "p", "--spec", "s")):
        assert_refused(call(capsys, "model", path, *more), *mentions)
    assert names(tmp_path) == ["c.json"]


@pytest.mark.parametrize("name", sorted(BAD_ARGUMENTS))
def test_bad_arguments_are_refused_and_nothing_is_written(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, TINY)
    arguments, mentions = BAD_ARGUMENTS[name]
    before = (tmp_path / "tiny.json").read_bytes()
    more = (
        () if {"-o", "--spec"} & set(arguments) or "--serve" not in arguments else ("-o", "p", "--spec", "s")
    )
    assert_refused(call(capsys, "model", "tiny.json", *arguments, *more), *mentions)
    assert_refused(call(capsys, "model", "tiny.json", *arguments, *more, "--json"), *mentions)
    assert names(tmp_path) == ["tiny.json"]
    assert (tmp_path / "tiny.json").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "mentions"),
    [
        ("{experts: 4}", ["override 'experts' is not read", "num_experts"]),
        ("{hidden_size: many}", ["hidden_size is 'many'"]),
        ("[1]", ["o.yaml", "no mapping"]),
        ("{", ["o.yaml", "YAML"]),
    ],
)
def test_a_bad_override_is_refused(override, mentions, tmp_path, capsys):
    (tmp_path / "o.yaml").write_text(override, encoding="utf-8")
    config = written(tmp_path, TINY)
    assert_refused(call(capsys, "model", config, "--override", tmp_path / "o.yaml"), *mentions)


def test_values_that_nest_as_deeply_as_can_be_read_are_refused(tmp_path, capsys):
    path = tmp_path / "c.json"
    limit = sys.getrecursionlimit()
    for depth in range(limit - 250, limit):
        value = "[" * depth + "]" * depth
        path.write_text(json.dumps(changed(hidden_size="HERE")).replace('"HERE"', value), encoding="utf-8")
        assert_refused(call(capsys, "model", path), "c.json")


def test_a_model_without_roles_is_not_placed_by_frameworks(tmp_path, capsys):
    path = written(tmp_path, [{"name": "w", "shape": [8, 4], "dtype": "half"}], "list.json")
    assert_refused(call(capsys, "model", path, *GROUPS), "megatron", "roles", "w has none", "plain")


@pytest.mark.parametrize("path", ["nowhere", "nowhere/config.json", ".", os.devnull, "x" * 5000, "a\0b"])
def test_what_is_no_model_is_refused(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(call(capsys, "model", path))


def entry(*offsets: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "nbytes", "mentions"),
    [
        ({"w": entry(0, 8, shape=(3,))}, 8, ["'w'", "expected 12 bytes"]),
        ({"w": entry(0, 8)}, 4, ["has 4 bytes of data", "have 8"]),
        ({"w": entry(0, 8)}, 12, ["has 12 bytes of data", "have 8"]),
        ({"v": entry(0, 8), "w": entry(4, 12)}, 12, ["'w' begins at byte 4", "'v' ends at 8"]),
        ({"v": entry(0, 8), "w": entry(9, 17)}, 17, ["'w' begins at byte 9", "expected 8"]),
        ({"w": entry(0, 8, dtype="F12")}, 8, ["'F12'", "F32"]),
        (b"{", 0, ["header", "JSON"]),
        (None, 0, ["header has 1000 bytes"]),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_whose_header_lies_is_refused(beside, header, nbytes, mentions, tmp_path, capsys):
    text = header if isinstance(header, bytes) else json.dumps(header or {}).encode()
    length = 1000 if header is None else len(text)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + text + bytes(nbytes))
    if beside:
        written(tmp_path, TINY, "config.json")
    for given_path in (path, tmp_path):
        assert_refused(call(capsys, "model", given_path, *GROUPS), "model.safetensors", *mentions)


# whatever is given


def outcome(*arguments: str) -> tuple[int, str, str]:
    """One command within hypothesis, which shares pytest's own capture between examples."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["model", *arguments])
    return code, out.getvalue(), err.getvalue()


def assert_planned_or_refused(folder: Path, *arguments: str) -> int:
    """Exit code 0 and no error, or 2 and one sentence; a plan is written only in the first case."""
    plan = folder / "p.reshard"
    plan.unlink(missing_ok=True)
    code, out, err = outcome(*arguments, "-o", str(plan), "--staging", "1MiB")
    if code == 0:
        assert (err, plan.exists()) == ("", True)
    else:
        assert_refused((code, out, err))
        assert not plan.exists()
    assert not list(folder.glob(".*.tmp"))
    return code


numbers = st.integers(0, 9).map(str)
values = numbers | st.sampled_from(
    ("true", "false", "float32", "half", "linear", "round_robin", "-1", "", "1e3")
)
words = st.sampled_from(
    (
        *("tp", "dp", "ep", "etp", "cp", "pp", "vpp", "first", "last", "grouped", "pad", "redundant"),
        *("replicas", "expert_placement", "dtype", "gpus", "ranks", "file", "tensor", ""),
    )
)
options = st.lists(st.tuples(words, values).map("=".join), max_size=4) | st.lists(
    st.text(max_size=6), max_size=3
)
sensible = st.sampled_from((*FRAMEWORKS[:3], *FRAMEWORKS[:3], "plain"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fuzz")
    written(found, {**TINY, "hidden_size": 4, "moe_intermediate_size": 4, "head_dim": 1, "vocab_size": 9})
    return found


@given(st.data())
def test_any_parallelism_is_planned_or_refused(folder, data):
    given_text = [
        " ".join([data.draw(sensible | st.text(max_size=5)), *data.draw(options)]) for _ in range(2)
    ]
    side = data.draw(st.sampled_from(("--train", "--serve")))
    texts = {"--train": "fsdp dp=2", "--serve": "vllm tp=2", side: given_text[0]}
    if data.draw(st.booleans()):
        texts = dict(zip(("--train", "--serve"), given_text, strict=True))
    arguments = [f"{name}={text}" for name, text in texts.items()]
    assert_planned_or_refused(folder, str(folder / "tiny.json"), *arguments)


@given(st.data())
def test_any_sizes_of_the_frameworks_are_planned_or_refused(folder, data):
    def draw(framework: str, *keys: str) -> str:
        sizes = data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from((1, 2, 3, 4)), max_size=3))
        return " ".join([framework, *(f"{key}={size}" for key, size in sizes.items())])

    before = draw("megatron", "tp", "ep", "etp", "cp", "pp", "dp", "pad")
    if data.draw(st.booleans()):
        before = draw("fsdp", "dp", "tp", "replicas")
    after = draw("vllm", "tp", "dp", "ep", "redundant")
    assert_planned_or_refused(folder, str(folder / "tiny.json"), f"--train={before}", f"--serve={after}")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from((16, 10**5, 2**31, 2**63, 10**40, 10**4000))
    | st.floats()
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=settings().max_examples * 2)
@given(st.sampled_from(sorted(FAMILIES)), json_values, st.data())
def test_any_value_of_any_field_is_read_or_refused(folder, family, value, data):
    raw = dict(FAMILIES[family]["config"])
    field = data.draw(st.sampled_from(sorted(raw)))
    section = (
        data.draw(st.sampled_from(sorted(raw[field])))
        if isinstance(raw[field], dict) and raw[field]
        else None
    )
    raw[field] = value if section is None else {**raw[field], section: value}
    path = written(folder, raw, "c.json")
    more = data.draw(st.sampled_from(((), ("--json",), ("--mtp",), ("--dtype", "half"))))
    code, out, err = outcome(str(path), *more)
    if code:
        assert_refused((code, out, err))
    elif isinstance(value, int) and value < 100:
        assert_planned_or_refused(folder, str(path), "--train", "megatron tp=2", "--serve", "vllm tp=2")
