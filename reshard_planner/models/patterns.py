"""Placements of parameters by patterns of their names, from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from reshard_planner.document import read_document
from reshard_planner.errors import LayoutError, SpecError
from reshard_planner.forms import convert
from reshard_planner.intset import parse_ints
from reshard_planner.layout import Layout, Mesh, Placement, parse_placement
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.models.model import Model
from reshard_planner.models.placed import Placed, check_ranks


class PatternForm(msgspec.Struct, forbid_unknown_fields=True):
    """One pattern of a file."""

    match: str
    placements: list[str]
    buffer: str = "{name}"


class MeshForm(msgspec.Struct, forbid_unknown_fields=True):
    """The mesh of a file: sizes of its axes, and positions among the ranks where they are not in order."""

    axes: dict[str, int]
    ranks: str | list[int] | None = None


class FileForm(msgspec.Struct, forbid_unknown_fields=True):
    """A file of patterns."""

    mesh: dict[str, Any]
    parameters: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What happens to parameters whose names match.

    Attributes:
        match: the name, in which ``*`` stands for any text, ``?`` for one character and ``[ab]`` for one of
            some.
        placements: one per mesh axis.
        buffer: name of the local buffer, in which ``{name}`` stands for the name of the parameter.
    """

    match: str
    placements: tuple[Placement, ...]
    buffer: str = "{name}"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Plain placements by patterns of names; the first pattern that matches counts.

    Attributes:
        mesh: its ranks number the ranks that a model is placed on, from 0.
        patterns: in order of precedence.
        dtype: element type of all parameters; None for their own.
        ranks: the ranks, where the description names them.
    """

    mesh: Mesh
    patterns: tuple[Pattern, ...]
    dtype: str | None = None
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            if len(pattern.placements) != self.mesh.ndim:
                raise SpecError(
                    f"pattern {pattern.match!r} has {len(pattern.placements)} placements; expected"
                    f" {self.mesh.ndim}, one for each mesh axis"
                )
        if self.ranks is not None:
            check_ranks("plain", self.gpus, self.ranks)

    @classmethod
    def load(cls, path: Path, dtype: str | None = None, ranks: tuple[int, ...] | None = None) -> Patterns:
        """Read a YAML or JSON file: ``mesh`` with ``axes`` and maybe ``ranks``, and ``parameters``.

        Raises:
            SpecError: naming the file, the field and what would be right.
        """
        form = convert(read_document(path), FileForm, f"{path}")
        where = f"{path}: mesh"
        mesh = convert(form.mesh, MeshForm, where)
        try:
            size = 1
            for extent in mesh.axes.values():
                size *= extent
            if size > MAX_RANK:
                raise SpecError(f"{where}: axes {mesh.axes} have {size} ranks; expected at most {MAX_RANK}")
            numbers = parse_ints(mesh.ranks) if isinstance(mesh.ranks, str) else mesh.ranks
            built = Mesh(
                list(range(size)) if numbers is None else numbers, tuple(mesh.axes), tuple(mesh.axes.values())
            )
        except (LayoutError, ValueError) as error:
            raise SpecError(f"{where}: {error}") from None
        patterns = []
        for index, raw in enumerate(form.parameters):
            at = f"{path}: parameters[{index}]"
            entry = convert(raw, PatternForm, at)
            try:
                placements = tuple(map(parse_placement, entry.placements))
            except LayoutError as error:
                raise SpecError(f"{at}.placements: {error}") from None
            patterns.append(Pattern(entry.match, placements, entry.buffer))
        try:
            return cls(built, tuple(patterns), dtype, ranks)
        except SpecError as error:
            raise SpecError(f"{path}: {error}") from None

    @property
    def gpus(self) -> int:
        """Number of ranks, of which the mesh uses the last at least."""
        return max(self.mesh.ranks) + 1

    def notes(self, model: Model) -> tuple[str, ...]:  # noqa: ARG002 - as in the protocol
        """Nothing: all of it is said by the options."""
        return ()

    def place(self, model: Model, ranks: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """Place every parameter; see :class:`~reshard_planner.models.placed.Parallelism`.

        Raises:
            SpecError: if no pattern matches a parameter, or two parameters would be in one buffer.
            LayoutError: if a placement cuts a dimension that a parameter does not have.
        """
        ranks = check_ranks("plain", self.gpus, ranks)
        mesh = Mesh([ranks[position] for position in self.mesh.ranks], self.mesh.axes, self.mesh.shape)
        layouts: dict[tuple[Placement, ...], Layout] = {}
        taken: dict[str, str] = {}
        placed: dict[str, tuple[Placed, ...]] = {}
        for parameter in model.parameters:
            pattern = self._pattern(parameter.name)
            if pattern.placements not in layouts:
                layouts[pattern.placements] = Layout(mesh, pattern.placements)
            layout = layouts[pattern.placements]
            try:
                layout.normalized(len(parameter.shape))
            except LayoutError as error:
                raise LayoutError(f"pattern {pattern.match!r} for {parameter.name}: {error}") from None
            buffer = pattern.buffer.replace("{name}", parameter.name)
            if buffer in taken:
                raise SpecError(
                    f"pattern {pattern.match!r} puts {parameter.name} in the buffer {buffer} of"
                    f" {taken[buffer]}; expected a buffer for each parameter"
                )
            taken[buffer] = parameter.name
            placed[parameter.name] = (Placed(layout, (buffer,)),)
        return placed

    def _pattern(self, name: str) -> Pattern:
        for pattern in self.patterns:
            if pattern.match == name or fnmatchcase(name, pattern.match):
                return pattern
        raise SpecError(
            f"no pattern matches parameter {name}; expected one, such as {{match: {name!r}, placements: [R]}}"
        )
