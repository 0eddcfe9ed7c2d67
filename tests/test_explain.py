"""Explanations of plans: their figures are those of the operations, their classes those of brute force."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from _plans import HOSTILE_NAME, sample_plans
from element_oracle import parts as stored_parts
from hypothesis import given
from hypothesis import strategies as st
from oracle import Moves as Least
from oracle import holder_masks, members
from renamed import staged_plans
from soon import soon
from storage_strategies import FLOATS, stored_specs
from strategies import STRATEGIES, specs
from test_cli import call

import reshard_planner as rp
from benchmarks.whole import WHOLE, build_whole
from reshard_planner.bounds import CUT_KINDS
from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.errors import InputError
from reshard_planner.ir.traffic import measure_traffic
from reshard_planner.render.binding import bound_sentence
from reshard_planner.render.explain.cut import binding_sentences
from reshard_planner.render.explain.data import explain_data
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.explain.moves import UNNEEDED
from reshard_planner.render.explain.nics import NicShares
from reshard_planner.render.explain.rank import tell_rank
from reshard_planner.render.explain.sentences import MAX_CLASSES, WIDTH, explain, explain_text
from reshard_planner.render.explain.words import ranks_text, way_text
from reshard_planner.render.moves import find_moves
from reshard_planner.render.text import format_nbytes
from reshard_planner.spec import parse_spec
from reshard_planner.topology import Domain, Link, Nic, Pod, Ports
from reshard_planner.transfer import Medium, Role

STRAY_COMMA = r",(?:[:),]|\.(?!\.))"
"""A comma before another mark, other than in lists that leave numbers out."""

ANY_SPEC = specs() | stored_specs() | stored_specs(dtypes=FLOATS, casts=True)

SMALL = """\
version: 1
meshes:
  train: {ranks: "0-1", axes: [dp]}
  serve: {ranks: "2-7", axes: [dp]}
topology: {domains: [[0, 1], [2, 3, 4, 5], [6, 7]]}
tensors:
  - name: up
    shape: [96, 512]
    dtype: bfloat16
    src: {mesh: train, placements: [R]}
    dst: {mesh: serve, placements: [R]}
  - name: down
    shape: [96, 480]
    dtype: bfloat16
    src: {mesh: train, placements: [S(0)]}
    dst: {mesh: serve, placements: [S(1)]}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SMALL)
    return path


def compiled(spec: rp.ReshardSpec, strategy: str) -> rp.Plan:
    return rp.compile(spec.with_options(staging_nbytes=2**40, strategy=strategy))


def element_masks(spec: rp.ReshardSpec, number: int, side: str) -> np.ndarray:
    """For every element of a tensor, the ranks that store it, as a set of bits: one by one."""
    tensor = spec.tensors[number]
    masks = np.zeros(int(np.prod(tensor.shape, dtype=np.int64)), dtype=np.uint64)
    for part in stored_parts(spec, side):
        if part.tensor == number:
            masks[part.elements] |= np.uint64(1) << np.uint64(part.rank)
    return masks.reshape(tensor.shape)


def bytes_of_ops(plan: rp.Plan, number: int) -> Counter:
    ops = plan.ops(tensors=[number])
    keys = zip(ops.medium.tolist(), ops.role.tolist(), ops.src.tolist(), ops.dst.tolist(), strict=True)
    found: Counter = Counter()
    for key, nbytes in zip(keys, ops.nbytes.tolist(), strict=True):
        found[key] += nbytes
    return found


def bytes_of_moves(moves) -> Counter:
    keys = zip(
        moves.medium.tolist(), moves.role.tolist(), moves.src.tolist(), moves.dst.tolist(), strict=True
    )
    found: Counter = Counter()
    for key, nbytes in zip(keys, moves.nbytes.tolist(), strict=True):
        found[key] += nbytes
    return found


# ---------------------------------------------------------------------------------------- figures


