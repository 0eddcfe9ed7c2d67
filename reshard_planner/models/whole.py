"""Whole models: every parameter with its layouts on both sides, as one spec."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.dtypes import is_castable
from reshard_planner.errors import SpecError
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.placed import Parallelism, Placed
from reshard_planner.spec import Options, ReshardSpec, TensorSpec
from reshard_planner.topology import Topology


def assign_ranks(train: Parallelism, serve: Sequence[Parallelism]) -> list[tuple[int, ...]]:
    """Ranks of training, then of every group that serves.

    A group whose description names ranks has those, which may be ranks of others; the rest stand one after
    another from rank 0 on, without those that are named.
    """
    groups = (train, *serve)
    taken = {rank for group in groups for rank in group.ranks or ()}
    found = []
    free = 0
    for group in groups:
        if group.ranks is not None:
            found.append(group.ranks)
            continue
        own: list[int] = []
        while len(own) < group.gpus:
            if free not in taken:
                own.append(free)
            free += 1
        found.append(tuple(own))
    return found


def build_spec(
    model: Model,
    train: Parallelism,
    serve: Sequence[Parallelism],
    topology: Topology | None = None,
    options: Options | None = None,
) -> ReshardSpec:
    """The spec that moves a model from where it is trained to where it is served.

    Args:
        model: the parameters.
        train: how it is spread before.
        serve: how it is spread after, per group of engines; each gets all of it.
        topology: holds all ranks; domains of 8 GPUs when None.
        options: how to compile.

    Returns:
        One tensor per parameter, under its name, with layouts whose storage names the frameworks' own buffers.
        Its dtype is that of each side, converted where they differ.

    Raises:
        SpecError: if the model cannot be spread like that, a group is missing, or a parameter cannot be
            converted.
        TopologyError: if a rank has no GPU in the topology.
    """
    if not serve:
        raise SpecError("serve is empty; expected at least one group of engines")
    ranks = assign_ranks(train, serve)
    before = train.place(model, ranks[0])
    after = [group.place(model, own) for group, own in zip(serve, ranks[1:], strict=True)]
    dtypes = {group.dtype for group in serve}
    if len(dtypes) > 1:
        shown = ", ".join(sorted(str(dtype or "that of each parameter") for dtype in dtypes))
        raise SpecError(f"serve has groups of dtypes {shown}; expected one for all of them")
    tensors = [
        _tensor(
            parameter,
            before[parameter.name],
            [placed for group in after for placed in group[parameter.name]],
            (train.dtype, serve[0].dtype),
        )
        for parameter in model.parameters
    ]
    return ReshardSpec(tensors, topology, options)


def _tensor(
    parameter: Parameter,
    src: Sequence[Placed],
    dst: Sequence[Placed],
    dtypes: tuple[str | None, str | None],
) -> TensorSpec:
    before, after = (
        dtype if dtype is not None and is_castable(parameter.dtype, dtype) else parameter.dtype
        for dtype in dtypes
    )
    return TensorSpec(
        parameter.name,
        parameter.shape,
        before,
        [placed.layout for placed in src],
        [placed.layout for placed in dst],
        dst_dtype=after,
        cast=True,
        src_buffers=[placed.buffers for placed in src],
        dst_buffers=[placed.buffers for placed in dst],
    )
