"""Models: what configurations and checkpoints say of parameters, and what contradicts itself is refused."""

from __future__ import annotations

import copy
import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from reshard_planner.errors import ModelError
from reshard_planner.models import roles
from reshard_planner.models.config import Config
from reshard_planner.models.families import FAMILIES, build_model, find_family
from reshard_planner.models.headers import read_checkpoint, read_header
from reshard_planner.models.load import load_model, model_from_config

HERE = Path(__file__).parent
EXAMPLES = sorted((HERE.parent / "examples" / "configs").glob("*.json"))
TINY = json.loads((HERE / "data" / "model_tensors.json").read_text(encoding="utf-8"))
TOTALS = json.loads((HERE / "data" / "model_totals.json").read_text(encoding="utf-8"))
KIMI_K3_LAYERS = json.loads((HERE / "data" / "kimi_k3_layers.json").read_text(encoding="utf-8"))

PARTS = {
    "embed": {roles.EMBEDDING},
    "lm_head": {roles.HEAD},
    "dense_mlp": {roles.GATE, roles.UP, roles.DOWN},
    "routed_experts": {roles.EXPERT_GATE, roles.EXPERT_UP, roles.EXPERT_GATE_UP, roles.EXPERT_DOWN},
    "shared_experts": {roles.SHARED_GATE, roles.SHARED_UP, roles.SHARED_DOWN},
    "router": {roles.ROUTER},
    "latent_proj": {roles.LATENT_DOWN, roles.LATENT_UP},
    "attention": {
        *(roles.Q, roles.K, roles.V, roles.O),
        *(roles.Q_A, roles.Q_B, roles.KV_A, roles.KV_B, roles.ATTENTION_GATE),
    },
    "gdn": {roles.GDN_QKV, roles.GDN_Z, roles.GDN_B, roles.GDN_A, roles.GDN_CONV},
    "kda": {roles.KDA_Q, roles.KDA_K, roles.KDA_V, roles.KDA_G},
}
"""Roles of the parts of model_totals.json; the output projection belongs to the attention of its layer."""

by_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
by_tiny = pytest.mark.parametrize("name", TINY)


def override_of(path):
    """The override file of an example, None for those that need none."""
    override = path.with_name(f"{path.stem}.override.yaml")
    return override if override.exists() else None


def load_example(path, **arguments):
    return load_model(path, overrides=override_of(path), **arguments)


def example(name):
    return load_example(HERE.parent / "examples" / "configs" / f"{name}.json")


def part_of(model, parameter):
    linear = {"gdn": roles.GDN_QKV, "kda": roles.KDA_Q}
    if parameter.role == roles.O:
        for part, role in linear.items():
            if any(other.layer == parameter.layer and other.role == role for other in model.parameters):
                return part
    return next((part for part, members in PARTS.items() if parameter.role in members), None)


def tensors_of(model):
    """Names and shapes of the checkpoint's tensors that the parameters stand for."""
    found = {}
    for parameter in model.parameters:
        if "*" not in parameter.name:
            found[parameter.name] = list(parameter.shape)
            continue
        for number in range(parameter.tensors):
            found[parameter.name.replace("*", str(number))] = list(parameter.shape[1:])
    return found


def flat_fields(raw, prefix=""):
    """Dotted names of all fields of a configuration; those of text_config without it."""
    for name, value in raw.items():
        inner = "" if name == "text_config" else f"{prefix}{name}."
        if isinstance(value, dict):
            yield from flat_fields(value, inner)
        else:
            yield f"{prefix}{name}"


def without_field(raw, name):
    """A copy of a configuration in which no section has a field of a dotted name."""
    steps = name.split(".")
    found = copy.deepcopy(raw)
    for section in (found, found.get("text_config", {})):
        for step in steps[:-1]:
            section = section.get(step, {})  # noqa: PLW2901 - walking down
        section.pop(steps[-1], None)
    return found


# what configurations say


