"""Versions: which weights the destinations of one rank hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from reshard_planner.errors import InputError

Version = int | None
"""Number of the refit that filled a destination; 0 if none did, None from a first write to the last."""


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
            InputError: if a version is no number of at least 0, nor None.
        """
        known = {} if known is None else known
        if not isinstance(known, Mapping):
            raise InputError(f"versions is a {type(known).__name__}; expected a mapping of names")
        for name, version in known.items():
            if version is not None and (not _is_number(version) or version < 0):
                raise InputError(
                    f"versions has {version!r} for {name!r}; expected an integer of at least 0, or None"
                )
        self._held: dict[str, Version] = {name: known.get(name, 0) for name in names}
        if not _is_number(latest) or latest < 0:
            raise InputError(f"latest_version is {latest!r}; expected an integer of at least 0")
        self._latest = max([latest, *(version or 0 for version in known.values())])

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


def check_version(version: object) -> None:
    """Check a version that a caller gives a refit.

    Raises:
        InputError: if it is no integer of at least 1.
    """
    if version is not None and (not _is_number(version) or version < 1):  # type: ignore[operator]  # a number
        raise InputError(f"version is {version!r}; expected an integer of at least 1")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
