"""Executors: run the per-rank programs of a plan.

What needs torch is looked up on first use, so that everything else here works without it: ``Resharder`` runs
plans on torch.distributed, ``Redistributor`` and ``redistribute`` serve users of DTensor, ``rank_info`` and
``start_world`` take what a launcher says, ``join_jobs`` makes a process group of several jobs, and
``agree_on_lost`` is what survivors of a failure do before they go on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard_executors.dtensor import Redistributor, redistribute, xferdtensor
    from reshard_executors.given import Described
    from reshard_executors.groups import join_jobs
    from reshard_executors.launchers import RankInfo, rank_info, start_world
    from reshard_executors.record import Refit, RunRecord
    from reshard_executors.resharder import Resharder
    from reshard_executors.survivors import agree_on_lost
    from reshard_planner.errors import ContentsError, ExecutionError

__all__ = [
    "ContentsError",
    "Described",
    "ExecutionError",
    "RankInfo",
    "Redistributor",
    "Refit",
    "Resharder",
    "RunRecord",
    "agree_on_lost",
    "join_jobs",
    "rank_info",
    "redistribute",
    "start_world",
    "xferdtensor",
]

TORCH_EXTRA = "install the extra reshard-planner[torch]"
"""What to do where torch is missing."""

HOMES = {
    **dict.fromkeys(("Refit", "RunRecord"), "record"),
    "Resharder": "resharder",
    **dict.fromkeys(("Redistributor", "redistribute", "xferdtensor"), "dtensor"),
    "Described": "given",
    "join_jobs": "groups",
    "agree_on_lost": "survivors",
    **dict.fromkeys(("RankInfo", "rank_info", "start_world"), "launchers"),
}
"""The module of each name."""

ERRORS = ("ContentsError", "ExecutionError")
"""Names that are the planner's, which is large: the command hears signals before it is imported."""


def __getattr__(name: str) -> object:
    if name in ERRORS:
        return getattr(import_module("reshard_planner.errors"), name)
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"reshard_executors.{HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{name} needs torch, which is not installed; {TORCH_EXTRA}") from None
    return getattr(module, name)
