"""The command ``reshard-planner``: verbs, exit codes and errors.

Exit codes: 0 success, 1 a plan that fails its check or a run that went wrong, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import NoReturn, TextIO

from reshard_planner import early
from reshard_planner.cli.output import flush, print_error
from reshard_planner.cli.verbs import VERBS
from reshard_planner.errors import InputError, ReshardError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, early.INTERRUPTED

MAX_ERROR = 1000
"""Most characters of an error that are shown, since errors repeat values of any length."""

EPILOG = """\
examples:
  reshard-planner compile spec.yaml -o plan.reshard     compile a plan and print its certificate
  reshard-planner verify plan.reshard                   recompute every claim of it
  reshard-planner compare spec.yaml                     our plan and every baseline beside the bound
  reshard-planner run spec.yaml --executor torch        execute it with local processes, check every element

Every verb has its own --help with examples.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence on stderr."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = Parser(
        prog="reshard-planner",
        description="Compile two layouts of the same tensors and a cluster into a minimal transfer plan.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('reshard-planner')}")
    parser.set_defaults(json=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        verb.add_to(verbs).set_defaults(run=verb.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the module's text.

    Args:
        arguments: without the program's name; those of the process when None.
    """
    try:
        early.hand_over()
        parsed = _parse(arguments)
        if isinstance(parsed, int):
            return parsed
        code: int = parsed.run(parsed)
        flush()
    except InputError as error:
        return _fail(error, BAD_INPUT)
    except ReshardError as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence(sys.stdout)
        return OK
    except MemoryError:
        return _fail("not enough memory for a plan of this size", BAD_INPUT)
    except OSError as error:
        # what verbs read and write has errors of its own: this is the output stream
        _silence(sys.stdout)
        return _fail(f"cannot print the result: {error.strerror}", FAILED)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace | int:
    """What is asked; or the exit code, where the parser has said all that there is to say."""
    try:
        return build_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else BAD_INPUT


def _silence(stream: TextIO) -> None:
    """Keep the interpreter from complaining when it flushes a stream that nobody can write to."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(error: Exception | str, code: int) -> int:
    text = " ".join(str(error).split())
    shown = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} ..."
    try:
        print_error(f"reshard-planner: {shown}")
    except OSError:
        _silence(sys.stderr)
    return code
