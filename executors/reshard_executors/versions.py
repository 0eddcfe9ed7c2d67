"""Versions: which weights the destinations of one rank hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from reshard_executors.arguments import as_integer
from reshard_planner.errors import InputError

Version = int | None
"""Number of the refit that filled a destination; 0 if none did, None from a first write to the last."""

MOST: Final = 2**62
"""The highest version; ranks compare numbers of 64 bits."""


class Versions:
    """The versions of one rank's destinations, by name of the tensor."""

    def __init__(
        self, names: Iterable[str], known: Mapping[str, Version] | None = None, latest: int = 0
    ) -> None:
        """Begin with what is known.

        Args:
            names: tensors of which the rank stores a part.
            known: versions that some of them have; others have 0. Further names are passed over.
            latest: the highest number that has been given, if not one of these.

        Raises:
            InputError: if a version is no integer from 0 on, nor None.
        """
        known = {} if known is None else known
        if not isinstance(known, Mapping):
            raise InputError(f"versions is a {type(known).__name__}; expected a mapping of names")
        numbers: dict[str, Version] = {}
        for name, version in known.items():
            numbers[name] = None if version is None else as_integer(version, 0, MOST)
            if version is not None and numbers[name] is None:
                raise InputError(
                    f"versions has {version!r} for {name!r}; expected an integer from 0 to {MOST}, or None"
                )
        self._held = {name: numbers.get(name, 0) for name in names}
        number = as_integer(latest, 0, MOST)
        if number is None:
            raise InputError(f"latest_version is {latest!r}; expected an integer from 0 to {MOST}")
        self._latest = max([number, *(version or 0 for version in numbers.values())])

    @property
    def held(self) -> Mapping[str, Version]:
        """Versions by name, as they are at any time."""
        return MappingProxyType(self._held)

    @property
    def latest(self) -> int:
        """The highest number that has been given."""
        return self._latest

    @property
    def torn(self) -> bool:
        """Whether any destination may be partly written."""
        return None in self._held.values()

    def begin(self, names: Iterable[str], version: int) -> None:
        """Mark destinations before the first write of a refit; its number is not given again."""
        self._set(names, None)
        self._latest = max(self._latest, version)

    def hold(self, names: Iterable[str], version: int) -> None:
        """Mark destinations after the last write."""
        self._set(names, version)

    def _set(self, names: Iterable[str], version: Version) -> None:
        self._held.update((name, version) for name in names if name in self._held)


def version_of(given: object) -> Version:
    """The version that a caller gives a refit; None without one.

    Raises:
        InputError: if it is no integer of at least 1.
    """
    number = None if given is None else as_integer(given, 1, MOST)
    if given is not None and number is None:
        raise InputError(f"version is {given!r}; expected an integer from 1 to {MOST}")
    return number


def next_version(latest: int) -> int:
    """The version after all that were given.

    Raises:
        InputError: if there is none.
    """
    if latest >= MOST:
        raise InputError(
            f"the latest version is {latest}, the highest there is; expected version= to be given"
        )
    return latest + 1
