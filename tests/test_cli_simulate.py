"""``simulate`` and the predictions of ``compare``: what they print, write and refuse."""

from __future__ import annotations

import json

import pytest
from test_cli import REPLICAS, ROWS_TO_COLUMNS, assert_refused, call, result

import reshard_planner as rp
from reshard_planner.cli.verbs import simulate
from reshard_planner.errors import UnsupportedError
from reshard_planner.render.prediction import prediction_text
from reshard_planner.routing import STRATEGIES
from reshard_planner.simulate import Costs, LinkCosts, phases_by_pattern, predict, with_link_costs, workload

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
    assert {event["pid"] for event in json.loads(file.read_bytes())["traceEvents"]} == {0, 5}


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
        (["--tolerance", "1"], ["tolerance", "0.01"]),
        (["--tolerance", "nan"], ["tolerance", "nan"]),
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


def test_a_trace_that_no_viewer_shows_is_refused(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(simulate, "MAX_EVENTS", 10)
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


@pytest.mark.parametrize("limit", ["0", "-1", "nan"])
def test_compare_refuses_an_impossible_limit(limit, spec, capsys):
    assert_refused(call(capsys, "compare", spec, "--limit", limit), "--limit", limit)
