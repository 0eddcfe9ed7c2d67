"""Routes: close to the bound on ports of any speed, with least payload."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from oracle import Moves, assert_interprets_exactly, handed_on
from strategies import ALL_STRATEGIES, M2N_STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing import STRATEGIES
from reshard_planner.routing.arborescence import cheapest_parents
from reshard_planner.routing.cuts import LEAST_PIECE_NBYTES, cut_dim, split_at, split_boxes
from reshard_planner.routing.sets import Turns
from reshard_planner.spec.values import byte_step
from reshard_planner.topology import Domain, Link, Nic
from reshard_planner.topology.model import Pod
from reshard_planner.transfer import Medium

GB = 10**9


def link(gb_per_s: int) -> Link:
    return Link(gb_per_s * GB, 1.0, 0.0)


@st.composite
def uneven_clusters(draw: st.DrawFn) -> rp.Topology:
    """Two to five domains with NICs of several speeds, some shared, NVLink from NIC speed up, maybe pods."""
    domains, nics, at = [], [], 0
    for _ in range(draw(st.integers(2, 5))):
        size = draw(st.integers(1, 4))
        gpus = tuple(range(at, at + size))
        at += size
        domains.append(Domain(gpus, link(draw(st.sampled_from([450, 100, 50])))))
        if size > 1 and draw(st.integers(0, 3)) == 0:
            nics.append(Nic(gpus[:2], link(draw(st.sampled_from([25, 50, 100])))))
            nics.extend(Nic((gpu,), link(draw(st.sampled_from([25, 50])))) for gpu in gpus[2:])
        else:
            nics.extend(Nic((gpu,), link(draw(st.sampled_from([25, 50, 50, 100])))) for gpu in gpus)
    pods: list[Pod] = []
    if draw(st.booleans()):
        cut = draw(st.integers(1, len(domains)))
        halves = [half for half in (range(cut), range(cut, len(domains))) if half]
        pods = [Pod(tuple(half), link(draw(st.sampled_from([25, 50, 100, 200])))) for half in halves]
    return rp.Topology(tuple(domains), tuple(nics), pods=tuple(pods))


@st.composite
def large_specs(draw: st.DrawFn) -> rp.ReshardSpec:
    """One or two tensors of a few megabytes, so that pieces can be cut finely, on an uneven cluster."""
    cluster = draw(uneven_clusters())
    ranks = list(range(cluster.gpu_count))
    tensors = []
    for number in range(draw(st.integers(1, 2))):
        cut = draw(st.integers(1, len(ranks) - 1))
        sides = []
        for pool in (ranks[:cut], draw(st.sampled_from([ranks[cut:], ranks]))):
            rows = draw(st.sampled_from([n for n in range(1, len(pool) + 1) if len(pool) % n == 0]))
            mesh = rp.Mesh(draw(st.permutations(pool)), None, (rows, len(pool) // rows))
            sides.append(
                rp.Layout(mesh, draw(st.permutations(["R", draw(st.sampled_from(["S(0)", "S(1)", "R"]))])))
            )
        tensors.append(rp.TensorSpec(f"t{number}", (960, 1024), "float32", *sides))
    return rp.ReshardSpec(tensors, cluster)


def largest_step_s(plan: rp.Plan) -> float:
    """Time of the largest row of any piece at the slowest port, in seconds: cuts fall between rows."""
    ops = plan.ops()
    rows = [
        int(np.prod((ops.hi - ops.lo)[at][1:])) * plan.spec.tensors[ops.tensor[at]].bits // 8
        for at in range(len(ops))
    ]
    topology = plan.spec.topology
    links = (*(nic.link for nic in topology.nics), *(pod.uplink for pod in topology.pods))
    slowest = min(link.bytes_per_s for link in links)
    return max(rows, default=0) / slowest


@given(large_specs())
def test_the_busiest_port_is_close_to_the_bound_on_ports_of_any_speed(spec):
    plan = rp.compile(spec)
    certificate = plan.certificate
    assume(certificate.bound.time_s > 0)
    ports = (certificate.busiest_nic, certificate.busiest_nvlink, certificate.busiest_uplink)
    busiest = max(port.time_s for port in ports)
    least = min(certificate.bound.t0_s, 1.02 * certificate.bound.time_s)
    assert busiest <= max(least * 1.0101, least + largest_step_s(plan))


@given(large_specs())
def test_plans_on_uneven_ports_are_valid_and_move_the_least(spec):
    plan = rp.compile(spec)
    rp.verify(plan)
    moves, payload = Moves(spec, by_kind=True), plan.certificate.payload
    assert payload.network_nbytes == payload.minimum_network_nbytes == moves.network
    assert payload.nvlink_nbytes == moves.nvlink + handed_on(plan)


@st.composite
def clusters_without_some_nics(draw: st.DrawFn) -> rp.Topology:
    """Domains in which at least one GPU has a NIC."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    starts = np.cumsum([0, *sizes]).tolist()
    domains = [list(range(a, b)) for a, b in pairwise(starts)]
    owners = [
        draw(st.lists(st.sampled_from(domain), min_size=1, max_size=len(domain), unique=True))
        for domain in domains
    ]
    nics = [Nic((gpu,), link(50)) for members in owners for gpu in sorted(members)]
    return rp.Topology(tuple(Domain(tuple(domain), link(450)) for domain in domains), tuple(nics))


