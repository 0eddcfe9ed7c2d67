"""What processes of tests of the doctor do: ranks of ``_ranks``, and ranks of an emulated cluster.

Run as ``_doctor_calls.py TAG FOLDER SIZE`` in the namespace of the switches it forks one process per GPU,
with torch imported once. Each enters the namespace of its GPU and checks every ``*.reshard`` of the folder,
in the order of their names, as if a launcher had started it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reshard_executors.doctor.claims import Claims, Wish
from reshard_executors.doctor.council import Council, Trouble
from reshard_executors.doctor.examine import examine
from reshard_executors.doctor.facts import gather
from reshard_executors.doctor.findings import Report
from reshard_executors.doctor.interfaces import VARIABLE, choose, read_interfaces
from reshard_executors.doctor.probe import ACROSS, Edge
from reshard_executors.doctor.traffic import Traffic
from reshard_executors.doctor.visit import visit
from reshard_executors.emulation.launch import enter
from reshard_executors.emulation.namespaces import FIRST_PORT, NIC, address, namespace_of
from reshard_executors.launchers import rank_info

import reshard_planner as rp

PROBE_NBYTES = 2**20

TIMEOUT_S = 2.0


def check(
    state: dict[str, Any],
    folder: str,
    plan: rp.Plan | None,
    changes: dict[str, dict[str, Any]],
    end_after: str | None = None,
    most_nbytes: int = PROBE_NBYTES,
) -> Report:
    """Examine the world of ``_ranks``, over a store in an empty folder.

    Args:
        state: kept by the process.
        folder: the folder.
        plan: of this rank.
        changes: fields of its facts that differ from what is so here, as on other machines.
        end_after: name of the decision after which this process ends.
        most_nbytes: what a pair of ranks sends.
    """
    rank, size = state["rank"], dist.get_world_size()
    store = dist.FileStore(f"{folder}/store", size)
    council = (Council if end_after is None else _Mortal)(store, rank, size, TIMEOUT_S)
    if isinstance(council, _Mortal):
        council.end_after = end_after
    claims = None if plan is None else Claims(plan, tuple(range(size)))
    facts = gather({**os.environ}, rank, rank, ("127.0.0.1", FIRST_PORT), claims)
    changed = {name: replace(getattr(facts, name), **fields) for name, fields in changes.items()}
    return examine(council, replace(facts, **changed), claims, Wish(None, most_nbytes))


def check_without_interface(state: dict[str, Any], folder: str, plan: rp.Plan, rank: int) -> Report:
    """Examine the world when what gloo is told to use is gone on one rank, which its facts do not say."""
    known = read_interfaces()
    choice = choose(os.environ, known, "here")
    before = os.environ[VARIABLE]
    if state["rank"] == rank:
        os.environ[VARIABLE] = "none7"
    try:
        return check(state, folder, plan, {"interfaces": {"choice": choice}})
    finally:
        os.environ[VARIABLE] = before


def probe_with_one_that_hangs(state: dict[str, Any], folder: str, rank: int) -> object:
    """What comes of a probe in which one rank never ends its first transfer."""
    size = dist.get_world_size()
    council = Council(dist.FileStore(f"{folder}/store", size), state["rank"], size, TIMEOUT_S)
    kind = _Hanging if state["rank"] == rank else Traffic
    edges = [Edge(ACROSS, one, one, one + 1, 0) for one in range(0, size, 2)]
    found = kind(council, "gloo", torch.device("cpu"), ()).run(edges, PROBE_NBYTES)
    council.leave()
    return (found.text, found.ranks) if isinstance(found, Trouble) else found


class _Hanging(Traffic):
    """A probe whose transfers never end."""

    def _transfer(self, *_: Any) -> float:
        threading.Event().wait()
        return 0.0


class _Mortal(Council):
    """A council whose process ends after a decision."""

    end_after: str | None = None

    def decide(self, what: str, *arguments: Any) -> Any:
        result = super().decide(what, *arguments)
        if what == self.end_after:
            os._exit(0)
        return result


def main() -> None:
    """Fork the ranks of a cluster, and wait for them."""
    tag, folder, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    for rank in range(size):
        if os.fork() == 0:
            try:
                enter(namespace_of(tag, rank))
                for number, path in enumerate(sorted(folder.glob("*.reshard"))):
                    _visit(path, number, rank, size)
            except BaseException:  # noqa: BLE001 - os._exit would end this process before it is printed
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _visit(path: Path, number: int, rank: int, size: int) -> None:
    environ = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(FIRST_PORT + number),
        "GLOO_SOCKET_IFNAME": NIC,
    }
    os.environ.update(environ)
    begin = time.monotonic()
    report = visit(rank_info(environ), environ, path, Wish(None, PROBE_NBYTES), 20.0)
    found = {**report.to_dict(), "elapsed_s": time.monotonic() - begin}
    path.with_suffix(f".{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
