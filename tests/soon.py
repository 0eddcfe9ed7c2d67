"""Limits of processor time that tell linear work from quadratic, whatever the pace of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

PACE_S: Final = 0.031
"""What :func:`_fixed_work` takes while tests run beside it on a machine of two cores."""


@contextmanager
def soon(most_s: float, what: str = "") -> Iterator[None]:
    """What is done inside takes less than some seconds of processor time; more where the machine is slow.

    How slow it is gets measured only if the limit is passed, right after: others may use its cores.
    """
    begin = time.process_time()
    yield
    used = time.process_time() - begin
    if used >= most_s:
        limit = most_s * max(1.0, median(map(_fixed_work, range(5))) / PACE_S)
        assert used < limit, what


def _fixed_work(_: int) -> float:
    """Processor time of some work that is always the same."""
    begin = time.process_time()
    found: dict[str, int] = {}
    for number in range(100_000):
        found[str(number % 5000)] = number
    sorted(found, key=found.__getitem__)
    return time.process_time() - begin