@by_example
def test_parts_have_the_elements_of_the_published_sizes(path):
    model = load_example(path)
    parts = Counter()
    for parameter in model.parameters:
        if part := part_of(model, parameter):
            parts[part] += parameter.elements
    expected = TOTALS[path.stem]
    assert parts == Counter(expected["by_part"])
    assert model.elements == pytest.approx(expected["total_params"], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("Qwen3-235B-A22B", 470.2), ("DeepSeek-V3", 1342.1), ("Llama-3.1-405B", 811.7)]
)
def test_models_have_their_published_sizes_in_bfloat16(name, gigabytes):
    model = example(name)
    assert round(model.nbytes / 1e9, 1) == gigabytes
    assert model.mtp_layers == 0


@pytest.mark.parametrize(
    ("name", "billions"), [("Kimi-K3", 2779.5), ("Qwen3.5-397B-A17B", 396.3), ("Llama-3.1-405B", 405.9)]
)
def test_models_have_their_published_numbers_of_parameters(name, billions):
    assert round(example(name).elements / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("name", "percent"), [("Qwen3-4B", 66.9), ("Qwen3-30B-A3B", 95.0), ("DeepSeek-V3", 97.6)]
)
def test_feed_forward_parts_have_their_published_share(name, percent):
    model = example(name)
    share = sum(parameter.elements for parameter in model.parameters if parameter.role in roles.FEED_FORWARD)
    # published to a tenth; 94.95 is printed as 95.0
    assert 100 * share / model.elements == pytest.approx(percent, abs=0.06)


@by_tiny
def test_names_and_shapes_are_those_of_transformers(name):
    assert tensors_of(model_from_config(TINY[name]["config"])) == TINY[name]["tensors"]


def test_layers_of_kimi_k3_are_those_of_its_checkpoint():
    model = example("Kimi-K3")
    dtypes = {"F32": "float32", "BF16": "bfloat16"}
    listed = {name: (dtypes[dtype], shape) for name, (dtype, shape) in KIMI_K3_LAYERS.items()}
    # planned as heads alone, in the dimensions of Kimi-Linear
    listed["language_model.model.layers.0.self_attn.A_log"] = ("float32", [1, 1, 96, 1])
    ours = {
        parameter.name: (parameter.dtype, list(parameter.shape))
        for parameter in model.parameters
        if parameter.layer in {0, 11} and ".experts." not in parameter.name
    }
    assert ours == listed
    experts = "language_model.model.layers.11.block_sparse_moe.experts.*"
    assert model.by_name[f"{experts}.w1.weight"].shape == (896, 3072, 3584)
    assert model.by_name[f"{experts}.w3.weight"].shape == (896, 3072, 3584)
    assert model.by_name[f"{experts}.w2.weight"].shape == (896, 3584, 3072)


@by_example
def test_every_parameter_is_named_once_and_has_a_role(path):
    model = load_example(path)
    assert len(model.by_name) == len(model.parameters)
    known = {value for name, value in vars(roles).items() if name.isupper() and isinstance(value, str)}
    assert {parameter.role for parameter in model.parameters} <= known


@by_example
def test_a_layer_has_every_role_once(path):
    model = load_example(path)
    assert max(Counter((one.layer, one.role) for one in model.parameters).values()) == 1


