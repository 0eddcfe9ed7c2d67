"""What a baseline is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist

from reshard_executors.binding import LocalTensors
from reshard_planner.errors import UnsupportedError
from reshard_planner.spec import ReshardSpec


class Prepared(Protocol):
    """A baseline that is ready to run one spec on this process."""

    def run(self, sources: LocalTensors, destinations: LocalTensors) -> None:
        """Fill the destinations from the sources; called on all processes together.

        Args:
            sources: local tensors by name, of the shapes and dtypes that
                :meth:`reshard_executors.Resharder.run` takes; of several source layouts the first is read.
            destinations: likewise; every element is overwritten.

        Raises:
            LocalShapeError: if a local tensor that is read or written is missing or has another shape.
            RuntimeError: from torch, if a collective fails.
        """
        ...

    def close(self) -> None:
        """Give up the process groups that were made; called on all processes. Twice does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way in which tensors are refitted without a plan.

    Attributes:
        name: unique among the baselines.
        summary: what it does, in one line.
        applies: takes a spec; why the baseline cannot run it, None if it can.
        make: prepares a spec that applies; see :meth:`prepare`.
    """

    name: str
    summary: str
    applies: Callable[[ReshardSpec], str | None]
    make: Callable[[ReshardSpec, Sequence[int], dist.ProcessGroup | None], Prepared]

    def prepare(
        self, spec: ReshardSpec, played: Sequence[int], group: dist.ProcessGroup | None = None
    ) -> Prepared:
        """Make the process groups that running the spec needs; collective over the default world.

        Args:
            spec: the same on every process.
            played: rank of the spec that each process plays, in order of the group; one that the spec does
                not have plays no part.
            group: all processes of the world, in the order that ``played`` means; the world when None.

        Raises:
            UnsupportedError: if the baseline cannot run the spec.
            InputError: if ``played`` or the group does not fit the world.
            RuntimeError: from torch, if the processes do not meet.
        """
        reason = self.applies(spec)
        if reason is not None:
            raise UnsupportedError(f"baseline {self.name!r} cannot run the spec: {reason}")
        return self.make(spec, played, group)
