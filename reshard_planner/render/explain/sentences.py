"""Why the bytes of one tensor take their way, in sentences.

Numbers come from :mod:`reshard_planner.render.explain.facts`; here they only become words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from reshard_planner.ir.plan import Plan
from reshard_planner.render.explain.cut import binding_sentences
from reshard_planner.render.explain.facts import ClassFacts, Facts
from reshard_planner.render.explain.rank import tell_rank
from reshard_planner.render.explain.rank_words import rank_paragraphs
from reshard_planner.render.explain.relays import relay_sentences
from reshard_planner.render.explain.words import (
    domains_text,
    nic_sentences,
    ranks_text,
    sentence,
    way_sentences,
)
from reshard_planner.render.storing import storing_ranks
from reshard_planner.render.text import format_nbytes, format_ranks, format_shape, plain
from reshard_planner.routing import STRATEGIES
from reshard_planner.spec.values import Side
from reshard_planner.transfer import Medium

MAX_CLASSES = 4
"""Classes that are told one by one, the largest; the others are added up."""

WIDTH = 100
"""Characters of a line."""

_SIDES: tuple[tuple[str, Side], ...] = (("Held before by", "src"), ("Needed after by", "dst"))

_UNIT = re.compile(r"(?<=\d) (?=%|[kKMGTPE]?i?B\b|[mµn]?s\b)")
"""The space between a number and its unit."""

_JOINT = "\x00"
"""Stands for that space while lines are broken; names on one line do not have it."""


def explain(plan: Plan, tensor: str, rank: int | None = None) -> str:
    """Say why each byte of a tensor takes its way.

    For each class of its bytes: how many they are, who holds them before and who must have them after, which
    domains lack them and how many network copies that takes at least, how they go in this plan, and how busy
    the NICs are that they go over. Besides, what binds the whole plan. The plan is not verified.

    Args:
        plan: the plan, of any strategy.
        tensor: name of the tensor.
        rank: tell only what this rank sends, receives and keeps; None for all classes.

    Returns:
        Lines of about 100 characters, without a newline at the end; the same text for the same plan.

    Raises:
        InputError: if the plan has no such tensor or rank; the text names the nearest ones.
    """
    return explain_text(Facts(plan, tensor), rank)


def explain_text(facts: Facts, rank: int | None = None) -> str:
    """The same, of facts that are known already."""
    if rank is None:
        paragraphs = list(_paragraphs(facts))
    else:
        about = tell_rank(facts, rank)
        paragraphs = [(_heading(facts), []), *rank_paragraphs(facts, about)]
    return "\n\n".join(_wrap(title, sentences) for title, sentences in paragraphs)


def _wrap(title: str, sentences: Sequence[str]) -> str:
    lines = _lines(title, "", "  ")
    for each in sentences:
        lines.extend(_lines(each, "  ", "    "))
    return "\n".join(lines)


def _lines(text: str, first: str, further: str) -> list[str]:
    """Lines of a text; numbers stay with their units."""
    lines = textwrap.wrap(
        _UNIT.sub(_JOINT, text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_JOINT, " ") for line in lines]


def _paragraphs(facts: Facts) -> Iterator[tuple[str, list[str]]]:
    shown = facts.order[:MAX_CLASSES]
    yield _heading(facts), list(_tensor_sentences(facts))
    if facts.order:
        yield "What binds the plan", binding_sentences(facts)
    for number in shown:
        entry = facts.class_facts(number)
        yield _class_title(facts, entry), list(_class_sentences(facts, entry))
    rest = facts.order[len(shown) :]
    if rest:
        yield _rest_title(facts, rest), _rest_sentences(facts, rest)
    unneeded = facts.unneeded()
    if len(unneeded):
        yield (
            "Bytes that nobody needs",
            [
                "Nobody needs them, and this plan moves them all the same.",
                *way_sentences(unneeded),
            ],
        )


def _heading(facts: Facts) -> str:
    tensor = facts.tensor
    dtype = tensor.dtype
    if tensor.dst_dtype != dtype:
        end = "source" if tensor.wire_dtype == tensor.dst_dtype else "destination"
        dtype = f"{dtype}, converted to {tensor.dst_dtype} at the {end},"
    size = f"{format_nbytes(tensor.nbytes)} on its way" if tensor.dst_dtype != tensor.dtype else ""
    return f"Tensor {plain(tensor.name)}: {format_shape(tensor.shape)} {dtype} {size}".rstrip() + (
        "" if size else f", {format_nbytes(tensor.nbytes)}"
    )


def _tensor_sentences(facts: Facts) -> Iterator[str]:
    tensor, name = facts.tensor, facts.plan.spec.options.strategy
    if not tensor.nbytes:
        yield "It has no elements, so nothing moves."
        return
    if not facts.order:
        yield "Nobody needs any of it, so nothing has to move."
        return
    for verb, side in _SIDES:
        members = np.flatnonzero(storing_ranks([tensor], side, len(facts.ports.domain))).tolist()
        domains = np.unique(facts.ports.domain[members]).tolist()
        yield f"{verb} {ranks_text(members)} of {domains_text(domains)}".rstrip(",") + "."
    spare = tensor.nbytes - sum(facts.atoms.nbytes)
    count = len(facts.order)
    kinds = "one class" if count == 1 else f"{count:,} classes"
    yield (
        f"Its bytes are of {kinds}; bytes of one class have the same holders and the same needers."
        + (f" Nobody needs the other {format_nbytes(spare)}." if spare else "")
    )
    strategy = STRATEGIES.get(name)
    summary = f": {strategy.summary}" if strategy else ""
    yield f"Strategy {plain(name)}{summary}."
    moved = {medium: facts.moved(medium) for medium in Medium}
    yield f"In all, {_moved(moved, facts.least_nbytes)}."
    if facts.plan.certificate.rail_nbytes is not None and moved[Medium.NETWORK]:
        stay = facts.rail_nbytes()
        yield (
            f"Of the {format_nbytes(moved[Medium.NETWORK])} over the network"
            f" {format_nbytes(stay) if stay else 'none'} stay on their rail: from one NIC to another of the"
            " same leaf switch."
        )


def _moved(moved: Mapping[Medium, int], least: int) -> str:
    """Bytes by medium, those over the network beside their least."""
    parts = [_against(moved[Medium.NETWORK], least)]
    if moved[Medium.NVLINK]:
        parts.append(f"{format_nbytes(moved[Medium.NVLINK])} go over NVLink")
    if moved[Medium.LOCAL]:
        parts.append(f"{format_nbytes(moved[Medium.LOCAL])} are copied within ranks")
    return "; ".join(parts)


def _against(moved: int, least: int) -> str:
    """Network bytes beside the least."""
    if moved == least:
        if not least:
            return "no byte crosses the network, and none has to"
        return f"{format_nbytes(moved)} cross the network, the least possible"
    if moved < least:
        return (
            f"{format_nbytes(moved)} cross the network, {format_nbytes(least - moved)} less than must:"
            " the plan is not complete"
        )
    if not least:
        return f"{format_nbytes(moved)} cross the network, and none has to"
    return (
        f"{format_nbytes(moved)} cross the network, {moved / least:.2f} times the least of"
        f" {format_nbytes(least)}, {format_nbytes(moved - least)} too much"
    )


def _class_title(facts: Facts, entry: ClassFacts) -> str:
    lo, hi = facts.boxes(entry.number)[0].tolist()
    box = "[" + ", ".join(f"{a}:{b}" for a, b in zip(lo, hi, strict=True)) + "]"
    where = f"box {box}" if entry.atoms == 1 else f"{entry.atoms:,} boxes, the first {box}"
    share = entry.nbytes / facts.tensor.nbytes
    return f"Class {entry.number}: {format_nbytes(entry.nbytes)}, {share * 100:.3g} % of the tensor, {where}"


def _class_sentences(facts: Facts, entry: ClassFacts) -> Iterator[str]:
    holding = domains_text(entry.holder_domains)
    yield f"{sentence(ranks_text(entry.holders))} of {holding} held it before."
    needing = sorted(set(facts.ports.domain[list(entry.needers)].tolist()))
    yield f"{sentence(ranks_text(entry.needers))} of {domains_text(needing)} must have it after."
    yield from _why(entry, needing)
    moved = int(entry.moves.nbytes[entry.moves.medium == Medium.NETWORK].sum())
    if moved or entry.least_nbytes:
        yield f"In this plan {_against(moved, entry.least_nbytes)}{_wasted(entry)}."
    yield from way_sentences(entry.moves)
    yield from relay_sentences(facts, entry)
    between = np.flatnonzero(entry.moves.medium != Medium.LOCAL)
    if entry.proxies:
        verbs = ("needs", "helps") if len(entry.proxies) == 1 else ("need", "help")
        yield (
            f"{sentence(ranks_text(entry.proxies))} neither held nor {verbs[0]} it, and {verbs[1]} to"
            f" carry it{_without_nic(facts, entry)}."
        )
    yield from nic_sentences(facts, entry)
    if facts.plan.certificate.bound.cut_nbytes and len(between):
        adds = format_nbytes(entry.cut_nbytes) if entry.cut_nbytes else "nothing"
        total = format_nbytes(facts.plan.certificate.bound.cut_nbytes)
        yield f"It makes up {adds} of the {total} that set T*."


def _why(entry: ClassFacts, needing: Sequence[int]) -> Iterator[str]:
    """Which domains lack the class, and so how many copies must cross the network."""
    staying = sorted({*entry.holders} & {*entry.needers})
    near = [domain for domain in needing if domain in entry.holder_domains]
    if len(staying) == len(entry.needers):
        yield "All who need it hold it already: k = 0, and nothing has to leave a rank."
        return
    if staying:
        verb = "holds" if len(staying) == 1 else "hold"
        yield f"Of these, {ranks_text(staying)} {verb} it already."
    if not entry.copies:
        yield (
            "Each domain that needs it holds it: k = 0, and nothing has to cross the network; it can come"
            " over NVLink."
        )
        return
    which = sentence(domains_text(entry.needing_domains))
    if entry.copies == 1:
        yield (
            f"{which} needs it and holds none of it: k = 1, so that one copy must cross the network,"
            f" {format_nbytes(entry.least_nbytes)}."
        )
    else:
        yield (
            f"{which} need it and hold none of it; each must take it in once: k = {entry.copies}, so that"
            f" {entry.copies} copies must cross the network, {format_nbytes(entry.least_nbytes)}."
        )
    if near:
        yield f"In {domains_text(near)} it can come over NVLink."
    if entry.needing_pods:
        pods = entry.needing_pods
        names = f"pod {pods[0]}, which lacks" if len(pods) == 1 else f"pods {format_ranks(pods)}, which lack"
        yield f"At least one of the copies must pass the uplink of {names} it."


def _without_nic(facts: Facts, entry: ClassFacts) -> str:
    """Those of a class that have no NIC, so that others lend theirs."""
    taking_part = {*entry.moves.src.tolist(), *entry.moves.dst.tolist()} & {*entry.holders, *entry.needers}
    bare = sorted(rank for rank in taking_part if facts.ports.nic_group[rank] < 0)
    if not bare:
        return ""
    return f", as {ranks_text(bare)} {'has' if len(bare) == 1 else 'have'} no NIC"


def _wasted(entry: ClassFacts) -> str:
    """What network bytes beyond the least are for."""
    excess = entry.excess
    reasons = (
        (excess.within, "go from NIC to NIC within a domain"),
        (excess.to_holding, "go into domains that held it"),
        (excess.again, "go into domains that take it in once already"),
        (excess.elsewhere, "go into domains that do not need it"),
    )
    said = [f"{format_nbytes(nbytes)} {what}" for nbytes, what in reasons if nbytes]
    return f": {', '.join(said)}" if said else ""


def _rest_title(facts: Facts, rest: Sequence[int]) -> str:
    sizes = [facts.atoms.nbytes[number] for number in rest]
    each = format_nbytes(max(sizes))
    size = f"{each} each" if min(sizes) == max(sizes) else f"at most {each} each"
    if len(rest) == 1:
        return f"One more class, {rest[0]}: {each}"
    return (
        f"{len(rest):,} more classes, {format_ranks(sorted(rest), 40)}: {size},"
        f" {format_nbytes(sum(sizes))} together"
    )


def _rest_sentences(facts: Facts, rest: Sequence[int]) -> list[str]:
    chosen = np.array(sorted(rest), dtype=np.int64)
    least = int((facts.copies[chosen] * np.array(facts.atoms.nbytes, dtype=np.int64)[chosen]).sum())
    copies = facts.copies[chosen]
    low, high = int(copies.min()), int(copies.max())
    k = f"k = {low}" if low == high else f"k is {low} to {high}"
    moved = {medium: facts.moved(medium, chosen) for medium in Medium}
    return [f"{sentence(_moved(moved, least))}; {k} for {'it' if len(rest) == 1 else 'each of them'}."]