@by_example
def test_a_needed_field_that_is_missing_is_named(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    override = override_of(path)
    values = yaml.safe_load(override.read_text(encoding="utf-8")) if override else {}
    config = Config(raw, "config", values)
    build_model(find_family(raw["model_type"], "config"), config)
    needed = {name for name, is_needed in config.fields.items() if is_needed}
    assert needed <= {*flat_fields(raw), *values}
    assert len(needed) >= 7
    for name in needed:
        rest = {field: value for field, value in values.items() if field != name}
        with pytest.raises(ModelError, match=f"config lacks the field '{name}'; expected "):
            model_from_config(without_field(raw, name), "config", overrides=rest)
    for name in set(flat_fields(raw)) - needed - {"model_type"}:
        if name != "full_attention_interval":
            model_from_config(without_field(raw, name), overrides=values)


def test_kinds_of_layers_are_listed_or_follow_from_an_interval():
    raw = TINY["qwen3_5"]["config"]
    listed = {"layer_types": ["linear_attention", "full_attention"] * 2}
    bare = without_field(raw, "full_attention_interval")
    assert model_from_config({**bare, **listed}) == model_from_config(raw)
    with pytest.raises(ModelError, match="lacks the field 'layer_types'; expected a list of 4"):
        model_from_config(bare)


@by_tiny
@given(wrong=st.sampled_from(["four", -1, 0, 1.5, True, []]), data=st.data())
def test_a_needed_field_of_another_kind_is_named(name, wrong, data):
    raw = copy.deepcopy(TINY[name]["config"])
    config = Config(raw, "config")
    build_model(find_family(raw["model_type"], "config"), config)
    field = data.draw(
        st.sampled_from(sorted(name for name, needed in config.fields.items() if needed and name != "dtype"))
    )
    if (
        (field == "tie_word_embeddings" and wrong is True)
        or (field in {"first_k_dense_replace", "n_shared_experts", "num_shared_experts"} and wrong == 0)
        or (field == "linear_attn_config.kda_layers" and wrong == [])
    ):
        return
    with pytest.raises(ModelError, match=rf"config: {field} is .*; expected "):
        model_from_config(raw, "config", overrides={field: wrong})


@pytest.mark.parametrize(
    ("name", "field", "value", "expected"),
    [
        ("deepseek_v3", "topk_method", "psychic", "'noaux_tc' or 'group_limited_greedy' or 'greedy'"),
        (
            "qwen3_5",
            "layer_types",
            ["full_attention"] * 3 + ["mamba"],
            "a list of 4, each 'linear_attention'",
        ),
        ("qwen3_5", "layer_types", ["full_attention"] * 4, None),
        ("qwen3_5_moe", "mlp_only_layers", [1], r"\[\], as every layer"),
        ("qwen3_5", "linear_num_key_heads", 3, "a divisor of 4 value heads"),
        ("qwen3_moe", "mlp_only_layers", [4], "a list of different whole numbers from 0 to 3"),
        ("qwen3", "num_key_value_heads", 3, "a divisor of 4 query heads"),
        ("llama", "num_key_value_heads", 3, "a divisor of 4 query heads"),
        ("llama", "num_attention_heads", 6, "a divisor of 64, without a head_dim"),
        ("kimi_linear", "topk_method", "greedy", "'noaux_tc'"),
        ("kimi_linear", "linear_attn_config.full_attn_layers", [1, 4], r"\[4\], the other layers"),
    ],
)
def test_a_value_of_unknown_meaning_is_refused(name, field, value, expected):
    overrides = {field: value}
    if expected is None:
        field, expected = "full_attention_interval", r"layer_types, whose full layers are \[0, 1, 2, 3\]"
    with pytest.raises(ModelError, match=rf"config\.json: {field} is .*; expected .*{expected}"):
        model_from_config(TINY[name]["config"], overrides=overrides)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("qwen3_moe", "decoder_sparse_step", 1),
        ("qwen3_moe", "mlp_only_layers", []),
        ("deepseek_v3", "moe_layer_freq", 1),
        ("deepseek_v3", "topk_method", "noaux_tc"),
        ("kimi_linear", "moe_layer_freq", 1),
    ],
)
def test_a_missing_switch_is_what_transformers_takes_it_for(name, field, value):
    raw = TINY[name]["config"]
    assert model_from_config(without_field(raw, field)) == model_from_config({**raw, field: value})


def test_fields_that_no_shape_depends_on_are_ignored():
    raw = TINY["qwen3"]["config"]
    noise = {"rope_scaling": {"type": "yarn"}, "hidden_act": "unheard", "layer_types": ["sliding_attention"]}
    assert model_from_config({**raw, **noise}) == model_from_config(raw)


@pytest.mark.parametrize("model_type", ["gpt2", None, 4, ["llama"]])
def test_an_unknown_model_type_lists_the_known(model_type):
    with pytest.raises(
        ModelError, match=r"model_type is .*; expected one of deepseek_v3, .*, qwen3_moe"
    ) as raised:
        model_from_config({"model_type": model_type})
    assert all(known in str(raised.value) for known in FAMILIES)


def test_a_field_that_two_sections_say_differently_is_refused():
    raw = {**TINY["qwen3_5"]["config"], "tie_word_embeddings": True}
    with pytest.raises(ModelError, match=r"tie_word_embeddings is False within text_config and True outside"):
        model_from_config(raw)
    with pytest.raises(ModelError, match="text_config is 4; expected a mapping"):
        model_from_config({**raw, "text_config": 4})


