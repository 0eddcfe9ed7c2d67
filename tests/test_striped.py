"""The strategy of NeMo RL's own planner: its rules one by one, an oracle of them, and what always holds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from element_oracle import assert_equal, buffers
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import assert_interprets_exactly, assert_processes_move_as_certified, domains_of, local_indices
from storage_strategies import irregular_specs, stored_specs
from strategies import MAX_RANKS, meshes, specs
from test_m2n_strategies import moves, on, one

import reshard_planner as rp
from benchmarks.m2n import m2n_cases
from reshard_planner.errors import UnsupportedError
from reshard_planner.topology import Domain, Link, Nic
from reshard_planner.transfer import Medium, Role

STRIPED = ("striped",)

WHOLE = 48
"""What tensors of the rules are in shares of."""


def assert_delivers(plan):
    rp.verify(plan)
    assert_interprets_exactly(plan)
    payload = plan.certificate.payload
    assert payload.network_nbytes >= payload.minimum_network_nbytes


def compiled(src, dst, domains, shape=(48, 48), **chosen):
    plan = rp.compile(one(src, dst, domains, shape, **chosen), "striped")
    assert_delivers(plan)
    return plan


def carried(plan, medium, tensor=0):
    """Bytes by sender and receiver, as shares of the tensor in 48ths."""
    whole = plan.spec.tensors[tensor].nbytes
    found = Counter()
    for (src, dst, over, _), nbytes in moves(plan, tensor).items():
        if over == medium:
            found[src, dst] += nbytes * WHOLE // whole
    return found


def network(plan, tensor=0):
    return carried(plan, Medium.NETWORK, tensor)


def nvlink(plan, tensor=0):
    return carried(plan, Medium.NVLINK, tensor)


def local(plan, tensor=0):
    return carried(plan, Medium.LOCAL, tensor)


# what always holds


@given(specs(strategies=STRIPED))
def test_any_spec_is_delivered_and_never_below_the_least_payload(spec):
    assert_delivers(rp.compile(spec))


@given(stored_specs() | irregular_specs())
def test_any_storage_is_delivered(spec):
    plan = rp.compile(spec, "striped")
    rp.verify(plan)
    result = rp.interpret(plan, buffers(spec, "src"))
    assert_equal(spec, result.destinations, buffers(spec, "dst", padding=0))
    payload = plan.certificate.payload
    assert payload.network_nbytes >= payload.minimum_network_nbytes


@given(specs(strategies=STRIPED))
def test_everything_is_delivered_into_destinations_without_scratch(spec):
    assert not rp.compile(spec).routes.scratch.any()


# an oracle: the rules for one plain layout a side, box by box


def regions(layout, shape):
    """The box of every rank as ranges, ranks in the order of the mesh; without those that have nothing."""
    stored = local_indices(layout, shape)
    found = {}
    for rank in layout.mesh.ranks:
        if all(len(indices) for indices in stored[rank]):
            found[rank] = tuple((int(indices[0]), int(indices[-1]) + 1) for indices in stored[rank])
    return found


def same_region(found):
    groups = {}
    for rank, region in found.items():
        groups.setdefault(region, []).append(rank)
    return groups


def common(a, b):
    met = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return met if all(lo < hi for lo, hi in met) else None


def is_run(part, whole):
    """Whether the numbers of the part's elements in the whole follow one another."""
    shape = [hi - lo for lo, hi in whole]
    at = [np.arange(lo - first, hi - first) for (lo, hi), (first, _) in zip(part, whole, strict=True)]
    numbers = np.arange(prod(shape)).reshape(shape)[np.ix_(*at)].reshape(-1)
    return bool((np.diff(numbers) == 1).all())


