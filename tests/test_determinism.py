"""The same input gives the same bytes, whatever the hash seed, and values stay as they were made."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from strategies import STRATEGIES, specs
from test_minimal_payload import TP_EXAMPLE
from test_planning_cases import LARGEST_RUN, PLANNED

import reshard_planner as rp

PRINT_PLANS = f"""
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from test_planning_cases import PLANNED, build
import reshard_planner as rp
print(hash("a hash seed"))
for case in PLANNED:
    if case["expected"]["tensor_bytes"] < {LARGEST_RUN}:
        for strategy in {STRATEGIES!r}:
            plan = rp.compile(build(case), strategy)
            text = hashlib.sha256((plan.to_json() + plan.to_text()).encode()).hexdigest()
            print(case["id"], strategy, plan.digest, text)
"""


def plans_under(seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_PLANS, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()


def test_plans_are_equal_under_two_hash_seeds():
    first, second = plans_under("1"), plans_under("2")
    assert first[0] != second[0], "the seeds must differ"
    assert first[1:] == second[1:]
    small = [case for case in PLANNED if case["expected"]["tensor_bytes"] < LARGEST_RUN]
    assert len(first) == 1 + len(STRATEGIES) * len(small)


@given(specs())
def test_compiling_twice_gives_equal_plans(spec):
    first, second = rp.compile(spec), rp.compile(spec)
    assert first.digest == second.digest
    assert first.tables == second.tables
    assert first.certificate == second.certificate
    assert first.to_json() == second.to_json()


@given(specs(max_tensors=1))
def test_the_name_of_a_tensor_changes_the_digest_but_no_table(spec):
    tensor = spec.tensors[0]
    renamed = rp.TensorSpec("other", tensor.shape, tensor.dtype, tensor.src, tensor.dst)
    first = rp.compile(spec)
    second = rp.compile(rp.ReshardSpec([renamed], spec.topology, spec.options))
    assert first.tables == second.tables
    assert first.digest != second.digest


def test_values_and_columns_are_frozen():
    plan = rp.compile(TP_EXAMPLE)
    with pytest.raises(FrozenInstanceError):
        plan.digest = ""
    with pytest.raises(FrozenInstanceError):
        plan.spec.tensors[0].name = ""
    for table in plan.tables.named().values():
        for column in table.columns().values():
            assert not column.flags.writeable
