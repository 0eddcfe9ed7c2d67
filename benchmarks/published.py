"""``python -m benchmarks.published``: published refit times beside simulated ones.

The command writes tables and sentences; each sentence that claims something is checked, and where one is not
true any more the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.pages import Place
from benchmarks.published_account import Simulated, moved, simulate_row
from benchmarks.published_rows import PUBLISHED, SIZES, Published
from benchmarks.published_tables import report
from reshard_planner.errors import ReshardError

PLACE = Place("simulated")
"""Where a page has the tables."""

EXAMPLES = """examples:
  python -m benchmarks.published
  python -m benchmarks.published --write docs/published.md
  python -m benchmarks.published --row qwen3-235b-h100 --no-sizes
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate the rows that are asked for; 0 if all claims hold, 1 if not, 2 if they cannot be simulated."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.write is not None:
        if given.row or given.no_sizes:
            parser.error("--write writes all of the page; expected neither --row nor --no-sizes with it")
        problem = PLACE.why_not(given.write)
        if problem is not None:
            parser.error(problem)
    chosen = [row for row in PUBLISHED if not given.row or row.name in given.row]
    try:
        simulated = [_simulated(row, f"[{at}/{len(chosen)}] ") for at, row in enumerate(chosen, 1)]
        _show("payloads")
        sizes = [] if given.no_sizes else [moved(size) for size in SIZES]
    except ReshardError as error:
        sys.stderr.write(f"\n{parser.prog}: {error}\n")
        return 2
    finally:
        _show("")
    return finish(*report(simulated, sizes), given.write)


def finish(text: str, untrue: Sequence[str], page: Path | None = None) -> int:
    """Write the tables, into a page as well if there is one; 1 if a sentence is not true, else 0."""
    sys.stdout.write(text)
    if page is not None:
        PLACE.write(page, text)
    sys.stderr.writelines(f"NOT TRUE: {claim}\n" for claim in untrue)
    return int(bool(untrue))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published",
        description="Simulate refits whose times NVIDIA published.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [row.name for row in PUBLISHED]
    parser.add_argument("--row", action="append", choices=known, help="only these; may be repeated")
    parser.add_argument("--no-sizes", action="store_true", help="leave out payloads of the largest models")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables into a page")
    return parser


def _show(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def _simulated(row: Published, head: str) -> Simulated:
    began = time.monotonic()
    found = simulate_row(row, lambda stage: _show(f"{head}{row.name}: {stage}"))
    _show("")
    sys.stderr.write(f"{head}{row.name}: {time.monotonic() - began:.0f} s\n")
    return found


if __name__ == "__main__":
    sys.exit(main())
