"""Where vLLM puts a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.errors import SpecError
from reshard_planner.layout import Mesh
from reshard_planner.models.blocks import Run, join
from reshard_planner.models.layers import Layer, by_layer, expert_count, match, split_evenly
from reshard_planner.models.model import Model
from reshard_planner.models.placed import Placed, check_ranks, check_sizes, in_order
from reshard_planner.models.rules import ExpertSplit, Layouts
from reshard_planner.models.vllm.names import buffer_name, is_nested
from reshard_planner.models.vllm.rules import KEPT_IN_FLOAT32, OUTSIDE, layer_rules

EXPERT_PLACEMENTS = ("linear", "round_robin")

PADDING = 64
"""What vLLM pads vocabularies to a multiple of (vocab_parallel_embedding)."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's parallelism; tensor parallel ranks count fastest.

    Without expert parallelism, every ``tp`` consecutive ranks are an engine of their own, as reinforcement
    learning starts them, and cut all experts over themselves. One engine with ``--data-parallel-size`` and
    without ``--enable-expert-parallel`` differs, and is not covered: it cuts experts over all its ranks.

    With expert parallelism, every ``ep`` consecutive ranks are an engine, of ``ep / tp`` data parallel ranks,
    and share whole experts. With several of those and ``tp`` above 1 tokens behind attention are spread over
    all its ranks, and each holds shared experts whole, as vLLM has it with its default of
    ``--all2all-backend`` and most others; in Kimi also dense feed-forward parts.

    Attributes:
        tp: tensor parallel size.
        dp: number of replicas of what is not about experts; 0 for 1, or for what ``gpus`` leaves.
        ep: expert parallel size: 1 for none, else a multiple of tp that divides tp * dp.
        redundant: redundant experts of every layer, of EPLB. Physical experts are the logical ones and then
            logical experts 0, 1, 2 and so on again, as vLLM begins; later rearrangements are not known here.
        expert_placement: ``linear``, contiguous experts on every rank, of which the first ranks get one more
            where they do not divide; or ``round_robin``, which vLLM replaces by linear, with a warning, for
            models that do not choose experts by groups: give what it uses.
        dtype: element type of all parameters; None for their own.
        gpus: number of ranks; 0 for tp * dp.
        ranks: the ranks, where the description names them.
    """

    tp: int = 1
    dp: int = 0
    ep: int = 1
    redundant: int = 0
    expert_placement: str = "linear"
    dtype: str | None = None
    gpus: int = 0
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_sizes("vllm", tp=self.tp, ep=self.ep)
        for name, size in (("dp", self.dp), ("gpus", self.gpus), ("redundant", self.redundant)):
            if size:
                check_sizes("vllm", **{name: size})
        if self.gpus and self.gpus % self.tp:
            raise SpecError(
                f"vllm gpus is {self.gpus}, but tp is {self.tp}; expected a multiple of {self.tp}"
            )
        object.__setattr__(self, "dp", self.dp or (self.gpus // self.tp) or 1)
        size = self.tp * self.dp
        if self.gpus and self.gpus != size:
            raise SpecError(f"vllm gpus is {self.gpus}, but tp * dp is {size}; expected the same")
        object.__setattr__(self, "gpus", size)
        if self.ep > 1 and (self.ep % self.tp or size % self.ep):
            raise SpecError(
                f"vllm ep is {self.ep}; expected 1 or a multiple of tp={self.tp} that divides tp * dp ="
                f" {size}"
            )
        if self.expert_placement not in EXPERT_PLACEMENTS:
            raise SpecError(
                f"vllm expert_placement is {self.expert_placement!r}; expected"
                f" {' or '.join(EXPERT_PLACEMENTS)}"
            )
        if self.redundant and self.ep == 1:
            raise SpecError(
                f"vllm redundant is {self.redundant}, but ep is 1; expected ep above 1, or redundant=0"
            )
        if self.redundant and self.expert_placement != "linear":
            raise SpecError(
                f"vllm expert_placement is {self.expert_placement!r} with redundant={self.redundant};"
                " expected linear, the only one that vLLM combines with redundant experts"
            )
        if self.ranks is not None:
            check_ranks("vllm", self.gpus, self.ranks)

    def notes(self, model: Model) -> tuple[str, ...]:  # noqa: ARG002 - as in the protocol
        """Nothing: all of it is said by the options."""
        return ()

    def place(self, model: Model, ranks: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """Place every parameter; see :class:`~reshard_planner.models.placed.Parallelism`.

        Layers of multi-token prediction belong to a drafter of its own in vLLM; here they are placed beside
        the others by the same rules, under the names of the checkpoint, and share embedding and head.

        Raises:
            SpecError: if the model cannot be spread like that.
        """
        ranks = check_ranks("vllm", self.gpus, ranks)
        layers = by_layer(model, "vllm")
        layouts = Layouts(
            model,
            "vllm tp",
            self.tp,
            "vllm tp",
            self.tp if self.ep == 1 else 1,
            PADDING,
            self._experts(model, list(layers.values())),
        )
        dense = Mesh(ranks, ("dp", "tp"), (self.dp, self.tp))
        experts = Mesh(ranks, ("edp", "ep"), (self.gpus // self.ep, self.ep)) if self.ep > 1 else dense
        nested = is_nested(model.by_name)
        sequence_parallel = self.ep > self.tp > 1
        placed: dict[str, tuple[Placed, ...]] = {}
        for number, layer in layers.items():
            rules = OUTSIDE
            if number is not None:
                rules = layer_rules(layer, model.family, sequence_parallel=sequence_parallel)
            for rule, present in match(layer, rules, "vllm"):
                first = next(iter(present.values())).name
                buffers = (buffer_name(first, rule.buffer, nested=nested),)
                found = layouts.of(rule, present, experts if rule.experts else dense)
                for role, layout in found.items():
                    dtype = "float32" if role in KEPT_IN_FLOAT32 else None
                    placed[present[role].name] = (Placed(layout, buffers, dtype),)
        return in_order(model, placed)

    def _experts(self, model: Model, layers: list[Layer]) -> ExpertSplit | None:
        count = expert_count(model, layers)
        physical = count + self.redundant
        if not count and (self.ep > 1 or self.redundant):
            wrong = f"ep is {self.ep}" if self.ep > 1 else f"redundant is {self.redundant}"
            raise SpecError(f"vllm {wrong}, but {model.family} has no experts; expected ep=1 redundant=0")
        if self.ep > 1 and physical < self.ep:
            raise SpecError(
                f"vllm ep is {self.ep}, but {model.family} has {count} experts"
                f"{f' and {self.redundant} redundant ones' if self.redundant else ''}; expected at most"
                f" {physical}"
            )
        if self.redundant and physical % self.ep:
            raise SpecError(
                f"vllm redundant is {self.redundant}, and ep={self.ep} does not divide {count} +"
                f" {self.redundant} experts; expected a sum that it divides, as EPLB needs"
            )
        if not count:
            return None
        if self.expert_placement == "round_robin":
            numbers: list[Sequence[int]] = [range(rank, count, self.ep) for rank in range(self.ep)]
        else:
            numbers = list(split_evenly(physical, self.ep))
        return ExpertSplit(tuple(_runs(own, count) for own in numbers))


def _runs(physical: Sequence[int], experts: int) -> tuple[Run, ...]:
    """Runs of the logical experts behind physical ones, which repeat them from the first on."""
    logical = [number if number < experts else (number - experts) % experts for number in physical]
    return join([(slot, expert, expert + 1) for slot, expert in enumerate(logical)])
