"""Pairs of one rail: transfers exchange what they bring, so that senders and receivers share a leaf switch.

Two transfers into one domain that bring pieces of equal size to the same tiles may exchange everything
behind them: then each rank still sends, receives and forwards as many bytes as before, as deep in its trees,
and only who sends to whom changes. Within each set of such transfers as many as possible become pairs of one
rail. Reasons: docs/adr/0029-rails-at-equal-cost.md.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from reshard_planner.routing.forest import NO_TILE, ROOT, Forest, Ints
from reshard_planner.transfer import Medium, Role

Key = tuple[int, int, int, int, tuple[tuple[int, int], ...]]
"""Elements, receiving domain, depth, height and tiles filled: transfers of equal keys may exchange."""


def align_rails(forests: Sequence[Forest], rails: Ints, domain: Ints) -> list[Forest]:
    """The forests with as many pairs of one rail as exchanges allow.

    Args:
        forests: trees of least payload, whose network rows cross domains.
        rails: number of the rails of each rank's NICs, -1 where unknown; int64, indexed by rank.
        domain: domain of each rank, int64, indexed by rank.
    """
    if not (rails >= 0).any():
        return list(forests)
    return [_align(forest, rails, domain) for forest in forests]


def _align(forest: Forest, rails: Ints, domain: Ints) -> Forest:
    network = np.flatnonzero(forest.medium == Medium.NETWORK)
    if len(network) < 2:
        return forest
    sender_rail, receiver_rail = rails[forest.src].tolist(), rails[forest.dst].tolist()
    feed = np.arange(len(forest.piece))  # row whose sender and parent each row takes over
    for rows in _exchangeable(forest, network, domain):
        for row, other in _matched(rows, sender_rail, receiver_rail):
            feed[row] = other
    if (feed == np.arange(len(feed))).all():
        return forest
    return _rebuilt(forest, feed)


def _exchangeable(forest: Forest, network: Ints, domain: Ints) -> Iterable[list[int]]:
    """Sets of network rows that may exchange what is behind them."""
    parent, dst, tile = forest.parent.tolist(), forest.dst.tolist(), forest.tile.tolist()
    count = len(parent)
    depth, height = [0] * count, [0] * count
    for row in range(count):
        if parent[row] != ROOT:
            depth[row] = depth[parent[row]] + 1
    filled: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for row in range(count - 1, -1, -1):
        if tile[row] != NO_TILE:
            filled[row].append((dst[row], tile[row]))
        above = parent[row]
        if above != ROOT:
            filled[above].extend(filled[row])
            height[above] = max(height[above], height[row] + 1)
    elements = np.prod(forest.hi - forest.lo, axis=1, dtype=np.int64)[forest.piece].tolist()
    sets: dict[Key, list[int]] = defaultdict(list)
    for row in network.tolist():
        tiles = tuple(sorted(filled[row]))
        sets[elements[row], int(domain[dst[row]]), depth[row], height[row], tiles].append(row)
    return (rows for rows in sets.values() if len(rows) > 1)


def _matched(
    rows: Sequence[int], sender_rail: Sequence[int], receiver_rail: Sequence[int]
) -> Iterable[tuple[int, int]]:
    """Receiving and sending row of each new pair: the most of one rail, others as they were if free."""
    senders: dict[int, deque[int]] = defaultdict(deque)
    unmatched = [row for row in rows if sender_rail[row] != receiver_rail[row]]
    for row in unmatched:
        senders[sender_rail[row]].append(row)
    free = set(unmatched)
    left = []
    for row in unmatched:
        alike = senders[receiver_rail[row]]
        if alike:
            sender = alike.popleft()
            free.discard(sender)
            yield row, sender
        else:
            left.append(row)
    others = [row for row in left if row not in free]
    yield from zip(others, sorted(free.difference(left)), strict=True)


def _rebuilt(forest: Forest, feed: Ints) -> Forest:
    """The forest in which each row has the sender and parent of its ``feed``, parents before their rows."""
    src, parent = forest.src[feed], forest.parent[feed]
    role = np.where(
        forest.medium == Medium.NETWORK, np.where(parent == ROOT, Role.INJECT, Role.RELAY), forest.role
    )
    piece, order = _walk(parent.tolist(), forest.piece[feed].tolist())
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    moved = np.where(parent == ROOT, ROOT, place[parent])
    return replace(
        forest,
        piece=piece[order],
        parent=moved[order],
        src=src[order],
        dst=forest.dst[order],
        medium=forest.medium[order],
        role=role[order],
        tile=forest.tile[order],
    )


def _walk(parent: Sequence[int], piece: Sequence[int]) -> tuple[Ints, Ints]:
    """Piece of every row, that of the root of its tree, and rows in order of pieces, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for row, above in enumerate(parent):
        children[above].append(row)
    roots = sorted(children[ROOT], key=lambda row: (piece[row], row))
    pieces, order = list(piece), []
    for root in roots:
        below = [root]
        while below:
            row = below.pop()
            pieces[row] = piece[root]
            order.append(row)
            below.extend(reversed(children[row]))
    return np.array(pieces, dtype=np.int64), np.array(order, dtype=np.int64)
