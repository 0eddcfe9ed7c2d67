"""Running ``ip`` and ``tc``, and what they made."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
"""Where ``ip`` keeps the names of network namespaces."""

TOOL_WAIT_S = 30.0
"""How long one call may take before it counts as failed, in seconds."""

END_WAIT_S = 10.0
"""How long killed processes may take to end, in seconds."""

_PLACES = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Step:
    """Lines for one call of a tool.

    Attributes:
        tool: ``ip`` or ``tc``.
        namespace: name of the network namespace that it works in; that of the process when None.
        lines: commands, without the tool's name.
    """

    tool: str
    namespace: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What became of the wish for a cluster.

    Attributes:
        folder: a new folder, which goes with the cluster.
        problem: why there is no cluster; None if there is one.
    """

    folder: Path
    problem: str | None


def find_tool(name: str) -> str | None:
    """Path of a tool, also where only the administrator's ``PATH`` names its folder; None without it."""
    return shutil.which(name) or shutil.which(name, path=_PLACES)


def missing() -> str | None:
    """What this system lacks for a cluster, as a sentence; None if nothing is missing."""
    if sys.platform != "linux":
        return f"emulation needs the network namespaces of Linux; this system is {sys.platform}"
    for tool in ("ip", "tc"):
        if find_tool(tool) is None:
            return f"emulation needs the command {tool}, which was not found; install iproute2"
    return None


def perform(step: Step, *, force: bool = False) -> str | None:
    """Run a step; what went wrong, or None. With ``force`` lines that fail are passed over."""
    command = [find_tool(step.tool) or step.tool]
    if step.namespace is not None:
        command += ["-n", step.namespace]
    if force:
        command.append("-force")
    try:
        done = subprocess.run(  # noqa: S603 - a system tool with our own lines
            [*command, "-batch", "-"],
            input="".join(f"{line}\n" for line in step.lines),
            capture_output=True,
            text=True,
            timeout=TOOL_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{step.tool}: {error}"
    if done.returncode == 0 or force:
        return None
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"{step.tool}: {said[0]}"


def names() -> list[str]:
    """Names of all network namespaces that ``ip`` knows."""
    with suppress(OSError):
        return sorted(entry.name for entry in NAMESPACES.iterdir())
    return []


def remove(namespaces: Sequence[str]) -> None:
    """Kill every process in some namespaces, and delete them, with their ports."""
    if not namespaces:
        return
    inodes = set(filter(None, map(_identity_of_name, namespaces)))
    _end_processes(inodes)
    perform(Step("ip", None, tuple(f"netns del {name}" for name in namespaces)), force=True)
    _end_processes(inodes)  # one that was about to enter


def _end_processes(inodes: set[tuple[int, int]]) -> None:
    """Kill the processes in namespaces until there are none."""
    deadline = time.monotonic() + END_WAIT_S
    while time.monotonic() < deadline:
        found = list(processes_in(inodes))
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def processes_in(inodes: set[tuple[int, int]]) -> Iterable[int]:
    """Numbers of the processes in some namespaces, apart from this one."""
    for entry in os.listdir("/proc") if inodes else ():  # noqa: PTH208 - names are enough
        if entry.isdecimal() and int(entry) != os.getpid() and _identity(f"/proc/{entry}/ns/net") in inodes:
            yield int(entry)


def _identity_of_name(name: str) -> tuple[int, int] | None:
    return _identity(str(NAMESPACES / name))


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a namespace; None if it is gone."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of times
    except OSError:
        return None
    return found.st_dev, found.st_ino
