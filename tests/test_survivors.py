"""Survivors agree on who is lost: on one answer for all, soon, whoever comes when and whatever each says."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest

dist = pytest.importorskip("torch.distributed")

from reshard_executors import ExecutionError, agree_on_lost, survivors  # noqa: E402 - they need torch

from reshard_planner.errors import InputError  # noqa: E402 - as above

PATIENCE = timedelta(seconds=30)
GRACE, TIMEOUT = timedelta(seconds=0.5), timedelta(seconds=2)
SOON_S = TIMEOUT.total_seconds() * 0.75
"""Within grace and what a busy machine adds, and well before the timeout."""


@pytest.fixture
def tcp():
    """Gives each rank a connection of its own to one store."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, handle = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore("127.0.0.1", port, None, True, PATIENCE, False, master_listen_fd=handle)
    yield lambda: dist.TCPStore("127.0.0.1", port, timeout=PATIENCE)
    del store


@pytest.fixture
def stores(tcp, tmp_path):
    """Of every kind that torch has, what gives each rank a store that all share."""
    store = dist.HashStore()
    return {
        "TCPStore": tcp,
        "HashStore": lambda: store,
        "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), -1),
    }


def on_each(stores, law):
    """Try a law on all kinds of stores at once: it waits more than it works."""
    with ThreadPoolExecutor(len(stores)) as pool:
        for kind, call in [(kind, pool.submit(law, connect)) for kind, connect in stores.items()]:
            try:
                call.result()
            except AssertionError as error:
                error.add_note(f"on a {kind}")
                raise


class Answer:
    """What a survivor is told, or why it is out, and after how long."""

    def __init__(self, store, rank, ranks, lost, *, delay_s=0.0, **options):
        time.sleep(delay_s)
        self.begin = time.monotonic()
        self.rank, self.step, self.told, self.refused = rank, options.get("step", 0), None, None
        try:
            self.told = agree_on_lost(
                store, rank, ranks, lost, **{"grace": GRACE, "timeout": TIMEOUT} | options
            )
        except ExecutionError as error:
            self.refused = str(error)
        self.end = time.monotonic()
        self.took_s = self.end - self.begin


def answers(connect, known, ranks, *, steps=None, delays=None, **options):
    """What all survivors are told, in order of rank, where each knows of some that are lost."""
    with ThreadPoolExecutor(len(known)) as pool:
        stores = {rank: connect() for rank in known}
        calls = [
            pool.submit(
                Answer,
                stores[rank],
                rank,
                ranks,
                lost,
                delay_s=(delays or {}).get(rank, 0.0),
                step=(steps or {}).get(rank, 0),
                **options,
            )
            for rank, lost in sorted(known.items())
        ]
        return [call.result() for call in calls]


def assert_all_agree(given, ranks):
    """The law: who goes on goes on with the same ranks, which are just those that go on."""
    through = [each for each in given if each.told is not None]
    assert through
    [(lost, step)] = {each.told for each in through}
    assert sorted(lost) == list(lost)
    assert {*ranks}.difference(lost) == {each.rank for each in through}
    assert step == max(each.step for each in through)
    for each in given:
        if each.told is None:
            assert each.refused == f"rank {each.rank} has come too late; the others go on without it"
            assert each.took_s < SOON_S  # all is decided when it comes, or about then
    return lost


def random_case(seed):
    """Ranks of a plan, some of whom come at some time, with claims that may be wrong, and a step."""
    draw = random.Random(seed)  # noqa: S311 - cases, not secrets
    ranks = draw.sample(range(20), draw.randint(1, 6))
    alive = draw.sample(ranks, draw.randint(1, len(ranks)))
    dead = set(ranks).difference(alive)
    known = {}
    for rank in alive:
        right = {each for each in dead if draw.random() < 0.6}
        wrong = {each for each in alive if each != rank and draw.random() < 0.15}
        known[rank] = right | wrong
    most_s = draw.choice([0.0, 0.1, 2 * GRACE.total_seconds()])
    delays = {rank: draw.uniform(0, most_s) for rank in alive}
    return ranks, known, {rank: draw.randint(-2, 9) for rank in alive}, delays


def play(connect, seeds):
    """Many random failures at a time, each under a prefix of its own."""

    def one(seed):
        ranks, known, steps, delays = random_case(seed)

        def here():
            return dist.PrefixStore(f"failure {seed}", connect())

        given = answers(here, known, ranks, steps=steps, delays=delays)
        lost = assert_all_agree(given, ranks)
        named = set().union(*known.values())
        assert set(ranks).difference(known) <= set(lost)
        # times from below only, which hold on any busy machine
        waited_s = min(each.end for each in given) - min(each.begin for each in given)
        if lost:
            assert waited_s >= GRACE.total_seconds()
        if not set(lost) <= named:
            assert waited_s >= TIMEOUT.total_seconds()

    with ThreadPoolExecutor(len(seeds)) as pool:
        for call in [pool.submit(one, seed) for seed in seeds]:
            call.result()