@given(ANY_SPEC, st.sampled_from(STRATEGIES))
def test_moves_add_up_to_the_operations_and_classes_are_those_of_single_elements(spec, strategy):
    plan = compiled(spec, strategy)
    for number, tensor in enumerate(plan.spec.tensors):
        facts = Facts(plan, tensor.name)
        assert bytes_of_moves(facts.moves) == bytes_of_ops(plan, number)
        holding, needing = (element_masks(plan.spec, number, side) for side in ("src", "dst"))
        wanted: Counter = Counter()
        for held, need in zip(holding.reshape(-1).tolist(), needing.reshape(-1).tolist(), strict=True):
            if need:
                wanted[members(held), members(need)] += DTYPE_BITS[tensor.wire_dtype]
        found = {
            (each.holders, each.needers): each.nbytes * 8 for each in map(facts.class_facts, facts.order)
        }
        assert found == wanted
        # of each operation, element by element
        counted: Counter = Counter()
        ops = facts.ops
        for at in range(len(ops)):
            dims = len(tensor.shape)
            box = tuple(map(slice, ops.lo[at, :dims].tolist(), ops.hi[at, :dims].tolist()))
            for held, need in zip(
                np.atleast_1d(holding[box]).reshape(-1).tolist(),
                np.atleast_1d(needing[box]).reshape(-1).tolist(),
                strict=True,
            ):
                key = (members(held), members(need)) if need else None
                counted[key, int(ops.medium[at]), int(ops.role[at])] += DTYPE_BITS[tensor.wire_dtype]
        summed: Counter = Counter()
        for klass, medium, role, nbytes in zip(
            *(getattr(facts.moves, name).tolist() for name in ("klass", "medium", "role", "nbytes")),
            strict=True,
        ):
            key = None
            if klass != UNNEEDED:
                key = (facts.atoms.holders[klass], facts.atoms.needers[klass])
            summed[key, medium, role] += nbytes * 8
        assert summed == counted


@given(specs(), st.sampled_from(STRATEGIES))
def test_the_least_and_what_is_too_much_are_those_of_brute_force(spec, strategy):
    plan = compiled(spec, strategy)
    facts = [Facts(plan, tensor.name) for tensor in plan.spec.tensors]
    assert sum(each.least_nbytes for each in facts) == Least(plan.spec).network
    for each in facts:
        holders = holder_masks(each.tensor.src, each.tensor.shape)
        assert {rank for ranks in each.atoms.holders for rank in ranks} <= {
            rank for mask in np.unique(holders).tolist() for rank in members(mask)
        }
        too_much = 0
        for number in each.order:
            entry = each.class_facts(number)
            moved = int(entry.moves.nbytes[entry.moves.medium == Medium.NETWORK].sum())
            assert moved - entry.least_nbytes == entry.excess.total
            assert min(entry.excess.within, entry.excess.to_holding, entry.excess.elsewhere) >= 0
            too_much += entry.excess.total
            group_of = dict(enumerate(each.ports.nic_group.tolist()))
            network = entry.moves.select(entry.moves.medium == Medium.NETWORK)
            own, passed = (network.select(network.forwarded == kind) for kind in (0, 1))
            injecting, relaying, receiving, holding = (
                {group_of[rank] for rank in ranks} - {-1}
                for ranks in (own.src.tolist(), passed.src.tolist(), network.dst.tolist(), entry.holders)
            )
            assert (set(entry.injecting), set(entry.relaying)) == (injecting, relaying)
            assert set(entry.receiving) == receiving
            assert set(entry.idle) == (holding - injecting - relaying if len(network) else set())
        unneeded = each.unneeded()
        too_much += int(unneeded.nbytes[unneeded.medium == Medium.NETWORK].sum())
        assert each.moved(Medium.NETWORK) - each.least_nbytes == too_much
        if strategy == "optimal":
            assert not too_much
            assert not len(unneeded)


@given(specs() | stored_specs())
def test_what_tensors_and_classes_add_to_the_binding_cut_is_all_of_it(spec):
    plan = compiled(spec, "optimal")
    facts = [Facts(plan, tensor.name) for tensor in plan.spec.tensors]
    bound = plan.certificate.bound
    assert sum(each.cut_nbytes() for each in facts) == bound.cut_nbytes
    for each in facts:
        assert sum(each.cut_nbytes(number) for number in each.order) == each.cut_nbytes()
        if bound.cut_nbytes:
            share = Fraction(bound.cut_nbytes, bound.cut_bytes_per_s)
            assert float(share) == bound.time_s