def test_a_tied_head_is_no_parameter():
    raw = TINY["qwen3"]["config"]
    tied = model_from_config({**raw, "tie_word_embeddings": True})
    assert tied.tied
    assert set(model_from_config(raw).by_name) - set(tied.by_name) == {"lm_head.weight"}


# overrides and arguments


def test_every_override_is_noted_and_one_that_nobody_reads_is_refused():
    raw = TINY["qwen3"]["config"]
    model = model_from_config(raw, overrides={"intermediate_size": 96, "attention_bias": True})
    assert model.notes == (
        "intermediate_size is 96 instead of 80, from the override file",
        "attention_bias is True, from the override file",
    )
    assert model.by_name["model.layers.0.mlp.gate_proj.weight"].shape == (96, 64)
    with pytest.raises(ModelError, match=r"the override 'experts' is not read; this family reads .*head_dim"):
        model_from_config(raw, overrides={"experts": 4})


def test_overrides_of_sections_are_said_nested_or_with_dots():
    raw = TINY["kimi_linear"]["config"]
    nested = model_from_config(raw, overrides={"linear_attn_config": {"num_heads": 8}})
    assert nested == model_from_config(raw, overrides={"linear_attn_config.num_heads": 8})
    assert nested.linear_key_heads == 8
    raw = TINY["qwen3_5"]["config"]
    assert model_from_config(raw, overrides={"text_config": {"vocab_size": 97}}).vocab == 97


def test_disputed_values_come_from_the_override_file_alone():
    path = HERE.parent / "examples" / "configs" / "Qwen3.5-397B-A17B.json"
    with pytest.raises(
        ModelError, match=r"lacks the field 'shared_expert_intermediate_size'.* override file"
    ):
        load_model(path)
    assert "shared_expert_intermediate_size is 1024, from the override file" in load_example(path).notes


def test_the_dtype_is_that_of_the_configuration_or_the_argument():
    raw = TINY["llama"]["config"]
    assert {parameter.dtype for parameter in model_from_config(raw).parameters} == {"bfloat16"}
    old = {**without_field(raw, "dtype"), "torch_dtype": "torch.half"}
    assert {parameter.dtype for parameter in model_from_config(old).parameters} == {"float16"}
    assert {one.dtype for one in model_from_config(raw, dtype="float32").parameters} == {"float32"}
    assert {one.dtype for one in model_from_config(raw, overrides={"dtype": "half"}).parameters} == {
        "float16"
    }
    with pytest.raises(ModelError, match="dtype 'auto' is not a torch dtype"):
        model_from_config({**raw, "dtype": "auto"})


def test_the_bias_of_a_router_stays_in_float32():
    model = model_from_config(TINY["deepseek_v3"]["config"], dtype="bfloat16")
    assert {one.role for one in model.parameters if one.dtype == "float32"} == {roles.ROUTER_BIAS}


def test_quantisation_and_vision_are_noted():
    raw = {**TINY["qwen3_5"]["config"], "quantization_config": {}, "vision_config": {"depth": 1}}
    notes = model_from_config(raw).notes
    assert any("quantization_config is ignored" in note for note in notes)
    assert "the vision tower is left out" in notes


def test_layers_of_multi_token_prediction_come_after_the_decoder_layers():
    raw = TINY["deepseek_v3"]["config"]
    assert model_from_config(raw).notes == ("layers of multi-token prediction are left out: 1",)
    model = model_from_config(raw, mtp=True)
    extra = {one.name: one for one in model.parameters if one.layer is not None and one.layer >= model.layers}
    decoder = {one.name.replace("layers.3.", "layers.4.") for one in model.parameters if one.layer == 3}
    added = {f"model.layers.4.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")}
    assert set(extra) == decoder | added
    assert extra["model.layers.4.eh_proj.weight"].shape == (64, 128)
    assert (model.layers, model.mtp_layers) == (4, 1)


def test_prediction_of_qwen3_5_is_gated_attention_with_its_own_names():
    raw = {**TINY["qwen3_5_moe"]["config"], "mtp_num_hidden_layers": 1}
    model = model_from_config(raw, mtp=True)
    names = {one.name for one in model.parameters if one.layer == model.layers}
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight"} <= names
    assert model.by_name["mtp.layers.0.mlp.experts.gate_up_proj"].shape == (6, 48, 64)
    with pytest.raises(ModelError, match="lacks the field 'mtp_num_hidden_layers'"):
        model_from_config(TINY["qwen3_5_moe"]["config"], mtp=True)


