"""Who has ended a call well and leaves is not lost to those that still fail in it."""

from __future__ import annotations

import _leaving_calls as calls
import pytest
from _ranks import Ranks

WORLD = 4


@pytest.fixture(scope="module")
def world():
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


def called(world, function, wanted, *arguments):
    """What the wanted ranks answer."""
    answers = world.call(function, [(rank in wanted, *arguments) for rank in range(WORLD)])
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answers[rank] for rank in wanted]


@pytest.mark.parametrize("how", ["by closing it", "by dropping it"])
def test_of_ranks_that_have_left_only_the_one_that_was_interrupted_is_lost_to_the_last(world, how):
    assert world.call_alike(calls.make) == [None] * WORLD
    called(world, calls.end_well, [0, 3], how)
    called(world, calls.be_interrupted, [2])
    [(said, lost)] = called(world, calls.fail, [1])
    assert said.endswith("KeyboardInterrupt; ranks 0 and 2-3 have left the group")
    assert lost == (2,)
