"""Brute force for storage and casts: every element of every local buffer on its own.

A local buffer is rows of bytes here, one for each element, or rows of bits below eight bits. Where elements
lie is computed from boxes, offsets and strides by index arithmetic, or by ``oracle`` from placements;
conversions are torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from oracle import local_indices

import reshard_planner as rp
from reshard_planner.dtypes import DTYPE_BITS

Buffers = dict[int, dict[str, list[NDArray[Any]]]]
"""Local buffers by rank and name."""


@dataclass(frozen=True)
class Part:
    """Some elements of a tensor in a local buffer.

    Attributes:
        tensor: position of the tensor.
        rank: whose buffer it is.
        key: name of the buffer, and its number among those of the name.
        shape: of the whole buffer, in elements.
        dtype: of the buffer.
        elements: numbers of the elements in the tensor, row-major.
        places: where they lie in the buffer.
    """

    tensor: int
    rank: int
    key: tuple[str, int]
    shape: tuple[int, ...]
    dtype: str
    elements: NDArray[np.int64]
    places: NDArray[np.int64]


def parts(spec: rp.ReshardSpec, side: str) -> Iterator[Part]:
    """All that is stored on one side."""
    for number, tensor in enumerate(spec.tensors):
        dtype = tensor.dtype if side == "src" else tensor.dst_dtype
        seen: dict[int, int] = {}
        for layout, names in zip(tensor.layouts(side), tensor.buffers(side), strict=True):
            if layout.storage is None:
                for rank, per_dim in local_indices(layout, tensor.shape).items():
                    elements = np.zeros(1, dtype=np.int64)
                    for size, indices in zip(tensor.shape, per_dim, strict=True):
                        elements = (elements[:, None] * size + indices).reshape(-1)
                    at = seen[rank] = seen.get(rank, -1) + 1
                    shape = tuple(map(len, per_dim))
                    yield Part(number, rank, (names[0], at), shape, dtype, elements, np.arange(len(elements)))
                continue
            for rank, entry in zip(layout.mesh.ranks, layout.storage.entry_of, strict=True):
                for buffer in layout.storage.entries[entry]:
                    found = [_tile(tile, tensor.shape) for tile in buffer.tiles]
                    empty = np.zeros(0, dtype=np.int64)
                    elements = np.concatenate([each for each, _ in found] or [empty])
                    places = np.concatenate([each for _, each in found] or [empty])
                    key = (names[buffer.buffer], buffer.at)
                    yield Part(number, rank, key, buffer.shape, dtype, elements, places)


def _tile(tile: Any, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    elements, places = [], []
    for index in np.ndindex(*tile.box.shape):
        number, place = 0, tile.offset
        for size, lo, at, stride in zip(shape, tile.box.lo, index, tile.strides, strict=True):
            number = number * size + lo + at
            place += at * stride
        elements.append(number)
        places.append(place)
    return np.array(elements, dtype=np.int64), np.array(places, dtype=np.int64)


def random_bits(generator: np.random.Generator, count: int, bits: int) -> NDArray[np.uint8]:
    """Random elements: rows of bytes, or of bits below eight bits."""
    if bits < 8:
        return generator.integers(0, 2, (count, bits), dtype=np.uint8)
    return generator.integers(0, 256, (count, bits // 8), dtype=np.uint8)


def cast(rows: NDArray[np.uint8], src: str, dst: str) -> NDArray[np.uint8]:
    """Elements as torch converts them."""
    if src == dst or not len(rows):
        return np.zeros((len(rows), DTYPE_BITS[dst] // 8), dtype=np.uint8) if src != dst else rows
    given = torch.from_numpy(rows.reshape(-1).copy()).view(getattr(torch, src))
    made = given.to(getattr(torch, dst)).view(torch.uint8).numpy()
    return made.reshape(len(rows), DTYPE_BITS[dst] // 8)


def contents(spec: rp.ReshardSpec, seed: int) -> list[NDArray[np.uint8]]:
    """Elements of every tensor, in the type that sources have."""
    generator = np.random.default_rng(seed)
    return [random_bits(generator, prod(tensor.shape), DTYPE_BITS[tensor.dtype]) for tensor in spec.tensors]


def buffers(
    spec: rp.ReshardSpec, side: str, seed: int = 0, padding: int | None = None, only: Any = None
) -> Buffers:
    """What every local buffer of one side contains.

    Args:
        spec: the spec.
        side: which side.
        seed: of the tensors' contents, and of the padding's.
        padding: value of every byte that belongs to no element; random when None.
        only: positions of the tensors that are there; the places of others count as padding. All when None.
    """
    values = contents(spec, seed)
    generator = np.random.default_rng(seed + 1)
    rows: dict[tuple[int, str, int], NDArray[np.uint8]] = {}
    kinds: dict[tuple[int, str, int], tuple[tuple[int, ...], str]] = {}
    for part in parts(spec, side):
        key = (part.rank, *part.key)
        bits = DTYPE_BITS[part.dtype]
        if key not in rows:
            kinds[key] = part.shape, part.dtype
            rows[key] = random_bits(generator, prod(part.shape), bits)
            if padding is not None:
                byte = np.unpackbits(np.array([padding], dtype=np.uint8), bitorder="little")
                flat = np.resize(byte, rows[key].size) if bits < 8 else np.full(rows[key].size, padding)
                rows[key] = flat.astype(np.uint8).reshape(rows[key].shape)
        assert kinds[key] == (part.shape, part.dtype)
        if only is None or part.tensor in only:
            tensor = spec.tensors[part.tensor]
            made = cast(values[part.tensor], tensor.dtype, part.dtype)
            rows[key][part.places] = made[part.elements]
    found: dict[int, dict[str, dict[int, NDArray[Any]]]] = {}
    for (rank, name, at), filled in rows.items():
        shape, dtype = kinds[rank, name, at]
        found.setdefault(rank, {}).setdefault(name, {})[at] = _array(filled, shape, DTYPE_BITS[dtype])
    return {
        rank: {name: [arrays[at] for at in sorted(arrays)] for name, arrays in by_name.items()}
        for rank, by_name in found.items()
    }


def _array(rows: NDArray[np.uint8], shape: tuple[int, ...], bits: int) -> NDArray[Any]:
    if bits < 8:
        flat = np.packbits(rows.reshape(-1), bitorder="little")
        return flat.view("V1").reshape(*shape[:-1], shape[-1] * bits // 8)
    return np.ascontiguousarray(rows).reshape(-1).view(f"V{bits // 8}").reshape(shape)


def buffer_dtypes(spec: rp.ReshardSpec, side: str) -> dict[tuple[int, str], str]:
    """Element types by rank and name of the buffer."""
    return {(part.rank, part.key[0]): part.dtype for part in parts(spec, side)}


def assert_equal(spec: rp.ReshardSpec, found: Any, wanted: Buffers) -> None:
    """Compare destination buffers byte by byte; where tensors are converted, a NaN may be any other one."""
    dtypes = buffer_dtypes(spec, "dst")
    converts = any(tensor.dtype != tensor.dst_dtype for tensor in spec.tensors)
    for rank, by_name in wanted.items():
        for name, arrays in by_name.items():
            for number, (have, want) in enumerate(zip(found[rank][name], arrays, strict=True)):
                where = (rank, name, number)
                assert have.shape == want.shape, where
                if have.tobytes() == want.tobytes():
                    continue
                assert converts, where
                assert same_numbers(have.tobytes(), want.tobytes(), dtypes[rank, name]), where


def same_numbers(one: bytes, two: bytes, dtype: str) -> bool:
    """Whether bits are equal but for those of NaNs."""
    kind, width = getattr(torch, dtype), DTYPE_BITS[dtype] // 8
    raw = [np.frombuffer(each, dtype=np.uint8) for each in (one, two)]
    nans = [torch.from_numpy(each.copy()).view(kind).to(torch.float32).isnan().numpy() for each in raw]
    equal = (raw[0].reshape(-1, width) == raw[1].reshape(-1, width)).all(axis=1)
    return bool((equal | (nans[0] & nans[1])).all())
