"""A Llama of its own: how a GGUF file stores it, how Megatron and vLLM hold it, and what it computes.

Nothing here comes from the planner, so that what the planner moves can be held against it.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import silu

Weights = Callable[[str], torch.Tensor]
"""The whole weights of a model in float32, by their names in the Hugging Face checkpoint."""

# -- the checkpoint ----------------------------------------------------------------------------------------

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Checkpoint:
    """A GGUF file with a Llama, mapped into memory."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader  # noqa: PLC0415 - comes with the weights, not with this project

        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def config(self) -> dict[str, Any]:
        """What the config.json of the Hugging Face checkpoint says."""
        names = {
            "hidden_size": "embedding_length",
            "num_hidden_layers": "block_count",
            "num_attention_heads": "attention.head_count",
            "num_key_value_heads": "attention.head_count_kv",
            "intermediate_size": "feed_forward_length",
            "vocab_size": "vocab_size",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon",
            "rope_theta": "rope.freq_base",
        }
        numbers = {ours: self.fields[f"llama.{theirs}"].contents() for ours, theirs in names.items()}
        tied = "output.weight" not in self.tensors
        return {"model_type": "llama", "tie_word_embeddings": tied, "dtype": "float32", **numbers}

    def weight(self, name: str) -> torch.Tensor:
        """A weight as float32, by its name in the Hugging Face checkpoint."""
        from gguf.quants import dequantize  # noqa: PLC0415

        stem, prefix = name.removesuffix(".weight"), ""
        if stem.startswith("model.layers."):
            _, _, layer, stem = stem.split(".", 3)
            prefix = f"blk.{layer}."
        stored = self.tensors[f"{prefix}{GGUF_NAMES[stem]}.weight"]
        values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        if stem in {"self_attn.q_proj", "self_attn.k_proj"}:  # pairs of rotary rows lie together in GGUF
            heads = "head_count" if stem.endswith("q_proj") else "head_count_kv"
            count = self.fields[f"llama.attention.{heads}"].contents()
            by_pair = values.reshape(count, -1, 2, values.shape[1])
            values = by_pair.transpose(1, 2).reshape(values.shape)
        return values

    def vocabulary(self) -> list[str]:
        """The tokens, in the alphabet of GPT-2."""
        found: list[str] = self.fields["tokenizer.ggml.tokens"].contents()
        return found


def as_text(tokens: list[str]) -> str:
    """Tokens of GPT-2's alphabet, in which printable bytes stand for themselves, as text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return bytes(alphabet[letter] for token in tokens for letter in token).decode(errors="replace")


# -- what the frameworks hold ------------------------------------------------------------------------------


class Part(NamedTuple):
    """What a rank's buffer holds: ranges of weights one after another along a dimension, then padding."""

    buffer: str
    dim: int
    ranges: list[tuple[str, int, int]]
    padding: int = 0


def vocabulary_part(buffer: str, rows: int, multiple: int, parts: int, part: int) -> Part:
    """One of equal parts of the embedding, whose rows are padded to a multiple."""
    step = math.ceil(rows / multiple) * multiple // parts
    lo, hi = min(rows, part * step), min(rows, (part + 1) * step)
    return Part(buffer, 0, [("model.embed_tokens.weight", lo, hi)], step - (hi - lo))


def share(name: str, size: int, parts: int, part: int) -> tuple[str, int, int]:
    """One of equal parts of a dimension of a weight."""
    return name, part * size // parts, (part + 1) * size // parts


