"""``symbolic [SPEC]``: closed forms of what a layout pair costs, with values where numbers are given."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.render.symbolic import symbolic_text
from reshard_planner.render.text import plain
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.spec.values import MAX_LAG, MAX_NBYTES
from reshard_planner.symbolic import (
    QUANTITIES,
    Case,
    Crossover,
    Evaluation,
    Form,
    Side,
    all_forms,
    case_of,
    count_classes,
    crossovers,
    evaluate,
)
from reshard_planner.symbolic.case import MAX_ALPHA_S, MAX_RATE
from reshard_planner.symbolic.evaluate import MAX_ROUNDS
from reshard_planner.symbolic.form import Number
from reshard_planner.topology.model import NIC_LINK, NVLINK_LINK

SHARDING = ("tp", "ep")
"""Axes that cut a dimension each."""

_EXPECTED = "tp=4,dp=2"

_SIZE = re.compile(r"[1-9][0-9]{0,6}")

_NUMBER = re.compile(r"[0-9]{1,25}(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?")

_RATE = re.compile(r"[0-9]{1,25}(\.[0-9]{1,9})? ?[A-Za-z]+")
"""A rate with a unit, such as 12.5GB; one without is a number."""

_PAIR_OPTIONS: dict[str, str] = {
    "nbytes": "1GiB",
    "gpus_per_domain": "8",
    "nic": str(NIC_LINK.bytes_per_s),
    "nvlink": str(NVLINK_LINK.bytes_per_s),
    "neighbours": "0",
    "alpha": str(NIC_LINK.latency_s),
    "lag": "2",
}
"""Options that describe the pair of ``--src`` and ``--dst``, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("spec", metavar="SPEC", type=Path, nargs="?", help="spec file whose numbers to use")
    parser.add_argument("--src", metavar="AXES", help="layout before, such as tp=4,dp=2 or ep=8,pp=2")
    parser.add_argument("--dst", metavar="AXES", help="layout after, such as tp=2,dp=4")
    parser.add_argument("--nbytes", metavar="SIZE", help="all tensors together (default 1GiB)")
    parser.add_argument(
        "--gpus-per-domain",
        metavar="N[,N]",
        help="GPUs of a domain, of the source and then of the destination where they differ (default 8)",
    )
    parser.add_argument(
        "--nic", metavar="RATE[,RATE]", help="NIC of a GPU in bytes per second, such as 12.5GB (default 50e9)"
    )
    parser.add_argument("--nvlink", metavar="RATE[,RATE]", help="likewise, NVLink (default 450e9)")
    parser.add_argument(
        "--neighbours",
        metavar="N",
        help="GPUs of each domain of the destination that need nothing (default 0)",
    )
    parser.add_argument("--alpha", metavar="S", help="start-up time of a slot (default 15e-6)")
    parser.add_argument("--lag", metavar="N", help="slots from a transfer to the next (default 2)")
    parser.add_argument("--rounds", metavar="K", help="rounds (default: as many as pay)")
    parser.add_argument("--latex", action="store_true", help="print formulas in LaTeX")


def run(arguments: argparse.Namespace) -> int:
    """Print the forms, with values if a spec or a layout pair is given."""
    case = _case(arguments)
    if case is None and arguments.rounds is not None:
        raise InputError("--rounds is given without numbers; expected SPEC, or --src and --dst")
    rounds = None if arguments.rounds is None else _whole(arguments.rounds, "--rounds", 1, MAX_ROUNDS)
    found = None if case is None else evaluate(case, rounds)
    if arguments.json:
        print_json(_plain(found))
    else:
        print_text(symbolic_text(found, latex=arguments.latex))
    return 0