# checkpoints


def write_checkpoint(folder, tensors, config=None, files=2):
    """A checkpoint of zeros in some files, with an index, and a configuration beside it."""
    parts = [{} for _ in range(files)]
    for number, (name, (dtype, shape)) in enumerate(tensors.items()):
        parts[number % files][name] = np.zeros(shape, dtype)
    weight_map = {}
    for number, part in enumerate(parts):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(array.nbytes for part in parts for array in part.values())
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )
    if config is not None:
        write_json(folder / "config.json", config)
    return folder


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_tiny(folder, name, change=lambda tensors: tensors):
    tensors = {tensor: (np.float16, shape) for tensor, shape in TINY[name]["tensors"].items()}
    return write_checkpoint(folder, change(tensors), TINY[name]["config"])


@by_tiny
def test_a_checkpoint_gives_the_model_of_its_configuration_in_the_dtypes_of_its_files(name, tmp_path):
    folder = write_tiny(tmp_path, name)
    model = load_model(folder)
    expected = model_from_config(TINY[name]["config"])
    assert [(one.name, one.shape, one.role) for one in model.parameters] == [
        (one.name, one.shape, one.role) for one in expected.parameters
    ]
    assert {one.dtype for one in model.parameters} == {"float16"}
    assert load_model(folder / "model.safetensors.index.json") == model
    assert load_model(folder, dtype="bfloat16").parameters == expected.parameters


def test_a_checkpoint_that_differs_from_its_configuration_names_the_first_of_each_kind(tmp_path):
    def change(tensors):
        del tensors["model.layers.0.mlp.up_proj.weight"], tensors["model.norm.weight"]
        return {**tensors, "lm_head.weight": (np.float16, (95, 64)), "model.extra": (np.float16, (1,))}

    with pytest.raises(ModelError) as raised:
        load_model(write_tiny(tmp_path, "qwen3", change))
    assert str(raised.value) == (
        f"{tmp_path} does not fit its configuration: missing tensors: 2, first"
        " 'model.layers.0.mlp.up_proj.weight'; surplus tensors: 1, first 'model.extra'; tensors of other"
        " shapes: 1, first 'lm_head.weight' with [95, 64] instead of [96, 64]"
    )


def test_a_missing_expert_is_named_by_its_number(tmp_path):
    gone = "model.layers.0.mlp.experts.4.down_proj.weight"
    with pytest.raises(ModelError, match=f"missing tensors: 1, first '{gone}'$"):
        load_model(
            write_tiny(tmp_path, "qwen3_moe_all", lambda found: {k: v for k, v in found.items() if k != gone})
        )


def test_experts_of_one_parameter_have_one_dtype(tmp_path):
    odd = "model.layers.0.mlp.experts.4.down_proj.weight"
    with pytest.raises(
        ModelError, match=r"tensors of '.*experts\.\*\.down_proj.weight' are float16 and float32"
    ):
        load_model(
            write_tiny(tmp_path, "qwen3_moe_all", lambda found: {**found, odd: (np.float32, found[odd][1])})
        )


