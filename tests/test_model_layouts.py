"""Placements of models: what every framework stores where."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard_planner.errors import InputError, SpecError
from reshard_planner.models import roles
from reshard_planner.models.fsdp import COLUMN, ROW, Fsdp
from reshard_planner.models.layers import MTP, split_evenly
from reshard_planner.models.load import load_model
from reshard_planner.models.megatron import Megatron, split_layers
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.patterns import Patterns
from reshard_planner.models.vllm import Vllm
from reshard_planner.models.vllm.names import buffer_name

H, WIDTH = 3, 2
"""A hidden size that nothing divides, and the width of convolutions."""


class Maker:
    """Small models, layer by layer."""

    def __init__(self, **numbers):
        self.numbers = {"heads": 4, "kv_heads": 2, "head_dim": 2, "vocab": 100, "experts": 0, **numbers}
        self.found = []
        self.layers = 0

    def add(self, role, name, *shape, layer=None, tensors=1):
        self.found.append(Parameter(name, shape, "bfloat16", role, layer, tensors))

    def outside(self, *, tied=False):
        self.add(roles.EMBEDDING, "model.embed_tokens.weight", self.numbers["vocab"], H)
        self.add(roles.FINAL_NORM, "model.norm.weight", H)
        if not tied:
            self.add(roles.HEAD, "lm_head.weight", self.numbers["vocab"], H)
        self.numbers["tied"] = tied
        return self

    def layer(self, attention, feed_forward, number=None):
        number = self.layers if number is None else number
        self.layers += 1
        at = f"model.layers.{number}."
        for role, name in (
            (roles.INPUT_NORM, "input_layernorm"),
            (roles.POST_NORM, "post_attention_layernorm"),
        ):
            self.add(role, f"{at}{name}.weight", H, layer=number)
        getattr(self, attention)(f"{at}self_attn.", number)
        getattr(self, feed_forward)(f"{at}mlp.", number)
        return self

    def gqa(self, at, layer, *, bias=True):
        heads, kv, size = (self.numbers[name] for name in ("heads", "kv_heads", "head_dim"))
        rows = heads * size * (1 + self.numbers.get("output_gate", False))
        for role, bias_role, name, n in (
            (roles.Q, roles.Q_BIAS, "q_proj", rows),
            (roles.K, roles.K_BIAS, "k_proj", kv * size),
            (roles.V, roles.V_BIAS, "v_proj", kv * size),
        ):
            self.add(role, f"{at}{name}.weight", n, H, layer=layer)
            if bias:
                self.add(bias_role, f"{at}{name}.bias", n, layer=layer)
        self.add(roles.O, f"{at}o_proj.weight", H, heads * size, layer=layer)
        self.add(roles.Q_NORM, f"{at}q_norm.weight", size, layer=layer)
        self.add(roles.K_NORM, f"{at}k_norm.weight", size, layer=layer)

    def mla(self, at, layer):
        rows = self.numbers["heads"] * self.numbers["head_dim"]
        self.add(roles.Q_A, f"{at}q_a_proj.weight", 5, H, layer=layer)
        self.add(roles.Q_A_NORM, f"{at}q_a_layernorm.weight", 5, layer=layer)
        self.add(roles.Q_B, f"{at}q_b_proj.weight", rows, 5, layer=layer)
        self.add(roles.KV_A, f"{at}kv_a_proj_with_mqa.weight", 7, H, layer=layer)
        self.add(roles.KV_A_NORM, f"{at}kv_a_layernorm.weight", 6, layer=layer)
        self.add(roles.KV_B, f"{at}kv_b_proj.weight", 2 * rows, 6, layer=layer)
        self.add(roles.O, f"{at}o_proj.weight", H, rows, layer=layer)

    def gdn(self, at, layer):
        keys, values = self.numbers["linear_key_heads"], self.numbers["linear_value_heads"]
        dim = self.numbers["linear_key_head_dim"]
        rows = (2 * keys + values) * dim
        self.add(roles.GDN_QKV, f"{at}in_proj_qkv.weight", rows, H, layer=layer)
        self.add(roles.GDN_Z, f"{at}in_proj_z.weight", values * dim, H, layer=layer)
        self.add(roles.GDN_B, f"{at}in_proj_b.weight", values, H, layer=layer)
        self.add(roles.GDN_A, f"{at}in_proj_a.weight", values, H, layer=layer)
        self.add(roles.GDN_CONV, f"{at}conv1d.weight", rows, 1, WIDTH, layer=layer)
        self.add(roles.GDN_A_LOG, f"{at}A_log", values, layer=layer)
        self.add(roles.GDN_DT_BIAS, f"{at}dt_bias", values, layer=layer)
        self.add(roles.GDN_NORM, f"{at}norm.weight", dim, layer=layer)
        self.add(roles.O, f"{at}out_proj.weight", H, values * dim, layer=layer)

    def kda(self, at, layer):
        heads, dim = self.numbers["linear_value_heads"], self.numbers["linear_key_head_dim"]
        for role, name in (
            (roles.KDA_Q, "q_proj"),
            (roles.KDA_K, "k_proj"),
            (roles.KDA_V, "v_proj"),
            (roles.KDA_G, "g_proj"),
        ):
            self.add(role, f"{at}{name}.weight", heads * dim, H, layer=layer)
        for role, name in (
            (roles.KDA_Q_CONV, "q_conv1d"),
            (roles.KDA_K_CONV, "k_conv1d"),
            (roles.KDA_V_CONV, "v_conv1d"),
        ):
            self.add(role, f"{at}{name}.weight", heads * dim, 1, WIDTH, layer=layer)
        self.add(roles.KDA_F_A, f"{at}f_a_proj.weight", dim, H, layer=layer)
        self.add(roles.KDA_F_B, f"{at}f_b_proj.weight", heads * dim, dim, layer=layer)
        self.add(roles.KDA_B, f"{at}b_proj.weight", heads, H, layer=layer)
        self.add(roles.KDA_A_LOG, f"{at}A_log", 1, 1, heads, 1, layer=layer)
        self.add(roles.KDA_DT_BIAS, f"{at}dt_bias", heads * dim, layer=layer)
        self.add(roles.KDA_NORM, f"{at}o_norm.weight", dim, layer=layer)
        self.add(roles.O, f"{at}o_proj.weight", H, heads * dim, layer=layer)

    def dense(self, at, layer):
        size = self.numbers.get("intermediate", 8)
        self.add(roles.GATE, f"{at}gate_proj.weight", size, H, layer=layer)
        self.add(roles.UP, f"{at}up_proj.weight", size, H, layer=layer)
        self.add(roles.DOWN, f"{at}down_proj.weight", H, size, layer=layer)

    def _beside(self, at, layer):
        size = self.numbers.get("intermediate", 8)
        self.add(roles.ROUTER, f"{at}gate.weight", self.numbers["experts"], H, layer=layer)
        self.add(roles.ROUTER_BIAS, f"{at}gate.bias", self.numbers["experts"], layer=layer)
        self.add(roles.SHARED_GATE, f"{at}shared_expert.gate_proj.weight", size, H, layer=layer)
        self.add(roles.SHARED_UP, f"{at}shared_expert.up_proj.weight", size, H, layer=layer)
        self.add(roles.SHARED_DOWN, f"{at}shared_expert.down_proj.weight", H, size, layer=layer)

    def routed(self, at, layer):
        experts, size = self.numbers["experts"], self.numbers.get("intermediate", 8)
        self._beside(at, layer)
        for role, name, shape in (
            (roles.EXPERT_GATE, "gate_proj", (size, H)),
            (roles.EXPERT_UP, "up_proj", (size, H)),
            (roles.EXPERT_DOWN, "down_proj", (H, size)),
        ):
            self.add(role, f"{at}experts.*.{name}.weight", experts, *shape, layer=layer, tensors=experts)

    def stacked(self, at, layer):
        experts, size = self.numbers["experts"], self.numbers.get("intermediate", 8)
        self._beside(at, layer)
        self.add(roles.EXPERT_GATE_UP, f"{at}experts.gate_up_proj", experts, 2 * size, H, layer=layer)
        self.add(roles.EXPERT_DOWN, f"{at}experts.down_proj", experts, H, size, layer=layer)

    def model(self, mtp_layers=0):
        numbers = {name: value for name, value in self.numbers.items() if name != "intermediate"}
        return Model("tiny", tuple(self.found), self.layers - mtp_layers, mtp_layers, **numbers)


def with_prediction(maker, attention, feed_forward, name="model.layers.{}.eh_proj.weight"):
    """The model with one layer of multi-token prediction at its end."""
    number = maker.layers
    maker.layer(attention, feed_forward)
    maker.add(roles.MTP_EMBEDDING_NORM, f"model.layers.{number}.enorm.weight", H, layer=number)
    maker.add(roles.MTP_HIDDEN_NORM, f"model.layers.{number}.hnorm.weight", H, layer=number)
    hidden = maker.numbers.get("intermediate", 8)
    maker.add(roles.MTP_PROJECTION, name.format(number), hidden, 2 * hidden, layer=number)
    maker.add(roles.MTP_NORM, f"model.layers.{number}.shared_head.norm.weight", H, layer=number)
    return maker.model(mtp_layers=1)


sizes = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16))


@st.composite
def models(draw, tp, etp=1, ep=1, *, aligned=True):
    """Models of every kind of layer that these sizes divide.

    ``aligned``: whether heads of keys and values divide tp or are divided by it.
    """
    heads = tp * draw(st.sampled_from((1, 2)))
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    kv = draw(st.sampled_from([n for n in divisors if not aligned or n % tp == 0 or tp % n == 0]))
    dim = draw(st.sampled_from((1, 2, 3))) * (1 if aligned or 2 * kv % tp == 0 else tp)
    keys = tp * draw(st.sampled_from((1, 2)))
    maker = Maker(
        heads=heads,
        kv_heads=kv,
        head_dim=dim,
        output_gate=draw(st.booleans()),
        vocab=draw(st.integers(1, 300)),
        experts=ep * draw(st.integers(1, 3)),
        intermediate=tp * etp * draw(st.sampled_from((1, 2))),
        linear_key_heads=keys,
        linear_value_heads=keys * draw(st.sampled_from((1, 2))),
        linear_key_head_dim=2,
        linear_value_head_dim=2,
    ).outside(tied=draw(st.booleans()))
    kinds = ["gqa", "mla", draw(st.sampled_from(("gdn", "kda")))]
    for _ in range(draw(st.integers(1, 4))):
        maker.layer(draw(st.sampled_from(kinds)), draw(st.sampled_from(("dense", "routed", "stacked"))))
    if draw(st.booleans()):
        return with_prediction(maker, draw(st.sampled_from(kinds)), "routed")
    return maker.model()


def holders(parameter, placed):
    """How many copies of every element there are, over all ranks and layouts."""
    count = np.zeros(parameter.shape, dtype=int)
    for one in placed:
        tiling = one.layout.tiling(parameter.shape)
        for rank in one.layout.mesh.ranks:
            for _, tile in tiling.local_tiles(rank):
                count[tile.box.slices()] += 1
    return count


def buffers(model, placed):
    """Per rank and name of a buffer: which element of which parameter lies at each of its positions."""
    found: dict[tuple[int, str], np.ndarray] = {}
    number = {parameter.name: index for index, parameter in enumerate(model.parameters)}
    for parameter in model.parameters:
        ids = np.arange(parameter.elements).reshape(parameter.shape) + 10**9 * (1 + number[parameter.name])
        for one in placed[parameter.name]:
            tiling = one.layout.tiling(parameter.shape)
            for rank in one.layout.mesh.ranks:
                shapes = tiling.buffers(rank)
                for number_of_name, shape in shapes:
                    key = rank, one.buffers[number_of_name]
                    flat = found.setdefault(key, np.zeros(prod(shape), dtype=int))
                    assert flat.size == prod(shape), f"{key} has another size for {parameter.name}"
                for position, tile in tiling.local_tiles(rank):
                    flat = found[rank, one.buffers[shapes[position][0]]]
                    at = np.full(tile.box.shape, tile.offset)
                    for dim, (extent, stride) in enumerate(zip(tile.box.shape, tile.strides, strict=True)):
                        steps = np.arange(extent) * stride
                        at += steps.reshape([-1 if d == dim else 1 for d in range(at.ndim)])
                    assert (flat[at] == 0).all(), f"{parameter.name} overlaps in {one.buffers}"
                    flat[at] = ids[tile.box.slices()]
    return found


def expected_megatron(parallelism, model, parameter):
    """Copies of every element of a parameter."""
    stage = parallelism.tp * parallelism.cp * parallelism.dp
    if parameter.role.startswith("expert_"):
        return stage // (parallelism.ep * parallelism.etp)
    if parameter.role == roles.EMBEDDING:
        twice = parallelism.pp > 1 and (model.tied or model.mtp_layers)
        return stage // parallelism.tp * (1 + bool(twice))
    return stage if is_replicated(parameter) else stage // parallelism.tp


def is_replicated(parameter):
    whole = {
        roles.Q_A,
        roles.KV_A,
        roles.ROUTER,
        roles.ROUTER_BIAS,
        roles.KDA_F_A,
    }
    return parameter.role.endswith("norm") or parameter.role in whole


@st.composite
def megatrons(draw):
    tp, etp = draw(sizes), draw(st.sampled_from((1, 1, 2)))
    ep = draw(st.sampled_from((1, 2, 3)))
    model = draw(models(tp, etp, ep, aligned=False))
    pp = draw(st.integers(1, model.layers))
    grouped = draw(st.booleans())
    cp = draw(st.sampled_from((1, 2)))
    try:
        split_layers(model.layers, pp)
    except SpecError:
        pp = 1
    return model, Megatron(tp=tp, cp=cp, ep=ep, etp=etp, pp=pp, grouped=grouped)


@settings(deadline=None, max_examples=60)
@given(megatrons())
def test_megatron_holds_every_element_once_per_replica(case):
    model, parallelism = case
    placed = parallelism.place(model, range(100, 100 + parallelism.gpus))
    assert list(placed) == [parameter.name for parameter in model.parameters]
    for parameter in model.parameters:
        wanted = expected_megatron(parallelism, model, parameter)
        assert (holders(parameter, placed[parameter.name]) == wanted).all(), parameter


@settings(deadline=None, max_examples=40)
@given(megatrons())
def test_buffers_of_megatron_are_full_but_for_padding(case):
    model, parallelism = case
    found = buffers(model, parallelism.place(model, range(parallelism.gpus)))
    for (_, name), flat in found.items():
        if "embedding" not in name and "output_layer" not in name:
            assert (flat > 0).all(), name


@st.composite
def vllms(draw):
    tp = draw(sizes)
    dp = draw(st.sampled_from((1, 2, 3)))
    ep = draw(st.sampled_from([1, *{tp * n for n in (1, dp)}]))
    model = draw(models(tp))
    assumed = -(-model.vocab // 64) * 64 % tp
    if assumed:
        tp, dp, ep = 1, tp * dp, min(ep, tp * dp)
        model = draw(models(1))
    if model.experts < ep:
        ep = 1
    redundant = draw(st.sampled_from((0, -model.experts % ep, -model.experts % ep + ep))) if ep > 1 else 0
    placement = "linear" if redundant else draw(st.sampled_from(("linear", "round_robin")))
    return model, Vllm(tp=tp, dp=dp, ep=ep, redundant=redundant, expert_placement=placement)


@settings(deadline=None, max_examples=60)
@given(vllms())
def test_vllm_holds_every_element_as_often_as_heads_and_experts_repeat(case):
    model, parallelism = case
    placed = parallelism.place(model, range(parallelism.gpus))
    for parameter in model.parameters:
        count = holders(parameter, placed[parameter.name])
        wanted = parallelism.gpus if is_replicated(parameter) else parallelism.dp
        if parameter.role in {roles.K, roles.V, roles.K_BIAS, roles.V_BIAS}:
            wanted = parallelism.dp * max(1, parallelism.tp // model.kv_heads)
        if parameter.role == roles.MTP_PROJECTION:
            wanted = parallelism.gpus
        if parameter.role.startswith("shared_") and parallelism.ep > parallelism.tp > 1:
            wanted = parallelism.gpus
        if parameter.role.startswith("expert_") and parallelism.ep > 1:
            again = Counter(slot % model.experts for slot in range(parallelism.redundant))
            copies = np.array([1 + again[expert] for expert in range(model.experts)])
            wanted = (copies * (parallelism.gpus // parallelism.ep)).reshape(-1, 1, 1)
        assert (count == wanted).all(), parameter


@settings(deadline=None, max_examples=40)
@given(vllms())
def test_buffers_of_vllm_are_full_but_for_padding(case):
    model, parallelism = case
    found = buffers(model, parallelism.place(model, range(parallelism.gpus)))
    for (_, name), flat in found.items():
        if not name.endswith(("embed_tokens.weight", "lm_head.weight", "in_proj_qkvgfab.weight")):
            assert (flat > 0).all(), name


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_fsdp_holds_every_element_once_per_replica(data):
    tp, replicas = data.draw(st.sampled_from((1, 2, 3))), data.draw(st.sampled_from((1, 2)))
    parallelism = Fsdp(dp=data.draw(sizes), tp=tp, replicas=replicas)
    model = data.draw(models(tp))
    placed = parallelism.place(model, range(parallelism.gpus))
    buffers(model, placed)
    for parameter in model.parameters:
        cut = parameter.role in COLUMN | ROW or parameter.role == roles.EXPERT_GATE_UP
        count = holders(parameter, placed[parameter.name])
        assert (count == (replicas if cut else replicas * tp)).all(), parameter


def whole(model):
    """Contents of all parameters: numbers that tell which element it is."""
    rng = np.random.default_rng(0)
    return {
        p.name: rng.permutation(p.elements).reshape(p.shape) + 1000 * i
        for i, p in enumerate(model.parameters)
    }


def local(model, placed, values, rank, name):
    """Contents of one buffer of one rank, from its tiles; 0 in padding."""
    flat = None
    for parameter in model.parameters:
        for one in placed[parameter.name]:
            if name not in one.buffers or rank not in one.layout.mesh.ranks:
                continue
            tiling = one.layout.tiling(parameter.shape)
            number = one.buffers.index(name)
            for position, (own, shape) in enumerate(tiling.buffers(rank)):
                if own != number:
                    continue
                flat = np.zeros(shape, dtype=int) if flat is None else flat
                for at, tile in tiling.local_tiles(rank):
                    if at == position:
                        view = np.lib.stride_tricks.as_strided(
                            flat.reshape(-1)[tile.offset :],
                            tile.box.shape,
                            [stride * flat.itemsize for stride in tile.strides],
                        )
                        view[...] = values[parameter.name][tile.box.slices()]
    return flat


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_linear_qkv_has_groups_of_queries_gates_key_and_value(tp, gate):
    maker = Maker(heads=8, kv_heads=2, head_dim=4, output_gate=gate).outside().layer("gqa", "dense")
    model = maker.model()
    values = whole(model)
    q, k, v = (values[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
    q = q.reshape(8, 1 + gate, 4, H)
    rows = []
    for group in range(2):
        heads = q[4 * group : 4 * group + 4]
        rows += [heads[:, part].reshape(-1, H) for part in range(1 + gate)]
        rows += [k.reshape(2, 4, H)[group], v.reshape(2, 4, H)[group]]
    parts = np.split(np.concatenate(rows), tp)
    parallelism = Megatron(tp=tp)
    placed = parallelism.place(model, range(tp))
    for rank, part in enumerate(parts):
        name = "decoder.layers.0.self_attention.linear_qkv.weight"
        assert (local(model, placed, values, rank, name) == part).all()


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_qkv_proj_has_queries_then_keys_then_values(tp):
    model = Maker(heads=8, kv_heads=2, head_dim=4).outside().layer("gqa", "dense").model()
    values = whole(model)
    q, k, v = (values[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv")
    placed = Vllm(tp=tp).place(model, range(tp))
    for rank in range(tp):
        own = slice(4 * rank, 4 * rank + 4) if tp == 2 else slice(0, 8) if tp == 1 else None
        if own is None:
            head = rank // (tp // 2)
            own = slice(4 * head, 4 * head + 4)
        wanted = np.concatenate([np.split(q, tp)[rank], k[own], v[own]])
        found = local(model, placed, values, rank, "model.layers.0.self_attn.qkv_proj.weight")
        assert (found == wanted).all()


def gdn_model():
    return (
        Maker(
            linear_key_heads=4,
            linear_value_heads=8,
            linear_key_head_dim=2,
            linear_value_head_dim=2,
            experts=4,
        )
        .outside()
        .layer("gdn", "stacked")
        .model()
    )


def test_projections_of_gated_delta_nets_lie_in_a_row_by_rank():
    model = gdn_model()
    values = whole(model)
    at = "model.layers.0.self_attn."
    q, k, v = np.split(values[f"{at}in_proj_qkv.weight"], [8, 16])
    z, b, a = (values[f"{at}in_proj_{name}.weight"] for name in "zba")
    megatron, vllm = Megatron(tp=2).place(model, range(2)), Vllm(tp=2).place(model, range(2))
    for rank in range(2):
        parts = [np.split(part, 2)[rank] for part in (q, k, v, z, b, a)]
        joined = local(model, megatron, values, rank, "decoder.layers.0.self_attention.in_proj.weight")
        assert (joined == np.concatenate(parts)).all()
        assert (
            local(model, vllm, values, rank, f"{at}in_proj_qkvz.weight") == np.concatenate(parts[:4])
        ).all()
        assert (local(model, vllm, values, rank, f"{at}in_proj_ba.weight") == np.concatenate(parts[4:])).all()


def test_experts_lie_as_gate_then_up():
    model = gdn_model()
    values = whole(model)
    both = values["model.layers.0.mlp.experts.gate_up_proj"]
    gate, up = np.split(both, 2, axis=1)
    separate = Megatron(tp=2, ep=2, etp=1).place(model, range(2))
    grouped = Megatron(tp=2, ep=2, etp=2, grouped=True)
    stacked = grouped.place(model, range(grouped.gpus))
    vllm = Vllm(tp=2).place(model, range(2))
    name = "decoder.layers.0.mlp.experts.linear_fc1.weight"
    for rank in range(2):
        for slot in range(2):
            assert (local(model, separate, values, rank, f"{name}{slot}") == both[2 * rank + slot]).all()
        halves = [np.split(part, 2, axis=1)[rank] for part in (gate, up)]
        wanted = np.concatenate(halves, axis=1)
        assert (
            local(model, vllm, values, rank, "model.layers.0.mlp.experts.routed_experts.w13_weight") == wanted
        ).all()
        assert (local(model, stacked, values, rank, name) == wanted[:2]).all()
        assert (local(model, stacked, values, 2 + rank, name) == wanted[2:]).all()


def test_blocks_of_experts_are_single_tiles():
    model = Maker(experts=8).outside().layer("gqa", "routed").model()
    placed = Vllm(tp=2).place(model, range(2))
    for name in ("gate_proj", "up_proj", "down_proj"):
        [one] = placed[f"model.layers.0.mlp.experts.*.{name}.weight"]
        assert [len(buffer.tiles) for entry in one.layout.storage.entries for buffer in entry] == [1, 1]


def test_redundant_experts_begin_with_the_first():
    model = Maker(experts=6).outside().layer("gqa", "routed").model()
    placed = Vllm(tp=2, dp=2, ep=4, redundant=2).place(model, range(4))
    [one] = placed["model.layers.0.mlp.experts.*.gate_proj.weight"]
    tiling = one.layout.tiling((6, 8, H))
    held = [[(t.box.lo[0], t.box.hi[0]) for _, t in tiling.local_tiles(rank)] for rank in range(4)]
    assert held == [[(0, 2)], [(2, 4)], [(4, 6)], [(0, 2)]]


def test_experts_go_round():
    model = Maker(experts=5).outside().layer("gqa", "routed").model()
    placed = Vllm(tp=2, ep=2, expert_placement="round_robin").place(model, range(2))
    [one] = placed["model.layers.0.mlp.experts.*.down_proj.weight"]
    tiling = one.layout.tiling((5, H, 8))
    assert [[t.box.lo[0] for _, t in tiling.local_tiles(rank)] for rank in range(2)] == [[0, 2, 4], [1, 3]]
    assert [tiling.buffers(rank)[0][1][0] for rank in range(2)] == [3, 2]


def test_vocabularies_are_padded():
    model = Maker(vocab=130, heads=4, kv_heads=4).outside().layer("gqa", "dense").model()
    [head] = Megatron(tp=4).place(model, range(4))["lm_head.weight"]
    tiling = head.layout.tiling((130, H))
    assert [tiling.buffers(rank) for rank in range(4)] == [((0, (128, H)),)] * 4
    assert [tiling.count(rank) for rank in range(4)] == [1, 1, 0, 0]
    [head] = Vllm(tp=4).place(model, range(4))["lm_head.weight"]
    tiling = head.layout.tiling((130, H))
    assert [tiling.buffers(rank) for rank in range(4)] == [((0, (48, H)),)] * 4
    assert [sum(t.box.shape[0] for _, t in tiling.local_tiles(rank)) for rank in range(4)] == [48, 48, 34, 0]


def test_decay_of_more_heads_than_there_are_is_narrowed():
    maker = Maker(linear_key_heads=4, linear_value_heads=4, linear_key_head_dim=2).outside()
    maker.layer("kda", "dense")
    maker.found = [p for p in maker.found if p.role != roles.KDA_A_LOG]
    maker.add(roles.KDA_A_LOG, "model.layers.0.self_attn.A_log", 6, layer=0)
    for parallelism in (Megatron(tp=2), Vllm(tp=2)):
        [one] = parallelism.place(maker.model(), range(2))["model.layers.0.self_attn.A_log"]
        tiling = one.layout.tiling((6,))
        held = [[str(tile.box) for _, tile in tiling.local_tiles(rank)] for rank in range(2)]
        assert held == [["[0:2]"], ["[2:4]"]]


def test_the_projection_of_prediction_is_cut_where_vllm_cuts_it():
    for name, shapes in (("mtp.fc.weight", [4, 4]), ("model.layers.{}.eh_proj.weight", [8, 8])):
        maker = Maker().outside().layer("gqa", "dense")
        model = with_prediction(maker, "gqa", "dense", name)
        [[one]] = [
            placed for key, placed in Vllm(tp=2).place(model, range(2)).items() if key == name.format(1)
        ]
        tiling = one.layout.tiling((8, 16))
        assert [tiling.buffers(rank)[0][1][0] for rank in range(2)] == shapes


CONFIGURATIONS = sorted((Path(__file__).parent.parent / "examples" / "configs").glob("*.json"))

PADDED = ("word_embeddings", "output_layer", "embed_tokens", "lm_head", "in_proj_qkvgfab")


@pytest.mark.parametrize(
    "text", ["megatron tp=4 pp=2 ep=4", "megatron tp=8 grouped=true", "vllm tp=8 dp=2", "fsdp dp=4 tp=2"]
)
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_buffers_of_real_models_are_full_but_for_padding(path, text):
    override = path.with_name(f"{path.stem}.override.yaml")
    model = load_model(path, overrides=override if override.exists() else None)
    if not model.experts:
        text = text.replace(" ep=4", "")
    parallelism = parse_parallelism(text, "src")
    placed = parallelism.place(model, range(parallelism.gpus))
    sizes: dict[tuple[int, str], int] = {}
    filled: Counter[tuple[int, str]] = Counter()
    for parameter in model.parameters:
        for one in placed[parameter.name]:
            tiling = one.layout.tiling(parameter.shape)
            for rank in {0, parallelism.gpus - 1} & set(one.layout.mesh.ranks):
                shapes = tiling.buffers(rank)
                names = [(rank, one.buffers[number]) for number, _ in shapes]
                for name, (_, shape) in zip(names, shapes, strict=True):
                    assert sizes.setdefault(name, prod(shape)) == prod(shape)
                for position, tile in tiling.local_tiles(rank):
                    filled[names[position]] += tile.box.volume
    for name, size in sizes.items():
        assert filled[name] == size or name[1].split(".")[-2] in PADDED, name


PUBLISHED = [
    (94, 8, [11, 12, 12, 12, 12, 12, 12, 11]),
    (94, 4, [23, 24, 24, 23]),
    (61, 16, [3, *[4] * 14, 2]),
    (61, 8, [7, *[8] * 6, 6]),
    (60, 8, [6, *[8] * 6, 6]),
    (48, 2, [24, 24]),
]


@pytest.mark.parametrize(("layers", "pp", "counts"), PUBLISHED)
def test_stages_are_split_as_published_recipes_do(layers, pp, counts):
    stages = split_layers(layers, pp)
    assert [len(chunk) for [chunk] in stages] == counts
    assert [number for [chunk] in stages for number in chunk] == list(range(layers))


def test_virtual_stages_are_interleaved():
    assert split_layers(8, 2, vpp=4) == (((0,), (2,), (4,), (6,)), ((1,), (3,), (5,), (7,)))
    assert split_layers(8, 2, vpp=2) == (((0, 1), (4, 5)), ((2, 3), (6, 7)))
    uneven = (((0,), (6,)), ((1, 2), (7, 8)), ((3, 4), (9, 10)), ((5,), (11,)))
    assert split_layers(12, 4, vpp=2, first=2, last=2) == uneven


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 3))
def test_every_layer_is_on_one_stage(layers, pp, vpp):
    try:
        stages = split_layers(layers, pp, vpp)
    except SpecError:
        return
    assert sorted(number for stage in stages for chunk in stage for number in chunk) == list(range(layers))
    order = [stage[chunk] for chunk in range(vpp) for stage in stages]
    assert all(a[-1] + 1 == b[0] for a, b in pairwise(order))


def test_stages_name_their_layers_from_0():
    model = Maker().outside(tied=True)
    for _ in range(4):
        model.layer("gqa", "dense")
    model = model.model()
    placed = Megatron(pp=2, vpp=2).place(model, (7, 3))
    norm = placed["model.layers.2.post_attention_layernorm.weight"]
    assert [one.buffers for one in norm] == [("model1.decoder.layers.0.mlp.linear_fc1.layer_norm_weight",)]
    assert norm[0].layout.mesh.ranks == (7,)
    embedding = placed["model.embed_tokens.weight"]
    assert [(one.layout.mesh.ranks, *one.buffers) for one in embedding] == [
        ((7,), "model0.embedding.word_embeddings.weight"),
        ((3,), "model1.output_layer.weight"),
    ]


def test_the_last_stage_predicts():
    maker = Maker().outside().layer("gqa", "dense").layer("gqa", "dense")
    model = with_prediction(maker, "gqa", "dense")
    placed = Megatron(pp=2).place(model, range(2))
    for parameter in model.parameters:
        if parameter.layer == 2:
            [one] = placed[parameter.name]
            inner = "" if parameter.role in MTP else "mtp_model_layer."
            assert one.layout.mesh.ranks == (1,)
            assert one.buffers[0].startswith(f"mtp.layers.0.{inner}")
    names = [(one.layout.mesh.ranks, *one.buffers) for one in placed["model.embed_tokens.weight"]]
    assert names == [((0,), "embedding.word_embeddings.weight"), ((1,), "embedding.word_embeddings.weight")]


@pytest.mark.parametrize("parallelism", [Megatron(tp=2, pp=2, ep=2), Vllm(tp=2, dp=2), Fsdp(dp=4)])
def test_layers_of_equal_geometry_share_their_layouts(parallelism):
    def layouts(count):
        maker = Maker(experts=4).outside()
        for _ in range(count):
            maker.layer("gqa", "routed")
        model = maker.model()
        placed = parallelism.place(model, range(parallelism.gpus))
        return {id(one.layout) for all_of_it in placed.values() for one in all_of_it}

    assert len(layouts(12)) == len(layouts(2))


@given(st.integers(1, 50), st.integers(1, 20))
def test_parts_are_even_up_to_one(count, parts):
    split = split_evenly(count, parts)
    assert [number for part in split for number in part] == list(range(count))
    assert sorted(map(len, split), reverse=True) == list(map(len, split))
    assert len(split[0]) - len(split[-1]) <= 1


@pytest.mark.parametrize(
    ("given_sizes", "gpus", "dp"),
    [
        ({"tp": 4, "pp": 8, "ep": 16}, 128, 4),
        ({"pp": 16, "ep": 16}, 256, 16),
        ({"tp": 8, "pp": 2, "ep": 32}, 64, 4),
        ({"tp": 2, "cp": 2, "pp": 4, "ep": 16}, 64, 4),
        ({"tp": 2, "gpus": 16}, 16, 8),
        ({"tp": 2, "ep": 3, "etp": 2}, 6, 3),
    ],
)
def test_megatron_takes_the_fewest_ranks_that_fit(given_sizes, gpus, dp):
    parallelism = Megatron(**given_sizes)
    assert (parallelism.gpus, parallelism.dp) == (gpus, dp)


def test_text_gives_the_same_as_values():
    assert parse_parallelism("megatron tp=4 pp=8 ep=16", "src") == Megatron(tp=4, pp=8, ep=16)
    assert parse_parallelism("megatron grouped=true dtype=half first=3", "src") == Megatron(
        grouped=True, dtype="float16", first=3
    )
    assert parse_parallelism("vllm tp=8 dp=16", "dst") == Vllm(tp=8, dp=16)
    assert parse_parallelism("vllm gpus=4 tp=2 ranks=4-7", "dst") == Vllm(tp=2, dp=2, ranks=(4, 5, 6, 7))
    assert parse_parallelism("fsdp dp=8 tp=2", "src") == Fsdp(dp=8, tp=2)


PATTERNS = """
mesh: {axes: {dp: 2, tp: 2}}
parameters:
  - {match: "*.experts.[*].*", placements: [S(0), R], buffer: "fused.{name}"}
  - {match: "*_proj.weight", placements: [R, S(0)]}
  - {match: "*", placements: [R, R]}