def _case(arguments: argparse.Namespace) -> Case | None:
    """The layout pair that the arguments describe, if they do.

    Raises:
        InputError: if an option is wrong, or options contradict one another.
    """
    given = [name for name in ("src", "dst", *_PAIR_OPTIONS) if getattr(arguments, name) is not None]
    if arguments.spec is not None:
        if given:
            raise InputError(f"{_option(given[0])} contradicts {arguments.spec}; expected one of the two")
        spec = ReshardSpec.load(arguments.spec)
        try:
            return case_of(spec)
        except InputError as error:
            raise type(error)(f"{error}; --src and --dst give a pair by hand") from None
    if arguments.src is None or arguments.dst is None:
        if given:
            raise InputError(f"{_option(given[0])} is given without a pair; expected --src and --dst besides")
        return None
    options = {
        name: default if getattr(arguments, name) is None else getattr(arguments, name)
        for name, default in _PAIR_OPTIONS.items()
    }
    nbytes, alpha_s = _nbytes(options["nbytes"]), _alpha(options["alpha"])
    lag = _whole(options["lag"], "--lag", 1, MAX_LAG)
    src, dst = (parse_axes(getattr(arguments, side), f"--{side}") for side in ("src", "dst"))
    if "pp" in dst:
        raise InputError(f"--dst has pp={dst['pp']}; expected stages in --src only")
    gpus = _two(options["gpus_per_domain"], "--gpus-per-domain", _gpus)
    nics, nvlinks = (_two(options[name], f"--{name}", _rate) for name in ("nic", "nvlink"))
    neighbours = _whole(options["neighbours"], "--neighbours", 0, gpus[1] - 1)
    sides = []
    for option, axes, size, nic, nvlink in zip(
        ("--src", "--dst"), (src, dst), (gpus[0], gpus[1] - neighbours), nics, nvlinks, strict=True
    ):
        try:
            side = Side.packed(_shards(axes), axes.get("dp", 1), size, nic, nvlink)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None
        sides.append(side)
    cut = [{name: axes[name] for name in SHARDING if name in axes} for axes in (src, dst)]
    try:
        return Case(
            nbytes=nbytes,
            src=sides[0],
            dst=sides[1],
            classes=count_classes(*cut),
            stages=src.get("pp", 1),
            neighbours=neighbours,
            alpha_s=alpha_s,
            lag=lag,
        )
    except InputError as error:  # of how the two fit, or of all stages
        raise InputError(
            f"--src {plain(arguments.src)!r} and --dst {plain(arguments.dst)!r}: {error}"
        ) from None


def parse_axes(given: str, option: str) -> dict[str, int]:
    """Sizes of the axes of one side.

    Args:
        given: such as ``tp=4,dp=2``; also parted by spaces.
        option: what to call it in errors.

    Raises:
        InputError: if an axis is unknown, given twice, or no positive integer.

    >>> parse_axes("tp=4,dp=2", "--src")
    {'tp': 4, 'dp': 2}
    """
    axes: dict[str, int] = {}
    for word in given.replace(",", " ").split():
        name, _, size = word.partition("=")
        if name not in (*SHARDING, "dp", "pp") or name in axes or not _SIZE.fullmatch(size):
            raise InputError(
                f"{option} has {plain(word)!r}; expected sizes of tp, ep, dp and pp, each once, such as"
                f" {_EXPECTED}"
            )
        axes[name] = int(size)
    if not axes:
        raise InputError(f"{option} is empty; expected axes such as {_EXPECTED}")
    return axes


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shards(axes: Mapping[str, int]) -> int:
    shards = 1
    for name in SHARDING:
        shards *= axes.get(name, 1)
    return shards


def _whole(given: str, option: str, least: int, most: int) -> int:
    """A whole number, also as ``50e9``.

    Raises:
        InputError: naming the option, if it is none, or out of range.
    """
    # an exponent without limit would take for ever to write out
    value = Fraction(given) if _NUMBER.fullmatch(given) else None
    if value is None or value.denominator > 1 or not least <= value <= most:
        raise InputError(f"{option} is {plain(given)!r}; expected a whole number from {least} to {most}")
    return int(value)


def _two(given: str, option: str, read: Callable[[str, str], int]) -> tuple[int, int]:
    """One or two values, of the source and of the destination."""
    words = given.split(",")
    if len(words) > 2:
        raise InputError(f"{option} is {plain(given)!r}; expected one value, or two parted by a comma")
    values = [read(word, option) for word in words]
    return values[0], values[-1]


def _gpus(given: str, option: str) -> int:
    return _whole(given, option, 1, MAX_RANK)