@pytest.mark.parametrize("kind", ["TCPStore", "HashStore", "FileStore"])
def test_all_who_go_on_have_one_answer_whoever_comes_when_and_says_what(stores, kind):
    play(stores[kind], range(24))


def test_that_law_fails_where_survivors_hear_only_themselves(tcp, monkeypatch):
    monkeypatch.setattr(survivors.Words, "read", lambda _: None)
    with pytest.raises(AssertionError):
        play(tcp, range(8))


def test_survivors_that_know_of_different_ranks_agree_on_all_of_them_soon(stores):
    def law(connect):
        given = answers(connect, {0: (4,), 1: (), 2: (5,), 3: (4,)}, range(6))
        assert assert_all_agree(given, range(6)) == (4, 5)
        assert GRACE.total_seconds() <= max(each.took_s for each in given) < SOON_S

    on_each(stores, law)


def test_nobody_waits_where_all_have_come(stores):
    def law(connect):
        given = answers(connect, {0: (1,), 1: (), 2: ()}, range(3), grace=TIMEOUT)
        assert assert_all_agree(given, range(3)) == ()
        assert max(each.took_s for each in given) < SOON_S

    on_each(stores, law)


def test_a_rank_that_comes_a_little_later_lives_whatever_others_say(stores):
    def law(connect):
        late = {2: GRACE.total_seconds() / 4}
        long = timedelta(seconds=1.5)
        given = answers(connect, {0: (5,), 1: (2, 5), 2: (5,)}, [0, 1, 2, 5], delays=late, grace=long)
        assert assert_all_agree(given, [0, 1, 2, 5]) == (5,)

    on_each(stores, law)


def test_survivors_go_on_with_the_last_step_that_any_of_them_has_reached(stores):
    def law(connect):
        given = answers(connect, {0: (1,), 2: ()}, range(3), steps={0: 2, 2: 3})
        assert {each.told for each in given} == {((1,), 3)}
        negative = answers(lambda: dist.PrefixStore("x", connect()), {0: ()}, [0], steps={0: -4})
        assert negative[0].told == ((), -4)

    on_each(stores, law)


def test_a_rank_that_nobody_calls_lost_is_waited_for_and_refused_afterwards(stores):
    def law(connect):
        given = answers(connect, {0: (), 1: ()}, range(3))
        assert assert_all_agree(given, range(3)) == (2,)
        assert TIMEOUT.total_seconds() <= max(each.took_s for each in given)
        late = Answer(connect(), 2, range(3), ())
        assert late.refused == "rank 2 has come too late; the others go on without it"
        assert late.took_s < SOON_S

    on_each(stores, law)


class Watched(dist.Store):
    """A store that counts what it is asked, and does something before a decision."""

    def __init__(self, before_decision=lambda: None):
        super().__init__()
        self.store, self.calls, self.keys_read = dist.HashStore(), Counter(), 0
        self._before_decision = before_decision

    def set(self, key, value):
        self.calls["set"] += 1
        self.store.set(key, value)

    def get(self, key):
        self.calls["get"] += 1
        return self.store.get(key)

    def add(self, key, amount):
        self.calls["add"] += 1
        return self.store.add(key, amount)

    def check(self, keys):
        self.calls["check"] += 1
        return self.store.check(keys)

    def multi_get(self, keys):
        self.calls["multi_get"] += 1
        self.keys_read += len(keys)
        return self.store.multi_get(keys)

    def compare_set(self, key, expected, wanted):
        self.calls["compare_set"] += 1
        if key.endswith(survivors.DECISION):
            self._before_decision()
        return self.store.compare_set(key, expected, wanted)


def test_a_rank_that_comes_between_the_last_look_and_the_decision_learns_that_it_is_out():
    late, pool = [], ThreadPoolExecutor(1)

    def come():
        if not late:
            late.append(pool.submit(Answer, store.store, 2, range(3), ()))
            while store.store.add("reshard survivors/came", 0) < 2:  # it lives, and says so in time
                time.sleep(0.005)

    store = Watched(come)
    with pool:
        assert agree_on_lost(store, 0, range(3), (1, 2), grace=GRACE, timeout=TIMEOUT) == ((1, 2), 0)
        assert late[0].result().refused == "rank 2 has come too late; the others go on without it"


def test_of_two_that_decide_at_a_time_the_first_decides_for_both():
    other, pool = [], ThreadPoolExecutor(1)

    def come():
        if not other:
            other.append(pool.submit(Answer, store.store, 2, range(3), (), step=3))
            other[0].result()  # it knows of both, and decides before the first one can

    store = Watched(come)
    with pool:
        given = agree_on_lost(store, 0, range(3), (1, 2), grace=GRACE, timeout=TIMEOUT)
        assert given == other[0].result().told == ((1,), 3)


def test_one_that_dies_before_its_first_word_is_lost_and_holds_nobody_up(stores):
    def law(connect):
        dist.PrefixStore("reshard survivors", connect()).add(survivors.CAME, 1)
        given = answers(connect, {0: (2,), 1: ()}, range(3))
        assert assert_all_agree(given, range(3)) == (2,)
        assert max(each.took_s for each in given) < SOON_S

    on_each(stores, law)


