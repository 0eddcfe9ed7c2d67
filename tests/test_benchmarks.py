"""The benchmarks: cases are what they claim, counts are right, and one fault does not end a run."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import specs

import benchmarks.__main__
import reshard_planner as rp
from benchmarks import models, moe, suites
from benchmarks.cases import PAIRS
from benchmarks.goals import Goals, find_missed
from benchmarks.growth import fit_growth
from benchmarks.isolate import WorkerError, run_worker
from benchmarks.measure import count_operations, measure
from benchmarks.record import PeerRecord, Record
from benchmarks.table import plan_table, seconds, times
from reshard_planner.topology.model import NIC_LINK

ROOT = Path(__file__).resolve().parent.parent
EVERY_CASE = [case for suite in suites.SUITES for case in suites.select(suite)]
PINNED = [case for suite in ("tensors", "m2n", "models") for case in suites.select(suite)]

BEYOND = {"models/qwen3-235b-128": 1.03}
"""Cases whose plans miss the goal for their busiest NIC, and what they keep within: in this one T0 is 2.6 %
above T*, and lent NICs are not used."""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def quiet(stage: str) -> None:
    pass


def test_the_smoke_suite_runs_and_writes_the_documented_fields(tmp_path):
    path = tmp_path / "smoke.json"
    command = [sys.executable, "-m", "benchmarks", "--repeat", "1", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"version", "suite", "repeat", "machine", "records", "growth"}
    assert [record["case"] for record in document["records"]] == [
        case.name for case in suites.select("smoke")
    ]
    for record in document["records"]:
        assert set(record) == names(Record)
        assert record["case"].partition("/")[2] in done.stdout
        assert record["status"] == "ok"
        assert record["reason"] is None
        assert record["network_nbytes"] == record["minimum_network_nbytes"] > 0
        assert record["payload_ratio"] == 1
        assert record["expected_bound_met"] in {True, None}
        assert record["missed"] == []
        assert (record["program_s"] is not None) == suites.find(record["case"]).program
        assert record["peak_nbytes"] > 2**20
        assert len(record["stages_s"]) > 3


def test_every_field_of_the_json_is_documented():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(\w+)`", page.partition("## JSON")[2]))
    assert names(Record) | names(PeerRecord) <= documented
    for kind in (Record, PeerRecord):
        described = re.findall(r"^        (\w+): ", kind.__doc__ or "", re.MULTILINE)
        assert set(described) == names(kind)


def test_names_of_cases_are_unique_and_find_their_case():
    counted = Counter(case.name for case in EVERY_CASE)
    assert set(counted.values()) == {1}
    assert all(suites.find(case.name).about == case.about for case in EVERY_CASE)


def test_patterns_choose_cases_with_or_without_the_suite():
    assert [case.name for case in suites.select("tensors", ["B/8"])] == ["tensors/B/8"]
    assert [case.name for case in suites.select("all", ["tensors/B/8"])] == ["tensors/B/8"]
    assert {case.suite for case in map(as_record, suites.select("all", ["moe/*"]))} == {"scale"}
    assert suites.select("smoke", ["nothing"]) == []


def as_record(case) -> Record:
    return Record(case.name, case.name.partition("/")[0], case.about)


@pytest.mark.parametrize("case", PINNED, ids=lambda case: case.name)
def test_plans_move_the_least_and_reach_their_goals(case):
    goals = case.goals.of_the_plan()
    assert goals.most_nic_ratio is not None
    record = measure(dataclasses.replace(case, goals=goals, program=False), 0, quiet)  # compiles and verifies
    assert record.status == "ok", record.reason
    assert record.payload_ratio in {1.0, None}
    assert record.expected_bound_met in {True, None}
    reached = dataclasses.replace(goals, most_nic_ratio=BEYOND.get(case.name, goals.most_nic_ratio))
    assert find_missed(reached, record) == []


def test_single_tensors_stay_within_a_hundredth_and_the_experts_take_few_rows_and_peers():
    pairs = suites.select("tensors", ["?/8", "?/64", "A'/8", "A'/64"])
    assert len(pairs) == len(PAIRS) * 2
    assert {pair.goals.most_nic_ratio for pair in pairs} == {1.01}
    [experts] = suites.select("tensors", ["B/8"])
    assert (experts.goals.most_rows, experts.goals.most_peers) == (5000, 16)


def test_bounds_known_by_hand_are_bytes_in_need_or_unique_bytes_over_their_nics():
    for pair in PAIRS.values():
        nbytes, shards = 2 * prod(pair.shape), pair.dst[0][-1]
        for size, bound_nbytes in pair.bound_nbytes.items():
            ingress = nbytes * min(size, shards) // shards // size
            assert bound_nbytes == max(ingress, nbytes // prod(pair.src[0]))


@pytest.mark.parametrize(
    ("system", "tensors", "gib"),
    [
        ("qwen3-32b-h100", 707, 61.02),
        ("qwen3-32b-gb200-4", 707, 61.02),
        ("dsv3-toy-256", 16, 10.55),
        ("qwen3-235b-128", 1131, 437.90),
    ],
)
def test_whole_models_have_the_published_sizes(system, tensors, gib):
    spec = models.build_system(models.load_systems()[system])
    assert len(spec.tensors) == tensors
    assert sum(tensor.nbytes for tensor in spec.tensors) / 2**30 == pytest.approx(gib, abs=0.005)


def test_every_system_uses_each_of_its_stages_and_all_inference_ranks():
    for system in models.load_systems().values():
        layers = models.load_models()[system.model]["layers"]
        first_gen = system.stage_gpus * system.pp
        stages = {rank // system.stage_gpus for rank in models.build_system(system).ranks if rank < first_gen}
        assert stages == (set(range(system.pp)) if layers > 1 else {0})
        assert set(models.build_system(system).ranks) >= set(range(first_gen, system.gpus))


@pytest.mark.parametrize("case", suites.select("whole"), ids=lambda case: case.name)
def test_models_from_configurations_take_the_ranks_that_their_case_says(case):
    spec = case.build()
    assert spec.ranks == tuple(range(case.gpus))
    assert spec.topology.gpu_count == case.gpus
    assert (case.goals.most_nic_ratio, case.goals.most_compile_s) == (1.02, 20 if case.gpus > 512 else 5)
    assert case.goals.of_the_plan() == Goals(most_nic_ratio=1.02)


@given(st.integers(1, 100), st.integers(1, 16))
def test_stages_are_contiguous_and_differ_by_at_most_one_layer(layers, stages):
    of = [models.stage_of(layer, "layer", layers, stages) for layer in range(layers)]
    sizes = Counter(of)
    assert of == sorted(of)
    assert max(sizes.values()) - min(sizes[stage] for stage in range(stages)) <= 1
    assert models.stage_of(None, "first", layers, stages) == 0
    assert models.stage_of(None, "last", layers, stages) == stages - 1


def test_the_mixture_of_experts_grows_in_ranks_and_stays_the_same_model():
    sizes = [cluster.gpus for cluster in moe.GROWTH]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (256, 6144)
    built = [moe.build_moe(cluster, 8, layers=4) for cluster in (moe.GROWTH[0], moe.LARGEST)]
    assert len(built[0].ranks) == 256
    small, large = ([(each.name, each.shape) for each in spec.tensors] for spec in built)
    assert small == large


@given(st.floats(0.1, 3), st.floats(1e-4, 1), st.lists(st.integers(2, 10**4), min_size=2, unique=True))
def test_a_power_law_gives_its_exponent(exponent, constant, sizes):
    records = [
        Record(f"growth/{gpus}", "growth", "", gpus=gpus, compile_s=constant * gpus**exponent)
        for gpus in sizes
    ]
    fit = fit_growth(records)
    assert fit is not None
    assert fit["exponent"] == pytest.approx(exponent, abs=1e-6)
    assert fit["seconds_at_1024_gpus"] == pytest.approx(constant * 1024**exponent, rel=1e-5)
    assert fit_growth(records[:1]) is None


@settings(max_examples=20)
@given(specs())
def test_operations_are_counted_as_the_rows_of_every_units_part(spec):
    plan = rp.compile(spec)
    pieces, units = plan.pieces, plan.schedule
    parts = Counter(
        (int(pieces.group[piece]), int(pieces.part[piece])) for piece in plan.routes.piece.tolist()
    )
    owners = plan.groups.routes_of[units.group].tolist()
    counted = sum(parts[unit] for unit in zip(owners, units.part.tolist(), strict=True))
    assert count_operations(plan) == counted >= len(plan.ops().op)


def test_operations_of_even_tensors_are_counted_exactly():
    spec = suites.find("smoke/r8-to-s8").build()
    plan = rp.compile(spec)
    assert count_operations(plan) == len(plan.ops().op)


def test_a_worker_that_takes_too_long_is_ended_and_says_where():
    with pytest.raises(WorkerError, match=r"^\w+: not done within 0.01 s$"):
        run_worker(["plan", "smoke/A/8"], 0.01, quiet)


def test_a_worker_that_breaks_gives_its_last_line():
    with pytest.raises(WorkerError, match="KeyError"):
        run_worker(["plan", "smoke/nothing"], 60, quiet)


def test_one_failing_case_does_not_end_the_run(tmp_path):
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks", "--case", "?/8", "--timeout", "0.01", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    assert [record["status"] for record in records] == ["failed", "failed"]
    for record in records:
        assert f"FAILED {record['case']}: {record['reason']}" in done.stdout
        assert "\n" not in record["reason"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--case", "nothing"], "--case nothing: no such case in suite smoke"),
        (["--json", "."], "--json . is a folder; expected a file"),
        (
            ["--json", "no/such/folder/out.json"],
            "--json no/such/folder/out.json: there is no folder no/such/f",
        ),
        (["--timeout", "0"], "argument --timeout: 0 is not positive; expected a number above 0"),
        (["--memory", "-1"], "argument --memory: -1 is not positive; expected a number above 0"),
        (["--memory", "nan"], "argument --memory: nan is not positive; expected a number above 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence_before_anything_runs(capsys, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        benchmarks.__main__.main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "[1/" not in printed.err + printed.out


@given(
    st.lists(st.integers(1, 9), min_size=6, max_size=6), st.lists(st.integers(1, 9), min_size=6, max_size=6)
)
def test_a_goal_is_missed_exactly_above_it(found, most):
    nic, rows, peers, compile_s, peak, program_s = found
    record = Record(
        "smoke/w", "smoke", "", "ok", gpus=8, nic_ratio=nic, rows=rows, peers_max=peers,
        compile_s=compile_s, peak_nbytes=peak, program_s=program_s,
    )  # fmt: skip
    goals = Goals(most[0], most[1], most[2], most[3], None, most[4], most[5])
    record.missed = find_missed(goals, record)
    assert len(record.missed) == sum(value > limit for value, limit in zip(found, most, strict=True))
    assert plan_table([record]).count("MISSED smoke/w: ") == len(record.missed)
    assert benchmarks.__main__.exit_code([record]) == bool(record.missed)
    assert find_missed(Goals(), record) == find_missed(goals, as_record(suites.select("smoke")[0])) == []


@given(st.floats(-10, 10))
def test_ratios_have_three_decimals_and_no_negative_zero(value):
    assert float(times(value)) == pytest.approx(value, abs=0.00051)
    assert times(value) != "-0.000"


def test_times_are_printed_as_the_command_line_does():
    assert [seconds(value) for value in (None, 0.0000152, 0.25)] == ["-", "15.2 µs", "250 ms"]


def transfers() -> st.SearchStrategy[list[tuple[int, int, int]]]:
    ranks = st.integers(0, 7)
    return st.lists(st.tuples(ranks, ranks, st.integers(0, 10**9)), max_size=20)


@needs_torch
@given(st.lists(transfers(), min_size=1, max_size=3))
def test_traffic_is_counted_once_per_end_and_network_only_between_domains(phases):
    from benchmarks.peers.planned import Traffic  # noqa: PLC0415

    layout = rp.Layout(rp.Mesh(list(range(8))), ["R"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (1,), "uint8", layout, layout)], rp.Topology.uniform(8, 4))
    loads = Traffic(phases).loads(spec)
    crossing = [(src, dst, n) for phase in phases for src, dst, n in phase if src // 4 != dst // 4]
    assert loads.network_nbytes == sum(n for _, _, n in crossing)
    ends = [Counter[int](), Counter[int]()]
    for src, dst, n in crossing:
        ends[0][src] += n
        ends[1][dst] += n
    assert loads.nic_nbytes == max((*ends[0].values(), *ends[1].values()), default=0)
    assert loads.nic_s == loads.nic_nbytes / NIC_LINK.bytes_per_s
    assert loads.phases_s >= loads.nic_s * (1 - 1e-12)


@needs_torch
@pytest.mark.filterwarnings("ignore")  # torch warns about its own fake backend
@pytest.mark.parametrize(("letter", "nic_nbytes"), [("A", 264_241_152), ("D", 117_440_512)])
def test_read_items_of_dcp_all_come_from_the_first_holder(letter, nic_nbytes):
    from benchmarks.peers import dcp  # noqa: PLC0415

    spec = suites.find(f"tensors/{letter}/8").build()
    planned = dcp.plan(spec, 1)
    loads = planned.traffic.loads(spec)
    assert loads.nic_nbytes == nic_nbytes
    assert loads.network_nbytes == rp.compile(spec).certificate.payload.network_nbytes


@needs_torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by_cost", [False, True])
def test_dtensor_plans_the_nearest_problem_on_one_mesh(by_cost):
    from benchmarks.peers import dtensor  # noqa: PLC0415
    from benchmarks.peers.planned import SkipPeerError  # noqa: PLC0415

    try:
        planned = dtensor.plan(suites.find("tensors/C/8").build(), 1, by_cost=by_cost)
    except SkipPeerError as error:
        pytest.skip(str(error))
    [tensor] = planned.spec.tensors
    assert tensor.src[0].mesh == tensor.dst[0].mesh
    least = rp.compile(planned.spec).certificate.payload.minimum_network_nbytes
    assert planned.traffic.loads(planned.spec).network_nbytes >= least > 0


FAKE_NEMO_RL = """
_PLAN_CACHE, _STRIPED_PLAN_CACHE = {}, {}


