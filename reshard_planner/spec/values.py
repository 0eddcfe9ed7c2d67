"""The values of a spec: tensors, options, and both with a topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from reshard_planner.dtypes import DTYPE_BITS, canonical_dtype, is_castable, wire_dtype
from reshard_planner.errors import (
    DtypeMismatchError,
    InputError,
    LayoutError,
    ShapeMismatchError,
    SpecError,
    UnsupportedError,
)
from reshard_planner.layout import Layout, Storage, Tiling
from reshard_planner.topology import Ports, Topology

Side = Literal["src", "dst"]

SIDES: tuple[Side, Side] = ("src", "dst")
"""Before and after."""

MAX_NBYTES = 2**56
"""Most bytes that all ranks together may receive: sums of bytes, and bits, are 64-bit integers."""

MAX_LAG = 1024
"""Largest lag: offsets are 32-bit integers, and trees may be thousands of transfers deep."""

MAX_PEERS = 2**20
"""Largest limit of peers: there are fewer ranks."""

MAX_DIMS = 16
"""Most dimensions of a tensor: atoms are laid out on an array of as many."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor and its layouts on both sides.

    Attributes:
        name: unique within the spec.
        shape: global shape, in elements.
        dtype: torch's name of the element type before.
        src: layouts that hold the tensor before; several layouts are copies of the same tensor.
        dst: layouts that must hold it after: each the whole tensor, or what its storage says.
        dst_dtype: torch's name of the element type after; elements are converted where it is another one.
        src_buffers: per layout of ``src``, the names of the local buffers that its storage numbers; the
            tensor's own name without storage.
        dst_buffers: likewise for ``dst``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    src: tuple[Layout, ...]
    dst: tuple[Layout, ...]
    dst_dtype: str
    src_buffers: tuple[tuple[str, ...], ...]
    dst_buffers: tuple[tuple[str, ...], ...]

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        src: Layout | Sequence[Layout],
        dst: Layout | Sequence[Layout],
        *,
        dst_shape: Sequence[int] | None = None,
        dst_dtype: str | None = None,
        cast: bool = False,
        src_buffers: Sequence[Sequence[str]] | None = None,
        dst_buffers: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Check and normalise one tensor.

        Args:
            name: unique within the spec.
            shape: global shape, in elements.
            dtype: torch's name of the element type; a leading ``torch.`` is dropped.
            src: one layout or several.
            dst: one layout or several.
            dst_shape: what the destination believes the shape to be; must be equal.
            dst_dtype: element type of the destination; another one than ``dtype`` needs ``cast``.
            cast: whether to convert between the two dtypes.
            src_buffers: names of local buffers per layout of ``src``; the tensor's name where there are none.
            dst_buffers: likewise for ``dst``.

        Raises:
            SpecError: for an empty name, a negative size or an unknown dtype.
            LayoutError: if a layout does not fit the shape.
            ShapeMismatchError: if the two sides differ in shape.
            DtypeMismatchError: if the two sides differ in dtype and ``cast`` is not set.
            UnsupportedError: for a cast of other than floating-point types, or a sub-byte dtype cut within a
                byte.
        """
        if not isinstance(name, str) or not name:
            raise SpecError(f"tensor name is {name!r}; expected a non-empty string")
        sizes = tuple(shape)
        if len(sizes) > MAX_DIMS:
            raise SpecError(
                f"tensor {name!r}: shape has {len(sizes)} dimensions; expected at most {MAX_DIMS}"
            )
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise SpecError(
                    f"tensor {name!r}: shape {list(sizes)} has the size {size!r}; expected 0 or more"
                )
        kind = canonical_dtype(dtype)
        if prod(size for size in sizes if size) * DTYPE_BITS[kind] // 8 > MAX_NBYTES:
            raise SpecError(
                f"tensor {name!r}: shape {list(sizes)} of {kind} is larger than {MAX_NBYTES} bytes"
            )
        if dst_shape is not None and tuple(dst_shape) != sizes:
            raise ShapeMismatchError(
                f"tensor {name!r}: source shape {list(sizes)} differs from destination shape"
                f" {list(dst_shape)}; expected equal shapes"
            )
        final = kind if dst_dtype is None else canonical_dtype(dst_dtype)
        if final != kind:
            if not cast:
                raise DtypeMismatchError(
                    f"tensor {name!r}: source dtype {kind} differs from destination dtype {final}; set cast:"
                    " true to convert, or make them equal"
                )
            if not is_castable(kind, final):
                raise UnsupportedError(
                    f"tensor {name!r}: cast from {kind} to {final}; expected two real floating-point types"
                )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", kind)
        object.__setattr__(self, "dst_dtype", final)
        for side, given, names in (("src", src, src_buffers), ("dst", dst, dst_buffers)):
            layouts = (given,) if isinstance(given, Layout) else tuple(given)
            normal = _checked(name, side, layouts, sizes, kind)
            object.__setattr__(self, side, normal)
            object.__setattr__(self, f"{side}_buffers", _named(name, side, normal, names))

    @property
    def wire_dtype(self) -> str:
        """The element type in which the tensor travels, and in which its bytes are counted."""
        return wire_dtype(self.dtype, self.dst_dtype)

    @property
    def bits(self) -> int:
        """Bits of one element on its way."""
        return DTYPE_BITS[self.wire_dtype]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor on its way, in bytes."""
        return prod(self.shape) * self.bits // 8

    @property
    def geometry(self) -> tuple[tuple[int, ...], int, tuple[Layout, ...], tuple[Layout, ...]]:
        """What routes depend on: tensors with equal ones are moved alike."""
        return self.shape, self.bits, self.src, self.dst

    def side_dtype(self, side: Side) -> str:
        """The element type on one side."""
        return self.dtype if side == "src" else self.dst_dtype

    def buffers(self, side: Side) -> tuple[tuple[str, ...], ...]:
        """Names of local buffers on one side, per layout."""
        return self.src_buffers if side == "src" else self.dst_buffers

    def layouts(self, side: Side) -> tuple[Layout, ...]:
        """The layouts of one side."""
        return self.src if side == "src" else self.dst

    def tilings(self, side: Side) -> tuple[Tiling, ...]:
        """Who stores what on one side, one tiling per layout."""
        return tuple(layout.tiling(self.shape) for layout in self.layouts(side))


