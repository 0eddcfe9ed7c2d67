"""Where Megatron-core puts a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import lcm

from reshard_planner.errors import SpecError
from reshard_planner.layout import Mesh
from reshard_planner.models import roles
from reshard_planner.models.layers import KDA, Layer, by_layer, expert_count, match, split_evenly
from reshard_planner.models.megatron.rules import (
    KEPT_IN_FLOAT32,
    LAST_LAYER,
    MTP,
    OUTSIDE,
    TIED_HEAD,
    layer_rules,
)
from reshard_planner.models.megatron.stages import split_layers
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.placed import Placed, check_ranks, check_sizes, in_order
from reshard_planner.models.rules import ExpertSplit, Layouts, Rule


@dataclass(frozen=True, slots=True)
class Megatron:
    """Megatron-core's parallelism, ranks in its default order tp-cp-ep-dp-pp (parallel_state).

    Within a stage, dense parameters lie on a mesh of tensor parallel ranks, which count fastest, and data
    parallel ones, context parallel ones among them. Experts lie on a mesh of their own over the same ranks:
    expert tensor parallel, expert parallel, then data parallel.

    Attributes:
        tp: tensor parallel size.
        cp: context parallel size; weights are replicated over it.
        ep: expert parallel size.
        etp: tensor parallel size within experts. 1 by default, as NeMo RL's recipes have it; Megatron's own
            default is tp.
        dp: data parallel size, without cp; 0 for the smallest that fits the others, or what ``gpus`` leaves.
        pp: pipeline stages.
        vpp: virtual chunks of every stage, interleaved.
        first: decoder layers of the first stage; None for the rule of
            :func:`~reshard_planner.models.megatron.stages.split_layers`. Likewise ``last``.
        grouped: whether the local experts of a projection lie stacked in one buffer, ``[E_local, 2 x I, H]``
            and ``[E_local, H, I]`` under the names ``mlp.experts.linear_fc1.weight`` and
            ``linear_fc2.weight``; otherwise each has a buffer, named ``weight0``, ``weight1`` and so on by
            its local number.
        pad: vocabularies are padded to a multiple of ``pad * tp``, make_vocab_size_divisible_by.
        dtype: element type of all parameters; None for their own.
        gpus: number of ranks; 0 for what the sizes give.
        ranks: the ranks, where the description names them.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 0
    pp: int = 1
    vpp: int = 1
    first: int | None = None
    last: int | None = None
    grouped: bool = False
    pad: int = 128
    dtype: str | None = None
    gpus: int = 0
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_sizes(
            "megatron",
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp,
            pp=self.pp,
            vpp=self.vpp,
            pad=self.pad,
        )
        for name, given in (("first", self.first), ("last", self.last)):
            if given is not None:
                check_sizes("megatron", **{name: given})
        for name, size in (("dp", self.dp), ("gpus", self.gpus)):
            if size:
                check_sizes("megatron", **{name: size})
        if self.vpp > 1 and self.pp == 1:
            raise SpecError(f"megatron vpp is {self.vpp}, but pp is 1; expected pp of at least 2, or vpp=1")
        object.__setattr__(self, "dp", self._find_dp())
        object.__setattr__(self, "gpus", self.tp * self.cp * self.dp * self.pp)
        if self.ranks is not None:
            check_ranks("megatron", self.gpus, self.ranks)

    def _find_dp(self) -> int:
        """The data parallel size, from what is given."""
        dense, experts = self.tp * self.cp, self.ep * self.etp
        least = lcm(dense, experts) // dense
        each = dense * self.pp
        if self.gpus and self.gpus % (least * each):
            raise SpecError(
                f"megatron gpus is {self.gpus}, but tp={self.tp} cp={self.cp} pp={self.pp} ep={self.ep}"
                f" etp={self.etp} take multiples of {least * each}; expected one of them"
            )
        if self.dp and self.dp % least:
            raise SpecError(
                f"megatron dp is {self.dp}, but ep * etp = {experts} must divide tp * cp * dp ="
                f" {dense * self.dp}; expected a multiple of {least}"
            )
        if self.gpus and self.dp and self.gpus != each * self.dp:
            raise SpecError(
                f"megatron gpus is {self.gpus}, but tp * cp * dp * pp is {each * self.dp}; expected the same"
            )
        return self.dp or (self.gpus // each if self.gpus else least)

    def notes(self, model: Model) -> tuple[str, ...]:
        """How many layers every stage has, with several stages.

        Raises:
            SpecError: if the layers cannot be split like that.
        """
        if self.pp == 1:
            return ()
        stages = split_layers(model.layers, self.pp, self.vpp, self.first, self.last)
        counts = [sum(map(len, chunks)) for chunks in stages]
        runs = [(count, len(list(own))) for count, own in groupby(counts)]
        shown = ", ".join(f"{count} x {times}" if times > 1 else f"{count}" for count, times in runs)
        return (f"layers per pipeline stage: {shown}",)

    def place(self, model: Model, ranks: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """Place every parameter; see :class:`~reshard_planner.models.placed.Parallelism`.

        The embedding is on the first stage, final norm and head on the last. A tied embedding is on both, and
        so is one of a model with multi-token prediction, whose layers are on the last stage.

        Raises:
            SpecError: if the model cannot be spread like that.
        """
        ranks = check_ranks("megatron", self.gpus, ranks)
        layers = by_layer(model, "megatron")
        stages = split_layers(model.layers, self.pp, self.vpp, self.first, self.last)
        layouts = self._layouts(model, list(layers.values()))
        meshes = [self._meshes(ranks, stage) for stage in range(self.pp)]
        placed: dict[str, tuple[Placed, ...]] = {}
        for stage, prefix, layer, rules in self._sites(model, layers, stages):
            for rule, present in match(layer, rules, "megatron"):
                mesh = meshes[stage][rule.experts]
                buffers = (
                    layouts.experts.buffers(prefix + rule.buffer)
                    if rule.experts and layouts.experts
                    else None
                )
                for role, layout in layouts.of(rule, present, mesh).items():
                    name = present[role].name
                    dtype = "float32" if role in KEPT_IN_FLOAT32 else None
                    one = Placed(layout, buffers or (prefix + rule.buffer,), dtype)
                    placed[name] = (*placed.get(name, ()), one)
        return in_order(model, placed)

    def _layouts(self, model: Model, layers: list[Layer]) -> Layouts:
        experts = expert_count(model, layers)
        if experts % self.ep or (self.ep > 1 and not experts):
            raise SpecError(
                f"megatron ep is {self.ep}, but {model.family} has {experts} experts; expected"
                f" {f'a divisor of {experts}' if experts else 1}"
            )
        split = ExpertSplit(
            tuple(((0, part.start, part.stop),) for part in split_evenly(experts, self.ep)),
            separate=not self.grouped,
        )
        return Layouts(
            model,
            "megatron tp",
            self.tp,
            "megatron etp",
            self.etp,
            self.pad * self.tp,
            split if experts else None,
        )

    def _meshes(self, ranks: tuple[int, ...], stage: int) -> tuple[Mesh, Mesh]:
        """Of dense parameters and of experts."""
        size = self.gpus // self.pp
        own = ranks[stage * size : (stage + 1) * size]
        experts = self.etp * self.ep
        return (
            Mesh(own, ("dp", "tp"), (size // self.tp, self.tp)),
            Mesh(own, ("edp", "ep", "etp"), (size // experts, self.ep, self.etp)),
        )

    def _sites(
        self,
        model: Model,
        layers: dict[int | None, dict[str, Parameter]],
        stages: Sequence[Sequence[Sequence[int]]],
    ) -> Iterator[tuple[int, str, Layer, tuple[Rule, ...]]]:
        """What lies where: a stage, the beginning of buffer names, parameters, and their rules."""
        kimi = any(KDA & layer.keys() for layer in layers.values())
        chunk = [f"model{number}." if self.vpp > 1 else "" for number in range(self.vpp)]
        last = self.pp - 1
        outside = layers.get(None, {})
        within = _with_roles(outside, LAST_LAYER)
        after = {role: outside[role] for role in (roles.FINAL_NORM, roles.HEAD) if role in outside}
        before = {role: p for role, p in outside.items() if role not in after and role not in within}
        yield 0, chunk[0], before, OUTSIDE
        yield last, chunk[-1], after, OUTSIDE
        yield last, f"{chunk[-1]}decoder.layers.{len(stages[-1][-1]) - 1}.", within, LAST_LAYER
        predicts = any(number is not None and number >= model.layers for number in layers)
        if last and roles.EMBEDDING in outside and (model.tied or predicts):
            embedding = {roles.EMBEDDING: outside[roles.EMBEDDING]}
            yield last, chunk[-1], embedding, OUTSIDE if predicts else (TIED_HEAD,)
        for stage, chunks in enumerate(stages):
            for prefix, numbers in zip(chunk, chunks, strict=True):
                for local, number in enumerate(numbers):
                    layer = layers.get(number, {})
                    yield stage, f"{prefix}decoder.layers.{local}.", layer, layer_rules(layer, kimi=kimi)
        for number in sorted(number for number in layers if number is not None and number >= model.layers):
            prefix = f"{chunk[-1]}mtp.layers.{number - model.layers}."
            around = _with_roles(layers[number], MTP)
            inside = {role: p for role, p in layers[number].items() if role not in around}
            yield last, prefix, around, MTP
            yield last, f"{prefix}mtp_model_layer.", inside, layer_rules(inside, kimi=kimi)


def _with_roles(layer: Layer, rules: Sequence[Rule]) -> dict[str, Parameter]:
    """The parameters of a layer that some rules are about."""
    return {role: p for role, p in layer.items() if any(role in rule.roles for rule in rules)}
