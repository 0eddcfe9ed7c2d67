"""From DOT to picture files, by the graphviz program ``dot``."""

from __future__ import annotations

from pathlib import Path

import graphviz

from reshard_planner.errors import InputError
from reshard_planner.ir.file import write_atomically

TEXT_SUFFIXES = (".dot", ".gv")
"""Suffixes of files that hold DOT itself."""

IMAGE_SUFFIXES = (".svg", ".png", ".pdf")
"""Suffixes of files that ``dot`` draws."""


def to_svg(dot: str, image_format: str = "svg") -> bytes:
    """Draw DOT text.

    Args:
        dot: the text.
        image_format: ``svg``, ``png`` or ``pdf``.

    Raises:
        InputError: if the program ``dot`` is not installed, or cannot draw this.
    """
    try:
        image: bytes = graphviz.pipe("dot", image_format, dot.encode(), quiet=True)
    except graphviz.ExecutableNotFound:
        raise InputError(
            f"the program 'dot' was not found, which draws {image_format.upper()}: install graphviz (Debian"
            " package graphviz), or write a .dot file, which needs no program"
        ) from None
    except graphviz.CalledProcessError as error:
        reason = next(iter(error.stderr.decode(errors="replace").splitlines()), "no reason given")
        raise InputError(
            f"the program 'dot' cannot draw {image_format.upper()}: {reason}; a .dot file needs no program"
        ) from None
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
