"""Reading what the command line names: specs, plans, either, and tensors within them."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.output import end_progress, terminal_progress
from reshard_planner.compiler import compile as compile_spec
from reshard_planner.errors import InputError
from reshard_planner.ir.forms import is_plan
from reshard_planner.ir.plan import Plan
from reshard_planner.routing import STRATEGIES
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.file import looks_like_plan


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Declare ``--strategy``."""
    lines = "; ".join(f"{name}: {strategy.summary}" for name, strategy in STRATEGIES.items())
    parser.add_argument(
        "--strategy", metavar="S", help=f"routing strategy instead of the spec's own ({lines})"
    )


def compile_with_progress(spec: ReshardSpec, strategy: str | None = None) -> Plan:
    """Compile and show the stages on a terminal."""
    try:
        return compile_spec(spec, strategy, terminal_progress())
    finally:
        end_progress()


def load_or_compile(path: Path, strategy: str | None = None) -> Plan:
    """Read a plan, or read a spec and compile it.

    Raises:
        InputError: if the file is neither, or a strategy is asked of a finished plan.
    """
    if not (looks_like_plan(path) or is_plan(path)):
        return compile_with_progress(ReshardSpec.load(path), strategy)
    plan = Plan.load(path)
    if strategy is not None and strategy != plan.spec.options.strategy:
        raise InputError(
            f"--strategy {strategy} cannot change {path}, which is a plan; give its spec instead"
        )
    return plan


def read_spec(path: Path) -> ReshardSpec:
    """Read a spec, or a plan and take its spec.

    Raises:
        InputError: if the file is neither.
    """
    return Plan.load(path).spec if looks_like_plan(path) or is_plan(path) else ReshardSpec.load(path)


def tensor_position(spec: ReshardSpec, name: str) -> int:
    """Position of a tensor in a spec.

    Raises:
        InputError: if there is none of this name.
    """
    return spec.tensors.index(spec.tensor(name))


def check_rank(spec: ReshardSpec, rank: int | None) -> None:
    """Refuse a rank that the spec does not have.

    Raises:
        InputError: naming the rank.
    """
    if rank is not None and rank not in spec.ranks:
        raise InputError(f"--rank {rank} is no rank of the spec, which has {len(spec.ranks)} ranks")
