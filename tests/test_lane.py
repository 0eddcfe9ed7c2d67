"""A lane does what it is asked to in order, and what came of it keeps nothing alive."""

from __future__ import annotations

import gc
import weakref

import pytest
from reshard_executors.lane import Lane
from reshard_executors.threads import join_helpers


class Held:
    """Something that work uses."""


def test_an_error_that_was_raised_and_dropped_keeps_nothing_alive_without_the_collector():
    held = Held()
    watch = weakref.ref(held)

    def work(held=held):
        raise RuntimeError(f"a fault of the test with {held}")

    del held
    lane = Lane("test")
    ticket = lane.ask(work)
    lane.close()
    del work
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match="a fault of the test"):
            ticket.result() if ticket.done(10) else None
        del ticket
        join_helpers(10)
        assert watch() is None
    finally:
        gc.enable()


def test_work_is_done_in_order():
    done = []
    lane = Lane("test")
    tickets = [lane.ask(lambda at=at: done.append(at)) for at in range(100)]
    lane.close()
    assert tickets[-1].done(10)
    assert done == list(range(100))
