"""Layouts: which rank stores which part of a tensor."""

from reshard_planner.layout.layout import Layout
from reshard_planner.layout.mesh import Mesh
from reshard_planner.layout.partition import Partition
from reshard_planner.layout.placement import (
    Placement,
    Replicate,
    Shard,
    StridedShard,
    parse_placement,
)
from reshard_planner.layout.storage import Entry, Storage, StoredBuffer
from reshard_planner.layout.tile import Tile
from reshard_planner.layout.tiling import Tiling

__all__ = [
    "Entry",
    "Layout",
    "Mesh",
    "Partition",
    "Placement",
    "Replicate",
    "Shard",
    "Storage",
    "StoredBuffer",
    "StridedShard",
    "Tile",
    "Tiling",
    "parse_placement",
]
