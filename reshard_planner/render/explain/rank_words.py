"""What one rank sends, receives and keeps of a tensor, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reshard_planner.render.explain.cut import binding_sentences
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.explain.moves import UNNEEDED
from reshard_planner.render.explain.rank import Exchanged, RankStory
from reshard_planner.render.explain.words import domains_text, ranks_text, slots_text
from reshard_planner.render.kinds import medium_name, role_name
from reshard_planner.render.text import format_count, format_nbytes, format_ranks
from reshard_planner.transfer import Medium

MAX_PEERS = 12
"""Peers that are named one by one, those of most bytes; the others are added up."""

MAX_CLASSES = 4
"""Classes of which it is said why they come over the network or not."""

_MEDIA = {Medium.NETWORK: "the network", Medium.NVLINK: "NVLink"}


def rank_paragraphs(facts: Facts, about: RankStory) -> Iterator[tuple[str, list[str]]]:
    """Titles and sentences about one rank."""
    yield f"Rank {about.rank}", list(_identity(facts, about))
    if about.needed:
        yield "Why", list(_reasons(facts, about))
    for title, exchanged, word in (
        ("receives", about.received, "from"),
        ("sends", about.sent, "to"),
        ("copies within itself", about.copied, ""),
    ):
        if exchanged:
            total = format_nbytes(sum(each.nbytes for each in exchanged))
            yield f"It {title}: {total}", list(_lines(exchanged, word))
    if about.received or about.sent:
        yield "What binds the plan", binding_sentences(facts)


def _identity(facts: Facts, about: RankStory) -> Iterator[str]:
    rank, ports = about.rank, facts.ports
    gpu, group = facts.plan.spec.topology.gpu_of(rank), int(ports.nic_group[rank])
    nic = f"with {ports.nic_name[group]}" if group >= 0 else "without a NIC"
    yield f"It is GPU {gpu} of domain {ports.domain[rank]}, {nic}."
    sizes = facts.atoms.nbytes
    before, after, both = (
        sum(sizes[number] for number in chosen)
        for chosen in (about.held, about.needed, {*about.held} & {*about.needed})
    )
    needs = (
        f"must have {format_nbytes(after)} after, {_classes(about.needed)}" if after else "needs none after"
    )
    yield f"It {_held(about, before)}, and {needs}." + (
        f" It keeps {format_nbytes(both)} of them: it holds these already." if both else ""
    )
    if not (about.received or about.sent or about.copied):
        yield "It sends, receives and copies nothing of this tensor."
    if about.passing_nbytes:
        yield (
            f"It helps to carry {format_nbytes(about.passing_nbytes)} that it neither held nor needs:"
            " they pass through it."
        )
    if group >= 0 and (about.received or about.sent):
        out, into = facts.nics.out[group], facts.nics.into[group]
        yield (
            "Over the whole plan its NIC is busy for"
            f" {out * 100:.0f} % of the time of the busiest NIC outwards, and for {into * 100:.0f} % inwards."
        )


def _held(about: RankStory, wanted: int) -> str:
    """What the rank had before, of which ``wanted`` bytes are of classes."""
    spare = about.held_nbytes - wanted
    if not about.held_nbytes:
        return "held none before"
    held = f"held {format_nbytes(about.held_nbytes)} before"
    if not wanted:
        return f"{held}, which nobody needs"
    rest = f" and {format_nbytes(spare)} that nobody needs" if spare else ""
    return f"{held}, {_classes(about.held)}{rest}"


def _classes(numbers: Sequence[int]) -> str:
    return f"class {numbers[0]}" if len(numbers) == 1 else f"classes {format_ranks(numbers, 40)}"


def _reasons(facts: Facts, about: RankStory) -> Iterator[str]:
    """Of the largest classes that the rank needs: where they were, and so over what they come."""
    domain = int(facts.ports.domain[about.rank])
    largest = sorted(about.needed, key=lambda number: (-facts.atoms.nbytes[number], number))
    for number in largest[:MAX_CLASSES]:
        demand = facts.demands[number]
        held = f"{ranks_text(demand.holders)} of {domains_text(demand.holder_domains)}"
        if about.rank in demand.holders:
            why = ", this rank among them, so that it stays"
        elif domain in demand.holder_domains:
            why = ", in its own domain, so that it can come over NVLink"
        else:
            why = (
                f" and nobody in domain {domain}, so that it must enter that domain over a NIC, once at least"
            )
        size = format_nbytes(demand.nbytes)
        yield f"Class {number}, {size}, was held by {held}{why}."
    left = largest[MAX_CLASSES:]
    if left:
        size = format_nbytes(sum(facts.atoms.nbytes[number] for number in left))
        more = "One more class" if len(left) == 1 else f"{len(left):,} more classes"
        yield f"{more}, {format_ranks(sorted(left), 40)}: {size} together."


def _lines(exchanged: Sequence[Exchanged], word: str) -> Iterator[str]:
    for each in exchanged[:MAX_PEERS]:
        when = f"{role_name(each.role)}, {slots_text(each.slots)}, {_of(each)}"
        yield f"{format_nbytes(each.nbytes)} {_way(each, word)} ({when})."
    rest = exchanged[MAX_PEERS:]
    if rest:
        size = format_nbytes(sum(each.nbytes for each in rest))
        peers = format_count(len({each.peer for each in rest}), "rank")
        slots = sorted({slot for each in rest for slot in each.slots})
        yield f"{size} more {word} {peers} ({slots_text(slots)}).".replace("  ", " ")


def _way(each: Exchanged, word: str) -> str:
    aside = ", which keeps them aside" if each.scratch else ""
    before = "that came in before, " if each.forwarded else ""
    if each.medium == Medium.LOCAL:
        return "that came in before, into place" if each.forwarded else "from its old buffer to its new one"
    medium = _MEDIA.get(Medium(each.medium)) if each.medium in set(Medium) else medium_name(each.medium)
    if word == "to":
        return f"{before}over {medium} to rank {each.peer}{aside}"
    had = "took them in" if each.forwarded else "held them"
    aside = ", to be kept aside" if each.scratch else ""
    return f"over {medium} from rank {each.peer}, which {had} before{aside}"


def _of(each: Exchanged) -> str:
    numbers = [number for number in each.classes if number != UNNEEDED]
    parts = [_classes(numbers)] if numbers else []
    return " and ".join([*parts, *(["what nobody needs"] if UNNEEDED in each.classes else [])])
