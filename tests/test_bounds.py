"""Bounds: never above what a plan of least payload achieves, and equal to the optimum of a linear program.

The linear program is written from the mathematics of docs/mathematics.md over fluid flows, one tree of
transfers per class and point of entry, without the planner's cuts, prices or programs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from oracle import domains_of
from scipy.optimize import linprog
from strategies import STRATEGIES, specs
from test_minimal_payload import TP_EXAMPLE

import reshard_planner as rp
from reshard_planner.bounds import Bound, Cut, Needs, compute_bound, evaluate, largest_closed_cut
from reshard_planner.bounds.bottleneck import find_bottleneck
from reshard_planner.bounds.cut import pack_weights, unpack_weights
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, find_demands, find_geometries
from reshard_planner.errors import CertificateError, UnsupportedError
from reshard_planner.ir import jsonform, textform
from reshard_planner.ir.certificate import BoundClaim, Certificate
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports
from reshard_planner.transfer import Medium

INSTANT = Link(2**52, 1.0, 0.0)
"""NVLink so fast that it never binds."""

SLOW = Link(1, 1.0, 0.0)


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
    """Exact time of the busiest NIC group, NVLink port or uplink in one direction, at datasheet rates."""
    topology = plan.spec.topology
    pod_of = {domain: number for number, pod in enumerate(topology.pods) for domain in pod.domains}
    pods = {gpu: pod_of.get(index) for index, domain in enumerate(topology.domains) for gpu in domain.gpus}
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
            if medium == Medium.NETWORK and pods[rank] is not None and pods[src] != pods[dst]:
                key = ("uplink", pods[rank], direction)
                load[key] += nbytes
                rate[key] = topology.pods[pods[rank]].uplink.bytes_per_s
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
    ports = (certificate.busiest_nic, certificate.busiest_nvlink, certificate.busiest_uplink)
    claimed = max(port.time_s for port in ports)
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
    assert bound.t0 == bound.t0_cut.time
    assert resum(spec, demands, bound.cut, restricted=False) == bound.cut
    if bound.t0 > bound.time:
        assert resum(spec, demands, bound.t0_cut, restricted=True) == bound.t0_cut
    moved = any(set(demand.needers) - set(demand.holders) for demand in demands)
    assert (bound.time > 0) == moved


def resum(spec: rp.ReshardSpec, demands: Sequence[Demand], cut: Cut, *, restricted: bool) -> Cut:
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    needs = Needs(demands, capacities)
    return evaluate(cut.kind, cut.members, needs, capacities, cut.weights, restricted=restricted)


Terms = list[tuple[float, int]]


class Program:
    """A linear program that minimises the time, built row by row; variable 0 is the time.

    Bytes and rates enter in units of the largest of them, since solvers work with absolute tolerances.
    """

    def __init__(self, nbytes: int, bytes_per_s: int) -> None:
        self.nbytes, self.bytes_per_s = nbytes, bytes_per_s
        self.count = 1
        self.rows: list[tuple[Terms, float]] = []
        self.loads: dict[tuple[str, int], Terms] = defaultdict(list)

    def var(self, *ports: tuple[str, int]) -> int:
        """A number of bytes that pass some ports."""
        self.count += 1
        for port in ports:
            self.loads[port].append((1.0, self.count - 1))
        return self.count - 1

    def at_least(self, terms: Iterable[tuple[float, int]], limit: float) -> None:
        self.rows.append(([(-factor, number) for factor, number in terms], -limit / self.nbytes))

    def least_time(self, rates: dict[tuple[str, int], int]) -> float:
        """The optimum, in seconds."""
        if not self.rows:
            return 0.0
        for port, terms in self.loads.items():
            rate = min(
                10.0**6, rates[port] / self.bytes_per_s
            )  # solvers refuse numbers that are too far apart
            self.at_least([(rate, 0), *((-f, number) for f, number in terms)], 0)
        matrix = np.zeros((len(self.rows), self.count))
        for at, (row, _) in enumerate(self.rows):
            for factor, number in row:
                matrix[at, number] += factor
        cost = np.zeros(self.count)
        cost[0] = 1
        result = linprog(cost, A_ub=matrix, b_ub=[limit for _, limit in self.rows], method="highs")
        assert result.success, result.message
        return float(result.fun) * self.nbytes / self.bytes_per_s


class Fluid:
    """All fluid flows of least payload over NICs, NVLink ports and uplinks.

    Bytes that enter a domain at one rank, or that its holders have, form a tree over NVLink: every needer is
    reached, the first transfer leaves one that has them, and a helper that is told besides may send them on
    to everybody. A rank emits what it has, each byte at most once per copy; a holding domain emits first.
    Without proxies only ranks that hold or need the bytes take part, if one of them has a NIC.
    """

    def __init__(self, spec: rp.ReshardSpec, demands: Sequence[Demand], *, proxies: bool) -> None:
        topology = spec.topology
        self.spec, self.proxies = spec, proxies
        self.home = domains_of(topology)
        self.nic: dict[int, int] = {}
        self.rates: dict[tuple[str, int], int] = {}
        for gpu, (group, rate) in nic_groups(topology).items():
            self.nic[gpu] = group
            self.rates["nic in", group] = self.rates["nic out", group] = rate
        for domain in topology.domains:
            for gpu in domain.gpus:
                self.rates["nvlink in", gpu] = self.rates["nvlink out", gpu] = domain.link.bytes_per_s
        for number, pod in enumerate(topology.pods):
            self.rates["pod in", number] = self.rates["pod out", number] = pod.uplink.bytes_per_s
        self.pod_of = {domain: number for number, pod in enumerate(topology.pods) for domain in pod.domains}
        unit = max(nic.link.bytes_per_s for nic in topology.nics) if topology.nics else 1
        self.program = Program(max((demand.nbytes for demand in demands), default=1), unit)
        for demand in demands:
            self.add(demand)

    def least_time(self) -> float:
        return self.program.least_time(self.rates)

    def inside(self, ranks: Iterable[int], domain: int) -> list[int]:
        return [rank for rank in ranks if self.home[rank] == domain]

    def tree(self, known: list[int], reached: list[int], helpers: list[int], amount: int) -> dict[int, int]:
        """Bring a variable number of bytes to all that are to be reached; how much each helper is told."""
        program = self.program
        told = {rank: program.var(("nvlink in", rank)) for rank in helpers}
        for rank in reached:
            program.at_least([(1, program.var(("nvlink in", rank))), (-1, amount)], 0)
        if not reached and not helpers:
            return told
        outs = {rank: program.var(("nvlink out", rank)) for rank in (*known, *reached, *helpers)}
        leaving: Terms = [(1.0, outs[rank]) for rank in known]
        arriving: Terms = [(-1.0, u) for u in told.values()]
        program.at_least([*((1.0, o) for o in outs.values()), *arriving, (-len(reached), amount)], 0)
        if reached:
            program.at_least([*leaving, (-1, amount)], 0)
        for rank, u in told.items():
            program.at_least([(1, amount), (-1, u)], 0)
            program.at_least([*leaving, (-1, u)], 0)
            program.at_least([(len(reached), u), (-1, outs[rank])], 0)
            program.at_least([*((1.0, o) for other, o in outs.items() if other != rank), (-1, u)], 0)
        return told

    def add(self, demand: Demand) -> None:
        program, nbytes, copies = self.program, demand.nbytes, len(demand.needing_domains)
        emitted: dict[int, Terms] = defaultdict(list)
        first: Terms = []

        def emit(rank: int, had: int, times: int) -> None:
            """Emit what the rank has, each byte so many times; only one of them is the first emission."""
            x = program.var(("nic out", self.nic[rank]))
            emitted[self.home[rank]].append((1.0, x))
            program.at_least([(times, had), (-1, x)], 0)
            if self.home[rank] in demand.holder_domains:
                first.append((1.0, program.var()))
                for limit in (x, had):
                    program.at_least([(1, limit), (-1, first[-1][1])], 0)

        for domain in demand.needing_domains:
            needers, ranks = self.inside(demand.needers, domain), self.inside(self.spec.ranks, domain)
            takers = [rank for rank in ranks if rank in self.nic]
            if not self.proxies and set(takers) & set(needers):
                takers = [rank for rank in takers if rank in needers]
            entries = {}
            for entry in takers:
                y = entries[entry] = program.var(("nic in", self.nic[entry]))
                reached = [rank for rank in needers if rank != entry]
                others = [rank for rank in ranks if rank not in needers and rank != entry]
                told = self.tree([entry], reached, others if self.proxies else [], y)
                for rank in ranks if copies > 1 else ():
                    if rank in self.nic and (rank in needers or rank == entry):
                        emit(rank, y, copies - 1)
                    elif rank in self.nic and rank in told:
                        emit(rank, told[rank], copies - 1)
            program.at_least([(1, y) for y in entries.values()], nbytes)
        part = [*demand.holders, *(r for r in demand.needers if self.home[r] in demand.holder_domains)]
        helped = self.proxies or not any(rank in self.nic for rank in part)
        for domain in demand.holder_domains:
            held, ranks = self.inside(demand.holders, domain), self.inside(self.spec.ranks, domain)
            reached = [rank for rank in self.inside(demand.needers, domain) if rank not in held]
            if not copies and not reached:
                continue
            others = [rank for rank in ranks if rank not in held and rank not in reached]
            all_bytes = program.var()
            program.at_least([(1, all_bytes)], nbytes)
            program.at_least([(-1, all_bytes)], -nbytes)
            told = self.tree(held, reached, others if helped else [], all_bytes)
            for rank in ranks if copies else ():
                if rank in self.nic and (rank in held or rank in reached):
                    emit(rank, all_bytes, copies)
                elif rank in self.nic and rank in told:
                    emit(rank, told[rank], copies)
        if copies:
            program.at_least(first, nbytes)
            program.at_least([x for terms in emitted.values() for x in terms], copies * nbytes)
            self.cross(demand, emitted)

    def cross(self, demand: Demand, emitted: dict[int, Terms]) -> None:
        """Copies from domain to domain, and over the uplinks of pods; a domain in none is one of its own."""
        program, nbytes = self.program, demand.nbytes
        pod_of = {d: self.pod_of.get(d, -1 - d) for d in (*demand.holder_domains, *demand.needing_domains)}
        holding = {pod_of[domain] for domain in demand.holder_domains}
        made: dict[int, Terms] = defaultdict(list)
        entering: dict[int, Terms] = defaultdict(list)
        leaving: Terms = []
        for target in demand.needing_domains:
            fed: Terms = []
            there = pod_of[target]
            for source, here in pod_of.items():
                if source == target:
                    continue
                crosses = [("pod out", here)] * (here >= 0) + [("pod in", there)] * (there >= 0)
                z = program.var(*(crosses if here != there else ()))
                fed.append((1.0, z))
                made[source].append((-1.0, z))
                if here != there:
                    entering[there].append((1.0, z))
                    if here in holding and there not in holding:
                        leaving.append((1.0, z))
            program.at_least(fed, nbytes)
        for source in pod_of:
            program.at_least([*emitted[source], *made[source]], 0)
        for pod in {pod_of[domain] for domain in demand.needing_domains} - holding:
            program.at_least(entering[pod], nbytes)
            program.at_least(leaving, nbytes)


@st.composite
def clusters(draw: st.DrawFn, *, pods: bool = False, most: int = 5) -> rp.Topology:
    """Two domains and more; uneven NICs, shared, several or none per GPU; NVLink that may be slow."""
    sizes = draw(st.lists(st.integers(1, 3 if pods else 4), min_size=2, max_size=most))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    domains = [tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    rates = st.sampled_from([10, 20, 35, 40, 50])
    faster = draw(st.sampled_from([1, 2, 5, 20]))
    nics = []
    for gpus in domains:
        step = draw(st.integers(1, 2))
        for at in range(0, len(gpus), step):
            several = draw(st.sampled_from([1, 1, 2, 0] if at else [1, 1, 2]))
            nics.extend(Nic(gpus[at : at + step], Link(draw(rates), 1.0, 0.0)) for _ in range(several))
    homes = [draw(st.integers(-1, 1)) for _ in domains] if pods else []
    uplinks = [
        Pod(tuple(at for at, home in enumerate(homes) if home == number), Link(draw(rates), 1.0, 0.0))
        for number in sorted(set(homes) - {-1})
    ]
    links = tuple(Domain(gpus, Link(draw(rates) * faster, 1.0, 0.0)) for gpus in domains)
    return rp.Topology(links, tuple(nics), pods=tuple(uplinks))


@st.composite
def hard_specs(draw: st.DrawFn, *, pods: bool = False, tensors: int = 3) -> rp.ReshardSpec:
    """A few small tensors over an uneven cluster, of which some GPUs may take no part."""
    topology = draw(clusters(pods=pods))
    gpus = list(range(topology.gpu_count))

    def layout() -> rp.Layout:
        ranks = draw(st.lists(st.sampled_from(gpus), min_size=1, unique=True))
        placements = st.sampled_from(["R", "S(0)"])
        if len(ranks) % 2 or len(ranks) == 2 or draw(st.booleans()):
            return rp.Layout(rp.Mesh(ranks), [draw(placements)])
        return rp.Layout(rp.Mesh(ranks, None, (2, len(ranks) // 2)), [draw(placements), draw(placements)])

    sizes = st.sampled_from([24, 40, 7])
    count = draw(st.integers(1, tensors))
    return rp.ReshardSpec(
        [rp.TensorSpec(f"t{i}", (draw(sizes),), "float32", layout(), layout()) for i in range(count)],
        topology,
    )


def bound_or_skip(spec: rp.ReshardSpec) -> tuple[Bound, tuple[Demand, ...]]:
    try:
        return bound_of(spec)
    except UnsupportedError:
        assume(condition=False)
        raise


def check_optimum(spec: rp.ReshardSpec) -> None:
    bound, demands = bound_or_skip(spec)
    for time, proxies in ((bound.time, True), (bound.t0, False)):
        best = Fluid(spec, demands, proxies=proxies).least_time()
        assert float(time) == pytest.approx(best, rel=2e-6, abs=1e-12)


def one_to_many(sources: int, groups: int, group: int) -> rp.ReshardSpec:
    """One tensor cut over few sources, wanted whole by many destinations: relays pay."""
    first = rp.Layout(rp.Mesh(list(range(sources))), ["S(0)"])
    ranks = range(sources, sources + groups * group)
    wanted = rp.Layout(rp.Mesh(list(ranks), None, (groups, group)), ["R", "S(0)"])
    domains = [range(sources), *(ranks[i : i + group] for i in range(0, len(ranks), group))]
    topology = rp.Topology.from_domains([list(d) for d in domains], Link(5_000, 1.0, 0.0), INSTANT)
    return rp.ReshardSpec([rp.TensorSpec("w", (24, 4), "float32", first, wanted)], topology)


SHARED_FAN_OUT = rp.ReshardSpec(
    [
        rp.TensorSpec(
            "w", (), "float32", rp.Layout(rp.Mesh([0, 1]), ["R"]), rp.Layout(rp.Mesh([4, 5, 6]), ["R"])
        )
    ],
    rp.Topology.from_domains([[0, 1, 2, 3], [4, 5, 6]], Link(5_000, 1.0, 0.0), Link(5_000, 1.0, 0.0)),
)
"""A plan of more than the least payload would be faster: every NIC could take in its own copy."""


@settings(max_examples=120)
@given(hard_specs())
@example(one_to_many(1, 3, 2))
@example(one_to_many(2, 4, 2))
@example(one_to_many(4, 2, 1))
@example(one_to_many(3, 9, 1))
@example(TP_EXAMPLE)
@example(SHARED_FAN_OUT)
def test_the_bounds_are_the_optimum_of_network_nvlink_and_proxies(spec):
    check_optimum(spec)


@given(hard_specs(pods=True))
def test_the_bounds_are_the_optimum_with_pods_too(spec):
    check_optimum(spec)


@given(specs(dtypes=("float32",), strategies=("optimal",)))
def test_the_bounds_are_the_optimum_of_usual_specs(spec):
    check_optimum(spec)


@given(hard_specs(pods=True), st.data())
def test_any_prices_prove_no_more_than_the_optimum(spec, data):
    _, demands = bound_or_skip(spec)
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    needs = Needs(demands, capacities)
    ports = [("nic_in", g) for g in range(len(capacities.nic_rate))]
    ports += [("nic_out", g) for g in range(len(capacities.nic_rate))]
    ports += [(way, rank) for way in ("nvlink_in", "nvlink_out") for rank in spec.ranks]
    ports += [(way, pod) for way in ("uplink_in", "uplink_out") for pod in range(len(capacities.uplink))]
    chosen = data.draw(st.lists(st.sampled_from(ports), min_size=1, max_size=6, unique=True))
    weights = pack_weights({port: data.draw(st.integers(1, 4)) for port in chosen})
    for restricted in (False, True):
        cut = evaluate("prices", (), needs, capacities, weights, restricted=restricted)
        best = Fluid(spec, demands, proxies=not restricted).least_time()
        assert float(cut.time) <= best * (1 + 1e-6) + 1e-12


@settings(max_examples=40)
@given(hard_specs())
def test_no_plan_beats_the_bound_of_an_uneven_cluster(spec):
    bound, _ = bound_or_skip(spec)
    try:
        plan = rp.compile(spec)
    except UnsupportedError:
        assume(condition=False)
        raise
    rp.verify(plan)
    assert busiest_time(plan) >= bound.time


@settings(max_examples=20)
@given(hard_specs(pods=True))
def test_certificates_with_pods_read_back_and_prove_themselves(spec):
    bound, _ = bound_or_skip(spec)
    try:
        plan = rp.compile(spec, "direct")
    except UnsupportedError:
        assume(condition=False)
        raise
    assert plan.certificate.bound.time_s == float(bound.time)
    for read_back in (jsonform.loads(plan.to_json()), textform.loads(plan.to_text())):
        assert read_back == plan
        rp.verify(read_back)


@given(hard_specs(pods=True))
def test_no_closed_form_exceeds_the_bound(spec):
    bound, demands = bound_or_skip(spec)
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    assert largest_closed_cut(Needs(demands, capacities), capacities).time <= bound.time


@given(
    st.dictionaries(
        st.frozensets(st.integers(0, 5), min_size=1).map(lambda ports: tuple(sorted(ports))),
        st.integers(1, 2**40),
        min_size=1,
    ),
    st.lists(st.integers(1, 2**50), min_size=6, max_size=6),
)
def test_the_bottleneck_is_the_largest_ratio_of_all_sets(loads, rates):
    rate = dict(enumerate(rates))
    best = Fraction(0)
    for bits in range(1, 64):
        members = {port for port in range(6) if bits >> port & 1}
        inside = sum(nbytes for ports, nbytes in loads.items() if members.issuperset(ports))
        best = max(best, Fraction(inside, sum(rate[port] for port in members)))
    found = find_bottleneck(loads, rate, Fraction(0))
    assert found is not None
    assert found[0] <= best <= found[0] * (1 + Fraction(1, 10**6))


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["nic_in", "uplink_out"]), st.integers(0, 40)), st.integers(1, 3)
    )
)
def test_weights_read_back(prices):
    assert unpack_weights(pack_weights(prices)) == prices


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


def uplink(bytes_per_s: int, *domains: int) -> Pod:
    return Pod(domains, Link(bytes_per_s, 1.0, 0.0))


def with_pods(topology: rp.Topology, *pods: Pod) -> rp.Topology:
    return replace(topology, pods=pods)


POD_OF_ONE = with_pods(cluster(8, 8), uplink(4, 1))


@pytest.mark.parametrize(
    ("spec", "kind", "members", "time"),
    [
        # 240 bytes enter a pod of eight NICs over an uplink of 4, from a domain in no pod
        (
            reshard(over(*range(8), placement="S(0)"), over(*range(8, 16), placement="S(0)"), POD_OF_ONE),
            "pod_ingress",
            (0,),
            60,
        ),
        # the same way back: they leave the pod
        (
            reshard(over(*range(8, 16), placement="S(0)"), over(*range(8), placement="S(0)"), POD_OF_ONE),
            "pod_egress",
            (0,),
            60,
        ),
        # two domains of a pod need all bytes; one copy enters, the other is passed on within
        (
            reshard(
                over(*range(8), placement="S(0)"),
                rp.Layout(rp.Mesh([*range(8, 24)], None, (2, 8)), ["R", "S(0)"]),
                with_pods(cluster(8, 8, 8), uplink(4, 1, 2)),
            ),
            "pod_ingress",
            (0,),
            60,
        ),
        # two pods need all bytes: the holders' uplink emits one copy, and the pods in need exchange the other
        (
            reshard(
                over(*range(8), placement="S(0)"),
                rp.Layout(rp.Mesh([*range(8, 24)], None, (2, 8)), ["R", "S(0)"]),
                with_pods(cluster(8, 8, 8), uplink(4, 0), uplink(7, 1), uplink(7, 2)),
            ),
            "pod_egress",
            (0,),
            60,
        ),
        # they exchange no faster than all three uplinks emit: 480 / (4 + 3 + 3)
        (
            reshard(
                over(*range(8), placement="S(0)"),
                rp.Layout(rp.Mesh([*range(8, 24)], None, (2, 8)), ["R", "S(0)"]),
                with_pods(cluster(8, 8, 8), uplink(4, 0), uplink(3, 1), uplink(3, 2)),
            ),
            "pod_ingress",
            (1,),
            80,
        ),
        # bytes of which a neighbour in the pod has a copy need not enter it
        (
            reshard(over(0, 2), over(1), with_pods(cluster(1, 1, 1), uplink(1, 0, 1))),
            "domain_ingress",
            (1,),
            240,
        ),
        # one holder is within the pod and has a NIC of 1, the other sends over an uplink of 2
        (
            reshard(
                over(0, 7, 8, 9, 10),
                over(*range(1, 7), placement="S(0)"),
                with_pods(cluster(1, 6, 4), uplink(2, 0, 1)),
            ),
            "prices",
            (),
            80,
        ),
    ],
)
def test_the_bound_of_small_pods_is_known_by_hand(spec, kind, members, time):
    bound, demands = bound_of(spec)
    assert (bound.time, bound.cut.kind, bound.cut.members) == (time, kind, members)
    assert Fluid(spec, demands, proxies=True).least_time() == pytest.approx(time)


@given(hard_specs(), st.sampled_from([1, 10]))
def test_an_uplink_that_carries_all_copies_changes_nothing(spec, pods):
    bound, demands = bound_or_skip(spec)
    copies = sum(demand.nbytes * len(demand.needing_domains) for demand in demands)
    assume(copies)
    domains = range(len(spec.topology.domains))
    wide = Link(min(2**53 - 1, int(copies / bound.time) + 1), 1.0, 0.0)
    groups = [Pod(tuple(domains[at::pods]), wide) for at in range(min(pods, len(domains)))]
    wider = rp.ReshardSpec(spec.tensors, with_pods(spec.topology, *groups))
    other, _ = bound_of(wider)
    assert (other.time, other.t0, other.ingress) == (bound.time, bound.t0, bound.ingress)


ONE_SLOW_RECEIVER = rp.ReshardSpec(
    [
        rp.TensorSpec("w", (240,), "uint8", over(0, 1, 2, 3, placement="S(0)"), over(4)),
        rp.TensorSpec("v", (4,), "uint8", over(0), over(4, 5, 6, 7, placement="S(0)")),
    ],
    cluster(4, 4, nvlink=Link(20, 1.0, 0.0)),
)
"""T0 counts the receiver's NIC alone, T* those of its neighbours too."""