@given(specs(max_tensors=2), st.sampled_from(STRATEGIES))
def test_the_busiest_nic_is_at_100_per_cent_and_is_that_of_the_certificate(spec, strategy):
    plan = compiled(spec, strategy)
    if not plan.spec.tensors:
        return
    facts = Facts(plan, plan.spec.tensors[0].name)
    most = max(facts.nics.out.max(initial=0), facts.nics.into.max(initial=0))
    busiest = plan.certificate.busiest_nic
    assert most == (1.0 if busiest.nbytes else 0.0)
    if busiest.nbytes:
        names = {
            f"{facts.ports.nic_name[group]}, {direction}"
            for shares, direction in ((facts.nics.out, "out"), (facts.nics.into, "in"))
            for group in np.flatnonzero(shares == 1.0).tolist()
        }
        assert busiest.resource in names


@given(specs(max_ranks=6) | stored_specs(max_ranks=6), st.sampled_from(STRATEGIES))
def test_what_a_rank_sends_gets_and_copies_is_what_its_operations_do(spec, strategy):
    plan = compiled(spec, strategy)
    for number, tensor in enumerate(plan.spec.tensors):
        facts = Facts(plan, tensor.name)
        holding, needing = (element_masks(plan.spec, number, side) for side in ("src", "dst"))
        if needing.any():
            said = " ".join(explain_text(facts).split())
            for verb, masks in (("Held before", holding), ("Needed after", needing)):
                stored = [rank for rank in plan.ranks if (masks & (np.uint64(1) << np.uint64(rank))).any()]
                assert f"{verb} by {ranks_text(stored)} of domain" in said
        for rank in plan.ranks:
            about = tell_rank(facts, rank)
            ops = plan.ops(rank=rank, tensors=[number])
            for exchanged, chosen, peers in (
                (about.received, (ops.dst == rank) & (ops.src != rank), ops.src),
                (about.sent, (ops.src == rank) & (ops.dst != rank), ops.dst),
                (about.copied, (ops.src == rank) & (ops.dst == rank), ops.dst),
            ):
                wanted: Counter = Counter()
                slots: dict[tuple[int, ...], set[int]] = {}
                for at in np.flatnonzero(chosen).tolist():
                    key = (int(peers[at]), int(ops.medium[at]), int(ops.role[at]))
                    wanted[key] += int(ops.nbytes[at])
                    slots.setdefault(key, set()).add(int(ops.slot[at]))
                found: Counter = Counter()
                seen: dict[tuple[int, ...], set[int]] = {}
                for each in exchanged:
                    found[each.peer, each.medium, each.role] += each.nbytes
                    seen.setdefault((each.peer, each.medium, each.role), set()).update(each.slots)
                assert found == wanted
                assert seen == slots
                assert sum(each.operations for each in exchanged) == np.count_nonzero(chosen)
            bit, bits = np.uint64(1) << np.uint64(rank), DTYPE_BITS[tensor.wire_dtype]
            strange = ((holding | needing) & bit == 0) & (needing != 0)
            passing = sum(
                int(np.count_nonzero(strange[tuple(map(slice, lo, hi))])) * bits
                for lo, hi, src, dst in zip(
                    ops.lo[:, : len(tensor.shape)].tolist(),
                    ops.hi[:, : len(tensor.shape)].tolist(),
                    ops.src.tolist(),
                    ops.dst.tolist(),
                    strict=True,
                )
                if dst == rank != src
            )
            assert about.passing_nbytes * 8 == passing
            assert about.held_nbytes * 8 == int(np.count_nonzero(holding & bit)) * bits
            assert ("held none before" in explain_text(facts, rank)) == (not (holding & bit).any())
            for classes, sets in ((about.held, facts.atoms.holders), (about.needed, facts.atoms.needers)):
                assert classes == tuple(
                    at for at, ranks in enumerate(sets) if rank in ranks and facts.atoms.nbytes[at]
                )


@given(staged_plans())
def test_groups_that_share_routes_are_explained_with_their_own_ranks(plan):
    for number, tensor in enumerate(plan.spec.tensors):
        facts = Facts(plan, tensor.name)
        assert bytes_of_moves(facts.moves) == bytes_of_ops(plan, number)
        assert explain(plan, tensor.name)
    assert_network_as_measured(plan)


