"""A rank's program read from a file is that of the loaded plan, whatever blocks it lies in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _plans import sample_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from renamed import staged_plans
from safetensors import safe_open
from safetensors.numpy import save_file
from strategies import STRATEGIES, specs

import reshard_planner as rp
from reshard_planner.errors import DigestError, PlanFileError, TableError
from reshard_planner.ir import digest, forms, rankfile
from reshard_planner.ir.forms import read_program


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Write and read files in blocks of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "BLOCK_ROWS", rows)
        patch.setattr(rankfile, "BLOCK_ROWS", rows)
        yield


def sealed_anew(plan: rp.Plan) -> rp.Plan:
    """The plan with the digest that it has in blocks of the present size."""
    return rp.Plan.seal(plan.spec, plan.tables, plan.certificate)


def assert_programs_read_back(plan: rp.Plan, path: Path) -> None:
    sealed_anew(plan).save(path)
    loaded = rp.Plan.load(path)
    for rank in (*plan.ranks, max(plan.ranks, default=0) + 1):
        assert read_program(path, rank) == loaded.program(rank)


@given(specs(), st.sampled_from(STRATEGIES), st.sampled_from([1, 3, 16, 65536]))
def test_a_program_read_alone_is_that_of_the_loaded_plan(tmp_path_factory, spec, strategy, rows):
    with blocks_of(rows):
        assert_programs_read_back(rp.compile(spec, strategy), tmp_path_factory.mktemp("read") / "plan")


@settings(max_examples=20)
@given(staged_plans(), st.sampled_from([1, 3, 16, 65536]))
def test_a_rank_that_stands_for_others_reads_the_rows_of_all_of_them(tmp_path_factory, plan, rows):
    with blocks_of(rows):
        assert_programs_read_back(plan, tmp_path_factory.mktemp("read") / "plan")


@pytest.mark.parametrize("suffix", ["reshard", "json", "txt"])
@pytest.mark.parametrize("name", sample_plans())
def test_programs_are_read_from_every_form(tmp_path, name, suffix):
    plan = sample_plans()[name]
    path = tmp_path / f"plan.{suffix}"
    forms.save_as(plan, path)
    for rank in (*plan.ranks, 99):
        assert read_program(path, rank) == plan.program(rank)


def rewrite(path: Path, name: str, row: int) -> None:
    """Change one value of one column and nothing else."""
    with safe_open(path, framework="np") as stored:
        metadata = stored.metadata()
        columns = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 - not a mapping
    columns[name][row] ^= 1
    save_file(columns, path, metadata)


@settings(max_examples=30)
@given(specs(), st.sampled_from(STRATEGIES), st.sampled_from([1, 3]))
def test_only_blocks_with_rows_of_the_rank_are_read(tmp_path_factory, spec, strategy, rows):
    read: set[tuple[str, int]] = set()
    one_block = rankfile.Blocks.block

    def block(blocks, name, number):
        read.add((name, number))
        return one_block(blocks, name, number)

    path = tmp_path_factory.mktemp("counted") / "plan"
    with blocks_of(rows), pytest.MonkeyPatch.context() as patch:
        plan = sealed_anew(rp.compile(spec, strategy))
        plan.save(path)
        patch.setattr(rankfile.Blocks, "block", block)
        for rank in plan.ranks:
            read.clear()
            read_program(path, rank)
            _, names = plan.groups.renamings(rank + 1)
            stands_for = np.unique(np.nonzero(names == rank)[1])
            routes = plan.routes
            own = np.flatnonzero(np.isin(routes.src, stands_for) | np.isin(routes.dst, stands_for))
            parents = routes.parent[own][routes.parent[own] >= 0]
            for name in ("role", "medium", "tile", "offset", "parent"):
                assert blocks_read(read, f"routes.{name}") == set((own // rows).tolist())
            wanted = np.concatenate((own, parents))
            assert blocks_read(read, "routes.piece") == set((wanted // rows).tolist())
            pieces = np.unique(routes.piece[wanted])
            assert blocks_read(read, "pieces.lo") == set((pieces // rows).tolist())
            # both ends of a range are found by bisection, once for src and once for dst
            probes = 2 * len(stands_for) * (len(routes) // rows + 1).bit_length() + 2 * len(stands_for)
            assert len(blocks_read(read, "index.by_dst")) <= len(own) // rows + 1 + len(stands_for) + probes
            assert len(blocks_read(read, "routes.src")) <= len(own) + len(stands_for) + probes


def blocks_read(read: set[tuple[str, int]], name: str) -> set[int]:
    return {number for column, number in read if column == name}


@settings(max_examples=30)
@given(data=st.data())
def test_damage_in_blocks_of_a_rank_is_refused_and_elsewhere_not_read(tmp_path_factory, data):
    plan = sample_plans()["gather-broadcast"]
    path = tmp_path_factory.mktemp("damaged") / "plan"
    rank = data.draw(st.sampled_from(plan.ranks))
    column = data.draw(st.sampled_from(["piece", "role", "tile", "offset", "medium"]))
    row = data.draw(st.integers(0, len(plan.routes) - 1))
    with blocks_of(1):
        plan = sealed_anew(plan)
        plan.save(path)
        rewrite(path, f"routes.{column}", row)
        own = plan.routes.src[row] == rank or plan.routes.dst[row] == rank
        if own:
            with pytest.raises(DigestError, match=f"block {row} of column 'routes.{column}'"):
                read_program(path, rank)
        elif column != "piece":  # the pieces of rows that feed the rank's own are looked at
            assert read_program(path, rank) == plan.program(rank)


@pytest.mark.parametrize("column", ["groups.group_of", "groups.routes_of", "schedule.round"])
def test_damaged_groups_and_units_are_refused(tmp_path, column):
    path = tmp_path / "plan"
    sample_plans()["optimal"].save(path)
    rewrite(path, column, 0)
    with pytest.raises(DigestError, match=f"block 0 of column '{column}'"):
        read_program(path, 2)


def test_an_index_out_of_order_is_refused(tmp_path):
    plan = sample_plans()["optimal"]
    with pytest.MonkeyPatch.context() as patch:
        descending = np.arange(len(plan.routes), dtype=np.int32)[::-1].copy()
        patch.setattr(digest, "destination_index", lambda _: descending)
        bad = rp.Plan.seal(plan.spec, plan.tables, plan.certificate)
        bad.save(tmp_path / "plan")
        with pytest.raises(PlanFileError, match="order"):
            read_program(tmp_path / "plan", int(plan.routes.dst.min()))


@pytest.mark.parametrize("piece", [-5, 999])
def test_a_row_that_refers_to_no_piece_is_refused_by_its_number(tmp_path, piece):
    plan = sample_plans()["optimal"]
    bad = plan.routes.piece.copy()
    bad[0] = piece
    tables = replace(plan.tables, routes=replace(plan.routes, piece=bad))
    rp.Plan.seal(plan.spec, tables, plan.certificate).save(tmp_path / "plan")
    with pytest.raises(TableError, match=rf"a row refers to row {piece} of {len(plan.pieces)}"):
        read_program(tmp_path / "plan", int(plan.routes.src[0]))
