"""Agreement: all ranks find out together whether they may go on, so that none waits for one that may not."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from reshard_executors.jobs import named_error
from reshard_planner.errors import ExecutionError, InputError, ReshardError
from reshard_planner.spec import ReshardSpec

LONGEST = timedelta(days=7)
"""Most that a timeout may be: longer than jobs live, and short enough for every clock of a backend."""

ENDLESS = 2 * LONGEST
"""A timeout for what somebody else watches."""

HOSTS = "compare their hosts"
"""What ranks meet for in :func:`agree_on_hosts`."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of comparing facts, the same on every rank.

    Attributes:
        error: why the ranks cannot go on; None if they can.
        most: the largest of their numbers.
    """

    error: ReshardError | None
    most: int


def agree(
    group: dist.ProcessGroup,
    device: torch.device,
    facts: Mapping[str, str],
    error: ReshardError | None,
    purpose: str,
    number: int = 0,
) -> Agreement:
    """Compare facts over all ranks of a group; collective over it.

    One all-reduce of hashes decides; the facts themselves are exchanged only if that shows a difference.

    Args:
        group: who must agree.
        device: where the hashes are exchanged.
        facts: what must be equal on all ranks, by name; the names must be the same everywhere.
        error: why this rank cannot go on, if it cannot.
        purpose: what the ranks meet to do, for the error if they do not.
        number: something of which all ranks learn the largest, 0 or more.

    Returns:
        The error of the first rank that has one, otherwise an :class:`InputError` on the first fact that
        differs, otherwise none.

    Raises:
        ExecutionError: if the ranks do not meet.
    """
    words = [hash_of("" if error is None else repr(error)), *(hash_of(fact) for fact in facts.values())]
    exchanged = torch.tensor([number, *words, *(-word for word in words)], dtype=torch.int64, device=device)
    everyone: list[tuple[str, str, dict[str, str]] | None] = [None] * dist.get_world_size(group)
    with meeting_to(purpose):
        dist.all_reduce(exchanged, op=dist.ReduceOp.MAX, group=group)
        most_number, *ends = exchanged.tolist()
        most, negated_least = ends[: len(words)], ends[len(words) :]
        if error is None and all(a == -b for a, b in zip(most, negated_least, strict=True)):
            return Agreement(None, most_number)
        mine = ("" if error is None else type(error).__name__, str(error or ""), dict(facts))
        dist.all_gather_object(everyone, mine, group=group)
    return Agreement(_disagreement([said for said in everyone if said is not None]), most_number)


def add_up(group: dist.ProcessGroup, sums: torch.Tensor, purpose: str) -> list[int]:
    """Add numbers over all ranks, modulo 2 to the 64th; collective, and without a timeout of its own.

    Args:
        group: whose ranks.
        sums: this rank's numbers, int64, shape (n,); overwritten.
        purpose: what the ranks meet to do, for the error if they do not.

    Raises:
        ExecutionError: if the ranks do not meet.
    """
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
    options.timeout = ENDLESS
    with meeting_to(purpose):
        group.allreduce([sums], options).wait()
        found: list[int] = sums.tolist()
    return found


@contextlib.contextmanager
def meeting_to(purpose: str) -> Iterator[None]:
    """Turn what a backend raises where ranks do not meet into an ExecutionError.

    Args:
        purpose: what they meet to do, such as ``compare their plans``.
    """
    try:
        yield
    except (RuntimeError, ValueError) as failure:  # the latter for a group that has been destroyed
        raise ExecutionError(f"{not_met(purpose)}: {reason(failure)}") from failure


def not_met(purpose: str) -> str:
    """What is said of ranks that do not meet to do something."""
    return f"the ranks did not meet to {purpose}"


def agree_on_hosts(
    group: dist.ProcessGroup, device: torch.device, spec: ReshardSpec, played: Sequence[int]
) -> None:
    """Compare the hosts that the processes run on with the domains of the topology; collective.

    A domain may span hosts and a host may hold domains, but what a host holds of a domain is either all of
    the domain or all of the host. Otherwise processes were started in another order than the plan expects.

    Args:
        group: who must agree.
        device: where the hashes of hosts are exchanged.
        spec: of the plan.
        played: rank of the plan that each process of the group plays.

    Raises:
        InputError: on every rank, naming domains and hosts.
        ExecutionError: if the ranks do not meet.
    """
    home = {gpu: at for at, domain in enumerate(spec.topology.domains) for gpu in domain.gpus}
    ours = set(spec.ranks)
    domain_of = {at: home[spec.topology.gpu_of(rank)] for at, rank in enumerate(played) if rank in ours}
    name = socket.gethostname()
    hashes = torch.zeros(len(played), dtype=torch.int64, device=device)
    hashes[group.rank()] = hash_of(name)
    names: list[str] = [""] * len(played)
    with meeting_to(HOSTS):
        dist.all_reduce(hashes, op=dist.ReduceOp.MAX, group=group)
        mixed = find_mixed(domain_of, hashes.tolist())
        if mixed is None:
            return
        dist.all_gather_object(names, name, group=group)
    one, other = mixed
    raise InputError(
        f"ranks {played[one]} and {played[other]} are both on host {names[one]}, but in domains"
        f" {domain_of[one]} and {domain_of[other]} of the topology, one of which has ranks on other hosts;"
        " expected processes in the order of the topology, or ranks= that says who plays which rank"
    )


def find_mixed(domain_of: Mapping[int, int], hosts: Sequence[int]) -> tuple[int, int] | None:
    """Two processes of one host and different domains, one of which reaches out of the host; None if none.

    Args:
        domain_of: domain of each process, by its position; of those that have one.
        hosts: host of each process.
    """
    spread: dict[int, set[int]] = {}
    for at, domain in domain_of.items():
        spread.setdefault(domain, set()).add(hosts[at])
    first: dict[int, int] = {}
    for at, domain in domain_of.items():
        other = first.setdefault(hosts[at], at)
        if domain_of[other] != domain and max(len(spread[domain]), len(spread[domain_of[other]])) > 1:
            return other, at
    return None


def _disagreement(everyone: Sequence[tuple[str, str, dict[str, str]]]) -> ReshardError:
    for kind, text, _ in everyone:
        if kind:
            return named_error(kind, text)
    first = everyone[0][2]
    for at, (_, _, facts) in enumerate(everyone):
        for name, fact in facts.items():
            if fact != first[name]:
                return InputError(
                    f"{name} is {first[name]} on rank 0 of the group, but {fact} on rank {at};"
                    " expected the same on all ranks"
                )
    return ExecutionError("the ranks disagree, but not on any fact that they exchanged")


def reason(failure: BaseException) -> str:
    """What a failure of torch says, in one line and without the place in its sources."""
    text = str(failure).split("\n", 1)[0].split(" This is typically", 1)[0].strip()
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
    return text.rstrip(".") or type(failure).__name__


def hash_of(text: str) -> int:
    """A hash of 62 bits, so that its negative is a 64-bit integer too."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
