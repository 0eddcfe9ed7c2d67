"""Tiny models, and runs of plans on what the oracle says that every rank stores."""

from __future__ import annotations

from functools import partial

import numpy as np
import storage_oracle as oracle

import reshard_planner as rp
from reshard_planner.models import roles
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.parallelism import parse_parallelism

DTYPE = "int32"
"""Contents are numbers of elements; what they mean does not matter to a plan."""

PADDING = -1
"""Contents of padding before: it must not arrive anywhere."""

HIDDEN = 2


def attention(model):
    heads, kv, size = model["heads"], model["kv_heads"], model["head_dim"]
    q_rows = heads * size * (1 + model.get("output_gate", False))
    for role, rows in (("q", q_rows), ("k", kv * size), ("v", kv * size)):
        yield role, f"{role}_proj.weight", (rows, HIDDEN)
        yield f"{role}_bias", f"{role}_proj.bias", (rows,)
    yield roles.O, "o_proj.weight", (HIDDEN, heads * size)
    yield roles.O_BIAS, "o_proj.bias", (HIDDEN,)
    yield roles.Q_NORM, "q_norm.weight", (size,)
    yield roles.K_NORM, "k_norm.weight", (size,)


def latent(model, *, q_rank=True):
    rows = model["heads"] * 3
    if q_rank:
        yield roles.Q_A, "q_a_proj.weight", (5, HIDDEN)
        yield roles.Q_A_NORM, "q_a_layernorm.weight", (5,)
        yield roles.Q_A_BIAS, "q_a_proj.bias", (5,)
        yield roles.KV_A_BIAS, "kv_a_proj_with_mqa.bias", (7,)
    yield roles.Q_B, "q_b_proj.weight" if q_rank else "q_proj.weight", (rows, 5 if q_rank else HIDDEN)
    yield roles.KV_A, "kv_a_proj_with_mqa.weight", (7, HIDDEN)
    yield roles.KV_A_NORM, "kv_a_layernorm.weight", (6,)
    yield roles.KV_B, "kv_b_proj.weight", (2 * rows, 6)
    yield roles.O, "o_proj.weight", (HIDDEN, rows)


def dense(model):
    size = model["size"]
    for role in ("gate", "up"):
        yield role, f"{role}_proj.weight", (size, HIDDEN)
        yield f"{role}_bias", f"{role}_proj.bias", (size,)
    yield roles.DOWN, "down_proj.weight", (HIDDEN, size)
    yield roles.DOWN_BIAS, "down_proj.bias", (HIDDEN,)


def routed(model, *, stacked=False):
    experts, size = model["experts"], model["size"]
    yield roles.ROUTER, "gate.weight", (experts, HIDDEN)
    yield roles.ROUTER_BIAS, "gate.bias", (experts,)
    yield roles.SHARED_GATE, "shared_expert.gate_proj.weight", (model["shared"], HIDDEN)
    yield roles.SHARED_UP, "shared_expert.up_proj.weight", (model["shared"], HIDDEN)
    yield roles.SHARED_DOWN, "shared_expert.down_proj.weight", (HIDDEN, model["shared"])
    yield roles.SHARED_ROUTER, "shared_expert_gate.weight", (1, HIDDEN)
    if stacked:
        yield roles.EXPERT_GATE_UP, "experts.gate_up_proj", (experts, 2 * size, HIDDEN)
        yield roles.EXPERT_DOWN, "experts.down_proj", (experts, HIDDEN, size)
    else:
        yield roles.EXPERT_GATE, "experts.*.gate_proj.weight", (experts, size, HIDDEN)
        yield roles.EXPERT_UP, "experts.*.up_proj.weight", (experts, size, HIDDEN)
        yield roles.EXPERT_DOWN, "experts.*.down_proj.weight", (experts, HIDDEN, size)


PARTS = {
    "attention": attention,
    "latent": latent,
    "direct": partial(latent, q_rank=False),
    "dense": dense,
    "routed": routed,
    "stacked": partial(routed, stacked=True),
}