def first_hops(tensor):
    """(sender, receiver, box) of all that a holder sends or copies; and whether boxes are striped."""
    held, needed = regions(tensor.src[0], tensor.shape), regions(tensor.dst[0], tensor.shape)
    holders, groups = same_region(held), same_region(needed)
    striped = any(len(ranks) > 1 for ranks in groups.values()) and all(
        len(ranks) == 1 or (region and (region[0][1] - region[0][0]) % len(ranks) == 0)
        for region, ranks in groups.items()
    )
    if striped:
        sent, hops = Counter(), []
        for region, ranks in groups.items():
            rows = (region[0][1] - region[0][0]) // len(ranks) if region else 0
            for at, receiver in enumerate(ranks):
                stripe = region
                if len(ranks) > 1:
                    first = region[0][0] + at * rows
                    stripe = ((first, first + rows), *region[1:])
                for box, owners in holders.items():
                    if (met := common(box, stripe)) is not None:
                        sender = owners[sent[box] % len(owners)]
                        sent[box] += receiver not in owners
                        hops.append((receiver if receiver in owners else sender, receiver, met))
        if all(src == dst or is_run(box, held[src]) or is_run(box, needed[dst]) for src, dst, box in hops):
            return hops, True
    hops = []
    for region, ranks in groups.items():
        for box, owners in holders.items():
            if (met := common(box, region)) is not None:
                hops.append((ranks[0] if ranks[0] in owners else owners[0], ranks[0], met))
    return hops, False


@st.composite
def plain_specs(draw):
    """One tensor of bytes with one layout of Shard and Replicate a side, mostly of other ranks.

    Every rank has a domain of its own, or all have one, so that there is one ring.
    """
    shape = tuple(draw(st.lists(st.sampled_from([12, 12, 24, 6, 1, 7, 10]), max_size=2)))
    cut = draw(st.sampled_from([4, 4, 0]))
    sides = []
    for ranks in (range(cut or MAX_RANKS), range(cut, MAX_RANKS)):
        mesh = draw(meshes(ranks))
        kinds = st.sampled_from(["R", "R", *(f"S({dim})" for dim in range(len(shape)))])
        sides.append(rp.Layout(mesh, [draw(kinds) for _ in range(mesh.ndim)]))
    size = draw(st.sampled_from([1, MAX_RANKS]))
    return rp.ReshardSpec([rp.TensorSpec("w", shape, "uint8", *sides)], rp.Topology.uniform(MAX_RANKS, size))


@given(plain_specs())
@example(one(on(0, (2,), "S(1)"), on(2, (3, 2), "S(1)", "R"), 1))  # pieces at both ends
@example(one(on(0, (2, 2), "R", "S(0)"), on(4, (2, 4), "R", "S(0)"), 1, (10, 3)))  # uneven
def test_bytes_go_as_the_rules_say(spec):
    [tensor] = spec.tensors
    hops, striped = first_hops(tensor)
    wanted = Counter()
    groups = same_region(regions(tensor.dst[0], tensor.shape))
    for src, dst, box in hops:
        nbytes = prod(hi - lo for lo, hi in box)
        wanted[src, dst] += nbytes
        [ranks] = [ranks for ranks in groups.values() if dst in ranks]
        at = ranks.index(dst)
        assert striped or at == 0
        for pair in pairwise((*ranks[at:], *ranks[:at])):
            wanted[pair] += nbytes
    found = Counter()
    for (src, dst, _, _), nbytes in moves(rp.compile(spec, "striped")).items():
        found[src, dst] += nbytes
    assert found == wanted


# the rules, one by one


@pytest.mark.parametrize("domains", [4, 8])
def test_four_shards_reach_two_replicas_in_stripes_that_these_exchange(domains):
    """TP4 to TP2 x DP2: {4, 6} need the upper half, {5, 7} the lower one."""
    plan = compiled(on(0, (4,), "S(0)"), on(4, (2, 2), "R", "S(0)"), domains)
    sent = {(0, 4): 12, (1, 6): 12, (2, 5): 12, (3, 7): 12}
    exchanged = {(4, 6): 12, (6, 4): 12, (5, 7): 12, (7, 5): 12}
    if domains == 4:
        assert network(plan) == sent
        assert nvlink(plan) == exchanged
    else:
        assert network(plan) == {}
        assert nvlink(plan) == sent | exchanged


