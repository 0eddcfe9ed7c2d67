"""How much room text takes in Helvetica, or in Arial and Liberation Sans, which are as wide."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

LINE_HEIGHT = 1.2
"""Distance of lines over the size of the font, as graphviz sets them."""

_EM = 1000
"""Units of the widths below in the size of a font."""

_WIDTHS = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[\\]ft",
    333: "()-`r",
    334: "{}",
    355: '"',
    389: "*",
    469: "^",
    500: "Jckszyvx",
    556: "#$0123456789?L_abdeghnopqu",
    584: "+<=>~",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "→↔",
    1015: "@",
}
_WIDTH_OF = {character: width for width, characters in _WIDTHS.items() for character in characters}


def text_width(text: str, size: float) -> float:
    """Width of one line in points; of characters outside ASCII an upper estimate."""
    total = 0
    for character in text:
        width = _WIDTH_OF.get(character)
        if width is None:
            width = _EM if unicodedata.east_asian_width(character) in "WFA" else 800
        total += width
    return total * size / _EM


def block_size(lines: Sequence[str], size: float) -> tuple[float, float]:
    """Width and height of some lines in points."""
    return max((text_width(line, size) for line in lines), default=0.0), len(lines) * LINE_HEIGHT * size
