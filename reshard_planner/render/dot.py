"""What all pictures share: fonts, colours and the escaping of text in DOT."""

from __future__ import annotations

import graphviz

FONT = "Helvetica,Arial,sans-serif"
"""Font of all text; the first that the viewer has."""

DOT_FONT = "Helvetica"
"""The same in DOT: of this name graphviz knows the widths without fonts, and it adds a fallback itself."""

INK = "#222222"
"""Colour of text."""

FAINT = "#767676"
"""Colour of frames and notes."""

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
"""Colours that colour-blind people tell apart (Okabe and Ito)."""


def dot_text(*lines: str) -> str:
    """Lines as a DOT label or tooltip in which no character has a special meaning."""
    plain: str = graphviz.nohtml(
        "\\n".join(line.replace("\\", "\\\\").replace("&", "&amp;") for line in lines)
    )
    return plain


def new_graph(name: str, **attributes: str) -> graphviz.Digraph:
    """An empty directed graph with the common fonts and colours."""
    font = {"fontname": DOT_FONT, "fontcolor": INK}
    return graphviz.Digraph(
        name,
        graph_attr={**font, "fontsize": "14", "bgcolor": "white", **attributes},
        node_attr={**font, "fontsize": "11", "color": FAINT},
        edge_attr={**font, "fontsize": "10", "color": FAINT},
    )