def test_replicas_in_several_domains_exchange_stripes_over_the_network():
    plan = compiled(on(0, (4,), "S(0)"), on(4, (2, 2), "R", "S(0)"), [[0, 1, 2, 3], [4, 5], [6, 7]])
    sent = {(0, 4): 12, (1, 6): 12, (2, 5): 12, (3, 7): 12}
    exchanged = {(4, 6): 12, (6, 4): 12, (5, 7): 12, (7, 5): 12}
    assert network(plan) == sent | exchanged
    roles = {(src, dst): role for src, dst, _, role in moves(plan)}
    assert {roles[pair] for pair in sent} == {Role.INJECT}
    assert {roles[pair] for pair in exchanged} == {Role.RELAY}


def test_rings_pass_domain_after_domain_and_take_turns_at_their_nics():
    """Two rings, 1 2 3 4 for the stripes of 1 and 2, and 2 1 4 3 for those of 3 and 4."""
    plan = compiled(on(0, (1,), "R"), on(1, (4,), "R"), [[0], [1, 2], [3, 4]])
    sent = dict.fromkeys([(0, 1), (0, 2), (0, 3), (0, 4)], 12)
    assert network(plan) == sent | {(2, 3): 24, (4, 1): 12, (1, 4): 12, (3, 2): 24}
    assert nvlink(plan) == {(1, 2): 12, (3, 4): 24, (2, 1): 24, (4, 3): 12}


def test_ranks_of_a_domain_follow_one_another_in_a_ring_whatever_the_order_of_the_mesh():
    dst = rp.Layout(rp.Mesh([1, 3, 2, 4]), ["R"])
    plan = compiled(on(0, (1,), "R"), dst, [[0], [1, 2], [3, 4]])
    assert {pair for pair in network(plan) if 0 not in pair} == {(2, 3), (4, 1), (1, 4), (3, 2)}


def test_there_are_as_many_rings_as_the_smallest_domain_of_a_group_has_ranks():
    plan = compiled(on(0, (1,), "R"), on(1, (4,), "R"), [[0], [1, 2, 3], [4]])
    assert {pair for pair in network(plan) if 0 not in pair} == {(3, 4), (4, 1)}


def test_holders_of_the_same_bytes_send_stripes_in_turns():
    plan = compiled(on(0, (3,), "R"), on(3, (2, 4), "S(0)", "R"), 3)
    sent = {pair for pair in network(plan) if pair[0] < 3}
    assert sent == {(0, 3), (1, 4), (2, 5), (0, 6), (1, 7), (2, 8), (0, 9), (1, 10)}


def test_without_replicas_the_first_holder_sends_everything():
    plan = compiled(on(0, (3,), "R"), on(3, (4,), "S(0)"), 1)
    assert network(plan) == dict.fromkeys([(0, 3), (0, 4), (0, 5), (0, 6)], 12)


def test_holders_come_in_the_order_of_their_mesh():
    plan = compiled(rp.Layout(rp.Mesh([2, 0, 1]), ["R"]), on(3, (2,), "S(0)"), 1)
    assert network(plan) == {(2, 3): 24, (2, 4): 24}


def test_boxes_that_their_ranks_do_not_divide_go_to_a_first_rank_that_broadcasts():
    """10 rows over 4 are 3, 3, 3 and 1; the last boxes are not cut in two, so none is."""
    plan = compiled(on(0, (1,), "R"), on(1, (2, 4), "R", "S(0)"), 1, (10, 4))
    boxes = {1: 12, 2: 12, 3: 12, 4: 4}
    first = {(0, rank, Medium.NETWORK, Role.INJECT): nbytes for rank, nbytes in boxes.items()}
    then = {(rank, rank + 4, Medium.NETWORK, Role.RELAY): nbytes for rank, nbytes in boxes.items()}
    assert moves(plan) == first | then


