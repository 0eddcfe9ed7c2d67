"""Parts that families share: attention, feed-forward parts, and what stands around layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reshard_planner.errors import ModelError
from reshard_planner.models import roles
from reshard_planner.models.config import Config
from reshard_planner.models.model import Model, Parameter

Parameters = tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where parameters stand in a model.

    Attributes:
        prefix: start of their names, with the dot at its end.
        dtype: torch's name of their element type.
        layer: number of their layer, None outside of layers.
    """

    prefix: str
    dtype: str
    layer: int | None = None

    def at(self, name: str) -> Place:
        """The place of a module within."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def of_layer(self, number: int) -> Place:
        """The place of a layer among ``layers``."""
        return Place(f"{self.prefix}layers.{number}.", self.dtype, number)

    def parameter(self, role: str, name: str, *shape: int, dtype: str | None = None) -> Parameter:
        """A parameter that is one tensor of the checkpoint."""
        return Parameter(f"{self.prefix}{name}", shape, dtype or self.dtype, role, self.layer)

    def weight(self, role: str, name: str, *shape: int, dtype: str | None = None) -> Parameter:
        """The weight of a module."""
        return self.parameter(role, f"{name}.weight", *shape, dtype=dtype)

    def experts(self, role: str, name: str, experts: int, *shape: int) -> Parameter:
        """The weights of a module of every expert, as one parameter."""
        full = f"{self.prefix}experts.*.{name}.weight"
        return Parameter(full, (experts, *shape), self.dtype, role, self.layer, experts)


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of grouped-query attention: heads, heads of keys and values, and their size."""

    heads: int
    kv_heads: int
    head_dim: int


def read_heads(config: Config) -> Heads:
    """Read the sizes of grouped-query attention.

    Raises:
        ModelError: if a size is missing or wrong, or heads do not share keys and values evenly.
    """
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads")
    if heads % kv_heads:
        raise ModelError(config.refusal("num_key_value_heads", kv_heads, f"a divisor of {heads} query heads"))
    return Heads(heads, kv_heads, config.count("head_dim"))


def embedding(place: Place, vocab: int, hidden: int) -> Parameters:
    """The embedding."""
    return (place.weight(roles.EMBEDDING, "embed_tokens", vocab, hidden),)


def head(place: Place, vocab: int, hidden: int, *, tied: bool) -> Parameters:
    """The head, which is no parameter of its own where it is tied to the embedding."""
    return () if tied else (place.weight(roles.HEAD, "lm_head", vocab, hidden),)


def final_norm(place: Place, hidden: int) -> Parameters:
    """The norm after the last layer."""
    return (place.weight(roles.FINAL_NORM, "norm", hidden),)


def layer_norms(place: Place, hidden: int) -> Parameters:
    """The norms before attention and before the feed-forward part."""
    return (
        place.weight(roles.INPUT_NORM, "input_layernorm", hidden),
        place.weight(roles.POST_NORM, "post_attention_layernorm", hidden),
    )


def attention_heads(config: Config, hidden: int) -> Heads:
    """Sizes of heads; older configurations leave out what follows from the others.

    Args:
        config: the configuration.
        hidden: hidden size, in elements.

    Raises:
        ModelError: if a field is missing, or sizes do not divide.
    """
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(config.refusal("num_key_value_heads", kv_heads, f"a divisor of {heads} query heads"))
    head_dim = config.count("head_dim", None)
    if head_dim is None:
        if hidden % heads:
            raise ModelError(
                config.refusal("num_attention_heads", heads, f"a divisor of {hidden}, without a head_dim")
            )
        head_dim = hidden // heads
    return Heads(heads, kv_heads, head_dim)