@given(st.data())
def test_ranks_without_a_nic_use_those_of_their_neighbours(data):
    cluster = data.draw(clusters_without_some_nics())
    ranks = list(range(cluster.gpu_count))
    cut = data.draw(st.integers(1, len(ranks) - 1))
    src = rp.Layout(rp.Mesh(ranks[:cut]), [data.draw(st.sampled_from(["S(0)", "R"]))])
    dst = rp.Layout(rp.Mesh(ranks[cut:]), [data.draw(st.sampled_from(["S(0)", "S(1)", "R"]))])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (240, 256), "float32", src, dst)], cluster)
    plan = rp.compile(spec)
    rp.verify(plan)
    owners = {gpu for nic in cluster.nics for gpu in nic.gpus}
    network = plan.routes.medium == Medium.NETWORK
    assert owners.issuperset({*plan.routes.src[network].tolist(), *plan.routes.dst[network].tolist()})
    assert plan.certificate.payload.network_nbytes == plan.certificate.payload.minimum_network_nbytes


STAGES = [rp.Mesh(range(4 * stage, 4 * stage + 4), None, (2, 2)) for stage in range(3)]
SERVE = rp.Mesh(range(12, 20), None, (2, 4))


def layer(name: str, stage: int) -> rp.TensorSpec:
    return rp.TensorSpec(
        name, (64, 64), "bfloat16", rp.Layout(STAGES[stage], ["R", "S(0)"]), rp.Layout(SERVE, ["R", "S(1)"])
    )