def test_one_box_that_is_not_divided_keeps_all_from_being_striped():
    """7 rows over 2 are 4 and 3."""
    plan = compiled(on(0, (1,), "R"), on(1, (2, 2), "R", "S(0)"), 1, (7, 48))
    assert set(network(plan)) == {(0, 1), (0, 2), (1, 3), (2, 4)}


def test_a_broadcast_is_shared_by_the_rings_of_its_group():
    """Three ranks of each domain; 4096 rows of 7 bytes are not divided by six."""
    plan = compiled(on(0, (1,), "R"), on(1, (6,), "R"), [[0], [1, 2, 3], [4, 5, 6]], (4096, 7))
    nbytes = plan.spec.tensors[0].nbytes
    assert moves(plan)[0, 1, Medium.NETWORK, Role.INJECT] == nbytes
    crossing = {
        (src, dst): moved
        for (src, dst, medium, _), moved in moves(plan).items()
        if medium == Medium.NETWORK and src
    }
    assert crossing.keys() == {(3, 4), (1, 5), (4, 2), (2, 6), (5, 3)}
    assert all(abs(moved - nbytes / 3) < 7 for moved in crossing.values())


def test_messages_in_pieces_at_both_ends_are_not_striped():
    """Columns 16 to 24 of shards of 24 and of 16 columns; of shards of 24 and of 12 all are whole."""
    apart = compiled(on(0, (2,), "S(1)"), on(2, (2, 3), "R", "S(1)"), 1)
    assert network(apart) == {
        (0, 2): 16,
        (0, 3): 8,
        (1, 3): 8,
        (1, 4): 16,
        (2, 5): 16,
        (3, 6): 16,
        (4, 7): 16,
    }
    whole = compiled(on(0, (2,), "S(1)"), on(2, (2, 4), "R", "S(1)"), 1)
    assert network(whole) == {
        (0, 2): 6,
        (0, 6): 6,
        (0, 3): 6,
        (0, 7): 6,
        (1, 4): 6,
        (1, 8): 6,
        (1, 5): 6,
        (1, 9): 6,
        (2, 6): 6,
        (6, 2): 6,
        (3, 7): 6,
        (7, 3): 6,
        (4, 8): 6,
        (8, 4): 6,
        (5, 9): 6,
        (9, 5): 6,
    }


def test_stripes_end_at_whole_bytes():
    """Two numbers of four bits each are a byte, one is not."""
    for size, striped in ((8, True), (12, False)):
        plan = compiled(on(0, (1,), "R"), on(1, (4,), "R"), 1, (size,), dtype="uint4")
        assert ((0, 4) in network(plan)) == striped


def test_a_rank_that_holds_its_stripe_copies_it_and_takes_the_others():
    plan = compiled(on(0, (2,), "R"), on(0, (4,), "R"), 1)
    assert local(plan) == {(0, 0): 12, (1, 1): 12}
    assert network(plan) == {(0, 2): 12, (1, 3): 12, (0, 1): 36, (1, 2): 36, (2, 3): 36, (3, 0): 36}


def test_a_first_rank_that_holds_bytes_copies_them_and_broadcasts_from_where_it_holds_them():
    plan = compiled(on(0, (2,), "R"), on(1, (4,), "R"), 1, (7, 7))
    assert moves(plan) == {
        (1, 1, Medium.LOCAL, Role.COPY): 49,
        (1, 2, Medium.NETWORK, Role.INJECT): 49,
        (2, 3, Medium.NETWORK, Role.RELAY): 49,
        (3, 4, Medium.NETWORK, Role.RELAY): 49,
    }


