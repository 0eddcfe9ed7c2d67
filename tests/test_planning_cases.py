"""Planning inputs from public bug reports: the right shards and bytes, or the named refusal."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import Moves, assert_interprets_exactly
from strategies import STRATEGIES

import reshard_planner as rp
from reshard_planner.errors import (
    DtypeMismatchError,
    LayoutError,
    LocalShapeError,
    ShapeMismatchError,
)
from reshard_planner.topology import Nic
from reshard_planner.transfer import Medium

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "planning_cases.json").read_text(encoding="utf-8")
)["cases"]
PLANNED = [case for case in CASES if case["expected"]["status"] == "ok"]
REFUSED = [case for case in CASES if case["expected"]["status"] == "error"]
LARGEST_RUN = 16 * 2**20

ERRORS = {
    "layout_invalid": LayoutError,
    "shape_mismatch": ShapeMismatchError,
    "dtype_mismatch": DtypeMismatchError,
    "local_shape_mismatch": LocalShapeError,
}


def by_id(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def build(case: dict[str, Any]) -> rp.ReshardSpec:
    sides = [rp.Layout(rp.Mesh(case[side]["mesh"]), case[side]["placements"]) for side in ("src", "dst")]
    tensor = rp.TensorSpec(
        case["id"],
        case["global_shape"],
        case["dtype"],
        *sides,
        dst_shape=case.get("dst_global_shape"),
        dst_dtype=case.get("dst_dtype"),
    )
    if "domains" in case:
        return rp.ReshardSpec([tensor], rp.Topology.from_domains(case["domains"]))
    ranks = max(rank for layout in sides for rank in layout.mesh.ranks) + 1
    return rp.ReshardSpec([tensor], rp.Topology.uniform(ranks, case["gpus_per_domain"]))


def as_document(case: dict[str, Any]) -> dict[str, Any]:
    """The case as a spec file writes it."""
    topology = {key: case[key] for key in ("domains", "gpus_per_domain") if key in case}
    if "domains" in topology:
        del topology["gpus_per_domain"]
    dst = {"mesh": "dst", "placements": case["dst"]["placements"]}
    for key, name in (("dst_global_shape", "shape"), ("dst_dtype", "dtype")):
        if key in case:
            dst[name] = case[key]
    return {
        "version": 1,
        "meshes": {side: {"ranks": case[side]["mesh"]} for side in ("src", "dst")},
        "topology": topology,
        "tensors": [
            {
                "name": case["id"],
                "shape": case["global_shape"],
                "dtype": case["dtype"],
                "src": {"mesh": "src", "placements": case["src"]["placements"]},
                "dst": dst,
            }
        ],
    }


@by_id(PLANNED)
def test_shards_are_the_right_intervals(case):
    tensor = build(case).tensors[0]
    for side in ("src", "dst"):
        partition = tensor.layouts(side)[0].partition(tensor.shape)
        shards = {
            str(rank): [list(map(list, d)) for d in partition.intervals(rank)] for rank in partition.rows
        }
        assert shards == case["expected"][f"{side}_shards"]
    assert tensor.nbytes == case["expected"]["tensor_bytes"]


@by_id(PLANNED)
def test_optimal_moves_exactly_the_least_bytes(case):
    expected = case["expected"]
    plan = rp.compile(build(case), "optimal")
    payload = plan.certificate.payload
    assert payload.minimum_network_nbytes == expected["min_network_bytes"]
    assert payload.network_nbytes == expected["min_network_bytes"]
    assert payload.nvlink_nbytes == expected["min_intra_domain_bytes"]
    assert payload.local_nbytes == expected["local_bytes"]


@by_id(PLANNED)
def test_direct_moves_one_copy_per_receiver(case):
    payload = rp.compile(build(case), "direct").certificate.payload
    assert payload.network_nbytes == case["expected"]["no_fanout_network_bytes"]
    assert payload.local_nbytes == case["expected"]["local_bytes"]


@by_id(PLANNED)
def test_the_tests_own_oracle_agrees_with_the_facts(case):
    moves = Moves(build(case), by_kind=prod(case["global_shape"]) > 10_000)
    expected = case["expected"]
    assert moves.network == expected["min_network_bytes"]
    assert moves.nvlink == expected["min_intra_domain_bytes"]
    assert moves.local == expected["local_bytes"]
    assert moves.direct_network == expected["no_fanout_network_bytes"]


@by_id([case for case in PLANNED if case["expected"]["tensor_bytes"] < LARGEST_RUN])
def test_every_strategy_delivers_every_byte(case):
    for strategy in STRATEGIES:
        assert_interprets_exactly(rp.compile(build(case), strategy))


@by_id([case for case in PLANNED if case["expected"]["brute_force_checked"]])
def test_every_rank_receives_what_it_misses(case):
    for strategy in ("optimal", "direct"):
        ops = rp.compile(build(case), strategy).ops()
        moved = ops.select(ops.medium != Medium.LOCAL)
        received = {int(rank): 0 for rank in case["expected"]["missing_bytes"]}
        for dst, nbytes in zip(moved.dst.tolist(), moved.nbytes.tolist(), strict=True):
            received[dst] += nbytes
        assert received == {int(rank): n for rank, n in case["expected"]["missing_bytes"].items()}


def without_fan_out(case: dict[str, Any]) -> bool:
    expected = case["expected"]
    return "pair_bytes" in expected and expected["no_fanout_network_bytes"] == expected["min_network_bytes"]


@by_id([case for case in PLANNED if without_fan_out(case)])
def test_every_pair_exchanges_exactly_its_bytes(case):
    """Between domains; within one, a neighbour that needs the bytes too may pass them on."""
    wanted = {tuple(map(int, pair.split("->"))): n for pair, n in case["expected"]["pair_bytes"].items()}
    plan = rp.compile(build(case), "direct")
    ops = plan.ops()
    pairs: dict[tuple[int, int], int] = {}
    for src, dst, nbytes in zip(ops.src.tolist(), ops.dst.tolist(), ops.nbytes.tolist(), strict=True):
        if src != dst:
            pairs[src, dst] = pairs.get((src, dst), 0) + nbytes
    assert pairs == wanted
    home = {gpu: i for i, domain in enumerate(plan.spec.topology.domains) for gpu in domain.gpus}
    far = {pair: n for pair, n in wanted.items() if home[pair[0]] != home[pair[1]]}
    ops = rp.compile(build(case), "optimal").ops()
    ops = ops.select(ops.medium == Medium.NETWORK)
    pairs = {}
    for src, dst, nbytes in zip(ops.src.tolist(), ops.dst.tolist(), ops.nbytes.tolist(), strict=True):
        pairs[src, dst] = pairs.get((src, dst), 0) + nbytes
    assert pairs == far


@by_id([case for case in PLANNED if "ranks_with_no_remote_ops" in case["expected"]])
def test_ranks_without_part_stay_idle(case):
    plan = rp.compile(build(case), "direct")
    idle = [
        rank
        for rank in plan.ranks
        if not any(slot.sends or slot.receives for slot in plan.program(rank).slots)
    ]
    assert idle == case["expected"]["ranks_with_no_remote_ops"]


@by_id(REFUSED)
def test_impossible_inputs_are_refused_by_name(case):
    expected = case["expected"]
    with pytest.raises(ERRORS[expected["kind"]]) as caught:
        declare_and_run(build(case), case)
    missing = [text for text in expected["must_mention"] if text not in str(caught.value)]
    assert not missing, str(caught.value)


@by_id([case for case in REFUSED if case["expected"]["when"] == "plan"])
def test_impossible_spec_files_are_refused_alike(case):
    with pytest.raises(ERRORS[case["expected"]["kind"]]) as caught:
        rp.spec.spec_from_dict(as_document(case))
    missing = [text for text in case["expected"]["must_mention"] if text not in str(caught.value)]
    assert not missing, str(caught.value)


@by_id(PLANNED)
def test_spec_files_give_the_same_plan(case):
    from_file = rp.spec.spec_from_dict(json.loads(json.dumps(as_document(case))))
    assert from_file.tensors == build(case).tensors
    assert rp.compile(from_file).tables == rp.compile(build(case)).tables


def declare_and_run(spec: rp.ReshardSpec, case: dict[str, Any]) -> None:
    """Feed the interpreter local buffers of the shapes that the case declares."""
    dtype = np.dtype(f"V{spec.tensors[0].bits // 8}")
    buffers = {
        int(rank): {case["id"]: [np.zeros(shape, dtype=dtype)]}
        for rank, shape in case.get("declared_local_shapes", {}).items()
    }
    rp.interpret(rp.compile(spec), buffers)


@by_id([case for case in CASES if "declared_local_shapes" in case])
def test_the_right_local_shapes_are_those_of_the_layout(case):
    tensor = build(case).tensors[0]
    partition = tensor.src[0].partition(tensor.shape)
    shapes = {str(rank): list(partition.local_shape(rank)) for rank in partition.rows}
    assert shapes == case["expected"]["expected_src_local_shapes"]


@by_id([case for case in PLANNED if "ideal_network_ingress_per_dst_rank" in case["expected"]])
def test_a_short_outer_dimension_still_gives_every_receiver_an_equal_share(case):
    plan = rp.compile(build(case), "optimal")
    ops = plan.ops().select(plan.ops().medium == Medium.NETWORK)
    share = case["expected"]["ideal_network_ingress_per_dst_rank"]
    assert sorted(ops.nbytes.tolist()) == [share] * 4
    assert sorted(ops.dst.tolist()) == case["dst"]["mesh"]
    assert plan.certificate.gap == pytest.approx(0, abs=0.02)


@by_id([case for case in PLANNED if "ideal_network_ingress_per_dst_rank" in case["expected"]])
def test_receivers_share_the_ingress_where_their_nics_bind(case):
    """The same case with a source that has a NIC for every receiver's."""
    spec = build(case)
    nics = [*spec.topology.nics, *[Nic((0,))] * 3]
    topology = rp.Topology(spec.topology.domains, tuple(nics))
    plan = rp.compile(rp.ReshardSpec(spec.tensors, topology), "optimal")
    ops = plan.ops().select(plan.ops().medium == Medium.NETWORK)
    taken = {rank: int(ops.nbytes[ops.dst == rank].sum()) for rank in case["dst"]["mesh"]}
    assert set(taken.values()) == {case["expected"]["ideal_network_ingress_per_dst_rank"]}
    assert plan.certificate.gap == pytest.approx(0, abs=0.02)
