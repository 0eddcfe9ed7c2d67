"""Fitting: the costs under which predictions come closest to measured times.

With the reciprocals of rates all costs are times, and predictions are homogeneous in them: where every cost
doubles, the time of a run does. So near any point the predicted time is a sum of costs, each times how often
it counts, and least squares with bounds find the next point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.simulate.costs import FREE, Costs, LinkCosts, is_number, with_link_costs
from reshard_planner.simulate.predict import predict_workload
from reshard_planner.simulate.workload import Workload
from reshard_planner.topology.model import MIN_LATENCY_S

Floats = NDArray[np.float64]

RECIPROCALS = ("nic_efficiency", "nvlink_efficiency", "pack_bytes_per_s")
"""Fields that are fitted as their reciprocals."""

LINKS = ("nic_efficiency", "nic_latency_s", "nvlink_efficiency", "nvlink_latency_s")
"""Fields of :class:`LinkCosts`."""

HOSTS = ("pack_bytes_per_s", "slot_s", "message_s")
"""Fields of :class:`Costs`."""

LEAST = {"nic_efficiency": 1.0, "nvlink_efficiency": 1.0}
"""Least values of what is fitted, where not 0."""

MAX_STEPS = 30
"""Most points that are tried in turn."""

MAX_HALVINGS = 10
"""How often the way to the next point is halved before the search ends."""

STEP = 1e-4
"""Difference over which slopes are taken, as a share of the largest values that all measurements allow."""

MOST = 0.9
"""Share of the time that one cost takes in all starting points but the first."""

GOOD = 1e-10
"""Sum of the squares of all errors that is not worth another starting point."""

LARGE = 1e6
"""Value at which one cost outweighs all others: as a reciprocal, or in units of the measured times."""

MAX_LARGE_S = 4e5
"""Most seconds that one cost is set to for that; latencies are below 1e6."""

NO_INFLUENCE = 1e-9
"""Relative change of a predicted time that is rounding."""

LEAST_GAIN = 1e-6
"""Relative gain below which another step is not worth it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run that was timed.

    Attributes:
        plan: what ran.
        elapsed_s: time of the slowest rank, in seconds, above 0.
    """

    plan: Plan
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Costs that explain some measurements.

    Attributes:
        links: costs of the links; None where they were not fitted.
        costs: costs of the ranks' own work.
        predicted_s: predicted time of each measured run with them, in seconds.
        error: largest relative difference from what was measured.
    """

    links: LinkCosts
    costs: Costs
    predicted_s: tuple[float, ...]
    error: float


def fit_costs(
    measurements: Sequence[Measurement],
    free: Sequence[str] = ("nic_efficiency", "nic_latency_s"),
    costs: Costs = FREE,
) -> Fit:
    """Find the costs that explain measured runs.

    Measurements must tell the costs apart: large messages show efficiencies, many small ones show latencies
    and the time per slot and message.

    Args:
        measurements: at least as many as there are fields to fit, with relative errors of equal weight.
        free: fields of :class:`LinkCosts` and :class:`Costs` to fit.
        costs: costs of the ranks' own work that are not fitted; links that are not keep what the topology of
            each plan says.

    Raises:
        InputError: if a field is unknown or named twice, there are too few measurements, a time is not
            above 0, or a field does not change the time of any measured run.
    """
    problem = _Problem(measurements, free, costs)
    best: Floats | None = None
    for start in problem.starts():
        point = _descend(problem, start)
        if best is None or problem.cost(point) < problem.cost(best):
            best = point
        if problem.cost(best) < GOOD:
            break
    return problem.fit(problem.least if best is None else best)


