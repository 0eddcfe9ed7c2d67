"""Which pipeline stage has which layers."""

from __future__ import annotations

from reshard_planner.errors import SpecError

Stage = tuple[tuple[int, ...], ...]
"""The layers of a stage by its virtual chunks; one chunk without virtual stages."""


def split_layers(
    layers: int, pp: int, vpp: int = 1, first: int | None = None, last: int | None = None
) -> tuple[Stage, ...]:
    """Split decoder layers over pipeline stages.

    Layers are dealt out evenly where that works. Otherwise, without ``first`` and ``last``, middle stages get
    ceil(layers / pp), and the first and the last share the rest, the first the larger half: so are the
    published recipes of 94 layers over 8 stages, 61 over 16 and 60 over 8. With ``first`` or ``last`` the
    other stages share what is left evenly, as Megatron-core does (transformer_block, transformer_layer).
    Virtual stages are interleaved: chunk 0 of every stage comes before chunk 1 of the first, and all chunks
    of a stage are equal.

    Args:
        layers: number of decoder layers.
        pp: number of stages.
        vpp: number of virtual chunks of every stage.
        first: layers of the first stage; None for the rule.
        last: layers of the last stage; None for the rule.

    Returns:
        Per stage and chunk the numbers of its layers.

    Raises:
        SpecError: if no such split exists.
    """
    counts = _counts(layers, pp, first, last)
    for stage, count in enumerate(counts):
        if count % vpp:
            raise SpecError(
                f"megatron vpp is {vpp}, but stage {stage} has {count} layers; expected a divisor of {count}"
            )
    stages: list[list[tuple[int, ...]]] = [[] for _ in counts]
    layer = 0
    for _ in range(vpp):
        for stage, count in enumerate(counts):
            stages[stage].append(tuple(range(layer, layer + count // vpp)))
            layer += count // vpp
    return tuple(tuple(stage) for stage in stages)


def _counts(layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """Layers of every stage."""
    if pp > layers:
        raise SpecError(f"megatron pp is {pp}, but the model has {layers} layers; expected at most {layers}")
    if pp == 1:
        for name, given in (("first", first), ("last", last)):
            if given is not None and given != layers:
                raise SpecError(
                    f"megatron {name} is {given}, but with pp=1 the only stage has all {layers} layers;"
                    " expected it left out"
                )
        return [layers]
    if first is None and last is None:
        return _by_rule(layers, pp)
    left = layers - (first or 0) - (last or 0)
    others = pp - (first is not None) - (last is not None)
    said = ", ".join(f"{name}={n}" for name, n in (("first", first), ("last", last)) if n is not None)
    if left < others or (others and left % others) or (not others and left):
        wanted = f"a multiple of {others}" if others else "none"
        raise SpecError(
            f"megatron {said} leaves {left} of {layers} layers to the other {others} of {pp} stages;"
            f" expected {wanted}"
        )
    middle = [left // others] * others if others else []
    return [*([] if first is None else [first]), *middle, *([] if last is None else [last])]


def _by_rule(layers: int, pp: int) -> list[int]:
    if layers % pp == 0:
        return [layers // pp] * pp
    middle = -(-layers // pp)
    left = layers - middle * (pp - 2)
    if left < 2:
        raise SpecError(
            f"megatron pp is {pp}, and {layers} layers do not divide by it: {middle} for each middle stage"
            f" leave {max(left, 0)} for the first and the last; expected first and last to be given"
        )
    return [left - left // 2, *[middle] * (pp - 2), left // 2]