def test_stacked_experts_may_be_stored_one_by_one(tmp_path):
    def unstack(tensors):
        found = {}
        for name, (dtype, shape) in tensors.items():
            place, _, module = name.rpartition(".experts.")
            if module == "gate_up_proj":
                halves = [shape[1] // 2, shape[2]]
                found |= {
                    f"{place}.experts.{i}.{m}.weight": (dtype, halves)
                    for i in range(6)
                    for m in ("gate_proj", "up_proj")
                }
            elif module == "down_proj":
                found |= {f"{place}.experts.{i}.down_proj.weight": (dtype, shape[1:]) for i in range(6)}
            else:
                found[name] = (dtype, shape)
        return found

    model = load_model(write_tiny(tmp_path, "qwen3_5_moe", unstack))
    stacked = model_from_config(TINY["qwen3_5_moe"]["config"])
    assert model.elements == stacked.elements
    gate = model.by_name["model.language_model.layers.0.mlp.experts.*.gate_proj.weight"]
    assert (gate.role, gate.shape, gate.tensors) == (roles.EXPERT_GATE, (6, 24, 64), 6)


def test_quantised_weights_keep_the_dtype_of_the_configuration(tmp_path):
    eight = "model.layers.0.mlp.up_proj.weight"
    four = "model.layers.0.mlp.gate_proj.weight"

    def change(tensors):
        del tensors[four]
        return {
            **tensors,
            eight: (np.uint8, (80, 64)),
            f"{eight}_scale_inv": (np.float32, (1, 1)),
            f"{four}_packed": (np.uint8, (80, 32)),
            f"{four}_scale": (np.uint8, (80, 2)),
        }

    model = load_model(write_tiny(tmp_path, "llama", change))
    assert model.by_name[eight].dtype == model.by_name[four].dtype == "bfloat16"
    assert model.by_name[four].shape == (80, 64)
    assert model.notes == ("weights that the checkpoint holds quantised are planned as bfloat16: 2",)


def test_packed_weights_of_another_size_are_refused(tmp_path):
    name = "model.layers.0.mlp.gate_proj.weight"

    def change(tensors):
        del tensors[name]
        return {**tensors, f"{name}_packed": (np.uint8, (80, 31)), f"{name}_scale": (np.uint8, (80, 2))}

    with pytest.raises(ModelError, match=f"first '{name}' with .80, 31. instead of .80, 64.$"):
        load_model(write_tiny(tmp_path, "llama", change))


def test_what_stands_beside_the_parameters_is_noted(tmp_path):
    def change(tensors):
        half = np.float16
        return {
            **tensors,
            "model.layers.4.enorm.weight": (half, (64,)),
            "model.layers.4.embed_tokens.weight": (half, (96, 64)),
            "model.layers.0.self_attn.rotary_emb.inv_freq": (half, (2,)),
        }

    notes = load_model(write_tiny(tmp_path, "deepseek_v3", change)).notes
    assert (
        len([note for note in notes if note.startswith("tensors of the checkpoint are left out, as ")]) == 3
    )


def test_a_head_that_a_tied_checkpoint_also_stores_is_left_out(tmp_path):
    folder = write_tiny(
        tmp_path, "qwen3_tied_bias", lambda found: {**found, "lm_head.weight": (np.float16, (96, 64))}
    )
    model = load_model(folder)
    assert "lm_head.weight" not in model.by_name
    assert "tensors of the checkpoint are left out, as the head is tied to the embedding: 1" in model.notes


def test_padded_heads_of_a_log_are_accepted(tmp_path):
    name = "model.layers.0.self_attn.A_log"
    model = load_model(
        write_tiny(tmp_path, "kimi_linear", lambda found: {**found, name: (np.float32, (128,))})
    )
    assert model.by_name[name].shape == (1, 1, 4, 1)
    assert any("A_log" in note for note in model.notes)


@pytest.mark.parametrize("config", [None, {"model_type": "gpt2"}])
def test_a_checkpoint_without_a_known_family_gives_parameters_without_roles(config, tmp_path):
    tensors = {"b": (np.float32, (2, 3)), "a": (np.int8, ()), "c": (np.float16, (0, 2))}
    folder = write_checkpoint(tmp_path, tensors, config)
    model = load_model(folder)
    assert model.family == "plain"
    assert [(one.name, one.shape, one.dtype, one.role) for one in model.parameters] == [
        ("a", (), "int8", ""),
        ("b", (2, 3), "float32", ""),
        ("c", (0, 2), "float16", ""),
    ]
    assert [one.dtype for one in load_model(folder, dtype="half").parameters] == [
        "int8",
        "float16",
        "float16",
    ]
    with pytest.raises(ModelError, match=r"overrides are for a configuration of a known family"):
        load_model(folder, overrides={"a": 1})


def test_one_file_needs_no_index(tmp_path):
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    assert load_model(tmp_path) == load_model(tmp_path / "model.safetensors")
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(
        ModelError, match=r"tensor 'a' is in model\.safetensors and in .*other\.safetensors; expected one"
    ):
        load_model(tmp_path)


# checkpoints that lie


def write_raw(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "nbytes", "expected"),
    [
        (b"{", 0, "its header is not valid JSON at line 1"),
        (b"\xff", 0, "its header is not text in UTF-8"),
        (b'{"a": 1, "a": 2}', 0, "its header is the field 'a' is given twice"),
        ([], 0, r"its header is \[\]; expected a mapping"),
        ({"a": 4}, 0, "tensor 'a' is 4; expected a mapping of dtype"),
        ({"a": {**entry(), "dtype": 12}}, 8, "tensor 'a' has dtype 12; expected one of BOOL"),
        ({"a": {**entry(), "dtype": "F12"}}, 8, "tensor 'a' has dtype 'F12'; expected one of BOOL"),
        ({"a": {**entry(), "shape": [-2]}}, 8, r"tensor 'a' has shape \[-2\]; expected a list"),
        ({"a": {**entry(), "shape": None}}, 8, "tensor 'a' has shape None; expected a list"),
        ({"a": {**entry(), "data_offsets": [0]}}, 8, r"tensor 'a' has data_offsets \[0\]; expected two"),
        (
            {"a": entry(shape=(3,))},
            8,
            r"tensor 'a' has data_offsets 0 to 8; expected 12 bytes for F32 and \[3\]",
        ),
        ({"a": entry(offsets=(8, 0))}, 8, "tensor 'a' has data_offsets 8 to 0; expected 8 bytes"),
        (
            {"a": entry(), "b": entry(offsets=(4, 12))},
            12,
            "tensor 'b' begins at byte 4 of the data; 'a' ends at 8",
        ),
        (
            {"a": entry(), "b": entry(offsets=(9, 17))},
            17,
            "tensor 'b' begins at byte 9 of the data; expected 8",
        ),
        ({"a": entry()}, 7, "has 7 bytes of data; its tensors have 8"),
        ({"a": entry()}, 9, "has 9 bytes of data; its tensors have 8"),
    ],
)
def test_a_header_that_lies_is_refused_in_one_sentence(header, nbytes, expected, tmp_path):
    compact = json.dumps(header, separators=(",", ":")).encode() if not isinstance(header, bytes) else header
    for text in (header, compact):
        path = write_raw(tmp_path / "x.safetensors", text, bytes(nbytes))
        with pytest.raises(ModelError, match=expected) as raised:
            read_header(path)
        assert str(raised.value).startswith(str(path))
        assert "\n" not in str(raised.value)


