"""The strategy of NeMo RL's refit: which tensors are feed-forward weights; each kind goes its own way."""

from __future__ import annotations

import functools
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from oracle import assert_interprets_exactly, assert_processes_move_as_certified
from strategies import specs
from test_m2n_limits import limits_of
from test_m2n_strategies import moves, on, one

import reshard_planner as rp
from benchmarks.models import model_cases
from reshard_planner.models.load import load_model
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.roles import FEED_FORWARD
from reshard_planner.models.whole import build_spec
from reshard_planner.routing.hybrid import is_feed_forward, phases
from reshard_planner.transfer import Medium, Role

CONFIGS = Path(__file__).parent.parent / "examples" / "configs"

AT = "model.layers.3."


def assert_delivers(plan):
    rp.verify(plan)
    assert_interprets_exactly(plan)
    payload = plan.certificate.payload
    assert payload.network_nbytes >= payload.minimum_network_nbytes


# names


@pytest.mark.parametrize(
    "name",
    [
        f"{AT}mlp.gate_proj.weight",
        f"{AT}mlp.up_proj.weight",
        f"{AT}mlp.down_proj.weight",
        f"{AT}mlp.experts.*.gate_proj.weight",
        f"{AT}mlp.experts.17.down_proj.weight",
        f"{AT}mlp.experts.gate_up_proj",
        f"{AT}mlp.experts.down_proj",
        f"{AT}mlp.experts.gate_up_proj.weight",
        f"{AT}block_sparse_moe.experts.*.w2.weight",
        "backbone.layers.3.mixer.experts.0.up_proj.weight",
    ],
)
def test_projections_of_dense_and_routed_feed_forward_parts_are_known_by_name(name):
    assert is_feed_forward(name)


@pytest.mark.parametrize(
    "name",
    [
        "w",
        "weight",
        "",
        "gate_proj",
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        f"{AT}input_layernorm.weight",
        f"{AT}self_attn.q_proj.weight",
        f"{AT}self_attn.o_proj.weight",
        f"{AT}mlp.gate.weight",
        f"{AT}mlp.gate.e_score_correction_bias",
        f"{AT}mlp.gate_proj.bias",
        f"{AT}mlp.gate_proj.weight_scale_inv",
        f"{AT}mlp.gate_up_proj.weight",
        f"{AT}mlp.shared_expert.down_proj.weight",
        f"{AT}mlp.shared_experts.gate_proj.weight",
        f"{AT}mlp.shared_expert_gate.weight",
        f"{AT}block_sparse_moe.routed_expert_down_proj.weight",
        f"{AT}block_sparse_moe.experts.*.w2.weight_scale",
        "mtp.layers.0.mlp.down_proj.weight",
    ],
)
def test_all_other_names_are_others(name):
    assert not is_feed_forward(name)


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_names_say_the_same_as_roles_of_models_but_for_drafters(config):
    override = config.with_suffix(".override.yaml")
    model = load_model(config, overrides=override if override.exists() else None)
    spec = rp.ReshardSpec(
        [
            rp.TensorSpec(each.name, (), "uint8", on(0, (1,), "R"), on(1, (1,), "R"))
            for each in model.parameters
        ]
    )
    wanted = tuple(
        at
        for at, each in enumerate(model.parameters)
        if each.role in FEED_FORWARD and each.layer < model.layers
    )
    others = tuple(sorted(set(range(len(spec.tensors))) - set(wanted)))
    assert phases(spec) == (wanted, others)


def test_a_layer_with_the_projection_of_a_drafter_is_other():
    names = [f"model.layers.{at}.mlp.up_proj.weight" for at in (6, 61)]
    src, dst = on(0, (1,), "R"), on(1, (1,), "R")
    for more, wanted in (([], ((0, 1),)), (["model.layers.6.eh_proj.weight"], ((1,), (0, 2)))):
        tensors = [rp.TensorSpec(name, (2,), "uint8", src, dst) for name in names + more]
        assert phases(rp.ReshardSpec(tensors)) == wanted


def test_a_phase_without_tensors_is_left_out():
    assert phases(rp.ReshardSpec([])) == ()
    assert phases(one(on(0, (1,), "R"), on(1, (1,), "R"), 2)) == ((0,),)


