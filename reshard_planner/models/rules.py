"""Rules: which rows or columns of which parameters a rank has in a fused buffer, and the layouts that follow.

A rule names a buffer and the roles that share it, and lists for every rank of a tensor parallel group what
the buffer holds along one dimension: pieces of the parameters, and padding. Frameworks are tables of such
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from reshard_planner.errors import SpecError
from reshard_planner.layout import Entry, Layout, Mesh, Storage, StoredBuffer
from reshard_planner.models.blocks import Cut, Run, join, spread, stored
from reshard_planner.models.model import Model, Parameter

Piece = tuple[str | None, int, int]
"""A role, and the first and end index of its parameter along the dimension of the rule; of role None,
padding."""


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of a rule's work.

    Attributes:
        model: the model, for its heads.
        extents: size along the dimension of the rule, in elements, of each of its roles that the layer has.
        option: the option that says into how many parts it is cut, for errors, such as ``megatron tp``.
        count: number of parts.
        rank: which of them.
        pad: what the framework pads vocabularies to a multiple of.
    """

    model: Model
    extents: Mapping[str, int]
    option: str
    count: int
    rank: int
    pad: int = 1

    def require(self, size: int, what: str) -> None:
        """Refuse sizes that do not divide.

        Raises:
            SpecError: if ``count`` does not divide ``size``.
        """
        if size % self.count:
            raise SpecError(
                f"{self.option} is {self.count}, but {self.model.family} has {size} {what}; expected a"
                f" divisor of {size}"
            )

    def even(self, role: str, lo: int, hi: int) -> Piece:
        """The rank's part of a range that is cut evenly."""
        self.require(hi - lo, f"rows or columns of role {role}")
        step = (hi - lo) // self.count
        return role, lo + self.rank * step, lo + (self.rank + 1) * step


Pieces = Callable[[Share], Iterable[Piece]]
"""What a rank's buffer holds along the dimension of its rule, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One fused buffer.

    Attributes:
        buffer: name of the buffer within its layer.
        roles: the roles that may lie in it.
        pieces: what a rank holds of it.
        dim: dimension along which it is cut; of one expert, where it is about experts.
        experts: whether its parameters have a first dimension that counts experts.
    """

    buffer: str
    roles: tuple[str, ...]
    pieces: Pieces
    dim: int = 0
    experts: bool = False


def whole(share: Share) -> Iterator[Piece]:
    """All roles in a row, the same on every rank."""
    for role, size in share.extents.items():
        yield role, 0, size


def even(share: Share) -> Iterator[Piece]:
    """The rank's part of each role, one after another: ``[gate_r; up_r]``."""
    for role, size in share.extents.items():
        yield share.even(role, 0, size)


