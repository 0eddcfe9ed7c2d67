"""Regular pairs of layouts, which the closed forms are for, and the numbers of one.

1. Each side shards every tensor in equal shards, and stores every shard equally often.
2. Source and destination are in different domains. All domains of a side are alike: each stores ``distinct``
   shards, ``copies`` times each, and nothing else of the tensors.
3. The source may consist of stages with tensors of their own, in domains of their own.
4. Domains in need may have other ranks, as many in each; domains of holders have none.
5. Every GPU of a side has one NIC, with the same rate, and an NVLink port, with the same rate; no pods.
6. Every shard of one side has bytes in common with equally many of the other, equally many with each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

from reshard_planner.errors import InputError
from reshard_planner.layout.mesh import MAX_RANK
from reshard_planner.spec.values import MAX_LAG, MAX_NBYTES
from reshard_planner.topology.model import NIC_LINK, NVLINK_LINK

MAX_RATE = 2**53 - 1
"""Largest rate in bytes/s, as of links of a topology."""

MAX_ALPHA_S = 10**6
"""What a start-up time is below, as the latency of a link is."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a layout pair.

    Attributes:
        shards: distinct shards of a tensor.
        replicas: ranks that store each shard.
        distinct: distinct shards in each domain.
        copies: ranks of a domain that store the same shard.
        nic_bytes_per_s: NIC of each GPU, per direction.
        nvlink_bytes_per_s: NVLink port of each GPU, per direction.

    Raises:
        InputError: if a number is not a positive integer or too large, or domains cannot be alike.
    """

    shards: int
    replicas: int
    distinct: int
    copies: int
    nic_bytes_per_s: int = NIC_LINK.bytes_per_s
    nvlink_bytes_per_s: int = NVLINK_LINK.bytes_per_s

    def __post_init__(self) -> None:
        for field in fields(self):
            most = MAX_RATE if field.name.endswith("bytes_per_s") else MAX_RANK
            check_count(field.name, getattr(self, field.name), 1, most)
        _check_ranks(self.shards, self.replicas)
        if self.shards % self.distinct or self.replicas % self.copies:
            raise InputError(
                f"domains of {self.distinct} shards, {self.copies} times each, do not make up"
                f" {self.shards} shards in {self.replicas} replicas; expected divisors of both"
            )

    @classmethod
    def packed(
        cls,
        shards: int,
        replicas: int = 1,
        gpus_per_domain: int = 8,
        nic_bytes_per_s: int = NIC_LINK.bytes_per_s,
        nvlink_bytes_per_s: int = NVLINK_LINK.bytes_per_s,
    ) -> Side:
        """Replica after replica, in domain after domain, as ranks in a row are.

        Args:
            shards: distinct shards of a tensor.
            replicas: ranks that store each shard.
            gpus_per_domain: GPUs of a domain for this side; it has one domain if its ranks are fewer.
            nic_bytes_per_s: NIC of each GPU, per direction.
            nvlink_bytes_per_s: NVLink port of each GPU, per direction.

        Raises:
            InputError: if replicas and domains do not divide one another, or ranks do not fill domains.

        >>> Side.packed(4, 6, 8).copies, Side.packed(16, 2, 8).distinct
        (2, 8)
        """
        for name, value in (
            ("shards", shards),
            ("replicas", replicas),
            ("gpus_per_domain", gpus_per_domain),
        ):
            check_count(name, value, 1, MAX_RANK)
        _check_ranks(shards, replicas)
        ranks = shards * replicas
        used = min(gpus_per_domain, ranks)
        if ranks % used:
            raise InputError(
                f"{shards} shards in {replicas} replicas do not fill domains of {used} GPUs; expected a"
                f" multiple of {used} ranks, or fewer than {used}"
            )
        if used % shards and shards % used:
            raise InputError(
                f"{shards} shards and domains of {used} GPUs do not divide one another; expected domains that"
                " hold whole replicas, or replicas that fill whole domains"
            )
        distinct = min(shards, used)
        return cls(shards, replicas, distinct, used // distinct, nic_bytes_per_s, nvlink_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Case:
    """The numbers of one layout pair.

    Attributes:
        nbytes: all tensors together, each counted once.
        src: before; of one stage.
        dst: after.
        classes: classes of each tensor; :func:`count_classes` tells how many there are.
        stages: stages of the source, each with the ranks of ``src``.
        largest_stage_nbytes: bytes of the largest stage; an equal share when None.
        neighbours: ranks of each domain in need that do not need the tensors.
        alpha_s: start-up time of a slot, in seconds.
        lag: slots between a transfer and one that sends on what it brought.

    Raises:
        InputError: if a number is out of range, or classes and shards do not divide.
    """

    nbytes: int
    src: Side
    dst: Side
    classes: int
    stages: int = 1
    largest_stage_nbytes: Fraction | int | None = None
    neighbours: int = 0
    alpha_s: float = NIC_LINK.latency_s
    lag: int = 2

    def __post_init__(self) -> None:
        for name, least, most in (
            ("nbytes", 1, MAX_NBYTES),
            ("classes", 1, MAX_RANK**2),
            ("stages", 1, MAX_RANK),
            ("neighbours", 0, MAX_RANK),
            ("lag", 1, MAX_LAG),
        ):
            check_count(name, getattr(self, name), least, most)
        if not (_is_number(self.alpha_s, float) and 0 < self.alpha_s < MAX_ALPHA_S):
            raise InputError(
                f"alpha_s is {self.alpha_s!r:.60}; expected a time in seconds above 0 and below {MAX_ALPHA_S}"
            )
        for name in ("src", "dst"):
            if not isinstance(getattr(self, name), Side):
                raise InputError(f"{name} is {getattr(self, name)!r:.60}; expected a Side")
        _check_ranks(self.src.shards, self.src.replicas, self.stages)
        for side, shards in (("src", self.src.shards), ("dst", self.dst.shards)):
            if self.classes % shards:
                raise InputError(
                    f"classes is {self.classes}; expected a multiple of the {shards} shards of {side}"
                )
        if self.classes > self.src.shards * self.dst.shards:
            raise InputError(
                f"classes is {self.classes}; expected at most {self.src.shards * self.dst.shards}, one for"
                " each pair of shards"
            )
        share = Fraction(self.nbytes, self.stages)
        if self.largest_stage_nbytes is None:
            object.__setattr__(self, "largest_stage_nbytes", share)
        elif not _is_number(self.largest_stage_nbytes, Fraction) or (
            not share <= self.largest_stage_nbytes <= self.nbytes
            or (self.stages == 1 and self.largest_stage_nbytes != share)
        ):
            raise InputError(
                f"largest_stage_nbytes is {self.largest_stage_nbytes!s:.60}; expected at least a share of"
                f" {self.stages} of {self.nbytes} bytes, and at most all"
            )

    @property
    def hops(self) -> int:
        """Transfers from a holder to the last needer where nobody relays: the network, and fan-out."""
        return 1 + (self.dst.copies > 1 or self.neighbours > 0)

    @property
    def numbers(self) -> dict[str, Fraction]:
        """The value of every quantity but ``T``, ``T_nic``, ``T_nvlink`` and ``K``, by its name."""
        values: Mapping[str, Fraction | float | None] = {
            "W": self.nbytes,
            "W_1": self.largest_stage_nbytes,
            "P": self.stages,
            "S_src": self.src.shards,
            "R_src": self.src.replicas,
            "q": self.src.distinct,
            "S_dst": self.dst.shards,
            "R_dst": self.dst.replicas,
            "p": self.dst.distinct,
            "m": self.dst.copies,
            "X": self.neighbours,
            "C": self.classes,
            "b_src": self.src.nic_bytes_per_s,
            "b_dst": self.dst.nic_bytes_per_s,
            "v_src": self.src.nvlink_bytes_per_s,
            "v_dst": self.dst.nvlink_bytes_per_s,
            "H": self.hops,
            "L": self.hops + 2,
            "lag": self.lag,
            "alpha": self.alpha_s,
        }
        return {name: Fraction(value) for name, value in values.items() if value is not None}


def count_classes(src: Mapping[str, int], dst: Mapping[str, int]) -> int:
    """Classes of a tensor, each of whose dimensions both sides cut in equal shards.

    Args:
        src: shards before, per dimension, however it is named; one that is not named is not cut.
        dst: shards after.

    Raises:
        InputError: if a number is not a positive integer, or neither of the two of a dimension divides the
            other.

    >>> count_classes({"rows": 4}, {"rows": 2}), count_classes({"rows": 4}, {"columns": 2})
    (4, 8)
    """
    classes = 1
    for name in dict.fromkeys((*src, *dst)):
        before, after = src.get(name, 1), dst.get(name, 1)
        for side, shards in (("before", before), ("after", after)):
            check_count(f"shards of {name} {side}", shards, 1, MAX_RANK)
        if max(before, after) % min(before, after):
            raise InputError(
                f"{name} is cut in {before} shards before and {after} after; expected one number to divide"
                " the other"
            )
        classes *= max(before, after)
    return classes


def check_count(name: str, value: object, least: int, most: int) -> None:
    """Refuse what is not an integer from ``least`` to ``most``.

    Raises:
        InputError: naming ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} is {value!r:.60}; expected an integer from {least} to {most}")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def _check_ranks(shards: int, replicas: int, stages: int = 1) -> None:
    if shards * replicas * stages > MAX_RANK:
        inside = f" in {stages} stages" if stages > 1 else ""
        raise InputError(
            f"{shards} shards in {replicas} replicas{inside} take {shards * replicas * stages} ranks;"
            f" expected at most {MAX_RANK}"
        )
