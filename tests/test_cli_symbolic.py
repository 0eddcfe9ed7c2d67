"""``reshard-planner symbolic``: formulas, values where numbers are given, and bad input in one sentence."""

from __future__ import annotations

import pytest
from test_cli import REPLICAS, ROWS_TO_COLUMNS, assert_refused, call, result

import reshard_planner as rp
from reshard_planner.symbolic import all_forms, case_of, crossovers, evaluate

APPLIES = {
    "fanout": True,
    "fanout_nbytes": True,
    "relays": False,
    "striping": True,
    "lending": False,
    "another_round": True,
}
"""Which crossovers apply to the spec of the fixture."""

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
        assert entry["applies"] == APPLIES[crossover.name]
        if entry["applies"]:
            assert entry["value"] == float(crossover.value(known.numbers))
            assert entry["is_met"] == crossover.is_met(known.numbers)
    code, out, _ = call(capsys, "symbolic", spec, "--rounds", "3")
    assert code == 0
    assert "  K = 3: rounds\n" in out
    assert "here 128 B" in out
    assert "it pays: v_dst is 450 GB/s, the crossing is at 25 GB/s" in out
    assert out.count("here the condition does not apply") == list(APPLIES.values()).count(False)


def test_two_rounds_are_made_where_they_take_less_than_one(capsys):
    pair = ("--src", "tp=1", "--dst", "tp=1", "--nbytes", "400KB")
    found = result(capsys, "symbolic", *pair)
    assert by_name(found["quantities"])["K"]["value"] == 2
    assert by_name(found["crossovers"])["another_round"]["is_met"] is False
    assert found == result(capsys, "symbolic", *pair, "--rounds", "2")


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


def test_rates_take_units(capsys):
    numbers = result(capsys, "symbolic", *PAIR, "--nic", "12.5e9,25e9", "--nvlink", "450e9")
    assert numbers == result(capsys, "symbolic", *PAIR, "--nic", "12.5GB,25 gb", "--nvlink", "0.45TB")


