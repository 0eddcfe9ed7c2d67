"""Limits of processor time can be passed, and say by how much."""

from __future__ import annotations

import gc

import pytest
from soon import soon


def work() -> int:
    return sum(range(3_000_000))


def test_what_takes_longer_than_its_limit_fails_however_slow_the_machine_is() -> None:
    with pytest.raises(AssertionError, match=r"^\d+\.\d\d s of 0\.00"), soon(1e-6):
        work()
    assert gc.isenabled()


def test_what_fails_within_its_limit_fails_as_itself() -> None:
    with pytest.raises(ZeroDivisionError), soon(60):
        work() // 0
    assert gc.isenabled()
