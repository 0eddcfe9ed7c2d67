"""Laws of rounds: units fill them evenly, within the limits of peers and of staging."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard_planner.schedule.kinds import Kind, Peers
from reshard_planner.schedule.round_size import Batches
from reshard_planner.schedule.rounds import LARGE, fill_rounds

FILLING = 4


def kind(loads, *, peers=(), chunks=1):
    """A kind that loads (slot, port) by a share, for one tensor whole."""
    slot, port, load = (
        np.array(column) for column in zip(*sorted((*at, share) for at, share in loads), strict=True)
    )
    whole = np.array([sum(load[port == one]) for one in port])
    return Kind(slot, port, load.astype(float), float(whole.max()), whole, chunks, 0.0, tuple(peers))


def batches(kinds, counts):
    """So many single units of each kind, at even turns."""
    turn = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    of_kind = np.repeat(np.arange(len(kinds)), counts)
    order = np.argsort(turn, kind="stable")
    return Batches(of_kind[order], np.ones(len(turn), dtype=np.int64), turn[order])


def fill(kinds, counts, *, ports, staged=(), ranks=0, most_peers=32, alpha=0.0):
    buffers = np.isin(np.arange(ports), staged)
    placed = batches(kinds, counts)
    return placed, fill_rounds(
        kinds, buffers, ranks, placed, most_peers=most_peers, alpha=alpha, filling=FILLING
    )


def loads_of(kinds, placed, rounds, ports):
    """Load of each slot and port."""
    depth = max(int(each.slot.max()) for each in kinds)
    found = np.zeros((int(rounds.max(initial=0)) + depth + 1, ports))
    for number, at in zip(placed.kind.tolist(), rounds.tolist(), strict=True):
        each = kinds[number]
        np.add.at(found, (each.slot + at, each.port), each.load / each.chunks)
    return found


@pytest.mark.parametrize("share", [0.3, 0.45, 0.55, 0.64, 0.7, 0.8, 0.95, 1.05])
def test_units_of_any_size_waste_little_of_their_rounds(share):
    kinds = [kind([((0, 0), share), ((2, 1), share)])]
    placed, rounds = fill(kinds, [200], ports=2)
    found = loads_of(kinds, placed, rounds, 2)
    assert found.max(axis=1).sum() <= 1.05 * found.sum(axis=0).max() + 2 * share


@pytest.mark.parametrize("share", [0.001, 0.02, 0.05])
@pytest.mark.parametrize("alpha", [1.0, 1e4])
def test_units_that_fit_in_one_round_share_it_where_slots_cost(share, alpha):
    kinds = [kind([((0, 0), share), ((0, 1), share)])]
    _, rounds = fill(kinds, [round(1 / share)], ports=2, alpha=alpha)
    assert len(np.unique(rounds)) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([0.1, 0.6, 1.0]))
def test_something_starts_in_the_first_round(counts, share):
    kinds = [kind([((0, at), share)]) for at in range(len(counts))]
    assert fill(kinds, counts, ports=len(counts))[1].min() == 0


def halves(stages, parts):
    """Kinds of stages: each keeps a port of its own busy, and half of the ports that all stages share."""
    shared = np.arange(parts)
    kinds = []
    for stage in range(stages):
        for part in range(parts):
            chosen = np.sort(np.roll(shared, -part)[: parts // 2]) + stages
            kinds.append(kind([((0, stage), 0.8), *(((0, int(port)), 1.6 / stages) for port in chosen)]))
    return kinds


def test_stages_that_load_different_halves_of_the_ports_run_together():
    stages, parts, each = 8, 16, 4
    kinds = halves(stages, parts)
    placed, rounds = fill(kinds, [each] * len(kinds), ports=stages + parts)
    found = loads_of(kinds, placed, rounds, stages + parts)
    assert found.max(axis=1).sum() <= 1.3 * found.sum(axis=0).max()


def test_more_of_a_start_up_time_never_takes_more_rounds():
    kinds = halves(4, 8)
    used = [
        len(np.unique(fill(kinds, [6] * len(kinds), ports=12, alpha=alpha)[1])) for alpha in (0.0, 0.5, 2.0)
    ]
    assert used == sorted(used, reverse=True)
    assert used[-1] < used[0]


@st.composite
def talking_kinds(draw):
    """Kinds whose ranks have peers over one medium or two."""
    ranks = draw(st.integers(2, 8))
    kinds = []
    for number in range(draw(st.integers(1, 6))):
        src, dst = draw(st.lists(st.integers(0, ranks - 1), min_size=2, max_size=2, unique=True))
        share = draw(st.sampled_from([0.05, 0.2, 0.5]))
        talks = [
            Peers(0, np.array(sorted((src, dst))), np.full(2, draw(st.integers(1, 3))), 2 * number + medium)
            for medium in range(draw(st.integers(1, 2)))
        ]
        kinds.append(kind([((0, src), share), ((0, ranks + dst), share)], peers=talks))
    return ranks, kinds, draw(st.lists(st.integers(1, 6), min_size=len(kinds), max_size=len(kinds)))


@settings(max_examples=100, deadline=None)
@given(talking_kinds(), st.integers(1, 6))
def test_no_rank_has_more_peers_in_a_slot_than_allowed_but_by_one_unit_alone(drawn, most):
    ranks, kinds, counts = drawn
    placed, rounds = fill(kinds, counts, ports=2 * ranks, ranks=ranks, most_peers=most)
    for at in np.unique(rounds):
        there = np.unique(placed.kind[rounds == at])
        for rank in range(ranks):
            units = [
                sum(int(talk.counts[0]) for talk in kinds[one].peers if rank in talk.ranks) for one in there
            ]
            assert sum(units) <= most or sum(count > 0 for count in units) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.sampled_from([10.0, 1e4]))
def test_units_that_fit_together_open_no_slot_beyond_those_of_one(counts, alpha):
    """Loads fill a round to the brim at one port, and several slots each."""
    total = sum(counts)
    kinds = [
        kind([((0, 0), 1 / total), ((2, 1 + at), 0.2), ((4, 1 + len(counts)), 1 / total)])
        for at in range(len(counts))
    ]
    placed, rounds = fill(kinds, counts, ports=2 + len(counts), alpha=alpha)
    found = loads_of(kinds, placed, rounds, 2 + len(counts))
    assert (found.max(axis=1) > 0).sum() <= 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.sampled_from([0.25, 0.4, 0.6]))
def test_buffers_of_staging_are_not_filled_twice(counts, share):
    assert share > LARGE
    kinds = [kind([((0, 0), 0.1), ((0, 1), share)]) for _ in counts]
    placed, rounds = fill(kinds, counts, ports=2, staged=[1])
    assert loads_of(kinds, placed, rounds, 2)[:, 1].max() <= 1 / 0.75 + 1e-6


def test_units_without_loads_have_rounds():
    nothing = Kind(
        np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), 0.0, np.zeros(0), 1, 0.0, ()
    )
    placed = batches([nothing], [3])
    rounds = fill_rounds(
        [nothing], np.zeros(0, dtype=bool), 0, placed, most_peers=32, alpha=0.0, filling=FILLING
    )
    assert rounds.shape == (3,)
