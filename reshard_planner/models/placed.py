"""The result of placing a model, and what everything that places one has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reshard_planner.errors import SpecError
from reshard_planner.layout import Layout
from reshard_planner.models.model import Model


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one parameter lies.

    Attributes:
        layout: which rank stores which part. Parameters of equal geometry on the same ranks share one object.
        buffers: names of the local buffers that the storage of the layout numbers; one name for a layout of
            plain placements.
        dtype: element type in which the framework keeps it, whatever it has others in; None for no such rule.
    """

    layout: Layout
    buffers: tuple[str, ...]
    dtype: str | None = None


class Parallelism(Protocol):
    """How a framework spreads a model over ranks."""

    @property
    def gpus(self) -> int:
        """Number of ranks that it takes."""

    @property
    def dtype(self) -> str | None:
        """Element type in which it holds all parameters; None for that of each parameter."""

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The ranks that its description names; None where it names none."""

    def notes(self, model: Model) -> tuple[str, ...]:
        """What it chose itself for a model, one sentence each, for people.

        Raises:
            SpecError: if the model cannot be spread like that.
        """

    def place(self, model: Model, ranks: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """Place every parameter.

        Args:
            model: the parameters, with roles.
            ranks: as many ranks as it takes, in the order of the framework.

        Returns:
            For every parameter, by its name and in the order of the model, its layouts. Several only where
            different buffers hold all of it, such as tied embeddings on the first and the last stage.

        Raises:
            SpecError: if the model cannot be spread like that.
        """


def check_ranks(framework: str, gpus: int, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks as a tuple.

    Raises:
        SpecError: if there are more or fewer than ``gpus``.
    """
    if len(ranks) != gpus:
        raise SpecError(f"{framework} is given {len(ranks)} ranks; expected {gpus}, one for each of its GPUs")
    return tuple(ranks)


def check_sizes(framework: str, **sizes: int) -> None:
    """Check that sizes are integers of at least 1.

    Raises:
        SpecError: naming the first that is not.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SpecError(f"{framework} {name} is {size!r}; expected an integer of at least 1")


def in_order(model: Model, placed: dict[str, tuple[Placed, ...]]) -> dict[str, tuple[Placed, ...]]:
    """The same in the order of the model's parameters."""
    return {parameter.name: placed[parameter.name] for parameter in model.parameters}