def megatron_parts(config: dict[str, Any], tp: int, pp: int, pad: int, rank: int) -> Iterator[Part]:
    """The buffers of Megatron's rank; tensor parallel ranks count fastest.

    Every stage numbers its layers anew. linear_qkv has of each head of keys its heads of queries, then its
    own rows, then those of values; linear_fc1 has gate, then up. The tied embedding is on the first stage
    and, as the head, on the last.
    """
    stage, part = divmod(rank, tp)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    groups, layers = config["num_key_value_heads"], config["num_hidden_layers"] // pp
    head = hidden // config["num_attention_heads"]
    rows = {"q": hidden // groups, "k": head, "v": head}
    for at, buffer in ((0, "embedding.word_embeddings.weight"), (pp - 1, "output_layer.weight")):
        if stage == at:
            yield vocabulary_part(buffer, config["vocab_size"], pad * tp, tp, part)
    if stage == pp - 1:
        yield Part("decoder.final_layernorm.weight", 0, [("model.norm.weight", 0, hidden)])
    for local in range(layers):
        attention, mlp = (f"decoder.layers.{local}.{module}.linear_" for module in ("self_attention", "mlp"))
        layer = f"model.layers.{stage * layers + local}."
        norms = (f"{layer}{name}_layernorm.weight" for name in ("input", "post_attention"))
        for buffer, norm in zip((f"{attention}qkv", f"{mlp}fc1"), norms, strict=True):
            yield Part(f"{buffer}.layer_norm_weight", 0, [(norm, 0, hidden)])
        qkv = [
            (f"{layer}self_attn.{letter}_proj.weight", group * count, (group + 1) * count)
            for group in range(part * groups // tp, (part + 1) * groups // tp)
            for letter, count in rows.items()
        ]
        yield Part(f"{attention}qkv.weight", 0, qkv)
        yield Part(f"{attention}proj.weight", 1, [share(f"{layer}self_attn.o_proj.weight", hidden, tp, part)])
        fc1 = [share(f"{layer}mlp.{name}_proj.weight", inner, tp, part) for name in ("gate", "up")]
        yield Part(f"{mlp}fc1.weight", 0, fc1)
        yield Part(f"{mlp}fc2.weight", 1, [share(f"{layer}mlp.down_proj.weight", inner, tp, part)])


def vllm_parts(config: dict[str, Any], tp: int, rank: int) -> Iterator[Part]:
    """The buffers of vLLM's rank: every replica has all layers over tensor parallel ranks.

    qkv_proj has the rank's heads of queries, then of keys, then of values; gate_up_proj gate, then up.
    """
    part = rank % tp
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    rows = {"q": hidden, "k": keys, "v": keys}
    yield vocabulary_part("model.embed_tokens.weight", config["vocab_size"], 64, tp, part)
    yield Part("model.norm.weight", 0, [("model.norm.weight", 0, hidden)])
    for number in range(config["num_hidden_layers"]):
        attention, mlp = (f"model.layers.{number}.{module}." for module in ("self_attn", "mlp"))
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            norm = f"model.layers.{number}.{name}"
            yield Part(norm, 0, [(norm, 0, hidden)])
        qkv = [share(f"{attention}{letter}_proj.weight", count, tp, part) for letter, count in rows.items()]
        yield Part(f"{attention}qkv_proj.weight", 0, qkv)
        gate_up = [share(f"{mlp}{name}_proj.weight", inner, tp, part) for name in ("gate", "up")]
        yield Part(f"{mlp}gate_up_proj.weight", 0, gate_up)
        for name, size in ((f"{attention}o_proj.weight", hidden), (f"{mlp}down_proj.weight", inner)):
            yield Part(name, 1, [share(name, size, tp, part)])


# -- the model ---------------------------------------------------------------------------------------------


def llama(weights: Weights, config: dict[str, Any], tokens: list[int]) -> torch.Tensor:
    """Logits of the token after the last one, shape (vocabulary,)."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    count, size = len(tokens), config["hidden_size"] // heads

    def norm(hidden: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"])
        return weights(name) * (hidden * scale)

    frequencies = config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(count), frequencies).repeat(1, 2)

    def rotary(states: torch.Tensor) -> torch.Tensor:
        low, high = states.chunk(2, dim=-1)
        return states * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()

    later = torch.full((count, count), -math.inf).triu(1)
    hidden = weights("model.embed_tokens.weight")[tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        read = norm(hidden, f"{prefix}input_layernorm.weight")
        q, k, v = (
            (read @ weights(f"{prefix}self_attn.{letter}_proj.weight").T)
            .view(count, -1, size)
            .transpose(0, 1)
            for letter in "qkv"
        )
        k, v = (each.repeat_interleave(heads // groups, dim=0) for each in (rotary(k), v))
        scores = rotary(q) @ k.transpose(1, 2) / math.sqrt(size) + later
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, heads * size)
        hidden = hidden + mixed @ weights(f"{prefix}self_attn.o_proj.weight").T
        read = norm(hidden, f"{prefix}post_attention_layernorm.weight")
        gate, up = (read @ weights(f"{prefix}mlp.{name}_proj.weight").T for name in ("gate", "up"))
        hidden = hidden + (silu(gate) * up) @ weights(f"{prefix}mlp.down_proj.weight").T
    return weights("model.embed_tokens.weight") @ norm(hidden[-1:], "model.norm.weight")[0]
