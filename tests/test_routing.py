"""Routes: close to the bound on ports of any speed, with least payload."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import Moves, assert_interprets_exactly, handed_on

import reshard_planner as rp
from reshard_planner.routing.cuts import LEAST_PIECE_NBYTES, cut_dims, split_box, split_boxes
from reshard_planner.routing.sets import Turns
from reshard_planner.topology import Domain, Link, Nic
from reshard_planner.topology.model import Pod
from reshard_planner.transfer import Medium

GB = 10**9


def link(gb_per_s: int) -> Link:
    return Link(gb_per_s * GB, 1.0, 0.0)


@st.composite
def uneven_clusters(draw: st.DrawFn) -> rp.Topology:
    """Two to five domains with NICs of several speeds, some shared, and NVLink from NIC speed up."""
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
    return rp.Topology(tuple(domains), tuple(nics))


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
    """Time of the largest row of any piece at the slowest NIC, in seconds: cuts fall between rows."""
    ops = plan.ops()
    rows = [
        int(np.prod((ops.hi - ops.lo)[at][1:])) * plan.spec.tensors[ops.tensor[at]].bits // 8
        for at in range(len(ops))
    ]
    slowest = min(nic.link.bytes_per_s for nic in plan.spec.topology.nics)
    return max(rows, default=0) / slowest


@given(large_specs())
def test_the_busiest_port_is_close_to_the_bound_on_ports_of_any_speed(spec):
    plan = rp.compile(spec)
    certificate = plan.certificate
    assume(certificate.bound.time_s > 0)
    busiest = max(certificate.busiest_nic.time_s, certificate.busiest_nvlink.time_s)
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


@given(
    st.lists(
        st.tuples(*(st.tuples(st.integers(0, 9), st.integers(1, 400)) for _ in range(2))),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_boxes_are_cut_alike_one_by_one_and_all_at_once(boxes, data):
    lo = np.array([[a, b] for (a, _), (b, _) in boxes])
    hi = lo + np.array([[a, b] for (_, a), (_, b) in boxes])
    parts = np.array([data.draw(st.integers(1, 50)) for _ in boxes])
    bits = data.draw(st.sampled_from([8, 16, 32]))
    owner, cut_lo, cut_hi = split_boxes(lo, hi, parts, bits, 1)
    for number in range(len(boxes)):
        box = rp.Box(tuple(lo[number].tolist()), tuple(hi[number].tolist()))
        wanted = max(1, min(int(parts[number]), box.volume * bits // 8 // LEAST_PIECE_NBYTES))
        mine = owner == number
        found = [
            rp.Box(tuple(a), tuple(b))
            for a, b in zip(cut_lo[mine].tolist(), cut_hi[mine].tolist(), strict=True)
        ]
        assert found == split_box(box, wanted, 1)


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


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5), st.integers(1, 50)
)
def test_boxes_are_cut_along_the_outermost_dimension_that_has_enough(extents, parts):
    hi = np.array(extents)
    for (rows, columns), dim in zip(extents, cut_dims(np.zeros_like(hi), hi, parts, 1).tolist(), strict=True):
        assert dim == (0 if rows >= parts else 1 if columns >= parts else int(columns > rows))
