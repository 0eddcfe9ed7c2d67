"""``reshard-planner model``: from a configuration and two parallelisms to a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_cli import call, result

import reshard_planner as rp
from reshard_planner.models.load import load_model
from reshard_planner.render.model import format_gb

HERE = Path(__file__).parent
CONFIGS = HERE.parent / "examples" / "configs"
FAMILIES = json.loads((HERE / "data" / "model_tensors.json").read_text(encoding="utf-8"))

TINY = {
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "num_experts": 8,
    "moe_intermediate_size": 32,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}

TRAIN, SERVE = "megatron tp=2 pp=2 ep=4", "vllm tp=4"
"""8 ranks and 4."""

GROUPS = ("--train", TRAIN, "--serve", SERVE)

UNEQUAL = "its shards are not equal in size and number of copies"

ROW = 64 * 2
"""Bytes of a row of the embedding."""

NBYTES = ROW * (2 * 1000 + 2 * (2 * 128 + 2 * 32 + 8 + 8 * 3 * 32) + 2 * 2 + 1) + 2 * 2 * 16 * 2


def written(folder: Path, raw: object, name: str = "tiny.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, TINY)


def lines(outcome: tuple[int, str, str]) -> list[str]:
    """What one successful command prints, without the seconds that it took."""
    code, out, err = outcome
    assert (code, err) == (0, "")
    return [line.partition("compiled in")[1] or line for line in out.splitlines()]


# the inventory


def example(name: str) -> tuple[str, ...]:
    override = CONFIGS / f"{name}.override.yaml"
    more = ("--override", str(override)) if override.exists() else ()
    return (str(CONFIGS / f"{name}.json"), *more)


@pytest.mark.parametrize(
    ("name", "head", "size", "twice"),
    [
        ("Qwen3-235B-A22B", "235.1 billion parameters of qwen3_moe", "470.2 GB", "940.4 GB"),
        ("DeepSeek-V3", "671.0 billion parameters of deepseek_v3", "1,342.1 GB", "2,684.1 GB"),
        ("Qwen3.5-397B-A17B", "396.3 billion parameters of qwen3_5_moe", "792.7 GB", "1,585.4 GB"),
        ("Kimi-K3", "2,779.5 billion parameters of kimi_k3", "5,559.0 GB", "11.12 TB"),
    ],
)
def test_the_inventory_has_the_published_size_and_twice_that_as_payload(name, head, size, twice, capsys):
    first, *table, last = lines(call(capsys, "model", *example(name)))
    assert first == f"{name}: {head}"
    assert next(line for line in table if line.startswith("all ")).split("  ")[-2].strip() == size
    assert last.startswith(f"logical payload: gather and broadcast {twice}, ")
    assert last.endswith(f"; reshard {size}")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_kinds_add_up_to_the_model_in_text_and_json(path, capsys):
    override = example(path.stem)[2:]
    model = load_model(path, overrides=override[0] if override else None)
    found = result(capsys, "model", *example(path.stem))
    assert set(found) == {
        *("name", "family", "parameters", "nbytes", "gather_broadcast_nbytes"),
        *("feed_forward_share", "kinds", "notes"),
    }
    assert (found["name"], found["family"], found["notes"]) == (path.stem, model.family, list(model.notes))
    assert found["nbytes"] == model.nbytes == sum(kind["nbytes"] for kind in found["kinds"].values())
    assert found["parameters"] == sum(kind["parameters"] for kind in found["kinds"].values())
    assert found["gather_broadcast_nbytes"] == 2 * model.nbytes
    rows = lines(call(capsys, "model", *example(path.stem)))
    for kind, of in found["kinds"].items():
        [row] = [row for row in rows if row.startswith(f"{kind} ")]
        assert row.removeprefix(kind).replace(",", "").split()[:2] == [
            str(of["tensors"]),
            str(of["parameters"]),
        ]
        assert f"{100 * of['nbytes'] / model.nbytes:.1f} %" in row
    tensors = sum(kind["tensors"] for kind in found["kinds"].values())
    [row] = [row for row in rows if row.startswith("all ")]
    assert row.split()[1:3] == [f"{tensors:,}", f"{model.elements:,}"]
    assert sum(row.startswith("  note: ") for row in rows) == len(model.notes)


@pytest.mark.parametrize(
    ("name", "percent"), [("Qwen3-4B", 66.9), ("Qwen3-30B-A3B", 95.0), ("DeepSeek-V3", 97.6)]
)
def test_the_share_of_feed_forward_parts_is_the_published_one(name, percent, capsys):
    found = result(capsys, "model", *example(name))
    assert 100 * found["feed_forward_share"] == pytest.approx(percent, abs=0.06)


def test_a_plain_list_of_parameters_is_counted_too(tmp_path, capsys):
    path = written(tmp_path, [{"name": "w", "shape": [24 * 10**8, 1000], "dtype": "bfloat16"}], "list.json")
    found = result(capsys, "model", path)
    assert found["gather_broadcast_nbytes"] == 96 * 10**11
    assert list(found["kinds"]) == ["norms and other"]
    out = lines(call(capsys, "model", path))
    assert out[0] == "list: 2,400.0 billion parameters of plain"
    assert out[-1].startswith(f"logical payload: gather and broadcast {format_gb(96 * 10**11)}, ")
    assert "9,600.0 GB" in out[-1]


@pytest.mark.parametrize("given", ["model/config.json", "model", "model/../model", "."])
def test_a_folder_gives_its_name_to_files_that_are_called_alike(given, tmp_path, capsys, monkeypatch):
    (tmp_path / "model").mkdir()
    written(tmp_path / "model", TINY, "config.json")
    monkeypatch.chdir(tmp_path / "model" if given == "." else tmp_path)
    assert lines(call(capsys, "model", given))[0] == "model: 268,672 parameters of qwen3_moe"


def test_options_of_the_model_change_what_is_counted(tiny, tmp_path, capsys):
    override = tmp_path / "o.yaml"
    override.write_text("{vocab_size: 500}", encoding="utf-8")
    less = result(capsys, "model", tiny, "--override", override)
    assert less["nbytes"] == NBYTES - ROW * 2 * 500
    assert less["notes"] == ["vocab_size is 500 instead of 1000, from the override file"]
    assert result(capsys, "model", tiny, "--dtype", "float32")["nbytes"] == 2 * NBYTES
    deep = written(tmp_path, FAMILIES["deepseek_v3"]["config"], "deep.json")
    both = [result(capsys, "model", deep, *extra)["parameters"] for extra in ((), ("--mtp",))]
    assert both[0] < both[1]


# a plan


def test_the_text_of_a_plan_has_every_section(tiny, capsys):
    out = lines(call(capsys, "model", tiny, *GROUPS, "--topology", "gpus_per_domain=8"))
    before, after, before_padding, after_padding = 883_712, 562_176, 4 * 24 * ROW, 2 * 24 * ROW
    assert out[0] == "tiny: 268,672 parameters of qwen3_moe"
    start = out.index(f"train: {TRAIN}, 8 GPUs, ranks 0-7")
    whole = format_gb(NBYTES)
    sides = (("held before", before, before_padding), ("needed after", after, after_padding))
    assert out[start + 1 :][:10] == [
        "  note: layers per pipeline stage: 1 x 2",
        f"serve: {SERVE}, 4 GPUs, ranks 8-11",
        *(
            f"{word}: every byte, {whole} of {whole}; {format_gb(stored)} with copies, and"
            f" {format_gb(padding)} of padding"
            for word, stored, padding in sides
        ),
        f"this plan: {whole} over the network, the least that is possible",
        out[start + 6],
        "  6, such as model.layers.0.mlp.experts.*.gate_proj.weight: source: a shard lies in several places",
        f"  2, such as model.embed_tokens.weight: source: {UNEQUAL}",
        out[start + 9],
        "  tensors         27 of 525 KiB together",
    ]
    assert out[start + 6].startswith("NCCL M2N would refuse 8 of 27 parameters, ")
    assert out[start + 9].startswith("Plan ")
    for word in ("strategy", "network", "NVLink", "bound T*", "busiest NIC", "schedule", "peers", "staging"):
        assert any(line.startswith(f"  {word} ") for line in out[start:]), word
    assert out[-1] == "compiled in"


def test_the_json_of_a_plan_has_coverage_refusals_and_certificate(tiny, capsys):
    found = result(capsys, "model", tiny, *GROUPS)
    inventory = result(capsys, "model", tiny)
    assert {name: found[name] for name in inventory} == inventory
    assert found["nbytes"] == NBYTES
    assert found["coverage"] == {
        side: {"nbytes": NBYTES, "covered_nbytes": NBYTES, "stored_nbytes": stored, "padding_nbytes": padding}
        for side, stored, padding in (("src", 883_712, 4 * 24 * ROW), ("dst", 562_176, 2 * 24 * ROW))
    }
    assert [len(names) for names in found["m2n_refuses"].values()] == [2, 6]
    assert found["payload"]["network_nbytes"] == found["payload"]["minimum_network_nbytes"] == NBYTES
    assert found["payload"]["logical_nbytes"] == found["gather_broadcast_nbytes"] == 2 * NBYTES
    assert {"digest", "strategy", "tensors", "bound", "gap", "schedule", "peers", "compile_s"} <= set(found)


def test_the_plan_is_verified_and_the_spec_compiles_to_the_same(tiny, tmp_path, capsys):
    plan, spec = tmp_path / "p.reshard", tmp_path / "s.json"
    found = result(capsys, "model", tiny, *GROUPS, "-o", plan, "--spec", spec)
    assert result(capsys, "verify", plan)["ok"] is True
    assert rp.Plan.load(plan).digest == found["digest"]
    assert result(capsys, "compile", spec)["digest"] == found["digest"]
    out = lines(call(capsys, "model", tiny, *GROUPS, "-o", plan, "--spec", spec))
    assert out[-3:] == ["compiled in", f"wrote {spec}", f"wrote {plan}"]


@pytest.mark.parametrize(
    ("topology", "domain", "domains"),
    [
        ("dgx-a100", 8, 2),
        ("gb200-nvl72 gpus_per_domain=4", 4, 3),
        ("gb200-nvl72", 12, 1),
        ("gb200-nvl72 nodes=6 gpus_per_domain=8", 8, 3),
        ("gpus_per_domain=2", 2, 6),
        ("FILE", 6, 2),
    ],
)
def test_every_form_of_a_topology_is_taken(topology, domain, domains, tiny, tmp_path, capsys):
    file = tmp_path / "cluster of six.yaml"
    file.write_text(yaml.safe_dump({"domains": ["0-5", "6-11"]}), encoding="utf-8")
    spec = tmp_path / "s.json"
    given = str(file) if topology == "FILE" else topology
    result(capsys, "model", tiny, *GROUPS, "--topology", given, "--spec", spec)
    built = rp.ReshardSpec.load(spec).topology
    assert [len(built.domains[0].gpus), len(built.domains)] == [domain, domains]


def test_groups_of_engines_of_different_sizes_are_served_by_one_plan(tiny, tmp_path, capsys):
    spec, plan = tmp_path / "s.json", tmp_path / "p.reshard"
    decode = "vllm tp=2 dp=2 ep=4"
    found = result(capsys, "model", tiny, *GROUPS, "--serve", decode, "--spec", spec, "-o", plan)
    assert found["coverage"]["dst"]["covered_nbytes"] == NBYTES
    assert found["coverage"]["dst"]["padding_nbytes"] == 2 * 24 * ROW + 2 * 2 * 24 * ROW
    assert result(capsys, "run", plan)["correct"] is True
    built = rp.ReshardSpec.load(spec)
    assert {tuple(layout.mesh.ranks) for tensor in built.tensors for layout in tensor.dst} == {
        tuple(range(8, 12)),
        tuple(range(12, 16)),
    }
    apart = result(capsys, "model", tiny, *GROUPS, "--serve", f"{decode} ranks=40-43")
    assert apart["coverage"] == found["coverage"]


def test_groups_may_have_the_ranks_of_training(tiny, capsys):
    serve = "vllm tp=4 dp=2 ranks=0-7"
    found = result(capsys, "model", tiny, "--train", f"{TRAIN} ranks=0-7", "--serve", serve)
    assert found["payload"]["local_nbytes"] > 0
    assert found["payload"]["network_nbytes"] == 0
    # ranks that are named by others are not handed out
    apart = result(capsys, "model", tiny, "--train", TRAIN, "--serve", serve)
    assert apart["payload"]["local_nbytes"] == 0
    assert apart["payload"]["network_nbytes"] == NBYTES


def test_a_strategy_and_staging_are_those_of_the_plan(tiny, tmp_path, capsys):
    optimal, direct = (
        result(capsys, "model", tiny, "--train", TRAIN, "--serve", "vllm dp=8", *extra)
        for extra in ((), ("--strategy", "direct"))
    )
    assert direct["strategy"] == "direct"
    assert direct["payload"]["network_nbytes"] == 8 * optimal["payload"]["network_nbytes"]
    out = lines(call(capsys, "model", tiny, "--train", TRAIN, "--serve", "vllm dp=8", "--strategy", "direct"))
    assert f"this plan: {format_gb(8 * NBYTES)} over the network, at least {format_gb(NBYTES)}" in out
    spec = tmp_path / "s.json"
    small = result(capsys, "model", tiny, *GROUPS, "--staging", "128KiB", "--spec", spec)
    assert small["staging_nbytes"] <= 128 * 2**10
    assert rp.ReshardSpec.load(spec).options.staging_nbytes == 128 * 2**10
    result(capsys, "model", tiny, *GROUPS, "--spec", spec)
    assert rp.ReshardSpec.load(spec).options.staging_nbytes == 2**30


def test_weights_that_are_trained_in_float32_travel_in_the_dtype_that_serves(tiny, capsys):
    same = result(capsys, "model", tiny, *GROUPS)
    cast = result(capsys, "model", tiny, "--train", f"{TRAIN} dtype=float32", "--serve", SERVE)
    assert cast["payload"]["network_nbytes"] == same["payload"]["network_nbytes"] == NBYTES
    assert [cast["coverage"][side]["nbytes"] for side in ("src", "dst")] == [2 * NBYTES, NBYTES]
    assert cast["coverage"]["src"]["padding_nbytes"] == 2 * same["coverage"]["src"]["padding_nbytes"]
    assert list(cast["m2n_refuses"]) == ["it is converted from float32 to bfloat16"]
    out = lines(call(capsys, "model", tiny, "--train", f"{TRAIN} dtype=float32", "--serve", SERVE))
    assert any(line.startswith("NCCL M2N would refuse 27 of 27 parameters") for line in out)


def test_a_list_without_roles_is_placed_by_patterns(tmp_path, capsys):
    model = written(
        tmp_path, [{"name": n, "shape": [8, 4], "dtype": "half"} for n in ("a.w", "b")], "list.json"
    )
    patterns = tmp_path / "p.yaml"
    patterns.write_text(
        "mesh: {axes: {dp: 2, tp: 2}}\n"
        "parameters:\n- {match: 'a.*', placements: [R, S(0)]}\n- {match: '*', placements: [R, R]}\n",
        encoding="utf-8",
    )
    found = result(capsys, "model", model, "--train", "fsdp dp=4", "--serve", f"plain file={patterns}")
    assert found["coverage"]["dst"]["stored_nbytes"] == 2 * 64 + 4 * 64
    assert found["m2n_refuses"] == {}
    out = lines(call(capsys, "model", model, "--train", "fsdp dp=4", "--serve", f"plain file={patterns}"))
    assert "NCCL M2N would refuse nothing" in out
