"""``reshard-planner symbolic``: formulas, values where numbers are given, and bad input in one sentence."""

from __future__ import annotations

import pytest
from test_cli import REPLICAS, ROWS_TO_COLUMNS, assert_refused, call, result

import reshard_planner as rp
from reshard_planner.symbolic import all_forms, case_of, crossovers, evaluate

PAIR = ("--src", "tp=4", "--dst", "tp=2,dp=2", "--gpus-per-domain", "4")


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(REPLICAS)
    return path


def by_name(entries):
    return {entry["name"]: entry for entry in entries}


def test_without_numbers_the_formulas_are_printed(capsys):
    code, out, err = call(capsys, "symbolic")
    assert (code, err) == (0, "")
    assert "  least_payload = R_dst*W/m\n" in out
    assert "  bound = Max(domain_ingress, unique_bytes, " in out
    assert "  relays: b_src < R_dst*S_dst*b_dst/(P*R_src*S_src)\n" in out
    assert "\n      here " not in out
    found = result(capsys, "symbolic")
    assert list(by_name(found["forms"])) == [form.name for form in all_forms()]
    assert list(by_name(found["crossovers"])) == [crossover.name for crossover in crossovers()]
    assert {entry["value"] for part in found.values() for entry in part} == {None}


def test_latex_is_printed_when_asked_for(capsys):
    code, out, _ = call(capsys, "symbolic", "--latex")
    assert code == 0
    assert r"least_payload = \frac{R_{\mathrm{dst}} W}{m}" in out


def test_values_of_a_spec_are_those_of_its_plans(spec, capsys):
    found = result(capsys, "symbolic", spec)
    value = {entry["name"]: entry["value"] for entry in found["forms"]}
    plans = result(capsys, "compare", spec)["strategies"]
    assert value["least_payload"] == plans["optimal"]["payload"]["network_nbytes"]
    assert value["bound"] == plans["optimal"]["bound"]["time_s"]
    assert value["t0"] == plans["optimal"]["bound"]["t0_s"]
    assert value["nic_time"] == plans["optimal"]["busiest_nic"]["time_s"]
    assert value["direct_payload"] == plans["direct"]["payload"]["network_nbytes"]
    assert value["direct_time"] == plans["direct"]["busiest_nic"]["time_s"]
    gather = plans["gather-broadcast"]
    assert value["gather_broadcast_payload"] == gather["payload"]["network_nbytes"]
    assert value["gather_broadcast_time"] == gather["busiest_nic"]["time_s"]


def test_json_and_text_say_what_the_functions_find(spec, capsys):
    known = evaluate(case_of(rp.ReshardSpec.load(spec)), 3)
    found = result(capsys, "symbolic", spec, "--rounds", "3")
    assert {name: entry["value"] for name, entry in by_name(found["forms"]).items()} == {
        name: float(value) for name, value in known.values.items()
    }
    assert by_name(found["quantities"])["K"]["value"] == 3
    for crossover in crossovers():
        entry = by_name(found["crossovers"])[crossover.name]
        assert entry["applies"] == crossover.applies(known.numbers)
        if entry["applies"]:
            assert entry["value"] == float(crossover.value(known.numbers))
            assert entry["is_met"] == crossover.is_met(known.numbers)
    code, out, _ = call(capsys, "symbolic", spec, "--rounds", "3")
    assert code == 0
    assert "  K = 3: rounds\n" in out
    assert "here 128 B" in out
    assert "it pays: v_dst is 450 GB/s, the crossing is at 25 GB/s" in out


def test_a_pair_on_the_command_line_is_the_spec_that_it_describes(spec, capsys):
    assert result(capsys, "symbolic", *PAIR, "--nbytes", "128") == result(capsys, "symbolic", spec)