def test_ranks_of_several_layouts_that_need_one_box_are_one_group():
    """Engines of two sizes: the halves of the second are boxes of their own."""
    src = on(0, (1,), "R")
    dst = [on(1, (2,), "R"), on(3, (2,), "S(0)"), rp.Layout(rp.Mesh([5, 1]), ["R"])]
    tensor = rp.TensorSpec("w", (48, 48), "uint8", src, dst)
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(6, 1)), "striped")
    assert_delivers(plan)
    assert network(plan) == {
        (0, 1): 16,
        (0, 2): 16,
        (0, 5): 16,
        (1, 2): 32,
        (2, 5): 32,
        (5, 1): 32,
        (0, 3): 24,
        (0, 4): 24,
    }
    assert local(plan) == {(1, 1): 48}  # into the tile that the other layout gives it


def test_what_any_source_layout_holds_on_a_receiver_is_copied():
    src = [on(0, (2,), "S(0)"), on(2, (2,), "S(0)")]
    tensor = rp.TensorSpec("w", (48, 48), "uint8", src, on(2, (2,), "S(1)"))
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(4, 1)), "striped")
    assert_delivers(plan)
    assert network(plan) == {(1, 2): 12, (0, 3): 12}


def test_renamed_tensors_share_routes_whatever_the_order_of_their_domains():
    """The rules go by the order of meshes, so those of pipeline stages are one another's."""
    pairs = [
        (rp.Layout(rp.Mesh([0, 1]), ["R"]), rp.Layout(rp.Mesh([2, 3, 4, 5]), ["R"])),
        (rp.Layout(rp.Mesh([7, 6]), ["R"]), rp.Layout(rp.Mesh([11, 10, 9, 8]), ["R"])),
    ]
    topology = rp.Topology.from_domains([[0, 1], [2, 3], [4, 5], [8, 9], [6, 7], [10, 11]])
    tensors = [rp.TensorSpec(f"t{at}", (8,), "uint8", *pair) for at, pair in enumerate(pairs)]
    together = rp.compile(rp.ReshardSpec(tensors, topology), "striped")
    assert_delivers(together)
    assert len(set(together.groups.routes_of.tolist())) == 1
    for at, tensor in enumerate(tensors):
        assert moves(together, at) == moves(rp.compile(rp.ReshardSpec([tensor], topology), "striped"))


def test_a_rank_without_nic_is_refused_where_it_would_have_to_send():
    link = Link(10**9, 1.0, 0.0)
    topology = rp.Topology((Domain((0, 1), link), Domain((2,), link)), (Nic((1,), link), Nic((2,), link)))
    tensors = [rp.TensorSpec(f"w{at}", (4,), "uint8", on(at, (1,), "R"), on(2, (1,), "R")) for at in (1, 0)]
    rp.compile(rp.ReshardSpec(tensors[:1], topology), "striped")
    spec = rp.ReshardSpec(tensors, topology)
    with pytest.raises(
        UnsupportedError, match=r"strategy 'striped' rank 0 sends to rank 2 .* rank 0 has no NIC"
    ):
        rp.compile(spec, "striped")


# figures


def test_every_nic_carries_its_share_where_groups_span_domains():
    """A domain of 8 holds, 8 more need: each rank there is sent its stripe and starts one of 8 rings."""
    [spec] = [case.build() for case in m2n_cases() if case.name == "m2n/r8-to-r64"]
    plan = rp.compile(spec, "striped")
    whole, home = spec.tensors[0].nbytes, domains_of(spec.topology)
    taken = Counter()
    for (_, dst, medium, _), nbytes in moves(plan).items():
        taken[dst] += nbytes * (medium == Medium.NETWORK)
    assert len(taken) == 64
    # a ring carries 8 stripes, of which at most one is that of the rank where it enters a domain
    assert {nbytes * 64 // whole for nbytes in taken.values()} <= {1 + 8, 1 + 7}
    assert {home[rank] for rank in taken} == set(range(1, 9))


# real processes


def test_processes_move_what_the_certificate_says():
    spec = one(on(0, (2, 1), "R", "S(0)"), on(2, (2, 3), "S(0)", "R"), [[0, 1], [2, 3, 5, 6], [4, 7]])
    plan = rp.compile(spec, "striped")
    assert_processes_move_as_certified(plan)
