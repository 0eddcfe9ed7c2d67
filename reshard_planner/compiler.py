"""Compiling: from a spec to a plan, one stage after another."""

from __future__ import annotations

from reshard_planner.bounds import compute_bound
from reshard_planner.demand import find_demands, find_geometries
from reshard_planner.errors import UnsupportedError
from reshard_planner.ir.assemble import assemble
from reshard_planner.ir.certificate import certify
from reshard_planner.ir.memory import staging_nbytes
from reshard_planner.ir.ops import Expansion, Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Tables
from reshard_planner.progress import Progress, silent
from reshard_planner.routing import Forest, Problem, find_strategy
from reshard_planner.schedule import (
    assign_rounds,
    count_ops,
    measure,
    time_forests,
    wanted_rounds,
)
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports

MAX_OPS = 2_000_000
"""Operations above which no finer schedule is made, be it for speed or to save staging."""


def compile(  # noqa: A001 - the verb of the command line, always used as rp.compile
    spec: ReshardSpec, strategy: str | None = None, progress: Progress = silent
) -> Plan:
    """Compile a spec into a plan.

    Args:
        spec: tensors with both layouts, topology and options.
        strategy: name of the strategy; the one of the spec's options when None.
        progress: called with the name of each stage as it begins.

    Raises:
        InputError: if the strategy is unknown, bytes would have to cross the network where no NIC is, or no
            schedule keeps within the staging budget.
    """
    if strategy is not None and strategy != spec.options.strategy:
        spec = spec.with_options(strategy=strategy)
    chosen = find_strategy(spec.options.strategy)
    progress("atoms")
    ports = Ports.of(spec.topology, spec.ranks)
    geometries = find_geometries(spec, ports)
    demands = find_demands(geometries, ports)
    progress("bound")
    bound = compute_bound(demands, ports, spec.ranks)
    problem = Problem(spec, ports, geometries, demands, bound)
    progress("routes")
    forests = chosen.route(problem)
    progress("schedule")
    tables, ops = _schedule(problem, forests, must_fit=chosen.claims_least)
    progress("certificate")
    return Plan.seal(spec, tables, certify(spec, ops, demands, ports, bound))


def _schedule(problem: Problem, forests: list[Forest], *, must_fit: bool) -> tuple[Tables, Ops]:
    """Schedule in as many rounds as cost least time, or in more until staging fits the budget."""
    options = problem.spec.options
    shapes, busiest_s = measure(problem, forests)
    rounds = wanted_rounds(problem, shapes, busiest_s)
    most = max((shape.finest * shape.tensors for shape in shapes), default=1) * max(1, len(shapes))
    least_message = options.min_message_nbytes
    timings = time_forests(problem, forests, shapes, busiest_s / rounds, least_message)
    while rounds > 1 and count_ops(shapes, timings) > MAX_OPS:
        rounds = max(1, rounds // 2)
        timings = time_forests(problem, forests, shapes, busiest_s / rounds, least_message)
    least: int | None = None
    while True:
        units = assign_rounds(forests, shapes, timings, busiest_s / rounds)
        tables = assemble(len(problem.spec.tensors), forests, timings, units)
        ops = Expansion(problem.spec, tables).expand()
        used = staging_nbytes(ops)
        if used <= options.staging_nbytes or not must_fit:
            return tables, ops
        least = used if least is None else min(least, used)
        exhausted = least_message == 1 and rounds >= most
        least_message = 1
        rounds = max(rounds * 2, -(-rounds * used // options.staging_nbytes))
        timings = time_forests(problem, forests, shapes, busiest_s / rounds, least_message)
        if exhausted or count_ops(shapes, timings) > MAX_OPS:
            raise UnsupportedError(
                f"options.staging is {options.staging_nbytes} bytes; the least that a schedule was found for"
                f" is {least} bytes on the rank that needs most"
            )
