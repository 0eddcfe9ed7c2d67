"""Headers of safetensors files: which tensors a checkpoint has, without reading one of them.

A file begins with eight bytes, the length of its header as a little-endian number. The header is JSON: for
every tensor its dtype, its shape, and its first byte and the one past its last within the data that follows.
The data has no gaps and no overlaps. An index lists the file of every tensor of a checkpoint of many files.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final, TypeGuard

import msgspec

from reshard_planner.document import parse_document, read_document
from reshard_planner.dtypes import DTYPE_BITS, SAFETENSORS_DTYPES
from reshard_planner.errors import ModelError, SpecError

MAX_HEADER_NBYTES: Final = 100_000_000
"""Largest header that the format allows."""

LENGTH_NBYTES: Final = 8
"""Bytes of the length of the header."""

METADATA: Final = "__metadata__"
"""Entry of a header that is no tensor."""

INDEX_NAME: Final = "model.safetensors.index.json"


class Entry(msgspec.Struct, gc=False):
    """A tensor as libraries write it into a header, field by field in this order."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header of its file lists it.

    Attributes:
        file: name of the file, for messages.
        shape: in elements.
        dtype: torch's name of the element type.
        nbytes: its size in the file.
    """

    file: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


def read_checkpoint(path: Path) -> Mapping[str, Tensor]:
    """Tensors of a checkpoint, by name, in the order of their names.

    Args:
        path: a safetensors file, an index, or a folder with either.

    Raises:
        ModelError: if a file is missing, damaged, or contradicts itself, its size, or the index.
    """
    if path.is_dir():
        if (path / INDEX_NAME).exists():
            return _read_index(path / INDEX_NAME)
        return _joined(sorted(path.glob("*.safetensors")))
    return _joined([path]) if path.suffix == ".safetensors" else _read_index(path)


def _joined(paths: list[Path]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in read_header(path).items():
            if name in found:
                raise ModelError(f"tensor {name!r} is in {found[name].file} and in {path}; expected one file")
            found[name] = tensor
    return dict(sorted(found.items()))


def _read_index(path: Path) -> dict[str, Tensor]:
    try:
        index = read_document(path)
    except SpecError as error:
        raise ModelError(str(error)) from None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{path} has no mapping weight_map; expected the file name of every tensor")
    for name, file in files.items():
        # a name with folders could lead anywhere on this machine
        if not isinstance(file, str) or file in {"", ".", ".."} or "/" in file or "\\" in file:
            raise ModelError(
                f"{path}: the file of {name!r} is {file!r}; expected the name of a file beside it"
            )
    found: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        tensors = read_header(path.parent / file)
        for name, tensor in tensors.items():
            if files.get(name) != file:
                said = f"has it in {files[name]!r}" if name in files else "lacks it"
                raise ModelError(f"{path.parent / file} has the tensor {name!r}; {path.name} {said}")
            found[name] = tensor
    for name, file in files.items():
        if name not in found:
            raise ModelError(f"{path}: {name!r} is in {file!r}, but that file has no such tensor")
    _check_total(index, found, path)
    return dict(sorted(found.items()))


def _check_total(index: Any, found: Mapping[str, Tensor], path: Path) -> None:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    nbytes = sum(tensor.nbytes for tensor in found.values())
    if total is not None and total != nbytes:
        raise ModelError(f"{path}: metadata.total_size is {total!r}; its tensors have {nbytes} bytes")


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors of one safetensors file, by name.

    Raises:
        ModelError: if the file cannot be read, is no safetensors file, or its tensors do not fill its data.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"cannot read {path}: it is not a regular file")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_NBYTES), "little")
            rest = status.st_size - LENGTH_NBYTES
            if rest < 0:
                raise ModelError(f"{path} has {status.st_size} bytes; expected at least {LENGTH_NBYTES}")
            if length > min(rest, MAX_HEADER_NBYTES):
                raise ModelError(
                    f"{path}: its header has {length} bytes; expected at most {min(rest, MAX_HEADER_NBYTES)}"
                )
            text = file.read(length)
        header = _decoded(text)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: its header is not text in UTF-8; expected JSON") from None
    except ValueError as error:  # a name that no file can have
        raise ModelError(f"cannot read {str(path)!r}: {error}") from None
    except SpecError as error:
        raise ModelError(f"{path}: its header is {error}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: its header is {header!r:.40}; expected a mapping of tensors")
    entries = {name: _entry(path, name, raw) for name, raw in header.items() if name != METADATA}
    _check_cover(path, entries, rest - length)
    return {name: tensor for name, (tensor, _) in entries.items()}


def _decoded(text: bytes) -> object:
    """The content of a header, whose values are entries where it is what libraries write.

    Large checkpoints have half a million tensors, so those are read by a fast decoder. It keeps the last of
    two equal names, which the text that it gives back shows; whatever differs is read by the careful one.

    Raises:
        SpecError: if it is not well-formed, or gives a field twice.
        UnicodeDecodeError: if it is not UTF-8.
    """
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        entries: dict[str, object] = {
            name: value if name == METADATA else msgspec.json.decode(value, type=Entry)
            for name, value in raw.items()
        }
        if msgspec.json.encode(entries) == text.rstrip(b" "):
            return entries
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return parse_document(text.decode("utf-8"), is_json=True)


def _entry(path: Path, name: str, raw: object) -> tuple[Tensor, tuple[int, int]]:
    entry = raw if isinstance(raw, Entry) else _checked(raw, f"{path}: tensor {name!r}")
    dtype = SAFETENSORS_DTYPES.get(entry.dtype)
    if dtype is None:
        known = ", ".join(SAFETENSORS_DTYPES)
        raise ModelError(f"{path}: tensor {name!r} has dtype {entry.dtype!r}; expected one of {known}")
    start, stop = entry.data_offsets
    nbytes = prod(entry.shape) * DTYPE_BITS[dtype] // 8
    if stop - start != nbytes:
        raise ModelError(
            f"{path}: tensor {name!r} has data_offsets {start} to {stop}; expected {nbytes} bytes for"
            f" {entry.dtype} and {entry.shape}"
        )
    return Tensor(path.name, tuple(entry.shape), dtype, nbytes), entry.data_offsets


def _checked(raw: object, where: str) -> Entry:
    if not isinstance(raw, dict):
        raise ModelError(f"{where} is {raw!r:.40}; expected a mapping of dtype, shape and data_offsets")
    label, shape, offsets = raw.get("dtype"), raw.get("shape"), raw.get("data_offsets")
    if not isinstance(label, str):
        raise ModelError(f"{where} has dtype {label!r:.40}; expected one of {', '.join(SAFETENSORS_DTYPES)}")
    if not _naturals(shape):
        raise ModelError(f"{where} has shape {shape!r:.80}; expected a list of whole numbers of at least 0")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ModelError(f"{where} has data_offsets {offsets!r:.80}; expected two whole numbers")
    return Entry(label, shape, (offsets[0], offsets[1]))


def _check_cover(path: Path, entries: Mapping[str, tuple[Tensor, tuple[int, int]]], nbytes: int) -> None:
    """Check that tensors follow each other without a gap, up to the end of the file."""
    end, before = 0, ""
    for name, (_, (start, stop)) in sorted(entries.items(), key=lambda item: item[1][1]):
        if start < end:
            raise ModelError(
                f"{path}: tensor {name!r} begins at byte {start} of the data; {before!r} ends at {end}"
            )
        if start > end:
            raise ModelError(f"{path}: tensor {name!r} begins at byte {start} of the data; expected {end}")
        end, before = stop, name
    if end != nbytes:
        raise ModelError(f"{path} has {nbytes} bytes of data; its tensors have {end}")


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
