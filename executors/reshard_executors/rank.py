"""What one rank does in the runs of a plan, and the memory that it does it with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from reshard_executors.binding import LocalMemories, LocalSide, LocalTensors
from reshard_executors.messages import Lowered, lower_program
from reshard_executors.overlap import check_overlap
from reshard_executors.pipeline import Spent, run_slots
from reshard_executors.ready import Elements, ReadyExchange, Staging, bind, distinct
from reshard_executors.recorder import Recorder
from reshard_executors.shadow import Shadow, make_shadow
from reshard_executors.wire import WaitFor, Wire, connecting
from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.spec.tiles import SideTiles

Mark = tuple[object, ...]
"""Everything about the given tensors that a bound program depends on."""


@dataclass(frozen=True, slots=True)
class BoundRun:
    """A program bound to the tensors of a run.

    Attributes:
        exchanges: its slots.
        names: of the tensors that are moved.
        tensors: their positions in the spec.
        sources: memory that is read.
        written: memory that is written: of the destinations, or of their shadows.
        shadow: what is written instead of the destinations; None for these themselves.
    """

    exchanges: tuple[ReadyExchange, ...]
    names: tuple[str, ...]
    tensors: tuple[int, ...]
    sources: LocalMemories
    written: LocalMemories
    shadow: Shadow | None


@dataclass(frozen=True, slots=True)
class _Kept:
    """A bound run, kept for the next time that the same tensors are given."""

    mark: Mark
    run: BoundRun
    watches: tuple[weakref.ref[torch.Tensor], ...]


class RankProgram:
    """The program of one rank: lowered, and bound to local tensors.

    What was bound last is kept as long as all of its tensors live, so that a refit into the same tensors
    neither checks nor makes anything again, and memory that the caller has given up is not held on to.

    Attributes:
        rank: rank of the plan.
        peers: positions in the group of the ranks that this one exchanges messages with.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        positions: Mapping[int, int],
        device: torch.device,
        *,
        shadow: bool = False,
    ) -> None:
        """Lower the program.

        Args:
            plan: what will be run.
            rank: rank of the plan.
            positions: position in the group of each rank of the plan.
            device: where tensors and staging buffers lie.
            shadow: whether shadows are written instead of destinations.

        Raises:
            VerificationError: if the plan cannot be lowered.
        """
        self._spec = spec = plan.spec
        self.rank = rank
        self._shadow = shadow
        self._lag, self._device = spec.options.lag, device
        self._wire = Wire(spec, positions)
        self._elements = [Elements.of(tensor) for tensor in spec.tensors]
        self._names = [tensor.name for tensor in spec.tensors]
        self._numbers = {tensor.name: number for number, tensor in enumerate(spec.tensors)}
        self._sources = LocalSide(spec, rank, "src", device)
        self._destinations = LocalSide(spec, rank, "dst", device)
        self._staging = Staging(device)
        self._program = plan.program(rank)
        self._everything = tuple(range(len(spec.tensors)))
        self._budget_nbytes = max(spec.options.staging_nbytes, plan.certificate.staging_nbytes)
        self._lowered = {self._everything: lower_program(self._program, None, self._budget_nbytes)}
        self._kept: _Kept | None = None
        to, of = self._lowered[self._everything].peers
        self.peers = self._wire.positions_of({*to, *of})

    @property
    def destinations(self) -> list[str]:
        """Names of the tensors that the rank stores a part of in the end."""
        return [tensor.name for tensor in self._spec.tensors if SideTiles(tensor, "dst").count(self.rank)]

    def connect(self, group: dist.ProcessGroup, wait_for: WaitFor) -> None:
        """Make the connections with all peers; all ranks of the group have used it together before.

        Raises:
            ExecutionError: if a peer cannot be reached.
        """
        peers = self._lowered[self._everything].peers
        wait_for(lambda: connecting(peers))
        self._wire.warm_up(group, peers, self._device)

    def run(
        self, group: dist.ProcessGroup, run: BoundRun, wait_for: WaitFor, recorder: Recorder | None
    ) -> Spent:
        """Run all slots; see :func:`reshard_executors.pipeline.run_slots`."""
        if run.shadow is not None:
            run.shadow.fill()
        return run_slots(run.exchanges, self._wire, group, self._lag, wait_for, recorder)

    def bind(
        self, sources: LocalTensors, destinations: LocalTensors, names: Collection[str] | None
    ) -> BoundRun:
        """Check local tensors, and bind the program to them.

        Args:
            sources: see :meth:`reshard_executors.resharder.Resharder.run`, like the others.
            destinations: likewise.
            names: of the tensors to move; all of them when None.

        Raises:
            LocalShapeError: if a tensor is missing or wrong.
            InputError: if a name is unknown, or tensors share memory.
            RuntimeError: if there is not enough memory.
        """
        tensors = self._chosen(names)
        held = self._sources.select(sources, tensors)
        wanted = self._destinations.select(destinations, tensors)
        mark = (tensors, *(tuple(map(_look, each)) for side in (held, wanted) for each in side.values()))
        kept = self._kept
        if kept is not None and kept.mark == mark:
            return kept.run
        self._kept = kept = None
        read = self._sources.bind(held, tensors)
        kept_by_caller = self._destinations.bind(wanted, tensors)
        shadow = None
        if self._shadow:
            check_overlap(distinct(read), distinct(kept_by_caller), {})
            shadow = make_shadow(self._spec, self.rank, kept_by_caller, self._staging)
        written = kept_by_caller if shadow is None else shadow.memories
        exchanges = bind(self._lower(tensors), self._staging, self._elements, read, written)
        moved = tuple(self._names[number] for number in tensors)
        run = BoundRun(exchanges, moved, tensors, read, written, shadow)
        forget = _forgetting(weakref.ref(self))
        given = [tensor for side in (held, wanted) for each in side.values() for tensor in each]
        if self._device.type == "cuda":  # after an error work may be queued when the caller gives them up
            for tensor in given:
                tensor.record_stream(torch.cuda.current_stream(self._device))
        watches = tuple(weakref.ref(tensor, forget) for tensor in given)
        self._kept = _Kept(mark, run, watches)
        return run

    def forget(self) -> None:
        """Let go of the tensors that were bound last."""
        self._kept = None

    def _chosen(self, names: Collection[str] | None) -> tuple[int, ...]:
        if names is None:
            return self._everything
        for name in names:
            if name not in self._numbers:
                raise InputError(
                    f"tensors names {name!r}, which is not in the plan of {len(self._numbers)} tensors"
                )
        return tuple(sorted({self._numbers[name] for name in names}))

    def _lower(self, tensors: tuple[int, ...]) -> Lowered:
        if tensors not in self._lowered:
            self._lowered[tensors] = lower_program(self._program, frozenset(tensors), self._budget_nbytes)
        return self._lowered[tensors]


def _look(tensor: torch.Tensor) -> Mark:
    """What binding depends on."""
    pending = tensor.is_conj() or tensor.is_neg()
    where = (
        tensor.device,
        tensor.data_ptr(),
        tensor.untyped_storage().nbytes(),
        tensor.shape,
        tensor.stride(),
    )
    return (*where, tensor.dtype, pending)


def _forgetting(program: weakref.ref[RankProgram]) -> Callable[[object], None]:
    def forget(_: object) -> None:
        alive = program()
        if alive is not None:
            alive.forget()

    return forget