def assert_network_as_measured(plan: rp.Plan) -> None:
    """The quick sums of bytes over the network are those of all operations."""
    ports = Ports.of(plan.spec.topology, plan.ranks)
    measured = measure_traffic(plan.spec, plan.tables, ports).network
    moves = find_moves(plan)
    network = moves.medium == Medium.NETWORK
    for load, ranks in zip(measured, (moves.src, moves.dst), strict=True):
        found = np.bincount(ranks[network], moves.nbytes[network], len(load))
        assert np.array_equal(found, load)
    groups = ports.nic_group[: measured.shape[1]]
    on_nics = [
        np.bincount(groups[groups >= 0], load[: len(groups)][groups >= 0], len(ports.nic_bytes_per_s))
        for load in measured
    ]
    assert np.array_equal(NicShares.of(plan, ports).nbytes, on_nics)


@given(ANY_SPEC, st.sampled_from(STRATEGIES))
def test_bytes_over_each_nic_are_those_of_all_operations(spec, strategy):
    assert_network_as_measured(compiled(spec, strategy))


# --------------------------------------------------------------------------------------- the verb


@pytest.mark.parametrize("tensor", ["up", "down"])
@pytest.mark.parametrize("strategy", ["optimal", "direct", "gather-broadcast", "m2n-uniform", "striped"])
def test_json_and_ops_agree_byte_by_byte(spec, tmp_path, capsys, strategy, tensor):
    path = tmp_path / "plan.reshard"
    assert call(capsys, "compile", spec, "-o", path, "--strategy", strategy)[0] == 0
    code, out, err = call(capsys, "explain", path, "--tensor", tensor, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    ops = [json.loads(line) for line in call(capsys, "ops", path, "--tensor", tensor)[1].splitlines()]
    wanted: Counter = Counter()
    for op in ops:
        wanted[op["medium"], op["role"], op["scratch"], op["src"], op["dst"]] += op["nbytes"]
    found: Counter = Counter()
    for entry in (*shown["classes"], {"moves": shown["unneeded"]}):
        for move in entry["moves"]:
            assert move["nbytes"] == sum(nbytes for _, _, nbytes in move["pairs"])
            for src, dst, nbytes in move["pairs"]:
                found[move["medium"], move["role"], move["scratch"], src, dst] += nbytes
    assert found == wanted
    for medium in ("network", "nvlink", "local"):
        total = sum(op["nbytes"] for op in ops if op["medium"] == medium)
        assert shown[f"{medium}_nbytes"] == total
        assert sum(entry[f"{medium}_nbytes"] for entry in shown["classes"]) == total
    assert shown["operations"] == len(ops)
    assert sum(entry["nbytes"] for entry in shown["classes"]) == shown["nbytes"]
    for rank in range(8):
        about = json.loads(
            call(capsys, "explain", path, "--tensor", tensor, "--rank", str(rank), "--json")[1]
        )["rank"]
        for key, mine in (
            ("received", [op for op in ops if op["dst"] == rank != op["src"]]),
            ("sent", [op for op in ops if op["src"] == rank != op["dst"]]),
            ("copied", [op for op in ops if op["src"] == rank == op["dst"]]),
        ):
            assert sum(each["nbytes"] for each in about[key]) == sum(op["nbytes"] for op in mine)
            assert {slot for each in about[key] for slot in each["slots"]} == {op["slot"] for op in mine}


def test_a_spec_is_compiled_and_a_plan_in_any_form_says_the_same(spec, tmp_path, capsys):
    of_spec = call(capsys, "explain", spec, "--tensor", "up")
    assert of_spec[0] == 0
    for name in ("plan.reshard", "plan.json", "plan.txt"):
        assert call(capsys, "compile", spec, "-o", tmp_path / name)[0] == 0
        assert call(capsys, "explain", tmp_path / name, "--tensor", "up") == of_spec


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--tensor", "upp"),
            "tensor 'upp' is not in the plan, which has 2 tensors; the nearest: 'up', 'down'",
        ),
        (
            ("--tensor", "own"),
            "tensor 'own' is not in the plan, which has 2 tensors; the nearest: 'down', 'up'",
        ),
        (
            ("--tensor", "up", "--rank", "12"),
            "rank 12 is not in the plan, which has the ranks 0-7; the nearest: 6, 7",
        ),
        (
            ("--tensor", "up", "--rank", "-1"),
            "rank -1 is not in the plan, which has the ranks 0-7; the nearest: 0, 1",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_is_near(spec, capsys, arguments, expected):
    for form in ((), ("--json",)):
        assert call(capsys, "explain", spec, *arguments, *form) == (2, "", f"reshard-planner: {expected}\n")


def test_a_plan_without_tensors_has_none_to_explain():
    plan = rp.compile(rp.ReshardSpec([], rp.Topology.uniform(1, 1)))
    with pytest.raises(InputError, match="tensor 'w' is not in the plan, which has no tensors"):
        explain(plan, "w")


def test_a_hostile_name_that_is_not_there_is_one_line(spec, capsys):
    code, out, err = call(capsys, "explain", spec, "--tensor", "\u202e<b>\n" * 3000)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert len(err) < 400


# -------------------------------------------------------------------------------------- sentences


@pytest.mark.parametrize("name", sample_plans())
def test_every_class_is_named_and_every_line_can_be_shown(name):
    plan = sample_plans()[name]
    for tensor in plan.spec.tensors:
        text = explain(plan, tensor.name)
        facts = Facts(plan, tensor.name)
        named = set(map(int, re.findall(r"^Class (\d+):", text, re.MULTILINE)))
        for numbers in re.findall(r"^\S+ more class(?:es)?, ([\d,-]+):", text, re.MULTILINE):
            for part in numbers.split(","):
                first, _, last = part.partition("-")
                named |= set(range(int(first), int(last or first) + 1))
        assert named == set(facts.order)
        texts = [text, *(explain(plan, tensor.name, rank) for rank in plan.ranks)]
        for line in "\n".join(texts).split("\n"):
            assert line.isprintable()
            assert len(line) <= WIDTH or " " not in line.strip()
            assert not re.search(STRAY_COMMA, line)


def test_a_small_tensor_is_told_in_full():
    train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
    serve = rp.Layout(rp.Mesh([2, 3]), ["R"])
    plan = rp.compile(
        rp.ReshardSpec(
            [rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)], rp.Topology.from_domains([[0, 1], [2, 3]])
        )
    )
    text = " ".join(explain(plan, "w").split())
    for expected in (
        "Tensor w: 8 x 8 bfloat16, 128 B",
        "Held before by ranks 0-1 of domain 0.",
        "Needed after by ranks 2-3 of domain 1.",
        "In all, 128 B cross the network, the least possible; 128 B go over NVLink.",
        "128 B must enter domain 1",
        "Class 0: 64 B, 50 % of the tensor, box [0:4, 0:8]",
        "Rank 0 of domain 0 held it before.",
        "Domain 1 needs it and holds none of it: k = 1",
        "Rank 0 injects 64 B from its NIC to rank 2 (slot 0).",
        "Rank 2 fans out 64 B that came in before, over NVLink, to rank 3 (slot 2).",
        "nic of gpu 0 injects it, at 100 %",
        "It makes up 64 B of the 128 B that set T*.",
    ):
        assert expected in text
    about = explain(plan, "w", 3)
    for expected in (
        "It is GPU 3 of domain 1, with nic of gpu 3.",
        "It held none before, and must have 128 B after, classes 0-1.",
        "It receives: 128 B",
        "64 B over the network from rank 1, which held them before (inject, slot 0, class 1).",
        "64 B over NVLink from rank 2, which took them in before (fanout, slot 2, class 0).",
        "64 B that came in before, over NVLink to rank 2 (fanout, slot 2, class 1).",
    ):
        assert expected in about
    assert "Class 0:" not in about


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("direct", "576 KiB cross the network, 3.00 times the least of 192 KiB, 384 KiB too much"),
        ("m2n-uniform", "288 KiB cross the network, 1.50 times the least of 192 KiB, 96 KiB too much"),
        ("striped", "256 KiB cross the network, 1.33 times the least of 192 KiB, 64 KiB too much"),
        ("optimal", "192 KiB cross the network, the least possible"),
    ],
)
def test_a_baseline_says_how_much_more_than_the_least_it_moves(spec, strategy, expected):
    text = " ".join(explain(rp.compile(rp.ReshardSpec.load(spec), strategy), "up").split())
    assert expected in text
    assert ("go into domains that take it in once already" in text) == (strategy != "optimal")


