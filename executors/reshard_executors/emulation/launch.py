"""Starts torchrun in every GPU's namespace; imports torch once and forks.

Started as ``python -m reshard_executors.emulation.launch TAG FOLDER RANK...``, in the namespace of the
switches. Every child enters the namespace of its GPU and does there what the command ``torchrun`` does. They
meet at the first one's address, in any order, so that torch's ranks are not the plan's.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from reshard_executors.emulation.job import RANK_VARIABLE, log_file
from reshard_executors.emulation.namespaces import FIRST_PORT, NIC, address, namespace_of, switch
from reshard_executors.emulation.tools import NAMESPACES

_NETWORK = 0x40000000  # CLONE_NEWNET

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": NIC,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
}
"""Environment of the ranks: one thread each, and the one interface that has an address."""


def main() -> None:
    """Start torchrun for every rank, and wait until all have ended, or the first one badly."""
    tag, folder, *rest = sys.argv[1:]
    ranks = [int(rank) for rank in rest]
    from torch.distributed import run  # noqa: F401, PLC0415 - once, before the forks

    gc.freeze()  # or else every child's first collection copies all of torch's pages
    for position in range(len(ranks)):
        if os.fork() == 0:
            _live(tag, Path(folder), ranks, position)
    for _ in ranks:
        if os.wait()[1] != 0:
            raise SystemExit(1)


def _live(tag: str, folder: Path, ranks: Sequence[int], position: int) -> NoReturn:
    """Be torchrun of one rank."""
    from torch.distributed import run  # noqa: PLC0415 - torch is imported already

    code = 1
    try:
        log = os.open(log_file(folder, ranks[position]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        enter(namespace_of(tag, ranks[position]))
        os.environ.update(ENVIRONMENT, **{RANK_VARIABLE: str(ranks[position])})
        run.main(torchrun_arguments(tag, folder, len(ranks), position))
        code = 0
    except BaseException:  # noqa: BLE001 - os._exit would end this process before it is printed
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def torchrun_arguments(tag: str, folder: Path, size: int, position: int) -> list[str]:
    """What follows ``torchrun`` on the command line of one GPU."""
    return [
        f"--nnodes={size}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={address(0)}:{FIRST_PORT}",
        f"--rdzv-id={switch(tag)}",
        f"--rdzv-conf=is_host={int(position == 0)}",
        f"--local-addr={address(position)}",
        "--max-restarts=0",
        "-m",
        "reshard_executors.emulation.worker",
        str(folder),
    ]


def enter(name: str) -> None:
    """Move this process into a network namespace.

    Raises:
        OSError: if it is gone.
    """
    handle = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # os.setns is there from Python 3.12 on
        if libc.setns(handle, _NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main()
