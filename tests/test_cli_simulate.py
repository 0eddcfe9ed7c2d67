"""``simulate`` and the predictions of ``compare``: what they print, write and refuse."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from test_cli import REPLICAS, ROWS_TO_COLUMNS, assert_refused, call, result

import reshard_planner as rp
from reshard_planner.cli import each as each_strategy
from reshard_planner.cli.verbs import simulate
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.forms import save_as
from reshard_planner.render.prediction import prediction_text
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import (
    Costs,
    LinkCosts,
    phases_by_pattern,
    phases_by_strategy,
    predict,
    with_link_costs,
    workload,
)

LAYERS = """\
version: 1
meshes:
  train: {ranks: "0-3", axes: {tp: 4}}
  serve: {ranks: [[4, 5], [6, 7]], axes: [dp, tp]}
topology: {gpus_per_domain: 4}
tensors:
  - {name: layers.0.w, shape: [1024, 8192], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
  - {name: layers.0.v, shape: [1024, 1024], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
  - {name: layers.1.w, shape: [1024, 8192], dtype: bfloat16,
     src: {mesh: train, placements: [S(0)]}, dst: {mesh: serve, placements: [R, S(1)]}}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(LAYERS)
    return path


@pytest.fixture
def plan(spec, tmp_path):
    path = tmp_path / "plan.reshard"
    rp.compile(rp.ReshardSpec.load(spec)).save(path)
    return path


def test_a_plan_and_its_spec_are_predicted_alike_as_the_library_does(plan, spec, capsys):
    found = result(capsys, "simulate", plan)
    assert found == result(capsys, "simulate", spec)
    loaded = rp.Plan.load(plan)
    expected = predict(loaded)
    assert found["predicted"] == {
        "elapsed_s": expected.elapsed_s,
        "bound_ratio": expected.elapsed_s / loaded.certificate.bound.time_s,
        "messages": loaded.certificate.schedule.messages,
    }
    assert found["digest"] == loaded.digest
    assert [each["end_s"] for each in found["ranks"]] == expected.end_s.tolist()
    assert {port["resource"]: port["nbytes"] for port in found["ports"]} == {
        use.resource: use.nbytes for use in expected.ports
    }
    last = found["last_rank"]
    assert sum(value for name, value in last.items() if name != "rank") == pytest.approx(expected.elapsed_s)


def test_costs_are_those_of_the_options(plan, capsys):
    options = ["--pack-rate", "50GB", "--slot-cost", "1e-5", "--message-cost", "2e-6", "--buffered", "1MiB"]
    options += ["--nic-efficiency", "0.5", "--nic-latency", "3e-6", "--nvlink-efficiency", "0.9"]
    options += ["--nvlink-latency", "0"]
    loaded = rp.Plan.load(plan)
    topology = with_link_costs(loaded.spec.topology, LinkCosts(0.5, 3e-6, 0.9, 0.0))
    expected = predict(loaded, Costs(5e10, 1e-5, 2e-6, 2**20), topology=topology)
    assert result(capsys, "simulate", plan, *options)["predicted"]["elapsed_s"] == expected.elapsed_s


def test_phases_by_pattern_are_one_after_another(plan, capsys):
    found = result(capsys, "simulate", plan, "--phases", "pattern", "--serial", "--pack-rate", "1TB")
    loaded = rp.Plan.load(plan)
    phases = phases_by_pattern(loaded.spec)
    assert phases == ((0, 2), (1,))
    expected = predict(loaded, Costs(1e12), phases=phases, overlapped=False)
    assert [phase["end_s"] for phase in found["phases"]] == list(expected.phase_ends_s)
    text = call(capsys, "simulate", plan, "--phases", "pattern")[1]
    assert "\nphase" in text


def test_the_text_says_time_ratio_where_it_goes_and_the_busiest_ports(plan, capsys):
    code, out, err = call(capsys, "simulate", plan, "--ports", "3")
    assert (code, err) == (0, "")
    assert out.startswith("predicted ")
    assert " x the bound T* " in out
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("busiest ports"))
    assert len(lines) - at == 1 + 3
    assert "  waiting" in out
    assert "busiest ports" not in call(capsys, "simulate", plan, "--ports", "0")[1]
    # what was saved is what is drawn from the library's value
    loaded = rp.Plan.load(plan)
    assert out == prediction_text(loaded, predict(loaded), 3) + "\n"


def test_a_plan_without_bytes_takes_no_time(tmp_path, capsys):
    path = tmp_path / "plan.reshard"
    rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1))).save(path)
    assert call(capsys, "simulate", path) == (0, "predicted 0 s\n", "")
    found = result(capsys, "simulate", path, "--phases", "pattern", "--serial")
    assert (found["predicted"]["elapsed_s"], found["last_rank"], found["ports"]) == (0.0, None, [])