def on(rank: int) -> rp.Layout:
    return rp.Layout(rp.Mesh([rank]), ["R"])


def test_what_stays_what_is_near_and_who_lends_a_nic_is_said():
    whole, later = rp.Layout(rp.Mesh([0, 1, 2]), ["R"]), rp.Layout(rp.Mesh([2, 3, 4]), ["R"])
    topology = rp.Topology.from_domains([[0, 1], [2, 3], [4]])
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (64, 8), "float32", whole, later)], topology))
    text = explain(plan, "w")
    assert "Of these, rank 2 holds it already." in text
    assert "In domain 1 it can come over NVLink." in text
    assert "Rank 2 fans out 2 KiB over NVLink to rank 3" in text
    assert "Rank 2 copies 2 KiB from its old buffer to its new one" in text
    about = " ".join(explain(plan, "w", 2).split())
    assert "It keeps 2 KiB of them" in about
    assert "this rank among them, so that it stays" in about
    # ranks 1 and 2 have no NIC: ranks 0 and 3 lend theirs
    lent = rp.Topology(
        (Domain((0, 1)), Domain((2, 3))),
        (Nic((0,)), Nic((3,))),
        name="lent",
        pods=(Pod((1,), Link(10**9, 1, 0)),),
    )
    spec = rp.ReshardSpec(
        [
            rp.TensorSpec("w", (64, 8), "float32", on(1), on(2)),
            rp.TensorSpec("v", (1,), "float32", on(0), on(3)),
        ],
        lent,
    )
    text = " ".join(explain(rp.compile(spec), "w").split())
    assert "Ranks 0,3 neither held nor need it, and help to carry it, as ranks 1-2 have no NIC." in text
    assert "must pass the uplink of pod 0" in text
    assert "It helps to carry 2 KiB that it neither held nor needs" in explain(rp.compile(spec), "w", 3)


