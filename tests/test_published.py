"""Published refit times: figures as copied, parameters that add up, and a page that its command writes."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

import benchmarks.published as command
from benchmarks import published_account
from benchmarks.models import build_system, load_systems
from benchmarks.published_account import (
    FITTED_CALL,
    FITTED_TENSOR,
    Moved,
    Simulated,
    fit,
    moved,
    own_buffers,
    simulate_row,
)
from benchmarks.published_claims import FAR
from benchmarks.published_models import ULTRA_LAYERS, build_simple, checkpoint, nemotron_ultra, quantized
from benchmarks.published_rows import PUBLISHED, SIZES, Size
from benchmarks.published_tables import report
from benchmarks.whole import CONFIGS, Whole
from reshard_planner.models.load import load_model
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


def by_hand() -> dict[str, Simulated]:
    """Rows of round figures: 2 ms per tensor and 5 ms per call are fitted, and every claim is true."""

    def row(name: str, before_s: float, after_s: float, *figures: Any) -> Simulated:
        return Simulated(dataclasses.replace(BY_NAME[name], before_s=before_s, after_s=after_s), *figures)

    rows = (
        row(
            FITTED_TENSOR, 6.0, 2.2, 400 * 10**9, 1000, 100, 1.0, 1.02,
            {"optimal": 1.1, "m2n-node-aware": 1.2, "hybrid": 1.5}, {}, {}, 1.2, 4.0, 9.0, (1.3, 1.25),
        ),
        row(
            "deepseek-v3-gb200", 11.0, 6.0, 10**12, 2000, 200, 0.5, 0.5,
            {"optimal": 0.55, "m2n-node-aware": 0.54, "hybrid": 2.0}, {}, {}, 0.8, 3.0, 20.0, (0.6, 0.5),
        ),
        row(
            "nemotron-ultra-gb200", 5.0, 2.0, 10**12, 1000, 50, 0.4, 0.4,
            {"optimal": 0.44, "hybrid": 1.55}, {"m2n-node-aware": "too many"}, {}, 0.6, 2.5, 15.0, None,
        ),
        row(
            FITTED_CALL, 2.0, 1.0, 300 * 10**9, 500, 100, 0.2, 0.2,
            {"optimal": 0.22, "m2n-node-aware": 0.25, "m2n-uniform": 0.3, "direct": 1.1, "hybrid": 0.6},
            {}, {"m2n-node-aware": 0.5, "m2n-uniform": 0.6, "direct": 1.4}, 0.4, 1.0, 5.0, None,
        ),
    )  # fmt: skip
    return {each.row.name: each for each in rows}


SIZES_BY_HAND = [
    Moved(Size("first", 5e12, 10e12, 4.0, None), 6 * 10**12, 7 * 10**12, 8 * 10**13, "first refit"),
    Moved(Size("second", 1e12, 2e12, None, None), 10**12, 10**12, None, "second refit"),
]

TABLES_BY_HAND = """\
### Nothing fitted

| row | T* | `optimal` | `m2n-node-aware` | `m2n-uniform` | `direct` | `hybrid` | `gather-broadcast` | collectives | `optimal`, own buffers |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| qwen3-235b-h100 | 1 s | 1.1 s | 1.2 s |  |  | 1.5 s | 9 s | 4 s | 1.3 s (1.04 x T*) |
| deepseek-v3-gb200 | 500 ms | 550 ms | 540 ms |  |  | 2 s | 20 s | 3 s | 600 ms (1.20 x T*) |
| nemotron-ultra-gb200 | 400 ms | 440 ms | refused |  |  | 1.55 s | 15 s | 2.5 s |  |
| qwen3-235b-m2n | 200 ms | 220 ms | 250 ms | 300 ms | 1.1 s | 600 ms | 5 s | 1 s |  |

### Two parameters fitted

