"""The numbers of a spec, if its pair of layouts is regular."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from reshard_planner.demand import find_geometries
from reshard_planner.errors import InputError
from reshard_planner.layout.intervals import length
from reshard_planner.spec import ReshardSpec, TensorSpec
from reshard_planner.spec.values import Side as SideName
from reshard_planner.symbolic.case import Case, Side
from reshard_planner.topology import Ports


@dataclass(frozen=True, slots=True)
class _Stored:
    """Who stores which shard of a tensor on one side: rank and number of the shard, in order of the mesh."""

    name: str
    side: SideName
    shard_of: dict[int, int]

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(self.shard_of)


def case_of(spec: ReshardSpec) -> Case:
    """The numbers of a spec; see :mod:`reshard_planner.symbolic.case` for what is regular.

    Args:
        spec: its tensors may have any shapes that their shards divide; empty tensors are left out.

    Raises:
        InputError: naming the tensor, the domain or the rank that is not regular, and why.
    """
    tensors = [tensor for tensor in spec.tensors if tensor.nbytes]
    if not tensors:
        raise InputError("the spec moves no bytes; expected at least one tensor that is not empty")
    if not spec.topology.alpha_s:
        raise InputError(
            "latency_s of all links of the topology is 0; expected one above 0, the start-up time of a slot"
        )
    ports = Ports.of(spec.topology, spec.ranks)
    before = [_stored(tensor, "src") for tensor in tensors]
    after = [_stored(tensor, "dst") for tensor in tensors]
    src, dst = _common_side(before, ports), _common_side(after, ports)
    _refuse_other_ranks(after)
    stages = _stage_sizes(before, tensors)
    homes = [_domains(ranks, ports) for ranks in stages]
    needing = _domains(after[0].ranks, ports)
    if sum(map(len, homes)) + len(needing) != len(needing.union(*homes)):
        raise InputError(
            "domains have ranks of the destination and of the source, or of several stages of it; expected"
            " domains of their own"
        )
    _check_roots(before, src, ports)
    holders = frozenset().union(*stages)
    _refuse_idle(_idle(holders, spec, ports, frozenset().union(*homes)))
    neighbours = _neighbours(after[0].ranks, spec, ports, needing)
    sizes = sorted(stages.values())
    return Case(
        nbytes=sum(sizes),
        src=src,
        dst=dst,
        classes=_classes(spec, ports, src, dst),
        stages=len(sizes),
        largest_stage_nbytes=sizes[-1],
        neighbours=neighbours,
        alpha_s=spec.topology.alpha_s,
        lag=spec.options.lag,
    )


def _stored(tensor: TensorSpec, side: SideName) -> _Stored:
    layouts = tensor.layouts(side)
    if len(layouts) != 1:
        raise InputError(
            f"tensor {tensor.name!r}: {side} has {len(layouts)} layouts; expected one, with placements"
        )
    if not layouts[0].placements:
        raise InputError(
            f"tensor {tensor.name!r}: the layout of {side} says where boxes are stored and has no placements;"
            " expected a layout with placements"
        )
    partition = layouts[0].partition(tensor.shape)
    ranks = partition.ranks.tolist()
    shard_of = dict(zip(ranks, partition.alike.tolist(), strict=True))
    sizes = {prod(length(intervals) for intervals in partition.intervals(rank)) for rank in ranks}
    if len(sizes) > 1 or len(set(Counter(shard_of.values()).values())) > 1:
        raise InputError(
            f"tensor {tensor.name!r}: shards of {side} are not equal; expected shapes they divide"
        )
    return _Stored(tensor.name, side, shard_of)


def _common_side(stored: Iterable[_Stored], ports: Ports) -> Side:
    """The side that all tensors have."""
    found = {each.name: _side(each, ports) for each in stored}
    first, *others = found
    for name in others:
        if found[name] != found[first]:
            raise InputError(
                f"tensors {first!r} and {name!r} have {_say(found[first])} and {_say(found[name])}; expected"
                " the same for all tensors"
            )
    return found[first]


def _say(side: Side) -> str:
    return (
        f"{side.shards} shards in {side.replicas} replicas ({side.distinct} x {side.copies} per domain,"
        f" NIC {_gb_per_s(side.nic_bytes_per_s)}, NVLink {_gb_per_s(side.nvlink_bytes_per_s)})"
    )


def _gb_per_s(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:.16g} GB/s"  # all digits: rates that differ must read differently


def _side(stored: _Stored, ports: Ports) -> Side:
    where = f"tensor {stored.name!r}, {stored.side}"
    inside: dict[int, Counter[int]] = {}
    for rank, shard in stored.shard_of.items():
        inside.setdefault(int(ports.domain[rank]), Counter())[shard] += 1
    kinds = {(len(shards), copies) for shards in inside.values() for copies in shards.values()}
    if len(kinds) != 1:
        raise InputError(
            f"{where}: domains store {_list(kinds)} (shards, copies of each); expected the same for all"
            " domains and shards"
        )
    [(distinct, copies)] = kinds
    nic, nvlink = _rates(stored.ranks, ports, where)
    shards = len(set(stored.shard_of.values()))
    return Side(shards, len(stored.shard_of) // shards, distinct, copies, nic, nvlink)


def _rates(ranks: Iterable[int], ports: Ports, where: str) -> tuple[int, int]:
    """Rates of the NIC and of the NVLink port that all ranks have."""
    chosen = sorted(ranks)
    groups = ports.nic_group[chosen]
    if (groups < 0).any() or len(set(groups.tolist())) < len(chosen):
        raise InputError(f"{where}: GPUs share a NIC or have none; expected NICs of their own")
    if (ports.pod[chosen] >= 0).any():
        raise InputError(f"{where}: domains are in pods; expected a network without uplinks")
    found = set(
        zip(ports.nic_bytes_per_s[groups].tolist(), ports.nvlink_bytes_per_s[chosen].tolist(), strict=True)
    )
    if len(found) > 1:
        raise InputError(f"{where}: NICs or NVLink ports differ in rate; expected equal ones")
    [rates] = found
    return rates


def _list(kinds: Iterable[tuple[int, int]]) -> str:
    return ", ".join(map(str, sorted(kinds)))


def _domains(ranks: Iterable[int], ports: Ports) -> frozenset[int]:
    return frozenset(ports.domain[sorted(ranks)].tolist())


def _refuse_other_ranks(after: list[_Stored]) -> None:
    for each in after:
        if each.ranks != after[0].ranks:
            raise InputError(
                f"tensors {after[0].name!r} and {each.name!r} are needed by other ranks; expected the same"
                " for all tensors"
            )


def _stage_sizes(before: list[_Stored], tensors: list[TensorSpec]) -> dict[frozenset[int], int]:
    """Bytes that each set of holders holds."""
    sizes: dict[frozenset[int], int] = {}
    for each, tensor in zip(before, tensors, strict=True):
        sizes[each.ranks] = sizes.get(each.ranks, 0) + tensor.nbytes
    return sizes


def _check_roots(before: list[_Stored], src: Side, ports: Ports) -> None:
    """That gather-broadcast gathers as many shards of a stage over NVLink as a domain has, at one rank."""
    roots: dict[frozenset[int], int] = {}
    for each in before:
        first: dict[int, int] = {}
        for rank, shard in each.shard_of.items():
            first.setdefault(shard, rank)
        root = next(iter(each.shard_of))
        near = sum(ports.domain[rank] == ports.domain[root] for rank in first.values())
        if near != src.distinct or roots.setdefault(each.ranks, root) != root:
            raise InputError(
                f"tensor {each.name!r}, src: the first holders of its shards are not those of one domain"
                " after another; expected replica after replica"
            )


def _idle(
    ranks: frozenset[int], spec: ReshardSpec, ports: Ports, domains: frozenset[int]
) -> dict[int, list[int]]:
    """Other ranks of the spec in each of some domains."""
    found: dict[int, list[int]] = {domain: [] for domain in sorted(domains)}
    for rank in spec.ranks:
        if int(ports.domain[rank]) in domains and rank not in ranks:
            found[int(ports.domain[rank])].append(rank)
    return found


def _refuse_idle(idle: dict[int, list[int]]) -> None:
    for domain, others in idle.items():
        if others:
            raise InputError(
                f"domain {domain} has holders and {len(others)} ranks that hold nothing; expected holders"
                " only"
            )


def _neighbours(needers: frozenset[int], spec: ReshardSpec, ports: Ports, domains: frozenset[int]) -> int:
    """How many ranks of each domain in need need nothing."""
    idle = _idle(needers, spec, ports, domains)
    counts = {len(others) for others in idle.values()}
    if len(counts) > 1:
        raise InputError(
            "domains in need differ in how many of their ranks need nothing; expected equal ones"
        )
    _rates(needers.union(*idle.values()), ports, f"domains {', '.join(map(str, idle))}")
    return counts.pop()


def _classes(spec: ReshardSpec, ports: Ports, src: Side, dst: Side) -> int:
    """Classes of every tensor."""
    counts: set[int] = set()
    of_stage: Counter[frozenset[int]] = Counter()
    for geometry in find_geometries(spec, ports):
        if not geometry.sample.nbytes:
            continue
        if len(set(geometry.atoms.nbytes)) > 1:
            raise InputError(
                f"tensor {geometry.sample.name!r}: classes differ in size; expected that along each dimension"
                " one number of shards divides the other"
            )
        counts.add(geometry.atoms.class_count)
        for member in geometry.members:
            tensor = spec.tensors[member.tensors[0]]
            of_stage[frozenset(tensor.src[0].mesh.ranks)] += 1
    if len(counts) > 1:
        raise InputError(f"tensors have {_numbers(counts)} classes; expected as many for each")
    [count] = counts
    if max(of_stage.values()) > 1 and count * dst.replicas % (src.shards * src.replicas):
        raise InputError(
            f"tensors differ in shape, and {count} classes for {dst.replicas} replicas cannot be dealt evenly"
            f" to {src.shards * src.replicas} holders; expected one shape, or a multiple"
        )
    return count


def _numbers(counts: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(counts)))