def test_long_lists_are_shortened_and_added_up():
    size = 32
    src = rp.Layout(rp.Mesh(list(range(size))), ["S(0)"])
    dst = rp.Layout(rp.Mesh(list(range(size, 2 * size))), ["S(1)"])
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (size, size), "uint8", src, dst)]))
    text = explain(plan, "w")
    assert text.count("\nClass ") == MAX_CLASSES
    assert f"{size**2 - MAX_CLASSES:,} more classes, {MAX_CLASSES}-{size**2 - 1}: 1 B each" in text
    assert len(text) < 6000
    about = explain(plan, "w", 0)
    assert "20 B more to 20 ranks" in about
    assert len(about) < 6000
    assert len(explain_data(Facts(plan, "w"))["classes"]) == size**2


def test_empty_tensors_and_tensors_that_nobody_needs_move_nothing():
    plan = sample_plans()["direct"]
    assert "It has no elements, so nothing moves." in explain(plan, "empty")
    assert explain_data(Facts(plan, "empty"))["classes"] == []
    for rank in plan.ranks:
        assert "It sends, receives and copies nothing of this tensor." in explain(plan, "empty", rank)


def test_a_cast_says_where_it_is_done():
    plan = sample_plans()["stored"]
    assert "bfloat16, converted to float32 at the destination, 128 B on its way" in explain(plan, "up")
    assert "float64, converted to float8_e5m2 at the source, 64 B on its way" in explain(plan, "part")
    assert "Nobody needs the other 58 B." in " ".join(explain(plan, "part").split())


def test_hostile_names_are_shown_as_escapes():
    plan = sample_plans()["optimal"]
    text = explain(plan, HOSTILE_NAME)
    assert text.startswith('Tensor a"b\\\\n\\r')
    assert "\u2028" not in text
    assert "\ud800" not in text


