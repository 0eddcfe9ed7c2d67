"""Rails: pairs of one rail are preferred, and nothing else about a plan changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_interprets_exactly

import reshard_planner as rp
from reshard_planner.demand import Member
from reshard_planner.errors import CertificateError, SpecError, TopologyError
from reshard_planner.ir.textform import dumps
from reshard_planner.render.summary import summarize
from reshard_planner.routing.forest import Forest
from reshard_planner.routing.rails import align_rails
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports
from reshard_planner.transfer import Medium, Role

GB = 10**9


@st.composite
def railed_specs(draw: st.DrawFn) -> rp.ReshardSpec:
    """Domains whose NICs are on rails in any order, with tensors that several ranks of a domain need."""
    size = draw(st.sampled_from([2, 3, 4]))
    count = draw(st.integers(2, 4))
    domains = [tuple(range(index * size, (index + 1) * size)) for index in range(count)]
    nics = []
    for gpus in domains:
        rails = draw(st.permutations(range(size))) if draw(st.booleans()) else [0, *range(size - 1)]
        nics += [Nic((gpu,), Link(50 * GB, 0.95, 0.0), rail) for gpu, rail in zip(gpus, rails, strict=True)]
    pods = ()
    if draw(st.booleans()):
        pods = (Pod((0,), Link(draw(st.sampled_from([25, 400])) * GB, 0.95, 0.0)),)
    topology = rp.Topology(
        tuple(Domain(gpus, Link(450 * GB, 0.7, 0.0)) for gpus in domains), tuple(nics), pods=pods
    )
    cut = draw(st.integers(1, count - 1)) * size
    src = rp.Mesh(range(cut))
    rest = range(cut, count * size)
    dst = rp.Mesh(rest, shape=(len(rest) // size, size))
    tensors = []
    for number in range(draw(st.integers(1, 3))):
        before = draw(st.sampled_from([rp.Shard(0), rp.Shard(1), rp.Replicate()]))
        after = draw(st.sampled_from([rp.Replicate(), rp.Shard(0), rp.Shard(1)]))
        shape = (draw(st.sampled_from([cut * size, 7, 24])), draw(st.sampled_from([24, 96])))
        dims = [draw(st.sampled_from([rp.Replicate(), rp.Shard(0)])), after]
        tensors.append(
            rp.TensorSpec(f"t{number}", shape, "bfloat16", rp.Layout(src, [before]), rp.Layout(dst, dims))
        )
    return rp.ReshardSpec(tensors, topology, rp.Options(min_message_nbytes=16))


def moves(plan: rp.Plan) -> list[tuple[int, int, int, int]]:
    """Sender, receiver, medium and bytes of every operation."""
    ops = plan.ops()
    columns = (ops.src, ops.dst, ops.medium, ops.nbytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def loads(plan: rp.Plan) -> Counter[tuple[str, int, int]]:
    """Bytes out of and into every rank, per medium."""
    sums: Counter[tuple[str, int, int]] = Counter()
    for src, dst, medium, nbytes in moves(plan):
        sums["out", medium, src] += nbytes
        sums["in", medium, dst] += nbytes
    return sums


def aligned(plan: rp.Plan) -> int:
    """Network bytes between ranks of one rail, by the topology's own fields."""
    rails: dict[int, set[int | None]] = {}
    for nic in plan.spec.topology.nics:
        for gpu in nic.gpus:
            rails.setdefault(gpu, set()).add(nic.rail)
    return sum(
        nbytes
        for src, dst, medium, nbytes in moves(plan)
        if medium == Medium.NETWORK and rails[src] == rails[dst] != {None}
    )


def spread(name: str, shape: tuple[int, ...], src: rp.Mesh, dst: rp.Mesh) -> rp.TensorSpec:
    """A tensor cut over some ranks that all others need whole."""
    return rp.TensorSpec(
        name, shape, "bfloat16", rp.Layout(src, [rp.Shard(0)]), rp.Layout(dst, [rp.Replicate()])
    )


@given(railed_specs())
@settings(max_examples=60)
def test_preferring_rails_changes_no_load_and_never_aligns_less(spec: rp.ReshardSpec) -> None:
    ignored = rp.compile(spec.with_options(rails="ignore"))
    preferred = rp.compile(spec)
    rp.verify(preferred)
    assert_interprets_exactly(preferred)
    assert loads(preferred) == loads(ignored)
    assert preferred.certificate.transfers_by_medium == ignored.certificate.transfers_by_medium
    assert aligned(preferred) >= aligned(ignored)
    for plan in (ignored, preferred):
        assert plan.certificate.rail_nbytes == aligned(plan)


