"""Parallelism as one line of text: a framework and its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reshard_planner.dtypes import canonical_dtype, is_castable
from reshard_planner.errors import SpecError
from reshard_planner.intset import parse_ints
from reshard_planner.models.fsdp import Fsdp
from reshard_planner.models.megatron import Megatron
from reshard_planner.models.patterns import Patterns
from reshard_planner.models.placed import Parallelism
from reshard_planner.models.vllm import Vllm


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 7 or not int(text):
        raise SpecError("expected an integer of at least 1")
    return int(text)


def _count(text: str) -> int:
    return 0 if text == "0" else _size(text)


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise SpecError("expected true or false")
    return text == "true"


def _ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = tuple(parse_ints(text))
    except ValueError as error:
        raise SpecError(f"expected ranks such as 0-7 ({error})") from None
    if len(set(ranks)) < len(ranks):
        raise SpecError("expected every rank once")
    return ranks


def _dtype(text: str) -> str:
    dtype = canonical_dtype(text)
    if not is_castable(dtype, dtype):
        raise SpecError("expected a real floating-point type, as parameters are converted to it")
    return dtype


_COMMON: dict[str, Callable[[str], Any]] = {"dtype": _dtype, "gpus": _size, "ranks": _ranks}

_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "megatron": {
        **dict.fromkeys(("tp", "cp", "ep", "etp", "dp", "pp", "vpp", "first", "last"), _size),
        "grouped": _flag,
        "pad": _size,
        **_COMMON,
    },
    "vllm": {
        **dict.fromkeys(("tp", "dp", "ep"), _size),
        "redundant": _count,
        "expert_placement": str,
        **_COMMON,
    },
    "fsdp": {**dict.fromkeys(("dp", "tp", "replicas"), _size), **_COMMON},
    "plain": {"file": Path, "dtype": _dtype, "ranks": _ranks},
}
"""Per framework its options, each with what reads its value."""

FRAMEWORKS = tuple(_OPTIONS)


def parse_parallelism(text: str, field: str) -> Parallelism:
    """Read a framework and its options, such as ``megatron tp=4 pp=8 ep=16``.

    Args:
        text: the framework, then options ``key=value`` in any order.
        field: where the text stands, for errors.

    Raises:
        SpecError: naming field, option, value and what would be right.
    """
    framework, *rest = text.split() or [""]
    if framework not in _OPTIONS:
        raise SpecError(f"{field} is {text!r}; expected one of {', '.join(FRAMEWORKS)} and its options")
    known = _OPTIONS[framework]
    options: dict[str, Any] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise SpecError(
                f"{field}: {framework} has no option {word!r}; expected {', '.join(known)}, each as key=value"
            )
        if key in options:
            raise SpecError(f"{field}: {framework} {key} is given twice; expected it once")
        try:
            options[key] = known[key](value)
        except SpecError as error:
            raise SpecError(f"{field}: {framework} {key} is {value!r}; {error}") from None
    try:
        return _build(framework, options)
    except SpecError as error:
        raise SpecError(f"{field}: {error}") from None


def _build(framework: str, options: dict[str, Any]) -> Parallelism:
    if framework == "megatron":
        return Megatron(**options)
    if framework == "vllm":
        return Vllm(**options)
    if framework == "fsdp":
        return Fsdp(**options)
    if "file" not in options:
        raise SpecError("plain lacks the option file; expected file=PATH of a file of patterns")
    return Patterns.load(options["file"], options.get("dtype"), options.get("ranks"))