def test_others_decide_where_all_die_that_came_first(tcp):
    first = survivors.READERS
    place = dist.PrefixStore("reshard survivors", tcp())
    for rank in range(first):
        survivors.Words(place).add(survivors.Word(rank, [first + 2], 5))
    ranks = range(first + 3)
    given = answers(tcp, {first: (), first + 1: ()}, ranks, timeout=PATIENCE)
    assert {each.told for each in given} == {((first + 2,), 5)}
    assert max(each.took_s for each in given) < 10 * GRACE.total_seconds()


def test_many_survivors_ask_the_store_for_little():
    count, store = 96, Watched()
    known = dict.fromkeys(range(count), (count,))
    given = answers(lambda: store, known, range(count + 1), grace=timedelta(seconds=1), timeout=PATIENCE)
    assert {each.told for each in given} == {((count,), 0)}
    assert (
        store.keys_read <= 3 * survivors.READERS * count
    )  # those that read, and those that came to it in the end
    assert store.calls.total() <= 60 * count
    assert store.calls["set"] == count


def keeper():
    """A process that keeps a store, and this one's connection to it."""
    code = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
print(store.port, flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, dist.TCPStore("127.0.0.1", int(process.stdout.readline()), timeout=PATIENCE)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (signal.SIGKILL, "the ranks did not meet to agree on who is lost: their store is gone: "),
        (
            signal.SIGSTOP,
            "the ranks did not meet to agree on who is lost: their store has not answered within 2.5 s",
        ),
    ],
)
def test_a_store_that_is_gone_or_silent_ends_the_call_with_one_sentence(how, says, monkeypatch):
    monkeypatch.setattr(survivors, "ANSWER_S", 0.5)
    process, store = keeper()
    timer = threading.Timer(0.2, process.send_signal, [how])
    try:
        timer.start()
        answer = Answer(store, 0, range(2), ())
        assert answer.refused.startswith(says)
        assert "\n" not in answer.refused
        assert ". " not in answer.refused
        assert answer.took_s < TIMEOUT.total_seconds() + 2
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def test_numbers_may_be_of_numpy():
    ranks, lost = np.arange(3), np.array([1, 2])
    given = agree_on_lost(
        dist.HashStore(), ranks[0], ranks, lost, step=np.int64(7), grace=GRACE, timeout=TIMEOUT
    )
    assert given == ((1, 2), 7)
    assert {type(each) for each in (*given[0], given[1])} == {int}


RIGHT = {"rank": 0, "ranks": [0, 1, 2], "lost": [1]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"store": None}, "store is a NoneType; expected a store of torch, such as a TCPStore"),
        ({"rank": 3}, "rank is 3; expected one of ranks 0-2"),
        ({"rank": True}, "rank is True; expected one of ranks 0-2"),
        ({"rank": "0"}, "rank is '0'; expected one of ranks 0-2"),
        ({"ranks": 3}, "ranks is 3; expected ranks, such as [3]"),
        ({"ranks": [0, 1.5]}, "ranks has the entry 1.5; expected an integer"),
        ({"ranks": []}, "ranks is empty; expected all ranks of the plan"),
        ({"lost": 1}, "lost is 1; expected ranks, such as [3]"),
        ({"lost": ["1"]}, "lost has the entry '1'; expected an integer"),
        ({"lost": [1, 7]}, "lost has 7; expected some of ranks 0-2"),
        ({"lost": [1, 0]}, "lost has 0, which is this rank; expected others"),
        ({"step": 1.0}, "step is 1.0; expected an integer"),
        ({"grace": timedelta()}, "grace is datetime.timedelta(0); expected a timedelta above 0"),
        ({"grace": 2}, "grace is 2; expected a timedelta above 0"),
        ({"timeout": -TIMEOUT}, "timeout is datetime.timedelta(days=-1"),
        ({"timeout": timedelta(days=8)}, "timeout is datetime.timedelta(days=8)"),
    ],
)
def test_wrong_arguments_are_refused_before_anybody_hears_of_them(wrong, says):
    store = dist.HashStore()
    with pytest.raises(InputError) as caught:
        agree_on_lost(**{"store": store} | RIGHT | wrong)
    assert str(caught.value).startswith(says)
    assert store.num_keys() == 0


def test_a_prefix_is_for_one_failure_and_the_same_ranks_alone():
    store = dist.HashStore()
    assert agree_on_lost(store, 0, [0, 1], [1], grace=GRACE, timeout=TIMEOUT) == ((1,), 0)
    with pytest.raises(InputError) as caught:
        agree_on_lost(store, 0, [1, 0], [1])
    assert str(caught.value) == (
        "rank 0 has come to this store before; expected a prefix of its own for each failure"
    )
    with pytest.raises(InputError) as caught:
        agree_on_lost(store, 2, [0, 1, 2], [1])
    assert str(caught.value) == (
        "ranks differ between survivors: ranks 0-2 here, and ranks 0-1 on one that came before;"
        " expected the same on all"
    )
