"""Published refit times: figures as copied, parameters that add up, and a page that its command writes."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.published as command
from benchmarks import published_account
from benchmarks.models import build_system, load_systems
from benchmarks.published_account import FITTED_CALL, FITTED_TENSOR, Simulated, fit, simulate_row
from benchmarks.published_models import ULTRA_LAYERS, build_simple, checkpoint, nemotron_ultra, quantized
from benchmarks.published_rows import PUBLISHED, SIZES
from reshard_planner.render.text import format_s

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "published.md"
BY_NAME = {row.name: row for row in PUBLISHED}

GIB = 2**30


def generated() -> str:
    return command.PLACE.read(PAGE)


def small(name: str) -> Simulated:
    """A row with a few layers only."""
    row = BY_NAME[name]
    weights = [each for each in row.weights() if each[3] is None or each[3] < 2 * row.spread.pp]
    spread = dataclasses.replace(row.spread, pp=2, stage_gpus=16, gen_dp=2)
    kept = [each for each in weights if each[3] is None or each[3] in (0, 4)]
    renumbered = [(name, shape, dtype, layer and 1, count) for name, shape, dtype, layer, count in kept]
    return simulate_row(dataclasses.replace(row, spread=spread, weights=lambda: renumbered, whole=None))


@pytest.fixture(scope="module")
def few() -> list[Simulated]:
    return [small(name) for name in (FITTED_TENSOR, FITTED_CALL)]


def test_published_figures_are_those_of_the_sources():
    assert [(row.before_s, row.after_s) for row in PUBLISHED] == [
        (6.4, 1.9), (14.9, 2.6), (6.1, 2.3), (8.2, 2.3), (3.83774, 1.44744), (2.17516, 0.98875),
    ]  # fmt: skip
    assert [(size.nbytes, size.logical_nbytes, size.after_s) for size in SIZES] == [
        (5.6e12, 11.2e12, None),
        (4.8e12, 9.6e12, 4.3),
    ]
    assert all(row.source and row.spread_source for row in PUBLISHED)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_gpus_are_those_of_the_published_systems(row):
    gpus = {
        "qwen3-235b-h100": 256,
        "nemotron-ultra-gb200": 128,
        "deepseek-v3-m2n": 256,
        "qwen3-235b-m2n": 128,
    }
    assert row.spread.gpus == gpus.get(row.name, 512)


def test_sizes_of_models_are_the_published_ones():
    """Sizes: NVIDIA-NeMo/RL tools/refit_bandwidth_calculator.py, and 549.3e9 parameters of Nemotron Ultra."""

    def total(row):
        spec = build_simple(row.weights(), row.spread)
        return sum(tensor.nbytes for tensor in spec.tensors)

    assert total(BY_NAME["qwen3-235b-h100"]) == pytest.approx(470.2e9, rel=1e-3)
    assert total(BY_NAME["deepseek-v3-h100"]) == pytest.approx(1342e9, rel=1e-3)
    assert total(BY_NAME["nemotron-ultra-gb200"]) == pytest.approx(2 * 549.3e9, rel=1e-3)
    assert total(BY_NAME["deepseek-v3-m2n"]) == pytest.approx(671e9, rel=5e-3)


def test_the_simple_form_is_that_of_the_model_benchmark():
    mine = build_simple(checkpoint("Qwen3-235B-A22B"), BY_NAME["qwen3-235b-m2n"].spread)
    theirs = build_system(load_systems()["qwen3-235b-128"])
    assert {tensor.name: tensor.geometry for tensor in mine.tensors} == {
        tensor.name: tensor.geometry for tensor in theirs.tensors
    }


def test_every_projection_of_the_checkpoint_in_float8_has_its_scales():
    weights = {name: (shape, dtype) for name, shape, dtype, *_ in quantized(checkpoint("DeepSeek-V3"))}
    small = {name for name, (_, dtype) in weights.items() if dtype == "float8_e4m3fn"}
    assert {f"{name}_scale_inv" for name in small} == {name for name in weights if name.endswith("_inv")}
    assert weights["model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"] == ((5, 56), "float32")
    assert weights["lm_head.weight"][1] == weights["model.layers.3.mlp.gate.weight"][1] == "bfloat16"


def test_nemotron_ultra_has_its_blocks_by_number():
    names = [name for name, *_ in nemotron_ultra()]
    for suffix, count in (("in_proj.weight", 48), ("mlp.gate.weight", 48), ("q_proj.weight", 12)):
        assert sum(name.endswith(suffix) for name in names) == count
    assert ULTRA_LAYERS == 48


def test_fitted_rows_are_met_exactly_and_others_only_follow(few):
    fits = fit(few)
    tensor, call = few
    assert fits.before_s(tensor) == pytest.approx(tensor.row.before_s)
    assert fits.after_s(call) == pytest.approx(call.row.after_s)
    assert fits.after_s(tensor) == pytest.approx(tensor.unfitted_after_s + tensor.calls * fits.call_s)


def test_no_strategy_is_simulated_below_the_bound(few):
    for each in few:
        assert {"optimal", each.row.after, "hybrid"} <= set(each.times_s)
        assert min(each.times_s.values()) >= each.bound_s > 0
        assert each.feed_forward_s < each.times_s["hybrid"]


def test_the_closed_form_of_gather_broadcast_is_its_simulated_time():
    import reshard_planner as rp  # noqa: PLC0415 - only here
    from reshard_planner.simulate import predict  # noqa: PLC0415 - only here

    row = BY_NAME["qwen3-235b-m2n"]
    weights = [each for each in row.weights() if each[3] is None or each[3] < 1]
    spec = build_simple(weights, dataclasses.replace(row.spread, pp=1))
    nic = spec.topology.nics[0].link
    closed_s = sum(tensor.nbytes for tensor in spec.tensors) / (nic.bytes_per_s * nic.efficiency)
    assert predict(rp.compile(spec, "gather-broadcast")).elapsed_s == pytest.approx(closed_s, rel=0.05)


def test_rings_are_limited_by_nvlink_on_h100_and_on_gb200():
    rates = {}
    for name in ("qwen3-235b-h100", "qwen3-235b-m2n"):
        row = BY_NAME[name]
        rates[name] = published_account.collective_rate(build_simple(row.weights(), row.spread).topology)
    assert rates == pytest.approx({"qwen3-235b-h100": 0.7 * 450e9, "qwen3-235b-m2n": 0.7 * 900e9})


def test_a_claim_that_is_not_true_is_told(few):
    def with_optimal(ratio: float) -> list[str]:
        rows = [
            dataclasses.replace(each, times_s={**each.times_s, "optimal": ratio * each.bound_s})
            for each in few
        ]
        return [sentence for sentence in command.report(rows, [])[1] if sentence.startswith("`optimal` is")]

    assert with_optimal(1.1) == []
    assert len(with_optimal(1.2)) == 1


def test_the_page_has_the_published_figures_and_what_follows_from_them_alone():
    text = generated()
    for row in PUBLISHED:
        assert f"| {row.name} | `{row.before}` | {format_s(row.before_s)} |" in text
        assert f"`{row.after}` | {format_s(row.after_s)} |" in text
        spec = build_simple(row.weights(), row.spread)
        nbytes = sum(tensor.nbytes for tensor in spec.tensors)
        collective = format_s(2 * nbytes / published_account.collective_rate(spec.topology))
        assert re.search(rf"^\| {row.name} \|.* {re.escape(collective)} \|$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--write", "README.md"], "expected a page with the lines"),
        (["--write", "docs/published.md", "--no-sizes"], "expected neither --row nor --no-sizes"),
        (["--row", "nothing"], "invalid choice: 'nothing'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, told):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.published", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_the_page_is_what_the_command_writes(tmp_path):
    page = tmp_path / "published.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    assert command.main(["--write", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