def _checked(
    name: str, side: str, layouts: tuple[Layout, ...], shape: tuple[int, ...], dtype: str
) -> tuple[Layout, ...]:
    if not layouts:
        raise SpecError(f"tensor {name!r}: {side} has no layout; expected at least one")
    step = byte_step(DTYPE_BITS[dtype])
    normal = []
    for layout in layouts:
        try:
            normal.append(layout.normalized(len(shape)))
            tiling = normal[-1].tiling(shape)
        except LayoutError as error:
            raise type(error)(f"tensor {name!r}, {side}: {error}") from None
        if step > 1:
            cuts = tiling.cuts(len(shape) - 1) if shape else set()
            bad = next((cut for cut in sorted(cuts or {1} if not shape else cuts) if cut % step), None)
            if bad is not None:
                raise UnsupportedError(
                    f"tensor {name!r}, {side}: dtype {dtype} is cut at element {bad} of its last dimension,"
                    f" within a byte; expected cuts at multiples of {step}"
                )
            if layout.storage is not None and not _whole_bytes(layout.storage, step):
                raise UnsupportedError(
                    f"tensor {name!r}, {side}: storage of dtype {dtype} does not keep rows in whole bytes;"
                    f" expected offsets, strides, rows and bounds of boxes at multiples of {step}, and 1 as"
                    " the last stride"
                )
    return tuple(normal)


def _whole_bytes(storage: Storage, step: int) -> bool:
    """Whether rows of all tiles begin at whole bytes and have no gaps."""
    return all(
        tile.strides[-1] == 1
        and not any(number % step for number in (tile.offset, *tile.strides[:-1], buffer.shape[-1]))
        and not any(bound % step for bound in (tile.box.lo[-1], tile.box.hi[-1]))  # also where boxes join
        for entry in storage.entries
        for buffer in entry
        for tile in buffer.tiles
    )


