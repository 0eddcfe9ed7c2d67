"""What NCCL M2N accepts, tensor by tensor, in a communicator of given ranks and domains.

The rules and limits are those that the library checks or documents (NVIDIA/nccl-extensions, release 0.1.0,
its files below ``nccl_m2n/src`` and its README). One reshard moves a tensor of one to three dimensions
between two disjoint, contiguous intervals of ranks, each a mesh of at most two axes of which one cuts one
dimension evenly. A tensor without elements is not given to it: nothing of it moves, and it is never refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from reshard_planner.layout import Layout
from reshard_planner.routing.m2n_shares import Deal, Share
from reshard_planner.routing.m2n_sides import M2nSide, find_side
from reshard_planner.spec import TensorSpec
from reshard_planner.spec.values import Side
from reshard_planner.topology import Ports

MAX_DIMS = 3
"""Dimensions of a tensor: ``NCCL_RESHARD_MAX_TENSOR_DIMS`` (nccl_m2n.h)."""

MAX_SOURCES = 16
"""Source shards that one destination shard is made of: ``MAX_SOURCES`` (reshard_limits.h)."""

MAX_TARGETS = 64
"""Destination shards that one source shard is cut in: ``MAX_TARGETS`` (reshard_limits.h)."""

MAX_COPIES = 1 + 128
"""Ranks of one domain that get a shard from one source replica: the leader, and those it sends to.

The latter are ``MAX_LOCAL_FOLLOWERS`` (reshard_limits.h), which ``validateRingDomainFanout`` in
reshard_prepare.cc compares for every range of destination replicas that one source replica serves.
"""

MAX_NEAR_RANKS, MAX_NEAR_SOURCES = 64, 32
"""Most ranks and source shards where everything is in one domain and stays on NVLink.

That is ``lsaCePlanFits`` of ``reshardCopyPackNormalized`` in pack_staging.cc, which compares the ranks of the
communicator with ``MAX_DIRECT_TARGETS`` and the source shards with ``MAX_DIRECT_SOURCES`` (reshard_limits.h).
It also allows 64 destination shards, which so few ranks cannot exceed. The limits above are of other ways to
move a tensor, and do not hold then.
"""

DTYPES = frozenset(
    ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "int32", "uint32", "float32")
) | frozenset(("int64", "uint64", "float64"))
"""Those that ``getNcclDtSize`` in reshard_internal.h knows."""

SIDES: tuple[tuple[Side, str], ...] = (("src", "source"), ("dst", "destination"))


@dataclass(frozen=True, slots=True)
class M2nReshard:
    """One tensor as NCCL M2N moves it.

    Attributes:
        source: its shards before, and who has copies of them; no shards where there is nothing to move.
        destination: the same after.
        shares: who serves whom; together they have every destination replica once.
        near: whether all ranks are in one domain, and holders send to every replica themselves over NVLink.
    """

    source: M2nSide
    destination: M2nSide
    shares: tuple[Share, ...]
    near: bool


NOTHING = M2nReshard(M2nSide(0, (), ()), M2nSide(0, (), ()), (), near=False)
"""What becomes of a tensor without elements."""


class M2nLimits:
    """What NCCL M2N accepts within one communicator in one mode.

    What was found out of layouts and tensors is kept as long as this object is.

    Args:
        ports: of all ranks of the communicator.
        deal: the mode.
    """

    def __init__(self, ports: Ports, deal: Deal) -> None:
        ranks = np.flatnonzero(ports.domain >= 0)
        self.domain_of: list[int] = ports.domain.tolist()
        self._deal = deal
        self._alone = len(ranks) == 1
        self._near = len(np.unique(ports.domain[ranks])) == 1 and len(ranks) <= MAX_NEAR_RANKS
        self._sides: dict[tuple[Layout, tuple[int, ...]], M2nSide | str] = {}
        self._known: dict[tuple[object, ...], M2nReshard | str] = {}

    def why_refused(self, tensor: TensorSpec) -> str | None:
        """Why NCCL M2N would refuse a tensor; None if it would move it.

        Reasons are alike for tensors that are refused alike: they name no sizes but the limits.
        """
        found = self.reshard(tensor)
        return found if isinstance(found, str) else None

    def reshard(self, tensor: TensorSpec) -> M2nReshard | str:
        """How NCCL M2N would move a tensor; or why it would refuse it."""
        key = tensor.geometry, tensor.dtype, tensor.dst_dtype
        if key not in self._known:
            self._known[key] = self._find(tensor)
        return self._known[key]

    def _find(self, tensor: TensorSpec) -> M2nReshard | str:
        if 0 in tensor.shape:
            return NOTHING
        if not 1 <= len(tensor.shape) <= MAX_DIMS:
            return f"it has fewer than 1 or more than {MAX_DIMS} dimensions"
        if tensor.dst_dtype != tensor.dtype:
            return f"it is converted from {tensor.dtype} to {tensor.dst_dtype}"
        if tensor.dtype not in DTYPES:
            return f"its dtype is {tensor.dtype}"
        sides: list[M2nSide] = []
        for side, word in SIDES:
            if len(tensor.layouts(side)) > 1:
                return f"it has several {word} layouts"
            found = self._side(tensor.layouts(side)[0], tensor.shape)
            if isinstance(found, str):
                return f"{word}: {found}"
            sides.append(found)
        source, destination = sides
        # the one exception is a communicator of one rank (validateReshardMeshBounds in reshard_mesh.cc)
        if not self._alone and _ranks(source) & _ranks(destination):
            return "source and destination have ranks in common"
        shares = tuple(self._deal(source, destination, self.domain_of))
        near = self._is_near(source, destination)
        why = None if near else self._why_too_large(source, destination, shares)
        return why or M2nReshard(source, destination, shares, near)

    def _side(self, layout: Layout, shape: tuple[int, ...]) -> M2nSide | str:
        key = layout, shape
        if key not in self._sides:
            self._sides[key] = find_side(layout, shape)
        return self._sides[key]

    def _is_near(self, source: M2nSide, destination: M2nSide) -> bool:
        """Whether all ranks are in one domain, and few enough to stay on NVLink; sources must come first."""
        return (
            self._near
            and len(source.shards) <= MAX_NEAR_SOURCES
            and min(_ranks(source)) < min(_ranks(destination))
        )

    def _why_too_large(self, source: M2nSide, destination: M2nSide, shares: tuple[Share, ...]) -> str | None:
        if max(len(source.meeting(shard)) for shard in destination.shards) > MAX_SOURCES:
            return f"a destination shard is made of more than {MAX_SOURCES} source shards"
        if max(len(destination.meeting(shard)) for shard in source.shards) > MAX_TARGETS:
            return f"a source shard is cut in more than {MAX_TARGETS} destination shards"
        if self._most_copies(destination, shares) > MAX_COPIES:
            return (
                f"more than {MAX_COPIES} copies of a destination shard are in one domain and have one sender"
            )
        return None

    def _most_copies(self, destination: M2nSide, shares: tuple[Share, ...]) -> int:
        """Most copies of a shard in one domain that one source replica serves."""
        if destination.copies <= MAX_COPIES:  # as good as always, and sooner found
            return destination.copies
        return max(
            max(Counter(self.domain_of[copies[at]] for at in share.receivers).values())
            for share in shares
            for copies in destination.ranks
        )


def _ranks(side: M2nSide) -> set[int]:
    return {rank for copies in side.ranks for rank in copies}
