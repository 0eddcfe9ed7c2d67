"""The process that makes a cluster, and takes it down when its owner lets go or ends, however it ends.

Started by :mod:`reshard_executors.emulation.guard` as ``python -m reshard_executors.emulation.guardian``,
with the tag of the cluster, number and start of its owner, and the numbers of two inherited connections. It
makes what comes over the first, says over the second that it is made, and takes all down when the first
closes or the owner is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from reshard_executors.emulation.owners import Owner, of_tag, stale
from reshard_executors.emulation.tools import Made, Step, names, perform, remove


def main() -> None:
    """Make the cluster, wait, take it down."""
    tag = sys.argv[1]
    owner = Owner(int(sys.argv[2]), int(sys.argv[3]))
    asked, answering = (Connection(int(handle)) for handle in sys.argv[4:6])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the owner ends the cluster, and nothing else does
    remove_stale()
    folder = folder_of(tag)
    try:
        with suppress(EOFError, OSError):
            steps: tuple[Step, ...] = asked.recv()
            try:
                folder.mkdir(mode=0o700)
            except OSError as error:
                answering.send(Made(folder, f"folder {folder}: {error.strerror}"))
                return
            answering.send(Made(folder, _make(steps)))
            _wait(asked, owner)
    finally:
        take_down(tag)


def _make(steps: tuple[Step, ...]) -> str | None:
    return next(filter(None, map(perform, steps)), None)


def _wait(asked: Connection, owner: Owner) -> None:
    """Wait until the owner closes the connection or is gone; others may have inherited its end."""
    life = os.pidfd_open(owner.pid)
    try:
        if owner.alive:  # and not another process of its number
            wait([asked, life])
    finally:
        os.close(life)


def folder_of(tag: str) -> Path:
    """The folder of a cluster."""
    return Path(tempfile.gettempdir()) / f"{tag}-files"


def take_down(tag: str) -> None:
    """Remove all of a cluster, whatever of it there is."""
    remove(of_tag(names(), tag))
    shutil.rmtree(folder_of(tag), ignore_errors=True)


def remove_stale() -> None:
    """Remove what clusters left behind whose owner and guardian are gone."""
    remove(stale(names()))
    with suppress(OSError):
        for name in stale(entry.name for entry in Path(tempfile.gettempdir()).iterdir()):
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


if __name__ == "__main__":
    main()