def test_a_name_that_a_compact_header_gives_twice_is_refused(tmp_path):
    one, other = (json.dumps(entry(shape=shape), separators=(",", ":")) for shape in ((2,), (2, 1)))
    path = write_raw(tmp_path / "x.safetensors", f'{{"a":{one},"a":{other}}}'.encode(), bytes(8))
    with pytest.raises(ModelError, match="the field 'a' is given twice"):
        read_header(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "has 0 bytes; expected at least 8"),
        (b"\x01\x00\x00", "has 3 bytes; expected at least 8"),
        (struct.pack("<Q", 2**63) + b"{}", "its header has 9223372036854775808 bytes; expected at most 2"),
        (struct.pack("<Q", 3) + b"{}", "its header has 3 bytes; expected at most 2"),
    ],
)
def test_a_truncated_file_is_refused(content, expected, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=expected):
        load_model(path)


@given(cut=st.integers(0, 199), flip=st.integers(0, 255))
def test_a_damaged_file_is_refused_or_still_holds_together(cut, flip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    save_file({"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.int8)}, folder / "x.safetensors")
    content = bytearray((folder / "x.safetensors").read_bytes())
    content[cut % len(content)] ^= flip
    (folder / "x.safetensors").write_bytes(content[: len(content) - cut % 3])
    try:
        tensors = read_header(folder / "x.safetensors")
    except ModelError:
        return
    length = int.from_bytes(content[:8], "little")
    assert sum(tensor.nbytes for tensor in tensors.values()) == len(content) - cut % 3 - 8 - length


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"metadata": {"total_size": 41}}, "metadata.total_size is 41; its tensors have 40 bytes"),
        ({"weight_map": {}}, "has no mapping weight_map; expected the file name of every tensor"),
        ({"weight_map": {"a": 4}}, "the file of 'a' is 4; expected the name of a file beside it"),
        (
            {"weight_map": {"a": "../x"}},
            r"the file of 'a' is '\.\./x'; expected the name of a file beside it",
        ),
    ],
)
def test_an_index_that_lies_is_refused(change, expected, tmp_path):
    write_checkpoint(tmp_path, {"a": (np.float32, (4,)), "b": (np.float32, (6,))})
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**index, **change})
    with pytest.raises(ModelError, match=expected):
        load_model(tmp_path)


