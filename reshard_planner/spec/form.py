"""Specs as plain data, in the shape that spec files and plan headers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reshard_planner.dtypes import canonical_dtype
from reshard_planner.errors import InputError, LayoutError, SpecError
from reshard_planner.forms import convert
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.layout import Layout, Mesh, Storage
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.spec.storageform import (
    StorageForm,
    layout_storage,
    shared_storage,
    storage_to_dict,
)
from reshard_planner.spec.values import SIDES, Options, ReshardSpec, TensorSpec
from reshard_planner.topology.form import from_form

T = TypeVar("T")

VERSION = 1
"""Version of the spec format."""


class MeshForm(msgspec.Struct, forbid_unknown_fields=True):
    """Ranks as text ranges or a (nested) list; axes as names, or as a mapping of names to sizes."""

    ranks: str | list[Any]
    axes: dict[str, int] | list[str] | None = None


class LayoutForm(msgspec.Struct, forbid_unknown_fields=True):
    """One layout of one side of a tensor, by placements, storage or both.

    Storage is spelled out, or the name of one of the spec's ``storages``, whose buffers are named beside it.
    """

    mesh: str
    placements: list[str] | None = None
    shape: list[int] | None = None
    dtype: str | None = None
    storage: str | list[StorageForm] | None = None
    buffers: list[str] | None = None


class TensorForm(msgspec.Struct, forbid_unknown_fields=True):
    """One tensor."""

    name: str
    src: dict[str, Any] | list[dict[str, Any]]
    dst: dict[str, Any] | list[dict[str, Any]]
    shape: list[int] | None = None
    dtype: str | None = None
    cast: bool = False


class OptionsForm(msgspec.Struct, forbid_unknown_fields=True):
    """Options; sizes as integers or as text such as 256MiB."""

    strategy: str = "optimal"
    staging: int | str = Options().staging_nbytes
    lag: int = Options().lag
    min_message: int | str = Options().min_message_nbytes
    max_peers_per_slot: int = Options().max_peers_per_slot
    max_network_peers: int = Options().max_network_peers
    max_nvlink_peers: int = Options().max_nvlink_peers
    proxies: Any = Options().proxies  # YAML reads a bare off as false
    rails: Any = Options().rails


class SpecForm(msgspec.Struct, forbid_unknown_fields=True):
    """A whole spec."""

    version: int
    meshes: dict[str, Any]
    tensors: list[dict[str, Any]]
    topology: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    storages: dict[str, Any] | None = None


def spec_from_dict(raw: object, base: Path | None = None) -> ReshardSpec:
    """Build a spec from plain data.

    Args:
        raw: the mapping, as parsed from YAML or JSON.
        base: folder that a topology ``file`` is relative to; the current one when None.

    Raises:
        InputError: naming the field's path and value.
    """
    form = convert(raw, SpecForm, "")
    if form.version != VERSION:
        raise SpecError(f"version is {form.version}; expected {VERSION}")
    known = _Known(
        {name: _mesh(mesh, f"meshes.{name}") for name, mesh in form.meshes.items()},
        {name: shared_storage(each, f"storages.{name}") for name, each in (form.storages or {}).items()},
    )
    tensors = [_tensor(tensor, known, f"tensors[{index}]") for index, tensor in enumerate(form.tensors)]
    topology = None
    if form.topology is not None:
        used = {layout.mesh for tensor in tensors for layout in (*tensor.src, *tensor.dst)}
        ranks = max((rank for mesh in used for rank in mesh.ranks), default=0) + 1
        topology = from_form(form.topology, ranks, base or Path())
    return ReshardSpec(tensors, topology, _options(form.options))


class _Known:
    """What layouts refer to by name; equal layouts are one value."""

    def __init__(self, meshes: dict[str, Mesh], storages: dict[str, Storage]) -> None:
        self.meshes, self.storages = meshes, storages
        self.layouts: dict[tuple[str, tuple[str, ...], str | None], Layout] = {}


def _mesh(raw: object, path: str) -> Mesh:
    form = convert(raw, MeshForm, path)
    try:
        ranks = parse_ints(form.ranks) if isinstance(form.ranks, str) else form.ranks
    except ValueError as error:
        raise SpecError(f"{path}.ranks: {error}") from None
    try:
        return _shaped(ranks, form.axes)
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from None


def _shaped(ranks: list[Any], axes: dict[str, int] | list[str] | None) -> Mesh:
    """A mesh whose shape comes from the nesting of its ranks or from the sizes of its axes."""
    if not isinstance(axes, dict):
        return Mesh(ranks, axes)
    sizes = list(axes.values())
    if any(size < 1 for size in sizes):
        raise LayoutError(f"axes {axes} have a size below 1")
    nested = Mesh(ranks)
    if nested.ndim == 1:
        return Mesh(ranks, list(axes), sizes)
    if list(nested.shape) != sizes:
        raise LayoutError(f"axes {axes} differ from the shape {list(nested.shape)} of the nested ranks")
    return Mesh(ranks, list(axes))


def _tensor(raw: object, known: _Known, path: str) -> TensorSpec:
    form = convert(raw, TensorForm, path)
    outer_dtype = _dtype(form.dtype, f"{path}.dtype")
    layouts: dict[str, list[Layout]] = {"src": [], "dst": []}
    buffers: dict[str, list[tuple[str, ...]]] = {"src": [], "dst": []}
    shapes: dict[str, list[int] | None] = {}
    dtypes: dict[str, str | None] = {}
    for side, found in layouts.items():
        given = getattr(form, side)
        for index, entry in enumerate(given if isinstance(given, list) else [given]):
            where = f"{path}.{side}[{index}]" if isinstance(given, list) else f"{path}.{side}"
            layout = convert(entry, LayoutForm, where)
            one, names = _layout(layout, known, where)
            found.append(one)
            buffers[side].append(names or (form.name,))
            dtype = _dtype(layout.dtype, f"{where}.dtype")
            _agree(shapes, side, form.shape if layout.shape is None else layout.shape, f"{where}.shape")
            _agree(dtypes, side, dtype or outer_dtype, f"{where}.dtype")
    for name, outer, sides in (("shape", form.shape, shapes), ("dtype", outer_dtype, dtypes)):
        if outer is not None and sides and outer not in sides.values():
            raise SpecError(f"{path}.{name} is {outer!r}, but both sides say {sides['src']!r}")
    shape, dtype = shapes.get("src", form.shape), dtypes.get("src", outer_dtype)
    if shape is None or dtype is None:
        missing = "shape" if shape is None else "dtype"
        raise SpecError(f"{path} lacks the field {missing!r}")
    try:
        return TensorSpec(
            form.name,
            shape,
            dtype,
            layouts["src"],
            layouts["dst"],
            dst_shape=shapes.get("dst"),
            dst_dtype=dtypes.get("dst"),
            cast=form.cast,
            src_buffers=buffers["src"],
            dst_buffers=buffers["dst"],
        )
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None


def _dtype(text: str | None, path: str) -> str | None:
    try:
        return None if text is None else canonical_dtype(text)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def _agree(sides: dict[str, T | None], side: str, says: T | None, path: str) -> None:
    """Note the shape or dtype of a side; all of its layouts must say the same."""
    known = sides.setdefault(side, says)
    if known != says:
        raise SpecError(f"{path} is {says!r}, but another layout of the same side says {known!r}")


def _layout(form: LayoutForm, known: _Known, path: str) -> tuple[Layout, tuple[str, ...]]:
    """A layout, and the names of its buffers; none for one buffer of the tensor's name."""
    if form.mesh not in known.meshes:
        names = ", ".join(known.meshes) or "none"
        raise SpecError(f"{path}.mesh is {form.mesh!r}; expected one of the meshes ({names})")
    if form.placements is None and form.storage is None:
        raise SpecError(f"{path} lacks the field 'placements'; expected it, or storage")
    mesh = known.meshes[form.mesh]
    storage, buffers = None, tuple(form.buffers or ())
    if isinstance(form.storage, str):
        if form.storage not in known.storages:
            names = ", ".join(known.storages) or "none"
            raise SpecError(f"{path}.storage is {form.storage!r}; expected one of the storages ({names})")
        storage = known.storages[form.storage]
    elif form.storage is not None:
        if form.buffers is not None:
            raise SpecError(f"{path} has the field 'buffers'; expected names in its storage only")
        storage, buffers = layout_storage(form.storage, mesh, f"{path}.storage")
    placements = tuple(_rejoin(form.placements or []))
    shared = form.storage if isinstance(form.storage, str) else None
    key = (form.mesh, placements, shared)
    if key in known.layouts and (storage is None or shared):
        return known.layouts[key], buffers
    try:
        layout = Layout(mesh, placements, storage)
    except LayoutError as error:
        field = f"{path}.placements" if storage is None else path
        raise type(error)(f"{field}: {error}") from None
    if storage is None or shared:
        known.layouts[key] = layout
    return layout, buffers