def test_relays_say_what_they_spare_the_nics_of_holders():
    train, serve = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2, 3]), ["R"])
    tensor = rp.TensorSpec("w", (1024, 1024), "uint8", train, serve)
    spec = rp.ReshardSpec([tensor], rp.Topology.uniform(4, 1))
    plan = rp.compile(spec)
    emitted = int(plan.ops().nbytes[plan.ops().src == 0].sum())
    assert emitted < 3 * 2**20
    text = " ".join(explain(plan, "w").split())
    assert f"emit {format_nbytes(emitted)} over their NICs, not all 3 MiB." in text
    times = 3 * 2**20 / 50e9 / plan.certificate.bound.time_s  # all from one NIC
    assert f"with all of it these would be busy for {times:.2f} times T* on average." in text
    assert "not all" not in explain(rp.compile(spec, "direct"), "w")


def test_relays_beside_holders_with_time_left_are_not_said_to_spare_them():
    train, serve = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2, 3]), ["R"])
    other = rp.Layout(rp.Mesh([4]), ["R"]), rp.Layout(rp.Mesh([5]), ["R"])
    tensors = [
        rp.TensorSpec("w", (1024, 1024), "uint8", train, serve),
        rp.TensorSpec("large", (64 * 1024, 1024), "uint8", *other),
    ]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(6, 1)), "hybrid")
    text = " ".join(explain(plan, "w").split())
    assert "spare the NICs" not in text
    assert ("had time for the rest" in text) == ("not all 3 MiB" in text)


def test_relays_within_a_pod_are_said_to_spare_its_uplink():
    uplink = Link(50 * 10**9, 1.0, 0.0)
    topology = replace(rp.Topology.uniform(4, 1), pods=(Pod((0,), uplink), Pod((1, 2, 3), uplink)))
    train, serve = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2, 3]), ["R"])
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (1024, 1024), "uint8", train, serve)], topology))
    ops = plan.ops()
    relayed = int(ops.nbytes[ops.role == Role.RELAY].sum())
    assert explain_data(Facts(plan, "w"))["busiest_uplink"] == asdict(plan.certificate.busiest_uplink)
    said = f"{format_nbytes(relayed)} of the relayed bytes stay within a pod that nobody held it in"
    assert relayed
    assert said in " ".join(explain(plan, "w").split())


def test_bytes_that_stay_on_their_rail_add_up_to_those_of_the_certificate():
    source, target = rp.Layout(rp.Mesh(range(4)), ["S(0)"]), rp.Layout(rp.Mesh(range(4, 8)), ["S(1)"])
    domains = tuple(Domain(tuple(range(at, at + 4))) for at in (0, 4))
    nics = tuple(Nic((gpu,), rail=gpu % 2) for gpu in range(8))
    tensors = [rp.TensorSpec(name, (64, 64), "float32", source, target) for name in ("v", "w")]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology(domains, nics, name="rails")))
    shares = [Facts(plan, tensor.name).rail_nbytes() for tensor in tensors]
    assert sum(shares) == plan.certificate.rail_nbytes > 0
    said = f"Of the 16 KiB over the network {format_nbytes(shares[0])} stay on their rail"
    assert said in " ".join(explain(plan, "v").split())
    without = rp.compile(rp.ReshardSpec(tensors, rp.Topology.uniform(8, 4)))
    assert "rail" not in explain(without, "v")


def test_what_holders_could_have_sent_says_what_they_do_instead():
    both, one = rp.Layout(rp.Mesh([0, 1]), ["R"]), rp.Layout(rp.Mesh([2]), ["R"])
    tensors = [rp.TensorSpec(f"w{at}", (256, 256), "float32", both, one) for at in range(2)]
    plan = rp.compile(rp.ReshardSpec(tensors, rp.Topology.from_domains([[0, 1], [2]])), "direct")
    entry = Facts(plan, "w0").class_facts(0)
    text = " ".join(explain(plan, "w0").split())
    assert ("of a holder could have sent it too, and is" in text) == bool(entry.idle)
    assert entry.idle


def test_a_time_that_is_t_star_is_not_said_to_be_above_it():
    plan = sample_plans()["plain"]
    facts = Facts(plan, plan.spec.tensors[0].name)
    for gap, words in (
        (0.0, "by its busiest port this plan reaches T*"),
        (0.0004, "by its busiest port this plan reaches T*"),
        (0.003, "0.3 % above T*"),
        (1.5, "2.50 times T*"),
        (-0.25, "25.0 % below T*"),
        (None, "not 0 s, as T* is"),
    ):
        changed = replace(plan, certificate=replace(plan.certificate, gap=gap))
        facts.plan = changed
        assert words in binding_sentences(facts)[-1]


