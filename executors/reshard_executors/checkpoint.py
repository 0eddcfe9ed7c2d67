"""Contents of tensors from a safetensors file, read tile by tile as raw bytes.

Raw bytes serve every dtype, also those that numpy does not know, and need no torch.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec
import numpy as np

from reshard_executors.synthetic import SyntheticValues
from reshard_executors.values import Buffer, Values, storage_dtype
from reshard_planner.box import Box
from reshard_planner.dtypes import DTYPE_BITS, SAFETENSORS_DTYPES
from reshard_planner.errors import InputError
from reshard_planner.ir.views import storage_shape
from reshard_planner.spec import ReshardSpec, TensorSpec

MAX_HEADER_NBYTES = 100_000_000
"""Largest header that the format allows."""


class Entry(msgspec.Struct):
    """One tensor as the header of a file lists it.

    Attributes:
        dtype: the format's name of the dtype.
        shape: in elements.
        data_offsets: first byte, and the one past the last, within the data.
    """

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]

    @property
    def dtype_name(self) -> str:
        """Torch's name of the dtype where there is one."""
        return SAFETENSORS_DTYPES.get(self.dtype, self.dtype)


def read_header(path: Path) -> tuple[dict[str, Entry], int]:
    """The tensors that a safetensors file lists, by name, and the byte at which its data begins.

    Raises:
        InputError: if the file cannot be read or is no safetensors file.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"checkpoint {path} is not a regular file")
        with path.open("rb") as file:
            nbytes = int.from_bytes(file.read(8), "little")
            text = file.read(nbytes) if nbytes <= MAX_HEADER_NBYTES else b""
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=Entry) for name, raw in header.items()}, 8 + nbytes
    except OSError as error:
        raise InputError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"checkpoint {path} is not a safetensors file: {error}") from None


class CheckpointValues:
    """Contents of the tensors of a spec, from the tensors of the same names in a safetensors file."""

    def __init__(self, spec: ReshardSpec, path: Path) -> None:
        """Open the file and find every tensor of the spec.

        A dtype below eight bits is read from a ``U8`` tensor of packed bytes.

        Raises:
            InputError: if the file is no safetensors file, or lacks a tensor of this name, shape and dtype.
        """
        header, start = read_header(path)
        raw: Buffer = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self._arrays = [_find(tensor, header, raw[start:], path) for tensor in spec.tensors]

    def read(self, tensor: int, box: Box) -> Buffer:
        """See :meth:`reshard_executors.values.Values.read`."""
        return self._arrays[tensor][box.slices()]


def open_values(spec: ReshardSpec, checkpoint: Path | None) -> Values:
    """Contents of the tensors of a spec: those of a checkpoint, made up without one.

    Raises:
        InputError: if the checkpoint does not hold the tensors.
    """
    return SyntheticValues(spec) if checkpoint is None else CheckpointValues(spec, checkpoint)


def _find(tensor: TensorSpec, header: dict[str, Entry], data: Buffer, path: Path) -> Buffer:
    where = f"checkpoint {path}, tensor {tensor.name!r}"
    entry = header.get(tensor.name)
    if entry is None:
        raise InputError(f"{where} is missing; the file has {len(header)} tensors")
    bits = DTYPE_BITS[tensor.dtype]
    wanted = tensor.dtype if bits >= 8 else "uint8"
    if entry.dtype_name != wanted:
        raise InputError(f"{where} has dtype {entry.dtype_name}; the spec needs {wanted}")
    expected = storage_shape(tensor.shape, bits)
    if tuple(entry.shape) != expected:
        raise InputError(f"{where} has shape {entry.shape}; the spec needs {list(expected)}")
    dtype = storage_dtype(bits)
    start, stop = entry.data_offsets
    nbytes = prod(expected) * dtype.itemsize
    if not 0 <= start <= stop <= len(data) or stop - start != nbytes:
        raise InputError(
            f"{where} has data_offsets {start} to {stop}; expected {nbytes} of {len(data)} bytes"
        )
    return data[start:stop].view(dtype).reshape(expected)