def _rejoin(placements: list[str]) -> list[str]:
    """Undo the split of an unquoted ``_S(0, sf=2)`` at its comma by a YAML flow list."""
    joined: list[str] = []
    for text in placements:
        if joined and joined[-1].count("(") > joined[-1].count(")"):
            joined[-1] += "," + text
        else:
            joined.append(text)
    return joined


def _options(raw: object) -> Options:
    if raw is None:
        return Options()
    form = convert(raw, OptionsForm, "options")
    return Options(
        form.strategy,
        parse_nbytes(form.staging, "options.staging"),
        form.lag,
        parse_nbytes(form.min_message, "options.min_message"),
        form.max_peers_per_slot,
        form.max_network_peers,
        form.max_nvlink_peers,
        "off" if form.proxies is False else form.proxies,
        form.rails,
    )


def spec_to_dict(spec: ReshardSpec) -> dict[str, Any]:
    """The spec as plain data that :func:`spec_from_dict` reads back; meshes are named m0, m1, ..."""
    names: dict[Mesh, str] = {}
    storages: dict[Storage, str] = {}
    for tensor in spec.tensors:
        for layout in (*tensor.src, *tensor.dst):
            names.setdefault(layout.mesh, f"m{len(names)}")
            if layout.storage is not None:
                storages.setdefault(layout.storage, f"s{len(storages)}")
    return {
        "version": VERSION,
        "meshes": {
            name: {"ranks": format_ints(mesh.ranks), "axes": dict(zip(mesh.axes, mesh.shape, strict=True))}
            for mesh, name in names.items()
        },
        **(
            {"storages": {name: storage_to_dict(each) for each, name in storages.items()}} if storages else {}
        ),
        "tensors": [_plain_tensor(tensor, names, storages) for tensor in spec.tensors],
        "topology": spec.topology.to_dict(),
        "options": {
            "strategy": spec.options.strategy,
            "staging": spec.options.staging_nbytes,
            "lag": spec.options.lag,
            "min_message": spec.options.min_message_nbytes,
            "max_peers_per_slot": spec.options.max_peers_per_slot,
            "max_network_peers": spec.options.max_network_peers,
            "max_nvlink_peers": spec.options.max_nvlink_peers,
            "proxies": spec.options.proxies,
            **({"rails": spec.options.rails} if spec.options.rails != Options().rails else {}),
        },
    }


def _plain_tensor(
    tensor: TensorSpec, meshes: dict[Mesh, str], storages: dict[Storage, str]
) -> dict[str, Any]:
    converted = tensor.dst_dtype != tensor.dtype
    plain: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape)}
    plain |= {"cast": True} if converted else {"dtype": tensor.dtype}
    for side in SIDES:
        plain[side] = []
        for layout, names in zip(tensor.layouts(side), tensor.buffers(side), strict=True):
            entry: dict[str, Any] = {"mesh": meshes[layout.mesh]}
            if layout.placements or layout.storage is None:
                entry["placements"] = list(map(str, layout.placements))
            if layout.storage is not None:
                entry["storage"] = storages[layout.storage]
            if names != (tensor.name,):
                entry["buffers"] = list(names)
            if converted:
                entry["dtype"] = tensor.side_dtype(side)
            plain[side].append(entry)
    return plain