LONG = "1" + "0" * 400


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--src", "tp=4"], ["--src", "without a pair", "--dst"]),
        (["--nbytes", "1GB"], ["--nbytes", "without a pair"]),
        (["--rounds", "3"], ["--rounds", "without numbers"]),
        ([*PAIR, "--rounds", "0"], ["--rounds is '0'", "1 to 1073741824"]),
        ([*PAIR, "--rounds", "1.5"], ["--rounds is '1.5'"]),
        ([*PAIR, "--rounds", LONG], ["--rounds is '1000", "..."]),
        ([*PAIR, "--nbytes", "much"], ["--nbytes", "'much'"]),
        ([*PAIR, "--nbytes", "0"], ["--nbytes is '0'"]),
        ([*PAIR, "--nbytes", "65537TiB"], ["--nbytes is '65537TiB'", "to 72057594037927936 bytes"]),
        ([*PAIR, "--nic", "fast"], ["--nic", "'fast'"]),
        *(
            ([*PAIR, "--nic", rate], [f"--nic is '{rate}'", "bytes per second", "such as 12.5GB"])
            for rate in ("12.5Gbit", "0GB", "0.5B", "1e", "9008TB", "GB", "\u0668GB")
        ),
        ([*PAIR, "--nic", "1,2,3"], ["--nic", "'1,2,3'"]),
        ([*PAIR, "--nvlink", "1/0"], ["--nvlink", "'1/0'"]),
        ([*PAIR, "--nic", "0.5"], ["--nic", "'0.5'", "whole number"]),
        *(
            ([*PAIR, option, size], [f"{option} is '{size}'", "a whole number from 1"])
            for option in ("--nic", "--nvlink", "--gpus-per-domain")
            for size in ("1e99999999", "1e999", "8/2", "8_0", "\u0668", "-1", "0", "", "0x8", " 8", "inf")
        ),
        ([*PAIR, "--nic", str(2**53)], [f"--nic is '{2**53}'", f"to {2**53 - 1}"]),
        ([*PAIR, "--gpus-per-domain", "4,2000000"], ["--gpus-per-domain is '2000000'", "to 1048576"]),
        *(
            ([*PAIR, "--alpha", alpha], [f"--alpha is '{alpha}'", "above 0 and below 1000000"])
            for alpha in ("0", "nan", "inf", "-1", "1e308", "1e6", "1_0", "1e-999", "soon")
        ),
        *(
            ([*PAIR, "--lag", lag], [f"--lag is '{lag}'", "1 to 1024"])
            for lag in ("0", "1025", "2_0", "two", "1.5")
        ),
        ([*PAIR, "--lag", LONG], ["--lag is '1000", "1 to 1024"]),
        ([*PAIR, "--neighbours", "4"], ["--neighbours is '4'", "0 to 3"]),
        ([*PAIR, "--neighbours", "\u0661"], ["--neighbours"]),
        (["--src", "tp=1000000,ep=100", "--dst", "tp=4"], ["--src: shards is 100000000"]),
        (["--src", "tp=8,dp=1000000", "--dst", "tp=4"], ["--src: 8 shards", "at most 1048576"]),
        (["--src", "tp=8,pp=1000000", "--dst", "tp=4"], ["--src 'tp=8,pp=1000000'", "8000000 ranks"]),
        ([*PAIR, "--neighbours", "-1"], ["--neighbours", "-1"]),
        (["--src", "", "--dst", "tp=2"], ["--src", "empty"]),
        (["--src", "tp=4", "--dst", "xp=2"], ["--dst", "'xp=2'"]),
        (["--src", "tp=4,tp=4", "--dst", "tp=2"], ["--src", "'tp=4'", "once"]),
        (["--src", "tp=0", "--dst", "tp=2"], ["--src", "'tp=0'"]),
        (["--src", "tp=4", "--dst", "tp=2,pp=2"], ["--dst", "pp=2"]),
        (
            ["--src", "tp=4", "--dst", "tp=6"],
            ["--src 'tp=4' and --dst 'tp=6'", "4 shards before and 6 after"],
        ),
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
    assert_refused(
        call(capsys, "symbolic", spec), "'w'", "shards of src are not equal", "--src and --dst give a pair"
    )


@pytest.mark.parametrize("name", ["plan.reshard", "plan.json", "plan.txt"])
def test_a_plan_is_refused_as_one(name, spec, tmp_path, capsys):
    plan = tmp_path / name
    assert call(capsys, "compile", spec, "-o", plan)[0] == 0
    assert_refused(call(capsys, "symbolic", plan), name, "is a plan", "expected a spec")


def test_links_without_a_start_up_time_are_refused(spec, capsys):
    link = "{bytes_per_s: 50.0e+9, latency_s: 0}"
    spec.write_text(
        REPLICAS.replace("{gpus_per_domain: 4}", f"{{gpus_per_domain: 4, nic: {link}, nvlink: {link}}}")
    )
    assert_refused(call(capsys, "symbolic", spec), "latency_s of all links", "above 0")


@pytest.mark.parametrize("extra", [(), ("--json",), ("--latex",)])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--alpha", "5e-324", "--nbytes", "65536TiB", "--nic", "1", "--nvlink", "1"),
        ("--alpha", "999999", "--nbytes", "1", "--nic", str(2**53 - 1), "--nvlink", str(2**53 - 1)),
        ("--lag", "1024", "--rounds", "1073741824"),
        ("--nic", "2.5e9,50e9", "--nvlink", "4.5e+11", "--alpha", "1.5e-5"),
    ],
    ids=["slow", "fast", "many rounds", "spellings"],
)
def test_extreme_numbers_have_values(arguments, extra, capsys):
    code, out, err = call(capsys, "symbolic", *PAIR, *arguments, *extra)
    assert (code, err) == (0, "")
    assert out
