"""The command ``reshard-executors``: verbs, exit codes and errors."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import NoReturn

from reshard_executors.command.codes import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    PROGRAM,
    TERMINATED,
    Terminated,
)
from reshard_executors.command.exits import CODES, CommandError, code_of
from reshard_executors.command.output import PrintError, print_error, print_text
from reshard_executors.command.supervise import hearing_sigterm
from reshard_executors.command.verbs import VERBS
from reshard_executors.launchers import rank_info
from reshard_planner.errors import InputError, ReshardError


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, also where its help cannot be printed."""

    def _print_message(self, message: str, _file: object = None) -> None:
        print_text(message)

    def error(self, message: str) -> NoReturn:
        raise CommandError(BAD_INPUT, f"{message}; see {self.prog} --help", speaks=True)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog=PROGRAM,
        description="Execute compiled transfer plans on clusters. Every process of a launcher runs this.",
        epilog=f"{CODES}\nEvery verb has its own --help with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('reshard-planner')}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for verb in VERBS:
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.description,
            epilog=verb.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        sub.set_defaults(run=verb.run)
    return parser


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return its exit code; see :mod:`reshard_executors.command.codes`.

    Errors are one sentence on stderr, and what all ranks find wrong alike is said by rank 0 alone.

    Args:
        arguments: without the program's name; those of the process when None.
        environ: with the launcher's variables; that of the process when None.
    """
    variables = os.environ if environ is None else environ
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # it prints what it also raises, and pages of it
    with hearing_sigterm():
        try:
            return _run(arguments, variables)
        except (CommandError, ReshardError, PrintError, KeyboardInterrupt, Terminated, MemoryError) as error:
            if isinstance(error, PrintError) and error.unwanted:
                return DONE
            failure = _failure_of(error, variables)
        _say(failure, variables)
        with suppress(KeyboardInterrupt, Terminated):
            time.sleep(failure.stay_s)
    return failure.code


def _failure_of(error: BaseException, environ: Mapping[str, str]) -> CommandError:
    """What an error means for the command."""
    match error:
        case CommandError():
            return error
        case ReshardError():
            return CommandError(code_of(error), str(error), speaks=_speaks(environ))
        case Terminated():
            return CommandError(TERMINATED, "ended by SIGTERM", speaks=True)
        case PrintError():
            return CommandError(FAILED, str(error), speaks=True)
        case MemoryError():
            return CommandError(BAD_INPUT, "there is not enough memory for a plan of this size", speaks=True)
        case _:
            return CommandError(INTERRUPTED, "interrupted", speaks=True)


def _run(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> int:
    try:
        parsed = build_parser().parse_args(arguments)
    except SystemExit as stop:  # after --help and --version
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except CommandError as failure:
        raise CommandError(failure.code, failure.text, speaks=_speaks(environ)) from None
    code: int = parsed.run(parsed, environ)
    return code


def _rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this process; None where that is not clear, or it is the only one."""
    try:
        info = rank_info(environ)
    except InputError:
        return None
    return None if info.launcher == "none" else info.rank


def _speaks(environ: Mapping[str, str]) -> bool:
    """Whether this process says what is wrong with its arguments: one does where a launcher gave all of them.

    Those that were started one by one, with RANK set by hand, may have been given different ones.
    """
    rank = _rank(environ)
    return rank in {0, None} or ("RANK" in environ and "LOCAL_WORLD_SIZE" not in environ)


def _say(failure: CommandError, environ: Mapping[str, str]) -> None:
    rank = _rank(environ)
    if failure.speaks:
        print_error(failure.text if rank is None else f"rank {rank}: {failure.text}")