@pytest.mark.parametrize("kind", CUT_KINDS)
def test_every_kind_of_cut_has_words(kind):
    plan = sample_plans()["plain"]
    members_ = () if kind in ("none", "prices") else (1,)
    weights = (("nic_out", "0-3,8", 2), ("nvlink_in", "1", 1)) if kind == "prices" else ()
    bound = replace(
        plan.certificate.bound,
        term=kind,
        cut_members=members_,
        cut_weights=weights,
        cut_nbytes=0 if kind == "none" else 2048,
    )
    text = bound_sentence(bound)
    assert text.endswith(".")
    assert ("2 KiB" in text) == (kind != "none")
    assert kind.split("_")[-1].replace("prices", "price") in text or kind == "none"


def test_a_term_that_is_not_known_is_refused_wherever_it_is_worded():
    plan = sample_plans()["plain"]
    bound = replace(plan.certificate.bound, term="toll")
    forged = replace(plan, certificate=replace(plan.certificate, bound=bound))
    with pytest.raises(InputError, match=r"term 'toll'; expected one of .*prices"):
        bound_sentence(bound)
    with pytest.raises(InputError, match=r"term 'toll'; expected one of .*prices"):
        explain(forged, forged.spec.tensors[0].name)


HALF_NEEDED = """\
version: 1
meshes: {a: {ranks: "0-2", axes: [dp]}, b: {ranks: [3], axes: [dp]}}
topology: {gpus_per_domain: 2}
tensors:
  - name: w
    shape: [12]
    dtype: uint8
    src: {mesh: a, placements: [S(0)]}
    dst:
      mesh: b
      storage: [{ranks: [3], buffer: w, shape: [6], tiles: [{box: [[0, 6]], offset: 0, strides: [1]}]}]
"""


def test_what_a_rank_held_and_nobody_needs_is_said():
    plan = rp.compile(parse_spec(HALF_NEEDED))
    assert "It held 4 B before, class 0, and needs none after." in explain(plan, "w", 0)
    assert "It held 4 B before, class 1 and 2 B that nobody needs, and" in explain(plan, "w", 1)
    assert "It held 4 B before, which nobody needs, and needs none after." in explain(plan, "w", 2)
    assert "Held before by ranks 0-2 of domains 0-1." in explain(plan, "w")
    facts = Facts(plan, "w")
    assert [explain_data(facts, rank)["rank"]["held_nbytes"] for rank in range(4)] == [4, 4, 4, 0]


@pytest.mark.parametrize("medium", [*Medium, 9])
@pytest.mark.parametrize("role", [*Role, 9])
def test_every_kind_of_move_has_words_even_those_of_broken_plans(medium, role):
    for forwarded in (False, True):
        for scratch in (False, True):
            for one in (False, True):
                text = way_text(medium, role, forwarded=forwarded, scratch=scratch, one=one)
                assert "1 B" in text.format(nbytes="1 B")


# ----------------------------------------------------------------------------------- whole models


def test_one_tensor_of_a_whole_model_is_explained_in_time():
    plan = rp.compile(build_whole(WHOLE["qwen3-235b"]))
    with soon(2):
        text = explain(plan, "model.layers.3.mlp.experts.*.gate_proj.weight")
    assert "Its bytes are of 128 classes" in text
    assert "124 more classes, 4-127: 12 MiB each" in text
    assert "24 GiB cross the network, the least possible" in text
    said = " ".join(text.split())
    assert "16 ranks (128,136,144,152,...,248) of domains 16-31 must have it after." in said
    assert "So those who held it emit 180 MiB over their NICs, not all 192 MiB." in said
    assert "the longest of these times is 0.1 % above T*." in said
    assert not re.search(STRAY_COMMA, said)
    with pytest.raises(InputError, match=r"the nearest: 'model.layers.3.mlp.experts.\*.gate_proj.weight'"):
        explain(plan, "model.layers.3.mlp.experts.5.gate_proj.weight")
