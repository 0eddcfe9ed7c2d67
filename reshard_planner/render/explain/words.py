"""Words for ranks, domains and ways, which all explanations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.explain.data import medium_label, role_label
from reshard_planner.render.explain.facts import ClassFacts, Facts
from reshard_planner.render.explain.moves import Moves, number_rows
from reshard_planner.render.text import format_nbytes, format_ranks
from reshard_planner.transfer import Medium, Role

MAX_PAIRS = 4
"""Pairs of ranks that are named one by one; of more, their number and the range of their bytes."""


def sentence(text: str) -> str:
    """A text with a capital letter in front."""
    return text[:1].upper() + text[1:]


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-3`` or, where numbers are left out, ``128 ranks, 0-3,...,900``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = format_ranks(ranks)
    return f"{len(ranks):,} ranks, {shown}," if "..." in shown else f"ranks {shown}"


def domains_text(domains: Sequence[int]) -> str:
    """``domain 3``, ``domains 0-3``, likewise."""
    if len(domains) == 1:
        return f"domain {domains[0]}"
    shown = format_ranks(domains)
    return f"{len(domains):,} domains, {shown}," if "..." in shown else f"domains {shown}"


def slots_text(slots: Sequence[int]) -> str:
    """``slot 3``, ``slots 0-3``."""
    return f"slot {slots[0]}" if len(slots) == 1 else f"slots {format_ranks(slots, 32)}"


def nic_sentences(facts: Facts, entry: ClassFacts) -> Iterator[str]:
    """Which NICs a class goes over, and how busy they are beside those that it might have gone over."""
    out, into = facts.nics.out, facts.nics.into
    parts = [
        f"{_nics(facts, groups)} {one if len(groups) == 1 else many}, at {percent_text(shares[list(groups)])}"
        for groups, one, many, shares in (
            (entry.injecting, "injects it", "inject it", out),
            (entry.relaying, "relays it", "relay it", out),
            (entry.idle, "of a holder is left out", "of holders are left out", out),
            (entry.receiving, "takes it in", "take it in", into),
        )
        if groups
    ]
    if parts:
        yield f"Of the load of the plan's busiest NIC: {'; '.join(parts)}."


def _nics(facts: Facts, groups: Sequence[int]) -> str:
    return facts.ports.nic_name[groups[0]] if len(groups) == 1 else f"{len(groups):,} NICs"


def percent_text(shares: NDArray[np.float64]) -> str:
    """Shares in per cent, the least and the most."""
    low, high = (f"{share * 100:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def way_sentences(moves: Moves) -> Iterator[str]:
    """One sentence for each kind of move, in order of slots; copies within ranks last."""
    number, sample = number_rows([moves.medium, moves.role, moves.forwarded, moves.scratch])
    kinds = [moves.select(number == kind) for kind in range(len(sample))]
    kinds.sort(key=lambda each: (each.medium[0] == Medium.LOCAL, int(each.first.min()), -int(each.medium[0])))
    for each in kinds:
        yield f"{sentence(_way(each))}."


def _way(moves: Moves) -> str:
    senders, receivers = np.unique(moves.src).tolist(), np.unique(moves.dst).tolist()
    nbytes = format_nbytes(int(moves.nbytes.sum()))
    low, high = int(moves.first.min()), int(moves.last.max())
    slots = f"slot {low}" if low == high else f"slots {low} to {high}"
    medium, role = int(moves.medium[0]), int(moves.role[0])
    forwarded, scratch = bool(moves.forwarded[0]), bool(moves.scratch[0])
    kept = ", which keeps it aside" if len(receivers) == 1 else ", which keep it aside"
    if medium == Medium.LOCAL:
        verb, what = ("copies", "its old buffer to its new one")
        if len(senders) > 1:
            verb, what = ("copy", "their old buffers to their new ones")
        what = "that came in before into place" if forwarded else f"from {what}"
        return f"{ranks_text(senders)} {verb} {nbytes} {what}{_copies(moves)} ({slots})"
    doing = way_text(medium, role, forwarded=forwarded, scratch=scratch, one=len(senders) == 1)
    aside = kept if scratch else ""
    subject = ranks_text(senders)
    return f"{subject} {doing.format(nbytes=nbytes)}{_pairs(moves, senders, receivers, aside)} ({slots})"


def way_text(medium: int, role: int, *, forwarded: bool, scratch: bool, one: bool) -> str:
    """What senders do, with a place for the bytes.

    Args:
        medium: medium of the transfers.
        role: their role.
        forwarded: whether the senders got the bytes in this plan.
        scratch: whether the receivers keep them aside.
        one: whether there is one sender.
    """
    s, nic = ("s", "its NIC") if one else ("", "their NICs")
    match medium, role:
        case Medium.NETWORK, Role.INJECT:
            return f"inject{s} {{nbytes}} from {nic}"
        case Medium.NETWORK, Role.RELAY:
            return f"relay{s} {{nbytes}} that came in before, from {nic},"
        case Medium.NVLINK, Role.FANOUT if forwarded:
            return f"fan{s} out {{nbytes}} that came in before, over NVLink,"
        case Medium.NVLINK, Role.FANOUT:
            return f"fan{s} out {{nbytes}} over NVLink"
        case Medium.NVLINK, Role.HANDOFF if scratch:
            return f"hand{s} {{nbytes}} over NVLink"
        case Medium.NVLINK, Role.HANDOFF:
            return f"hand{s} on {{nbytes}} that came in before, over NVLink,"
        case _:
            return f"send{s} {{nbytes}} over {medium_label(medium)} ({role_label(role)})"


def _pairs(moves: Moves, senders: Sequence[int], receivers: Sequence[int], aside: str) -> str:
    """Who sends to whom: each pair while they are few, else their number and the range of their bytes."""
    pairs = list(zip(moves.src.tolist(), moves.dst.tolist(), moves.nbytes.tolist(), strict=True))
    if len(pairs) == 1:
        return f" to rank {receivers[0]}{aside}"
    if len(pairs) <= MAX_PAIRS:
        shown = [
            f"{format_nbytes(nbytes)} {f'from rank {src} ' if len(senders) > 1 else ''}to rank {dst}"
            for src, dst, nbytes in pairs
        ]
        return f" to {ranks_text(receivers)}{aside}: {', '.join(shown)}".replace(",:", ":")
    each = _range(moves)
    return f" to {ranks_text(receivers)}{aside}: {each} for each of {len(pairs):,} pairs".replace(",:", ":")


def _copies(moves: Moves) -> str:
    return "" if len(moves) == 1 else f", {_range(moves)} each"


def _range(moves: Moves) -> str:
    low, high = format_nbytes(int(moves.nbytes.min())), format_nbytes(int(moves.nbytes.max()))
    return low if low == high else f"{low} to {high}"
