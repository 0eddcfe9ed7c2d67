"""A rank that is cut off fails the refit on both sides of the cut; with the link up again all is well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _cut_ranks import LOST_AFTER_S, TIMEOUT_S
from reshard_executors.emulation import guard, tools
from reshard_executors.emulation.namespaces import NIC, Gpu, switch

SIZE = 3
RATE = 2_000_000
"""Bytes per second of each NIC: the refit of twice 1.5 MiB takes long enough to be cut."""

PATIENCE_S = 60.0


@pytest.fixture
def ranks():
    reason = guard.reason_against()
    if reason is not None:
        pytest.skip(reason)
    gpus = [Gpu(rank, rank, RATE, RATE) for rank in range(SIZE)]
    with guard.cluster(gpus) as (tag, _):
        process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "_cut_ranks.py", tag, str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONSAFEPATH": "", "GLOO_SOCKET_IFNAME": NIC},
            start_new_session=True,
            text=True,
        )
        try:
            yield process, tag
        finally:
            process.kill()
            process.wait(PATIENCE_S)
            process.stdin.close()
            process.stdout.close()
    assert not [name for name in tools.names() if name.startswith(tag)]


def link(tag, rank, state):
    """Set the switch's end of a rank's link up or down: routes and neighbours at the rank's end stay."""
    command = [tools.find_tool("ip"), "-n", switch(tag), "link", "set", f"{NIC}{rank}", state]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("cut", [0, 1])
def test_both_sides_of_a_cut_raise_in_time_and_the_next_run_succeeds(ranks, cut):
    process, tag = ranks
    assert json.loads(process.stdout.readline()) == ["running"] * SIZE
    time.sleep(0.5)
    cut_at = time.monotonic()
    link(tag, cut, "down")
    for said in json.loads(process.stdout.readline()):
        assert said["kind"] == "ExecutionError"
        assert LOST_AFTER_S <= said["at"] - cut_at < TIMEOUT_S + 5
        assert said["text"].startswith(("slot ", "the ranks did not meet to compare how the run ended"))
        if cut != 0:  # rank 0 keeps the store
            gone = "the store of the process group has not answered"
            assert (gone if said["rank"] == cut else f"rank {cut} has") in said["text"]
        assert said["torn"] == (said["rank"] != 0)
        assert said["right"] == (said["rank"] == 0)
    link(tag, cut, "up")
    process.stdin.write("again\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == ["running"] * SIZE
    for said in json.loads(process.stdout.readline()):
        assert (said["kind"], said["torn"], said["right"]) == ("done", False, True), said["text"]
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.wait(PATIENCE_S) == 0