Gathering and broadcasting takes 2 ms per tensor, fitted on the first figure of `qwen3-235b-h100`; M2N takes 5 ms per call, fitted on the second figure of `qwen3-235b-m2n`. All other figures are predictions. Which row is fitted matters: with this one speedups off by more than 25% are `deepseek-v3-gb200`; fitted on `deepseek-v3-gb200`, they would be `qwen3-235b-h100`, `nemotron-ultra-gb200`; on `nemotron-ultra-gb200`, they would be `deepseek-v3-gb200`.

| row |  | published | simulated |  | published speedup | simulated speedup |  |
| --- | --- | --- | --- | --- | --- | --- | --- |
| qwen3-235b-h100 | `gather-broadcast` | 6 s | 6 s | fitted |  |  |  |
|  | `hybrid` | 2.2 s | 2 s | -9% | 2.73 | 3.00 | +10% |
| deepseek-v3-gb200 | `gather-broadcast` | 11 s | 7 s | -36% |  |  |  |
|  | `hybrid` | 6 s | 3 s | -50% | 1.83 | 2.33 | +27% |
| nemotron-ultra-gb200 | `gather-broadcast` | 5 s | 4.5 s | -10% |  |  |  |
|  | `hybrid` | 2 s | 1.8 s | -10% | 2.50 | 2.50 | +0% |
| qwen3-235b-m2n | `direct` | 2 s | 1.9 s | -5% |  |  |  |
|  | `m2n-node-aware` | 1 s | 1 s | fitted | 2.00 | 1.90 | -5% |

### What the times are made of

| row | published | is made of | not accounted for |
| --- | --- | --- | --- |
| qwen3-235b-h100 | `gather-broadcast` 6.00 s | bytes, twice 4.00 s; 1000 tensors 2.00 s | +0.00 s (+0%) |
|  | `hybrid` 2.20 s | T* 1.00 s; feed-forward weights beyond that 0.20 s; others by broadcast, after them 0.30 s; 100 calls 0.50 s | +0.20 s (+9%) |
| deepseek-v3-gb200 | `gather-broadcast` 11.00 s | bytes, twice 3.00 s; 2000 tensors 4.00 s | +4.00 s (+36%) |
|  | `hybrid` 6.00 s | T* 0.50 s; feed-forward weights beyond that 0.30 s; others by broadcast, after them 1.20 s; 200 calls 1.00 s | +3.00 s (+50%) |
| nemotron-ultra-gb200 | `gather-broadcast` 5.00 s | bytes, twice 2.50 s; 1000 tensors 2.00 s | +0.50 s (+10%) |
|  | `hybrid` 2.00 s | T* 0.40 s; feed-forward weights beyond that 0.20 s; others by broadcast, after them 0.95 s; 50 calls 0.25 s | +0.20 s (+10%) |
| qwen3-235b-m2n | `direct` 2.00 s | bytes 1.10 s; waiting between patterns 0.30 s; 100 calls 0.50 s | +0.10 s (+5%) |
|  | `m2n-node-aware` 1.00 s | T* 0.20 s; plan, efficiency, latency 0.05 s; waiting between patterns 0.25 s; 100 calls 0.50 s | +0.00 s (+0%) |

### What this shows

- `optimal` is simulated at 1.10 (`qwen3-235b-h100`), 1.10 (`deepseek-v3-gb200`), 1.10 (`nemotron-ultra-gb200`), 1.10 (`qwen3-235b-m2n`) x T*, on no row above 1.15.
- Over the whole plan of `optimal` the busiest NIC takes 1.02 x T* at most, within the 1.05 that routes may cost; the rest is efficiency, latency and waiting in rounds.
- `optimal` is simulated at 0.92 (`qwen3-235b-h100`), 1.02 (`deepseek-v3-gb200`), 0.88 (`qwen3-235b-m2n`) x the time of `m2n-node-aware`, on no row more than 2% slower.
- Refits by `hybrid` are simulated at 0.33 to 0.78 x the published times, never above them, nothing fitted.
- `optimal` is simulated at 2.0 to 10.9 times the speed of the published refits, never slower than they are.
- The strategy `gather-broadcast` takes 1.5 to 3.0 times as long as what was published, never less: NCCL uses more than one NIC of a domain.
- The published times of gathering and broadcasting need 2 ms on `qwen3-235b-h100`, 4 ms on `deepseek-v3-gb200`, 2.5 ms on `nemotron-ultra-gb200` per tensor, the largest above 1.5 x the least: no one value is right.
- Where nothing was fitted, the simulated speedup is within 25% of the published one on: `nemotron-ultra-gb200`; it is further off on those that are accounted for below: `deepseek-v3-gb200`.