def test_a_trace_shows_every_message_or_those_of_some_ranks(plan, tmp_path, capsys):
    file = tmp_path / "trace.json"
    code, out, err = call(capsys, "simulate", plan, "--trace", file, "--pack-rate", "1TB")
    assert (code, err) == (0, "")
    assert out.endswith(f"wrote {file}\n")
    document = json.loads(file.read_bytes())
    events = document["traceEvents"]
    assert document["otherData"]["predicted"] is True
    claims = rp.Plan.load(plan).certificate
    sent = [event for event in events if event["ph"] == "X" and event["cat"].startswith("send")]
    assert len(sent) == claims.schedule.messages
    assert (
        sum(e["args"]["nbytes"] for e in sent if e["cat"] == "send,network") == claims.payload.network_nbytes
    )
    call(capsys, "simulate", plan, "--trace", file, "--rank", "0", "--rank", "5")
    events = json.loads(file.read_bytes())["traceEvents"]
    rows = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert {" ".join(row.split()[:2]) for row in rows} == {"rank 0", "rank 5"}


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        (["--pack-rate", "fast"], ["--pack-rate", "fast"]),
        (["--pack-rate", "0"], ["--pack-rate", "0"]),
        (["--slot-cost", "-1"], ["--slot-cost", "-1.0", "seconds"]),
        (["--message-cost", "nan"], ["--message-cost", "nan"]),
        (["--nic-latency", "inf"], ["--nic-latency", "inf"]),
        (["--nic-efficiency", "1.5"], ["--nic-efficiency", "1.5", "at most 1"]),
        (["--nvlink-efficiency", "0"], ["--nvlink-efficiency", "above 0"]),
        (["--buffered", "x"], ["--buffered", "x"]),
        (["--slot-cost", "1e308"], ["--slot-cost", "1e+308", "below 1000000"]),
        (["--message-cost", "1e6"], ["--message-cost", "below 1000000"]),
        (["--nic-latency", "1e6"], ["--nic-latency", "below 1000000"]),
        (["--nvlink-latency", "1e-320"], ["--nvlink-latency", "at least 1e-15"]),
        (["--nic-efficiency", "1e-320"], ["--nic-efficiency", "at least 1e-09"]),
        (["--nvlink-efficiency", "1e-10"], ["--nvlink-efficiency", "at least 1e-09"]),
        (["--tolerance", "1"], ["--tolerance", "0.001"]),
        (["--tolerance", "0.0011"], ["--tolerance", "0.001"]),
        (["--tolerance", "-1"], ["--tolerance", "-1.0"]),
        (["--tolerance", "nan"], ["--tolerance", "nan"]),
        (["--ports", "-1"], ["--ports", "-1"]),
        (["--rank", "0"], ["--rank", "--trace"]),
        (["--trace", "t.json", "--rank", "99"], ["--rank 99", "8 ranks"]),
        (["--trace", "no/such/folder/t.json"], ["no/such/folder"]),
        (["--strategy", "direct"], ["--strategy direct", "plan"]),
        (["--phases", "layers"], ["--phases", "layers"]),
        (["--slot-cost", "soon"], ["--slot-cost", "soon"]),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(options, mentions, plan, capsys):
    assert_refused(call(capsys, "simulate", plan, *options), *mentions)


def test_what_is_no_plan_and_no_spec_is_refused_in_one_sentence(tmp_path, capsys):
    file = tmp_path / "plan.reshard"
    assert_refused(call(capsys, "simulate", file), "plan.reshard")
    file.write_bytes(b"\0" * 64)
    assert_refused(call(capsys, "simulate", file), "plan.reshard")


def test_the_ends_of_twenty_phases_are_listed(plan):
    loaded = rp.Plan.load(plan)
    for count in (1, 2, 20, 21, 25):
        ends_s = tuple(map(float, range(1, count + 1)))
        text = prediction_text(loaded, replace(predict(loaded), phase_ends_s=ends_s))
        listed = [line.split() for line in text.splitlines() if re.match(r"\d+ +\d+ s +1 s$", line)]
        shown = min(count, 20) if count > 1 else 0
        assert listed == [[str(at), str(at + 1), "s", "1", "s"] for at in range(shown)]
        assert (f"... and {count - 20} more" in text) == (count > 20)


