"""Contents of a checkpoint are read bit by bit, tile by tile, and whatever does not fit is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from reshard_executors.checkpoint import CheckpointValues, read_header
from reshard_executors.local import run_plan
from reshard_executors.values import filled_buffers
from safetensors import safe_open
from safetensors.torch import save_file

import reshard_planner as rp
from reshard_planner.dtypes import SAFETENSORS_DTYPES
from reshard_planner.errors import InputError

ROWS = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
COLUMNS = rp.Layout(rp.Mesh([1, 2]), ["S(1)"])
DTYPES = [name for name in SAFETENSORS_DTYPES.values() if hasattr(torch, name)]


def random_bytes(rows, columns, dtype):
    """Random bits for a matrix, shape (rows, columns, bytes of an element)."""
    shape = (rows, columns, getattr(torch, dtype).itemsize)
    return np.random.default_rng(len(dtype)).integers(0, 256, shape, dtype=np.uint8)


def random_tensor(rows, columns, dtype):
    """The same as a torch tensor."""
    raw = torch.from_numpy(random_bytes(rows, columns, dtype).reshape(-1))
    return raw.view(getattr(torch, dtype)).reshape(rows, columns)


def spec_of(*tensors):
    """A spec of tensors that go from rows to columns; scalars from whole to whole."""
    return rp.ReshardSpec(
        [
            rp.TensorSpec(
                name,
                shape,
                dtype,
                ROWS if shape else rp.Layout(ROWS.mesh, ["R"]),
                COLUMNS if shape else rp.Layout(COLUMNS.mesh, ["R"]),
            )
            for name, shape, dtype in tensors
        ]
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file with one tensor of every dtype, a scalar, an empty one, and packed nibbles."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    tensors = {dtype: random_tensor(6, 10, dtype) for dtype in DTYPES}
    tensors |= {
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(1.5, dtype=torch.float16),
        "nibbles": random_tensor(4, 4, "uint8"),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_hold_the_bits_that_torch_wrote(checkpoint, dtype):
    spec = spec_of((dtype, (6, 10), dtype))
    wanted = random_bytes(6, 10, dtype)
    values = CheckpointValues(spec, checkpoint)
    for rank, part in ((1, wanted[:, :5]), (2, wanted[:, 5:])):
        (tile,) = filled_buffers(rp.compile(spec), rank, "dst", values)[dtype]
        assert tile.tobytes() == part.tobytes()


@pytest.mark.parametrize("executor", ["numpy", "torch"])
def test_a_whole_checkpoint_is_resharded_exactly(checkpoint, executor):
    tensors = [(dtype, (6, 10), dtype) for dtype in DTYPES]
    others = [("empty", (0, 4), "float32"), ("scalar", (), "float16"), ("nibbles", (4, 8), "uint4")]
    spec = spec_of(*tensors, *others)
    report = run_plan(rp.compile(spec), executor, checkpoint)
    assert report.correct, report.first_error


def test_the_header_says_what_the_library_says(checkpoint):
    header, start = read_header(checkpoint)
    with safe_open(checkpoint, framework="pt") as file:
        assert set(header) == set(file.keys())
        for name, entry in header.items():
            assert entry.shape == file.get_slice(name).get_shape()
            assert entry.dtype == file.get_slice(name).get_dtype()
    assert start + max(entry.data_offsets[1] for entry in header.values()) == checkpoint.stat().st_size


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (("absent", (6, 10), "float32"), "tensor 'absent' is missing; the file has 22 tensors"),
        (("float32", (6, 11), "float32"), "tensor 'float32' has shape [6, 10]; the spec needs [6, 11]"),
        (("float32", (10, 6), "float32"), "tensor 'float32' has shape [6, 10]; the spec needs [10, 6]"),
        (("float32", (6, 10), "int32"), "tensor 'float32' has dtype float32; the spec needs int32"),
        (("int8", (6, 20), "int4"), "tensor 'int8' has dtype int8; the spec needs uint8"),
        (("nibbles", (4, 16), "uint4"), "tensor 'nibbles' has shape [4, 4]; the spec needs [4, 8]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(checkpoint, tensor, said):
    with pytest.raises(InputError) as refused:
        CheckpointValues(spec_of(tensor), checkpoint)
    assert str(refused.value) == f"checkpoint {checkpoint}, {said}"


def as_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a safetensors file"),
        (b"PK\x03\x04 and so on", "is not a safetensors file"),
        ((2**62).to_bytes(8, "little"), "is not a safetensors file"),
        (as_file(b"\xff\xfe"), "is not a safetensors file"),
        (as_file(b"[" * 100_000), "is not a safetensors file"),
        (as_file([1, 2]), "is not a safetensors file"),
        (as_file({"w": 3}), "is not a safetensors file"),
        (as_file({"w": {"dtype": "F32", "shape": [2, 2]}}), "lacks the field|missing required field"),
        (as_file(entry()), r"tensor 'w' has data_offsets 0 to 16; expected 16 of 0 bytes"),
        (as_file(entry(offsets=(4, 20)), bytes(16)), "data_offsets 4 to 20; expected 16 of 16 bytes"),
        (as_file(entry(offsets=(-16, 0)), bytes(16)), "data_offsets -16 to 0; expected 16 of 16 bytes"),
        (as_file(entry(offsets=(0, 8)), bytes(16)), "data_offsets 0 to 8; expected 16 of 16 bytes"),
        (as_file(entry(dtype="F7"), bytes(16)), "has dtype F7; the spec needs float32"),
    ],
)
def test_broken_files_are_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as refused:
        CheckpointValues(spec_of(("w", (2, 2), "float32")), path)
    assert str(refused.value).startswith(f"checkpoint {path}")
    assert "\n" not in str(refused.value)


def test_a_folder_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match="is not a regular file"):
        CheckpointValues(spec_of(), tmp_path)