### Payloads of the largest models

| model | published: size | gathered and broadcast | computed: twice the size | reshard into all engines | broadcast into every domain | refit |
| --- | --- | --- | --- | --- | --- | --- |
| first | 5.0 TB | 10.0 TB | 12.0 TB | 7.0 TB | 80.0 TB | first refit; published 4 s |
| second | 1.0 TB | 2.0 TB | 2.0 TB | 1.0 TB | unknown | second refit |

### Layouts and sources

| row |  | GPUs | size | tensors | layout | times from | layout from |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""  # noqa: E501 - a line of a table is one line


def test_every_cell_and_sentence_of_rows_by_hand():
    text, untrue = report(list(by_hand().values()), SIZES_BY_HAND)
    assert untrue == []
    head, sources = text[: len(TABLES_BY_HAND)], text[len(TABLES_BY_HAND) :].splitlines()
    assert head == TABLES_BY_HAND
    row = BY_NAME["deepseek-v3-gb200"]
    assert len(sources) == 4
    assert sources[1] == (
        "| deepseek-v3-gb200 | DGX GB200, DeepSeek-V3 | 512 | 1000 GB | 2000"
        f" | 16 stages of 16 GPUs, TP1, EP16 to TP32 x DP8 | {row.source} | {row.spread_source} |"
    )


FALSE: dict[str, tuple[str, dict[str, Any], str]] = {
    "bound": (FITTED_TENSOR, {"optimal": 1.16}, "`optimal` is simulated at 1.16 (`qwen3-235b-h100`), 1.10"),
    "routes": (FITTED_TENSOR, {"busiest_s": 1.06}, "Over the whole plan of `optimal` the busiest NIC"),
    "behind": (
        "deepseek-v3-gb200",
        {"m2n-node-aware": 0.53},
        "`optimal` is simulated at 0.92 (`qwen3-235b-h100`), 1.04",
    ),
    "hybrid above": (FITTED_TENSOR, {"hybrid": 2.3}, "Refits by `hybrid` are simulated at 0.33 to 1.05"),
    "optimal slower": (
        "nemotron-ultra-gb200",
        {"optimal": 2.1, "bound_s": 2.0},
        "`optimal` is simulated at 1.0 to 10.9 times",
    ),
    "chain": (FITTED_TENSOR, {"chain_s": 5.9}, "The strategy `gather-broadcast` takes 1.0 to 3.0"),
    "one value": ("deepseek-v3-gb200", {"before_s": 9.0}, "The published times of gathering"),
    "far, not known": ("nemotron-ultra-gb200", {"before_s": 7.0}, "Where nothing was fitted"),
    "known, not far": ("deepseek-v3-gb200", {"after_s": 4.0}, "Where nothing was fitted"),
}
"""What is changed of which row by hand, and how the sentence begins that is untrue then."""


@pytest.mark.parametrize(("name", "changes", "begin"), FALSE.values(), ids=FALSE.keys())
def test_a_claim_that_is_not_true_is_told(name, changes, begin):
    rows = by_hand()
    each = rows[name]
    fields = {key: value for key, value in changes.items() if key in ("busiest_s", "bound_s", "chain_s")}
    published = {key: value for key, value in changes.items() if key in ("before_s", "after_s")}
    times = {key: value for key, value in changes.items() if key in each.times_s}
    assert fields | published | times == changes
    row = dataclasses.replace(each.row, **published)
    rows[name] = dataclasses.replace(each, row=row, times_s=each.times_s | times, **fields)
    untrue = report(list(rows.values()), [])[1]
    assert [sentence.startswith(begin) for sentence in untrue] == [True]


