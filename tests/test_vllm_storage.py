"""Placements of vLLM against what its own loaders do, element by element.

data/vllm_tensors.npz holds what vLLM puts into the parameters of every rank; see data/README.md.
"""

from __future__ import annotations

import json
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest

from reshard_planner.errors import SpecError
from reshard_planner.models.load import model_from_config
from reshard_planner.models.parallelism import parse_parallelism

FILE = Path(__file__).parent / "data" / "vllm_tensors.npz"
with np.load(FILE) as archive:
    ABOUT = json.loads(archive["about"].tobytes())
    ROWS = {name: archive[name] for name in archive.files if name != "about"}

FAMILIES = ABOUT["families"]
CASES = [(family, text) for family, about in FAMILIES.items() for text in about["cases"]]
REFUSED = [(family, text) for family, about in ABOUT["refused"].items() for text in about["cases"]]

ZERO = 0
"""What vLLM's loaders write into padding; where they write nothing, there is -1."""

VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
PADDED = (
    *VOCABULARY,
    "in_proj_qkvgfab.weight",
    "block_sparse_moe.experts.routed_experts.w13_weight",
    "block_sparse_moe.experts.routed_experts.w2_weight",
)
"""Parameters with padding."""


@cache
def loaded(family, text):
    """What vLLM has per rank and name of a parameter: numbers of elements, or what padding has."""
    cases = FAMILIES[family]["cases"]
    about = cases[text]
    row = np.cumsum(ROWS[f"{family}/{list(cases).index(text)}"], dtype=np.int64)
    found, at = {}, 0
    for rank in range(about["ranks"]):
        for name, shapes in about["buffers"].items():
            shape = shapes[rank] if len(shapes) > 1 else shapes[0]
            found[rank, name] = row[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
    assert at == row.size
    return found


def numbers(model, tensors):
    """The numbers of every parameter's elements."""

    def of(name):
        start, shape = tensors[name]
        return np.arange(start, start + prod(shape)).reshape(shape)

    return {
        p.name: np.stack([of(p.name.replace("*", str(expert))) for expert in range(p.shape[0])])
        if "*" in p.name
        else of(p.name)
        for p in model.parameters
    }


def placed(model, text, values):
    """The same as :func:`loaded` by this project, with zeros where no tile lies."""
    parallelism = parse_parallelism(f"vllm {text}", "dst")
    found: dict[tuple[int, str], np.ndarray] = {}
    layouts = parallelism.place(model, range(parallelism.gpus))
    for parameter in model.parameters:
        for one in layouts[parameter.name]:
            tiling = one.layout.tiling(parameter.shape)
            for rank in one.layout.mesh.ranks:
                shapes = tiling.buffers(rank)
                for number, shape in shapes:
                    flat = found.setdefault((rank, one.buffers[number]), np.zeros(shape, dtype=np.int64))
                    assert flat.size == prod(shape), f"{one.buffers[number]} has another size"
                for position, tile in tiling.local_tiles(rank):
                    flat = found[rank, one.buffers[shapes[position][0]]].reshape(-1)
                    view = np.lib.stride_tricks.as_strided(
                        flat[tile.offset :], tile.box.shape, [flat.itemsize * n for n in tile.strides]
                    )
                    assert not view.any(), f"{parameter.name} overlaps in {one.buffers}"
                    view[...] = values[parameter.name][tile.box.slices()]
    return found


@cache
def model_of(family):
    return model_from_config(FAMILIES[family]["config"])


@pytest.mark.parametrize(("family", "text"), CASES)
def test_buffers_hold_what_vllm_loads_into_them(family, text):
    model = model_of(family)
    wanted = loaded(family, text)
    found = placed(model, text, numbers(model, FAMILIES[family]["tensors"]))
    assert found.keys() == wanted.keys()
    for key, own in found.items():
        there = wanted[key].squeeze()
        # a buffer may have dimensions of one element that the parameter of vLLM lacks
        assert own.squeeze().shape == there.shape, key
        assert (own.squeeze() == np.maximum(there, ZERO)).all(), key


@pytest.mark.parametrize(("family", "text"), CASES)
def test_vllm_leaves_nothing_but_padding_unwritten(family, text):
    for (_, name), own in loaded(family, text).items():
        if (own <= ZERO).any():
            assert name.endswith(PADDED), name
            assert (own > ZERO).any() or name.endswith(VOCABULARY), name


@pytest.mark.parametrize("family", FAMILIES)
def test_vllm_loads_every_element_somewhere(family):
    every = sum(prod(shape) for _, shape in FAMILIES[family]["tensors"].values())
    for text in FAMILIES[family]["cases"]:
        seen = np.zeros(every + 1, dtype=bool)
        for own in loaded(family, text).values():
            seen[np.maximum(own, ZERO)] = True
        assert seen[1:].all(), text


@pytest.mark.parametrize(
    ("family", "one", "several"),
    [
        ("llama", "tp=2", "tp=2 dp=3"),
        ("qwen3_moe", "tp=2", "tp=2 dp=2"),
        ("deepseek_v3", "tp=4 ep=4", "tp=4 dp=2 ep=4"),
        ("qwen3_5_moe", "tp=2 dp=2 ep=4", "tp=2 dp=6 ep=4"),
        ("qwen3_moe", "tp=2 ep=2 redundant=4", "tp=2 dp=2 ep=2 redundant=4"),
    ],
)
def test_every_engine_holds_what_one_engine_does(family, one, several):
    model = model_of(family)
    wanted = loaded(family, one)
    size = 1 + max(rank for rank, _ in wanted)
    found = placed(model, several, numbers(model, FAMILIES[family]["tensors"]))
    for (rank, name), own in found.items():
        assert (own == np.maximum(wanted[rank % size, name], ZERO)).all(), (rank, name)


@pytest.mark.parametrize(("family", "text"), REFUSED)
def test_what_vllm_refuses_is_refused(family, text):
    model = model_from_config(ABOUT["refused"][family]["config"])
    parallelism = parse_parallelism(f"vllm {text}", "dst")
    with pytest.raises(SpecError, match=r"vllm (tp|redundant) is"):
        parallelism.place(model, range(parallelism.gpus))
