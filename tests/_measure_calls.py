"""Processes of tests of `topology measure`, on hosts that are made up: ranks 0 and 1 on a, 2 and 3 on b.

Run by torchrun it is one rank, with the arguments of the command. Run as ``_measure_calls.py fork TAG FOLDER
ARGUMENT...`` it imports torch once and forks four ranks, each in the namespace of its GPU of the emulated
cluster of this tag, or on loopback if that is ``-``. What rank ``r`` prints goes to ``FOLDER/r.out`` and
``r.err``, its exit code to ``r.code``. The rank that ``LOST`` names in the environment is killed as soon as
it measures.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from pathlib import Path

from _commands import free_port, variables
from reshard_executors.emulation.launch import enter
from reshard_executors.emulation.namespaces import FIRST_PORT, NIC, address, namespace_of

from reshard_planner.cli import main

RANKS, PER_HOST = 4, 2


def live(rank: int, arguments: list[str]) -> int:
    """Be one rank."""
    socket.gethostname = lambda: "ab"[rank // PER_HOST]
    return main(arguments)


def die(*_: object) -> None:
    """End as ranks do that are killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def fork(tag: str, folder: Path, arguments: list[str]) -> None:
    """Fork the ranks, and wait for them."""
    from reshard_executors.measure import session  # noqa: PLC0415 - with torch and all else, once

    gc.freeze()
    port = FIRST_PORT if tag != "-" else free_port()
    ranks = {}
    for rank in range(RANKS):
        pid = os.fork()
        if not pid:
            os.environ.update(variables(rank, RANKS, port))
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            if tag != "-":
                enter(namespace_of(tag, rank))
                os.environ.update(MASTER_ADDR=address(0), GLOO_SOCKET_IFNAME=NIC)
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), number)
            if os.environ.get("LOST") == str(rank):
                session.Leader = session.follow = die
            sys.exit(live(rank, arguments))
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        (folder / f"{ranks.pop(pid)}.code").write_text(str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        fork(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        sys.exit(live(int(os.environ["RANK"]), sys.argv[1:]))