def _named(
    name: str, side: str, layouts: tuple[Layout, ...], given: Sequence[Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    """Names of the local buffers of every layout."""
    names = [(name,)] * len(layouts) if given is None else [tuple(each) or (name,) for each in given]
    if len(names) != len(layouts):
        raise SpecError(
            f"tensor {name!r}: names of buffers are given for {len(names)} layouts of {side}; it has"
            f" {len(layouts)}"
        )
    for layout, own in zip(layouts, names, strict=True):
        for each in own:
            if not isinstance(each, str) or not each:
                raise SpecError(
                    f"tensor {name!r}, {side}: buffer name is {each!r}; expected a non-empty string"
                )
        used = 1
        if layout.storage is not None:
            buffers = (buffer.buffer for entry in layout.storage.entries for buffer in entry)
            used = max(buffers, default=-1) + 1
        if len(own) < used or len(set(own)) != len(own) or (layout.storage is None and len(own) > 1):
            raise SpecError(
                f"tensor {name!r}, {side}: buffers are named {list(own)}; expected {used} distinct"
                f" name{'s' * (used > 1)}"
            )
    return tuple(names)


def byte_step(bits: int) -> int:
    """Least number of neighbouring elements that fill whole bytes, for an element of ``bits`` bits."""
    step = 1
    while step * bits % 8:
        step *= 2
    return step


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile.

    Attributes:
        strategy: name of a routing strategy.
        staging_nbytes: memory that each rank may use for staging buffers and scratch.
        lag: slots between a transfer and the one that forwards its bytes.
        min_message_nbytes: size below which rounds do not cut a message further.
        max_peers_per_slot: ranks that a rank may exchange messages with in a slot, sent and received
            together, where pieces allow it.
        max_network_peers: ranks that a rank may exchange bytes with over the network in the whole plan.
        max_nvlink_peers: the same over NVLink.
        proxies: whether ranks that neither hold nor need bytes lend their NICs: ``auto`` where the plan is
            otherwise more than 2 % above T*, ``off`` only for ranks that have no NIC.
        rails: whether pairs of one rail are preferred where that costs nothing: ``prefer`` or ``ignore``.
    """

    strategy: str = "optimal"
    staging_nbytes: int = 256 * 2**20
    lag: int = 2
    min_message_nbytes: int = 4 * 2**20
    max_peers_per_slot: int = 32
    max_network_peers: int = MAX_PEERS
    max_nvlink_peers: int = MAX_PEERS
    proxies: Literal["auto", "off"] = "auto"
    rails: Literal["prefer", "ignore"] = "prefer"

    def __post_init__(self) -> None:
        for key, most in (
            ("staging_nbytes", MAX_NBYTES),
            ("lag", MAX_LAG),
            ("min_message_nbytes", MAX_NBYTES),
            ("max_peers_per_slot", MAX_PEERS),
            ("max_network_peers", MAX_PEERS),
            ("max_nvlink_peers", MAX_PEERS),
        ):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                field_name = f"options.{key.removesuffix('_nbytes')}"
                raise SpecError(f"{field_name} is {value!r}; expected an integer from 1 to {most}")
        if self.proxies not in ("auto", "off"):
            raise SpecError(f"options.proxies is {self.proxies!r}; expected auto or off")
        if self.rails not in ("prefer", "ignore"):
            raise SpecError(f"options.rails is {self.rails!r:.40}; expected prefer or ignore")


@dataclass(frozen=True, slots=True)
class ReshardSpec:
    """Everything that a plan is compiled from.

    Attributes:
        tensors: with distinct names.
        topology: holds every rank of the tensors' meshes; domains of 8 GPUs when None is given.
        options: how to compile.
    """

    tensors: tuple[TensorSpec, ...]
    topology: Topology
    options: Options = field(default_factory=Options)
    _ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        tensors: Iterable[TensorSpec],
        topology: Topology | None = None,
        options: Options | None = None,
    ) -> None:
        """Combine tensors with a topology and options.

        Raises:
            SpecError: if two tensors have the same name.
            TopologyError: if a rank has no GPU in the topology.
        """
        members = tuple(tensors)
        names: set[str] = set()
        for tensor in members:
            if tensor.name in names:
                raise SpecError(f"tensor name {tensor.name!r} is used twice; expected distinct names")
            names.add(tensor.name)
        object.__setattr__(self, "tensors", members)
        meshes = {layout.mesh for tensor in members for layout in (*tensor.src, *tensor.dst)}
        object.__setattr__(self, "_ranks", tuple(sorted({rank for mesh in meshes for rank in mesh.ranks})))
        moved = sum(tensor.nbytes for tensor in members) * max(1, len(self.ranks))
        if moved > MAX_NBYTES:
            raise SpecError(
                f"the tensors have {sum(tensor.nbytes for tensor in members)} bytes for"
                f" {len(self.ranks)} ranks; expected at most {MAX_NBYTES} bytes on all ranks together"
            )
        if topology is None:
            topology = Topology.uniform(max(self.ranks, default=0) + 1, 8)
        object.__setattr__(self, "topology", topology)
        object.__setattr__(self, "options", Options() if options is None else options)
        self._check_ranks()
        from reshard_planner.spec.sharing import check_buffers  # noqa: PLC0415 - it is made of tensors

        check_buffers(members)

    def _check_ranks(self) -> None:
        Ports.of(self.topology, self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of all meshes, ascending."""
        return self._ranks

    def with_options(self, **changes: Any) -> ReshardSpec:
        """This spec with some options changed."""
        return ReshardSpec(self.tensors, self.topology, replace(self.options, **changes))

    @classmethod
    def load(cls, path: str | Path) -> ReshardSpec:
        """Read a YAML or JSON file; see :func:`reshard_planner.spec.file.load_spec`.

        Raises:
            InputError: naming the field that is wrong.
        """
        from reshard_planner.spec.file import load_spec  # noqa: PLC0415 - YAML is slow to import

        return load_spec(Path(path))

    def tensor(self, name: str) -> TensorSpec:
        """The tensor of this name.

        Raises:
            InputError: if there is none.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise InputError(f"tensor {name!r} is not in the spec, which has {len(self.tensors)} tensors")