def halves(share: Share) -> Iterator[Piece]:
    """Of gate and up in one parameter, one after the other: the rank's part of each."""
    for role, size in share.extents.items():
        yield share.even(role, 0, size // 2)
        yield share.even(role, size // 2, size)


def by_heads(name: str) -> Pieces:
    """As :func:`even`, where heads must not be cut: a field of the model says how many there are."""

    def pieces(share: Share) -> Iterator[Piece]:
        heads = getattr(share.model, name)
        if heads:
            share.require(heads, name.replace("_", " "))
        return even(share)

    return pieces


def vocabulary(share: Share) -> Iterator[Piece]:
    """Rows of a padded vocabulary, contiguous on every rank; padding belongs to no parameter."""
    for role, size in share.extents.items():
        padded = -(-size // share.pad) * share.pad
        share.require(padded, "rows of padded vocabulary")
        step = padded // share.count
        lo, hi = (min(size, step * rank) for rank in (share.rank, share.rank + 1))
        yield role, lo, hi
        yield None, 0, step - (hi - lo)


def linear_heads(sizes: Mapping[str, Callable[[Model], tuple[int, ...]]]) -> Pieces:
    """Parts of linear attention: each part of each role is cut by heads, and the parts lie in a row.

    Args:
        sizes: for roles of several parts in a row, their sizes.
    """

    def pieces(share: Share) -> Iterator[Piece]:
        share.require(share.model.linear_key_heads, "key heads of linear attention")
        share.require(share.model.linear_value_heads, "value heads of linear attention")
        for role, size in share.extents.items():
            parts = sizes[role](share.model) if role in sizes else (size,)
            if sum(parts) != size:
                raise SpecError(
                    f"role {role} of {share.model.family} has {size} rows; expected {sum(parts)} by its heads"
                )
            position = 0
            for part in parts:
                yield share.even(role, position, position + part)
                position += part

    return pieces


def gdn_parts(model: Model) -> tuple[int, int, int]:
    """Rows of queries, keys and values in the joined projection of a gated delta net."""
    keys = model.linear_key_heads * model.linear_key_head_dim
    return keys, keys, model.linear_value_heads * model.linear_value_head_dim


def first_heads(share: Share) -> Iterator[Piece]:
    """The rank's part of one number per head, of which the checkpoint may have more than heads.

    Kimi K3 stores ``A_log`` padded; vLLM and Megatron-Bridge narrow it to its heads.
    """
    for role, size in share.extents.items():
        heads = share.model.linear_value_heads or size
        yield share.even(role, 0, min(heads, size))


@dataclass(frozen=True, slots=True)
class ExpertSplit:
    """Which experts the ranks of an expert parallel group hold, in which buffers.

    Attributes:
        runs: per rank, runs of expert numbers in the order in which they are stored.
        separate: whether every local expert has a buffer of its own, numbered in that order.
    """

    runs: tuple[tuple[Run, ...], ...]
    separate: bool = False

    def entry(self, rank: int, shape: tuple[int, ...], dim: int, cut: Cut) -> Entry:
        """What a rank stores of a parameter whose dimension ``dim`` is cut within each expert."""
        runs = self.runs[rank]
        count = sum(hi - lo for _, lo, hi in runs)
        if not self.separate:
            return (stored(shape, {0: Cut(count, runs), dim: cut}),)
        return tuple(
            self._single(shape, dim, cut, at + i, lo + i) for at, lo, hi in runs for i in range(hi - lo)
        )

    @staticmethod
    def _single(shape: tuple[int, ...], dim: int, cut: Cut, slot: int, expert: int) -> StoredBuffer:
        cuts = {0: Cut(1, ((0, expert, expert + 1),)), dim: cut}
        return stored(shape, cuts, slot, single=True)

    def buffers(self, name: str) -> tuple[str, ...]:
        """Names of the buffers: the name, or the name with the number of each local expert."""
        if not self.separate:
            return (name,)
        most = max(sum(hi - lo for _, lo, hi in runs) for runs in self.runs)
        return tuple(f"{name}{slot}" for slot in range(most))


@dataclass(slots=True)
class Layouts:
    """Layouts by rule and geometry, each made once.

    Attributes:
        model: the model.
        option: the option behind ``count``, for errors; likewise ``expert_option``.
        count: ranks of a tensor parallel group.
        expert_option: the option behind ``expert_count``.
        expert_count: ranks that share each expert.
        pad: what vocabularies are padded to a multiple of.
        experts: how experts are spread; None without any.
    """

    model: Model
    option: str
    count: int
    expert_option: str = ""
    expert_count: int = 1
    pad: int = 1
    experts: ExpertSplit | None = None
    _entries: dict[object, dict[str, tuple[Entry, ...]]] = field(default_factory=dict)
    _storages: dict[object, Storage] = field(default_factory=dict)
    _layouts: dict[object, Layout] = field(default_factory=dict)

    def of(self, rule: Rule, present: Mapping[str, Parameter], mesh: Mesh) -> dict[str, Layout]:
        """The layout of every role of a rule that a layer has, over a mesh of its ranks.

        Args:
            rule: what lies where.
            present: the parameters of the layer that the rule is about, by role, in the order of the rule.
            mesh: the ranks; tensor parallel ones count fastest.

        Raises:
            SpecError: if a size does not divide.
        """
        geometry = tuple((role, parameter.shape) for role, parameter in present.items())
        return {role: self._layout(rule, geometry, role, mesh) for role in present}

    def _layout(
        self, rule: Rule, geometry: tuple[tuple[str, tuple[int, ...]], ...], role: str, mesh: Mesh
    ) -> Layout:
        key = (rule, geometry, role, mesh.size)
        at = (*key, mesh)
        if at not in self._layouts:
            if key not in self._storages:
                self._storages[key] = spread(self._entries_of(rule, geometry)[role], mesh.size)
            self._layouts[at] = Layout.stored(mesh, self._storages[key])
        return self._layouts[at]

    def _entries_of(
        self, rule: Rule, geometry: tuple[tuple[str, tuple[int, ...]], ...]
    ) -> dict[str, tuple[Entry, ...]]:
        key = (rule, geometry)
        if key not in self._entries:
            dim = rule.dim + rule.experts
            cuts = [self._cuts(rule, geometry, dim, rank) for rank in range(self._ranks(rule))]
            self._entries[key] = {role: self._entry(rule, role, shape, dim, cuts) for role, shape in geometry}
        return self._entries[key]

    def _ranks(self, rule: Rule) -> int:
        if rule.pieces is whole:
            return 1
        return self.expert_count if rule.experts else self.count

    def _cuts(
        self, rule: Rule, geometry: tuple[tuple[str, tuple[int, ...]], ...], dim: int, rank: int
    ) -> dict[str, Cut]:
        """What one rank's buffer holds of every role."""
        extents = {role: shape[dim] for role, shape in geometry}
        option = self.expert_option if rule.experts else self.option
        share = Share(self.model, extents, option, self._ranks(rule), rank, self.pad)
        runs: dict[str, list[Run]] = {role: [] for role in extents}
        position = 0
        for role, lo, hi in rule.pieces(share):
            if role is not None:
                runs[role].append((position, lo, hi))
            position += hi - lo
        return {role: Cut(position, join(own)) for role, own in runs.items()}

    def _entry(
        self, rule: Rule, role: str, shape: tuple[int, ...], dim: int, cuts: list[dict[str, Cut]]
    ) -> tuple[Entry, ...]:
        if not rule.experts:
            return tuple((stored(shape, {dim: cut[role]}),) for cut in cuts)
        if self.experts is None:
            raise SpecError(
                f"{self.model.family} has a parameter of role {role}; expected a model with experts"
            )
        return tuple(
            self.experts.entry(rank, shape, dim, cut[role])
            for rank in range(len(self.experts.runs))
            for cut in cuts
        )