def test_a_false_claim_about_rails_is_caught(tmp_path: Path) -> None:
    link = Link(50 * GB, 0.95, 0.0)
    nics = [Nic((gpu,), link, gpu % 2) for gpu in range(4)]
    topology = rp.Topology((Domain((0, 1)), Domain((2, 3))), tuple(nics))
    tensor = spread("w", (4, 8), rp.Mesh(range(2)), rp.Mesh(range(2, 4)))
    plan = rp.compile(rp.ReshardSpec([tensor], topology))
    for suffix in ("reshard", "json", "txt"):
        plan.save(tmp_path / f"plan.{suffix}")
        assert rp.Plan.load(tmp_path / f"plan.{suffix}") == plan
    false = replace(plan.certificate, rail_nbytes=1)
    with pytest.raises(CertificateError, match="rail_nbytes"):
        rp.verify(rp.Plan.seal(plan.spec, plan.tables, false))
    with pytest.raises(CertificateError, match="rail_nbytes"):
        rp.verify(rp.Plan.seal(plan.spec, plan.tables, replace(plan.certificate, rail_nbytes=None)))


def test_plans_without_rails_do_not_mention_them() -> None:
    tensor = spread("w", (4, 8), rp.Mesh(range(2)), rp.Mesh(range(2, 4)))
    plan = rp.compile(rp.ReshardSpec([tensor], rp.Topology.uniform(4, 2)))
    assert plan.certificate.rail_nbytes is None
    assert "rail" not in json.dumps(plan.certificate.to_dict())
    assert "rails" not in dumps(plan)
    assert "rails" not in summarize(plan)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_every_pair_is_of_one_rail_where_exchanges_allow_that(order: tuple[int, ...]) -> None:
    link = Link(50 * GB, 0.95, 0.0)
    nics = [Nic((gpu,), link, rail) for gpu, rail in enumerate((0, 1, 2, *order))]
    topology = rp.Topology((Domain((0, 1, 2)), Domain((3, 4, 5))), tuple(nics))
    src, dst = rp.Mesh(range(3)), rp.Mesh(range(3, 6))
    tensor = spread("w", (6, 8), src, dst)
    plan = rp.compile(rp.ReshardSpec([tensor], topology))
    assert aligned(plan) == plan.certificate.payload.network_nbytes == tensor.nbytes


def test_without_rails_both_options_give_equal_transfers() -> None:
    topology = rp.Topology.uniform(8, 4)
    src, dst = rp.Mesh(range(4)), rp.Mesh(range(4, 8))
    tensor = spread("w", (8, 8), src, dst)
    spec = rp.ReshardSpec([tensor], topology)
    one, other = rp.compile(spec), rp.compile(spec.with_options(rails="ignore"))
    for name, column in one.routes.columns().items():
        assert np.array_equal(column, other.routes.columns()[name])


def test_limits_of_peers_outweigh_rails() -> None:
    link = Link(50 * GB, 0.95, 0.0)
    nics = [Nic((gpu,), link, rail) for gpu, rail in enumerate((0, 1, 2, 2, 0, 1))]
    topology = rp.Topology((Domain((0, 1, 2)), Domain((3, 4, 5))), tuple(nics))
    src, dst = rp.Mesh(range(3)), rp.Mesh(range(3, 6))
    tensor = spread("w", (6, 8), src, dst)
    plan = rp.compile(rp.ReshardSpec([tensor], topology, rp.Options(max_network_peers=1)))
    assert plan.certificate.peers.network_max == 1


