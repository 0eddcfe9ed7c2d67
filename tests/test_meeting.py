"""Ranks meet whatever meetings they have missed, refused or tried alone before."""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from reshard_executors.meeting import meet, refuse

from reshard_planner.errors import ExecutionError

torch = pytest.importorskip("torch")

SIZE = 4
NAMES = (10, 11, 12, 13)
SHORT, LONG = timedelta(seconds=0.3), timedelta(seconds=20)


@pytest.fixture(params=["hash", "file", "tcp"])
def stores(request):
    """A store for each rank, as each has a connection of its own."""
    match request.param:
        case "hash":
            yield [torch.distributed.HashStore()] * SIZE
        case "file":
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "store")
                yield [torch.distributed.FileStore(path, SIZE) for _ in range(SIZE)]
        case "tcp":
            kept = torch.distributed.TCPStore("127.0.0.1", 0, None, True, LONG, False)
            yield [kept.clone() for _ in range(SIZE)]


def together(act):
    """What comes of ``act(rank)`` in all ranks at once: a result or an error."""

    def tried(rank):
        try:
            return act(rank)
        except ExecutionError as error:
            return error

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(tried, range(SIZE)))


def meeting(stores, timeout=LONG):
    return together(lambda rank: meet(stores[rank], rank, NAMES, timeout)[1])


def test_all_get_one_name_and_each_meeting_has_another(stores):
    names = [meeting(stores) for _ in range(3)]
    assert [len(set(each)) for each in names] == [1, 1, 1]
    assert len({each[0] for each in names}) == 3


@pytest.mark.parametrize("seed", range(8))
def test_ranks_meet_whatever_some_of_them_did_before(stores, seed):
    draw = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(draw.randrange(1, 4)):
        acts = [draw.choice(["come", "come", "miss", "refuse", "give up"]) for _ in range(SIZE)]

        def act(rank, acts=acts):
            match acts[rank]:
                case "refuse":
                    refuse(stores[rank], rank, "a fault of the test")
                case "give up":
                    meet(stores[rank], rank, NAMES, SHORT, lambda: "a fault of the test")
                case "come":
                    meet(stores[rank], rank, NAMES, SHORT)
            return acts[rank]

        together(act)
    for _ in range(2):  # each may have to hear of what was refused before
        found = meeting(stores, timedelta(seconds=2))
        if not any(isinstance(each, ExecutionError) for each in found):
            break
    assert len(set(meeting(stores, timedelta(seconds=2)))) == 1


def test_who_comes_later_hears_of_a_refusal_once(stores):
    refuse(stores[2], 2, "rank 12: a fault of the test")

    def act(rank):
        return None if rank == 2 else meet(stores[rank], rank, NAMES, LONG)

    for rank, answer in enumerate(together(act)):
        if rank != 2:
            assert str(answer) == "the ranks did not meet to make a group: rank 12: a fault of the test"
    assert len(set(meeting(stores))) == 1


def test_who_has_missed_a_meeting_is_named_and_comes_to_the_next(stores):
    def act(rank):
        return None if rank == 1 else meet(stores[rank], rank, NAMES, SHORT)

    late = "the ranks did not meet to make a group: rank 11 did not come within 0.3 s"
    assert [answer and str(answer) for answer in together(act)] == [late, None, late, late]
    assert len(set(meeting(stores))) == 1


def test_a_rank_that_comes_alone_names_the_others(stores):
    with pytest.raises(ExecutionError, match=r"ranks 10-11 and 13 did not come within 0\.3 s"):
        meet(stores[2], 2, NAMES, SHORT)