def test_axes_of_another_name_cut_another_dimension(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(ROWS_TO_COLUMNS)
    found = result(capsys, "symbolic", "--src", "tp=2", "--dst", "ep=4", "--nbytes", "128")
    assert by_name(found["quantities"])["C"]["value"] == 8
    case = case_of(
        rp.ReshardSpec([*rp.ReshardSpec.load(path).tensors], rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]))
    )
    assert {name: entry["value"] for name, entry in by_name(found["forms"]).items()} == {
        name: float(value) for name, value in evaluate(case).values.items()
    }


def test_options_of_the_two_sides_are_parted_by_a_comma(capsys):
    arguments = ("--src", "ep=8,pp=2", "--dst", "ep=4 dp=16", "--gpus-per-domain", "8,72")
    rest = (
        "--nic",
        "50e9,25e9",
        "--nvlink",
        "450e9,900e9",
        "--neighbours",
        "8",
        "--alpha",
        "1e-5",
        "--lag",
        "3",
    )
    found = by_name(result(capsys, "symbolic", *arguments, *rest)["quantities"])
    assert {name: found[name]["value"] for name in ("P", "S_src", "q", "m", "p", "X", "b_src", "b_dst")} == {
        "P": 2,
        "S_src": 8,
        "q": 8,
        "m": 16,
        "p": 4,
        "X": 8,
        "b_src": 50 * 10**9,
        "b_dst": 25 * 10**9,
    }
    assert (found["v_dst"]["value"], found["alpha"]["value"], found["lag"]["value"]) == (900 * 10**9, 1e-5, 3)


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--src", "tp=4"], ["--src", "without a pair", "--dst"]),
        (["--nbytes", "1GB"], ["--nbytes", "without a pair"]),
        (["--rounds", "3"], ["--rounds", "without numbers"]),
        ([*PAIR, "--rounds", "0"], ["rounds is 0"]),
        ([*PAIR, "--nbytes", "much"], ["--nbytes", "'much'"]),
        ([*PAIR, "--nbytes", "0"], ["nbytes is 0"]),
        ([*PAIR, "--nic", "fast"], ["--nic", "'fast'"]),
        ([*PAIR, "--nic", "1,2,3"], ["--nic", "'1,2,3'"]),
        ([*PAIR, "--nvlink", "1/0"], ["--nvlink", "'1/0'"]),
        ([*PAIR, "--nic", "0.5"], ["--nic", "'0.5'", "whole number"]),
        ([*PAIR, "--alpha", "0"], ["--alpha", "0.0"]),
        ([*PAIR, "--alpha", "nan"], ["--alpha", "nan"]),
        ([*PAIR, "--lag", "0"], ["lag is 0"]),
        ([*PAIR, "--neighbours", "4"], ["--neighbours", "4"]),
        ([*PAIR, "--neighbours", "-1"], ["--neighbours", "-1"]),
        (["--src", "", "--dst", "tp=2"], ["--src", "empty"]),
        (["--src", "tp=4", "--dst", "xp=2"], ["--dst", "'xp=2'"]),
        (["--src", "tp=4,tp=4", "--dst", "tp=2"], ["--src", "'tp=4'", "once"]),
        (["--src", "tp=0", "--dst", "tp=2"], ["--src", "'tp=0'"]),
        (["--src", "tp=4", "--dst", "tp=2,pp=2"], ["--dst", "pp=2"]),
        (["--src", "tp=4", "--dst", "tp=6"], ["tp", "4 shards before and 6 after"]),
        (["--src", "tp=4", "--dst", "tp=4,dp=3"], ["--dst", "4 shards in 3 replicas", "domains of 8"]),
        (["--src", "tp=12", "--dst", "tp=4"], ["--src", "12 shards", "domains of 8"]),
        (["missing.yaml"], ["missing.yaml"]),
        (["missing.yaml", "--src", "tp=4"], ["--src", "missing.yaml", "one of the two"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_sentence(arguments, mentions, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(call(capsys, "symbolic", *arguments), *mentions)


def test_a_spec_that_is_not_regular_is_refused(spec, capsys):
    spec.write_text(REPLICAS.replace("[8, 8]", "[6, 8]"))
    assert_refused(call(capsys, "symbolic", spec), "'w'", "shards of src are not equal")
