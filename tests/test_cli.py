"""The command line: what every verb prints, its exit codes, and bad input in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import reshard_planner as rp
from reshard_planner.cli import main
from reshard_planner.cli.verbs import VERBS
from reshard_planner.routing import STRATEGIES

REPLICAS = """\
version: 1
meshes:
  train: {ranks: "0-3", axes: {tp: 4}}
  serve: {ranks: [[4, 5], [6, 7]], axes: [dp, tp]}
topology: {gpus_per_domain: 4}
tensors:
  - name: w
    shape: [8, 8]
    dtype: bfloat16
    src: {mesh: train, placements: [S(0)]}
    dst: {mesh: serve, placements: [R, S(0)]}
"""

ROWS_TO_COLUMNS = """\
version: 1
meshes:
  train: {ranks: "0-1", axes: {tp: 2}}
  serve: {ranks: [2, 3, 4, 5], axes: {tp: 4}}
topology: {preset: dgx-h100, nodes: 2}
tensors:
  - name: w
    shape: [8, 8]
    dtype: bfloat16
    src: {mesh: train, placements: [S(0)]}
    dst: {mesh: serve, placements: [S(1)]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(REPLICAS)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def result(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    """The JSON that one successful command prints."""
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def assert_refused(outcome: tuple[int, str, str], *mentions: str) -> None:
    """Exit code 2, one sentence on stderr that names all of these, nothing else."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    for mention in mentions:
        assert mention in err


def test_rows_to_columns_takes_eight_transfers_of_sixteen_bytes(tmp_path, capsys):
    spec, plan = tmp_path / "s.yaml", tmp_path / "p.reshard"
    spec.write_text(ROWS_TO_COLUMNS)
    certificate = result(capsys, "compile", spec, "-o", plan)
    assert certificate["transfers"] == 8
    code, out, _ = call(capsys, "ops", plan)
    ops = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {(op["src"], op["dst"]) for op in ops} == {(src, dst) for src in (0, 1) for dst in (2, 3, 4, 5)}
    for op in ops:
        assert op["nbytes"] == 16
        assert [hi - lo for lo, hi in zip(op["lo"], op["hi"], strict=True)] == [4, 2]
        assert not op["scratch"]


def test_replicas_take_four_network_transfers_and_direct_takes_eight(spec, tmp_path, capsys):
    compared = result(capsys, "compare", spec)
    network = {name: s["transfers_by_medium"]["network"] for name, s in compared["strategies"].items()}
    assert network["optimal"] == 4
    assert network["direct"] == 8
    assert compared["strategies"]["optimal"]["gap"] == 0
    assert list(compared["strategies"]) == list(STRATEGIES)
    plan = tmp_path / "p.reshard"
    call(capsys, "compile", spec, "-o", plan)
    ops = [json.loads(line) for line in call(capsys, "ops", plan)[1].splitlines()]
    crossing = [op for op in ops if op["medium"] == "network"]
    assert sorted(op["src"] for op in crossing) == [0, 1, 2, 3]
    assert sorted(op["dst"] in (4, 5) for op in crossing) == [False, False, True, True]
    assert {op["medium"] for op in ops} == {"network", "nvlink"}


def test_compile_prints_every_figure_of_the_contract(spec, capsys):
    found = result(capsys, "compile", spec)
    assert found["tensors"] == 1
    assert set(found["payload"]) == {
        "network_nbytes",
        "minimum_network_nbytes",
        "nvlink_nbytes",
        "local_nbytes",
        "logical_nbytes",
    }
    assert found["payload"]["logical_nbytes"] == 2 * 8 * 8 * 2
    assert {"time_s", "t0_s", "term", "resource"} <= set(found["bound"])
    for port in ("busiest_nic", "busiest_nvlink", "busiest_uplink"):
        assert set(found[port]) == {"resource", "nbytes", "time_s"}
    assert set(found["schedule"]) == {
        "slots",
        "time_s",
        "gap",
        "message_cost_s",
        "messages",
        "peers_max",
        "peers_in_slot_max",
    }
    assert set(found["peers"]) == {"network_max", "nvlink_max", "connection_nbytes"}
    assert found["compile_s"] > 0
    assert len(found["digest"]) == 64
    assert {"gap", "transfers", "staging_nbytes"} <= set(found)


def test_tiles_lists_boxes_per_rank_and_nothing_for_empty_shards(tmp_path, capsys):
    spec = tmp_path / "s.yaml"
    spec.write_text(REPLICAS.replace("[8, 8]", "[5, 2]"))
    tiles = result(capsys, "tiles", spec, "--tensor", "w")
    assert tiles["w"]["src"] == {
        "0": [[[0, 2], [0, 2]]],
        "1": [[[2, 4], [0, 2]]],
        "2": [[[4, 5], [0, 2]]],
        "3": [],
    }
    assert tiles["w"]["dst"]["6"] == [[[0, 3], [0, 2]]]


@pytest.mark.parametrize("suffix", [".reshard", ".json", ".txt"])
def test_tiles_of_a_plan_are_those_of_its_spec(suffix, spec, tmp_path, capsys):
    plan = tmp_path / f"plan{suffix}"
    assert call(capsys, "compile", spec, "-o", plan)[0] == 0
    for more in ([], ["--json"]):
        assert call(capsys, "tiles", plan, *more) == call(capsys, "tiles", spec, *more)


def test_ops_of_one_rank_and_tensor_are_those_of_the_plan_that_name_them(plan, capsys):
    every = call(capsys, "ops", plan)[1].splitlines()
    mine = call(capsys, "ops", plan, "--rank", "4", "--tensor", "w")[1].splitlines()
    assert mine == [line for line in every if 4 in (json.loads(line)["src"], json.loads(line)["dst"])]
    numbers = [json.loads(line)["op"] for line in every]
    assert len(set(numbers)) == len(numbers)
    assert {json.loads(line)["parent"] for line in every} <= {None, *numbers}


@pytest.mark.parametrize("suffix", [".reshard", ".json", ".txt"])
def test_every_form_of_a_plan_is_verified_shown_and_run(spec, tmp_path, capsys, suffix):
    path = tmp_path / f"plan{suffix}"
    assert call(capsys, "compile", spec, "-o", path)[0] == 0
    assert result(capsys, "verify", path)["ok"] is True
    assert "route 0: piece 0 r0 -> r4 network inject" in call(capsys, "show", path)[1]
    assert result(capsys, "run", path)["correct"] is True


def test_show_prints_text_that_is_a_plan_again(plan, tmp_path, capsys):
    again = tmp_path / "again.txt"
    again.write_text(call(capsys, "show", plan)[1])
    assert rp.Plan.load(again) == rp.Plan.load(plan)


def test_show_selects_rank_and_slot(plan, capsys):
    text = call(capsys, "show", plan, "--rank", "4", "--slot", "2")[1]
    assert "send to r6" in text
    assert "slot 0" not in text
    assert {op["slot"] for op in result(capsys, "show", plan, "--slot", "2")} == {2}
    assert result(capsys, "show", plan)["digest"] == rp.Plan.load(plan).digest


def test_run_counts_the_planned_bytes(plan, capsys):
    found = result(capsys, "run", plan)
    assert found["correct"] is True
    assert found["measured"]["network_nbytes"] == 128
    assert found["measured"]["nvlink_nbytes"] == 128
    assert found["measured"]["elapsed_s"] >= 0


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_spec_is_run_with_any_strategy(spec, capsys, strategy):
    assert result(capsys, "run", spec, "--strategy", strategy)["correct"] is True


def test_draw_needs_no_program(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    for name, picture, start in (
        ("t.dot", "transfers", "digraph"),
        ("t.svg", "transfers", "<?xml"),
        ("l.svg", "layouts", "<svg"),
        ("l.txt", "layouts", "Layouts of w"),
        ("p.svg", "pipeline", "<svg"),
    ):
        path = tmp_path / name
        assert call(capsys, "draw", plan, "-o", path, "--picture", picture)[0] == 0
        assert path.read_text(encoding="utf-8").lstrip().startswith(start)
    assert_refused(call(capsys, "draw", plan, "-o", tmp_path / "t.png"), "dot", "graphviz", ".svg")
    assert not (tmp_path / "t.png").exists()


def test_a_plan_that_fails_its_check_exits_with_one(plan, tmp_path, capsys):
    raw = json.loads(rp.Plan.load(plan).to_json())
    raw["tables"]["routes"]["dst"][0] = 5
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(raw))
    code, out, err = call(capsys, "verify", bad)
    assert (code, out) == (1, "")
    assert "rank 4" in err
    for verb in ("show", "ops", "run"):
        code, out, err = call(capsys, verb, bad)
        assert (code, out) == (1, "")
        assert "digest" in err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_help_of_every_verb_shows_examples(verb, capsys):
    code, out, _ = call(capsys, verb, "--help")
    assert code == 0
    assert f"reshard-planner {verb}" in out
    assert "examples:" in out
    assert "--json" in out


def test_help_and_version_exit_with_zero(capsys):
    assert call(capsys, "--help")[0] == 0
    assert call(capsys, "--version")[1].startswith("reshard-planner 0.")


def edited(**changes: Any) -> str:
    """The spec of four ranks and two replicas with some fields replaced, or left out if None."""
    raw = yaml.safe_load(REPLICAS)
    for path, value in changes.items():
        *outer, last = path.split("__")
        inner = raw
        for key in outer:
            inner = inner[int(key) if key.isdigit() else key]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return yaml.safe_dump(raw)


BAD_SPECS = {
    "no version": (edited(version=None), ["version"]),
    "another version": (edited(version=2), ["version", "2", "expected 1"]),
    "no meshes": (edited(meshes=None), ["meshes"]),
    "no tensors": (edited(tensors=None), ["tensors"]),
    "no name": (edited(tensors__0__name=None), ["tensors[0]", "name"]),
    "no shape": (edited(tensors__0__shape=None), ["tensors[0]", "shape"]),
    "no dtype": (edited(tensors__0__dtype=None), ["tensors[0]", "dtype"]),
    "no placements": (edited(tensors__0__src__placements=None), ["tensors[0].src", "placements"]),
    "unknown field": (edited(tensor=[]), ["'tensor'", "meshes"]),
    "unknown field of a tensor": (edited(tensors__0__layout="x"), ["tensors[0]", "'layout'"]),
    "unknown option": (edited(options={"lags": 3}), ["options", "'lags'"]),
    "bad option": (edited(options={"lag": 0}), ["lag", "0"]),
    "bad size": (edited(options={"staging": "much"}), ["options.staging", "'much'"]),
    "tiny staging": (edited(options={"staging": 1}), ["options.staging", "1 bytes"]),
    "unknown strategy": (edited(options={"strategy": "best"}), ["strategy", "'best'", "optimal"]),
    "shape of text": (edited(tensors__0__shape="8x8"), ["tensors[0].shape", "'8x8'"]),
    "negative size": (edited(tensors__0__shape=[8, -1]), ["tensors[0]", "-1"]),
    "huge tensor": (edited(tensors__0__shape=[2**40, 2**40]), ["tensors[0]", "larger than"]),
    "unknown dtype": (edited(tensors__0__dtype="bf16"), ["tensors[0]", "'bf16'"]),
    "unknown mesh": (edited(tensors__0__src__mesh="trian"), ["tensors[0].src.mesh", "'trian'", "train"]),
    "partial": (edited(tensors__0__src__placements=["P"]), ["tensors[0].src", "'P'", "partial"]),
    "unknown placement": (
        edited(tensors__0__src__placements=["T(0)"]),
        ["tensors[0].src.placements", "'T(0)'"],
    ),
    "placement count": (
        edited(tensors__0__dst__placements=["R"]),
        ["tensors[0].dst", "1 placement", "2 axes"],
    ),
    "dim out of range": (edited(tensors__0__src__placements=["S(2)"]), ["tensors[0]", "dim 2", "2-d"]),
    "duplicate ranks": (edited(meshes__train__ranks=[0, 1, 1, 3]), ["meshes.train", "duplicate rank 1"]),
    "negative rank": (edited(meshes__train__ranks=[0, 1, -2, 3]), ["meshes.train", "-2"]),
    "ragged mesh": (edited(meshes__serve__ranks=[[4, 5], [6]]), ["meshes.serve", "ragged"]),
    "axes do not fit": (edited(meshes__train__axes={"tp": 3}), ["meshes.train", "3 ranks", "4 are given"]),
    "bad range": (edited(meshes__train__ranks="0-x"), ["meshes.train.ranks", "'0-x'"]),
    "rank outside": (edited(topology={"domains": [[0, 1], [2, 3, 4]]}), ["rank 5", "5 GPUs"]),
    "rank outside preset": (edited(topology={"preset": "dgx-h100", "nodes": 0}), ["nodes", "0"]),
    "unknown preset": (edited(topology={"preset": "dgx-z1", "nodes": 1}), ["'dgx-z1'", "dgx-h100"]),
    "two topologies": (
        edited(topology={"preset": "dgx-h100", "domains": [[0]]}),
        ["topology.domains", "preset"],
    ),
    "GPU in two domains": (edited(topology={"domains": [[0, 1], [1, 2]]}), ["GPU 1"]),
    "no such topology file": (edited(topology={"file": "nowhere.yaml"}), ["nowhere.yaml"]),
    "shapes differ": (
        edited(tensors__0__dst__shape=[8, 9]),
        ["tensors[0]", "source shape [8, 8]", "destination shape [8, 9]"],
    ),
    "both sides differ from the tensor": (
        edited(tensors__0__src__shape=[4, 4], tensors__0__dst__shape=[4, 4]),
        ["tensors[0].shape is [8, 8]", "[4, 4]"],
    ),
    "both dtypes differ from the tensor's": (
        edited(tensors__0__src__dtype="half", tensors__0__dst__dtype="float16"),
        ["tensors[0].dtype is 'bfloat16'", "'float16'"],
    ),
    "dtypes differ": (
        edited(tensors__0__dst__dtype="float32"),
        ["tensors[0]", "bfloat16", "float32", "cast"],
    ),
    "cast of integers": (
        edited(tensors__0__dst__dtype="int32", tensors__0__cast=True),
        ["tensors[0]", "cast from bfloat16 to int32", "floating-point"],
    ),
    "storage of nothing": (
        edited(tensors__0__src__storage=[]),
        ["tensors[0]", "rank 0", "0 elements", "placements give it 16"],
    ),
    "sub-byte cut": (
        edited(tensors__0__dtype="uint4", tensors__0__src__placements=["S(1)"], tensors__0__shape=[2, 9]),
        ["tensors[0]", "uint4", "within a byte"],
    ),
    "names twice": (
        REPLICAS + REPLICAS.partition("tensors:\n")[2],
        ["'w'", "twice"],
    ),
    "broken YAML": ("version: [1", ["YAML"]),
    "a key twice": (REPLICAS + "version: 1\n", ["'version'", "twice"]),
    "a list": ("- 1\n", ["mapping"]),
    "nothing": ("", ["None", "mapping"]),
    "a tag that does not fit": ('version: !!bool "x"\n', ["YAML", "tag"]),
    "a date that is none": ('version: !!timestamp "x"\n', ["YAML", "tag"]),
    "a list as a key": ("? [1, 2]\n: 1\n", ["line 1", "sequence", "key"]),
    "GPU twice among many": (
        edited(topology={"gpus_per_domain": 8, "rank_map": "0-200000,200000"}),
        ["rank_map", "GPU 200000", "twice"],
    ),
    "more ranks than any cluster has": (edited(meshes__train__ranks="0-16777215"), ["ranks", "16777215"]),
    "python tags": ("version: !!python/object/apply:os.system ['true']\n", ["YAML"]),
}


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        (name, verb)
        for name in sorted(BAD_SPECS)
        for verb in ("compile", "compare", "run")
        if (name, verb) != ("tiny staging", "compare")
    ],
)
def test_a_bad_spec_is_refused_in_one_sentence_and_nothing_is_written(name, verb, tmp_path, capsys):
    text, mentions = BAD_SPECS[name]
    path, output = tmp_path / "spec.yaml", tmp_path / "plan.reshard"
    path.write_text(text)
    extra = ("-o", output) if verb == "compile" else ()
    assert_refused(call(capsys, verb, path, *extra), *mentions)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["spec.yaml"]


def test_baselines_are_compared_where_the_staging_is_too_little_for_optimal(tmp_path, capsys):
    text, mentions = BAD_SPECS["tiny staging"]
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    found = result(capsys, "compare", path)["strategies"]
    assert {name for name, each in found.items() if "refused" in each} == {"optimal"}
    assert all(mention in found["optimal"]["refused"] for mention in mentions)


def test_compare_says_what_speedups_are_over_and_where_hybrid_knows_no_weight(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    for name, unnamed in {
        "w": True,
        "mlp.up_proj.weight": False,
        "model.layers.9.eh_proj.weight": True,
    }.items():
        path.write_text(REPLICAS.replace("name: w", f"name: {name}"))
        code, out, err = call(capsys, "compare", path)
        assert (code, err) == (0, "")
        assert "\nspeedup is over gather-broadcast, which sends through one NIC per domain; NCCL's" in out
        said = "\nhybrid found no feed-forward weights by their names, and moves all as gather-broadcast\n"
        assert (said in out) == unnamed


@pytest.mark.parametrize("verb", ["compile", "compare", "symbolic"])
@pytest.mark.parametrize("field", ["architectures", "model_type"])
def test_a_configuration_of_a_model_is_refused_as_one(field, verb, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({field: "qwen3", "hidden_size": 8}))
    assert_refused(
        call(capsys, verb, path), "config.json is a model's configuration", "expected a spec", "--spec FILE"
    )


@pytest.mark.parametrize("verb", ["verify", "show", "ops"])
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"PK\x03\x04rubbish", b"{}", b'{"version": 1}', b"plan 2\nrubbish\n"]
)
def test_a_file_that_is_no_plan_is_refused_in_one_sentence(verb, content, tmp_path, capsys):
    path = tmp_path / "plan.reshard"
    path.write_bytes(content)
    assert_refused(call(capsys, verb, path), "plan.reshard")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_plan_is_refused_in_one_sentence(plan, share, capsys):
    data = plan.read_bytes()
    plan.write_bytes(data[: int(len(data) * share)])
    for verb in ("verify", "show", "ops", "draw"):
        extra = ("-o", plan.parent / "x.dot") if verb == "draw" else ()
        assert_refused(call(capsys, verb, plan, *extra), "plan.reshard")
    assert not (plan.parent / "x.dot").exists()


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["compile", "missing.yaml"], ["missing.yaml"]),
        (["compile", "."], ["cannot read"]),
        (["verify", "missing.reshard"], ["missing.reshard"]),
        (["compile"], ["SPEC"]),
        (["explode"], ["explode"]),
        ([], ["VERB"]),
        (["show", "p", "--rank", "x"], ["--rank", "'x'"]),
        (["run", "SPEC", "--executor", "jax"], ["--executor", "'jax'"]),
        (["run", "SPEC", "--timeout", "nan"], ["--timeout", "nan"]),
        (["run", "SPEC", "--checkpoint", "missing.safetensors"], ["missing.safetensors"]),
        (["run", "PLAN", "--strategy", "direct"], ["--strategy", "direct"]),
        (["tiles", "SPEC", "--tensor", "v"], ["'v'"]),
        (["ops", "PLAN", "--tensor", "v"], ["'v'"]),
        (["ops", "PLAN", "--rank", "9"], ["--rank 9"]),
        (["show", "PLAN", "--rank", "-1"], ["--rank -1"]),
        (["show", "PLAN", "--slot", "-1"], ["--slot is -1"]),
        (["compile", "SPEC", "-o", "SPEC"], ["--output", "the file that is read"]),
        (["compile", "SPEC", "-o", "a" * 300], ["--output", "too long"]),
        (["draw", "PLAN", "-o", "a" * 300 + ".svg"], ["-o", "too long"]),
        (["simulate", "PLAN", "--trace", "a" * 300], ["--trace", "too long"]),
        (["report", "PLAN", "-o", "a" * 300 + ".html"], ["--output", "too long"]),
        (["compile", os.devnull], [os.devnull, "regular file"]),
        (["draw", "PLAN", "-o", "x.dot", "--tensor", "v"], ["'v'"]),
        (["draw", "PLAN", "-o", "x.docx"], ["x.docx"]),
        (["draw", "PLAN", "-o", "nowhere/x.dot"], ["nowhere"]),
        (["draw", "PLAN", "-o", "x.svg", "--rank", "9"], ["rank 9"]),
        (["draw", "PLAN", "-o", "x.svg", "--class", "99", "--tensor", "w"], ["class 99", "0 to "]),
        (["draw", "PLAN", "-o", "x.svg", "--tree", "-1", "--tensor", "w"], ["tree -1", "one of "]),
        (["draw", "PLAN", "-o", "x.svg", "--picture", "pipeline", "--tree", "0"], ["--tree", "transfers"]),
        (["draw", "PLAN", "-o", "x.svg", "--picture", "layouts", "--rank", "0"], ["--rank", "transfers"]),
        (["draw", "PLAN", "-o", "x.svg", "--predicted"], ["--predicted", "pipeline"]),
        (["draw", "PLAN", "-o", "x.png", "--picture", "layouts"], ["x.png", ".svg, .txt", "browser"]),
        (["draw", "PLAN", "-o", "x.dot", "--picture", "pipeline"], ["x.dot", "expected one of .svg"]),
        (["draw", "PLAN", "-o", "PLAN"], [".svg"]),
        (["compile", "SPEC", "-o", "nowhere/p.reshard"], ["nowhere"]),
        (["compile", "SPEC", "--strategy", "best"], ["'best'"]),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, mentions, spec, plan, capsys, monkeypatch):
    monkeypatch.chdir(spec.parent)
    before = sorted(entry.name for entry in spec.parent.iterdir())
    names = {"SPEC": str(spec), "PLAN": str(plan)}
    assert_refused(call(capsys, *(names.get(argument, argument) for argument in arguments)), *mentions)
    assert sorted(entry.name for entry in spec.parent.iterdir()) == before


def test_the_command_runs_as_a_process_and_stops_quietly_when_its_reader_does(plan):
    command = [sys.executable, "-m", "reshard_planner", "show", str(plan)]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert whole.stdout.startswith("plan 2\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def redirected(arguments: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run the command through a shell, with redirections that no Python caller can set up."""
    line = f'"{sys.executable}" -m reshard_planner {arguments}'
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_print_nothing_and_change_no_exit_code(streams, spec):
    for arguments, code in ((f'compile "$1" {streams}', 0), (f"compile nowhere.yaml {streams}", 2)):
        done = redirected(arguments, spec)
        assert done.returncode == code
        assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_output_is_an_error_in_one_sentence(plan):
    done = redirected('show "$1" >/dev/full', plan)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("reshard-planner: cannot print the result: ")
    assert done.stderr.count("\n") == 1
    assert redirected("compile nowhere.yaml 2>/dev/full").returncode == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    os.mkfifo(path)
    assert_refused(call(capsys, "compile", path), "regular file")


def test_errors_show_no_more_of_a_long_value_than_fits_a_screen(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(edited(tensors__0__dtype="x" * 100_000))
    code, out, err = call(capsys, "compile", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert len(err) < 1100


def test_tiles_escapes_control_characters_of_names(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(edited(tensors__0__name="\x1b[31m\n"))
    code, out, _ = call(capsys, "tiles", path)
    assert code == 0
    assert "\x1b" not in out
    path.write_text(edited())
    assert len(out.splitlines()) == len(call(capsys, "tiles", path)[1].splitlines())


def test_the_command_works_where_assertions_are_off(spec):
    command = [sys.executable, "-O", "-m", "reshard_planner", "run", str(spec), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["correct"] is True
