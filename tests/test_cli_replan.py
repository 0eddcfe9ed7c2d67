"""``reshard-planner replan``: what it prints and writes, its exit codes, and bad input in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from test_cli import REPLICAS, assert_refused, call, result

import reshard_planner as rp

LAYERS = 40


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Layers of two tensors each: one that every training rank holds, one that is cut over them."""
    raw = yaml.safe_load(REPLICAS)
    [cut] = raw["tensors"]
    whole = cut | {"src": {"mesh": "train", "placements": ["R"]}}
    raw["tensors"] = [
        entry | {"name": f"layers.{layer}.{name}"}
        for layer in range(LAYERS)
        for name, entry in (("cut", cut), ("whole", whole))
    ]
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize("name", ["new.reshard", "new.json", "new.txt"])
def test_the_new_plan_is_written_and_right(plan, tmp_path, capsys, name):
    new = tmp_path / name
    code, out, err = call(capsys, "replan", plan, "--without", "6,7", "-o", new)
    assert (code, err) == (0, "")
    assert out.startswith(f"without ranks 6-7: {2 * LAYERS} of {2 * LAYERS} tensors planned, 6 ranks\n")
    assert f"wrote {new}" in out
    assert "impossible" not in out
    assert "incomplete" not in out
    assert result(capsys, "verify", new)["ok"]
    assert rp.Plan.load(new).ranks == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("without", ["6,7", "7", "2", "4-6"])
def test_text_and_json_say_what_the_function_finds(plan, capsys, without):
    found = rp.replan(rp.Plan.load(plan), [int(rank) for rank in without.replace("4-6", "4,5,6").split(",")])
    code, out, _ = call(capsys, "replan", plan, "--without", without)
    again, text, _ = call(capsys, "replan", plan, "--without", without, "--json")
    assert code == again == (0 if found.complete else 1)
    shown = json.loads(text)
    assert shown["without"] == list(found.without)
    assert shown["complete"] == found.complete
    assert shown["plan"]["digest"] == found.plan.digest
    assert f"Plan {found.plan.digest[:12]}" in out
    assert shown["before"]["digest"] == found.before.digest
    assert shown["unneeded"] == list(found.unneeded)
    assert [(each["tensor"], each["nbytes"]) for each in shown["impossible"]] == [
        (each.tensor, each.nbytes) for each in found.impossible
    ]
    assert [(each["ranks"], each["gone"], each["tensors"]) for each in shown["incomplete"]] == [
        (list(each.ranks), list(each.gone), list(each.tensors)) for each in found.incomplete
    ]
    counts = {word: shown["operations"][word]["count"] for word in ("same", "gone", "new")}
    changes = found.changes
    assert counts == {"same": len(changes.before), "gone": len(changes.gone), "new": len(changes.new)}
    network = {word: shown["operations"][word]["network_nbytes"] for word in counts}
    assert network["same"] + network["gone"] == shown["before"]["payload"]["network_nbytes"]
    assert network["same"] + network["new"] == shown["plan"]["payload"]["network_nbytes"]


def test_what_is_impossible_is_told_by_pattern_and_ends_with_exit_code_one(plan, tmp_path, capsys):
    new = tmp_path / "new.reshard"
    code, out, err = call(capsys, "replan", plan, "--without", "2", "-o", new)
    assert (code, err) == (1, "")
    assert f"impossible, and left out: {LAYERS} tensors, of which 1.25 KiB are lost\n" in out
    assert f"  layers.*.cut ({LAYERS} tensors): [4:6, 0:8] held by rank 2, needed by ranks 5,7\n" in out
    assert f"{LAYERS} of {2 * LAYERS} tensors planned" in out
    left = rp.Plan.load(new)
    assert [tensor.name for tensor in left.spec.tensors] == [f"layers.{n}.whole" for n in range(LAYERS)]
    rp.verify(left)