def test_pipeline_stages_share_their_routes_between_renamed_ranks():
    spec = rp.ReshardSpec([layer(f"l{n}", n // 2) for n in range(6)], rp.Topology.uniform(20, 4))
    plan = rp.compile(spec)
    rp.verify(plan)
    assert plan.groups.routes_of.tolist() == [0, 0, 0]
    assert plan.groups.group_of.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(plan.groups.subst_group) == 8
    alone = rp.compile(rp.ReshardSpec([layer("l0", 0)], rp.Topology.uniform(20, 4)))
    assert len(plan.routes) == len(alone.routes)
    assert_interprets_exactly(plan)


def test_stages_on_other_ports_do_not_share_routes():
    fast = rp.Topology.uniform(20, 4)
    slow = rp.Topology(
        fast.domains, (*fast.nics[:4], *(Nic(nic.gpus, link(25)) for nic in fast.nics[4:8]), *fast.nics[8:])
    )
    plan = rp.compile(rp.ReshardSpec([layer(f"l{n}", n) for n in range(3)], slow))
    rp.verify(plan)
    assert plan.groups.routes_of.tolist() == [0, 0, 2]
    assert_interprets_exactly(plan)


@pytest.mark.parametrize(("domains", "gb_per_s"), [(2, 100), (2, 400), (4, 400)])
def test_one_copy_enters_each_pod(domains, gb_per_s):
    plain = rp.Topology.uniform(96, 4)
    pods = tuple(Pod(tuple(range(at, at + domains)), link(gb_per_s)) for at in range(0, 24, domains))
    cluster = rp.Topology(plain.domains, plain.nics, pods=pods)
    src = rp.Layout(rp.Mesh(range(32), None, (8, 4)), ["R", "S(0)"])
    dst = rp.Layout(rp.Mesh(range(32, 96), None, (8, 8)), ["R", "S(0)"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (4096, 4096), "bfloat16", src, dst)], cluster)
    plan = rp.compile(spec)
    rp.verify(plan)
    assert plan.certificate.busiest_uplink.time_s <= plan.certificate.bound.time_s * 1.01
    assert plan.certificate.gap <= 0.01


@pytest.mark.parametrize("gb_per_s", [50, 100, 200, 400])
@pytest.mark.parametrize("stages", [4, 6])
def test_pipeline_stages_in_pods_of_their_own_share_routes_that_are_close_to_the_bound(stages, gb_per_s):
    plain = rp.Topology.uniform(8 * stages + 32, 4)
    pods = tuple(Pod((at, at + 1), link(gb_per_s)) for at in range(0, len(plain.domains), 2))
    serve = rp.Layout(rp.Mesh(range(8 * stages, 8 * stages + 32), None, (8, 4)), ["R", "S(0)"])
    meshes = [rp.Mesh(range(8 * stage, 8 * stage + 8), None, (2, 4)) for stage in range(stages)]
    tensors = [
        rp.TensorSpec(f"l{n}", (1024, 1024), "bfloat16", rp.Layout(meshes[n % stages], ["R", "S(0)"]), serve)
        for n in range(2 * stages)
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology(plain.domains, plain.nics, pods=pods)))
    rp.verify(plan)
    assert set(plan.groups.routes_of.tolist()) == {0}
    assert plan.certificate.gap <= 0.01


@st.composite
def boxes_to_cut(draw: st.DrawFn) -> tuple[int, int, list[rp.Box]]:
    """Bits of an element, elements of a whole byte, and boxes of 0 to 3 dimensions of whole bytes."""
    bits, dims = draw(st.sampled_from([4, 8, 32])), draw(st.integers(0, 3))
    step = byte_step(bits)
    boxes = []
    for _ in range(draw(st.integers(1, 5))):
        lo = [draw(st.integers(0, 9)) for _ in range(dims)]
        extents = [draw(st.sampled_from([1, 2, 3, 40, 150])) for _ in range(dims)]
        if dims:
            lo[-1], extents[-1] = lo[-1] * step, extents[-1] * step
        boxes.append(rp.Box(tuple(lo), tuple(a + b for a, b in zip(lo, extents, strict=True))))
    return bits, step, boxes


def assert_is_cut(box: rp.Box, parts: list[rp.Box], step: int) -> None:
    """The parts fill the box without overlap, and do not cut within a step."""
    assert sum(part.volume for part in parts) == box.volume
    assert all(part.volume and part.intersect(box) == part for part in parts)
    assert all(not a.intersect(b).volume for n, a in enumerate(parts) for b in parts[:n])
    assert all((part.lo[-1] - box.lo[-1]) % step == 0 for part in parts if box.ndim)


@given(boxes_to_cut(), st.data())
def test_boxes_are_cut_in_about_as_many_parts_as_wanted(drawn, data):
    bits, step, boxes = drawn
    parts = np.array([data.draw(st.integers(1, 40)) for _ in boxes])
    corners = [np.array([getattr(box, side) for box in boxes], dtype=np.int64) for side in ("lo", "hi")]
    owner, lo, hi = split_boxes(*corners, parts, bits, step)
    assert (np.diff(owner) >= 0).all()
    for number, (box, wanted) in enumerate(zip(boxes, parts.tolist(), strict=True)):
        rows = np.flatnonzero(owner == number)
        found = [rp.Box(tuple(lo[row].tolist()), tuple(hi[row].tolist())) for row in rows]
        assert_is_cut(box, found, step)
        nbytes = box.volume * bits // 8
        most = max(1, min(wanted, nbytes // LEAST_PIECE_NBYTES))
        steps = box.volume // step if box.ndim else 1
        assert min(most, steps) / 2 < len(found) <= most
        if len(found) > 1:
            assert min(part.volume for part in found) * bits / 8 > LEAST_PIECE_NBYTES / 2


@given(boxes_to_cut(), st.lists(st.floats(0, 1), max_size=5).map(sorted))
def test_boxes_are_cut_at_shares_of_them(drawn, shares):
    bits, step, boxes = drawn
    for box in boxes:
        found = split_at(box, shares, bits, step)
        parts = [part for part, _ in found]
        assert_is_cut(box, parts, step)
        assert len(found) <= len(shares) + 1
        middles = [middle for _, middle in found]
        assert middles == sorted(middles)
        if len(found) > 1:
            assert min(part.volume for part in parts) * bits // 8 >= LEAST_PIECE_NBYTES
            before = np.cumsum([0, *(part.volume for part in parts)])
            assert middles == pytest.approx((before[1:] + before[:-1]) / 2 / box.volume)


@given(st.integers(1, 5), st.data())
def test_the_cheapest_tree_is_the_cheapest_of_all(nodes, data):
    cost = [[data.draw(st.integers(0, 5)) for _ in range(nodes)] for _ in range(nodes)]

    def reaches_all(parents: tuple[int, ...]) -> bool:
        done = {0}
        for _ in range(nodes):
            done.update(node for node, parent in enumerate(parents, start=1) if parent in done)
        return len(done) == nodes

    def total(parents: Iterable[int]) -> int:
        return sum(cost[parent][node] for node, parent in enumerate(parents, start=1))

    found = cheapest_parents(cost)
    assert reaches_all(tuple(found[1:]))
    trees = filter(reaches_all, product(range(nodes), repeat=nodes - 1))
    assert total(found[1:]) == min(map(total, trees))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=20), st.integers(0, 20))
def test_turns_on_a_set_follow_one_another(taken, middle):
    turns = Turns(4, 1)
    expected = [0] * 4
    for part in (taken[:middle], taken[middle:]):
        sets, counts = (
            np.array(column, dtype=np.int64) for column in (zip(*part, strict=True) if part else ([], []))
        )
        for number, count, first in zip(
            sets.tolist(), counts.tolist(), turns.take(sets, counts).tolist(), strict=True
        ):
            assert first == expected[number]
            expected[number] += count


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 50))
def test_boxes_are_cut_along_the_outermost_dimension_that_has_enough(rows, columns, parts):
    expected = 0 if rows >= parts else 1 if columns >= parts else int(columns > rows)
    assert cut_dim(rp.Box((0, 0), (rows, columns)), parts, 1) == expected


