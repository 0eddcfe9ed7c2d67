"""One rank's program from a plan file, of which only the blocks with its own rows are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import DigestError, PlanFileError, TableError
from reshard_planner.ir.chunks import RowBoxes
from reshard_planner.ir.digest import BLOCK_ROWS, INDEX_NAME
from reshard_planner.ir.file import check_header, header_text, opened, parse_header, stored_shapes
from reshard_planner.ir.ops import Expansion, Rows
from reshard_planner.ir.program import Program, lower
from reshard_planner.ir.reading import read_spec
from reshard_planner.ir.tables import Column, Groups, Pieces, Schedule

Ints = NDArray[np.int64]


def read_rank(path: Path, rank: int) -> Program:
    """Read the program of one rank from a binary plan file.

    The header is checked against its digest, and each block that is read against its hash in the header.

    Args:
        path: the file.
        rank: the rank; it may take no part in the plan.

    Raises:
        PlanFileError: if it is not a plan file, damaged, or of another version.
        DigestError: if what is read is not what the digest says.
        TableError: if a row of the rank refers to what does not exist.
        CausalityError: if a row reads a tile that the rank does not have.
        CoverageError: if a row writes a tile that the rank does not have.
    """
    with opened(path) as stored:
        header = parse_header(header_text(stored))
        check_header(header)
        blocks = Blocks(stored, header)
        groups = Groups.of({name: blocks.whole(f"groups.{name}") for name in Groups.DTYPES})
        schedule = Schedule.of({name: blocks.whole(f"schedule.{name}") for name in Schedule.DTYPES})
        rows = _read_rows(blocks, _stands_for(groups, rank))
        spec = read_spec(header["spec"])
    ops = Expansion(spec, groups, schedule, rows).expand(rank)
    return lower(spec, schedule, ops, rank, header["digest"])


def _stands_for(groups: Groups, rank: int) -> list[int]:
    """Ranks in the routes that a rank stands for in any group, ascending."""
    _, names = groups.renamings(rank + 1)
    ranks: list[int] = np.unique(np.nonzero(names == rank)[1]).tolist()
    return ranks


def _read_rows(blocks: Blocks, ranks: list[int]) -> Rows:
    """The rows that some ranks send or receive."""
    total = blocks.length("routes.src")

    def received(at: Ints) -> Ints:
        return blocks.rows("routes.dst", blocks.rows(INDEX_NAME, at))

    def sent(at: Ints) -> Ints:
        return blocks.rows("routes.src", at)

    found = [np.zeros(0, dtype=np.int64)]
    for rank in ranks:
        found.append(np.arange(*_equal_range(total, sent, rank)))
        received_at = np.arange(*_equal_range(total, received, rank))
        rows = blocks.rows(INDEX_NAME, received_at)
        if (np.diff(rows) <= 0).any() or (blocks.rows("routes.dst", rows) != rank).any():
            raise PlanFileError(f"column {INDEX_NAME!r} is not the order of the routes by destination rank")
        found.append(rows)
    number = np.unique(np.concatenate(found))
    piece, parent = blocks.rows("routes.piece", number), blocks.rows("routes.parent", number)
    root = piece.copy()
    fed = np.flatnonzero(parent >= 0)
    root[fed] = blocks.rows("routes.piece", parent[fed])
    known, at = np.unique(np.concatenate((piece, root)), return_inverse=True)
    pieces = Pieces.of({name: blocks.rows(f"pieces.{name}", known) for name in Pieces.DTYPES})
    piece, root = at[: len(number)], at[len(number) :]
    return Rows(
        total,
        number,
        parent,
        pieces.group[piece].astype(np.int64),
        pieces.part[piece].astype(np.int64),
        blocks.rows("routes.src", number),
        blocks.rows("routes.dst", number),
        blocks.rows("routes.medium", number),
        blocks.rows("routes.role", number),
        blocks.rows("routes.scratch", number),
        blocks.rows("routes.tile", number),
        blocks.rows("routes.offset", number),
        RowBoxes.at(pieces, piece, root),
    )


def _equal_range(total: int, values: Callable[[Ints], Ints], wanted: int) -> tuple[int, int]:
    """First position and position past the last of a value in a column that ascends.

    Whole blocks are bisected first, by their last values; the blocks that hold the ends are read then.
    """
    ends = np.minimum(np.arange(BLOCK_ROWS, total + BLOCK_ROWS, BLOCK_ROWS), total) - 1
    found = []
    for side in ("left", "right"):
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            last = int(values(ends[middle : middle + 1])[0])
            if last < wanted or (side == "right" and last == wanted):
                low = middle + 1
            else:
                high = middle
        start = min(total, low * BLOCK_ROWS)
        block = values(np.arange(start, min(total, start + BLOCK_ROWS)))
        found.append(start + int((block < wanted).sum() if side == "left" else (block <= wanted).sum()))
    return found[0], found[1]


class Blocks:
    """The columns of a plan file, read block by block and checked against the hashes in the header."""

    def __init__(self, stored: Any, header: Mapping[str, Any]) -> None:
        self.stored, self.hashes = stored, header["blocks"]
        self.shapes = stored_shapes(stored)
        says = {name: (dtype, tuple(shape)) for name, (dtype, shape) in header["columns"].items()}
        counts = {name: -(-shape[0] // BLOCK_ROWS) for name, (_, shape) in self.shapes.items()}
        if (
            says != self.shapes
            or header["block_rows"] != BLOCK_ROWS
            or {name: len(hashes) for name, hashes in self.hashes.items()} != counts
        ):
            raise PlanFileError("its header is not that of its content")
        self.known: dict[tuple[str, int], Column] = {}

    def length(self, name: str) -> int:
        """Rows of a column."""
        return self.shapes[name][1][0]

    def block(self, name: str, number: int) -> Column:
        """One block of a column.

        Raises:
            DigestError: if it is not what its hash says.
        """
        if (name, number) not in self.known:
            start = number * BLOCK_ROWS
            stop = min(self.length(name), start + BLOCK_ROWS)
            values: Column = self.stored.get_slice(name)[start:stop]
            if hashlib.sha256(values.tobytes()).hexdigest() != self.hashes[name][number]:
                raise DigestError(
                    f"block {number} of column {name!r} is not what its hash in the header says"
                )
            self.known[name, number] = values
        return self.known[name, number]

    def whole(self, name: str) -> Column:
        """A whole column."""
        return self.rows(name, np.arange(self.length(name)))

    def rows(self, name: str, at: Ints) -> Ints:
        """Some rows of a column, as int64.

        Raises:
            TableError: if the column has no such row.
        """
        shape = self.shapes[name][1]
        found = np.zeros((len(at), *shape[1:]), dtype=np.int64)
        if not len(at):
            return found
        bad = at[(at < 0) | (at >= shape[0])]
        if len(bad):
            raise TableError(f"{name}: a row refers to row {int(bad[0])} of {shape[0]}")
        which = at // BLOCK_ROWS
        for number in np.unique(which).tolist():
            mine = np.flatnonzero(which == number)
            found[mine] = self.block(name, number)[at[mine] - number * BLOCK_ROWS]
        return found
