"""Payload: ``optimal`` moves the least bytes, ``direct`` what every needer fetching its own copy moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import Moves, domains_of, handed_on, holder_masks, members
from strategies import specs
from test_atoms import LISTS

import reshard_planner as rp
from reshard_planner.ir.certificate import TransferCounts
from reshard_planner.transfer import Medium, Role

TP4 = rp.Layout(rp.Mesh([0, 1, 2, 3], ["tp"]), ["S(0)"])
TP2_DP2 = rp.Layout(rp.Mesh([[4, 5], [6, 7]], ["dp", "tp"]), ["R", "S(0)"])
TP_EXAMPLE = rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", TP4, TP2_DP2)], rp.Topology.uniform(8, 4))


def on_two_domains(tensor: rp.TensorSpec) -> rp.ReshardSpec:
    return rp.ReshardSpec([tensor], rp.Topology.from_domains([[0], [1, 2]]))


@given(specs())
@example(TP_EXAMPLE)
@example(on_two_domains(LISTS[0]))
@example(on_two_domains(LISTS[1]))
@example(on_two_domains(LISTS[2]))
def test_optimal_moves_the_least_of_every_medium(spec):
    plan = rp.compile(spec, "optimal")
    payload = plan.certificate.payload
    moves = Moves(spec)
    assert payload.network_nbytes == payload.minimum_network_nbytes == moves.network
    assert payload.nvlink_nbytes == moves.nvlink + handed_on(plan)
    assert payload.local_nbytes == moves.local
    assert payload.logical_nbytes == 2 * sum(tensor.nbytes for tensor in spec.tensors)


@given(specs())
@example(TP_EXAMPLE)
@example(on_two_domains(LISTS[1]))
def test_direct_moves_one_copy_for_every_needer(spec):
    payload = rp.compile(spec, "direct").certificate.payload
    moves = Moves(spec)
    assert payload.network_nbytes == moves.direct_network
    assert payload.nvlink_nbytes == moves.direct_nvlink
    assert payload.local_nbytes == moves.local
    assert payload.minimum_network_nbytes == moves.network


@given(specs())
def test_gather_and_broadcast_never_moves_less(spec):
    payload = rp.compile(spec, "gather-broadcast").certificate.payload
    assert payload.network_nbytes >= payload.minimum_network_nbytes


@given(specs())
@example(TP_EXAMPLE)
def test_every_domain_in_need_takes_in_every_element_once(spec):
    plan = rp.compile(spec, "optimal")
    home = domains_of(spec.topology)
    ops = plan.ops()
    for number, tensor in enumerate(spec.tensors):
        ndim = len(tensor.shape)
        holders = holder_masks(tensor.src, tensor.shape)
        needers = holder_masks(tensor.dst, tensor.shape)
        wanted = np.zeros((len(spec.topology.domains), *tensor.shape), dtype=np.int64)
        for element in np.ndindex(*tensor.shape):
            held_in = {home[rank] for rank in members(int(holders[element]))}
            for domain in {home[rank] for rank in members(int(needers[element]))} - held_in:
                wanted[domain, *element] = 1
        taken = np.zeros_like(wanted)
        for at in np.flatnonzero((ops.tensor == number) & (ops.medium == Medium.NETWORK)).tolist():
            box = rp.Box(tuple(ops.lo[at, :ndim].tolist()), tuple(ops.hi[at, :ndim].tolist()))
            taken[home[int(ops.dst[at])], *box.slices()] += 1
        assert np.array_equal(taken, wanted)


@given(specs(), st.sampled_from(["optimal", "direct", "gather-broadcast"]))
def test_media_and_roles_follow_from_ranks_and_parents(spec, strategy):
    plan = rp.compile(spec, strategy)
    home = domains_of(spec.topology)
    ops = plan.ops()
    parent_medium = dict(zip(ops.op.tolist(), ops.medium.tolist(), strict=True))
    aside = dict(zip(ops.op.tolist(), ops.scratch.tolist(), strict=True))
    columns = (ops.op, ops.src, ops.dst, ops.medium, ops.role, ops.parent)
    for op, src, dst, medium, role, parent in zip(*(column.tolist() for column in columns), strict=True):
        if src == dst:
            assert (medium, role) == (Medium.LOCAL, Role.COPY)
        elif home[src] == home[dst]:
            # to or from a rank that only passes it on; gathering at the root is something else
            lent = strategy == "optimal" and (aside[op] or aside.get(parent, False))
            assert (medium, role) == (Medium.NVLINK, Role.HANDOFF if lent else Role.FANOUT)
        else:
            assert medium == Medium.NETWORK
            assert role == (Role.INJECT if parent < 0 else Role.RELAY)
        assert parent < 0 or parent in parent_medium


def test_rows_over_two_to_columns_over_four_makes_eight_boxes():
    train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
    spec = rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)])
    plan = rp.compile(spec)
    ops = plan.ops()
    assert plan.certificate.transfers == len(ops) == 8
    assert ops.nbytes.tolist() == [16] * 8
    moved = set(zip(ops.src.tolist(), ops.dst.tolist(), map(tuple, (ops.hi - ops.lo).tolist()), strict=True))
    assert moved == {(src, dst, (4, 2)) for src in (0, 1) for dst in (2, 3, 4, 5)}


def test_two_replicas_in_one_domain_cost_four_network_transfers_and_not_eight():
    direct, optimal = rp.compile(TP_EXAMPLE, "direct"), rp.compile(TP_EXAMPLE, "optimal")
    assert direct.certificate.transfers_by_medium == TransferCounts(local=0, nvlink=0, network=8)
    assert optimal.certificate.transfers_by_medium == TransferCounts(local=0, nvlink=4, network=4)
    ops = optimal.ops().select(optimal.ops().medium == Medium.NETWORK)
    assert sorted(ops.src.tolist()) == [0, 1, 2, 3], "each source shard crosses once"
    replica = {4: 0, 5: 0, 6: 1, 7: 1}
    assert sorted(replica[rank] for rank in ops.dst.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("strategy", ["optimal", "direct"])
def test_equal_layouts_move_nothing_between_ranks(strategy):
    spec = rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", TP4, TP4)], rp.Topology.uniform(4, 2))
    payload = rp.compile(spec, strategy).certificate.payload
    assert (payload.network_nbytes, payload.nvlink_nbytes, payload.local_nbytes) == (0, 0, 128)


def test_empty_tensors_beside_one_that_is_split_keep_groups_of_their_own():
    one, many = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([4, 5, 6, 7]), ["R"])
    empty = [rp.TensorSpec(name, (0, 3), "float32", one, many) for name in ("none", "nothing")]
    split = rp.TensorSpec("w", (2, 1024), "float32", one, many)
    plan = rp.compile(rp.ReshardSpec([split, *empty], rp.Topology.uniform(8, 4)))
    rp.verify(plan)
    assert plan.certificate.transfers_by_medium.network == 4
    assert plan.groups.group_of[0] not in plan.groups.group_of[1:]