def test_an_incomplete_replica_is_told_by_pattern(plan, capsys):
    code, out, err = call(capsys, "replan", plan, "--without", "7")
    assert (code, err) == (0, "")
    head = f"incomplete: destination rank 6, which lost rank 7, lacks parts of {2 * LAYERS} tensors\n"
    assert f"{head}  layers.*.cut: {LAYERS}\n  layers.*.whole: {LAYERS}\n" in out
    assert "layers.0" not in out


def test_lists_are_short_whatever_is_lost(tmp_path, capsys):
    train = rp.Layout(rp.Mesh(range(64), ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([64], ["tp"]), ["R"])
    names = [f"{chr(97 + at % 26)}{at}.weight" for at in range(100)]
    spec = rp.ReshardSpec([rp.TensorSpec(name, (64, 2), "bfloat16", train, serve) for name in names])
    path = tmp_path / "plan.reshard"
    rp.compile(spec).save(path)
    code, out, _ = call(capsys, "replan", path, "--without", "0-62")
    assert code == 1
    assert len(out.splitlines()) < 40
    assert "  and 6,277 more\n" in out
    assert (
        len(json.loads(call(capsys, "replan", path, "--without", "0-62", "--json")[1])["impossible"]) == 6300
    )


def test_a_spec_is_planned_without_a_plan_before(spec, plan, tmp_path, capsys):
    new = tmp_path / "new.reshard"
    shown = result(capsys, "replan", spec, "--without", "4-5", "-o", new)
    assert shown["before"] is None
    assert shown["operations"] is None
    assert shown["plan"]["digest"] == result(capsys, "replan", plan, "--without", "4-5")["plan"]["digest"]
    assert rp.Plan.load(new).digest == shown["plan"]["digest"]
    assert "operations" not in call(capsys, "replan", spec, "--without", "4-5")[1]


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("4-7", f"not needed any more: {2 * LAYERS} tensors without destinations\n"),
        ("0-3", f"impossible, and left out: {2 * LAYERS} tensors"),
    ],
)
def test_nothing_is_written_where_nothing_is_left_to_move(plan, tmp_path, capsys, without, says):
    new = tmp_path / "new.reshard"
    code, out, err = call(capsys, "replan", plan, "--without", without, "-o", new)
    assert (code, err) == (1, "")
    assert out.startswith(f"without ranks {without}: nothing is left to move, so that there is no plan\n")
    assert says in out
    assert f"did not write {new}" in out
    assert not new.exists()
    assert json.loads(call(capsys, "replan", plan, "--without", without, "--json")[1])["plan"] is None


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("", "--without: '' is not a list of numbers"),
        ("a", "--without: 'a' is not a list of numbers"),
        ("5-3", "--without: range '5-3' runs backwards"),
        ("3,3", "without has rank 3 twice; expected distinct ranks"),
        ("8", "without has 8, which is no rank of the plan; expected some of 0-7"),
        ("0-7", "without has all 8 ranks of the plan; expected that some are left"),
    ],
)
def test_ranks_that_cannot_be_left_out_are_refused_in_one_sentence(plan, capsys, without, says):
    assert_refused(call(capsys, "replan", plan, "--without", without), says)


def test_files_that_are_no_plan_or_the_plan_itself_are_refused(plan, tmp_path, capsys):
    assert_refused(call(capsys, "replan", tmp_path / "none.reshard", "--without", "7"), "none.reshard")
    (tmp_path / "text").write_text("nothing")
    assert_refused(call(capsys, "replan", tmp_path / "text", "--without", "7"), "text")
    assert_refused(call(capsys, "replan", plan, "--without", "7", "-o", plan), "is the file that is read")
    assert_refused(call(capsys, "replan", plan), "--without")
    whole = np.frombuffer(plan.read_bytes(), dtype=np.uint8).copy()
    whole[-1] ^= 1
    (tmp_path / "damaged.reshard").write_bytes(whole.tobytes())
    code, out, err = call(capsys, "replan", tmp_path / "damaged.reshard", "--without", "7")
    assert (code, out) == (1, "")
    assert "is not what its hash in the header says" in err
