"""Damage to texts that machines print: cut, copied, edited and garbled files. Seeded, by named kinds."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SAMPLES = Path(__file__).parent / "data" / "topology"

_JUNK = (
    "\n<<<<<<< HEAD\n",
    "Killed\n",
    "slurmstepd: error: *** STEP 12.0 CANCELLED ***\n",
    "<!-- ",
    "]]>",
    "</",
    "{[(\"'",
    "\t\t\t",
    "\ufffd\ufffd",
    "\U0001f680",
    "\ud800",
    "A" * 5000,
    "0x",
)
_HUGE = (
    "9" * 30,
    "-1",
    "0",
    "1e308",
    "NaN",
    "18446744073709551616",
    "4294967295",
    "-" + "9" * 20,
    "9" * 5000,
)
_CONTROL = ("\x00", "\x07", "\x1b[31m", "\x7f", "\r", "\x85", "\u2028", "\ufeff")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Damage:
    """One damaged text: its kind, and the text."""

    kind: str
    text: str


def _place(text, rng):
    return rng.randrange(len(text) + 1)


def _block(lines, rng):
    first = rng.randrange(len(lines))
    return first, min(len(lines), first + rng.randint(1, 12))


def _delete_line(lines, rng):
    at = rng.randrange(len(lines))
    return "".join(lines[:at] + lines[at + 1 :])


def _delete_block(lines, rng):
    first, last = _block(lines, rng)
    return "".join(lines[:first] + lines[last:])


def _repeat_line(lines, rng):
    at = rng.randrange(len(lines))
    return "".join(lines[: at + 1] + lines[at:])


def _repeat_block(lines, rng):
    first, last = _block(lines, rng)
    return "".join(lines[:last] + lines[first:last] * rng.randint(1, 3) + lines[last:])


def _swap_lines(lines, rng):
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines = list(lines)
    lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines)


def _move_block(lines, rng):
    first, last = _block(lines, rng)
    rest = lines[:first] + lines[last:]
    at = rng.randrange(len(rest) + 1)
    return "".join(rest[:at] + lines[first:last] + rest[at:])


def _flip_byte(lines, rng):
    text = "".join(lines)
    at = rng.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ (1 << rng.randrange(7))) + text[at + 1 :]


def _drop_character(lines, rng):
    text = "".join(lines)
    at = rng.randrange(len(text))
    return text[:at] + text[at + 1 :]


def _truncate(lines, rng):
    text = "".join(lines)
    return text[: rng.randrange(len(text))]


def _insert_junk(lines, rng):
    text = "".join(lines)
    at = _place(text, rng)
    return text[:at] + rng.choice(_JUNK) + text[at:]


def _insert_control(lines, rng):
    text = "".join(lines)
    at = _place(text, rng)
    return text[:at] + rng.choice(_CONTROL) + text[at:]


def _huge_number(lines, rng):
    at = rng.choice([at for at, line in enumerate(lines) if _NUMBER.search(line)])
    number = rng.choice(list(_NUMBER.finditer(lines[at])))
    line = lines[at][: number.start()] + rng.choice(_HUGE) + lines[at][number.end() :]
    return "".join([*lines[:at], line, *lines[at + 1 :]])


def _empty(lines, rng):
    return rng.choice(("", "\n", " \n\t\n", "\ufeff", lines[0]))


KINDS = {
    "delete line": _delete_line,
    "delete block": _delete_block,
    "repeat line": _repeat_line,
    "repeat block": _repeat_block,
    "swap lines": _swap_lines,
    "move block": _move_block,
    "flip byte": _flip_byte,
    "drop character": _drop_character,
    "truncate": _truncate,
    "insert junk": _insert_junk,
    "control character": _insert_control,
    "huge number": _huge_number,
    "empty": _empty,
}


def damages(text: str, count: int, seed: int = 0) -> Iterator[Damage]:
    """Texts damaged once each, all kinds in turn; equal arguments give equal texts."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    lines = text.splitlines(keepends=True)
    kinds = list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        yield Damage(kind, KINDS[kind](lines, rng))
