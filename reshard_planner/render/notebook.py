"""What notebooks show of plans and pictures."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.summary import facts, summarize
from reshard_planner.render.svg import to_svg


def mimebundle(plan: Plan) -> dict[str, str]:
    """A plan by MIME type: text, its certificate as an HTML table, and the picture of its transfers as SVG.

    Notebooks show the HTML where there is any, so that it holds the picture too. Where nothing can draw it
    there is no picture.
    """
    bundle = {"text/plain": summarize(plan)}
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in facts(plan)
    )
    table = f"<table><caption>Plan {html.escape(plan.digest[:12])}</caption>{rows}</table>"
    svg = _svg(transfers_dot(plan))
    if svg is None:
        return {**bundle, "text/html": table}
    return {**bundle, "text/html": f"{table}\n{_inline(svg)}", "image/svg+xml": svg}


@dataclass(frozen=True, slots=True)
class Picture:
    """DOT text that notebooks show as a picture, or as text where nothing can draw it.

    Attributes:
        dot: the text.
    """

    dot: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        svg = _svg(self.dot)
        if svg is None:
            note = "// drawn where the program 'dot' (Debian package graphviz) or 'reshard-planner[draw]' is"
            return {"text/plain": f"{note}\n{self.dot}"}
        return {"text/plain": self.dot, "image/svg+xml": svg}


@dataclass(frozen=True, slots=True)
class SvgPicture:
    """An SVG document that notebooks show as a picture, and as text where they cannot.

    Attributes:
        svg: the document.
        text: what stands in its place.
    """

    svg: str
    text: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text, "image/svg+xml": self.svg}


def _svg(dot: str) -> str | None:
    """The picture; None where it cannot be drawn."""
    try:
        return to_svg(dot).decode()
    except InputError:
        return None


def _inline(svg: str) -> str:
    """The ``svg`` element alone, as HTML takes it."""
    return svg[svg.index("<svg") :]