def make(*layers, outside=False, tied=False, **sizes):
    """A model of layers such as ``attention+dense``, without norms where a part of a layer is alone."""
    found = []

    def add(role, name, shape, layer=None):
        found.append(Parameter(name, shape, DTYPE, role, layer))

    if outside:
        add(roles.EMBEDDING, "model.embed_tokens.weight", (sizes["vocab"], 1))
        add(roles.FINAL_NORM, "model.norm.weight", (HIDDEN,))
        if not tied:
            add(roles.HEAD, "lm_head.weight", (sizes["vocab"], 1))
    for number, kinds in enumerate(layers):
        at = f"model.layers.{number}."
        if "+" in kinds:
            add(roles.INPUT_NORM, f"{at}input_layernorm.weight", (HIDDEN,), number)
            add(roles.POST_NORM, f"{at}post_attention_layernorm.weight", (HIDDEN,), number)
        for kind in filter(None, kinds.split("+")):
            inner = "self_attn" if kind in {"attention", "latent", "direct"} else "mlp"
            for role, name, shape in PARTS[kind](sizes):
                add(role, f"{at}{inner}.{name}", shape, number)
    numbers = {name: size for name, size in sizes.items() if name not in {"size", "shared"}}
    return Model("tiny", tuple(found), len(layers), tied=tied, **numbers)


def megatron(**options):
    return "megatron", options


def vllm(**options):
    return "vllm", options


def text(framework, options):
    shown = (f"{key}={str(value).lower()}" for key, value in options.items())
    return " ".join((framework, *shown))


def run(model, before, after, *, strategy="direct", ranks=None):
    """The buffers that a run gives, by place of the rank in its framework and name, and those expected."""
    (src_framework, src_options), (dst_framework, dst_options) = before, after
    src = parse_parallelism(text(src_framework, src_options), "src")
    dst = parse_parallelism(text(dst_framework, dst_options), "dst")
    src_ranks, dst_ranks = range(src.gpus), range(src.gpus, src.gpus + dst.gpus)
    if ranks is not None:
        src_ranks, dst_ranks = ranks[0][: src.gpus], ranks[1][: dst.gpus]
    here, there = src.place(model, src_ranks), dst.place(model, dst_ranks)
    tensors = [
        rp.TensorSpec(
            parameter.name,
            parameter.shape,
            parameter.dtype,
            [one.layout for one in here[parameter.name]],
            [one.layout for one in there[parameter.name]],
            src_buffers=[one.buffers for one in here[parameter.name]],
            dst_buffers=[one.buffers for one in there[parameter.name]],
        )
        for parameter in model.parameters
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, options=rp.Options(strategy=strategy)))
    given_buffers = {}
    for (position, name), array in getattr(oracle, src_framework)(model, **src_options).items():
        filled = np.where(array == 0, np.int32(PADDING), array)
        given_buffers.setdefault(src_ranks[position], {})[name] = [filled]
    result = rp.interpret(plan, given_buffers)
    found = {
        (dst_ranks.index(rank), name): array
        for rank, by_name in result.destinations.items()
        for name, arrays in by_name.items()
        for array in arrays
    }
    return found, getattr(oracle, dst_framework)(model, **dst_options)


def difference(found, wanted):
    """The first difference, for people; None if there is none."""
    if found.keys() != wanted.keys():
        return f"buffers differ: {sorted(found.keys() ^ wanted.keys())[:6]}"
    for key, array in wanted.items():
        if found[key].shape != array.shape:
            return f"{key}: shape {found[key].shape}, expected {array.shape}"
        wrong = np.argwhere(found[key] != array)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            return f"{key}{list(at)}: element {found[key][at]}, expected {array[at]}; {len(wrong)} are wrong"
    return None


def check(model, before, after, **more):
    told = difference(*run(model, before, after, **more))
    assert told is None, f"{text(*before)} to {text(*after)}: {told}"


def place(framework, options, model):
    parallelism = parse_parallelism(text(framework, options), "dst")
    return parallelism.place(model, range(parallelism.gpus))
