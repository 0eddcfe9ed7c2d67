"""The example of killed ranks: what it prints, how it ends, and how survivors agree."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

dist = pytest.importorskip("torch.distributed")

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "recover.py"
MOST_S = 100
"""Longer than the example may take, which ends its ranks after a minute."""


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its ranks can be found
    )


def end_of(process):
    """What it prints, its errors, and its exit code; no process of it may be left."""
    try:
        out, err = process.communicate(timeout=MOST_S)
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return out, err, process.returncode


def test_survivors_of_two_killed_ranks_plan_again_and_go_on():
    out, err, code = end_of(start("--kill", "0", "4"))
    assert code == 0, err
    for rank in (0, 4):
        assert re.search(rf"(?m)^rank {rank}: process \d+: Killed$", out), out
    for rank in (1, 2, 3, 5):
        assert re.search(rf"(?m)^rank {rank}: lost 0, 4: .", out), out
    assert "ranks 1, 2, 3, 5: replan without 0, 4: up, down, draft planned\n" in out
    assert (
        "rank 5: step 2 is version 3, every element is right\n" in out
    )  # a failed refit's number is not given again
    assert "rank 5: step 3 is version 4, every element is right\n" in out


def test_survivors_end_with_1_where_bytes_have_no_holder_left():
    out, err, code = end_of(start("--single-copy", "--kill", "1"))
    assert code == 1, err
    assert "ranks 0, 2, 3, 4, 5: replan without 1: nothing planned\n" in out
    assert "  8388608 bytes of up were held by 1 alone\n" in out
    assert out.endswith("  the job cannot go on with the ranks that are left\n")
    assert err == ""


def test_an_interrupt_ends_all_ranks():
    process = start()
    process.stdout.readline()  # the first step is done
    os.killpg(process.pid, signal.SIGINT)
    _, err, code = end_of(process)
    assert code == 130
    assert err == ""


# how survivors agree


@pytest.fixture
def recover():
    spec = importlib.util.spec_from_file_location("recover", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def connect():
    """Gives each rank a connection of its own to one store."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, handle, patience = listener.getsockname()[1], listener.detach(), timedelta(seconds=30)
    store = dist.TCPStore("127.0.0.1", port, None, True, patience, False, master_listen_fd=handle)
    yield lambda: dist.TCPStore("127.0.0.1", port, timeout=patience)
    del store


def agreed(recover, connect, known, steps, ranks=range(6)):
    """What each survivor is told, where each knows of some that are lost and is at some step."""
    with ThreadPoolExecutor(len(known)) as pool:
        calls = {
            rank: pool.submit(recover.agree, connect(), rank, ranks, lost, steps[rank])
            for rank, lost in known.items()
        }
        return {rank: call.result() for rank, call in calls.items()}


def test_survivors_that_know_of_different_ranks_agree_on_all_of_them_soon(recover, connect):
    known = {0: (4,), 1: (), 2: (5,), 3: (4,)}
    begin = time.monotonic()
    answers = agreed(recover, connect, known, dict.fromkeys(known, 2))
    assert list(answers.values()) == [([4, 5], 2)] * 4
    assert time.monotonic() - begin < recover.TIMEOUT.total_seconds() / 2


def test_a_rank_that_comes_a_little_later_lives_whatever_others_say(recover, connect):
    def come_later():
        time.sleep(recover.GRACE_S / 4)
        return recover.agree(connect(), 2, [0, 1, 2, 5], (5,), 2)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(come_later)
        answers = agreed(recover, connect, {0: (5,), 1: (2, 5)}, {0: 2, 1: 2}, ranks=[0, 1, 2, 5])
        assert answers == dict.fromkeys((0, 1), ([5], 2))
        assert late.result() == ([5], 2)


def test_survivors_go_on_with_the_last_step_that_any_has_reached(recover, connect):
    answers = agreed(recover, connect, {0: (1,), 2: ()}, {0: 2, 2: 3}, ranks=range(3))
    assert answers == {0: ([1], 3), 2: ([1], 3)}


def test_a_rank_that_nobody_calls_lost_is_waited_for_and_refused_afterwards(recover, connect, monkeypatch):
    monkeypatch.setattr(recover, "TIMEOUT", timedelta(seconds=1))
    assert agreed(recover, connect, {0: (), 1: ()}, {0: 2, 1: 2}, ranks=range(3)) == dict.fromkeys(
        (0, 1), ([2], 2)
    )
    with pytest.raises(SystemExit, match=r"^rank 2 came too late; the others go on without it$"):
        recover.agree(connect(), 2, range(3), (), 2)
