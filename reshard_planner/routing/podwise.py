"""Feeding pods: one copy enters each pod that holds none, and its own receivers pass it on there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.classes import Kind, Run
from reshard_planner.routing.emission import SHARE_ROUNDING
from reshard_planner.routing.forest import ROOT

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """The network transfers of some items; columns have the shape (items, copies).

    Attributes:
        received: receiver of every copy.
        sender: sender of every copy.
        feeder: row of the item's tree that brings the sender the bytes, or ``ROOT``.
        first_row: row of the tree that is the first copy.
    """

    received: Ints
    sender: Ints
    feeder: Ints
    first_row: int


def keep_in_pods(kind: Kind, item: Ints, share: Floats, turn: Ints, copies: Copies) -> Copies:
    """Choose the senders of copies so that as few as possible cross an uplink.

    Args:
        kind: the kind of all items.
        item: class of each item, as a position in the kind.
        share: pods beyond the first that holders feed, as a share, per class; the others are fed by pods.
        turn: turn of each item.
        copies: copies whose senders know no pods; those into domains that are in no pod stay as they are.
    """
    received, sender, feeder = copies.received, copies.sender.copy(), copies.feeder.copy()
    for run in kind.runs:
        if run.holders.shape[1]:
            _feed_inside(run, item, turn, sender, feeder)
    outside = [run for run in kind.runs if not run.holders.shape[1]]
    if not outside:
        return replace(copies, sender=sender, feeder=feeder)
    entries = np.stack([run.start + turn % (run.stop - run.start) for run in outside], axis=1)
    pods = len(outside)
    fed = 1 + np.floor(share[item] * (pods - 1) + SHARE_ROUNDING).astype(np.int64)
    rows = np.arange(len(item))
    start = (turn + rows) * fed % pods  # needers may be a set of their own for every item, always at turn 0
    for place, run in enumerate(outside):
        entry = entries[:, place]
        after = (place - start) % pods
        relayed = after >= fed
        source = entries[rows, (start + (after - fed) % fed) % pods]
        holders = kind.holders[item, ((turn + rows) * fed + after) % kind.holders.shape[1]]
        sender[rows, entry] = np.where(relayed, received[rows, source], holders)
        feeder[rows, entry] = np.where(relayed, copies.first_row + source, ROOT)
        for domain in range(run.start, run.stop):
            others = np.flatnonzero(entry != domain)
            sender[others, domain] = received[others, entry[others]]
            feeder[others, domain] = copies.first_row + entry[others]
    return replace(copies, sender=sender, feeder=feeder)


def _feed_inside(run: Run, item: Ints, turn: Ints, sender: Ints, feeder: Ints) -> None:
    """Let holders in the pod send to all its domains in need: fills in columns of its caller."""
    width, inside = run.stop - run.start, run.holders.shape[1]
    for domain in range(run.start, run.stop):
        sender[:, domain] = run.holders[item, (turn * width + domain - run.start) % inside]
        feeder[:, domain] = ROOT
