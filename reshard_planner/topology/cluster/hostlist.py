"""Host lists as Slurm writes them: ``n[01-04,07],m3`` stands for n01, n02, n03, n04, n07 and m3.

Numbers keep their leading zeros: each has at least the digits of the first of its range. A name may have
several brackets, of which the last runs fastest, and, unlike in Slurm, text after them. Commas separate
names; empty items are passed over. The boxes and letters of systems with more than one dimension
(``bgq[000x113]``) are refused. Grammar: slurm.conf(5), section on node names, and the reader of Slurm itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NoReturn

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.model import MAX_NAME
from reshard_planner.topology.wording import quote

MAX_HOSTS = 2**17
"""Most names that a list may stand for."""

_BETWEEN = ", \t\r\n"
_SEPARATOR = re.compile(r"\s*+(?:,[,\s]*+|\Z)")
_ITEM = re.compile(r"(?:[^,\s\[\]]++|\[[^\[\]]*+\])++")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", re.ASCII)
_TAIL = re.compile(r"\d{1,18}\Z", re.ASCII)
_UNFIT = re.compile(r"[,\[\]\s]")


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names that a host list stands for, in its order; a name given twice stands there twice.

    Raises:
        TopologyError: if there is no name, brackets do not match, a range is none or runs backwards, a name
            is too long, or there are too many.

    >>> expand_hosts("n[01-03],m3")
    ('n01', 'n02', 'n03', 'm3')
    """
    names: list[str] = []
    for item in _split(text):
        if "[" in item:
            names.extend(_expand(item, text, MAX_HOSTS - len(names)))
        else:
            names.append(_checked(item, text))
        if len(names) > MAX_HOSTS:
            _refuse_many(text)
    return tuple(names)


def fold_hosts(names: Iterable[str]) -> str:
    """A host list of the names, in their order; the reverse of :func:`expand_hosts`.

    Names that follow one another and differ in their last number alone share a bracket, also where another
    order of the names would give a shorter list.

    Raises:
        TopologyError: if a name is empty or longer than 256 characters, or has a comma, a bracket or a space,
            which host lists cannot hold.

    >>> fold_hosts(["n01", "n02", "n03", "m3"])
    'n[01-03],m3'
    """
    groups: list[tuple[str, list[list[str]]]] = []
    for name in names:
        if not _is_fit(name):
            raise TopologyError(
                f"host name {quote(name, 60)} cannot stand in a host list; expected 1 to {MAX_NAME}"
                " characters without comma, bracket or space"
            )
        match = _TAIL.search(name, max(0, len(name) - 18))
        if match is None:
            groups.append((name, []))
            continue
        prefix, number = name[: match.start()], match[0]
        if groups and groups[-1][1] and groups[-1][0] == prefix:
            runs = groups[-1][1]
            if number == _next(runs[-1][1]):
                runs[-1][1] = number
            else:
                runs.append([number, number])
        else:
            groups.append((prefix, [[number, number]]))
    return ",".join(_folded(prefix, runs) for prefix, runs in groups)


def brief_names(names: Iterable[str]) -> str:
    """A few names for a sentence: all of them as a host list, or its beginning and how many there are.

    They may be those of anything; what host lists cannot hold stands after the others, in quotes.

    >>> brief_names(f"n{number}" for number in range(9))
    'n[0-8]'
    >>> brief_names(["n1", "rack 7"])
    "n1,'rack 7'"
    """
    given = list(names)
    looked_at = given[:1000]
    folded = fold_hosts(filter(_is_fit, looked_at))
    others = [quote(name) for name in looked_at if not _is_fit(name)]
    brief = ",".join((*([folded] if folded else ()), *others)) or "none"
    if len(brief) <= 80 and len(given) == len(looked_at):
        return brief
    return f"{brief[:60]}... ({len(given)} in all)"


def _is_fit(name: str) -> bool:
    """Whether a host list can hold the name."""
    return 0 < len(name) <= MAX_NAME and _UNFIT.search(name) is None


def _next(number: str) -> str:
    """The number after, with as many digits at least."""
    return str(int(number) + 1).zfill(len(number))


def _folded(prefix: str, runs: list[list[str]]) -> str:
    if not runs:
        return prefix
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        return prefix + runs[0][0]
    return f"{prefix}[{','.join(lo if lo == hi else f'{lo}-{hi}' for lo, hi in runs)}]"


def _split(text: str) -> Iterator[str]:
    """The items between commas that stand outside brackets."""
    position = len(text) - len(text.lstrip(_BETWEEN))
    if position == len(text):
        raise TopologyError(f"host list {quote(text, 60)} names nothing; expected a name at least")
    while position < len(text):
        item = _ITEM.match(text, position)
        separator = None if item is None else _SEPARATOR.match(text, item.end())
        if item is None or separator is None:
            spaced = item is not None and text[item.end()].isspace()
            problem = "a space between names; expected commas" if spaced else "brackets that do not match"
            raise TopologyError(f"host list {quote(text, 60)} has {problem}")
        yield item[0]
        position = separator.end()


def _expand(item: str, text: str, limit: int) -> Iterator[str]:
    choices: list[list[str]] = []
    count = 1
    for match in _PART.finditer(item):
        choices.append([match[2]] if match[2] else _numbers(match[1], text, limit))
        count *= len(choices[-1])
        if count > limit:
            _refuse_many(text)
    _checked("".join(max(choice, key=len) for choice in choices), text)
    return map("".join, product(*choices))


def _numbers(bracket: str, text: str, limit: int) -> list[str]:
    found: list[str] = []
    for part in bracket.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise TopologyError(
                f"host list {quote(text, 60)} has {quote(part, 60)} in brackets; expected a number or a range"
                " such as 01-16"
            )
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise TopologyError(
                f"host list {quote(text, 60)} has the range {part.strip()}, which runs backwards"
            )
        if int(last) - int(first) + len(found) >= limit:
            _refuse_many(text)
        found.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return found


def _checked(name: str, text: str) -> str:
    if len(name) > MAX_NAME:
        raise TopologyError(
            f"host list {quote(text, 60)} has a name of {len(name)} characters; expected at most {MAX_NAME}"
        )
    return name


def _refuse_many(text: str) -> NoReturn:
    raise TopologyError(f"host list {quote(text, 60)} stands for more than {MAX_HOSTS} names")
