"""Whole models: every parameter with its layouts on both sides, as one spec."""

from __future__ import annotations

from collections.abc import Sequence

from reshard_planner.dtypes import is_castable
from reshard_planner.errors import SpecError
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.placed import Parallelism, Placed
from reshard_planner.spec import Options, ReshardSpec, TensorSpec
from reshard_planner.topology import Topology

OPTIONS = Options(staging_nbytes=2**30, max_peers_per_slot=256)
"""How whole models are compiled unless asked otherwise. Their rounds are large, and a rank that serves many
replicas has more peers in one slot than the 32 of other specs: with fewer, schedules fall apart."""


def assign_ranks(train: Parallelism, serve: Sequence[Parallelism]) -> list[tuple[int, ...]]:
    """Ranks of training, then of every group that serves.

    A group whose description names ranks has those, which may be ranks of others; the rest stand one after
    another from rank 0 on, without those that are named.

    Raises:
        SpecError: if they are more than there can be.
    """
    groups = (train, *serve)
    gpus = sum(group.gpus for group in groups if group.ranks is None)
    if gpus > MAX_RANK:
        raise SpecError(f"train and serve have {gpus} GPUs together; expected at most {MAX_RANK}")
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
        options: how to compile; :data:`OPTIONS` when None.

    Returns:
        One tensor per parameter, under its name, with layouts whose storage names the frameworks' own
        buffers. Its dtype is that of each side, converted where they differ.

    Raises:
        SpecError: if the model cannot be spread like that, or groups that serve differ in a dtype.
        TopologyError: if a rank has no GPU in the topology.
    """
    if not serve:
        raise SpecError("serve is empty; expected at least one group of engines")
    ranks = assign_ranks(train, serve)
    before = train.place(model, ranks[0])
    after = [group.place(model, own) for group, own in zip(serve, ranks[1:], strict=True)]
    tensors = []
    for parameter in model.parameters:
        src = [(placed, train) for placed in before[parameter.name]]
        dst = [
            (placed, group) for group, own in zip(serve, after, strict=True) for placed in own[parameter.name]
        ]
        tensors.append(_tensor(parameter, src, dst))
    return ReshardSpec(tensors, topology, OPTIONS if options is None else options)


def _tensor(
    parameter: Parameter,
    src: Sequence[tuple[Placed, Parallelism]],
    dst: Sequence[tuple[Placed, Parallelism]],
) -> TensorSpec:
    return TensorSpec(
        parameter.name,
        parameter.shape,
        _dtype(parameter, "train", src),
        [placed.layout for placed, _ in src],
        [placed.layout for placed, _ in dst],
        dst_dtype=_dtype(parameter, "serve", dst),
        cast=True,
        src_buffers=[placed.buffers for placed, _ in src],
        dst_buffers=[placed.buffers for placed, _ in dst],
    )


def _dtype(parameter: Parameter, field: str, sides: Sequence[tuple[Placed, Parallelism]]) -> str:
    """Element type of a parameter on one side: the framework's for this one, for all, or its own."""
    found = set()
    for placed, group in sides:
        wanted = placed.dtype or group.dtype or parameter.dtype
        found.add(wanted if is_castable(parameter.dtype, wanted) else parameter.dtype)
    if len(found) > 1:
        raise SpecError(
            f"{field}: groups have {parameter.name} in dtypes {' and '.join(sorted(found))}; expected one"
        )
    return found.pop()
