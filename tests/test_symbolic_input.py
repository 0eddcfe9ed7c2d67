"""Forms of any numbers, and pairs and numbers that are refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from _pairs import GB, Pair

import reshard_planner as rp
from reshard_planner.errors import InputError
from reshard_planner.layout import Storage, StoredBuffer, StridedShard, Tile
from reshard_planner.symbolic import (
    Case,
    Side,
    all_forms,
    case_of,
    count_classes,
    crossovers,
    evaluate,
    find_form,
    symbol,
)
from reshard_planner.symbolic.quantities import QUANTITIES
from reshard_planner.topology import Domain, Link, Nic, Pod

FORMS = all_forms()
CROSSOVERS = {crossover.name: crossover for crossover in crossovers()}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_function_of_arrays_gives_the_exact_values(form):
    case = Pair((4, 2, 4), (2, 8, 8), stages=2, largest=3, nvlink=(450 * GB, 90 * GB)).case
    numbers = evaluate(case).numbers
    names = [name for name in form.quantities if name not in ("S_src", "S_dst", "C")][:2]
    found = form.function(names, numbers)
    first, second = (np.array([1, 2, 4]) * float(numbers[name]) for name in names)
    table = found(first[:, np.newaxis], second)
    assert table.shape == (3, 3)
    for (row, x), (column, y) in product(enumerate(first), enumerate(second)):
        expected = float(form.value(numbers | {names[0]: x, names[1]: y}))
        assert table[row, column] == pytest.approx(expected, rel=1e-12)
    assert found(first[0], second[0]) == pytest.approx(float(form.value(numbers)), rel=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_text_reads_back_as_the_form(form):
    import sympy as sp  # noqa: PLC0415 - as lazily as the library

    names = {quantity.name: symbol(quantity.name) for quantity in QUANTITIES}
    assert sp.sympify(form.text, locals=names) == form.expression
    assert form.latex.count("{") == form.latex.count("}")


def test_names_are_distinct_and_every_quantity_is_used():
    names = [form.name for form in FORMS]
    assert len(set(names)) == len(names)
    used = {name for form in FORMS for name in form.quantities}
    assert used == {quantity.name for quantity in QUANTITIES}


def test_a_missing_quantity_and_an_unknown_form_are_named():
    bound = find_form(FORMS, "least_payload")
    with pytest.raises(InputError, match=r"least_payload needs a value of R_dst, replicas.*; m, needers"):
        bound.value({"W": 1})
    with pytest.raises(InputError, match="least_payload needs a value of R_dst"):
        bound.function(["W"], {"m": 2})
    with pytest.raises(InputError, match="quantity 'w' is unknown; expected one of W, "):
        bound.function(["w"])
    with pytest.raises(InputError, match="form 'best' is unknown; expected one of least_payload"):
        find_form(FORMS, "best")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), -1, 0, "8", None, True, 1j], ids=repr
)
@pytest.mark.parametrize(
    "use",
    [
        lambda numbers: find_form(FORMS, "least_payload").value(numbers),
        lambda numbers: find_form(FORMS, "least_payload").function(["R_dst"], numbers),
        CROSSOVERS["fanout_nbytes"].is_met,
        CROSSOVERS["relays"].applies,
    ],
    ids=["value", "function", "is_met", "applies"],
)
def test_impossible_values_are_named(use, value):
    numbers = dict(Case(8, ONE, Side.packed(4, 4), 4).numbers)
    use(numbers)
    with pytest.raises(InputError, match=r"^W is .*; expected a finite number above 0: bytes of all tensors"):
        use(numbers | {"W": value})


def test_times_may_be_zero_but_not_below():
    numbers = {"T_nic": 1, "T_nvlink": 0, "K": 2, "H": 1, "lag": 2, "alpha": 0}
    slot_sum = find_form(FORMS, "slot_sum")
    assert slot_sum.value(numbers) == 1
    with pytest.raises(InputError, match="T_nvlink is -1; expected a finite number 0 or above"):
        slot_sum.value(numbers | {"T_nvlink": -1})
    with pytest.raises(
        InputError, match="best_rounds has no finite value where L = 3, T = 1, alpha = 0, lag"
    ):
        find_form(FORMS, "best_rounds").value({"L": 3, "T": 1, "lag": 2, "alpha": 0})


def test_numbers_of_numpy_are_numbers():
    numbers = {"W": np.int64(12), "R_dst": np.float32(3), "m": np.float64(1.5)}
    assert find_form(FORMS, "least_payload").value(numbers) == 24


def test_sympy_is_loaded_on_use():
    code = (
        "import sys, reshard_planner.symbolic, reshard_planner.cli.main; print('sympy' in sys.modules);"
        " reshard_planner.symbolic.crossovers(); print('sympy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stdout.split() == ["False", "True"]


# pairs that are not regular

ONE = Side.packed(4)


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (lambda: Side.packed(0), ["shards is 0", "integer from 1 to 1048576"]),
        (lambda: Side.packed(2**19, 4), ["524288 shards in 4 replicas", "2097152 ranks", "at most 1048576"]),
        (lambda: Side(4, 1, 4, 1, 2**53), ["nic_bytes_per_s is 9007199254740992"]),
        (lambda: Side(4, 1, 4, 1, nvlink_bytes_per_s=0.5), ["nvlink_bytes_per_s is 0.5"]),
        (lambda: Side.packed(4, True), ["replicas is True"]),
        (lambda: Side.packed(4, 3, 8), ["4 shards in 3 replicas", "domains of 8 GPUs", "multiple of 8"]),
        (lambda: Side.packed(6, 4, 8), ["6 shards and domains of 8 GPUs", "divide"]),
        (lambda: Side(4, 2, 3, 1), ["3 shards, 1 times", "4 shards in 2 replicas"]),
        (lambda: Case(0, ONE, ONE, 4), ["nbytes is 0"]),
        (lambda: Case(8, ONE, ONE, 6), ["classes is 6", "4 shards of src"]),
        (lambda: Case(8, ONE, ONE, 32), ["classes is 32", "at most 16"]),
        (lambda: Case(8, ONE, ONE, 4, largest_stage_nbytes=4), ["largest_stage_nbytes is 4", "8 bytes"]),
        (lambda: Case(8, ONE, ONE, 4, 2, 9), ["largest_stage_nbytes is 9"]),
        (lambda: Case(8, ONE, ONE, 4, neighbours=-1), ["neighbours is -1"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s=0.0), ["alpha_s is 0.0"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s=1e6), ["alpha_s is 1000000.0", "below 1000000"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s=float("nan")), ["alpha_s is nan"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s="x"), ["alpha_s is 'x'"]),
        (lambda: Case(8, ONE, ONE, 4, alpha_s=True), ["alpha_s is True"]),
        (lambda: Case(8, ONE, ONE, 4, lag=0), ["lag is 0"]),
        (lambda: Case(8, ONE, ONE, 4, lag=1025), ["lag is 1025", "to 1024"]),
        (lambda: Case(2**57, ONE, ONE, 4), ["nbytes is 144115188075855872"]),
        (lambda: Case(8, ONE, ONE, 4, 2**19), ["4 shards in 1 replicas in 524288 stages", "2097152 ranks"]),
        (lambda: Case(8, ONE, "x", 4), ["dst is 'x'", "Side"]),
        (lambda: Case(8, ONE, ONE, 4, largest_stage_nbytes="x"), ["largest_stage_nbytes is x"]),
        (lambda: evaluate(Case(8, ONE, ONE, 4), 0), ["rounds is 0"]),
        (lambda: evaluate(Case(8, ONE, ONE, 4), 1.5), ["rounds is 1.5"]),
        (lambda: evaluate(Case(8, ONE, ONE, 4), True), ["rounds is True"]),
        (lambda: evaluate(Case(8, ONE, ONE, 4), 10**400), ["rounds is 1000", "to 1073741824"]),
        (lambda: count_classes({"a": 0}, {"a": 0}), ["shards of a before is 0"]),
        (lambda: count_classes({"a": 1}, {"a": -1}), ["shards of a after is -1"]),
        (lambda: count_classes({"a": "4"}, {}), ["shards of a before is '4'"]),
        (lambda: count_classes({"tp": 4}, {"tp": 6}), ["tp is cut in 4 shards before and 6 after"]),
    ],
)
def test_numbers_that_are_not_regular_are_refused(make, mentions):
    with pytest.raises(InputError) as error:
        make()
    assert all(mention in str(error.value) for mention in mentions), error.value


def layout(ranks, *placements):
    return rp.Layout(rp.Mesh(ranks), placements)


SRC, DST = layout([0, 1, 2, 3], "S(0)"), layout([[4, 5], [6, 7]], "R", "S(0)")
FOURS = rp.Topology.uniform(16, 4)


ROWS = rp.Layout.stored(
    SRC.mesh,
    Storage(
        [
            (StoredBuffer(0, (2, 8), (Tile(rp.Box((row, 0), (row + 2, 8)), 0, (8, 1)),)),)
            for row in (0, 2, 4, 6)
        ],
        range(4),
    ),
)
"""Two rows each, by storage."""


def tensor(src=SRC, dst=DST, shape=(8, 8), name="w"):
    return rp.TensorSpec(name, shape, "int8", src, dst)


def idle(ranks):
    return tensor(layout(ranks, "R"), layout(ranks, "R"), (0,), "idle")


def topology(**changes):
    return replace(FOURS, **changes)


SLOW = Link(10**9, 1.0, 1e-5)
INSTANT = Link(10**9, 1.0, 0.0)


@pytest.mark.parametrize(
    ("tensors", "cluster", "mentions"),
    [
        ([tensor(shape=(0, 8))], FOURS, ["moves no bytes"]),
        ([tensor(src=[SRC, layout([4], "R")])], FOURS, ["'w'", "src has 2 layouts; expected one, with"]),
        (
            [tensor(src=ROWS)],
            FOURS,
            ["'w'", "the layout of src says where boxes are stored and has no placements; expected"],
        ),
        ([tensor(shape=(6, 8))], FOURS, ["'w'", "shards of src are not equal"]),
        (
            [tensor(dst=layout([4, 5, 6, 8], "S(0)"))],
            FOURS,
            ["'w', dst", "(1, 1), (3, 1)", "the same for all domains"],
        ),
        (
            [tensor(), tensor(dst=layout([4, 5, 6, 7], "S(0)"), name="v")],
            FOURS,
            [
                "'w'",
                "'v'",
                "2 shards in 2 replicas",
                "4 shards in 1 replicas",
                "NIC 50 GB/s, NVLink 450 GB/s",
            ],
        ),
        (
            [tensor(), tensor(dst=layout([[8, 9], [10, 11]], "R", "S(0)"), name="v")],
            FOURS,
            ["'w'", "'v'", "needed by other ranks"],
        ),
        ([tensor(dst=layout([0, 1, 2, 3], "S(1)"))], FOURS, ["domains of their own"]),
        (
            [tensor(layout([0, 1], "S(0)")), tensor(layout([2, 3], "S(0)"), name="v")],
            FOURS,
            ["several stages"],
        ),
        (
            [tensor(layout([0, 1], "S(0)")), tensor(layout([3], "R"), layout([3], "R"), (0,), "o")],
            FOURS,
            ["domain 0 has holders and 1 ranks that hold nothing"],
        ),
        (
            [
                tensor(dst=layout([4, 5, 6, 8, 9, 10], "S(0)"), shape=(24, 8)),
                tensor(layout([7], "R"), layout([7], "R"), (0,), "o"),
            ],
            FOURS,
            ["differ in how many of their ranks need nothing"],
        ),
        (
            [tensor(layout([[0, 2, 1, 3], [4, 6, 5, 7]], "S(0)", "R"), layout([8, 9], "S(0)"))],
            rp.Topology.from_domains([[0, 4], [1, 2], [3, 6], [5, 7], [8, 9]]),
            ["'w', src"],
        ),
        (
            [tensor(layout([[0, 3], [2, 1]], "R", "S(0)"))],
            rp.Topology.from_domains([[0, 1], [2, 3], [4, 5, 6, 7]]),
            ["'w', src", "first holders", "replica after replica"],
        ),
        ([tensor(layout([0, 1, 2], "S(0)"), shape=(6, 8))], FOURS, ["'w'", "classes differ in size"]),
        (
            [tensor(), tensor(dst=layout([[4, 5], [6, 7]], "R", "S(1)"), name="v")],
            FOURS,
            ["4 and 8 classes"],
        ),
        (
            [
                tensor(layout([[0, 1], [2, 3]], "R", "S(0)"), layout([4, 5], "S(0)"), (size, 8), f"w{size}")
                for size in (8, 16)
            ],
            FOURS,
            ["differ in shape", "2 classes for 1 replicas", "4 holders"],
        ),
        (
            [tensor()],
            topology(
                domains=tuple(replace(domain, link=INSTANT) for domain in FOURS.domains),
                nics=tuple(replace(nic, link=INSTANT) for nic in FOURS.nics),
            ),
            ["latency_s of all links", "above 0"],
        ),
        ([tensor()], topology(pods=(Pod((0, 1), SLOW),)), ["pods"]),
        ([tensor()], topology(nics=FOURS.nics[1:]), ["share a NIC or have none"]),
        ([tensor()], topology(nics=(Nic((0,), SLOW), *FOURS.nics[1:])), ["differ in rate"]),
        (
            [tensor(dst=layout([4, 5, 6], "S(0)"), shape=(12, 8)), idle([7])],
            topology(nics=(*FOURS.nics[:7], Nic((7,), SLOW), *FOURS.nics[8:])),
            ["domains 1", "differ in rate"],
        ),
        (
            [tensor()],
            topology(domains=(Domain((0, 1, 2, 3), SLOW), *FOURS.domains[1:])),
            [],
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value and isinstance(value[0], str) else "",
)
def test_specs_that_are_not_regular_are_refused(tensors, cluster, mentions):
    spec = rp.ReshardSpec(tensors, cluster)
    if not mentions:  # the two sides may differ in rates
        assert case_of(spec).src.nvlink_bytes_per_s == SLOW.bytes_per_s
        return
    with pytest.raises(InputError) as error:
        case_of(spec)
    assert all(mention in str(error.value) for mention in mentions), error.value


def test_strided_shards_count_as_shards():
    strided = rp.Layout(rp.Mesh([4, 5]), [StridedShard(0, 2)])
    case = case_of(rp.ReshardSpec([tensor(dst=strided)], FOURS))
    assert (case.dst.shards, case.classes) == (2, 4)
