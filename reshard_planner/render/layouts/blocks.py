"""Blocks of SVG that are put beside or above one another, and the room that text takes.

Nothing measures text here: widths are those of a wide font, so that a narrower one leaves room.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

NARROW, WIDE = frozenset("ijl.,:;|!'()[] "), frozenset("mwMW@%&")
"""Characters of about a third of the size of the font, and of nearly all of it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some SVG elements and the room that they take from (0, 0), in points.

    Attributes:
        width: of the room.
        height: of the room.
        parts: elements.
    """

    width: float
    height: float
    parts: tuple[str, ...]


def text_points(text: str, points: float) -> float:
    """Most width that a line of text takes in the usual fonts, in points."""
    width = 0.0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            width += 1.1
        elif character in NARROW:
            width += 0.4
        else:
            width += (
                1.0 if character in WIDE or not character.isascii() else 0.6 if character.islower() else 0.65
            )
    return width * points


def text_element(x: float, y: float, text: str, points: float, kind: str = "ink", more: str = "") -> str:
    """A line of text with its baseline at (x, y).

    Args:
        x: where it begins, or its middle or end as ``more`` says.
        y: its baseline.
        text: what is said; not escaped.
        points: size of the font.
        kind: class of the element, that colours it.
        more: further attributes.
    """
    return (
        f'<text class="{kind}" x="{number(x)}" y="{number(y)}" font-size="{number(points)}"{more}>'
        f"{html.escape(text)}</text>"
    )


def text_block(text: str, points: float, kind: str = "ink", more: str = "") -> Block:
    """A line of text as a block."""
    part = text_element(0, points, text, points, kind, more)
    return Block(text_points(text, points), points * 1.35, (part,))


def above(blocks: Sequence[Block], gap: float = 0) -> Block:
    """Blocks one above the other, left-aligned."""
    parts, y = [], 0.0
    for block in blocks:
        parts.extend(_moved(block, 0, y))
        y += block.height + gap
    return Block(max((block.width for block in blocks), default=0), max(0, y - gap), tuple(parts))


def beside(blocks: Sequence[Block], gap: float = 0) -> Block:
    """Blocks one beside the other, aligned at the top."""
    parts, x = [], 0.0
    for block in blocks:
        parts.extend(_moved(block, x, 0))
        x += block.width + gap
    return Block(max(0, x - gap), max((block.height for block in blocks), default=0), tuple(parts))


def padded(block: Block, left: float, top: float, right: float = 0, bottom: float = 0) -> Block:
    """A block with room around it."""
    return Block(block.width + left + right, block.height + top + bottom, tuple(_moved(block, left, top)))


def number(value: float) -> str:
    """A coordinate with one decimal, or none.

    >>> number(12.0), number(0.25)
    ('12', '0.2')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _moved(block: Block, x: float, y: float) -> list[str]:
    if not x and not y:
        return list(block.parts)
    return [f'<g transform="translate({number(x)} {number(y)})">{"".join(block.parts)}</g>']
