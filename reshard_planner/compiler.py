"""Compiling: from a spec to a plan, one stage after another."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from reshard_planner.bounds import compute_bound
from reshard_planner.demand import find_demands, find_geometries
from reshard_planner.errors import SpecError, UnsupportedError
from reshard_planner.ir.assemble import assemble
from reshard_planner.ir.certificate import certify
from reshard_planner.ir.memory import staging_of
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.tables import Tables
from reshard_planner.ir.traffic import Traffic, measure_traffic
from reshard_planner.progress import Progress, silent
from reshard_planner.routing import Forest, Problem, find_strategy
from reshard_planner.routing.loads import count_nbytes, measure_ports
from reshard_planner.schedule import (
    assign_rounds,
    count_ops,
    equal_cuts,
    measure,
    time_forests,
    wanted_pace,
)
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

FAST_OPS = 2_000_000
"""Operations above which no finer schedule is made for speed."""

MAX_OPS = 20_000_000
"""Operations above which none is made to save staging either; they are counted in half a second."""

ENOUGH_LESS = 0.9
"""Ratio of staging from one schedule to the next from which on messages are made smaller, too."""

HOPELESS = 100
"""Ratio to the staging budget at which schedules that no longer get better are given up."""

MAX_ATTEMPTS = 8
"""Schedules that are made until one keeps within the staging budget."""

MOST_REPEATS = 8
"""Chunks of all rows on average up to which finer schedules are made anyway."""


def compile(  # noqa: A001 - the verb of the command line, always used as rp.compile
    spec: ReshardSpec, strategy: str | None = None, progress: Progress = silent
) -> Plan:
    """Compile a spec into a plan.

    Args:
        spec: tensors with both layouts, topology and options.
        strategy: name of the strategy; the one of the spec's options when None.
        progress: called with the name of each stage as it begins.

    Raises:
        InputError: if the spec is none or the strategy unknown, bytes would have to cross the network where
            no NIC is, the plan exceeds the limits of peers, or no schedule keeps within the staging budget.
    """
    if not isinstance(spec, ReshardSpec):
        raise SpecError(
            f"spec is {reprlib.repr(spec):.60}, a {type(spec).__name__}; expected a ReshardSpec, which"
            " ReshardSpec.load reads from a file"
        )
    if strategy is not None and strategy != spec.options.strategy:
        spec = spec.with_options(strategy=strategy)
    problem = _problem(spec, progress)
    chosen = find_strategy(spec.options.strategy)
    progress("routes")
    forests = chosen.route(problem)
    progress("schedule")
    tables, traffic = _schedule(problem, forests, must_fit=chosen.claims_least)
    _refuse_peers(spec, traffic)
    progress("certificate")
    certificate = certify(spec, tables, problem.demands, problem.ports, problem.bound, traffic=traffic)
    return Plan.seal(spec, tables, certificate)


@dataclass(frozen=True, slots=True)
class Outline:
    """What routes alone tell of a plan.

    Attributes:
        network_nbytes: bytes over the network.
        nvlink_nbytes: bytes over NVLink.
        busiest_s: time of the busiest port at its datasheet rate, in seconds; no run takes less.
    """

    network_nbytes: int
    nvlink_nbytes: int
    busiest_s: float


def outline(spec: ReshardSpec, strategies: Iterable[str]) -> Iterator[tuple[str, Outline | UnsupportedError]]:
    """Route a spec by several strategies, without scheduling, which takes most of the time of a large plan.

    Args:
        spec: tensors with both layouts, topology and options.
        strategies: names of the strategies.

    Yields:
        Each strategy with its figures, or with why it refuses. Limits of peers, which are counted in
        schedules, are not looked at.

    Raises:
        InputError: if a strategy is unknown.
    """
    problem = _problem(spec, silent)
    for name in strategies:
        renamed = replace(problem, spec=spec.with_options(strategy=name))
        try:
            forests = find_strategy(name).route(renamed)
        except UnsupportedError as error:
            yield name, error
            continue
        nbytes = count_nbytes(renamed.spec, forests)
        yield (
            name,
            Outline(
                nbytes[Medium.NETWORK],
                nbytes[Medium.NVLINK],
                measure_ports(renamed.spec, renamed.ports, forests).busiest,
            ),
        )


def _problem(spec: ReshardSpec, progress: Progress) -> Problem:
    """A spec, taken apart."""
    progress("atoms")
    ports = Ports.of(spec.topology, spec.ranks)
    geometries = find_geometries(spec, ports)
    demands = find_demands(geometries, ports)
    progress("bound")
    return Problem(spec, ports, geometries, demands, compute_bound(demands, ports, spec.ranks))


def _refuse_peers(spec: ReshardSpec, traffic: Traffic) -> None:
    """Refuse a plan in which a rank exchanges bytes with more others than the options allow.

    ``optimal`` looks for a way that keeps the limits, and says itself what it found; others have no choice.
    """
    options = spec.options
    for field, over, peers, most in (
        ("max_network_peers", "the network", traffic.network_peers, options.max_network_peers),
        ("max_nvlink_peers", "NVLink", traffic.nvlink_peers, options.max_nvlink_peers),
    ):
        found = int(peers.max(initial=0))
        if found > most:
            raise UnsupportedError(
                f"by the rules of the strategy {options.strategy!r} rank {np.argmax(peers)} exchanges bytes"
                f" with {found} ranks over {over}, but options.{field} is {most}; expected {found} or more,"
                " or the strategy 'optimal', which keeps within fewer where it finds a way"
            )


def _schedule(problem: Problem, forests: list[Forest], *, must_fit: bool) -> tuple[Tables, Traffic]:
    """Schedule in as many rounds as cost least time, or in more until staging fits the budget."""
    options = problem.spec.options
    workload = measure(problem, forests)
    pace = wanted_pace(problem, workload)
    timings = time_forests(problem, forests, workload, pace)
    repeats = MOST_REPEATS * workload.rows
    while pace.rounds > 1 and count_ops(forests, workload, timings) > max(FAST_OPS, repeats):
        pace = replace(pace, rounds=max(1, pace.rounds // 2))
        timings = time_forests(problem, forests, workload, pace)
    least: int | None = None
    for _ in range(MAX_ATTEMPTS):
        units = assign_rounds(problem, forests, workload, timings, pace)
        tables = assemble(len(problem.spec.tensors), forests, timings, units)
        traffic = measure_traffic(problem.spec, tables, problem.ports)
        used = staging_of(traffic)
        if used <= options.staging_nbytes or not must_fit:
            return tables, traffic
        stuck = least is not None and used > ENOUGH_LESS * least
        least = used if least is None else min(least, used)
        coarser, before = timings, pace
        pace = pace.tighter(used / options.staging_nbytes)
        if stuck:
            pace = pace.finer()
        timings = time_forests(problem, forests, workload, pace)
        while all(map(equal_cuts, coarser, timings)) and pace.min_message_nbytes > 1:
            pace = pace.finer()
            timings = time_forests(problem, forests, workload, pace)
        exhausted = before.rounds >= workload.steps and all(map(equal_cuts, coarser, timings))
        hopeless = stuck and (before.min_message_nbytes == 1 or used > HOPELESS * options.staging_nbytes)
        if exhausted or hopeless or count_ops(forests, workload, timings) > max(MAX_OPS, repeats):
            break
    raise UnsupportedError(
        f"options.staging is {options.staging_nbytes} bytes; the least that a schedule was found for"
        f" is {least} bytes on the rank that needs most"
    )
