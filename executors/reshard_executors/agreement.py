"""Agreement: all ranks find out together whether they may go on, so that none waits for one that may not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from reshard_executors.jobs import named_error
from reshard_planner.errors import ExecutionError, InputError, ReshardError


def agree(
    group: dist.ProcessGroup, device: torch.device, facts: Mapping[str, str], error: ReshardError | None
) -> None:
    """Compare facts over all ranks of a group; collective over it.

    One all-reduce of hashes decides; the facts themselves are exchanged only if that shows a difference.

    Args:
        group: who must agree.
        device: where the hashes are exchanged.
        facts: what must be equal on all ranks, by name; the names must be the same everywhere.
        error: why this rank cannot go on, if it cannot.

    Raises:
        ReshardError: the same on every rank: the error of the first rank that has one, otherwise an
            :class:`InputError` on the first fact that differs.
        ExecutionError: if the ranks do not meet.
    """
    words = [_hash("" if error is None else repr(error)), *(_hash(fact) for fact in facts.values())]
    least_and_most = torch.tensor([*words, *(-word for word in words)], dtype=torch.int64, device=device)
    everyone: list[tuple[str, str, dict[str, str]] | None] = [None] * dist.get_world_size(group)
    try:
        dist.all_reduce(least_and_most, op=dist.ReduceOp.MAX, group=group)
        most, negated_least = least_and_most.reshape(2, -1).tolist()
        if error is None and all(a == -b for a, b in zip(most, negated_least, strict=True)):
            return
        mine = ("" if error is None else type(error).__name__, str(error or ""), dict(facts))
        dist.all_gather_object(everyone, mine, group=group)
    except RuntimeError as failure:
        raise ExecutionError(f"the ranks did not meet to compare their plans: {reason(failure)}") from failure
    raise _disagreement([said for said in everyone if said is not None])


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


def _hash(text: str) -> int:
    """A hash of 62 bits, so that its negative is a 64-bit integer too."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
