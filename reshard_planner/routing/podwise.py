"""Feeding pods: one copy enters each pod that holds none, and its own receivers pass it on there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reshard_planner.routing.classes import Kind, Run
from reshard_planner.routing.emission import ROUNDING
from reshard_planner.routing.forest import ROOT

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def keep_in_pods(
    kind: Kind,
    item: Ints,
    share: Floats,
    turn: Ints,
    received: Ints,
    network: int,
    sender: Ints,
    feeder: Ints,
) -> None:
    """Change the senders of copies so that as few as possible cross an uplink.

    Args:
        kind: the kind of all items.
        item: class of each item, as a position in the kind.
        share: pods beyond the first that holders feed, as a share, per class; the others are fed by pods.
        turn: turn of each item.
        received: receiver of every copy, shape (items, copies).
        network: row of the tree that is the first copy.
        sender: sender of every copy, likewise; changed in place.
        feeder: row that feeds it, or ``ROOT``, likewise; changed in place.
    """
    outside = [run for run in kind.runs if not run.holders.shape[1]]
    entries = (
        np.stack([run.start + turn % (run.stop - run.start) for run in outside], axis=1) if outside else None
    )
    for run in kind.runs:
        if run.holders.shape[1]:
            _feed_inside(run, item, turn, sender, feeder)
    if entries is None:
        return
    pods = len(outside)
    fed = 1 + np.floor(share[item] * (pods - 1) + ROUNDING).astype(np.int64)
    rows = np.arange(len(item))
    start = (turn + rows) * fed % pods  # needers may be a set of their own for every item, always at turn 0
    for place, run in enumerate(outside):
        entry = entries[:, place]
        after = (place - start) % pods
        relayed = after >= fed
        source = entries[rows, (start + (after - fed) % fed) % pods]
        holders = kind.holders[item, ((turn + rows) * fed + after) % kind.holders.shape[1]]
        sender[rows, entry] = np.where(relayed, received[rows, source], holders)
        feeder[rows, entry] = np.where(relayed, network + source, ROOT)
        for domain in range(run.start, run.stop):
            others = np.flatnonzero(entry != domain)
            sender[others, domain] = received[others, entry[others]]
            feeder[others, domain] = network + entry[others]


def _feed_inside(run: Run, item: Ints, turn: Ints, sender: Ints, feeder: Ints) -> None:
    """Let holders in the pod send to all its domains in need."""
    width, inside = run.stop - run.start, run.holders.shape[1]
    for domain in range(run.start, run.stop):
        sender[:, domain] = run.holders[item, (turn * width + domain - run.start) % inside]
        feeder[:, domain] = ROOT
