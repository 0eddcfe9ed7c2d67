"""Finding a tensor or a rank by what was typed, and saying what is near where there is none."""

from __future__ import annotations

import difflib

from reshard_planner.errors import InputError
from reshard_planner.render.text import format_ranks, plain
from reshard_planner.spec import ReshardSpec

MAX_COMPARED = 200
"""Characters of names that are compared to find similar ones."""


def find_tensor(spec: ReshardSpec, name: str) -> int:
    """Position of a tensor in a spec.

    Raises:
        InputError: if there is none of this name, with the nearest names.
    """
    names = [tensor.name for tensor in spec.tensors]
    if name in names:
        return names.index(name)
    shown = plain(name)
    if not names:
        raise InputError(f"tensor '{shown}' is not in the plan, which has no tensors")
    count = f"{len(names)} tensor{'s' * (len(names) != 1)}"
    nearest = ", ".join(f"'{plain(near)}'" for near in _similar(name, names))
    raise InputError(f"tensor '{shown}' is not in the plan, which has {count}; the nearest: {nearest}")


def _similar(name: str, names: list[str]) -> list[str]:
    """Up to three names that are most like a name: those that contain it first."""
    wanted = name[:MAX_COMPARED].casefold()
    folded: dict[str, str] = {}
    for each in names:
        folded.setdefault(each[:MAX_COMPARED].casefold(), each)
    containing = sorted((each for each in folded if wanted and wanted in each), key=len)
    close = difflib.get_close_matches(wanted, folded, 3, 0.0)
    return [folded[each] for each in dict.fromkeys([*containing[:2], *close])][:3]


def check_rank(spec: ReshardSpec, rank: int) -> None:
    """Refuse a rank that the spec does not have.

    Raises:
        InputError: with the nearest ranks.
    """
    ranks = spec.ranks
    if rank in ranks:
        return
    if not ranks:
        raise InputError(f"rank {rank} is not in the plan, which has no ranks")
    near = sorted(sorted(ranks, key=lambda known: (abs(known - rank), known))[:2])
    raise InputError(
        f"rank {rank} is not in the plan, which has the ranks {format_ranks(ranks)};"
        f" the nearest: {', '.join(map(str, near))}"
    )
