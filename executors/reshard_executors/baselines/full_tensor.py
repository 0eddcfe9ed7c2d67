"""The baseline ``full-tensor``: DTensor's ``full_tensor()`` on one mesh, out of which ranks copy their tiles.

It is what a refit looks like where training and inference share their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from reshard_executors.baselines.baseline import Baseline
from reshard_executors.baselines.carriers import Parts
from reshard_executors.baselines.gathering import Gathering, why_not_gathered
from reshard_executors.baselines.players import Players
from reshard_executors.binding import LocalTensors
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import SideTiles


def why_not(spec: ReshardSpec) -> str | None:
    """Why a spec cannot be refitted so; None if it can."""
    return next(filter(None, map(_why_not_within_the_mesh, spec.tensors)), None)


def _why_not_within_the_mesh(tensor: TensorSpec) -> str | None:
    outside = sorted(set(SideTiles(tensor, "dst").ranks()).difference(tensor.src[0].mesh.ranks))
    if outside:
        return f"tensor {tensor.name!r} has destination rank {outside[0]} outside of its source mesh"
    return why_not_gathered(tensor)


class FullTensor:
    """A spec that is ready to be refitted on this process."""

    def __init__(self, spec: ReshardSpec, played: Sequence[int], group: dist.ProcessGroup | None) -> None:
        """Make meshes, once per distinct one; collective over the world."""
        players = Players.of(spec, played, group)
        self._parts = Parts(spec, players.rank)
        self._gathering = Gathering(spec, players)

    def run(self, sources: LocalTensors, destinations: LocalTensors) -> None:
        """See :meth:`reshard_executors.baselines.Prepared.run`."""
        given, kept = self._parts.find(sources, destinations)
        for number, carrier in enumerate(self._parts.carriers):
            full = self._gathering.gather(number, carrier, given[number])
            if full is not None:
                self._parts.tiles[number].fill(full, kept[number])

    def close(self) -> None:
        """Give up the meshes."""
        self._gathering.close()


BASELINE = Baseline(
    "full-tensor",
    "the ranks of one mesh build every full tensor, and copy their tiles out of it",
    why_not,
    FullTensor,
)
