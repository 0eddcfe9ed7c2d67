"""Bounds: never above what a plan of least payload achieves, and equal to the optimum of a linear program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from fluid import Fluid, nic_groups
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from strategies import STRATEGIES, specs
from test_minimal_payload import TP_EXAMPLE

import reshard_planner as rp
from reshard_planner.bounds import CUT_KINDS, Bound, Cut, Needs, compute_bound, evaluate, largest_closed_cut
from reshard_planner.bounds.bottleneck import find_bottleneck
from reshard_planner.bounds.cut import pack_weights, unpack_weights
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, find_demands, find_geometries
from reshard_planner.errors import CertificateError, InputError, UnsupportedError
from reshard_planner.ir import jsonform, textform
from reshard_planner.ir.certificate import BoundClaim, Certificate, PriceClaim
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports
from reshard_planner.transfer import Medium

INSTANT = Link(2**52, 1.0, 0.0)
"""NVLink so fast that it never binds."""

SLOW = Link(1, 1.0, 0.0)


def bound_of(spec: rp.ReshardSpec) -> tuple[Bound, tuple[Demand, ...]]:
    ports = Ports.of(spec.topology, spec.ranks)
    demands = find_demands(find_geometries(spec, ports), ports)
    return compute_bound(demands, ports, spec.ranks), demands


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


RATES = st.sampled_from([10, 20, 35, 40, 50])

FAR_RATES = st.sampled_from([1, 3, 1_000, 20_000, 5_000_000])


@st.composite
def clusters(draw: st.DrawFn, *, pods: bool = False, most: int = 5) -> rp.Topology:
    """Two domains and more; uneven NICs, shared, several or none per GPU; NVLink that may be slow.

    Some clusters have no NICs at all, and some have rates far apart.
    """
    wired = bool(draw(st.integers(0, 7)))
    largest = (3 if pods else 4) if wired else 6
    sizes = draw(st.lists(st.integers(1, largest), min_size=2, max_size=most))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    domains = [tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    rates = draw(st.sampled_from([RATES, RATES, RATES, FAR_RATES]))
    faster = draw(st.sampled_from([1, 2, 5, 20, 1_000, 10**8]))
    nics = []
    for gpus in domains if wired else ():
        step = draw(st.integers(1, 2))
        for at in range(0, len(gpus), step):
            several = draw(st.sampled_from([1, 1, 2, 0] if at else [1, 1, 2]))
            nics.extend(Nic(gpus[at : at + step], Link(draw(rates), 1.0, 0.0)) for _ in range(several))
    pod_of = [draw(st.integers(-1, 1)) for _ in domains] if pods else []
    uplinks = [
        Pod(tuple(at for at, pod in enumerate(pod_of) if pod == number), Link(draw(rates), 1.0, 0.0))
        for number in sorted(set(pod_of) - {-1})
    ]
    links = tuple(Domain(gpus, Link(draw(rates) * faster, 1.0, 0.0)) for gpus in domains)
    return rp.Topology(links, tuple(nics), pods=tuple(uplinks))


@st.composite
def hard_specs(draw: st.DrawFn, *, pods: bool = False, tensors: int = 3) -> rp.ReshardSpec:
    """A few small tensors over an uneven cluster, of which some GPUs may take no part.

    Without NICs every tensor stays within one domain.
    """
    topology = draw(clusters(pods=pods))
    pools = [list(domain.gpus) for domain in topology.domains]
    if topology.nics:
        pools = [[gpu for gpus in pools for gpu in gpus]]

    def layout(gpus: list[int]) -> rp.Layout:
        ranks = draw(st.lists(st.sampled_from(gpus), min_size=1, unique=True))
        placements = st.sampled_from(["R", "S(0)"])
        if len(ranks) % 2 or len(ranks) == 2 or draw(st.booleans()):
            return rp.Layout(rp.Mesh(ranks), [draw(placements)])
        return rp.Layout(rp.Mesh(ranks, None, (2, len(ranks) // 2)), [draw(placements), draw(placements)])

    def tensor(number: int) -> rp.TensorSpec:
        gpus = draw(st.sampled_from(pools))
        size = draw(st.sampled_from([24, 40, 7]))
        return rp.TensorSpec(f"t{number}", (size,), "float32", layout(gpus), layout(gpus))

    return rp.ReshardSpec([tensor(number) for number in range(draw(st.integers(1, tensors)))], topology)


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


def two_holders_each(*nics: Nic) -> rp.ReshardSpec:
    """In either domain two ranks hold what four neighbours need; the slower domain has the fewer bytes."""

    def tensor(name: str, elements: int, first: int) -> rp.TensorSpec:
        held = rp.Layout(rp.Mesh([first, first + 1]), ["R"])
        wanted = rp.Layout(rp.Mesh([*range(first, first + 6)]), ["S(0)"])
        return rp.TensorSpec(name, (elements,), "float32", held, wanted)

    links = (Link(10**8, 1.0, 0.0), Link(10**12, 1.0, 0.0))
    domains = tuple(Domain(tuple(range(at, at + 6)), link) for at, link in zip((0, 6), links, strict=True))
    return rp.ReshardSpec([tensor("a", 60, 0), tensor("b", 6000, 6)], rp.Topology(domains, nics))


@settings(max_examples=120)
@given(hard_specs())
@example(two_holders_each())
@example(two_holders_each(Nic((0,), Link(1, 1.0, 0.0))))
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


@settings(max_examples=40)
@given(specs(dtypes=("float32",), strategies=("optimal",)))
def test_the_bounds_are_the_optimum_of_usual_specs(spec):
    check_optimum(spec)


@settings(max_examples=40)
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


def behind_uplinks(*pods: Pod) -> rp.ReshardSpec:
    """Eight ranks that shard a tensor, for two replicas of eight; three domains, some of them in pods."""
    return reshard(
        over(*range(8), placement="S(0)"),
        rp.Layout(rp.Mesh([*range(8, 24)], None, (2, 8)), ["R", "S(0)"]),
        with_pods(cluster(8, 8, 8), *pods),
    )


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
            behind_uplinks(uplink(4, 1, 2)),
            "pod_ingress",
            (0,),
            60,
        ),
        # two pods need all bytes: the holders' uplink emits one copy, and the pods in need exchange the other
        (
            behind_uplinks(uplink(4, 0), uplink(7, 1), uplink(7, 2)),
            "pod_egress",
            (0,),
            60,
        ),
        # they exchange no faster than all three uplinks emit: 480 / (4 + 3 + 3)
        (
            behind_uplinks(uplink(4, 0), uplink(3, 1), uplink(3, 2)),
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
        # first copies leave one holder over an uplink of 1, the other by a NIC of 1 within the pod in need
        (
            reshard(
                over(0, 1, 2),
                rp.Layout(rp.Mesh([*range(3, 11)], None, (2, 4)), ["R", "S(0)"]),
                with_pods(cluster(2, 1, 4, 4), uplink(1, 0), uplink(1, 1, 2, 3)),
            ),
            "prices",
            (),
            120,
        ),
    ],
)
def test_the_bound_of_small_pods_is_known_by_hand(spec, kind, members, time):
    bound, demands = bound_of(spec)
    assert (bound.time, bound.cut.kind, bound.cut.members) == (time, kind, members)
    assert Fluid(spec, demands, proxies=True).least_time() == pytest.approx(time)


@settings(max_examples=40)
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


BINDING: dict[str, rp.ReshardSpec] = {
    "none": reshard(over(0), over(0), cluster(1)),
    "domain_ingress": TP_EXAMPLE,
    # three lone holders exchange what they have, and their neighbours get as much
    "egress": rp.ReshardSpec(
        [
            rp.TensorSpec("w", (240,), "uint8", over(0, 1, 2, placement="S(0)"), over(0, 1, 2)),
            rp.TensorSpec(
                "v", (240,), "uint8", over(0, 1, 2, placement="S(0)"), over(3, 4, 5, placement="S(0)")
            ),
        ],
        cluster(1, 1, 1, 3),
    ),
    "pod_ingress": reshard(
        over(*range(8), placement="S(0)"), over(*range(8, 16), placement="S(0)"), POD_OF_ONE
    ),
    # two pods have a copy each, and share what leaves them
    "pod_egress": reshard(
        rp.Layout(rp.Mesh([*range(16)], None, (2, 8)), ["R", "S(0)"]),
        over(*range(16, 32), placement="S(0)"),
        with_pods(cluster(8, 8, 16), uplink(2, 0), uplink(3, 1)),
    ),
    "port_in": rp.ReshardSpec(
        [
            rp.TensorSpec("w", (240,), "uint8", over(0, 1, 2, 3, placement="S(0)"), over(4)),
            rp.TensorSpec("v", (4,), "uint8", over(0), over(4, 5, 6, 7, placement="S(0)")),
        ],
        cluster(4, 4, nvlink=SLOW),
    ),
    "nvlink_port_in": reshard(over(0, 1, placement="S(0)"), over(2), cluster(3, nvlink=Link(2, 1.0, 0.0))),
    "nvlink_port_out": reshard(over(0), over(1, 2, 3, placement="S(0)"), cluster(4, nvlink=SLOW)),
    "nvlink_domain": reshard(
        over(0, 1, 2, 3, placement="S(0)"), over(4, 5, 6, 7), cluster(4, 4, nvlink=Link(2, 1.0, 0.0))
    ),
    "prices": WITH_PODS,
}
"""Per kind of cut a spec in which it binds."""

MEMBERS = {"egress": (0, 1, 2), "pod_egress": (0, 1)}
"""Cuts of several members."""


def test_each_kind_of_cut_binds_somewhere():
    assert tuple(BINDING) == tuple(sorted(BINDING, key=CUT_KINDS.index))
    assert set(BINDING) == set(CUT_KINDS)
    for kind, spec in BINDING.items():
        bound, demands = bound_of(spec)
        assert bound.cut.kind == kind
        assert bound.cut.members == MEMBERS.get(kind, bound.cut.members)
        assert Fluid(spec, demands, proxies=True).least_time() == pytest.approx(float(bound.time))
    assert bound_of(ONE_SLOW_RECEIVER)[0].t0_cut.kind == "prices"


def changed_members(members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Members added, removed, doubled and in another order."""
    found = [tuple(sorted({*members, number})) for number in (*range(8), 10**6)]
    found += [(*members, number) for number in (-1, *range(8))]
    found += [members[:at] + members[at + 1 :] for at in range(len(members))]
    found += [(number, *members) for number in members]
    found += [members[::-1], (), (-1,), (10**6,)]
    return [other for other in dict.fromkeys(found) if other != members]