"""


@pytest.fixture
def patterns_file(tmp_path):
    path = tmp_path / "layout.yaml"
    path.write_text(PATTERNS)
    return path


def test_the_first_pattern_that_matches_counts(patterns_file):
    parallelism = parse_parallelism(f"plain file={patterns_file} ranks=4-7", "src")
    model = Maker(experts=4).outside().layer("gqa", "routed").model()
    placed = parallelism.place(model, parallelism.ranks)
    shown = {name: (str(one.layout), *one.buffers) for name, [one] in placed.items()}
    assert shown["model.layers.0.self_attn.q_proj.weight"] == (
        "(dp=2:R, tp=2:S(0))",
        "model.layers.0.self_attn.q_proj.weight",
    )
    assert shown["model.norm.weight"][0] == "(dp=2:R, tp=2:R)"
    experts = "model.layers.0.mlp.experts.*.up_proj.weight"
    assert shown[experts] == ("(dp=2:S(0), tp=2:R)", f"fused.{experts}")
    assert placed[experts][0].layout.mesh.ranks == (4, 5, 6, 7)


def test_vllm_swaps_prefixes_of_nested_models():
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    wanted = "language_model.model.layers.0.mlp.gate_up_proj.weight"
    assert buffer_name(name, "gate_up_proj.weight", nested=True) == wanted
    assert buffer_name("lm_head.weight", "", nested=True) == "language_model.lm_head.weight"


SAMPLE = {"heads": 8, "kv_heads": 2, "head_dim": 4, "experts": 6, "vocab": 192, "intermediate": 24}

UNUSABLE = [
    ("megatron xp=2", "src: megatron has no option 'xp=2'; expected tp, cp"),
    ("megatron tp", "src: megatron has no option 'tp'"),
    ("megatron tp=0", "src: megatron tp is '0'; expected an integer of at least 1"),
    ("megatron tp=2 tp=4", "tp is given twice"),
    ("megatron grouped=yes", "grouped is 'yes'; expected true or false"),
    ("megatron dtype=bf17", "dtype is 'bf17'"),
    ("megatron ranks=3-1", "ranks is '3-1'; expected ranks such as 0-7"),
    ("megatron ranks=0,0", "ranks is '0,0'; expected every rank once"),
    ("megatron tp=2 ranks=0-2", "given 3 ranks; expected 2"),
    ("sglang tp=2", "src is 'sglang tp=2'; expected one of megatron, vllm, fsdp, plain"),
    ("", "src is ''; expected one of"),
    ("megatron tp=2 gpus=3", "gpus is 3, but tp=2 cp=1 pp=1 ep=1 etp=1 take multiples of 2"),
    (
        "megatron ep=4 dp=6",
        "dp is 6, but ep * etp = 4 must divide tp * cp * dp = 6; expected a multiple of 4",
    ),
    ("megatron dp=2 gpus=4", "gpus is 4, but tp * cp * dp * pp is 2"),
    ("megatron vpp=2", "vpp is 2, but pp is 1"),
    ("megatron pp=8", "pp is 8, but the model has 6 layers; expected at most 6"),
    ("megatron pp=4 vpp=2", "vpp is 2, but stage 0 has 1 layers"),
    ("megatron pp=5", "pp is 5, and 6 layers do not divide by it"),
    (
        "megatron pp=3 first=1",
        "first=1 leaves 5 of 6 layers to the other 2 of 3 stages; expected a multiple of 2",
    ),
    ("megatron pp=2 first=1 last=2", "first=1, last=2 leaves 3 of 6 layers to the other 0 of 2 stages"),
    ("megatron first=2", "first is 2, but with pp=1 the only stage has all 6 layers"),
    ("megatron ep=4", "ep is 4, but tiny has 6 experts; expected a divisor of 6"),
    ("megatron tp=5", "tp is 5, but tiny has"),
    (
        "megatron etp=5",
        "etp is 5, but tiny has 24 rows or columns of role expert_gate; expected a divisor of 24",
    ),
    ("vllm tp=3", "tp is 3, but tiny has"),
    ("vllm tp=8 gpus=9", "gpus is 9, but tp is 8; expected a multiple of 8"),
    ("vllm tp=2 dp=2 gpus=8", "gpus is 8, but tp * dp is 4"),
    ("vllm tp=4 ep=2", "ep is 2; expected 1 or a multiple of tp=4 that divides tp * dp = 4"),
    ("vllm dp=8 ep=8", "ep is 8, but tiny has 6 experts; expected at most 6"),
    ("vllm redundant=2", "redundant is 2, but ep is 1"),
    ("vllm dp=4 ep=4 redundant=1", "ep=4 does not divide 6 + 1 experts"),
    ("vllm dp=2 ep=2 redundant=2 expert_placement=round_robin", "expert_placement is 'round_robin'"),
    ("vllm expert_placement=random", "expert_placement is 'random'; expected linear or round_robin"),
    ("fsdp tp=3 gpus=8", "gpus is 8, but tp * replicas is 3"),
    ("plain", "src: plain lacks the option file"),
    ("plain file=nowhere.yaml", "src: cannot read nowhere.yaml"),
]


def place(text, model):
    parallelism = parse_parallelism(text, "src")
    return parallelism.place(model, range(parallelism.gpus))


@pytest.mark.parametrize(("text", "told"), UNUSABLE)
def test_what_cannot_be_is_told_in_one_sentence(text, told):
    maker = Maker(**SAMPLE).outside()
    for _ in range(6):
        maker.layer("gqa", "routed")
    with pytest.raises(InputError) as caught:
        place(text, maker.model())
    message = str(caught.value)
    assert told in message
    assert "\n" not in message
    assert ". " not in message
    assert not message.endswith(".")


def test_heads_that_do_not_divide_are_refused():
    model = Maker(heads=12, kv_heads=4, vocab=192).outside().layer("gqa", "dense").model()
    with pytest.raises(
        SpecError, match="vllm tp is 6, but tiny has 4 heads of keys and values; expected a divisor"
    ):
        Vllm(tp=6).place(model, range(6))
    with pytest.raises(SpecError, match="vllm tp is 8, but tiny has 12 query heads"):
        Vllm(tp=8).place(model, range(8))


@pytest.mark.parametrize("parallelism", [Megatron(), Vllm(), Fsdp(tp=2)])
def test_parameters_without_roles_are_refused(parallelism):
    model = Model("list", (Parameter("w", (4, 4), "bfloat16", ""),), 0)
    with pytest.raises(SpecError, match="needs the roles of parameters, and w has none"):
        parallelism.place(model, range(parallelism.gpus))


@pytest.mark.parametrize("parallelism", [Megatron(), Vllm()])
def test_unknown_roles_are_refused(parallelism):
    model = Model("list", (Parameter("w", (4, 4), "bfloat16", "mamba", 0),), 1)
    with pytest.raises(SpecError, match="does not know the role mamba of w"):
        parallelism.place(model, range(parallelism.gpus))


def test_a_parameter_without_a_pattern_is_named(tmp_path):
    path = tmp_path / "layout.yaml"
    path.write_text('mesh: {axes: {dp: 2}}\nparameters: [{match: "a*", placements: [R]}]')
    model = Model("list", (Parameter("b", (4, 4), "bfloat16", ""),), 0)
    with pytest.raises(SpecError, match="no pattern matches parameter b; expected one"):
        Patterns.load(path).place(model, range(2))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mesh: {axes: {dp: 2}}\nparameters: [{match: a}]", r"parameters\[0\] lacks the field 'placements'"),
        (
            "mesh: {axes: {dp: 2}}\nparameters: [{match: a, placements: [R, R]}]",
            "has 2 placements; expected 1",
        ),
        ("mesh: {axes: {dp: 2}}\nparameters: [{match: a, placements: [P]}]", r"parameters\[0\].placements"),
        ("mesh: {axes: {dp: 0}}\nparameters: []", "mesh: "),
        ("mesh: {axes: {dp: 2}, ranks: 0-2}\nparameters: []", "mesh: "),
    ],
)
def test_files_of_patterns_are_checked(tmp_path, text, told):
    path = tmp_path / "layout.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=told):
        Patterns.load(path)
