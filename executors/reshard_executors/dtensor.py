"""The front for users of DTensor: redistributes between meshes, and compiles and keeps the plans for it.

It is the one executor that compiles; see docs/adr/0014-front-for-dtensor-users.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from reshard_executors.agreement import reason
from reshard_executors.arguments import as_integer
from reshard_executors.given import (
    KINDS,
    Described,
    MeshLike,
    TensorLike,
    as_input_error,
    facts_of_both,
    local_of,
    mesh_facts,
    ranks_of,
    tensor_facts,
)
from reshard_executors.groups import members_of, position_in
from reshard_executors.keeper import Keeper, Key
from reshard_executors.private import refuse_group
from reshard_executors.resharder import DEFAULT_TIMEOUT, LOST_AFTER
from reshard_executors.sharing import Facts
from reshard_planner.compiler import compile as compile_plan
from reshard_planner.errors import ExecutionError, InputError, LayoutError, UnsupportedError
from reshard_planner.layout import Layout, Mesh
from reshard_planner.layout.partition import row_major_strides
from reshard_planner.spec import Options, ReshardSpec, TensorSpec
from reshard_planner.topology import Topology

NAME = "tensor"
"""What the one tensor of a plan is called, in errors too."""

KEPT = 64
"""Resharders kept by default: each has staging buffers and a thread of its own."""


class Redistributor:
    """Redistributes DTensors between meshes, and keeps the plans and Resharders for it.

    It is built on all ranks of a process group together, called on all of them together and in the same
    order, and closed in the end, best as a context manager. A plan is compiled when two layouts are met for
    the first time, on each rank; all ranks find the same one, and its Resharder compares the digests. Each
    call begins with an all-reduce of a few bytes by which the ranks compare what they were given; whatever
    is wrong on one rank then raises the same error on all.

    After an :class:`ExecutionError` the Redistributor is closed, and must be built anew.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        topology: Topology | None = None,
        options: Options | None = None,
        timeout: timedelta = DEFAULT_TIMEOUT,
        lost_after: timedelta = LOST_AFTER,
        device: torch.device | str | None = None,
        kept: int = KEPT,
    ) -> None:
        """Meet all ranks of the group.

        Args:
            group: who takes part in :meth:`redistribute`; all of the world when None.
            topology: of the ranks that meshes name; when None each host is a domain, of GPUs with a NIC each.
            options: how to compile.
            timeout: how long to wait for other ranks.
            lost_after: how long a rank may give no sign of life in a call.
            device: where tensors lie; when None the current CUDA device for NCCL, and the CPU for other
                backends.
            kept: Resharders that are kept; the one not used for longest is closed to make room.

        Raises:
            InputError: if ``kept`` is below 1, there is no group, or this process is not a member; on every
                rank, if topology or options differ between ranks.
            ExecutionError: if the ranks do not meet within the timeout.
        """
        if as_integer(kept, 1) is None:
            problem = f"kept is {kept!r}; expected an integer of at least 1"
            refuse_group(group, members_of(group)[position_in(group)], problem)
            raise InputError(problem)
        self._group, self._topology, self._options = group, topology, options
        self._timeout, self._lost_after, self._device, self._kept = timeout, lost_after, device, kept
        self._closed = False
        self._keepers: dict[dist.ProcessGroup | None, Keeper] = {}
        self._keeper(group)

    def redistribute(
        self, source: DTensor | Described | None, mesh: DeviceMesh, placements: Sequence[Placement]
    ) -> DTensor | None:
        """Copy a DTensor to another mesh, or to other placements of the same; the source stays as it is.

        Ranks of the source mesh give the DTensor. Other ranks may give None: they learn from those what it
        is, for which shapes and meshes are exchanged when they are new. A :class:`Described` saves that. The
        DTensor without elements that torch makes outside of its mesh does as well, but its shape does not
        count, since ``from_local`` gives it another one there.

        Args:
            source: of any shape and dtype of whole bytes, placed by Shard, Replicate and _StridedShard;
                the local tensor may have any strides.
            mesh: where to; ranks are those of the world, and may be those of the source mesh, some of them,
                or others. All ranks give the same.
            placements: likewise, one per dimension of the mesh.

        Returns:
            A contiguous DTensor of the same global shape and dtype, without gradient; None on ranks outside
            of ``mesh``.

        Raises:
            PlacementError: on every rank, as all that follow, for sums that are still pending (Partial).
            ShapeMismatchError: if ranks differ on the global shape.
            DtypeMismatchError: if they differ on the dtype.
            LocalShapeError: if a local tensor is missing, or not of the shape and dtype that it should be.
            InputError: if a mesh has ranks outside of the group, is of another kind of device, or ranks
                differ on meshes or placements.
            ExecutionError: if ranks do not meet, or the transfer fails.
        """
        keeper = self._keeper(self._group)
        facts: Facts = {}
        error: InputError | None = None
        try:
            _check_types(source, mesh, placements)
            facts |= mesh_facts("destination", mesh.mesh, placements)
            if source is not None:
                facts |= mesh_facts("source", source.device_mesh.mesh, source.placements)
                if isinstance(source, Described) or source.device_mesh.get_coordinate() is not None:
                    facts |= tensor_facts(source.shape, source.dtype)
            _check_device(mesh, keeper.device)
        except Exception as found:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            error = as_input_error(found)
        key, tensor = self._prepare(keeper, facts, error, keeper.members)
        rank = keeper.members[keeper.position]
        held = local_of(source) if isinstance(source, DTensor) and _stores(tensor.src, rank) else None
        if not _stores(tensor.dst, rank):
            self._move(keeper, key, held, None)
            return None
        shape = tensor.dst[0].partition(tensor.shape).local_shape(rank)
        try:
            local = torch.empty(shape, dtype=getattr(torch, tensor.dtype), device=keeper.device)
        except RuntimeError as failure:
            with self._closing():
                keeper.refuse(
                    key, ExecutionError(f"rank {rank} has no memory for the result: {reason(failure)}")
                )
            raise
        self._move(keeper, key, held, local)
        return DTensor.from_local(
            local,
            mesh,
            list(placements),
            run_check=False,
            shape=torch.Size(tensor.shape),
            stride=row_major_strides(tensor.shape),
        )

    def xferdtensor(
        self,
        src_tensor: TensorLike | None,
        src_mesh: MeshLike,
        src_placement: Sequence[Placement],
        dst_tensor: TensorLike | None,
        dst_mesh: MeshLike,
        dst_placement: Sequence[Placement],
        process_group: dist.ProcessGroup | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Copy a tensor into another mesh, in place; with the arguments of NeMo RL's ``xferdtensor``.

        Called on all ranks of the group, in the same order. Ranks in meshes are positions in the process
        group, not ranks of the world, so that the group may join several jobs. ``src_tensor`` is None outside
        of the source mesh, and ``dst_tensor`` outside of the destination mesh. Unlike the original it has
        the bytes in place when it returns, on every backend.

        Args:
            src_tensor: global ``.shape``, and this rank's part in ``._local_tensor``, of any strides.
            src_mesh: N-d ranks in ``.mesh``; all ranks give the same.
            src_placement: one per dimension of the mesh: Shard, Replicate or _StridedShard.
            dst_tensor: likewise; every element of ``._local_tensor`` is overwritten.
            dst_mesh: likewise.
            dst_placement: likewise.
            process_group: of torch.distributed, such as ``join_jobs`` makes; the Redistributor's when None.
            stream: CUDA stream that is waited for before anything is read or written.

        Raises:
            PlacementError: on every rank, as all that follow, for sums that are still pending (Partial).
            ShapeMismatchError: if ranks, or source and destination, differ on the global shape.
            DtypeMismatchError: if they differ on the dtype.
            LocalShapeError: if a local tensor is missing, or not of the shape and dtype that it should be.
            InputError: if a mesh has ranks outside of the group, ranks differ on meshes or placements, or
                source and destination share memory.
            ExecutionError: if ranks do not meet, or the transfer fails.
        """
        keeper = self._keeper(self._group if process_group is None else process_group)
        facts: Facts = {}
        error: InputError | None = None
        try:
            facts |= mesh_facts("source", ranks_of("src_mesh", src_mesh), src_placement)
            facts |= mesh_facts("destination", ranks_of("dst_mesh", dst_mesh), dst_placement)
            facts |= facts_of_both(src_tensor, dst_tensor)
        except Exception as found:  # noqa: BLE001 - whatever it is, all ranks must hear of it
            error = as_input_error(found)
        key, tensor = self._prepare(keeper, facts, error, range(len(keeper.members)))
        held, kept = (
            local_of(given) if given is not None and _stores(layouts, keeper.position) else None
            for given, layouts in ((src_tensor, tensor.src), (dst_tensor, tensor.dst))
        )
        if stream is not None:
            stream.synchronize()
        self._move(keeper, key, held, kept)

    def _keeper(self, given: dist.ProcessGroup | None) -> Keeper:
        group = None if given is dist.group.WORLD else given
        if self._closed:
            raise ExecutionError("this Redistributor is closed; expected a new one")
        if group not in self._keepers:
            made = Keeper(group, self._timeout, self._lost_after, self._device, self._kept, KINDS)
            self._keepers[group] = made
            try:
                made.agree(
                    {
                        "the digest of the topology": _digest(self._topology),
                        "the digest of the options": _digest(self._options),
                        "the kind of device": made.device.type,
                    }
                )
            except BaseException:
                self.close()
                raise
        return self._keepers[group]

    def _prepare(
        self, keeper: Keeper, mine: Facts, error: InputError | None, played: Sequence[int]
    ) -> tuple[Key, TensorSpec]:
        """Share what this rank knows, and see to a Resharder; its key, and the tensor that it moves."""
        with self._closing():
            facts = keeper.share(mine, error)
            key = (str(list(played)), *facts.values())
            tensor = keeper.find(key)
            if tensor is None:
                topology = _host_domains(keeper.hosts, played) if self._topology is None else self._topology
                spec = _make_spec(facts, played, topology, self._options)
                tensor = keeper.add(key, compile_plan(spec), played)
        return key, tensor

    def _move(self, keeper: Keeper, key: Key, held: torch.Tensor | None, kept: torch.Tensor | None) -> None:
        with self._closing():
            keeper.run(key, held, kept)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Close after an error that leaves the group dead, or ranks in different states."""
        try:
            yield
        except InputError:  # all ranks have agreed, and nothing has moved
            raise
        except BaseException as error:
            self._abort(error)
            raise

    def _abort(self, error: BaseException) -> None:
        """Close, and tell the other ranks why."""
        for keeper in self._keepers.values():
            said = f"it was ended by {type(error).__name__}: {reason(error)}"
            keeper.abort(said, leaves=not isinstance(error, Exception))
        self.close()

    def close(self) -> None:
        """Close all Resharders; the caller's groups stay. Closing twice does nothing."""
        self._closed = True
        for keeper in self._keepers.values():
            keeper.close()
        self._keepers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, InputError):
            self.close()
        else:
            self._abort(error)