@st.composite
def stages_of_any_length(draw: st.DrawFn) -> rp.ReshardSpec:
    """Pipeline stages on one or two hosts, of unequal numbers of layers, some with spare neighbours."""
    per_domain = draw(st.sampled_from([4, 8]))
    width, count = draw(st.sampled_from([(1, 2), (2, 2), (2, 3)]))
    first = draw(st.integers(0, 2))
    serve = rp.Layout(
        rp.Mesh(range(first + width * count, first + width * count + 4)),
        [draw(st.sampled_from(["S(0)", "S(1)", "R"]))],
    )
    tensors = []
    for stage in range(count):
        at = first + width * stage
        train = rp.Layout(rp.Mesh(range(at, at + width)), [draw(st.sampled_from(["S(0)", "R"]))])
        tensors += [
            rp.TensorSpec(f"s{stage}.l{layer}", (240, 256), "bfloat16", train, serve)
            for layer in range(draw(st.integers(1, 3)))
        ]
    return rp.ReshardSpec(tensors, rp.Topology.uniform(16, per_domain))


@given(stages_of_any_length())
@example(
    rp.ReshardSpec(
        [
            rp.TensorSpec(
                f"w{number}",
                (960, 1024),
                "bfloat16",
                rp.Layout(rp.Mesh(train), ["S(0)"]),
                rp.Layout(rp.Mesh([4, 5, 6, 7]), ["S(1)"]),
            )
            for number, train in enumerate(([0, 1], [0, 1], [2, 3]))
        ],
        rp.Topology.uniform(8, 4),
    )
)
def test_stages_of_any_length_are_planned_exactly(spec):
    plan = rp.compile(spec)
    rp.verify(plan)
    assert_interprets_exactly(plan)


