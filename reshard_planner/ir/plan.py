"""Plans: a header and four tables, frozen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.digest import digest_of
from reshard_planner.ir.ops import Expansion, Ops
from reshard_planner.ir.tables import Groups, Pieces, Routes, Schedule, Tables
from reshard_planner.spec import ReshardSpec

if TYPE_CHECKING:
    from reshard_planner.ir.program import Program

VERSION = 2
"""Version of the plan format; readers refuse every other one."""


@dataclass(frozen=True)
class Plan:
    """A compiled reshard.

    Attributes:
        spec: what it was compiled from, with topology and options.
        tables: groups, pieces, routes and schedule.
        certificate: its claims.
        digest: hash of all of the above, as hexadecimal SHA-256.
        version: version of the format.
    """

    spec: ReshardSpec
    tables: Tables
    certificate: Certificate
    digest: str
    version: int = VERSION

    @classmethod
    def seal(cls, spec: ReshardSpec, tables: Tables, certificate: Certificate) -> Plan:
        """Put a plan together and compute its digest."""
        return cls(spec, tables, certificate, digest_of(VERSION, spec, tables, certificate))

    @property
    def groups(self) -> Groups:
        return self.tables.groups

    @property
    def pieces(self) -> Pieces:
        return self.tables.pieces

    @property
    def routes(self) -> Routes:
        return self.tables.routes

    @property
    def schedule(self) -> Schedule:
        return self.tables.schedule

    @cached_property
    def expansion(self) -> Expansion:
        """The tables prepared for expansion."""
        return Expansion.of(self.spec, self.tables)

    def ops(self, rank: int | None = None, tensors: Collection[int] | None = None) -> Ops:
        """All operations, or those of one rank or of some tensors (by position in the spec)."""
        return self.expansion.expand(rank, tensors)

    def program(self, rank: int) -> Program:
        """What one rank does; empty for a rank that takes no part."""
        from reshard_planner.ir.program import build_program  # noqa: PLC0415 - programs are made of plans

        return build_program(self, rank)

    def scatter(self) -> Iterator[Program]:
        """The programs of all ranks, ascending, to be handed out where ranks cannot all read one file."""
        return (self.program(rank) for rank in self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the spec, ascending."""
        return self.spec.ranks

    def save(self, path: str | Path) -> None:
        """Write the plan file; see :func:`reshard_planner.ir.file.save`.

        Raises:
            PlanFileError: if the file cannot be written.
        """
        from reshard_planner.ir.file import save  # noqa: PLC0415 - files are made of plans

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan in any of its forms and check its digest; see :func:`reshard_planner.ir.forms.load`.

        Raises:
            PlanFileError: if it is not a plan, damaged, or of another version.
            DigestError: if its content is not what its digest says.
        """
        from reshard_planner.ir.forms import load  # noqa: PLC0415 - forms are made of plans

        return load(Path(path))

    def to_json(self) -> str:
        """The plan as JSON text; see :mod:`reshard_planner.ir.jsonform`."""
        from reshard_planner.ir.jsonform import dumps  # noqa: PLC0415 - forms are made of plans

        return dumps(self)

    def to_text(self) -> str:
        """The plan as text that parses back; see :mod:`reshard_planner.ir.textform`."""
        from reshard_planner.ir.textform import dumps  # noqa: PLC0415 - forms are made of plans

        return dumps(self)

    def __repr__(self) -> str:
        from reshard_planner.render.summary import summarize  # noqa: PLC0415 - rendering reads plans

        return summarize(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from reshard_planner.render.notebook import mimebundle  # noqa: PLC0415 - rendering reads plans

        return mimebundle(self)