def _plan_geometry(src_mesh, src_placements, dst_mesh, dst_placements, shape):
    whole = tuple((0, size) for size in shape)
    members = tuple(dst_mesh.mesh.flatten().tolist())
    source = int(src_mesh.mesh.flatten()[0])
    return {}, {}, ((whole, members, members[0]),), ((source, members[0], whole),)


def _striped_geometry(*arguments):
    return None
"""


@needs_torch
def test_nemo_rl_is_loaded_from_a_checkout_or_skipped_with_a_reason(tmp_path):
    from benchmarks.peers import nemo_rl  # noqa: PLC0415
    from benchmarks.peers.planned import SkipPeerError  # noqa: PLC0415

    spec = suites.find("m2n/r8-to-r8").build()
    with pytest.raises(SkipPeerError, match=r"has no nemo_rl/weight_sync/xferdtensor_python\.py"):
        nemo_rl.plan(spec, 1, tmp_path, striped=False)
    path = tmp_path / nemo_rl.FILE
    path.parent.mkdir(parents=True)
    path.write_text("_PLAN_CACHE = {}\n", encoding="utf-8")
    with pytest.raises(SkipPeerError, match="has no _plan_geometry, _striped_geometry, _STRIPED_PLAN_CACHE"):
        nemo_rl.plan(spec, 1, tmp_path, striped=False)
    path.write_text(FAKE_NEMO_RL, encoding="utf-8")
    with pytest.raises(SkipPeerError, match="does not stripe"):
        nemo_rl.plan(spec, 1, tmp_path, striped=True)
    planned = nemo_rl.plan(spec, 1, tmp_path, striped=False)
    assert planned.transfers == 1
    assert planned.traffic.loads(spec).network_nbytes == spec.tensors[0].nbytes
