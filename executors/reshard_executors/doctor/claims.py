"""Claims: what a plan and its topology say of the processes of a world; and what is wanted of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from reshard_planner.dtypes import DTYPE_BITS
from reshard_planner.ir.plan import Plan
from reshard_planner.spec.tiles import SideTiles


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of an examination.

    Attributes:
        backend: what the plan will be run with; when None ``nccl`` where all ranks can, else ``gloo``.
        most_nbytes: most bytes that one pair of ranks sends at a time; 0 to measure nothing.
    """

    backend: str | None = None
    most_nbytes: int = 64 * 2**20


@dataclass(frozen=True)
class Claims:
    """What a plan expects of each process.

    Attributes:
        plan: the plan.
        played: rank of the plan that each process of the world plays, all of them different.
    """

    plan: Plan
    played: tuple[int, ...]

    @cached_property
    def _processes(self) -> dict[int, int]:
        return {rank: at for at, rank in enumerate(self.played)}

    @cached_property
    def gpu_of(self) -> dict[int, int]:
        """GPU of the topology of each process that plays a rank of the plan."""
        ours, topology = set(self.plan.ranks), self.plan.spec.topology
        return {at: topology.gpu_of(rank) for at, rank in enumerate(self.played) if rank in ours}

    @cached_property
    def domain_of(self) -> dict[int, int]:
        """Number of the domain of each process that plays a rank of the plan."""
        topology = self.plan.spec.topology
        home = {gpu: number for number, domain in enumerate(topology.domains) for gpu in domain.gpus}
        return {at: home[gpu] for at, gpu in self.gpu_of.items()}

    @cached_property
    def members(self) -> dict[int, tuple[int, ...]]:
        """Processes of each domain that has any, ascending."""
        found: dict[int, list[int]] = {}
        for at, domain in sorted(self.domain_of.items()):
            found.setdefault(domain, []).append(at)
        return {domain: tuple(found[domain]) for domain in sorted(found)}

    @cached_property
    def nics_of(self) -> dict[int, frozenset[int]]:
        """Numbers of the NICs of each process's GPU; none for a GPU without."""
        nics: dict[int, set[int]] = {}
        for number, nic in enumerate(self.plan.spec.topology.nics):
            for gpu in nic.gpus:
                nics.setdefault(gpu, set()).add(number)
        return {at: frozenset(nics.get(gpu, ())) for at, gpu in self.gpu_of.items()}

    def nic_bytes_per_s(self, process: int) -> int:
        """Rate of the NICs of a process's GPU together."""
        nics = self.plan.spec.topology.nics
        return sum(nics[number].link.bytes_per_s for number in self.nics_of[process])

    def link_bytes_per_s(self, process: int) -> int:
        """Rate of the port of a process's GPU into its domain."""
        return self.plan.spec.topology.domains[self.domain_of[process]].link.bytes_per_s

    @property
    def fastest_nic_bytes_per_s(self) -> int | None:
        """Rate of the fastest single NIC; None in a topology without."""
        return max((nic.link.bytes_per_s for nic in self.plan.spec.topology.nics), default=None)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the plan that no process plays."""
        return tuple(rank for rank in self.plan.ranks if rank not in self._processes)

    def peers_of(self, process: int) -> tuple[int, ...]:
        """Processes that a process sends to when the plan runs, ascending."""
        rank = self.played[process]
        if process not in self.domain_of:
            return ()
        ops = self.plan.ops(rank)
        sent = set(ops.dst[ops.src == rank].tolist()) - {rank}
        return tuple(sorted(self._processes[peer] for peer in sent if peer in self._processes))

    def need_nbytes(self, process: int) -> int:
        """Memory that the plan takes for a process: its destinations, staging and scratch."""
        if process not in self.domain_of:
            return 0
        rank = self.played[process]
        sizes: dict[tuple[str, int], int] = {}
        for tensor in self.plan.spec.tensors:
            bits = DTYPE_BITS[tensor.side_dtype("dst")]
            for buffer in SideTiles(tensor, "dst").buffers(rank):
                sizes[buffer.key] = prod(buffer.shape) * bits // 8
        return sum(sizes.values()) + self.plan.certificate.staging_nbytes