def _rate(given: str, option: str) -> int:
    """Bytes per second, as ``50e9`` or ``50GB``.

    Raises:
        InputError: naming the option, if it is no rate, or out of range.
    """
    try:
        if _RATE.fullmatch(given) is None:
            return _whole(given, option, 1, MAX_RATE)
        rate = parse_nbytes(given, option)
    except InputError:
        rate = 0
    if not 1 <= rate <= MAX_RATE:
        raise InputError(
            f"{option} is {plain(given)!r}; expected bytes per second: a whole number from 1 to {MAX_RATE},"
            " or one with a unit, such as 12.5GB"
        )
    return rate


def _alpha(given: str) -> float:
    value = float(given) if _NUMBER.fullmatch(given) else 0.0
    if not 0 < value < MAX_ALPHA_S:
        raise InputError(
            f"--alpha is {plain(given)!r}; expected a time in seconds above 0 and below {MAX_ALPHA_S}"
        )
    return value


def _nbytes(given: str) -> int:
    nbytes = parse_nbytes(given, "--nbytes")
    if not 1 <= nbytes <= MAX_NBYTES:
        raise InputError(f"--nbytes is {plain(given)!r}; expected 1 to {MAX_NBYTES} bytes")
    return nbytes


def _plain(found: Evaluation | None) -> dict[str, Any]:
    """The same in plain JSON types; values are null where there are none."""
    return {
        "quantities": [
            {
                "name": quantity.name,
                "latex": quantity.latex,
                "meaning": quantity.meaning,
                "unit": quantity.unit,
                "value": None if found is None else _number(found.numbers.get(quantity.name)),
            }
            for quantity in QUANTITIES
        ],
        "forms": [_plain_form(form, found) for form in all_forms()],
        "crossovers": [_plain_crossover(crossover, found) for crossover in crossovers()],
    }


def _plain_form(form: Form, found: Evaluation | None) -> dict[str, Any]:
    return {
        "name": form.name,
        "meaning": form.meaning,
        "unit": form.unit,
        "holds": form.holds,
        "formula": form.text,
        "latex": form.latex,
        "cuts": list(form.cuts),
        "value": None if found is None else _number(found.values[form.name]),
    }


def _plain_crossover(crossover: Crossover, found: Evaluation | None) -> dict[str, Any]:
    applies = None if found is None else crossover.applies(found.numbers)
    return {
        "name": crossover.name,
        "question": crossover.question,
        "holds": crossover.holds,
        "condition": crossover.text,
        "latex": crossover.latex,
        "quantity": crossover.quantity,
        "pays": crossover.pays,
        "applies": applies,
        "value": _number(crossover.value(found.numbers)) if found is not None and applies else None,
        "is_met": crossover.is_met(found.numbers) if found is not None and applies else None,
    }


def _number(value: Number | None) -> int | float | None:
    if value is None:
        return None
    fraction = Fraction(value)
    return int(fraction) if fraction.denominator == 1 else float(value)


VERB = Verb(
    "symbolic",
    "print closed forms of what a layout pair costs, and where what pays",
    """\
Print the least payload, the terms of T*, both baselines and rounds as formulas, and the conditions under
which fan-out, relays, splitting, lent NICs and more rounds pay. With a spec, or with --src and --dst, print
what they are for its numbers. docs/symbolic.md says for which pairs they hold; others are refused.""",
    """\
examples:
  reshard-planner symbolic
  reshard-planner symbolic spec.yaml
  reshard-planner symbolic --src tp=4 --dst tp=2,dp=2 --gpus-per-domain 4
  reshard-planner symbolic --src ep=16,pp=2 --dst tp=8,dp=4 --nbytes 64GB --nic 50GB --json
  reshard-planner symbolic --src tp=8 --dst tp=4,dp=16 --gpus-per-domain 8,64 --nvlink 450e9,900e9 --latex

axes of --src and --dst, with sizes, 1 unless given:
  tp, ep   shards; each of the two cuts a dimension of its own, the same on both sides
  dp       replicas, one after another
  pp       stages of the source, each with tensors of its own
""",
    add_arguments,
    run,
)
