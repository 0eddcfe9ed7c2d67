"""The models of published refits, where a configuration alone does not say how they were moved.

NCCL M2N's own benchmark moves a model in a simple form: the experts of a layer are one tensor per projection,
every mesh has at most two axes, and the rules of :data:`KINDS` say along which dimension tensor parallelism
cuts. DeepSeek-V3 is moved there in the element types of its checkpoint, float8 with float32 scales of
128 x 128 blocks.

The blocks of Nemotron Ultra v3 are known by kind and number, their order is not: every pipeline stage gets an
equal share of each kind here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil

import reshard_planner as rp
from benchmarks.case import layout
from benchmarks.models import EXPERT_DIM, SHARD_DIM, stage_of
from benchmarks.whole import CONFIGS
from reshard_planner.models.load import load_model
from reshard_planner.models.whole import OPTIONS
from reshard_planner.topology.presets import PRESETS

Weights = tuple[str, tuple[int, ...], str, int | None, int]
"""Name, shape, dtype, layer (None outside of layers) and number of checkpoint tensors."""

KINDS = {
    "column": (
        "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
        "kv_b_proj", "embed_tokens", "embeddings", "lm_head", "in_proj",
    ),
    "row": ("o_proj", "down_proj", "out_proj"),
}  # fmt: skip
"""How weights are cut, by the last word of their names; others are replicated (nccl_m2n, model benchmark)."""

BLOCK = 128
"""Rows and columns that have one scale in the checkpoint of DeepSeek-V3."""

QUANTIZED = frozenset((*KINDS["column"], *KINDS["row"])) - {"embed_tokens", "lm_head"}


@dataclass(frozen=True, slots=True)
class Spread:
    """How a model in the simple form is spread.

    Attributes:
        tp: tensor parallelism in training.
        ep: ranks that hold the experts of a layer once.
        pp: pipeline stages.
        stage_gpus: ranks of a stage.
        gen_tp: tensor parallelism in inference.
        gen_dp: replicas in inference.
        preset: name of the machine.
        gpus_per_domain: size of its domains; None for the preset's own.
    """

    tp: int
    ep: int
    pp: int
    stage_gpus: int
    gen_tp: int
    gen_dp: int
    preset: str
    gpus_per_domain: int | None = None

    @property
    def gpus(self) -> int:
        return self.pp * self.stage_gpus + self.gen_tp * self.gen_dp


def checkpoint(model: str) -> list[Weights]:
    """The parameters of a model that has a configuration, experts of a layer together."""
    parameters = load_model(CONFIGS / f"{model}.json").parameters
    return [(each.name, each.shape, each.dtype, each.layer, each.tensors) for each in parameters]


def quantized(weights: Iterable[Weights]) -> Iterator[Weights]:
    """The same with projections in float8, each with the scales of its blocks."""
    for name, shape, dtype, layer, tensors in weights:
        if _word(name) not in QUANTIZED:
            yield name, shape, dtype, layer, tensors
            continue
        yield name, shape, "float8_e4m3fn", layer, tensors
        blocks = (*shape[:-2], *(ceil(size / BLOCK) for size in shape[-2:]))
        yield f"{name}_scale_inv", blocks, "float32", layer, tensors


def nemotron_ultra() -> list[Weights]:
    """Nemotron Ultra v3 without its layer of multi-token prediction.

    Sizes: radixark/miles, scripts/models/nemotron-3-ultra-550b-a55b.py; the latent of the experts included.
    Layer i has the i-th Mamba and the i-th expert block, and every fourth an attention block.
    """
    hidden, latent, width, experts, shared = 8192, 2048, 5120, 512, 10240
    inner, groups, kernel, heads = 256 * 64, 2 * 8 * 128, 4, 256
    vocab = 131072
    mamba = {
        "mamba.in_proj.weight": (2 * inner + groups + heads, hidden),
        "mamba.conv1d.weight": (inner + groups, 1, kernel),
        "mamba.conv1d.bias": (inner + groups,),
        "mamba.A_log": (heads,),
        "mamba.D": (heads,),
        "mamba.dt_bias": (heads,),
        "mamba.norm.weight": (inner,),
        "mamba.out_proj.weight": (hidden, inner),
        "mamba_norm.weight": (hidden,),
    }
    moe = {
        "mlp.gate.weight": (experts, hidden),
        "mlp.gate.e_score_correction_bias": (experts,),
        "mlp.latent_down.weight": (latent, hidden),
        "mlp.latent_up.weight": (hidden, latent),
        "mlp.experts.*.up_proj.weight": (experts, width, latent),
        "mlp.experts.*.down_proj.weight": (experts, latent, width),
        "mlp.shared_experts.up_proj.weight": (shared, hidden),
        "mlp.shared_experts.down_proj.weight": (hidden, shared),
        "mlp_norm.weight": (hidden,),
    }
    attention = {
        "self_attn.q_proj.weight": (64 * 128, hidden),
        "self_attn.k_proj.weight": (2 * 128, hidden),
        "self_attn.v_proj.weight": (2 * 128, hidden),
        "self_attn.o_proj.weight": (hidden, 64 * 128),
        "attention_norm.weight": (hidden,),
    }
    found: list[Weights] = [("model.embeddings.weight", (vocab, hidden), "bfloat16", None, 1)]
    for layer in range(ULTRA_LAYERS):
        blocks = mamba | moe | (attention if layer % 4 == 3 else {})
        for name, shape in blocks.items():
            tensors = experts if ".experts." in name else 1
            found.append((f"model.layers.{layer}.{name}", shape, "bfloat16", layer, tensors))
    found.append(("model.norm.weight", (hidden,), "bfloat16", None, 1))
    found.append(("lm_head.weight", (vocab, hidden), "bfloat16", None, 1))
    return found


ULTRA_LAYERS = 48
"""Expert blocks, and as many Mamba blocks."""


def build_simple(weights: Iterable[Weights], spread: Spread) -> rp.ReshardSpec:
    """A model in the simple form as one spec: stages one after another, then inference."""
    weights = list(weights)
    layers = 1 + max(layer for _, _, _, layer, _ in weights if layer is not None)
    first_gen = spread.pp * spread.stage_gpus
    tensors = []
    for name, shape, dtype, layer, _ in weights:
        place = "first" if "embed" in name else "last"
        stage = stage_of(layer, place, layers, spread.pp)
        kind = kind_of(name)
        split, axes = (spread.ep, "S(0)") if kind in EXPERT_DIM else (spread.tp, _shard(SHARD_DIM.get(kind)))
        src = layout(stage * spread.stage_gpus, (spread.stage_gpus // split, split), ("R", axes))
        after = _shard({**SHARD_DIM, **EXPERT_DIM}[kind])
        dst = layout(first_gen, (spread.gen_dp, spread.gen_tp), ("R", after))
        tensors.append(rp.TensorSpec(name.replace(".*.", "."), shape, dtype, src, dst))
    nodes = spread.gpus // PRESETS[spread.preset].gpus_per_node
    topology = rp.Topology.preset(spread.preset, nodes, spread.gpus_per_domain)
    return rp.ReshardSpec(tensors, topology, OPTIONS)


def kind_of(name: str) -> str:
    """How a weight is cut; see :mod:`benchmarks.models`.

    >>> kind_of("model.layers.3.mlp.experts.*.down_proj.weight"), kind_of("model.norm.weight")
    ('expert_row', 'replicated')
    """
    word = "" if name.endswith("_scale_inv") else _word(name)
    kind = next((kind for kind, words in KINDS.items() if word in words), "replicated")
    return f"expert_{kind}" if ".experts." in name else kind


def _word(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]


def _shard(dim: int | None) -> str:
    return "R" if dim is None else f"S({dim})"
