"""Words for ranks, domains and ways, which all explanations share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from reshard_planner.render.explain.facts import ClassFacts, Facts
from reshard_planner.render.explain.moves import ClassMoves, number_rows
from reshard_planner.render.kinds import medium_name, role_name
from reshard_planner.render.text import format_nbytes, format_ranks
from reshard_planner.transfer import Medium, Role

MAX_PAIRS = 4
"""Pairs of ranks that are named one by one; of more, their number and the range of their bytes."""


MAX_NICS = 3
"""NICs that are named; of more, their number."""


def sentence(text: str) -> str:
    """A text with a capital letter in front."""
    return text[:1].upper() + text[1:]


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-3`` or, where numbers are left out, ``128 ranks (0-3,...,900)``."""
    return _numbered("rank", ranks)


def domains_text(domains: Sequence[int]) -> str:
    """``domain 3``, ``domains 0-3``, likewise."""
    return _numbered("domain", domains)


def _numbered(noun: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    shown = format_ranks(numbers)
    return f"{len(numbers):,} {noun}s ({shown})" if "..." in shown else f"{noun}s {shown}"


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
            (entry.receiving, "takes it in", "take it in", into),
        )
        if groups
    ]
    if entry.idle:
        busy = out[list(entry.idle)]
        load = f"busy to {percent_text(busy)} with other bytes" if busy.any() else "idle"
        one = len(entry.idle) == 1
        could = f"of {'a holder' if one else 'holders'} could have sent it too"
        parts.append(f"{_nics(facts, entry.idle)} {could}, and {'is' if one else 'are'} {load}")
    if parts:
        yield (f"NICs, and how busy each is over the whole plan (the busiest: 100 %): {'; '.join(parts)}.")


def _nics(facts: Facts, groups: Sequence[int]) -> str:
    if len(groups) > MAX_NICS:
        return f"{len(groups):,} NICs"
    *others, last = (facts.ports.nic_name[group] for group in groups)
    return f"{', '.join(others)} and {last}" if others else last


def percent_text(shares: NDArray[np.float64]) -> str:
    """Shares in per cent, the least and the most."""
    low, high = (f"{share * 100:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def way_sentences(moves: ClassMoves) -> Iterator[str]:
    """One sentence for each kind of move, in order of slots; copies within ranks last."""
    number, sample = number_rows([moves.medium, moves.role, moves.forwarded, moves.scratch])
    kinds = [moves.select(number == kind) for kind in range(len(sample))]
    kinds.sort(key=lambda each: (each.medium[0] == Medium.LOCAL, int(each.first.min()), -int(each.medium[0])))
    for each in kinds:
        yield f"{sentence(_way(each))}."


def _way(moves: ClassMoves) -> str:
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
            return f"send{s} {{nbytes}} over {medium_name(medium)} ({role_name(role)})"


def _pairs(moves: ClassMoves, senders: Sequence[int], receivers: Sequence[int], aside: str) -> str:
    """Who sends to whom: each pair while they are few, else their number and the range of their bytes."""
    pairs = list(zip(moves.src.tolist(), moves.dst.tolist(), moves.nbytes.tolist(), strict=True))
    if len(pairs) == 1:
        return f" to rank {receivers[0]}{aside}"
    if len(pairs) <= MAX_PAIRS:
        shown = [
            f"{format_nbytes(nbytes)} {f'from rank {src} ' if len(senders) > 1 else ''}to rank {dst}"
            for src, dst, nbytes in pairs
        ]
        return f" to {ranks_text(receivers)}{aside}: {', '.join(shown)}"
    each = _range(moves)
    return f" to {ranks_text(receivers)}{aside}: {each} for each of {len(pairs):,} pairs"


def _copies(moves: ClassMoves) -> str:
    return "" if len(moves) == 1 else f", {_range(moves)} each"


def _range(moves: ClassMoves) -> str:
    low, high = format_nbytes(int(moves.nbytes.min())), format_nbytes(int(moves.nbytes.max()))
    return low if low == high else f"{low} to {high}"