WITH_PODS = reshard(
    over(0, 7, 8, 9, 10), over(*range(1, 7), placement="S(0)"), with_pods(cluster(1, 6, 4), uplink(2, 0, 1))
)


def test_the_cases_of_changed_figures_have_cuts_of_all_makes():
    cuts = [bound_of(spec)[0] for spec in (TP_EXAMPLE, ONE_SLOW_RECEIVER, WITH_PODS)]
    assert [cut.cut.kind for cut in cuts] == ["domain_ingress", "domain_ingress", "prices"]
    assert [cut.t0 > cut.time for cut in cuts] == [False, True, False]


def changes(claim: BoundClaim) -> list[BoundClaim]:
    """The claim with one figure changed, in every way that could pass for true."""
    found = [
        replace(claim, time_s=claim.time_s * 1.001),
        replace(claim, t0_s=claim.t0_s * 1.001),
        replace(claim, time_s=claim.time_s * 0.999),
        replace(claim, t0_s=claim.t0_s * 0.999),
        replace(claim, resource="domain 9"),
        replace(claim, term="none"),
        replace(claim, term="toll"),
        replace(claim, cut_nbytes=claim.cut_nbytes + 1),
        replace(claim, cut_bytes_per_s=claim.cut_bytes_per_s + 1),
        replace(claim, cut_members=(*claim.cut_members, 0)),
        replace(claim, cut_members=(-1,)),
        replace(claim, cut_members=(10**6,)),
        replace(claim, cut_weights=(*claim.cut_weights, ("nic_in", "0", 1))),
    ]
    resource, numbers, weight = claim.cut_weights[0] if claim.cut_weights else ("nic_in", "0", 1)
    found += [
        replace(claim, term="prices", cut_members=(), cut_weights=(other,))
        for other in (
            ("tolls", numbers, weight),
            (resource, "x", weight),
            (resource, numbers, -weight),
            (resource, numbers, 2**80),
        )
    ]
    if claim.t0_cut is not None:
        prices = claim.t0_cut
        found += [
            replace(claim, t0_cut=None),
            replace(claim, t0_cut=replace(prices, nbytes=prices.nbytes + 1)),
            replace(claim, t0_cut=replace(prices, bytes_per_s=prices.bytes_per_s + 1)),
            replace(claim, t0_cut=replace(prices, weights=(*prices.weights, ("nic_out", "0", 1)))),
            replace(claim, t0_cut=None, t0_s=claim.time_s),
        ]
    return found


@pytest.mark.parametrize("spec", [TP_EXAMPLE, ONE_SLOW_RECEIVER, WITH_PODS])
def test_a_changed_figure_of_the_bound_is_refused(spec):
    plan = rp.compile(spec, "direct")
    rp.verify(plan)
    assert Certificate.from_dict(plan.certificate.to_dict()) == plan.certificate
    claim = plan.certificate.bound
    for other in changes(claim):
        if other == claim:
            continue
        with pytest.raises(CertificateError):
            rp.verify(rp.Plan.seal(plan.spec, plan.tables, replace(plan.certificate, bound=other)))


def test_a_true_cut_that_proves_less_than_the_closed_form_is_refused():
    plan = rp.compile(TP_EXAMPLE)
    claim = plan.certificate.bound
    weaker = replace(
        claim,
        term="egress",
        resource="domains 0,1",
        cut_members=(0, 1),
        cut_bytes_per_s=2 * claim.cut_bytes_per_s,
        time_s=claim.time_s / 2,
        t0_s=claim.t0_s / 2,
    )
    with pytest.raises(CertificateError, match="domain_ingress of domain 1 alone takes"):
        rp.verify(rp.Plan.seal(plan.spec, plan.tables, replace(plan.certificate, bound=weaker)))
