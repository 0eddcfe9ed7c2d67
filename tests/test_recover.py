"""The example of killed ranks: what it prints, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

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