def test_equal_needers_may_be_in_need_in_different_domains():
    """Ranks 3 and 5 have no NIC; rank 3's domain holds one row of three, and rank 0 takes in the others."""
    topology = rp.Topology(
        (rp.topology.Domain((0, 3)), rp.topology.Domain((1, 2, 4, 5))),
        tuple(rp.topology.Nic((gpu,)) for gpu in (0, 1, 2, 4)),
    )
    rows, whole = rp.Layout(rp.Mesh([0, 1, 2]), ["S(0)"]), rp.Layout(rp.Mesh([3, 4, 5]), ["R"])
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (3, 8), "uint8", rows, whole)], topology))
    rp.verify(plan)
    network = plan.ops().select(plan.ops().medium == Medium.NETWORK)
    assert not {3, 5} & {*network.src.tolist(), *network.dst.tolist()}


# limits of peers, and NICs that ranks lack, whatever the strategy


@given(specs(max_ranks=8), st.sampled_from(ALL_STRATEGIES), st.integers(1, 4), st.integers(1, 4))
def test_a_plan_keeps_the_limits_of_peers_or_is_refused(spec, strategy, network, nvlink):
    """What is refused has too many peers indeed; `optimal` may find another way, and says so itself."""
    free, told = compiled(spec, strategy)
    if free is None:
        assert strategy in M2N_STRATEGIES
        assert told.startswith("NCCL M2N would refuse tensor ")
        return
    peers = free.certificate.peers
    excess = [
        f"options.{option} is {limit}; expected {most} or more"
        for option, most, limit in (
            ("max_network_peers", peers.network_max, network),
            ("max_nvlink_peers", peers.nvlink_max, nvlink),
        )
        if most > limit
    ]
    limited = spec.with_options(max_network_peers=network, max_nvlink_peers=nvlink)
    plan, told = compiled(limited, strategy)
    if plan is None:
        assert excess
        assert strategy == "optimal" or excess[0] in told
    else:
        assert plan.certificate.peers.network_max <= network
        assert plan.certificate.peers.nvlink_max <= nvlink
        assert strategy == "optimal" or not excess


def compiled(spec, strategy):
    """The plan of a strategy, or why there is none."""
    try:
        return rp.compile(spec, strategy), ""
    except UnsupportedError as error:
        return None, str(error)


def rows_to_copies(**options):
    """Four ranks with a quarter each, and eight in two domains that need all."""
    src, dst = rp.Layout(rp.Mesh(range(4)), ["S(0)"]), rp.Layout(rp.Mesh(range(4, 12)), ["R"])
    tensor = rp.TensorSpec("w", (64, 64), "bfloat16", src, dst)
    return rp.ReshardSpec([tensor], rp.Topology.uniform(12, 4), rp.Options(**options))


