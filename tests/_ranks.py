"""Real processes that stand ready as the ranks of a gloo world, so that many tests share one start.

Run as a script it becomes those processes: torch is imported once, then one process per rank is forked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from reshard_executors.local import ENVIRONMENT

PATIENCE_S = 60
"""Longer than anything here takes: a call that does not return by then hangs."""


class Ranks:
    """A world of processes that run functions of this kind: ``function(state, *arguments) -> result``.

    ``state`` is a dict that each process keeps between calls.
    """

    def __init__(self, count: int, timeout_s: float = 20.0) -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        pairs = [Pipe() for _ in range(count)]
        self._connections = [ours for ours, _ in pairs]
        handles = [theirs.fileno() for _, theirs in pairs]
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._folder.name, str(timeout_s), *map(str, handles)],
            pass_fds=handles,
            env={**os.environ, **ENVIRONMENT},
        )
        for _, theirs in pairs:
            theirs.close()

    def call(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function in all processes at once, with arguments of each; errors come back as results."""
        self.send(function, arguments)
        return self.receive()

    def send(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
        """Begin such a call."""
        for connection, mine in zip(self._connections, arguments, strict=True):
            with contextlib.suppress(BrokenPipeError):  # a rank that has ended
                connection.send((function, mine))

    def receive(self) -> list[Any]:
        """The results of the call that was begun."""
        return [self._receive(connection) for connection in self._connections]

    def call_alike(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function in all processes with the same arguments."""
        return self.call(function, [arguments] * self.count)

    def _receive(self, connection: Connection) -> Any:
        if not connection.poll(PATIENCE_S):
            raise TimeoutError(f"a rank has not answered for {PATIENCE_S} s")
        try:
            return connection.recv()
        except (EOFError, ConnectionResetError):
            return "gone"

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._folder.cleanup()


def _serve(connection: Connection, folder: str, rank: int, count: int, timeout_s: float) -> None:
    import torch  # noqa: PLC0415 - only in the processes of the world
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", count)
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timeout)
    state: dict[str, Any] = {"rank": rank}
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        try:
            result = function(state, *arguments)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            result = error
        connection.send(result)


def main() -> None:
    """Fork the ranks, and wait until the test has closed its connections."""
    import _rank_calls  # noqa: F401, PLC0415
    import reshard_executors.worker  # noqa: F401, PLC0415 - torch and all else, once

    folder, timeout_s, *handles = sys.argv[1:]
    connections = [Connection(int(handle)) for handle in handles]
    gc.freeze()
    processes = []
    for rank, connection in enumerate(connections):
        process = os.fork()
        if not process:
            for other in connections:
                if other is not connection:
                    other.close()
            _serve(connection, folder, rank, len(connections), float(timeout_s))
        processes.append(process)
    for connection in connections:
        connection.close()
    for process in processes:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
