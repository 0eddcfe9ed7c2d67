"""Which devices of several sources are one, by what they have in common, whatever the sources' order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from reshard_planner.topology.cluster.model import Gpu, HostNic

Device = TypeVar("Device", Gpu, HostNic)

GPU_KEYS = ("uuid", "bus")
"""What tells GPUs of a host apart, the surest first."""

NIC_KEYS = ("guid", "name", "bus")
"""What tells NICs of a host apart."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Which devices are one.

    Attributes:
        numbers: of the devices of each source, in order of first appearance; those that are one have one.
        guessed: positions of devices that are taken to be one with others by their position alone, though
            both have keys, or sources list them in different orders.
    """

    numbers: list[list[int]]
    guessed: tuple[int, ...]


def match_devices(
    sources: Sequence[Sequence[Device]], keys: Sequence[str], *, by_position: bool = False
) -> Matches:
    """Number the devices of a host so that those which are one have one number.

    Two devices of different sources are one if they agree in a key, directly or through devices of other
    sources; surer keys go first, and two devices of one source are never one.

    Args:
        sources: the devices as each source lists them.
        keys: names of text fields, the surest first. A value that a source gives to several devices does not
            tell them apart, and is not used.
        by_position: whether devices that no key tells are those at the same position of the first source that
            lists any, unless a key says that they differ.
    """
    groups = _Groups(sources)
    for key in keys:
        for source, devices in enumerate(sources):
            values = Counter(getattr(device, key) for device in devices)
            for position, device in enumerate(devices):
                value = getattr(device, key)
                if value and values[value] == 1:
                    groups.join_at((key, value), (source, position))
    guessed: dict[int, None] = {}
    if by_position:
        first = next((source for source, devices in enumerate(sources) if devices), 0)
        for source in range(first + 1, len(sources)):
            for position in range(min(len(sources[first]), len(sources[source]))):
                mine, theirs = sources[first][position], sources[source][position]
                if any(_differ(mine, theirs, key) for key in keys):
                    continue
                joined = groups.join((first, position), (source, position))
                keyed = all(any(getattr(each, key) for key in keys) for each in (mine, theirs))
                if joined and (keyed or groups.moves((first, position))):
                    guessed[position] = None
    return Matches(groups.numbers(), tuple(guessed))


def _differ(mine: Device, theirs: Device, key: str) -> bool:
    ours, other = getattr(mine, key), getattr(theirs, key)
    return bool(ours and other and ours != other)


Place = tuple[int, int]
"""Source and position of a device."""


class _Groups:
    """Sets of devices, at most one of each source in a set."""

    def __init__(self, sources: Sequence[Sequence[object]]) -> None:
        self.sizes = [len(devices) for devices in sources]
        self.root = {(s, p): (s, p) for s, size in enumerate(self.sizes) for p in range(size)}
        self.members = {place: [place] for place in self.root}
        self.at: dict[tuple[str, str], Place] = {}

    def join_at(self, key: tuple[str, str], place: Place) -> None:
        """Join a device with the one that had this value of this key before."""
        self.join(self.at.setdefault(key, place), place)

    def join(self, one: Place, other: Place) -> bool:
        """Make one set of two, unless they are one already, or a source has devices in both."""
        mine, theirs = self.root[one], self.root[other]
        if mine == theirs:
            return False
        if {source for source, _ in self.members[mine]} & {source for source, _ in self.members[theirs]}:
            return False
        for place in self.members[theirs]:
            self.root[place] = mine
        self.members[mine] += self.members.pop(theirs)
        return True

    def moves(self, place: Place) -> bool:
        """Whether sources have the device of a set at different positions."""
        return len({position for _, position in self.members[self.root[place]]}) > 1

    def numbers(self) -> list[list[int]]:
        """The number of each device, in order of first appearance."""
        known: dict[Place, int] = {}
        return [
            [known.setdefault(self.root[source, position], len(known)) for position in range(size)]
            for source, size in enumerate(self.sizes)
        ]