@pytest.mark.parametrize(
    ("strategy", "network", "nvlink"),
    [("direct", (0, 8), None), ("gather-broadcast", (4, 2), (0, 3)), ("m2n-uniform", (4, 2), (4, 3))],
)
def test_a_refusal_for_peers_names_strategy_rank_number_and_option(strategy, network, nvlink):
    for option, over, known in (
        ("max_network_peers", "the network", network),
        ("max_nvlink_peers", "NVLink", nvlink),
    ):
        if known is None:
            continue
        rank, most = known
        rp.compile(rows_to_copies(**{option: most}), strategy)
        with pytest.raises(UnsupportedError) as caught:
            rp.compile(rows_to_copies(**{option: most - 1}), strategy)
        assert str(caught.value) == (
            f"by the rules of the strategy '{strategy}' rank {rank} exchanges bytes with {most} ranks"
            f" over {over}, but options.{option} is {most - 1}; expected {most} or more,"
            " or the strategy 'optimal', which keeps within fewer where it finds a way"
        )


def test_optimal_says_itself_how_few_peers_it_found():
    fewest = "; the fewest that a way was found for are 2 over the network and 3 over NVLink"
    for limits, said in (
        ({"max_network_peers": 1}, "options.max_network_peers is 1"),
        ({"max_nvlink_peers": 1}, "options.max_nvlink_peers is 1"),
        (
            {"max_network_peers": 1, "max_nvlink_peers": 1},
            "options.max_network_peers is 1 and options.max_nvlink_peers is 1",
        ),
    ):
        with pytest.raises(UnsupportedError) as caught:
            rp.compile(rows_to_copies(**limits))
        assert str(caught.value) == said + fewest


def without_nics(src, *owners):
    """Ranks 0 and 1 are in one domain, 2 and 3 alone; of the first three only owners have a NIC."""
    domains = [rp.topology.Domain(gpus) for gpus in ((0, 1), (2,), (3,))]
    topology = rp.Topology(tuple(domains), tuple(Nic((gpu,)) for gpu in (*owners, 3)))
    tensor = rp.TensorSpec("w", (8, 8), "uint8", src, rp.Layout(rp.Mesh([3]), ["R"]))
    return rp.ReshardSpec([tensor], topology)


HALVES, WHOLE = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2]), ["R"])


@pytest.mark.parametrize("strategy", ["optimal", "direct", "gather-broadcast", "hybrid"])
@pytest.mark.parametrize("order", [[HALVES, WHOLE], [WHOLE, HALVES]], ids=["last", "first"])
def test_a_holder_with_a_nic_is_found_in_any_source_layout(strategy, order):
    plan = rp.compile(without_nics(order, 2), strategy)
    rp.verify(plan)
    assert_interprets_exactly(plan)
    assert plan.certificate.payload.network_nbytes == 64


def test_a_root_without_nic_gathers_and_broadcasts_among_its_neighbours():
    """Another layout has a rank with a NIC, but it could not reach those that need the bytes."""
    domains = rp.topology.Domain((0, 1)), rp.topology.Domain((2,))
    source = [rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([2]), ["R"])]
    tensor = rp.TensorSpec("w", (8, 8), "uint8", source, rp.Layout(rp.Mesh([1]), ["R"]))
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology(domains, (Nic((2,)),))), "gather-broadcast")
    rp.verify(plan)
    assert plan.certificate.payload.network_nbytes == 0


@pytest.mark.parametrize(
    ("strategy", "src", "said"),
    [
        (
            "striped",
            [HALVES, WHOLE],
            "by the rules of the strategy 'striped' rank 0 sends to rank 3 .* rank 0 has no NIC",
        ),
        ("striped", rp.Layout(rp.Mesh([0, 2]), ["R"]), "rank 0 sends to rank 3 .* rank 0 has no NIC"),
        ("direct", HALVES, r"one of the ranks \[0\] must move bytes over the network, but none has a NIC"),
    ],
)
def test_a_refusal_for_a_nic_says_what_the_rules_of_the_strategy_ask_for(strategy, src, said):
    with pytest.raises(UnsupportedError, match=f"{said}; expected a NIC for .* the strategy 'optimal'"):
        rp.compile(without_nics(src, 1, 2), strategy)


def test_all_strategies_are_tested():
    assert set(ALL_STRATEGIES) == set(STRATEGIES)