def redistribute(
    source: DTensor | Described | None,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    group: dist.ProcessGroup | None = None,
    topology: Topology | None = None,
    options: Options | None = None,
) -> DTensor | None:
    """Copy one DTensor to another mesh once, by a :class:`Redistributor` of its own.

    Connecting the ranks and compiling costs more than most transfers; what is copied again and again wants a
    Redistributor that stays.
    """
    with Redistributor(group, topology=topology, options=options) as redistributor:
        return redistributor.redistribute(source, mesh, placements)


def xferdtensor(
    src_tensor: TensorLike | None,
    src_mesh: MeshLike,
    src_placement: Sequence[Placement],
    dst_tensor: TensorLike | None,
    dst_mesh: MeshLike,
    dst_placement: Sequence[Placement],
    process_group: dist.ProcessGroup | None,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Copy one tensor into another mesh once, by a :class:`Redistributor` of its own.

    Connecting the ranks and compiling costs more than most transfers. For refits keep a Redistributor, whose
    method of this name has the same arguments.
    """
    with Redistributor(process_group) as redistributor:
        redistributor.xferdtensor(
            src_tensor, src_mesh, src_placement, dst_tensor, dst_mesh, dst_placement, process_group, stream
        )


def _make_spec(
    facts: Facts, played: Sequence[int], topology: Topology, options: Options | None
) -> ReshardSpec:
    layouts = []
    for side in ("source", "destination"):
        mesh = Mesh(json.loads(facts[f"{side} mesh"]))
        missing = sorted(set(mesh.ranks) - set(played))
        if missing:
            raise InputError(
                f"the {side} mesh has ranks {missing}, which no process of the group is;"
                f" expected some of {sorted(played)}"
            )
        try:
            layouts.append(Layout(mesh, json.loads(facts[f"list of {side} placements"])))
        except LayoutError as error:
            raise type(error)(f"{side}: {error}") from None
    tensor = TensorSpec(NAME, json.loads(facts["shape"]), facts["dtype"], *layouts)
    if tensor.bits < 8:
        raise UnsupportedError(f"the dtype is {tensor.dtype}; expected one of whole bytes")
    return ReshardSpec([tensor], topology, options)


def _host_domains(hosts: Sequence[str], played: Sequence[int]) -> Topology:
    domains: dict[str, list[int]] = {}
    for host, rank in zip(hosts, played, strict=True):
        domains.setdefault(host, []).append(rank)
    return Topology.from_domains(list(domains.values()))


def _stores(layouts: Sequence[Layout], rank: int) -> bool:
    return any(rank in layout.mesh.ranks for layout in layouts)


def _check_types(source: object, mesh: object, placements: Sequence[object]) -> None:
    if source is not None and not isinstance(source, DTensor | Described):
        raise InputError(f"source is of type {type(source).__name__}; expected DTensor, Described or None")
    if not isinstance(mesh, DeviceMesh):
        raise InputError(f"mesh is of type {type(mesh).__name__}; expected DeviceMesh")
    for placement in placements:
        if not isinstance(placement, Placement):
            raise InputError(f"placements have {placement!r}; expected placements of torch")


def _check_device(mesh: DeviceMesh, device: torch.device) -> None:
    if mesh.device_type != device.type:
        raise InputError(
            f"the destination mesh is of device type {mesh.device_type!r}; expected {device.type!r},"
            " where this Redistributor moves tensors"
        )


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
