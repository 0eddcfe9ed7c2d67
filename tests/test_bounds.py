"""Bounds: never above what a plan of least payload achieves, and equal to the optimum of a linear program.

The linear programs are written from the mathematics of docs/mathematics.md, over fluid flows per class and
NIC group, without the planner's cuts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import domains_of
from scipy.optimize import linprog
from strategies import STRATEGIES, specs, tensor_specs, topologies
from test_minimal_payload import TP_EXAMPLE

import reshard_planner as rp
from reshard_planner.bounds import ALL_SUBSETS_UP_TO, Bound, Needs, compute_bound, evaluate
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, find_demands, find_geometries
from reshard_planner.topology import Domain, Link, Nic, Ports
from reshard_planner.transfer import Medium

INSTANT = Link(2**52, 1.0, 0.0)
"""NVLink so fast that it never binds."""

INSTANTLY = 1e-9
"""More seconds than small tensors take over it, and far fewer than over a slow NIC."""


def bound_of(spec: rp.ReshardSpec) -> tuple[Bound, tuple[Demand, ...]]:
    ports = Ports.of(spec.topology, spec.ranks)
    demands = find_demands(find_geometries(spec, ports), ports)
    return compute_bound(demands, ports, spec.ranks), demands


def nic_groups(topology: rp.Topology) -> dict[int, tuple[int, int]]:
    """Group and its rate of every GPU, for topologies whose NICs are shared by equal sets of GPUs only."""
    rate: dict[tuple[int, ...], int] = defaultdict(int)
    for nic in topology.nics:
        rate[nic.gpus] += nic.link.bytes_per_s
    return {gpu: (number, total) for number, (gpus, total) in enumerate(rate.items()) for gpu in gpus}


def busiest_time(plan: rp.Plan) -> Fraction:
    """Exact time of the busiest NIC group or NVLink port in one direction, at datasheet rates."""
    topology = plan.spec.topology
    groups = nic_groups(topology)
    nvlink = {gpu: domain.link.bytes_per_s for domain in topology.domains for gpu in domain.gpus}
    load: dict[tuple[str, int, str], int] = defaultdict(int)
    rate: dict[tuple[str, int, str], int] = {}
    ops = plan.ops()
    for medium, src, dst, nbytes in zip(
        *(column.tolist() for column in (ops.medium, ops.src, ops.dst, ops.nbytes)), strict=True
    ):
        for rank, direction in ((src, "out"), (dst, "in")):
            if medium == Medium.NETWORK:
                group, speed = groups[rank]
                key = ("nic", group, direction)
            elif medium == Medium.NVLINK:
                key, speed = ("nvlink", rank, direction), nvlink[rank]
            else:
                continue
            load[key] += nbytes
            rate[key] = speed
    return max((Fraction(load[key], rate[key]) for key in load), default=Fraction(0))


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(spec=specs())
@example(spec=TP_EXAMPLE)
def test_no_plan_of_least_payload_beats_the_bound(strategy, spec):
    plan = rp.compile(spec, strategy)
    bound, _ = bound_of(spec)
    payload = plan.certificate.payload
    if payload.network_nbytes == payload.minimum_network_nbytes:
        assert busiest_time(plan) >= bound.time
    assert plan.certificate.bound.time_s == float(bound.time)


@given(specs())
def test_the_certificate_names_the_busiest_ports_and_the_gap(spec):
    plan = rp.compile(spec)
    certificate = plan.certificate
    busiest = busiest_time(plan)
    claimed = max(certificate.busiest_nic.time_s, certificate.busiest_nvlink.time_s)
    assert claimed == pytest.approx(float(busiest))
    bound, _ = bound_of(spec)
    if bound.time:
        assert certificate.gap == pytest.approx(float(busiest / bound.time) - 1, rel=1e-9, abs=1e-9)
    else:
        assert certificate.gap == (None if busiest else 0)
    assert certificate.schedule.time_s >= claimed * (1 - 1e-9)


@given(specs())
def test_the_cut_of_a_bound_proves_it(spec):
    bound, demands = bound_of(spec)
    assert bound.t0 >= bound.time == bound.cut.time
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    assert evaluate(bound.cut.kind, bound.cut.members, Needs(demands, capacities), capacities) == bound.cut
    moved = any(set(demand.needers) - set(demand.holders) for demand in demands)
    assert (bound.time > 0) == moved


class Program:
    """A linear program that minimises the time, built row by row.

    Bytes and rates enter in units of the largest of them, since solvers work with absolute tolerances.
    """

    def __init__(self, nbytes: int, bytes_per_s: int) -> None:
        self.nbytes, self.bytes_per_s = nbytes, bytes_per_s
        self.names: dict[tuple[object, ...], int] = {("time",): 0}
        self.rows: list[tuple[dict[int, float], float]] = []

    @classmethod
    def of(cls, spec: rp.ReshardSpec, demands: Sequence[Demand]) -> Program:
        links = [part.link for part in (*spec.topology.domains, *spec.topology.nics)]
        rates = [link.bytes_per_s for link in links if link is not INSTANT]
        return cls(max((demand.nbytes for demand in demands), default=1), max(rates))

    def var(self, *name: object) -> int:
        return self.names.setdefault(name, len(self.names))

    def at_most(self, terms: Iterable[tuple[float, int]], limit: float) -> None:
        """Sum of factor times variable, at most a number of bytes."""
        row: dict[int, float] = defaultdict(float)
        for factor, number in terms:
            row[number] += factor
        self.rows.append((row, limit / self.nbytes))

    def at_least(self, terms: Iterable[tuple[float, int]], limit: float) -> None:
        self.at_most([(-factor, number) for factor, number in terms], -limit)

    def exactly(self, terms: Sequence[tuple[float, int]], limit: float) -> None:
        self.at_most(terms, limit)
        self.at_least(terms, limit)

    def in_time(self, variables: Iterable[int], bytes_per_s: int) -> None:
        """The variables pass a port of this rate within the time."""
        self.at_most([*((1.0, number) for number in variables), (-bytes_per_s / self.bytes_per_s, 0)], 0)

    def least_time(self) -> float:
        """The optimum, in seconds."""
        if not self.rows:
            return 0.0
        matrix = np.zeros((len(self.rows), len(self.names)))
        for at, (row, _) in enumerate(self.rows):
            for number, factor in row.items():
                matrix[at, number] = factor
        cost = np.zeros(len(self.names))
        cost[0] = 1
        result = linprog(cost, A_ub=matrix, b_ub=[limit for _, limit in self.rows], method="highs")
        assert result.success, result.message
        return float(result.fun) * self.nbytes / self.bytes_per_s


def network_program(spec: rp.ReshardSpec, demands: Sequence[Demand], *, proxies: bool) -> Program:
    """Reception y and emission x per class and rank, limited by the NIC groups.

    With proxies every rank of a needing domain takes in, and every rank of a holding or needing domain
    emits; without, only ranks that hold or need the bytes. What a domain relays it must have taken in.
    """
    program = Program.of(spec, demands)
    home = domains_of(spec.topology)
    groups = nic_groups(spec.topology)
    loads: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, demand in enumerate(demands):
        copies = len(demand.needing_domains)
        if not copies:
            continue
        part = {*demand.holders, *demand.needers}
        taking = [rank for rank in spec.ranks if proxies or rank in demand.needers]
        emitting = [rank for rank in spec.ranks if proxies or rank in part]
        for domain in demand.needing_domains:
            inside = [rank for rank in taking if home[rank] == domain]
            program.exactly([(1, program.var("y", number, rank)) for rank in inside], demand.nbytes)
            for rank in inside:
                loads[groups[rank][0], "in"].append(program.var("y", number, rank))
        first = [rank for rank in emitting if home[rank] in demand.holder_domains]
        later = [rank for rank in emitting if home[rank] in demand.needing_domains]
        program.at_least([(1, program.var("x", number, rank)) for rank in first], demand.nbytes)
        every = [(1, program.var("x", number, rank)) for rank in first + later]
        program.exactly(every, copies * demand.nbytes)
        for rank in first + later:
            loads[groups[rank][0], "out"].append(program.var("x", number, rank))
    rates = dict(groups.values())
    for (group, _), variables in loads.items():
        program.in_time(variables, rates[group])
    return program


@st.composite
def network_specs(draw: st.DrawFn) -> rp.ReshardSpec:
    """Specs in which NVLink never binds, since it is instant and all NICs are slow."""
    pool = range(draw(st.integers(4, 12)))
    tensors = [draw(tensor_specs(f"t{i}", pool, ("float32",))) for i in range(draw(st.integers(1, 3)))]
    topology = draw(topologies(pool))
    domains = tuple(Domain(domain.gpus, INSTANT) for domain in topology.domains)
    rates = [nic.link.bytes_per_s for nic in topology.nics]
    divisor = 10**7 if max(rates) > 10**6 else 1
    nics = tuple(
        Nic(nic.gpus, Link(rate // divisor, 1.0, 0.0)) for nic, rate in zip(topology.nics, rates, strict=True)
    )
    return rp.ReshardSpec(tensors, rp.Topology(domains, nics))


def one_to_many(sources: int, groups: int, group: int) -> rp.ReshardSpec:
    """One tensor cut over few sources, wanted whole by many destinations: relays pay."""
    first = rp.Layout(rp.Mesh(list(range(sources))), ["S(0)"])
    ranks = range(sources, sources + groups * group)
    wanted = rp.Layout(rp.Mesh(list(ranks), None, (groups, group)), ["R", "S(0)"])
    domains = [range(sources), *(ranks[i : i + group] for i in range(0, len(ranks), group))]
    topology = rp.Topology.from_domains([list(d) for d in domains], Link(5_000, 1.0, 0.0), INSTANT)
    return rp.ReshardSpec([rp.TensorSpec("w", (24, 4), "float32", first, wanted)], topology)


@given(network_specs())
@example(one_to_many(1, 3, 2))
@example(one_to_many(2, 4, 2))
@example(one_to_many(4, 2, 1))
@example(one_to_many(3, 9, 1))
def test_the_closed_form_is_the_optimum_of_the_network(spec):
    """Equal while all sets of domains are tried, and never above it."""
    bound, demands = bound_of(spec)
    best = network_program(spec, demands, proxies=True).least_time()
    assert float(bound.time) <= best * (1 + 1e-6) + INSTANTLY
    crossing = [demand for demand in demands if demand.needing_domains]
    involved = {d for demand in crossing for d in (*demand.holder_domains, *demand.needing_domains)}
    if len(involved) <= ALL_SUBSETS_UP_TO:
        assert float(bound.time) == pytest.approx(best, rel=1e-6, abs=INSTANTLY)


@given(network_specs())
@example(one_to_many(1, 3, 2))
@example(one_to_many(2, 4, 2))
def test_t0_never_exceeds_the_optimum_without_proxies(spec):
    bound, demands = bound_of(spec)
    best = network_program(spec, demands, proxies=False).least_time()
    assert float(bound.t0) <= best * (1 + 1e-6) + INSTANTLY


def add_nvlink(program: Program, spec: rp.ReshardSpec, demands: Sequence[Demand]) -> None:
    """NVLink traffic that any plan of least payload needs beside its network flows, without proxies.

    Per class and rank, ``i`` comes in and ``o`` goes out over NVLink: a needer gets what its NIC does not
    bring, what comes in goes out somewhere in the domain, and what enters a domain at one rank, or is held
    by some ranks only, leaves them at least once if others need it.
    """
    home = domains_of(spec.topology)
    rates = {gpu: domain.link.bytes_per_s for domain in spec.topology.domains for gpu in domain.gpus}
    into: dict[int, list[int]] = defaultdict(list)
    out_of: dict[int, list[int]] = defaultdict(list)
    for number, demand in enumerate(demands):
        for domain in {home[rank] for rank in demand.needers}:
            holders = [rank for rank in demand.holders if home[rank] == domain]
            missing = [rank for rank in demand.needers if home[rank] == domain and rank not in holders]
            if not missing:
                continue
            ins = {rank: program.var("i", number, rank) for rank in missing}
            outs = {rank: program.var("o", number, rank) for rank in (*holders, *missing)}
            for rank, at in ins.items():
                arriving = [] if holders else [(1.0, program.var("y", number, rank))]
                program.at_least([(1, at), *arriving], demand.nbytes)
                into[rank].append(at)
                if not holders and len(missing) > 1:
                    program.at_least([(1, outs[rank]), (-1, program.var("y", number, rank))], 0)
            if holders:
                program.at_least([(1, outs[rank]) for rank in holders], demand.nbytes)
            program.at_least([*((1, at) for at in outs.values()), *((-1, at) for at in ins.values())], 0)
            for rank, at in outs.items():
                out_of[rank].append(at)
    for side in (into, out_of):
        for rank, variables in side.items():
            program.in_time(variables, rates[rank])


SHARED_FAN_OUT = rp.ReshardSpec(
    [
        rp.TensorSpec(
            "w", (), "float32", rp.Layout(rp.Mesh([0, 1]), ["R"]), rp.Layout(rp.Mesh([4, 5, 6]), ["R"])
        )
    ],
    rp.Topology.from_domains([[0, 1, 2, 3], [4, 5, 6]], Link(5_000, 1.0, 0.0), Link(5_000, 1.0, 0.0)),
)
"""A plan of more than the least payload would be faster: every NIC could take in its own copy."""


@given(specs(uniform=True, dtypes=("float32",), strategies=("optimal",)))
@example(TP_EXAMPLE)
@example(SHARED_FAN_OUT)
def test_the_bound_never_exceeds_the_optimum_of_network_and_nvlink(spec):
    bound, demands = bound_of(spec)
    program = network_program(spec, demands, proxies=False)
    add_nvlink(program, spec, demands)
    assert float(bound.time) <= program.least_time() * (1 + 1e-6)


SLOW = Link(1, 1.0, 0.0)


def cluster(*sizes: int, nvlink: Link = INSTANT) -> rp.Topology:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    lists = [list(range(a, a + n)) for a, n in zip(starts, sizes, strict=True)]
    return rp.Topology.from_domains(lists, SLOW, nvlink)


def reshard(src: rp.Layout, dst: rp.Layout, topology: rp.Topology, elements: int = 240) -> rp.ReshardSpec:
    return rp.ReshardSpec([rp.TensorSpec("w", (elements,), "uint8", src, dst)], topology)


def over(*ranks: int, placement: str = "R") -> rp.Layout:
    return rp.Layout(rp.Mesh(list(ranks)), [placement])


@pytest.mark.parametrize(
    ("spec", "kind", "members", "time"),
    [
        # one destination NIC takes in the whole tensor
        (reshard(over(0, 1, placement="S(0)"), over(2), cluster(2, 1)), "domain_ingress", (1,), 240),
        # one source NIC emits the unique bytes
        (reshard(over(0), over(1, 2, placement="S(0)"), cluster(1, 2)), "egress", (0,), 240),
        # of two source domains, the one that holds five sixths
        (
            reshard(rp.Layout(rp.Mesh([0, 2]), ["S(0)"]), over(3, 4, 5, 6), cluster(1, 1, 1, 4), 240),
            "egress",
            (0,),
            120,
        ),
        # one source and three single destinations: 720 bytes over four NICs, but each takes in 240
        (reshard(over(0), over(1, 2, 3), cluster(1, 1, 1, 1)), "domain_ingress", (1,), 240),
        # one source, destinations of two NICs: the source must emit each byte once
        (reshard(over(0), over(1, 2, 3, 4, 5, 6), cluster(1, 2, 2, 2)), "egress", (0,), 240),
        # no network: three neighbours fill three NVLink ports from one holder
        (
            reshard(over(0), over(1, 2, 3, placement="S(0)"), cluster(4, nvlink=SLOW)),
            "nvlink_port_out",
            (0,),
            240,
        ),
        # no network: a neighbour takes in everything from two holders
        (
            reshard(over(0, 1, placement="S(0)"), over(2), cluster(3, nvlink=Link(2, 1.0, 0.0))),
            "nvlink_port_in",
            (2,),
            120,
        ),
    ],
)
def test_the_bound_of_small_clusters_is_known_by_hand(spec, kind, members, time):
    bound, _ = bound_of(spec)
    assert (bound.time, bound.cut.kind, bound.cut.members) == (time, kind, members)
