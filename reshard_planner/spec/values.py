"""The values of a spec: tensors, options, and both with a topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from reshard_planner.dtypes import DTYPE_BITS, canonical_dtype
from reshard_planner.errors import (
    DtypeMismatchError,
    InputError,
    LayoutError,
    ShapeMismatchError,
    SpecError,
    UnsupportedError,
)
from reshard_planner.layout import Layout, Partition
from reshard_planner.topology import Ports, Topology

Side = Literal["src", "dst"]

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
        dtype: torch's name of the element type.
        src: layouts that hold the tensor before; several layouts are copies of the same tensor.
        dst: layouts that must hold it after, each whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    src: tuple[Layout, ...]
    dst: tuple[Layout, ...]

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

        Raises:
            SpecError: for an empty name, a negative size or an unknown dtype.
            LayoutError: if a layout does not fit the shape.
            ShapeMismatchError: if the two sides differ in shape.
            DtypeMismatchError: if the two sides differ in dtype and ``cast`` is not set.
            UnsupportedError: for a cast, or a sub-byte dtype cut within a byte.
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
        if dst_dtype is not None and canonical_dtype(dst_dtype) != kind:
            if not cast:
                raise DtypeMismatchError(
                    f"tensor {name!r}: source dtype {kind} differs from destination dtype"
                    f" {canonical_dtype(dst_dtype)}; set cast: true to convert, or make them equal"
                )
            raise UnsupportedError(
                f"tensor {name!r}: cast from {kind} to {canonical_dtype(dst_dtype)} is not implemented yet;"
                " convert before or after the reshard"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", kind)
        for side, given in (("src", src), ("dst", dst)):
            layouts = (given,) if isinstance(given, Layout) else tuple(given)
            object.__setattr__(self, side, _checked(name, side, layouts, sizes, kind))

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return DTYPE_BITS[self.dtype]

    @property
    def nbytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return prod(self.shape) * self.bits // 8

    def layouts(self, side: Side) -> tuple[Layout, ...]:
        """The layouts of one side."""
        return self.src if side == "src" else self.dst

    def partitions(self, side: Side) -> tuple[Partition, ...]:
        """The shards of one side, one partition per layout."""
        return tuple(layout.partition(self.shape) for layout in self.layouts(side))


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
            partition = normal[-1].partition(shape)
        except LayoutError as error:
            raise type(error)(f"tensor {name!r}, {side}: {error}") from None
        if step > 1:
            cuts = {
                bound for dim in partition.shards[-1:] for shard in dim for lo_hi in shard for bound in lo_hi
            }
            bad = next((cut for cut in sorted(cuts or {1} if not shape else cuts) if cut % step), None)
            if bad is not None:
                raise UnsupportedError(
                    f"tensor {name!r}, {side}: dtype {dtype} is cut at element {bad} of its last dimension,"
                    f" within a byte; expected cuts at multiples of {step}"
                )
    return tuple(normal)


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
    """

    strategy: str = "optimal"
    staging_nbytes: int = 256 * 2**20
    lag: int = 2
    min_message_nbytes: int = 4 * 2**20
    max_peers_per_slot: int = 32
    max_network_peers: int = MAX_PEERS
    max_nvlink_peers: int = MAX_PEERS
    proxies: Literal["auto", "off"] = "auto"

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
