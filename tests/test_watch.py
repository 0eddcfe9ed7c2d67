"""Each rank is watched by some others, and what one of them finds all hear, however large the group."""

from __future__ import annotations

import time

import pytest
from reshard_executors.signs import DEAD, LEFT, first_sign
from reshard_executors.watch import BEAT_S, IDLE_PATIENCE, RING, WATCH_ALL, Watch

torch = pytest.importorskip("torch")
LOST_AFTER_S = 1.5


def until(found, limit_s=10.0):
    end = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


class Group:
    """Watches of a whole group in one process, but for those of ranks that do not live."""

    def __init__(self, size, dead=()):
        store = torch.distributed.HashStore()
        for position in range(size):
            first_sign(store, position)
        self.size = size
        self.watches = {
            position: Watch(store, position, size, LOST_AFTER_S)
            for position in range(size)
            if position not in dead
        }

    def begin(self, names=None, *, met=True, positions=None):
        for position, watch in self.watches.items():
            if positions is None or position in positions:
                watch.begin(names or range(self.size), [], met=met)

    def close(self):
        for watch in self.watches.values():
            watch.close()


@pytest.fixture
def groups():
    made = []

    def make(*arguments):
        made.append(Group(*arguments))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.mark.parametrize("size", [4, WATCH_ALL + 30])
def test_a_rank_that_gives_no_sign_of_life_is_found_and_all_hear_of_it(groups, size):
    victim = 3
    group = groups(size, [victim])
    began = time.monotonic()
    group.begin(range(100, 100 + size))
    until(lambda: any(watch.find_trouble() for watch in group.watches.values()))
    assert time.monotonic() - began >= LOST_AFTER_S
    until(
        lambda: (
            sum(watch.find_trouble() is not None for watch in group.watches.values()) >= min(size - 1, RING)
        )
    )
    finders = [position for position, watch in group.watches.items() if watch.find_trouble()]
    if size > WATCH_ALL:
        assert set(finders) <= {(victim - step) % size for step in range(1, RING + 1)}
    first = group.watches[finders[0]]
    assert f"rank {100 + victim} has given no sign of life for" in first.find_trouble()
    assert first.announce("it stopped") is None
    until(lambda: all(watch.find_trouble() for watch in group.watches.values()), 4 * BEAT_S)
    others = [watch.find_trouble() for position, watch in group.watches.items() if position not in finders]
    assert set(others) <= {f"rank {100 + finders[0]}: it stopped"}
    assert first.lost == [100 + victim]
    assert first.find_lost([]) == ([100 + victim], [])


def test_the_first_that_fails_is_what_all_others_are_told(groups):
    group = groups(5)
    group.begin()
    assert group.watches[2].announce("one") is None
    assert group.watches[4].announce("two") == "rank 2: one"
    until(lambda: all(watch.find_trouble() == "rank 2: one" for watch in group.watches.values()))


def test_a_rank_that_has_not_begun_the_call_is_given_more_time_and_named(groups):
    group = groups(3, [2])
    group.begin(met=False, positions=[0])
    waiting = group.watches[0]
    began = time.monotonic()
    assert waiting.behind == []
    until(lambda: waiting.behind == [1, 2], 8 * BEAT_S)
    until(waiting.find_trouble, 3 * IDLE_PATIENCE * LOST_AFTER_S)
    assert time.monotonic() - began >= IDLE_PATIENCE * LOST_AFTER_S
    assert "rank 2 has given no sign of life" in waiting.find_trouble()


def test_a_rank_that_goes_forward_is_seen_to_do_so_by_all(groups):
    group = groups(WATCH_ALL + 10)
    group.begin()
    waiting = [group.watches[position].moved_at for position in (0, 1)]
    time.sleep(2 * BEAT_S)
    assert [group.watches[position].moved_at for position in (0, 1)] == waiting
    group.watches[50].move()
    until(lambda: all(group.watches[position].moved_at > waiting[0] for position in (0, 1)), 6 * BEAT_S)


def test_a_rank_that_leaves_is_not_one_that_is_silent(groups):
    group = groups(3)
    group.begin()
    group.watches.pop(1).close()
    time.sleep(BEAT_S)
    assert group.watches[0].find_lost([0, 1, 2]) == ([], [1])
    assert group.watches[0].lost == [1]
    until(lambda: group.watches[0].find_trouble() == "rank 1 has left the group")
    assert group.watches[0].lost == [1]


def test_a_rank_whose_group_has_failed_is_not_one_that_is_lost(groups):
    group = groups(3)
    group.begin()
    group.watches.pop(1).close(DEAD)
    time.sleep(BEAT_S)
    assert group.watches[0].find_lost([0, 1, 2]) == ([], [])
    until(lambda: group.watches[0].find_trouble() == "rank 1 has failed")
    assert group.watches[0].lost == []


def leave(group, position, *sign):
    watch = group.watches.pop(position)
    watch.close(*sign)
    watch.join(10)


def test_a_rank_that_closes_after_the_call_ended_well_on_it_is_not_one_that_is_lost(groups):
    group = groups(5)
    group.begin(range(10, 15))
    for position in (0, 3):
        group.watches[position].end()
        leave(group, position)
    group.watches[4].end()
    for position in (2, 4):  # by Ctrl-C, one of them when the call had ended
        leave(group, position, LEFT)
    last = group.watches[1]
    assert last.find_lost(range(10, 15)) == ([], [10, 12, 13, 14])
    assert last.lost == [12, 14]
    until(lambda: last.find_trouble() == "ranks 10 and 12-14 have left the group")
    assert last.lost == [12, 14]


def test_a_rank_that_closed_before_the_call_is_one_that_is_lost(groups):
    group = groups(3)
    group.begin()
    for watch in group.watches.values():
        watch.end()
    leave(group, 1)
    group.begin()
    last = group.watches[0]
    assert last.find_lost([]) == ([], [1])
    assert last.lost == [1]
    until(lambda: last.find_trouble() == "rank 1 has left the group")
    assert last.lost == [1]


def test_a_rank_that_closes_in_the_middle_of_a_call_is_one_that_is_lost_however_the_call_fails(groups):
    group = groups(3)
    group.begin()
    group.watches[1].end(well=False)
    leave(group, 1)
    assert group.watches[0].find_lost([]) == ([], [1])
    assert group.watches[0].lost == [1]


def test_ranks_that_were_all_stopped_together_are_not_lost_when_they_go_on(groups, monkeypatch):
    group = groups(4)
    group.begin()
    time.sleep(2 * BEAT_S)
    clock, jump = time.monotonic, 100 * LOST_AFTER_S
    monkeypatch.setattr(time, "monotonic", lambda: clock() + jump)  # as after SIGSTOP and SIGCONT to all
    time.sleep(4 * BEAT_S)
    assert [watch.lost for watch in group.watches.values()] == [[]] * 4
    assert not any("sign of life" in (watch.find_trouble() or "") for watch in group.watches.values())


def test_what_was_thought_of_a_rank_in_one_call_says_nothing_of_the_next(groups):
    group = groups(3, [2])
    group.begin()
    until(group.watches[0].find_trouble)
    assert group.watches[0].lost == [2]
    group.begin(range(100, 103))
    assert group.watches[0].find_trouble() is None
    assert group.watches[0].lost == []
    group.watches[0].end()
    time.sleep(LOST_AFTER_S + 2 * BEAT_S)
    assert group.watches[0].find_trouble() is None
