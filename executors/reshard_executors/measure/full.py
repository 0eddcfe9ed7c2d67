"""Full turns: hosts send with all ranks at the same time, each rank for as long as it would take it alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_executors.measure.exchange import Exchange
from reshard_executors.measure.pairs import Pair
from reshard_executors.measure.samples import Rate, SumSample

Group = tuple[Pair, ...]
"""Trains from the ranks of one host to those of another."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one train sends.

    Attributes:
        nbytes: all of it.
        bytes_per_s: what it reaches alone.
        piece_nbytes: size of its messages.
    """

    nbytes: int
    bytes_per_s: float
    piece_nbytes: int


def plan_loads(
    turns: Sequence[Sequence[Group]], rates: Mapping[Pair, Rate], span_s: float
) -> dict[Pair, Load]:
    """What each train sends in some seconds, if no other one disturbs it.

    So trains of unequal rates end together where they share nothing.

    Args:
        turns: all full turns, of groups of trains.
        rates: what was measured, by sender and receiver; each rank was measured with others in both
            directions. A pair that was not is taken to reach what its ends have reached at best.
        span_s: how long each turn lasts if nothing is shared.
    """
    out: dict[int, Rate] = {}
    into: dict[int, Rate] = {}
    for (sender, receiver), rate in rates.items():
        out[sender] = max(out.get(sender, rate), rate, key=_speed)
        into[receiver] = max(into.get(receiver, rate), rate, key=_speed)
    loads = {}
    for train in (train for turn in turns for group in turn for train in group):
        rate = rates.get(train) or min(out[train[0]], into[train[1]], key=_speed)
        loads[train] = Load(max(1, int(rate.bytes_per_s * span_s)), rate.bytes_per_s, rate.nbytes)
    return loads


def _speed(rate: Rate) -> float:
    return rate.bytes_per_s


def play(exchange: Exchange, rank: int, turn: Sequence[Group], loads: Mapping[Pair, Load]) -> float:
    """Do this rank's part of a full turn; called by all ranks.

    Args:
        exchange: of this rank.
        rank: of this process.
        turn: groups of trains.
        loads: what each train sends.

    Returns:
        How long its train took, in seconds; 0 if it sends nothing.
    """
    mine = [train for group in turn for train in group if rank in train]
    for sender, receiver in mine:  # connects
        if sender == rank:
            exchange.send(receiver, 1)
        else:
            exchange.receive(sender, 1)
    exchange.meet()
    begin, sends = time.perf_counter(), False
    for sender, receiver in mine:
        load = loads[sender, receiver]
        whole, rest = divmod(load.nbytes, load.piece_nbytes)
        for nbytes in [load.piece_nbytes] * whole + [rest] * (rest > 0):
            if sender == rank:
                exchange.send(receiver, nbytes)
            else:
                exchange.receive(sender, nbytes)
        if sender == rank:
            sends = True
            exchange.receive(receiver, 1)
        else:
            exchange.send(sender, 1)
    elapsed_s = time.perf_counter() - begin
    exchange.meet()
    return elapsed_s if sends else 0.0


def collect(
    turns: Sequence[Sequence[Group]],
    loads: Mapping[Pair, Load],
    elapsed_s: Sequence[Sequence[float]],
    hosts: Sequence[str],
) -> tuple[SumSample, ...]:
    """What hosts reached.

    Args:
        turns: all full turns.
        loads: what each train sent.
        elapsed_s: by rank and turn, how long it took.
        hosts: name of each rank's host.
    """
    return tuple(
        SumSample(
            hosts[group[0][0]],
            hosts[group[0][1]],
            len(group),
            sum(loads[train].nbytes for train in group)
            / max(elapsed_s[sender][number] for sender, _ in group),
            sum(loads[train].bytes_per_s for train in group),
        )
        for number, turn in enumerate(turns)
        for group in turn
    )
