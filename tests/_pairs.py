"""Regular pairs of layouts, as specs and as cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from unittest.mock import patch

import reshard_planner as rp
from reshard_planner.bounds import Bound, compute_bound
from reshard_planner.bounds.needs import Needs
from reshard_planner.bounds.program import MAX_VARIABLES, variable_count
from reshard_planner.capacities import Capacities
from reshard_planner.demand import find_demands, find_geometries, minimum_network_nbytes
from reshard_planner.ir import Certificate
from reshard_planner.ir.assemble import assemble
from reshard_planner.ir.certificate import certify
from reshard_planner.routing import Problem, find_strategy
from reshard_planner.schedule import assign_rounds, measure, time_forests, wanted_pace
from reshard_planner.simulate.costs import LinkCosts, with_link_costs
from reshard_planner.symbolic import Case, Side, count_classes
from reshard_planner.topology import Domain, Link, Nic, Ports

GB = 10**9


@dataclass(frozen=True)
class Pair:
    """One pair: (shards, replicas, GPUs per domain) of both sides, and what else a case has."""

    src: tuple[int, int, int]
    dst: tuple[int, int, int]
    cross: bool = False
    stages: int = 1
    largest: int = 1  # bytes of the first stage, as a multiple of the others'
    neighbours: int = 0
    nic: tuple[int, int] = (50 * GB, 50 * GB)
    nvlink: tuple[int, int] = (450 * GB, 450 * GB)
    alpha_s: float = 15e-6
    rows: int = 64  # of each pair of shards; a multiple of it
    columns: int = 1

    @property
    def sides(self) -> tuple[Side, Side]:
        before, after = (
            Side.packed(shards, replicas, gpus, nic, nvlink)
            for (shards, replicas, gpus), nic, nvlink in zip(
                (self.src, self.dst), self.nic, self.nvlink, strict=True
            )
        )
        return before, after

    @property
    def case(self) -> Case:
        before, after = self.sides
        one = self.unit_nbytes
        return Case(
            one * (self.stages - 1 + self.largest),
            before,
            after,
            count_classes({"rows": before.shards}, {"columns" if self.cross else "rows": after.shards}),
            self.stages,
            Fraction(one * self.largest),
            self.neighbours,
            self.alpha_s,
        )

    @property
    def unit_nbytes(self) -> int:
        """Bytes of all stages but the first."""
        return self.shape[0] * self.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        if self.cross:
            return self.src[0] * self.rows, self.dst[0] * self.columns
        return max(self.src[0], self.dst[0]) * self.rows, self.columns

    def spec(self, **options: object) -> rp.ReshardSpec:
        """The pair as a spec of one int8 tensor per stage, with the neighbours in an empty one."""
        before, after = self.sides
        domains: list[tuple[list[int], int]] = []
        meshes = []
        start = 0
        for _ in range(self.stages):
            own = list(range(start, start + before.shards * before.replicas))
            meshes.append(_mesh(own, before.shards))
            size = before.distinct * before.copies
            domains += [(own[first : first + size], 0) for first in range(0, len(own), size)]
            start += len(own)
        needers: list[int] = []
        others: list[int] = []
        size = after.distinct * after.copies
        for _ in range(after.shards * after.replicas // size):
            own = list(range(start, start + size))
            lent = list(range(start + size, start + size + self.neighbours))
            domains.append((own + lent, 1))
            needers += own
            others += lent
            start += size + self.neighbours
        dst = rp.Layout(_mesh(needers, after.shards), ["R", "S(1)" if self.cross else "S(0)"])
        rows, columns = self.shape
        tensors = [
            rp.TensorSpec(
                f"w{stage}",
                (rows * (1 if stage else self.largest), columns),
                "int8",
                rp.Layout(mesh, ["R", "S(0)"]),
                dst,
            )
            for stage, mesh in enumerate(meshes)
        ]
        if others:
            idle = rp.Layout(rp.Mesh(others), ["R"])
            tensors.append(rp.TensorSpec("idle", (0,), "int8", idle, idle))
        topology = rp.Topology(
            tuple(Domain(tuple(own), Link(self.nvlink[side], 1.0, self.alpha_s)) for own, side in domains),
            tuple(
                Nic((gpu,), Link(self.nic[side], 1.0, self.alpha_s)) for own, side in domains for gpu in own
            ),
        )
        return rp.ReshardSpec(tensors, topology, rp.Options(**options))


def parts_of(spec: rp.ReshardSpec) -> tuple[Ports, Needs, Capacities]:
    """What cuts are summed from."""
    ports = Ports.of(spec.topology, spec.ranks)
    capacities = Capacities(ports, spec.ranks)
    return ports, Needs(find_demands(find_geometries(spec, ports), ports), capacities), capacities


def is_small(spec: rp.ReshardSpec) -> bool:
    """Whether the planner proves its bound with a linear program, where closed cuts do not reach it."""
    _, needs, capacities = parts_of(spec)
    return variable_count(needs, capacities, restricted=False) <= MAX_VARIABLES


def compile_in(spec: rp.ReshardSpec, strategy: str, rounds: int) -> Certificate:
    """The certificate of a plan in a given number of rounds, however many would pay."""
    ports = Ports.of(spec.topology, spec.ranks)
    geometries = find_geometries(spec, ports)
    demands = find_demands(geometries, ports)
    problem = Problem(spec, ports, geometries, demands, compute_bound(demands, ports, spec.ranks))
    forests = find_strategy(strategy).route(problem)
    workload = measure(problem, forests)
    pace = replace(wanted_pace(problem, workload), rounds=rounds)
    timings = time_forests(problem, forests, workload, pace)
    # where slots cost nothing to start no rounds are joined to save some, and units keep to their turns
    free = with_link_costs(spec.topology, LinkCosts(nic_latency_s=0.0, nvlink_latency_s=0.0))
    told = replace(problem, spec=rp.ReshardSpec(spec.tensors, free, spec.options))
    with patch("reshard_planner.schedule.rounds.NEARLY_IDEAL", inf):
        units = assign_rounds(told, forests, workload, timings, pace)
    tables = assemble(len(spec.tensors), forests, timings, units)
    return certify(spec, tables, demands, ports, problem.bound)


def prove(spec: rp.ReshardSpec) -> tuple[int, Bound]:
    """P* and the bound, as the planner finds them."""
    ports = Ports.of(spec.topology, spec.ranks)
    demands = find_demands(find_geometries(spec, ports), ports)
    return minimum_network_nbytes(demands), compute_bound(demands, ports, spec.ranks)


def _mesh(ranks: list[int], shards: int) -> rp.Mesh:
    return rp.Mesh([ranks[start : start + shards] for start in range(0, len(ranks), shards)], ["dp", "tp"])