@pytest.mark.parametrize("form", ["plan.reshard", "plan.json", "plan.txt", "spec.yaml", "link.reshard"])
def test_a_trace_is_not_written_over_what_is_read(form, spec, plan, tmp_path, capsys):
    file = tmp_path / form
    if form == "link.reshard":
        file.symlink_to(plan)
    elif form != "spec.yaml":
        save_as(rp.Plan.load(plan), file)
    before = file.read_bytes()
    assert_refused(call(capsys, "simulate", file, "--trace", file), f"--trace {file}", "another")
    assert file.read_bytes() == before
    assert spec.read_text() == LAYERS


@pytest.mark.parametrize("suffix", [".json", ".txt", ".reshard", ".yaml"])
def test_a_plan_is_called_a_plan_where_a_spec_is_expected(suffix, plan, tmp_path, capsys):
    file = tmp_path / f"given{suffix}"
    save_as(rp.Plan.load(plan), file)
    for verb in ("compare", "compile", "symbolic"):
        assert_refused(
            call(capsys, verb, file),
            f"{file} is a plan",
            "expected a spec",
            "the file that the plan was compiled",
        )
    with pytest.raises(InputError, match=r"is a plan.*expected a spec"):
        rp.ReshardSpec.load(file)
    # JSON with its fields in another order, or on one line
    if suffix == ".json":
        document = json.loads(file.read_text())
        file.write_text(json.dumps(dict(reversed(document.items()))))
        assert_refused(call(capsys, "compare", file), f"{file} is a plan; expected a spec")


