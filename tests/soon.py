"""Limits of processor time that tell linear work from quadratic, whatever the pace of the machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

import numpy as np

PACE_S: Final = 0.06
"""What :func:`_fixed_work` takes while tests run beside it on a machine of two cores."""


@contextmanager
def soon(most_s: float) -> Iterator[None]:
    """What is done inside takes less than some seconds of processor time; more where the machine is slow.

    How slow it is gets measured only if the limit is passed, right after: others may use its cores. Garbage
    is not collected meanwhile, which would go through the objects of all tests before.
    """
    collects = gc.isenabled()
    gc.disable()
    begin = time.process_time()
    try:
        yield
    finally:
        used = time.process_time() - begin
        if collects:
            gc.enable()
    if used >= most_s:
        paces = [_fixed_work() for _ in range(5)]
        limit = most_s * max(1.0, median(paces) / PACE_S)
        assert used < limit, f"{used:.2f} s of {limit:.2f}"


def _fixed_work() -> float:
    """Processor time of some work that is always the same, of Python and of memory."""
    begin = time.process_time()
    found: dict[str, int] = {}
    for number in range(100_000):
        found[str(number % 5000)] = number
    np.sort(np.arange(1_000_000, dtype=np.int64)[::-1] % 9973)
    return time.process_time() - begin
