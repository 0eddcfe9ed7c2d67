"""Processes of the command ``reshard-executors`` that start at once: torch is imported once, then forked.

Run as a script it becomes the process that forks them. It reads requests, one line of JSON each: to start
processes, or to wait for one.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshard_executors.local import ENVIRONMENT

PATIENCE_S = 60
"""Longer than anything here takes."""


@dataclass(frozen=True)
class Done:
    """A process that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Command:
    """A process that has been started."""

    commands: Commands
    pid: int
    out: Path
    err: Path

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Done:
        code = self.commands.ask({"wait": self.pid})["code"]
        texts = [path.read_text(encoding="utf-8") if path.is_file() else "" for path in (self.out, self.err)]
        return Done(code, *texts)


class Commands:
    """Starts processes of the command."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, "TORCH_CPP_LOG_LEVEL": "FATAL"},
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def start(
        self,
        arguments: Sequence[object],
        environ: Mapping[str, str],
        out: Path | None = None,
        **limits: int,
    ) -> Command:
        """Start one process, with these variables of a launcher, printing into a file.

        With ``most_nbytes`` no file that it writes may be larger.
        """
        self._count += 1
        printed, err = (self._folder / f"{self._count}.{end}" for end in ("out", "err"))
        out = out or printed
        request = {
            "arguments": list(map(str, arguments)),
            "environ": dict(environ),
            "out": str(out),
            "err": str(err),
            **limits,
        }
        return Command(self, self.ask(request)["pid"], out, err)

    def start_world(self, size: int, *arguments: object, **limits: int) -> list[Command]:
        """Start all ranks of a world on loopback."""
        port = free_port()
        return [self.start(arguments, variables(rank, size, port), **limits) for rank in range(size)]

    def run_world(self, size: int, *arguments: object, **limits: int) -> list[Done]:
        """Start all ranks, and wait for them."""
        return [command.wait() for command in self.start_world(size, *arguments, **limits)]

    def close(self) -> None:
        """End the server, which ends what it has started."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(PATIENCE_S)
        finally:
            self._server.kill()
            assert self._server.stdout is not None
            self._server.stdout.close()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun would set for one of several processes on this host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _live(request: Mapping[str, Any]) -> None:
    """Be one process of the command."""
    from reshard_executors.command import start  # noqa: PLC0415 - imported already

    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "most_nbytes" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["most_nbytes"],) * 2)
    os.environ.update(request["environ"])
    sys.argv[1:] = request["arguments"]
    start()


def main() -> None:
    """Start and wait for processes as asked, until nobody asks any more."""
    import reshard_executors.command.session  # noqa: F401, PLC0415 - torch and all else, once

    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            pid = request["wait"]
            until = time.monotonic() + PATIENCE_S
            while not (found := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
                time.sleep(0.01)
            if not found[0]:
                os.kill(pid, signal.SIGKILL)
                found = os.waitpid(pid, 0)
            running.discard(pid)
            answer = {"code": os.waitstatus_to_exitcode(found[1])}
        else:
            pid = os.fork()
            if not pid:
                _live(request)
            running.add(pid)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)  # noqa: T201 - the answer
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