def test_an_index_and_its_files_name_the_same_tensors(tmp_path):
    write_checkpoint(tmp_path, {"a": (np.float32, (4,)), "b": (np.float32, (6,))})
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    first, second = index["weight_map"]["a"], index["weight_map"]["b"]
    for weight_map, expected in (
        ({"a": first, "b": second, "c": second}, f"'c' is in '{second}', but that file has no such tensor"),
        ({"b": second, "c": first}, f"{first} has the tensor 'a'; {path.name} lacks it"),
        ({"a": second, "b": second, "c": first}, f"has the tensor 'a'; {path.name} has it in '{second}'"),
    ):
        write_json(path, {"weight_map": weight_map})
        with pytest.raises(ModelError, match=expected):
            load_model(tmp_path)
    write_json(path, {"weight_map": index["weight_map"]})
    assert len(load_model(tmp_path).parameters) == 2
    (tmp_path / second).unlink()
    with pytest.raises(ModelError, match=f"cannot read .*{second}: No such file"):
        load_model(tmp_path)


@given(
    shapes=st.dictionaries(
        st.text("abc.", min_size=1, max_size=4), st.lists(st.integers(0, 4), max_size=3), max_size=5
    )
)
def test_headers_say_what_was_written(shapes, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "x.safetensors"
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)
    found = read_checkpoint(path)
    assert {name: list(tensor.shape) for name, tensor in found.items()} == shapes
    assert list(found) == sorted(shapes)


# plain lists, and what is no model


def test_a_plain_list_gives_parameters_without_roles(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text(
        "[{name: w, shape: [8, 4], dtype: half}, {name: i, shape: [], dtype: torch.int64}]", encoding="utf-8"
    )
    model = load_model(path)
    assert [(one.name, one.shape, one.dtype, one.role) for one in model.parameters] == [
        ("w", (8, 4), "float16", ""),
        ("i", (), "int64", ""),
    ]
    assert [one.dtype for one in load_model(path, dtype="float32").parameters] == ["float32", "int64"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]", "is an empty list; expected at least one parameter"),
        ("[4]", r"\[0\] is 4; expected a mapping of name, shape, dtype"),
        ("[{name: w, shape: [1]}]", r"\[0\] lacks the field 'dtype'"),
        ("[{name: w, shape: [-1], dtype: half}]", r"\[0\]\.shape is \[-1\]; expected whole numbers"),
        ("[{name: w, shape: [1], dtype: tall}]", r"\[0\]\.dtype: dtype 'tall' is not a torch dtype"),
        ("[{name: '', shape: [1], dtype: half}]", r"\[0\]\.name is ''; expected a name that no other has"),
        (
            "[&a {name: w, shape: [1], dtype: half}, *a]",
            r"\[1\]\.name is 'w'; expected a name that no other has",
        ),
        ("4", "is no model; expected a configuration with model_type, an index with weight_map, or a list"),
        ("{hidden_size: 4}", "is no model; expected a configuration"),
        ("{", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_model_is_refused(content, expected, tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=expected):
        load_model(path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(
        ModelError, match=r"has no safetensors file and no config\.json; expected a model's folder"
    ):
        load_model(tmp_path)
    with pytest.raises(ModelError, match=r"cannot read"):
        load_model(tmp_path / "nowhere")
    write_json(tmp_path / "config.json", TINY["llama"]["config"])
    assert load_model(tmp_path) == model_from_config(TINY["llama"]["config"])
    write_json(tmp_path / "override.json", [])
    with pytest.raises(ModelError, match=r"override\.json is no mapping; expected fields of a configuration"):
        load_model(tmp_path, overrides=tmp_path / "override.json")


def test_overrides_of_a_list_are_refused(tmp_path):
    path = write_json(tmp_path / "list.json", [{"name": "w", "shape": [1], "dtype": "half"}])
    with pytest.raises(
        ModelError, match=r"overrides are for a configuration, but .* is a list of parameters"
    ):
        load_model(path, overrides={"hidden_size": 1})