def changes(claim: BoundClaim) -> list[BoundClaim]:
    """The claim with one figure changed, in every way that could pass for true."""
    found = [
        replace(claim, time_s=claim.time_s * 1.001 + 1e-9),
        replace(claim, t0_s=claim.t0_s * 1.001 + 1e-9),
        replace(claim, time_s=claim.time_s * 0.999),
        replace(claim, t0_s=claim.t0_s * 0.999),
        replace(claim, resource="domain 9"),
        replace(claim, resource=""),
        replace(claim, term="toll"),
        *(replace(claim, term=kind) for kind in CUT_KINDS if kind != claim.term),
        replace(claim, cut_nbytes=claim.cut_nbytes + 1),
        replace(claim, cut_bytes_per_s=claim.cut_bytes_per_s + 1),
        *(replace(claim, cut_members=members) for members in changed_members(claim.cut_members)),
    ]
    prices = PriceClaim(claim.cut_nbytes, claim.cut_bytes_per_s, claim.cut_weights)
    found += [
        replace(claim, cut_nbytes=other.nbytes, cut_bytes_per_s=other.bytes_per_s, cut_weights=other.weights)
        for other in changed_prices(prices)
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
        found += [replace(claim, t0_cut=other) for other in (None, *changed_prices(claim.t0_cut))]
        found.append(replace(claim, t0_cut=None, t0_s=claim.time_s))
    return found


def changed_prices(prices: PriceClaim) -> list[PriceClaim]:
    weights = prices.weights
    return [
        replace(prices, nbytes=prices.nbytes + 1),
        replace(prices, bytes_per_s=prices.bytes_per_s + 1),
        *(replace(prices, weights=weights[:at] + weights[at + 1 :]) for at in range(len(weights))),
        replace(prices, weights=weights[::-1]),
        replace(prices, weights=(*weights, ("nic_in", "0", 1))),
        replace(prices, weights=(*weights, ("uplink_out", "0", 2))),
        replace(prices, weights=(*weights, ("nvlink_out", "99", 1))),
        replace(prices, weights=tuple((name, f" {numbers}", weight) for name, numbers, weight in weights)),
        replace(prices, weights=tuple((name, numbers, 2 * weight) for name, numbers, weight in weights)),
    ]


@pytest.mark.parametrize("name", [*BINDING, "one slow receiver"])
def test_a_changed_figure_of_the_bound_is_refused(name):
    plan = rp.compile(BINDING.get(name, ONE_SLOW_RECEIVER), "direct")
    rp.verify(plan)
    assert Certificate.from_dict(plan.certificate.to_dict()) == plan.certificate
    claim = plan.certificate.bound
    for other in changes(claim):
        if other == claim:
            continue
        with pytest.raises(CertificateError):
            rp.verify(rp.Plan.seal(plan.spec, plan.tables, replace(plan.certificate, bound=other)))


SEVERAL = ("egress", "pod_egress")


@settings(max_examples=30)
@given(hard_specs(pods=True), st.data())
def test_members_that_a_kind_of_cut_does_not_have_are_refused(spec, data):
    _, demands = bound_or_skip(spec)
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    needs = Needs(demands, capacities)
    numbers = {
        "domain": set(capacities.ranks),
        "pod": set(range(len(capacities.uplink))),
        "rank": set(spec.ranks),
    }
    owner = {"pod_ingress": "pod", "pod_egress": "pod"} | dict.fromkeys(
        ("port_in", "nvlink_port_in", "nvlink_port_out"), "rank"
    )
    for kind in CUT_KINDS:
        members = tuple(data.draw(st.lists(st.integers(-1, 6), max_size=3)))
        right = list(members) == sorted(set(members)) and numbers[owner.get(kind, "domain")].issuperset(
            members
        )
        count = {"none": 0, "prices": -1}.get(kind, len(members) if kind in SEVERAL else 1)
        if right and len(members) == count and (members or kind == "none"):
            cut = evaluate(kind, members, needs, capacities)
            assert (cut.kind, cut.members) == (kind, members)
        else:
            with pytest.raises(InputError):
                evaluate(kind, members, needs, capacities)


def test_prices_of_ports_that_no_rank_has_are_refused():
    spec = reshard(over(0), over(2), cluster(3))
    for resource, number in (("nvlink_in", 1), ("nvlink_out", 3), ("nic_in", 3), ("uplink_in", 0)):
        with pytest.raises(InputError, match=f"{resource} {number} does not exist"):
            resum(
                spec,
                bound_of(spec)[1],
                Cut("prices", (), 1, 1, ((resource, str(number), 1),)),
                restricted=False,
            )


@pytest.mark.parametrize("kind", ["domain_ingress", "egress"])
def test_bytes_that_only_domains_without_nics_have_or_need_are_refused(kind):
    topology = rp.Topology((Domain((0,)), Domain((1,))), ())
    number = 1 if kind == "domain_ingress" else 0
    said = f"240 bytes must pass a NIC of domain {number}, where no rank has a NIC"
    spec = reshard(over(0), over(1), topology)
    capacities = Capacities(Ports.of(topology, spec.ranks), spec.ranks)
    demands = find_demands(
        find_geometries(spec, Ports.of(topology, spec.ranks)), Ports.of(topology, spec.ranks)
    )
    with pytest.raises(UnsupportedError, match=said):
        evaluate(kind, (number,), Needs(demands, capacities), capacities)


@settings(max_examples=30)
@given(hard_specs(pods=True))
def test_the_longest_of_all_single_members_is_among_the_closed_forms(spec):
    _, demands = bound_or_skip(spec)
    capacities = Capacities(Ports.of(spec.topology, spec.ranks), spec.ranks)
    needs = Needs(demands, capacities)
    members = {
        "domain_ingress": capacities.ranks,
        "egress": [domain for domain in capacities.ranks if capacities.groups[domain]],
        "pod_ingress": range(len(capacities.uplink)),
        "pod_egress": range(len(capacities.uplink)),
        "port_in": spec.ranks,
        "nvlink_port_in": spec.ranks,
        "nvlink_port_out": spec.ranks,
        "nvlink_domain": capacities.ranks,
    }
    times = [evaluate(kind, (at,), needs, capacities).time for kind in members for at in members[kind]]
    assert largest_closed_cut(needs, capacities).time >= max(times)


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