def grouped_query_attention(
    place: Place,
    hidden: int,
    heads: Heads,
    *,
    bias: bool,
    norms: bool,
    output_gate: bool = False,
    output_bias: bool = True,
) -> Parameters:
    """Grouped-query attention.

    Args:
        place: the attention module.
        hidden: hidden size, in elements.
        heads: its heads.
        bias: whether projections have a bias.
        norms: whether queries and keys are normalised by heads.
        output_gate: whether the query projection also gives a gate of every head.
        output_bias: whether the output projection has one, too, where the others have it.
    """
    queries = heads.heads * heads.head_dim
    keys = heads.kv_heads * heads.head_dim
    rows = 2 * queries if output_gate else queries
    found = [
        place.weight(roles.Q, "q_proj", rows, hidden),
        place.weight(roles.K, "k_proj", keys, hidden),
        place.weight(roles.V, "v_proj", keys, hidden),
        place.weight(roles.O, "o_proj", hidden, queries),
    ]
    if bias:
        found += [
            place.parameter(roles.Q_BIAS, "q_proj.bias", rows),
            place.parameter(roles.K_BIAS, "k_proj.bias", keys),
            place.parameter(roles.V_BIAS, "v_proj.bias", keys),
        ]
    if bias and output_bias:
        found.append(place.parameter(roles.O_BIAS, "o_proj.bias", hidden))
    if norms:
        found += [
            place.weight(roles.Q_NORM, "q_norm", heads.head_dim),
            place.weight(roles.K_NORM, "k_norm", heads.head_dim),
        ]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention: heads, ranks, and parts of a head.

    ``q_rank`` is None where queries have no rank.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    @property
    def qk_dim(self) -> int:
        """Size of a head of queries and keys."""
        return self.nope_dim + self.rope_dim


def read_latent(config: Config) -> Latent:
    """Read the sizes of multi-head latent attention.

    Raises:
        ModelError: if a size is missing or wrong.
    """
    return Latent(
        heads=config.count("num_attention_heads"),
        q_rank=config.count_or_null("q_lora_rank"),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        v_dim=config.count("v_head_dim"),
    )


def latent_attention(
    place: Place, hidden: int, sizes: Latent, *, bias: bool, output_gate: bool = False
) -> Parameters:
    """Multi-head latent attention.

    Args:
        place: the attention module.
        hidden: hidden size, in elements.
        sizes: its heads and ranks.
        bias: whether the projections from and to the hidden size have a bias; one of queries without a
            rank has none.
        output_gate: whether the output is gated by a projection of its own.
    """
    rows = sizes.heads * sizes.qk_dim
    compressed = sizes.kv_rank + sizes.rope_dim
    values = sizes.heads * sizes.v_dim
    found = []
    if sizes.q_rank is None:
        found += [place.weight(roles.Q_B, "q_proj", rows, hidden)]
    else:
        found += [
            place.weight(roles.Q_A, "q_a_proj", sizes.q_rank, hidden),
            place.weight(roles.Q_A_NORM, "q_a_layernorm", sizes.q_rank),
            place.weight(roles.Q_B, "q_b_proj", rows, sizes.q_rank),
        ]
    found += [
        place.weight(roles.KV_A, "kv_a_proj_with_mqa", compressed, hidden),
        place.weight(roles.KV_A_NORM, "kv_a_layernorm", sizes.kv_rank),
        place.weight(roles.KV_B, "kv_b_proj", sizes.heads * (sizes.nope_dim + sizes.v_dim), sizes.kv_rank),
        place.weight(roles.O, "o_proj", hidden, values),
    ]
    if bias and sizes.q_rank is not None:
        found += [place.parameter(roles.Q_A_BIAS, "q_a_proj.bias", sizes.q_rank)]
    if bias:
        found += [
            place.parameter(roles.KV_A_BIAS, "kv_a_proj_with_mqa.bias", compressed),
            place.parameter(roles.O_BIAS, "o_proj.bias", hidden),
        ]
    if output_gate:
        found += [place.weight(roles.ATTENTION_GATE, "g_proj", values, hidden)]
    return tuple(found)


def dense_mlp(place: Place, hidden: int, intermediate: int, *, bias: bool = False) -> Parameters:
    """A gated feed-forward part without experts."""
    found = [
        place.weight(roles.GATE, "gate_proj", intermediate, hidden),
        place.weight(roles.UP, "up_proj", intermediate, hidden),
        place.weight(roles.DOWN, "down_proj", hidden, intermediate),
    ]
    if bias:
        found += [
            place.parameter(roles.GATE_BIAS, "gate_proj.bias", intermediate),
            place.parameter(roles.UP_BIAS, "up_proj.bias", intermediate),
            place.parameter(roles.DOWN_BIAS, "down_proj.bias", hidden),
        ]
    return tuple(found)