@pytest.mark.parametrize("name", ["part.json", "part.plan"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_part_of_a_plan_in_json_is_called_damaged_json(name, share, plan, tmp_path, capsys):
    whole, part = tmp_path / "whole.json", tmp_path / name
    save_as(rp.Plan.load(plan), whole)
    text = whole.read_text()
    part.write_text(text[: int(len(text) * share)])
    assert_refused(call(capsys, "simulate", part), name, "not valid JSON")
    assert_refused(call(capsys, "compare", part), f"{part} is a plan, or part of one", "expected a spec")


def test_a_trace_that_no_viewer_shows_is_refused_before_the_run(plan, tmp_path, capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was simulated")

    monkeypatch.setattr(simulate, "MAX_EVENTS", 10)
    monkeypatch.setattr(simulate, "predict_phases", never)
    file = tmp_path / "trace.json"
    assert_refused(call(capsys, "simulate", plan, "--trace", file), "--trace", "at most 10", "--rank")
    assert not file.exists()


def test_a_plan_that_is_too_large_is_refused(plan, capsys, monkeypatch):
    monkeypatch.setattr(workload, "MAX_OPERATIONS", 5)
    assert_refused(call(capsys, "simulate", plan), "operations", "at most 5")
    with pytest.raises(UnsupportedError):
        predict(rp.Plan.load(plan), phases=[[0, 1, 2]])


# compare


def test_compare_predicts_every_plan_and_says_how_much_faster_it_is(spec, capsys):
    found = result(capsys, "compare", spec)["strategies"]
    loaded = rp.ReshardSpec.load(spec)
    slow_s = found["gather-broadcast"]["predicted"]["elapsed_s"]
    assert list(found) == list(STRATEGIES)
    for name, each in found.items():
        expected = predict(rp.compile(loaded, name)).elapsed_s
        assert each["predicted"] == {
            "elapsed_s": expected,
            "bound_ratio": expected / each["bound"]["time_s"],
            "speedup": slow_s / expected,
            "phases": 1,
            "reason": None,
        }
        for kept in ("payload", "busiest_nic", "staging_nbytes", "schedule"):
            assert kept in each
    assert found["optimal"]["predicted"]["speedup"] > 2


def test_compare_takes_costs(spec, capsys):
    found = result(capsys, "compare", spec, "--nic-efficiency", "0.25")["strategies"]["optimal"]
    free = result(capsys, "compare", spec)["strategies"]["optimal"]
    assert found["predicted"]["elapsed_s"] > 3 * free["predicted"]["elapsed_s"]
    assert found["bound"] == free["bound"]


def test_compare_goes_on_where_a_strategy_refuses_or_is_too_slow(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(REPLICAS.replace("placements: [S(0)]", "placements: ['_S(0, sf=2)']"))
    found = result(capsys, "compare", path)["strategies"]
    refused = {name for name, each in found.items() if "refused" in each}
    assert refused
    assert "optimal" not in refused
    code, out, _ = call(capsys, "compare", path)
    assert code == 0
    assert all(f"\n{name} refuses: " in out for name in refused)
    path.write_text(ROWS_TO_COLUMNS)
    code, out, err = call(capsys, "compare", path, "--limit", "1e-9")
    assert (code, err) == (0, "")
    assert "\ndirect is too slow: " in out
    assert "\noptimal is not predicted: " in out
    slow = result(capsys, "compare", path, "--limit", "1e-9")["strategies"]
    assert slow["direct"] == {"too_slow": "it takes more than 1e-09 s"}
    assert slow["optimal"]["predicted"]["elapsed_s"] is None
    assert "1e-09" in slow["optimal"]["predicted"]["reason"]


def test_what_refuses_after_the_limit_is_not_called_slow(spec, capsys, monkeypatch):
    def late(spec, name, progress):
        if name == "optimal":
            return rp.compile(spec, name)
        progress("routes")
        time.sleep(0.02)
        raise UnsupportedError("not such tensors")

    monkeypatch.setattr(each_strategy, "compile_spec", late)
    found = result(capsys, "compare", spec, "--limit", "0.01")["strategies"]
    assert {name: each for name, each in found.items() if name != "optimal"} == {
        name: {"refused": "not such tensors"} for name in STRATEGIES if name != "optimal"
    }


LIMITED = ROWS_TO_COLUMNS + "options: {max_network_peers: 1, max_nvlink_peers: 1}\n"


def test_compare_goes_on_where_optimal_refuses_and_ends_where_all_do(spec, tmp_path, capsys, monkeypatch):
    def picky(spec, name, progress):
        if name in refusing:
            raise UnsupportedError(f"not {name}")
        return rp.compile(spec, name, progress)

    monkeypatch.setattr(each_strategy, "compile_spec", picky)
    refusing = {"optimal", "gather-broadcast"}
    code, out, err = call(capsys, "compare", spec)
    assert (code, err) == (0, "")
    assert "\noptimal refuses: not optimal\n" in out
    assert "\ndirect " in out
    found = result(capsys, "compare", spec)["strategies"]
    assert list(found) == list(STRATEGIES)
    assert {name for name, each in found.items() if "refused" in each} == refusing
    assert found["direct"]["predicted"]["speedup"] is None
    refusing = set(STRATEGIES)
    assert_refused(call(capsys, "compare", spec), "no strategy has a plan", "optimal refuses: not optimal")
    # no way keeps these limits
    monkeypatch.undo()
    path = tmp_path / "limited.yaml"
    path.write_text(LIMITED)
    assert_refused(call(capsys, "compare", path), "optimal refuses: ", "max_network_peers")


def test_hybrid_is_predicted_in_its_phases(spec, tmp_path, capsys):
    path = tmp_path / "mixed.yaml"
    path.write_text(LAYERS.replace("layers.0.w", "layers.0.mlp.up_proj.weight"))
    plan = rp.compile(rp.ReshardSpec.load(path), "hybrid")
    together, phased = predict(plan), predict(plan, phases=phases_by_strategy(plan.spec))
    assert phased.elapsed_s > together.elapsed_s
    ends_s = list(phased.phase_ends_s)
    for options in ([], ["--phases", "strategy"]):
        found = result(capsys, "simulate", path, "--strategy", "hybrid", *options)
        assert found["predicted"]["elapsed_s"] == phased.elapsed_s
        assert [phase["end_s"] for phase in found["phases"]] == ends_s
    apart = result(capsys, "simulate", path, "--strategy", "hybrid", "--phases", "none")
    assert apart["predicted"]["elapsed_s"] == together.elapsed_s
    compared = result(capsys, "compare", path)["strategies"]
    assert compared["hybrid"]["predicted"]["elapsed_s"] == phased.elapsed_s
    assert {name: each["predicted"]["phases"] for name, each in compared.items()} == {
        name: 1 + (name == "hybrid") for name in STRATEGIES
    }
    note = "hybrid is predicted in 2 phases"
    assert f"\n{note}" in call(capsys, "compare", path)[1]
    assert note not in call(capsys, "compare", spec)[1]


@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_compare_refuses_an_impossible_limit(limit, spec, capsys):
    assert_refused(call(capsys, "compare", spec, "--limit", limit), "--limit", limit)
