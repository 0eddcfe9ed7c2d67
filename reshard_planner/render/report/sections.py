"""The parts of a report that are plain HTML: they can be read without the script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from reshard_planner.ir.plan import Plan
from reshard_planner.render.report.pictures import Pictures
from reshard_planner.render.report.timeline import Timeline
from reshard_planner.render.report.words import Claim
from reshard_planner.render.text import format_count, format_nbytes, format_s, format_shape, plain

MARKS = {True: "\N{CHECK MARK} ", False: "\N{WARNING SIGN} ", None: ""}
"""What stands before a figure: as good as can be, not so, or neither."""

WORDS = {True: "as good as can be", False: "not as good as can be"}
"""The same for those who do not see it."""


def certificate(claims: Sequence[Claim]) -> str:
    """A card per claim."""
    cards = []
    for claim in claims:
        mark = MARKS[claim.good]
        if claim.good is not None:
            mark = f'<span class="mark" role="img" aria-label="{WORDS[claim.good]}">{mark}</span>'
        state = {True: " good", False: " bad", None: ""}[claim.good]
        cards.append(
            f'<article class="card{state}"><h3>{escape(claim.title)}</h3>'
            f'<p class="figure">{mark}{escape(claim.value)}</p><p>{escape(claim.text)}</p></article>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def hops(pictures: Pictures) -> str:
    """The picture of transfers."""
    if pictures.hops is None:
        return f'<p class="note">No picture: {escape(pictures.hops_note)}</p>'
    button = '<button type="button" data-size="hops" aria-pressed="false">Full size</button>'
    picture = _picture("hops", pictures.hops, "Transfers between ranks or domains")
    return f'<div class="tools">{button}</div>{picture}'


def layouts(plan: Plan, pictures: Pictures) -> str:
    """A picture per way of being laid out; the first is open."""
    parts: list[str] = []
    left_out, left_nbytes = 0, 0
    for number, layout in enumerate(pictures.layouts):
        if layout.svg is None:
            left_out += 1
            left_nbytes += layout.nbytes
            continue
        sample, rest = plan.spec.tensors[layout.tensors[0]], len(layout.tensors) - 1
        more = f" and {format_count(rest, 'more tensor')}" if rest else ""
        size = format_nbytes(layout.nbytes) + (" together" if rest else "")
        facts = f"{format_shape(sample.shape)} {sample.dtype}, {size}"
        button = f'<button type="button" data-layout="{number}">Only these tensors in the table</button>'
        picture = _picture(f"layout-{number}", layout.svg, "Layouts before and after")
        parts.append(
            f'<details id="r-layout-{number}"{"" if parts else " open"}><summary>'
            f"<b><bdi>{escape(plain(sample.name))}</bdi>{more}</b> <small>{escape(facts)}</small></summary>"
            f'<div class="tools">{button}</div>{picture}</details>'
        )
    if left_out:
        what = f"{format_count(left_out, 'further picture')} of {format_nbytes(left_nbytes)} of tensors"
        parts.append(
            f'<p class="note">{what} would make this page too large:'
            " reshard-planner draw --picture layouts --tensor NAME draws each.</p>"
        )
    return "".join(parts) or '<p class="note">There are no tensors.</p>'


def _picture(name: str, svg: str, title: str) -> str:
    """An SVG in a tree of its own, so that neither its ids nor its styles meet those of the page."""
    style = (
        "<style>svg{max-width:100%;height:auto;display:block;margin:auto}"
        ":host(.full) svg{max-width:none}"
        "[role=button]{cursor:pointer}[role=button]:focus{outline:3px solid #D55E00;outline-offset:2px}"
        "g.chosen polygon,g.chosen path{stroke:#D55E00;stroke-width:4}</style>"
    )
    return (
        f'<div class="picture" id="r-picture-{name}" role="group" aria-label="{escape(title)}">'
        f'<template shadowrootmode="open">{style}{svg}</template></div>'
    )


def timeline_note(timeline: Timeline) -> str:
    """What the timeline shows."""
    if timeline.predicted:
        how = f"A predicted run of {format_s(timeline.elapsed_s)}, message by message."
    else:
        how = (
            f"The schedule, {format_s(timeline.elapsed_s)} long: every slot takes as long as its busiest port"
            " at its datasheet rate, and a start-up time, and slots do not overlap. It is no prediction of a"
            " run: report --simulate has that."
        )
    together = max((len(ranks) for ranks in timeline.rows), default=1)
    shared = f" Each row stands for up to {together} ranks." if together > 1 else ""
    return (
        f"{how} The stronger the colour and the higher the bar, the busier is the port, from 0 to 100 %"
        f" of its datasheet rate.{shared}"
    )
