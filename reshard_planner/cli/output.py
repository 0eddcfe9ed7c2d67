"""Printing results and progress."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress, silent


def print_text(text: str) -> None:
    """Print lines to stdout; what it cannot show is escaped."""
    _print(sys.stdout, text)


def print_error(text: str) -> None:
    """Print a line to stderr, likewise."""
    _print(sys.stderr, text)
    if sys.stderr is not None:
        sys.stderr.flush()


def flush() -> None:
    """Hand what was printed to the system, which may have no room for it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the command was started with the stream closed
        return
    encoding = stream.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(shown if shown.endswith("\n") else shown + "\n")


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    print_text(json.dumps(value, indent=2, allow_nan=False))


def check_output(option: str, path: Path | None, source: Path) -> None:
    """Refuse to write over what is read.

    Args:
        option: the option that names the output.
        path: the output; None without one.
        source: the file that is read.

    Raises:
        InputError: if both are one file, or the system refuses such a path.
    """
    if path is None:
        return
    try:
        same = path.exists() and source.exists() and path.samefile(source)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot write {option} {str(path)!r:.200}: {reason}") from None
    if same:
        raise InputError(f"{option} {path} is the file that is read; expected another one")


def terminal_progress() -> Progress:
    """Show the current stage on one line of stderr if that is a terminal; else stay silent."""
    if sys.stderr is None or not sys.stderr.isatty():
        return silent

    def show(stage: str) -> None:
        sys.stderr.write(f"\r\x1b[K{stage} ...")
        sys.stderr.flush()

    return show


def end_progress() -> None:
    """Clear the line that progress was shown on."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The certificate with the plan's digest and size, in plain JSON types."""
    return {
        "digest": plan.digest,
        "strategy": plan.spec.options.strategy,
        "tensors": len(plan.spec.tensors),
        **plan.certificate.to_dict(),
    }
