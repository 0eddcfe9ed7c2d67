"""XML that anybody may have written: no entities, no DTD, and limits on size.

Whatever declares something is refused before it is parsed: expat never sees what could make a small text
large, or name another file.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, ParseError, XMLParser

from reshard_planner.errors import TopologyError

MAX_CHARS = 2**24
"""Longest text of one document."""

MAX_ELEMENTS = 500_000
"""Most elements of one document; tags and comments are counted, so that it holds before anything is built."""

_PROLOG = re.compile(r"\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*>", re.DOTALL)
_ROOT = re.compile(r"<([A-Za-z_][\w.-]*)")
_SUBSET = re.compile(r"<!DOCTYPE[^<>\[]*\[")
_ENTITY = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);|#)")


def root_name(text: str) -> str | None:
    """Name of the outermost element, as the beginning of the text has it; None where it is not XML.

    >>> root_name("<?xml version='1.0'?><!-- a <b/> --><system version='1'>")
    'system'
    """
    at = 1 if text.startswith("\ufeff") else 0
    while match := _PROLOG.match(text, at):
        at = match.end()
    root = _ROOT.match(text, at)
    return root[1] if root is not None else None


def parse_xml(text: str, what: str) -> Element:
    """The outermost element of one document; ``what`` names it in errors.

    Raises:
        TopologyError: if it is no XML, ends early, declares entities, or is too large.
    """
    if len(text) > MAX_CHARS:
        raise TopologyError(f"{what} has {len(text)} characters; expected at most {MAX_CHARS}")
    if not text.strip("\ufeff \t\r\n"):
        raise TopologyError(f"{what} is empty")
    if "<!ENTITY" in text or _SUBSET.search(text):
        raise TopologyError(f"{what} declares entities or other types of its own; expected XML without any")
    # Where a DTD could have declared an entity, expat drops it from attributes without a word.
    if "<!DOCTYPE" in text and (entity := _ENTITY.search(text)):
        line = text.count("\n", 0, entity.start()) + 1
        raise TopologyError(f"{what} refers to an entity in line {line}; expected XML without any")
    if (count := text.count("<") // 2) > MAX_ELEMENTS:
        raise TopologyError(f"{what} has some {count} elements; expected at most {MAX_ELEMENTS}")
    parser = XMLParser()  # noqa: S314 - see the module's docstring
    try:
        parser.feed(text)
        return parser.close()
    except ParseError as error:
        line, _ = error.position
        reason = str(error).partition(":")[0]
        raise TopologyError(f"{what} is cut off or damaged: {reason} in line {line}") from None
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise TopologyError(f"{what} is damaged: line {line} has a character that is none") from None


def stray_text(element: Element) -> str:
    """The first text beside the children of an element, such as what is left of a tag without its ``<``."""
    for text in (element.text, *(child.tail for child in element)):
        if text is not None and (stray := text.strip()):
            return stray
    return ""