def test_ranks_are_on_one_rail_where_their_nics_are_on_the_same_ones() -> None:
    link = Link(50 * GB, 0.95, 0.0)
    nics = (
        Nic((0,), link, 0),
        Nic((0,), link, 1),
        Nic((1,), link, 1),
        Nic((1,), link, 0),
        Nic((2,), link, 0),
        Nic((3,), link),
    )
    topology = rp.Topology((Domain((0, 1, 2, 3, 4)),), nics)
    rails = Ports.of(topology, range(5)).rails
    assert rails[0] == rails[1] >= 0
    assert rails[2] not in (rails[0], -1)
    assert list(rails[3:]) == [-1, -1]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [("rail", -1, "rail -1"), ("rail", True, "rail True"), ("rail", "a", "rail 'a'")],
)
def test_rails_that_are_no_numbers_are_refused(field: str, value: object, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        rp.Topology((Domain((0,)),), (Nic((0,), **{field: value}),))


def test_the_option_takes_two_words() -> None:
    with pytest.raises(SpecError, match="expected prefer or ignore"):
        rp.Options(rails="off")  # type: ignore[arg-type]


def forest_of(rows: list[tuple[int, int, int, int, int]], sizes: list[int]) -> Forest:
    """A forest of one tensor from rows of (piece, parent, sender, receiver, medium), all into tile 0."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    piece, parent, src, dst, medium = columns
    role = np.where(medium == Medium.NVLINK, Role.FANOUT, np.where(parent < 0, Role.INJECT, Role.RELAY))
    ends = np.cumsum(sizes)
    return Forest(
        (Member((0,), None),),
        (ends - sizes)[:, None],
        ends[:, None],
        piece,
        parent,
        src,
        dst,
        medium,
        role.astype(np.int64),
        np.zeros(len(rows), dtype=np.int64),
    )


def port_loads(forest: Forest) -> Counter[tuple[str, int, int]]:
    """Elements out of and into each rank, per medium, and how deep in its tree each row stands."""
    sums: Counter[tuple[str, int, int]] = Counter()
    sizes, depth = (forest.hi - forest.lo)[:, 0][forest.piece].tolist(), []
    for row, above in enumerate(forest.parent.tolist()):
        depth.append(0 if above < 0 else depth[above] + 1)
        sums["out", int(forest.medium[row]), int(forest.src[row])] += sizes[row]
        sums["in", int(forest.medium[row]), int(forest.dst[row])] += sizes[row]
    sums["depth", 0, 0] = max(depth)
    return sums


NETWORK, NVLINK = int(Medium.NETWORK), int(Medium.NVLINK)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        # pieces of unequal size
        ([(0, -1, 0, 2, 2), (0, 0, 2, 3, 1), (1, -1, 1, 3, 2), (1, 2, 3, 2, 1)], [4, 8]),
        # one feeds a chain within the domain, the other all its neighbours
        (
            [
                (0, -1, 0, 2, 2),
                (0, 0, 2, 3, 1),
                (0, 1, 3, 4, 1),
                (1, -1, 1, 3, 2),
                (1, 3, 3, 2, 1),
                (1, 3, 3, 4, 1),
            ],
            [4, 4],
        ),
        # one comes by way of a neighbour
        ([(0, -1, 0, 5, 1), (0, 0, 5, 2, 2), (0, 1, 2, 3, 1), (1, -1, 1, 3, 2), (1, 3, 3, 2, 1)], [4, 4]),
    ],
)
def test_transfers_that_differ_in_size_or_depth_exchange_nothing(
    rows: list[tuple[int, int, int, int, int]], sizes: list[int]
) -> None:
    forest = forest_of(rows, sizes)
    rails, domain = np.array([0, 1, 1, 0, -1, 0]), np.array([0, 0, 1, 1, 1, 0])
    [found] = align_rails([forest], rails, domain)
    assert port_loads(found) == port_loads(forest)
    assert found is forest


@given(st.data())
@settings(max_examples=50)
def test_exchanges_make_as_many_pairs_as_any_matching(data: st.DataObject) -> None:
    """Trees of one transfer each, against all permutations of senders."""
    count = data.draw(st.integers(2, 5))
    known = st.integers(-1, 2)
    rails = np.array(data.draw(st.lists(known, min_size=2 * count, max_size=2 * count)))
    ends = [(number, -1, number, count, NETWORK) for number in range(count)]
    receivers = data.draw(st.lists(st.integers(count, 2 * count - 1), min_size=count, max_size=count))
    rows = [(*row[:3], receiver, NETWORK) for row, receiver in zip(ends, receivers, strict=True)]
    everyone = range(count, 2 * count)
    full = []
    for number, row in enumerate(rows):
        full.append(row)
        entry = len(full) - 1
        full += [(number, entry, row[3], other, NVLINK) for other in everyone if other != row[3]]
    forest = forest_of(full, [4] * count)
    [found] = align_rails([forest], rails, np.array([0] * count + [1] * count))
    assert port_loads(found) == port_loads(forest)

    def pairs(senders: Iterable[int]) -> int:
        return sum(rails[a] == rails[b] >= 0 for a, b in zip(senders, receivers, strict=True))

    network = found.medium == Medium.NETWORK
    made = int((rails[found.src[network]] == rails[found.dst[network]])[rails[found.src[network]] >= 0].sum())
    assert made == max(map(pairs, permutations(range(count))))
