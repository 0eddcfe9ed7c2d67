"""Helper threads: a process waits for them before Python ends.

Python ends threads that come back from a backend's wait while it ends itself, in the middle of what they do,
and the C++ code around them ends the process then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Helper(threading.Thread):
    """A thread that works for callers who do not wait for it without end."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """Start it.

        Args:
            name: as debuggers show it.
            work: what it does.

        Raises:
            RuntimeError: if the system allows no more threads.
        """
        super().__init__(target=work, name=name, daemon=True)
        self.start()


def join_helpers(patience_s: float) -> None:
    """Wait for all helpers of this process, but the one that calls this, some seconds together at most."""
    until = time.monotonic() + patience_s
    for thread in threading.enumerate():
        if isinstance(thread, Helper) and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))
