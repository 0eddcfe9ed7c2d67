"""Why the bytes of one tensor take their way, as numbers: classes, moves, NICs and the share in the bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reshard_planner.atoms import Atoms, Ranks, find_atoms
from reshard_planner.bounds import Needs, evaluate
from reshard_planner.capacities import Capacities
from reshard_planner.demand import Demand, Geometry, Member, find_demands
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.render.binding import cut_kind
from reshard_planner.render.explain.moves import UNNEEDED, ClassMoves, Overlaps, find_overlaps, sum_moves
from reshard_planner.render.explain.nics import NicShares
from reshard_planner.render.names import find_tensor
from reshard_planner.spec import TensorSpec
from reshard_planner.topology import Ports
from reshard_planner.transfer import Medium

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Excess:
    """Network bytes of a class beyond its least, by what they are for; their sum is all that is too much.

    Attributes:
        within: between ranks of one domain, from NIC to NIC.
        to_holding: into domains that held the class before.
        again: into domains in need that took in the class once already.
        elsewhere: into domains that neither hold nor need it.
    """

    within: int
    to_holding: int
    again: int
    elsewhere: int

    @property
    def total(self) -> int:
        return self.within + self.to_holding + self.again + self.elsewhere


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """One class: who had it, who must have it, and how it goes.

    Attributes:
        number: of the class, in order of first appearance in the tensor.
        nbytes: bytes of it.
        atoms: number of its boxes.
        holders: ranks that have it before, ascending.
        needers: ranks that must have it after, ascending.
        holder_domains: domains of the holders, ascending.
        needing_domains: domains with a needer and no holder, ascending; k of them.
        needing_pods: pods with a needer and no holder, ascending.
        moves: what moves of it.
        excess: network bytes beyond k times its bytes.
        proxies: ranks that take part and neither hold nor need it, ascending.
        injecting: NIC groups that emit what their ranks held, ascending.
        relaying: NIC groups that emit what came in before, ascending.
        receiving: NIC groups that take it in, ascending.
        idle: NIC groups of holders that do not emit it, ascending; none where no bytes cross the network.
        cut_nbytes: what it adds to the bytes of the plan's binding cut.
    """

    number: int
    nbytes: int
    atoms: int
    holders: Ranks
    needers: Ranks
    holder_domains: tuple[int, ...]
    needing_domains: tuple[int, ...]
    needing_pods: tuple[int, ...]
    moves: ClassMoves
    excess: Excess
    proxies: Ranks
    injecting: tuple[int, ...]
    relaying: tuple[int, ...]
    receiving: tuple[int, ...]
    idle: tuple[int, ...]
    cut_nbytes: int

    @property
    def copies(self) -> int:
        """k, the least number of network copies."""
        return len(self.needing_domains)

    @property
    def least_nbytes(self) -> int:
        """The least bytes over the network."""
        return self.copies * self.nbytes


class Facts:
    """What is to be said about one tensor of a plan.

    Args:
        plan: the plan, which is not verified.
        name: name of the tensor.

    Raises:
        InputError: if the plan has no such tensor; the text names the nearest ones.
    """

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.position = find_tensor(plan.spec, name)
        self.tensor: TensorSpec = plan.spec.tensors[self.position]
        self.atoms: Atoms = find_atoms(self.tensor)
        self.ops: Ops = plan.ops(tensors=[self.position])
        named = {*plan.spec.ranks, *np.unique(self.ops.src).tolist(), *np.unique(self.ops.dst).tolist()}
        self.ports: Ports = Ports.of(plan.spec.topology, named)
        self.overlaps: Overlaps = find_overlaps(self.tensor, self.atoms, self.ops)
        self.moves: ClassMoves = sum_moves(self.ops, self.overlaps)
        self._capacities = Capacities(self.ports, plan.spec.ranks)

    @cached_property
    def nics(self) -> NicShares:
        """How busy the NICs of the whole plan are."""
        return NicShares.of(self.plan, self.ports)

    @cached_property
    def order(self) -> list[int]:
        """Classes with bytes, the largest first, equal ones in order of their numbers."""
        sizes = np.array(self.atoms.nbytes, dtype=np.int64)
        found: list[int] = np.argsort(-sizes, kind="stable")[: int((sizes > 0).sum())].tolist()
        return found

    @cached_property
    def demands(self) -> dict[int, Demand]:
        """Every class with its domains, by number."""
        member = Member((self.position,), None)
        found = find_demands([Geometry((member,), self.tensor, self.atoms)], self.ports)
        return {demand.class_index: demand for demand in found}

    @cached_property
    def copies(self) -> Ints:
        """Least number of network copies of every class, int64 of shape (classes,)."""
        found = np.zeros(self.atoms.class_count, dtype=np.int64)
        found[list(self.demands)] = [len(demand.needing_domains) for demand in self.demands.values()]
        return found

    @property
    def least_nbytes(self) -> int:
        """The least bytes of the tensor over the network."""
        return int((self.copies * np.array(self.atoms.nbytes, dtype=np.int64)).sum())

    def moved(self, medium: Medium, classes: Ints | None = None) -> int:
        """Bytes over one medium, of all or some classes, those that nobody needs included among all."""
        chosen = self.moves.medium == medium
        if classes is not None:
            chosen &= np.isin(self.moves.klass, classes)
        return int(self.moves.nbytes[chosen].sum())

    def rail_nbytes(self) -> int:
        """Bytes of the tensor over the network between ranks of one rail."""
        src, dst = self.ports.rails[self.moves.src], self.ports.rails[self.moves.dst]
        same = (self.moves.medium == Medium.NETWORK) & (src >= 0) & (src == dst)
        return int(self.moves.nbytes[same].sum())

    def cut_nbytes(self, number: int | None = None) -> int:
        """What the tensor, or one class, adds to the bytes of the binding cut of the whole plan."""
        claim = self.plan.certificate.bound
        kind = cut_kind(claim)
        chosen = list(self.demands.values()) if number is None else [self.demands[number]]
        needs = Needs(chosen, self._capacities)
        return evaluate(kind, claim.cut_members, needs, self._capacities, claim.cut_weights).nbytes

    def class_facts(self, number: int) -> ClassFacts:
        """All about one class."""
        demand = self.demands[number]
        moves = self.moves.of_class(number)
        both = {*demand.holders, *demand.needers}
        network = moves.medium == Medium.NETWORK
        own = network & (moves.forwarded == 0)
        injecting, relaying = self.groups(moves.src[own]), self.groups(moves.src[network & ~own])
        holding = self.groups(np.array(demand.holders, dtype=np.int64)) if network.any() else ()
        idle = tuple(group for group in holding if group not in {*injecting, *relaying})
        return ClassFacts(
            number,
            demand.nbytes,
            len(self.boxes(number)),
            demand.holders,
            demand.needers,
            demand.holder_domains,
            demand.needing_domains,
            self._needing_pods(demand),
            moves,
            self._excess(demand, moves),
            tuple(sorted({*moves.src.tolist(), *moves.dst.tolist()} - both)),
            injecting,
            relaying,
            self.groups(moves.dst[network]),
            idle,
            self.cut_nbytes(number),
        )

    def boxes(self, number: int) -> Ints:
        """Boxes of one class, first indices and those past the last, int64 of shape (atoms, 2, dims)."""
        first, last = np.searchsorted(self.atoms.class_of, (number, number + 1)).tolist()
        return np.stack([self.atoms.lo[first:last], self.atoms.hi[first:last]], axis=1)

    def unneeded(self) -> ClassMoves:
        """What moves of bytes that nobody needs."""
        return self.moves.of_class(UNNEEDED)

    def groups(self, ranks: Ints) -> tuple[int, ...]:
        """NIC groups of some ranks, ascending."""
        return tuple(group for group in np.unique(self.ports.nic_group[ranks]).tolist() if group >= 0)

    def _needing_pods(self, demand: Demand) -> tuple[int, ...]:
        pod_of = self._capacities.pod_of
        have = {pod_of.get(domain) for domain in demand.holder_domains}
        need = {pod_of.get(domain) for domain in demand.needing_domains}
        return tuple(sorted(pod for pod in need - have if pod is not None))

    def _excess(self, demand: Demand, moves: ClassMoves) -> Excess:
        network = moves.select(moves.medium == Medium.NETWORK)
        src, dst = self.ports.domain[network.src], self.ports.domain[network.dst]
        entering = np.where(src == dst, 0, network.nbytes)
        holding = np.isin(dst, demand.holder_domains)
        needing = np.isin(dst, demand.needing_domains)
        taken = int(entering[needing].sum())
        return Excess(
            int(network.nbytes.sum() - entering.sum()),
            int(entering[holding].sum()),
            max(0, taken - demand.nbytes * len(demand.needing_domains)),
            int(entering[~holding & ~needing].sum()),
        )