def test_goals_are_met_up_to_their_edges():
    """At 1.15 x T* and 2 % behind nothing is untrue; there is no other whitelist than that of speedups."""
    rows = by_hand()
    for name, times_s in (
        (FITTED_TENSOR, {"optimal": 1.1499}),
        ("deepseek-v3-gb200", {"optimal": 0.55, "m2n-node-aware": 0.5393}),
    ):
        each = rows[name]
        rows[name] = dataclasses.replace(each, times_s=each.times_s | times_s)
    assert report(list(rows.values()), [])[1] == []
    assert {"deepseek-v3-h100", "deepseek-v3-gb200"} == FAR


@pytest.mark.parametrize("name", by_hand())
def test_of_one_row_nothing_is_said_that_takes_several(name):
    text, untrue = report([by_hand()[name]], [])
    assert untrue == []
    assert "no one value" not in text
    assert "fitted on" not in text
    assert "Where nothing was fitted" not in text
    assert not re.search(r"\d to \d", text.partition("### Layouts")[0])


def test_of_the_fitted_rows_alone_no_prediction_is_claimed():
    rows = by_hand()
    text, untrue = report([rows[FITTED_TENSOR], rows[FITTED_CALL]], [])
    assert untrue == []
    assert "### Two parameters fitted" in text
    assert "Where nothing was fitted" not in text


def test_own_buffers_are_simulated_beside_their_own_bound():
    """The model enters one domain, once, by eight NICs of 50 GB/s, of which 95 % is reached."""
    found_s, bound_s = own_buffers(Whole("Qwen3-4B", "megatron tp=4 gpus=8", "vllm tp=4 dp=2"))
    parameters = load_model(CONFIGS / "Qwen3-4B.json").parameters
    assert bound_s == pytest.approx(sum(2 * prod(each.shape) for each in parameters) / 8 / 50e9)
    assert bound_s / 0.95 <= found_s < 1.02 * bound_s / 0.95


def test_payloads_are_those_of_whole_refits():
    """Sixteen engines of eight ranks, each all of a domain: a copy of the model for each of them."""
    parameters = load_model(CONFIGS / "Qwen3-235B-A22B.json").parameters
    nbytes = sum(2 * prod(each.shape) for each in parameters)
    found = moved(Size("by hand", 1.0, 1.0, None, "qwen3-235b"))
    assert (found.nbytes, found.broadcast_nbytes) == (nbytes, 16 * nbytes)
    assert found.needed_nbytes == 16 * nbytes
    assert found.about.startswith("Qwen3-235B-A22B, megatron tp=4 pp=8 ep=16 to vllm tp=8 dp=16")
    unknown = Size("by hand", 3e12, 6e12, None, None)
    assert moved(unknown) == Moved(
        unknown, 3 * 10**12, 3 * 10**12, None, "one copy; layouts and parameters are not public"
    )


def test_the_page_has_the_published_figures_and_what_follows_from_them_alone():
    text = generated()
    for row in PUBLISHED:
        assert f"| {row.name} | `{row.before}` | {format_s(row.before_s)} |" in text
        assert f"`{row.after}` | {format_s(row.after_s)} |" in text
        spec = build_simple(row.weights(), row.spread)
        nbytes = sum(tensor.nbytes for tensor in spec.tensors)
        collective = format_s(2 * nbytes / published_account.collective_rate(spec.topology))
        assert re.search(rf"^\| {row.name} \|.* {re.escape(collective)} \|[^|]*\|$", text, re.MULTILINE)


def test_the_exit_code_says_whether_all_is_true(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.PLACE.begin}old\n{command.PLACE.end}after\n", encoding="utf-8")
    assert command.finish("new\n", [], page) == 0
    assert command.PLACE.read(page) == "new\n"
    assert capsys.readouterr() == ("new\n", "")
    assert command.finish("new\n", ["It is so.", "That too."]) == 1
    assert capsys.readouterr().err == "NOT TRUE: It is so.\nNOT TRUE: That too.\n"


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
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
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
