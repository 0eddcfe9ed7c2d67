"""Plans with all that the tables allow and compilers may not produce: substitutions, parts, uneven chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from mutations import reseal
from strategies import STRATEGIES, options, tensor_specs, topologies

import reshard_planner as rp
from reshard_planner.ir.tables import Groups, Pieces, Routes, Schedule, Tables
from reshard_planner.transfer import Medium

RANKS = 6
"""Ranks of one stage at most."""


def shifted(layouts: tuple[rp.Layout, ...], names: np.ndarray) -> list[rp.Layout]:
    """The layouts with other ranks in the places of theirs."""
    return [
        rp.Layout(rp.Mesh(names[list(at.mesh.ranks)].tolist(), at.mesh.axes, at.mesh.shape), at.placements)
        for at in layouts
    ]


def renamed_groups(plan: rp.Plan, names: list[np.ndarray]) -> Tables:
    """Tables that move copies of a plan's tensors, each copy between ranks renamed by one of ``names``."""
    groups, schedule = plan.groups, plan.schedule
    count, tensors = groups.count, len(plan.spec.tensors)
    ranks_of_plan = np.array(plan.ranks)
    moved = [ranks_of_plan[at[ranks_of_plan] != ranks_of_plan] for at in names]
    columns = {name: [column] for name, column in schedule.columns().items()}
    for copy in range(1, len(names) + 1):
        for name, column in schedule.columns().items():
            step = {"group": copy * count, "tensor": copy * tensors}.get(name, 0)
            columns[name].append(column + step)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    keys = ("chunk", "part", "tensor", "group", "round")
    order = np.lexsort([joined[key] for key in keys])
    substitutions = [
        (copy * count + group, rank, at[rank])
        for copy, (at, ranks) in enumerate(zip(names, moved, strict=True), 1)
        for group in range(count)
        for rank in ranks.tolist()
    ]
    subst = np.array(substitutions, dtype=np.int64).reshape(-1, 3).T
    copies = range(len(names) + 1)
    return Tables(
        Groups(
            np.concatenate([groups.group_of + copy * count for copy in copies]),
            np.tile(groups.routes_of, len(names) + 1),
            *subst,
        ),
        plan.pieces,
        plan.routes,
        Schedule.of({name: column[order] for name, column in joined.items()}),
    )


def in_parts(tables: Tables, part_of_piece: np.ndarray, chunks: list[int]) -> Tables:
    """Tables whose pieces are in parts, each cut in a number of chunks of its own."""
    pieces, routes = tables.pieces, tables.routes
    order = np.lexsort((part_of_piece, pieces.group))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    columns = {name: column[order] for name, column in pieces.columns().items()}
    columns["part"] = part_of_piece[order]
    piece = number[routes.piece]
    rows = np.lexsort((routes.tile, routes.dst, routes.offset, piece, routes.src))
    place = np.empty(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    parent = np.where(routes.parent >= 0, place[np.maximum(routes.parent, 0)], -1)
    changed = {**routes.columns(), "piece": piece, "parent": parent}
    units = []
    for tensor, group in enumerate(tables.groups.group_of.tolist()):
        owner = tables.groups.routes_of[group]
        for part in np.unique(part_of_piece[pieces.group == owner]).tolist():
            many = chunks[part % len(chunks)]
            units += [
                (group, tensor, part, chunk, many, (tensor + part + 3 * chunk) % 7) for chunk in range(many)
            ]
    schedule = np.array(units, dtype=np.int64).reshape(-1, 6)
    schedule = schedule[np.lexsort([schedule[:, at] for at in (3, 2, 1, 0, 5)])]
    return Tables(
        tables.groups,
        Pieces.of(columns),
        Routes.of({name: column[rows] for name, column in changed.items()}),
        Schedule(*schedule.T),
    )


@st.composite
def staged_plans(draw: st.DrawFn) -> rp.Plan:
    """Plans of a few equal stages on ranks of their own or shared ones, which all use one route table."""
    base = draw(topologies(range(RANKS)))
    copies = draw(st.integers(1, 2))
    size = RANKS * (copies + 1)
    domains = [
        replace(domain, gpus=tuple(gpu + RANKS * copy for gpu in domain.gpus))
        for copy in range(copies + 1)
        for domain in base.domains
    ]
    nics = [
        replace(nic, gpus=tuple(gpu + RANKS * copy for gpu in nic.gpus))
        for copy in range(copies + 1)
        for nic in base.nics
    ]
    topology = rp.Topology(tuple(domains), tuple(nics))
    tensors = [draw(tensor_specs(f"t{number}", range(RANKS))) for number in range(draw(st.integers(1, 2)))]
    chosen = draw(options())
    plan = rp.compile(rp.ReshardSpec(tensors, topology, chosen), draw(st.sampled_from(STRATEGIES)))
    assume(len(plan.routes))
    names = [np.roll(np.arange(size), -RANKS * copy) for copy in range(1, copies + 1)]
    spec = rp.ReshardSpec(
        [
            *tensors,
            *(
                rp.TensorSpec(
                    f"{tensor.name} of stage {copy}",
                    tensor.shape,
                    tensor.dtype,
                    shifted(tensor.src, at),
                    shifted(tensor.dst, at),
                )
                for copy, at in enumerate(names, 1)
                for tensor in tensors
            ),
        ],
        topology,
        replace(plan.spec.options, staging_nbytes=2**40),
    )
    tables = renamed_groups(plan, names)
    if draw(st.booleans()):
        parts = draw(st.integers(1, 3))
        lengths = st.lists(st.integers(1, 4), min_size=1, max_size=3)
        tree = np.arange(len(plan.pieces))  # pieces that are parts of others stay with them
        fed = plan.routes.parent >= 0
        tree[plan.routes.piece[fed]] = plan.routes.piece[plan.routes.parent[fed]]
        tables = in_parts(tables, tree % parts, draw(lengths))
    network = plan.certificate.payload.network_nbytes
    assert (plan.routes.medium == Medium.NETWORK).any() or not network
    return reseal(replace(plan, spec=spec), tables)
