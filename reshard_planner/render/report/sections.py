"""The parts of a report that are plain HTML: they can be read without the script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from reshard_planner.ir.plan import Plan
from reshard_planner.render.report.pictures import Pictures
from reshard_planner.render.report.timeline import PREDICTED, SCHEDULED, Timeline
from reshard_planner.render.report.words import GLOSSARY, UNITS, Claim
from reshard_planner.render.text import format_count, format_nbytes, format_s, format_shape, plain

MARKS = {True: "\N{CHECK MARK} ", False: "\N{WARNING SIGN} ", None: ""}
"""What stands before a figure: as good as can be, not so, or neither."""

TERM = re.compile(rf"\b(?:{'|'.join(map(re.escape, GLOSSARY))})(?!\w)")
"""A short name of the glossary."""

LEAST_TEXT = 10.0
"""Least size of text in pictures, in pixels."""

PIXELS_PER_POINT = 96 / 72

SIZE = re.compile(
    r'<svg[^>]*?\bwidth="(?P<width>[\d.]+)(?P<unit>pt|px)?"[^>]*?viewBox="[\d.-]+ [\d.-]+ (?P<units>[\d.]+) '
)
"""Width of a picture, and how many of its own units that is."""

FONT_SIZE = re.compile(r'font-size="([\d.]+)"')

HALO = "drop-shadow(0 0 1px #C79A00) drop-shadow(0 0 3px #F5C400)"
"""What marks that which is chosen: no line and no bar has this colour."""

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
            f'<article class="card{state}"><h3>{explained(claim.title)}</h3>'
            f'<p class="figure">{mark}{explained(claim.value)}</p><p>{explained(claim.text)}</p></article>'
        )
    terms = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in GLOSSARY.items())
    return (
        f'<div class="cards">{"".join(cards)}</div><dl class="terms">{terms}</dl>'
        f'<p class="note">{escape(UNITS)}</p>'
    )


def explained(text: str) -> str:
    """Text as HTML in which the short names of the glossary say what they stand for."""
    return TERM.sub(
        lambda found: f'<abbr title="{escape(GLOSSARY[found[0]])}">{found[0]}</abbr>', escape(text)
    )


def hops(pictures: Pictures) -> str:
    """The picture of transfers."""
    if pictures.hops is None:
        return f'<p class="note">No picture: {escape(pictures.hops_note)}</p>'
    picture = _picture("hops", pictures.hops, "Transfers between ranks or domains")
    return f'<div class="tools">{_size_button("hops")}</div>{picture}'


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
        button += _size_button(f"layout-{number}")
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


def _size_button(name: str) -> str:
    """A button for the size of a picture, which the script shows where there is another size."""
    return f'<button type="button" data-size="{name}" aria-pressed="false" hidden>Full size</button>'


def _picture(name: str, svg: str, title: str) -> str:
    """An SVG in a tree of its own, so that neither its ids nor its styles meet those of the page.

    It is as wide as its frame, unless its text would be too small then; the frame scrolls.
    """
    style = (
        f"<style>svg{{max-width:100%;min-width:{_legible_width(svg)}px;height:auto;display:block;margin:auto}}"
        ":host(.full) svg{max-width:none}:host(.fit) svg{min-width:0}"
        ".press{cursor:pointer}.press:focus{outline:none}"
        f".press:focus-visible,.chosen{{filter:{HALO}}}"
        "g.chosen polygon,g.chosen path{stroke-width:4}"
        "@media print{svg{max-width:100%!important;min-width:0!important}}</style>"
    )
    return (
        f'<div class="picture" id="r-picture-{name}" role="group" tabindex="0" aria-label="{escape(title)}">'
        f'<template shadowrootmode="open">{style}{svg}</template></div>'
    )


def _legible_width(svg: str) -> int:
    """Least width of a picture in pixels at which its smallest text has :data:`LEAST_TEXT`."""
    width, points = SIZE.search(svg), [float(size) for size in FONT_SIZE.findall(svg)]
    if width is None or not points:
        return 0
    natural = float(width["width"]) * (PIXELS_PER_POINT if width["unit"] == "pt" else 1.0)
    scale = natural / float(width["units"])
    return int(natural * min(1.0, LEAST_TEXT / (min(points) * scale)))


def _apart(timeline: Timeline) -> str:
    """What is said of runs whose scales of time differ."""
    (_, first_s), (_, other_s) = timeline.runs
    times = max(first_s, other_s) / min(first_s, other_s)
    return f"one is {times:.3g} times as long as the other, so that each has its own scale of time."


def _tops(timeline: Timeline) -> str:
    """What bars of full height stand for."""
    text = "Bars say how busy a port is, from 0 to 100 % of its datasheet rate"
    for number, (kind, _) in enumerate(timeline.runs):
        top = min(timeline.tops[at] for at, (run, _) in enumerate(timeline.lanes) if run == number)
        if top < 1:
            whose = "schedule" if kind == SCHEDULED else f"{kind} run"
            text += f", in the {whose} to {100 * top:.2g} %"
    return f"{text}."


def timeline_note(timeline: Timeline) -> str:
    """What the timeline shows."""
    (kind, elapsed_s), *rest = timeline.runs
    if kind == PREDICTED:
        how = f"A predicted run of {format_s(elapsed_s)}, message by message."
    else:
        how = (
            f"The schedule, {format_s(elapsed_s)} long: every slot takes as long as its busiest port"
            " at its datasheet rate, and a start-up time, and slots do not overlap. It is no prediction of a"
            " run: report --simulate has that."
        )
    for number, (other, time_s) in enumerate(rest, start=1):
        how += f" Beside it a {other} run of {format_s(time_s)}"
        how += ", on the same scale." if timeline.stretch[number] == 1 else f": {_apart(timeline)}"
    together = max((len(ranks) for ranks in timeline.rows), default=1)
    shared = f" Each row stands for up to {together} ranks." if together > 1 else ""
    return f"{how} {_tops(timeline)}{shared}"
