"""Reading a model's configuration: typed fields, checked as they are read, and overridden by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from reshard_planner.dtypes import canonical_dtype
from reshard_planner.errors import ModelError, SpecError

T = TypeVar("T")

TEXT: Final = "text_config"
"""Section in which configurations of models with a vision tower keep the fields of the language model."""

LISTED: Final = frozenset(
    (
        "num_hidden_layers",
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
    )
)
"""Numbers of things that are looked at one by one."""

MOST_LISTED: Final = 10_000
"""Largest of these numbers that is read, so that a wrong one cannot fill the memory."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Default of a field that a configuration or an override must give."""


NEEDED: Final = Needed()


class Config:
    """One configuration while a family reads it.

    It remembers which fields were read, so that an override that nobody reads is an error. A field stands in
    the section ``text_config`` where there is one, or beside it; where it stands in both, both must agree.

    Attributes:
        where: what errors call the configuration.
        dtype: torch's name of the element type of the parameters.
        nested: whether there is a section ``text_config``.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        where: str,
        overrides: Mapping[str, Any] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Begin to read.

        Args:
            raw: the configuration, as parsed from JSON.
            where: what errors call it.
            overrides: values that replace those of the configuration. Fields of sections are given as
                mappings or with dots, as ``linear_attn_config.num_heads``; ``text_config`` is not said.
            dtype: element type in place of the configuration's ``dtype`` or ``torch_dtype``.

        Raises:
            ModelError: if ``text_config`` is not a mapping, or there is no dtype that torch has.
        """
        text = raw.get(TEXT, {})
        if not isinstance(text, Mapping):
            raise ModelError(f"{where}: {TEXT} is {_shown(text)}; expected a mapping")
        self.where = where
        self.nested = TEXT in raw
        self._sources = (text, raw) if self.nested else (raw,)
        self._overrides = {name.removeprefix(f"{TEXT}."): value for name, value in _flat(overrides or {})}
        self._fields: dict[str, bool] = {}
        self.dtype = self._dtype(dtype)

    @property
    def fields(self) -> Mapping[str, bool]:
        """Every field read so far, by name, and whether a value had to be given."""
        return dict(self._fields)

    def count(self, name: str, default: T | Needed = NEEDED) -> int | T:
        """A whole number of at least 1."""
        value: int | T = self._read(name, default, "a whole number of at least 1", _is_count)
        self._check_listed(name, value)
        return value

    def natural(self, name: str, default: T | Needed = NEEDED) -> int | T:
        """A whole number of at least 0."""
        value: int | T = self._read(name, default, "a whole number of at least 0", _is_natural)
        self._check_listed(name, value)
        return value

    def count_or_null(self, name: str, default: T | Needed = NEEDED) -> int | T | None:
        """A whole number of at least 1, or null for what the model does not have."""
        expected = "null or a whole number of at least 1"
        value: int | T | None = self._read(name, default, expected, lambda v: v is None or _is_count(v))
        return value

    def flag(self, name: str, default: T | Needed = NEEDED) -> bool | T:
        """True or false."""
        value: bool | T = self._read(name, default, "true or false", lambda v: isinstance(v, bool))
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: T | Needed = NEEDED) -> str | T:
        """One of some known words."""
        value: str | T = self._read(name, default, _listed(choices), lambda v: v in choices)
        return value

    def words(
        self, name: str, choices: tuple[str, ...], length: int, default: T | Needed = NEEDED
    ) -> tuple[str, ...] | T:
        """A list of known words, of known length."""
        value = self._read(
            name,
            default,
            f"a list of {length}, each {_listed(choices)}",
            lambda v: isinstance(v, list) and len(v) == length and all(word in choices for word in v),
        )
        return tuple(value) if isinstance(value, list) else value

    def numbers(self, name: str, first: int, last: int, default: T | Needed = NEEDED) -> tuple[int, ...] | T:
        """A list of different whole numbers, each from ``first`` to ``last``."""
        value = self._read(
            name,
            default,
            f"a list of different whole numbers from {first} to {last}",
            lambda v: (
                isinstance(v, list)
                and all(_is_natural(number) and first <= number <= last for number in v)
                and len(set(v)) == len(v)
            ),
        )
        return tuple(value) if isinstance(value, list) else value

    def has(self, name: str) -> bool:
        """Whether the configuration or an override gives a field, with a value other than null."""
        self._fields.setdefault(name, False)
        return self._find(name) not in ((False, None), (True, None))

    def refusal(self, name: str, value: object, expected: str) -> str:
        """What is wrong with the value of a field, in one sentence."""
        return f"{self.where}: {name} is {_shown(value)}; expected {expected}"

    def notes(self) -> tuple[str, ...]:
        """One sentence for every override, after a family has read what it reads.

        Raises:
            ModelError: if an override names a field that was not read.
        """
        for name in self._overrides:
            if name not in self._fields:
                known = ", ".join(sorted(self._fields))
                raise ModelError(f"the override {name!r} is not read; this family reads {known}")
        return tuple(self._note(name, value) for name, value in self._overrides.items())

    def _note(self, name: str, value: object) -> str:
        given, before = self._given(name)
        instead = f" instead of {_shown(before)}" if given and before != value else ""
        return f"{name} is {_shown(value)}{instead}, from the override file"

    def _dtype(self, dtype: str | None) -> str:
        expected = "a torch dtype such as 'bfloat16'"
        if dtype is None:
            # transformers renamed the field; both stand in the wild
            name = "torch_dtype" if self.has("torch_dtype") and not self.has("dtype") else "dtype"
            dtype = self._read(name, NEEDED, expected, lambda v: isinstance(v, str))
        try:
            return canonical_dtype(dtype)
        except SpecError as error:
            raise ModelError(f"{self.where}: {error}") from None

    def _read(self, name: str, default: T | Needed, expected: str, fits: Any) -> Any:
        needed = isinstance(default, Needed)
        self._fields[name] = self._fields.get(name, False) or needed
        given, value = self._find(name)
        if not given and needed:
            raise ModelError(
                f"{self.where} lacks the field {name!r}; expected {expected}, there or in an override file"
            )
        if not given or (value is None and not needed):
            return default
        if not fits(value):
            raise ModelError(self.refusal(name, value, expected))
        return value

    def _check_listed(self, name: str, value: object) -> None:
        if name in LISTED and isinstance(value, int) and value > MOST_LISTED:
            raise ModelError(self.refusal(name, value, f"at most {MOST_LISTED}"))

    def _find(self, name: str) -> tuple[bool, Any]:
        if name in self._overrides:
            return True, self._overrides[name]
        return self._given(name)

    def _given(self, name: str) -> tuple[bool, Any]:
        """Whether the configuration itself gives a field, and its value."""
        found = [value for source in self._sources for value in _values(source, name.split("."))]
        for value in found[1:]:
            if value != found[0]:
                raise ModelError(
                    f"{self.where}: {name} is {_shown(found[0])} within {TEXT} and {_shown(value)} outside;"
                    " expected the same"
                )
        return (True, found[0]) if found else (False, None)


def _values(source: Mapping[str, Any], steps: list[str]) -> list[Any]:
    value: Any = source
    for step in steps:
        if not isinstance(value, Mapping) or step not in value:
            return []
        value = value[step]
    return [value]


def _flat(overrides: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Fields of sections under their dotted names."""
    found = []
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> bool:
    return _is_natural(value) and value != 0


def _listed(choices: tuple[str, ...]) -> str:
    return " or ".join(repr(choice) for choice in choices)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