def shared_expert(place: Place, hidden: int, intermediate: int) -> Parameters:
    """Shared experts, which checkpoints keep as one of their joined size."""
    return (
        place.weight(roles.SHARED_GATE, "gate_proj", intermediate, hidden),
        place.weight(roles.SHARED_UP, "up_proj", intermediate, hidden),
        place.weight(roles.SHARED_DOWN, "down_proj", hidden, intermediate),
    )


def router(place: Place, experts: int, hidden: int, *, bias: bool = False) -> Parameters:
    """The router of experts.

    A bias corrects scores in steps far below the resolution of bfloat16; checkpoints keep it in float32.
    """
    found = [place.weight(roles.ROUTER, "gate", experts, hidden)]
    if bias:
        name = "gate.e_score_correction_bias"
        found += [place.parameter(roles.ROUTER_BIAS, name, experts, dtype="float32")]
    return tuple(found)


def routed_experts(
    place: Place,
    experts: int,
    intermediate: int,
    hidden: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Parameters:
    """Routed experts that are tensors of their own in checkpoints.

    Args:
        place: the module with the experts and their router.
        experts: how many there are.
        intermediate: intermediate size of one, in elements.
        hidden: size of what one reads and writes.
        names: modules of gate, up and down.
    """
    gate, up, down = names
    return (
        place.experts(roles.EXPERT_GATE, gate, experts, intermediate, hidden),
        place.experts(roles.EXPERT_UP, up, experts, intermediate, hidden),
        place.experts(roles.EXPERT_DOWN, down, experts, hidden, intermediate),
    )


def stacked_experts(place: Place, experts: int, intermediate: int, hidden: int) -> Parameters:
    """Routed experts that checkpoints keep in two tensors."""
    at = place.at("experts")
    return (
        at.parameter(roles.EXPERT_GATE_UP, "gate_up_proj", experts, 2 * intermediate, hidden),
        at.parameter(roles.EXPERT_DOWN, "down_proj", experts, hidden, intermediate),
    )


def sparse_layers(config: Config, layers: int) -> frozenset[int]:
    """Layers with experts: every ``moe_layer_freq``-th from ``first_k_dense_replace`` on.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    first = config.natural("first_k_dense_replace")
    # the DeepseekV3Config of transformers has no such field, and experts in every layer from the first on
    step = config.count("moe_layer_freq", 1)
    return frozenset(number for number in range(first, layers) if number % step == 0)


def dense_decoder(
    config: Config, family: str, *, bias: bool, output_bias: bool = True, mlp_bias: bool = False
) -> Model:
    """A model of grouped-query attention and a dense feed-forward part in every layer.

    Args:
        config: the configuration.
        family: name of the family.
        bias: whether projections of attention have a bias.
        output_bias: whether the output projection has one, too, where the others have it.
        mlp_bias: whether the feed-forward projections have one.

    Raises:
        ModelError: if a field is missing or wrong.
    """
    hidden = config.count("hidden_size")
    layers = config.count("num_hidden_layers")
    vocab = config.count("vocab_size")
    intermediate = config.count("intermediate_size")
    heads = attention_heads(config, hidden)
    tied = config.flag("tie_word_embeddings")
    top = Place("", config.dtype)
    model = top.at("model")
    found: Parameters = embedding(model, vocab, hidden)
    for number in range(layers):
        layer = model.of_layer(number)
        found += layer_norms(layer, hidden)
        found += grouped_query_attention(
            layer.at("self_attn"), hidden, heads, bias=bias, norms=False, output_bias=output_bias
        )
        found += dense_mlp(layer.at("mlp"), hidden, intermediate, bias=mlp_bias)
    found += final_norm(model, hidden) + head(top, vocab, hidden, tied=tied)
    return Model(
        family=family,
        parameters=found,
        layers=layers,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        v_head_dim=heads.head_dim,
        vocab=vocab,
        tied=tied,
        dense_layers=frozenset(range(layers)),
    )