# what always holds


def part(spec, tensors):
    return rp.ReshardSpec([spec.tensors[at] for at in tensors], spec.topology, spec.options)


def among_all_ranks(spec, tensors):
    """The same with a tensor of nothing on all ranks: what NCCL M2N does depends on its communicator."""
    everywhere = rp.Layout(rp.Mesh(spec.ranks), ["R"])
    nothing = rp.TensorSpec("nothing", (0,), "uint8", everywhere, everywhere)
    chosen = part(spec, tensors)
    return rp.ReshardSpec([*chosen.tensors, nothing], chosen.topology, chosen.options)


def renamed(spec, names):
    tensors = [
        rp.TensorSpec(name, tensor.shape, tensor.dtype, tensor.src, tensor.dst)
        for name, tensor in zip(names, spec.tensors, strict=False)
    ]
    return rp.ReshardSpec(tensors, spec.topology, spec.options)


@given(specs(strategies=("hybrid",)))
def test_any_spec_is_delivered_and_every_kind_goes_as_it_does_alone(spec):
    spec = renamed(spec, ["a.mlp.up_proj.weight", "w", "b.mlp.up_proj.weight"])
    plan = rp.compile(spec)
    assert_delivers(plan)
    by_strategy = {}
    limits = limits_of(spec)
    for at, tensor in enumerate(spec.tensors):
        bulk = "m2n-node-aware" if limits.why_refused(tensor) is None else "striped"
        by_strategy.setdefault("gather-broadcast" if tensor.name == "w" else bulk, []).append(at)
    for strategy, tensors in by_strategy.items():
        alone = rp.compile(among_all_ranks(spec, tensors), strategy)
        assert [moves(plan, at) for at in tensors] == [moves(alone, at) for at in range(len(tensors))]


@given(specs())
def test_without_feed_forward_weights_the_plan_is_that_of_gather_broadcast(spec):
    assert rp.compile(spec, "hybrid").tables == rp.compile(spec, "gather-broadcast").tables


# whole models


@functools.cache
def by_name(name):
    if name.startswith("dsv3"):
        [spec] = [case.build() for case in model_cases() if case.name == f"models/{name}"]
        return spec
    train, serve = {
        "Qwen3-4B": ("megatron tp=2 pp=2", "vllm tp=4 dp=2"),
        "Qwen3-30B-A3B": ("megatron tp=2 pp=2 ep=4", "vllm tp=2 dp=4"),
    }[name]
    model = load_model(CONFIGS / f"{name}.json")
    return build_spec(model, parse_parallelism(train, "train"), [parse_parallelism(serve, "serve")])


@pytest.mark.parametrize("name", ["dsv3-toy-64", "Qwen3-4B", "Qwen3-30B-A3B"])
def test_in_whole_models_both_phases_have_the_routes_that_they_have_alone(name):
    """Experts of Megatron lie in a buffer each, which NCCL M2N refuses."""
    spec = by_name(name)
    plan = rp.compile(spec, "hybrid")
    rp.verify(plan)
    feed_forward, others = phases(spec)
    limits = limits_of(spec)
    reasons = {limits.why_refused(spec.tensors[at]) for at in feed_forward}
    moved_by = "striped" if name == "Qwen3-30B-A3B" else "m2n-node-aware"
    assert (None in reasons, len(reasons)) == (moved_by != "striped", 1)
    for tensors, strategy in ((feed_forward, moved_by), (others, "gather-broadcast")):
        alone = rp.compile(part(spec, tensors), strategy)
        for at, tensor in enumerate(tensors):
            assert moves(plan, tensor) == moves(alone, at)


def test_layers_and_stages_share_routes():
    """Of the 36 layers of Qwen3-4B in two stages, weights of one kind go alike."""
    plan = rp.compile(by_name("Qwen3-4B"), "hybrid")
    assert len(set(plan.groups.routes_of.tolist())) < 15 < len(plan.spec.tensors)


