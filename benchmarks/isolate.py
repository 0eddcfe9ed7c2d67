"""Running a worker: a fresh process with a time limit, followed stage by stage."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.worker import STAGE

ROOT = Path(__file__).resolve().parent.parent


class WorkerError(Exception):
    """A worker gave no record; the message is one line that says why."""


def run_worker(arguments: Sequence[str], timeout_s: float, tell: Callable[[str], None]) -> Any:
    """Run a worker and return what it prints.

    Args:
        arguments: of :mod:`benchmarks.worker`.
        timeout_s: seconds after which it is ended.
        tell: called with the name of each stage as it begins.

    Raises:
        WorkerError: if it takes too long, is ended, or prints no record.
    """
    command = [sys.executable, "-m", "benchmarks.worker", *arguments]
    with subprocess.Popen(  # noqa: S603 - this project's own module
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = _Follower(process.stderr, tell)
        output: list[str] = []
        reader = threading.Thread(
            target=lambda: output.append(process.stdout.read() if process.stdout else "")
        )
        reader.start()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WorkerError(f"{lines.stage}: not done within {timeout_s:g} s") from None
        except BaseException:
            process.kill()
            raise
        finally:
            reader.join()
            lines.join()
    if code:
        how = f"ended by signal {-code}" if code < 0 else lines.last or f"exit code {code}"
        raise WorkerError(f"{lines.stage}: {how}")
    try:
        return json.loads("".join(output))
    except ValueError:
        raise WorkerError(f"{lines.stage}: the worker printed no record") from None


class _Follower(threading.Thread):
    """Reads stderr: the current stage, and the last line that is not a stage."""

    def __init__(self, stream: IO[str] | None, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._stream, self._tell = stream, tell
        self.stage, self.last = "start", ""
        self.start()

    def run(self) -> None:
        for line in self._stream or ():
            if line.startswith(STAGE):
                self.stage = line.removeprefix(STAGE).strip()
                self._tell(self.stage)
            elif line.strip():
                self.last = line.strip()
