"""The trees of many items of one kind at once: everybody who can do a part of the work takes turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.classes import Kind
from reshard_planner.routing.emission import SHARE_ROUNDING, Emission, emitters_of
from reshard_planner.routing.forest import ROOT
from reshard_planner.routing.podwise import Copies, keep_in_pods
from reshard_planner.routing.sets import Turns
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """The transfers of some items of one kind; all have the same number of rows.

    Attributes:
        src: sender, shape (items, rows).
        dst: receiver, likewise.
        parent: row of the same tree that brings the bytes, or ``ROOT``, likewise.
        medium: medium of each row, shape (rows,).
    """

    src: Ints
    dst: Ints
    parent: Ints
    medium: Ints


def turn_trees(
    kind: Kind,
    item: Ints,
    emission: Emission,
    receiving: Turns,
    emitting: Turns,
    seeding: Turns,
    branches: int,
) -> Trees:
    """The trees of items.

    Args:
        kind: their kind.
        item: class of each, as a position in the kind.
        emission: who emits.
        receiving: turns of receivers, which go on.
        emitting: turns of emitters, which go on.
        seeding: turns of holders that serve their own domain, which go on.
        branches: most neighbours that one rank sends an item to; those that have it serve the others.
    """
    src: list[Ints] = [kind.kept[item]]
    dst: list[Ints] = [kind.kept[item]]
    parent: list[int] = [ROOT] * kind.kept.shape[1]
    medium: list[int] = [Medium.LOCAL] * kind.kept.shape[1]
    if kind.receivers:
        receiving.align(kind.needer_set, np.take_along_axis(kind.needers[0], kind.receivers[0], axis=1))
    turn = receiving.take(kind.needer_set[item], np.ones(len(item), dtype=np.int64))
    near = len(parent)
    if kind.seeds:
        seeding.align(kind.holder_set, kind.seeds[0])
        served = np.full(len(item), kind.rest[0].shape[1])
        first_seed = seeding.take(kind.holder_set[item], served)
    for seeds, rest in zip(kind.seeds, kind.rest, strict=True):
        width = rest.shape[1]
        at = (first_seed[:, None] + np.arange(width)) % seeds.shape[1]
        src.append(seeds[item[:, None], at])
        dst.append(rest[item])
        parent.extend([ROOT] * width)
        medium.extend([Medium.NVLINK] * width)
    copies = len(kind.receivers)
    network = len(parent)
    feeder = np.zeros((len(item), 0), dtype=np.int64)
    if copies:
        position = [column[item, turn % column.shape[1]] for column in kind.receivers]
        received = np.stack(
            [needers[item, at] for needers, at in zip(kind.needers, position, strict=True)], axis=1
        )
        sent = _emit(kind, item, emission, turn, received, emitting, (near, network))
        feeder = sent.feeder
        src.append(sent.sender)
        dst.append(received)
        parent.extend([ROOT] * copies)
        medium.extend([Medium.NETWORK] * copies)
        for domain, (needers, at) in enumerate(zip(kind.needers, position, strict=True)):
            others = needers.shape[1] - 1
            behind = (at[:, None] + 1 + np.arange(others)) % needers.shape[1]
            served = needers[item[:, None], behind]
            first = len(parent)
            feeders = np.arange(others) // branches - 1  # -1 for the receiver, else who was served before
            with_receiver = np.concatenate((served, received[:, domain : domain + 1]), axis=1)
            src.append(with_receiver[:, feeders])
            dst.append(served)
            parent.extend(np.where(feeders < 0, network + domain, first + feeders).tolist())
            medium.extend([Medium.NVLINK] * others)
    parents = np.tile(np.array(parent, dtype=np.int64), (len(item), 1))
    parents[:, network : network + copies] = feeder
    return Trees(
        np.concatenate(src, axis=1),
        np.concatenate(dst, axis=1),
        parents,
        np.array(medium, dtype=np.int64),
    )


def _emit(
    kind: Kind,
    item: Ints,
    emission: Emission,
    turn: Ints,
    received: Ints,
    emitting: Turns,
    base: tuple[int, int],
) -> Copies:
    """Who sends every copy.

    Holders (and neighbours) feed the domains of a window that moves on with the turns; the receivers in it
    relay to the rest. ``base`` is the row of the first neighbour and of the first copy.
    """
    near, network = base
    copies = received.shape[1]
    emitters = emitters_of(kind, emission.neighbours)
    width = emitters.shape[1]
    more = emission.share[item] * (copies - 1)
    fed = 1 + np.diff(np.floor(np.cumsum(more) + SHARE_ROUNDING), prepend=0).astype(np.int64)
    cycle = max(column.shape[1] for column in kind.receivers)
    window = 1 + np.floor(more + SHARE_ROUNDING).astype(np.int64)
    start = (turn // cycle + turn % cycle) * window % copies
    after = (np.arange(copies)[None, :] - start[:, None]) % copies  # place of each domain behind the start
    emitting.align(kind.holder_set, emitters)
    first = emitting.take(kind.holder_set[item], fed)
    at = (first[:, None] + after) % width
    sender = emitters[item[:, None], at]
    feeder = np.full(sender.shape, ROOT, dtype=np.int64)
    if emission.neighbours:
        rows = np.concatenate(
            (np.full(kind.holders.shape, ROOT - near, dtype=np.int64), kind.neighbour_rows), axis=1
        )
        feeder = rows[item[:, None], at] + near
    beyond = after >= fed[:, None]
    if beyond.any():
        relay = (start[:, None] + (after - fed[:, None]) % fed[:, None]) % copies
        sender = np.where(beyond, np.take_along_axis(received, relay, axis=1), sender)
        feeder = np.where(beyond, relay + network, feeder)
    sent = Copies(received, sender, feeder, network)
    if emission.pods is None:
        return sent
    return keep_in_pods(kind, item, emission.pods, turn // cycle + turn % cycle, sent)
