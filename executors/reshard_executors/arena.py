"""An arena: places in one block of memory, given out and taken back before the block is made."""

from __future__ import annotations

from bisect import insort


class Arena:
    """Gives out the lowest place that is free and large enough.

    Attributes:
        nbytes: size that the block must have for all places given out so far.
    """

    def __init__(self, alignment: int) -> None:
        """Start with nothing given out; places begin at multiples of ``alignment`` bytes."""
        self._alignment = alignment
        self._taken: list[tuple[int, int]] = []
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        """A place for some bytes; nothing else has it until it is freed."""
        size = -(-max(1, nbytes) // self._alignment) * self._alignment
        at = 0
        for start, end in self._taken:
            if at + size <= start:
                break
            at = end
        insort(self._taken, (at, at + size))
        self.nbytes = max(self.nbytes, at + size)
        return at

    def free(self, at: int) -> None:
        """Give a place back."""
        self._taken = [place for place in self._taken if place[0] != at]
