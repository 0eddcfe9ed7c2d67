"""Every layout of the published NCCL M2N test grid, also those that M2N refuses: least payload, exact."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from oracle import Moves, assert_interprets_exactly, handed_on
from strategies import ALL_STRATEGIES, M2N_STRATEGIES

import reshard_planner as rp
from reshard_planner.errors import UnsupportedError

GPUS_PER_DOMAIN = 4

GRID: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "m2n_layouts.json").read_text(encoding="utf-8")
)


def layout(side: dict[str, Any]) -> rp.Layout:
    ranks = range(side["start"], side["start"] + prod(side["dims"]))
    placements = ["R" if text == "R" else f"S({text[1:]})" for text in side["pl"]]
    return rp.Layout(rp.Mesh(list(ranks), None, side["dims"]), placements)


def build(entry: dict[str, Any]) -> rp.ReshardSpec:
    src, dst = layout(entry["src"]), layout(entry["dst"])
    ranks = max(*src.mesh.ranks, *dst.mesh.ranks) + 1
    tensor = rp.TensorSpec("w", entry["shape"], entry["dtype"], src, dst)
    return rp.ReshardSpec([tensor], rp.Topology.uniform(ranks, GPUS_PER_DOMAIN))


@pytest.mark.parametrize("entry", GRID, ids=lambda entry: entry["cases"][0].replace("/", "-"))
def test_payload_is_least_and_the_result_exact(entry):
    spec = build(entry)
    plan = rp.compile(spec)
    payload = plan.certificate.payload
    moves = Moves(spec, by_kind=True)
    assert payload.network_nbytes == payload.minimum_network_nbytes == moves.network
    assert payload.nvlink_nbytes == moves.nvlink + handed_on(plan)
    assert payload.local_nbytes == moves.local
    assert_interprets_exactly(plan)


SMALL = [entry for entry in GRID if prod(entry["shape"]) <= 2**12]


@pytest.mark.parametrize("strategy", ALL_STRATEGIES[1:])
@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry["cases"][0].replace("/", "-"))
def test_baselines_deliver_the_same(entry, strategy):
    if strategy in M2N_STRATEGIES and not entry["m2n_runs"]:
        with pytest.raises(UnsupportedError, match="not equal in size and number of copies"):
            rp.compile(build(entry), strategy)
    else:
        assert_interprets_exactly(rp.compile(build(entry), strategy))


def test_the_grid_holds_what_m2n_runs_and_what_it_refuses():
    assert len(GRID) == 452
    assert {entry["m2n_runs"] for entry in GRID} == {True, False}
