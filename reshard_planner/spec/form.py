"""Specs as plain data, in the shape that spec files and plan headers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reshard_planner.dtypes import canonical_dtype
from reshard_planner.errors import InputError, LayoutError, SpecError, UnsupportedError
from reshard_planner.forms import convert
from reshard_planner.intset import format_ints, parse_ints
from reshard_planner.layout import Layout, Mesh
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.spec.values import Options, ReshardSpec, TensorSpec
from reshard_planner.topology.form import from_form

T = TypeVar("T")

VERSION = 1
"""Version of the spec format."""


class MeshForm(msgspec.Struct, forbid_unknown_fields=True):
    """Ranks as text ranges or a (nested) list; axes as names, or as a mapping of names to sizes."""

    ranks: str | list[Any]
    axes: dict[str, int] | list[str] | None = None


class StorageTileForm(msgspec.Struct, forbid_unknown_fields=True):
    """One tile of fused storage."""

    box: list[list[int]]
    offset: int
    strides: list[int]


class StorageForm(msgspec.Struct, forbid_unknown_fields=True):
    """Where the tiles of some ranks lie in a fused local buffer."""

    ranks: str | list[int]
    buffer: str
    shape: list[int]
    tiles: list[StorageTileForm]


class LayoutForm(msgspec.Struct, forbid_unknown_fields=True):
    """One layout of one side of a tensor."""

    mesh: str
    placements: list[str]
    shape: list[int] | None = None
    dtype: str | None = None
    storage: list[StorageForm] | None = None


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


class SpecForm(msgspec.Struct, forbid_unknown_fields=True):
    """A whole spec."""

    version: int
    meshes: dict[str, Any]
    tensors: list[dict[str, Any]]
    topology: dict[str, Any] | None = None
    options: dict[str, Any] | None = None


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
    meshes = {name: _mesh(mesh, f"meshes.{name}") for name, mesh in form.meshes.items()}
    tensors = [_tensor(tensor, meshes, f"tensors[{index}]") for index, tensor in enumerate(form.tensors)]
    topology = None
    if form.topology is not None:
        used = {layout.mesh for tensor in tensors for layout in (*tensor.src, *tensor.dst)}
        ranks = max((rank for mesh in used for rank in mesh.ranks), default=0) + 1
        topology = from_form(form.topology, ranks, base or Path())
    return ReshardSpec(tensors, topology, _options(form.options))


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


def _tensor(raw: object, meshes: dict[str, Mesh], path: str) -> TensorSpec:
    form = convert(raw, TensorForm, path)
    outer_dtype = _dtype(form.dtype, f"{path}.dtype")
    layouts: dict[str, list[Layout]] = {"src": [], "dst": []}
    shapes: dict[str, list[int] | None] = {}
    dtypes: dict[str, str | None] = {}
    for side, found in layouts.items():
        given = getattr(form, side)
        for index, entry in enumerate(given if isinstance(given, list) else [given]):
            where = f"{path}.{side}[{index}]" if isinstance(given, list) else f"{path}.{side}"
            layout = convert(entry, LayoutForm, where)
            found.append(_layout(layout, meshes, where))
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


def _layout(form: LayoutForm, meshes: dict[str, Mesh], path: str) -> Layout:
    if form.mesh not in meshes:
        known = ", ".join(meshes) or "none"
        raise SpecError(f"{path}.mesh is {form.mesh!r}; expected one of the meshes ({known})")
    if form.storage is not None:
        raise UnsupportedError(f"{path}.storage: fused storage is not implemented yet; leave it out")
    try:
        return Layout(meshes[form.mesh], _rejoin(form.placements))
    except LayoutError as error:
        raise type(error)(f"{path}.placements: {error}") from None


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
    )


def spec_to_dict(spec: ReshardSpec) -> dict[str, Any]:
    """The spec as plain data that :func:`spec_from_dict` reads back; meshes are named m0, m1, ..."""
    names: dict[Mesh, str] = {}
    for tensor in spec.tensors:
        for layout in (*tensor.src, *tensor.dst):
            names.setdefault(layout.mesh, f"m{len(names)}")
    return {
        "version": VERSION,
        "meshes": {
            name: {"ranks": format_ints(mesh.ranks), "axes": dict(zip(mesh.axes, mesh.shape, strict=True))}
            for mesh, name in names.items()
        },
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype,
                **{
                    side: [
                        {"mesh": names[layout.mesh], "placements": [str(p) for p in layout.placements]}
                        for layout in layouts
                    ]
                    for side, layouts in (("src", tensor.src), ("dst", tensor.dst))
                },
            }
            for tensor in spec.tensors
        ],
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
        },
    }