def test_tensors_of_one_geometry_and_two_kinds_are_kept_apart():
    src, dst = on(0, (2,), "S(0)"), on(2, (2, 2), "R", "S(0)")
    names = ["a.q_proj.weight", "a.up_proj.weight", "b.q_proj.weight", "b.up_proj.weight"]
    tensors = [rp.TensorSpec(name, (8, 8), "uint8", src, dst) for name in names]
    spec = rp.ReshardSpec(tensors, rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]))
    plan = rp.compile(spec, "hybrid")
    assert_delivers(plan)
    gathered, resharded = (
        moves(rp.compile(part(spec, [0]), name)) for name in ("gather-broadcast", "m2n-node-aware")
    )
    assert gathered != resharded
    for at, wanted in enumerate((gathered, resharded, gathered, resharded)):
        assert moves(plan, at) == wanted
    assert len(set(plan.groups.routes_of.tolist())) == 2


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_kinds_may_begin_in_different_stages(dtype):
    """The second stage alone has a tensor of the other kind; NCCL M2N does not move bool."""
    names = {0: ["a.up_proj.weight", "b.up_proj.weight"], 1: ["c.q_proj.weight", "d.up_proj.weight"]}
    tensors = [
        rp.TensorSpec(name, (8, 8), dtype, on(2 * stage, (2,), "S(0)"), on(4, (2, 2), "R", "S(0)"))
        for stage, own in names.items()
        for name in own
    ]
    for order in (tensors, tensors[::-1]):
        spec = rp.ReshardSpec(order, rp.Topology.from_domains([[0, 1], [2, 3], [4, 5, 6, 7]]))
        plan = rp.compile(spec, "hybrid")
        assert_delivers(plan)
        bulk = "m2n-node-aware" if dtype == "uint8" else "striped"
        for at, tensor in enumerate(order):
            strategy = "gather-broadcast" if "q_proj" in tensor.name else bulk
            assert moves(plan, at) == moves(rp.compile(part(spec, [at]), strategy))


def test_more_copies_than_m2n_sends_within_a_domain_are_striped():
    spec = one(on(0, (1,), "R"), on(1, (130,), "R"), [[0], list(range(1, 131))], (130,))
    spec = renamed(spec, ["mlp.up_proj.weight"])
    assert limits_of(spec).why_refused(spec.tensors[0]).startswith("more than 129 copies")
    assert moves(rp.compile(spec, "hybrid")) == moves(rp.compile(spec, "striped"))


def test_copies_that_several_source_replicas_serve_are_counted_as_m2n_does():
    """Of 200 copies of the second shard in one domain each of two source replicas serves 100."""
    domains = [[*range(4)], [*range(4, 104)], [*range(104, 204)], [*range(204, 404)]]
    spec = one(on(0, (2, 2), "R", "S(0)"), on(4, (2, 200), "S(0)", "R"), domains, (4, 8))
    spec = renamed(spec, ["mlp.up_proj.weight"])
    assert moves(rp.compile(spec, "hybrid")) == moves(rp.compile(spec, "m2n-node-aware"))


def test_m2n_moves_what_it_does_in_the_communicator_of_all_ranks():
    """Ranks 0 and 1 are in one domain, but not all ranks are: there is no way that stays on NVLink."""
    pairs = [(on(0, (1,), "R"), on(1, (1,), "R")), (on(2, (1,), "R"), on(3, (1,), "R"))]
    names = ["a.up_proj.weight", "b.q_proj.weight"]
    tensors = [rp.TensorSpec(name, (8,), "uint8", *pair) for name, pair in zip(names, pairs, strict=True)]
    spec = rp.ReshardSpec(tensors, rp.Topology.uniform(4, 2))
    assert set(moves(rp.compile(spec, "hybrid"), 0)) == {(0, 1, Medium.NETWORK, Role.INJECT)}
    assert moves(rp.compile(spec, "hybrid"), 0) == moves(rp.compile(spec, "m2n-node-aware"), 0)


def test_processes_move_what_the_certificate_says():
    names = cycle(["layers.{}.mlp.down_proj.weight", "layers.{}.self_attn.o_proj.weight"])
    src, dst = on(0, (4,), "S(1)"), on(4, (2, 2), "R", "S(1)")
    tensors = [
        rp.TensorSpec(next(names).format(at), (16, 16), dtype, src, dst)
        for at, dtype in enumerate(("bfloat16", "bfloat16", "bool", "float32"))
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)), "hybrid")
    assert_processes_move_as_certified(plan)
