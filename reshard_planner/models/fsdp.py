"""Where FSDP2 puts a model, alone, with tensor parallelism, and in replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard_planner.box import Box
from reshard_planner.errors import SpecError
from reshard_planner.layout import Entry, Layout, Mesh, Storage, StoredBuffer, Tile
from reshard_planner.layout.partition import row_major_strides
from reshard_planner.models import roles
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.placed import Placed, check_ranks, check_sizes

COLUMN = frozenset(
    (
        roles.EMBEDDING,
        roles.HEAD,
        roles.Q,
        roles.K,
        roles.V,
        roles.Q_BIAS,
        roles.K_BIAS,
        roles.V_BIAS,
        roles.Q_B,
        roles.KV_B,
        roles.ATTENTION_GATE,
        roles.GATE,
        roles.UP,
        roles.GATE_BIAS,
        roles.UP_BIAS,
        roles.SHARED_GATE,
        roles.SHARED_UP,
        roles.EXPERT_GATE,
        roles.EXPERT_UP,
    )
)
"""Roles whose first dimension, of one expert, tensor parallelism cuts."""

ROW = frozenset((roles.O, roles.DOWN, roles.SHARED_DOWN, roles.EXPERT_DOWN))
"""Roles whose second dimension, of one expert, tensor parallelism cuts."""


@dataclass(frozen=True, slots=True)
class Fsdp:
    """FSDP2 on a mesh of replicas, shards and tensor parallel ranks, which count fastest.

    All parameters are DTensors under their names in the checkpoint, sharded on their first dimension
    (torch.distributed.fsdp.fully_shard). With tensor parallelism, column parallel ones are cut by it first,
    which the placements ``_S(0, sf=tp)`` and ``S(0)`` say; row parallel ones are cut on their second
    dimension, and all others are replicated over it. Experts that are tensors of their own in the checkpoint
    are sharded one by one, each in a buffer with its number in the name.

    Attributes:
        dp: number of shards; 0 for 1, or for what ``gpus`` leaves.
        tp: tensor parallel size.
        replicas: number of replicas, as with HSDP.
        dtype: element type of all parameters; None for their own.
        gpus: number of ranks; 0 for what the sizes give.
        ranks: the ranks, where the description names them.
    """

    dp: int = 0
    tp: int = 1
    replicas: int = 1
    dtype: str | None = None
    gpus: int = 0
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_sizes("fsdp", tp=self.tp, replicas=self.replicas)
        for name, size in (("dp", self.dp), ("gpus", self.gpus)):
            if size:
                check_sizes("fsdp", **{name: size})
        each = self.tp * self.replicas
        if self.gpus and self.gpus % each:
            raise SpecError(
                f"fsdp gpus is {self.gpus}, but tp * replicas is {each}; expected a multiple of it"
            )
        object.__setattr__(self, "dp", self.dp or (self.gpus // each) or 1)
        if self.gpus and self.gpus != each * self.dp:
            raise SpecError(
                f"fsdp gpus is {self.gpus}, but dp * tp * replicas is {each * self.dp}; expected the same"
            )
        object.__setattr__(self, "gpus", each * self.dp)
        if self.ranks is not None:
            check_ranks("fsdp", self.gpus, self.ranks)

    def notes(self, model: Model) -> tuple[str, ...]:  # noqa: ARG002 - as in the protocol
        """Nothing: all of it is said by the options."""
        return ()

    def place(self, model: Model, ranks: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """Place every parameter; see :class:`~reshard_planner.models.placed.Parallelism`.

        Raises:
            SpecError: if tensor parallelism is asked of parameters without roles.
        """
        ranks = check_ranks("fsdp", self.gpus, ranks)
        sizes = {"replicate": self.replicas, "shard": self.dp, "tp": self.tp}
        # DTensor's users leave out what they do not use
        axes = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
        mesh = Mesh(ranks, tuple(axes), tuple(axes.values()))
        layouts: dict[tuple[str, ...] | tuple[object, ...], Layout] = {}
        placed: dict[str, tuple[Placed, ...]] = {}
        for parameter in model.parameters:
            if self.tp > 1 and not parameter.role:
                raise SpecError(
                    f"fsdp tp is {self.tp}, which needs the roles of parameters, and {parameter.name} has"
                    " none; expected tp=1, or framework plain"
                )
            if "*" in parameter.name and parameter.role in roles.KINDS["routed experts"]:
                key: tuple[object, ...] = (_way(parameter), parameter.shape)
                if key not in layouts:
                    layouts[key] = Layout.stored(mesh, self._experts(parameter, mesh.size))
                names = tuple(parameter.name.replace("*", str(e), 1) for e in range(parameter.shape[0]))
            else:
                key = tuple(self._placements(parameter)[name] for name in axes)
                if key not in layouts:
                    layouts[key] = Layout(mesh, [str(placement) for placement in key])
                names = (parameter.name,)
            placed[parameter.name] = (Placed(layouts[key], names),)
        return placed

    def _placements(self, parameter: Parameter) -> dict[str, str]:
        """Of a parameter that is one tensor in the checkpoint, by mesh axis."""
        stacked = parameter.role in roles.FEED_FORWARD and len(parameter.shape) == 3
        way = _way(parameter)
        shard, tp = "S(0)", "R"
        if parameter.role == roles.EXPERT_GATE_UP:
            tp = "_S(1, sf=2)"
        elif way == "column" and stacked:
            tp = "S(1)"
        elif way == "column" and self.tp > 1:
            shard, tp = f"_S(0, sf={self.tp})", "S(0)"
        elif way == "row":
            tp = "S(2)" if stacked else "S(1)"
        return {"replicate": "R", "shard": shard, "tp": tp}

    def _experts(self, parameter: Parameter, size: int) -> Storage:
        """Storage of experts that are sharded one by one, on a mesh of this many ranks."""
        way, (experts, *shape) = _way(parameter), parameter.shape
        entries: list[Entry] = []
        numbers: dict[Bounds, int] = {}
        entry_of = []
        for shard in range(self.dp):
            for rank in range(self.tp):
                bounds = [(0, extent) for extent in shape]
                if way != "none":
                    dim = 0 if way == "column" else 1
                    bounds[dim] = _chunk(*bounds[dim], rank, self.tp)
                bounds[0] = _chunk(*bounds[0], shard, self.dp)
                # entries of hundreds of buffers each are told apart by what makes them
                key = tuple(bounds)
                if key not in numbers:
                    numbers[key] = len(entries)
                    entries.append(_one_by_one(experts, key))
                entry_of.append(numbers[key])
        return Storage(entries, entry_of * (size // len(entry_of)))


Bounds = tuple[tuple[int, int], ...]
"""First and end index along every dimension of one expert."""


def _one_by_one(experts: int, bounds: Bounds) -> Entry:
    """The same box of every expert, each in a buffer of its own; nothing where the box is empty."""
    lo, hi = zip(*bounds, strict=True)
    shape = Box(lo, hi).shape
    if not all(shape):
        return ()
    strides = row_major_strides((1, *shape))
    return tuple(
        StoredBuffer(e, shape, (Tile(Box((e, *lo), (e + 1, *hi)), 0, strides),)) for e in range(experts)
    )


def _way(parameter: Parameter) -> str:
    """How tensor parallelism cuts a parameter."""
    if parameter.role in COLUMN:
        return "column"
    return "row" if parameter.role in ROW else "none"


def _chunk(lo: int, hi: int, index: int, count: int) -> tuple[int, int]:
    """Bounds of a chunk of ``torch.chunk``, empty where they run out."""
    step = -(-(hi - lo) // count)
    return min(hi, lo + index * step), min(hi, lo + (index + 1) * step)
