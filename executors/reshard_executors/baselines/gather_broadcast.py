"""The baseline ``gather-broadcast``: the conventional refit.

The training mesh builds each full tensor, on all of its ranks; the first of them broadcasts it to the
destination ranks that are not in the mesh; every destination rank copies its tiles out. Tensors follow one
another, as in the loops that people write.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from reshard_executors.baselines.baseline import Baseline
from reshard_executors.baselines.carriers import Parts
from reshard_executors.baselines.gathering import Gathering, destroy_group, make_group, why_not_gathered
from reshard_executors.baselines.players import Players
from reshard_executors.binding import LocalTensors
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.tiles import SideTiles


def why_not(spec: ReshardSpec) -> str | None:
    """Why a spec cannot be refitted so; None if it can."""
    return next(filter(None, map(why_not_gathered, spec.tensors)), None)


class GatherBroadcast:
    """A spec that is ready to be refitted on this process."""

    def __init__(self, spec: ReshardSpec, played: Sequence[int], group: dist.ProcessGroup | None) -> None:
        """Make meshes and groups, once per distinct mesh and set of receivers; collective over the world."""
        players = Players.of(spec, played, group)
        self._device = players.device
        self._tensors = spec.tensors
        self._parts = Parts(spec, players.rank)
        self._gathering = Gathering(spec, players)
        self._roots = [players.processes[tensor.src[0].mesh.ranks[0]] for tensor in spec.tensors]
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._group_of: list[dist.ProcessGroup | None] = []
        for tensor in spec.tensors:
            members = tuple(players.processes[rank] for rank in _listeners(tensor))
            if len(members) > 1 and members not in self._groups:
                self._groups[members] = make_group(members)
            self._group_of.append(self._groups.get(members))

    def run(self, sources: LocalTensors, destinations: LocalTensors) -> None:
        """See :meth:`reshard_executors.baselines.Prepared.run`."""
        given, kept = self._parts.find(sources, destinations)
        for number, carrier in enumerate(self._parts.carriers):
            full = self._gathering.gather(number, carrier, given[number])
            group = self._group_of[number]
            if group is not None:
                if full is None:
                    full = torch.empty(carrier.shape, dtype=carrier.dtype, device=self._device)
                dist.broadcast(full, self._roots[number], group=group)
            if full is not None:
                self._parts.tiles[number].fill(full, kept[number])

    def close(self) -> None:
        """Give up the meshes and groups."""
        groups, self._groups, self._group_of = list(self._groups.values()), {}, []
        for group in groups:
            destroy_group(group)
        self._gathering.close()


def _listeners(tensor: TensorSpec) -> list[int]:
    """The first rank of the source mesh, and the destination ranks to which it must send, ascending."""
    training = tensor.src[0].mesh.ranks
    return sorted({training[0], *set(SideTiles(tensor, "dst").ranks()).difference(training)})


BASELINE = Baseline(
    "gather-broadcast",
    "training ranks build every full tensor, the first broadcasts it, inference ranks copy their tiles out",
    why_not,
    GatherBroadcast,
)