class _Problem:
    """Measured times as a function of the free costs, each as a time."""

    def __init__(self, measurements: Sequence[Measurement], free: Sequence[str], costs: Costs) -> None:
        self.free, self.costs = tuple(free), costs
        for name in self.free:
            if name not in (*LINKS, *HOSTS):
                raise InputError(f"free names {name!r}; expected some of {', '.join((*LINKS, *HOSTS))}")
        if len(set(self.free)) != len(self.free):
            raise InputError(f"free is {self.free}; expected each field once")
        if len(measurements) < max(1, len(self.free)):
            raise InputError(
                f"measurements has {len(measurements)} entries; expected at least {max(1, len(self.free))},"
                " one for each field to fit"
            )
        for measurement in measurements:
            if not is_number(measurement.elapsed_s) or not 0 < measurement.elapsed_s < inf:
                raise InputError(f"elapsed_s is {measurement.elapsed_s!r}; expected a time above 0")
        self.measured = np.array([measurement.elapsed_s for measurement in measurements])
        self.topologies = [measurement.plan.spec.topology for measurement in measurements]
        made: dict[str, Workload] = {}
        for measurement in measurements:
            if measurement.plan.digest not in made:
                made[measurement.plan.digest] = Workload.of(measurement.plan)
        self.workloads = [made[measurement.plan.digest] for measurement in measurements]
        self.least = np.array([LEAST.get(name, 0.0) for name in self.free])
        limits = np.array([self._limits(at) for at in range(len(self.free))]).reshape(-1, 2)
        self.most, self.upper = limits.T

    def _limits(self, at: int) -> tuple[float, float]:
        """The largest values of one cost that all measurements allow, and that one of them does.

        They come from the slope of the predicted time where the cost is large.
        """
        times = self.predict(self.least)
        name = self.free[at]
        large = LARGE if name in LEAST else min(LARGE * float(self.measured.max() + times.max()), MAX_LARGE_S)
        point = self.least.copy()
        point[at] = large
        once = self.predict(point)
        point[at] = 2 * large
        slope = (self.predict(point) - once) / large
        seen = slope * large > NO_INFLUENCE * once
        if not seen.any():
            raise InputError(f"free names {name!r}, which changes the time of no measured run")
        values = np.maximum(self.measured[seen] / slope[seen], (1 + STEP) * self.least[at])
        return float(values.min()), float(values.max())

    def settings(self, point: Floats) -> tuple[LinkCosts, Costs]:
        """The costs at a point."""
        values: dict[str, Any] = {}
        for name, value in zip(self.free, point.tolist(), strict=True):
            if name in RECIPROCALS:
                values[name] = 1 / value if value else None
            else:
                values[name] = 0.0 if name.endswith("latency_s") and value < MIN_LATENCY_S else value
        links = {name: value for name, value in values.items() if name in LINKS}
        hosts = {name: value for name, value in values.items() if name in HOSTS}
        return replace(LinkCosts(), **links), replace(self.costs, **hosts)

    def predict(self, point: Floats) -> Floats:
        """Predicted time of each measured run."""
        links, costs = self.settings(point)
        return np.array(
            [
                predict_workload(workload, with_link_costs(topology, links), costs).elapsed_s
                for workload, topology in zip(self.workloads, self.topologies, strict=True)
            ]
        )

    def starts(self) -> Iterator[Floats]:
        """Points to begin at: all costs take an equal share of the time, or one takes most of it."""
        count = len(self.free)
        shares = np.full((count + 1, count), 1 / max(1, count))
        shares[1:] = (1 - MOST) / max(1, count - 1)
        np.fill_diagonal(shares[1:], MOST)
        for share in shares[: count + 1 if count > 1 else count]:
            yield np.maximum(self.least, self.most * share)

    def cost(self, point: Floats) -> float:
        """What is made least: the sum of the squares of all errors."""
        errors = self.errors(point)
        return float(errors @ errors)

    def errors(self, point: Floats) -> Floats:
        """Relative difference of each prediction from what was measured."""
        errors: Floats = self.predict(point) / self.measured - 1
        return errors

    def fit(self, point: Floats) -> Fit:
        """The result at a point."""
        predicted = self.predict(point)
        error = float(np.abs(predicted / self.measured - 1).max())
        return Fit(*self.settings(point), tuple(predicted.tolist()), error)


def _descend(problem: _Problem, point: Floats) -> Floats:
    """The point with the least errors that is found from another one."""
    for _ in range(MAX_STEPS):
        better = _improve(problem, point)
        if better is None:
            break
        point = better
    return point


def _improve(problem: _Problem, point: Floats) -> Floats | None:
    """A point with smaller errors, on the way to where they are least if slopes stay; None without one."""
    from scipy.optimize import lsq_linear  # noqa: PLC0415 - scipy is slow to import

    errors = problem.errors(point)
    slopes = np.empty((len(errors), len(point)))
    for at in range(len(point)):
        beside = point.copy()
        beside[at] += STEP * problem.most[at]
        slopes[:, at] = (problem.errors(beside) - errors) / STEP
    now = point / problem.most
    bounds = (problem.least / problem.most, problem.upper / problem.most)
    goal = lsq_linear(slopes, slopes @ now - errors, bounds=bounds, method="bvls").x
    cost = float(errors @ errors)
    for halving in range(MAX_HALVINGS):
        other: Floats = np.maximum(problem.least, (now + (goal - now) / 2**halving) * problem.most)
        if problem.cost(other) < cost * (1 - LEAST_GAIN):
            return other
    return None
