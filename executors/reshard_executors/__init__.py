"""Executors: run the per-rank programs of a plan.

``Resharder`` runs them on torch.distributed; it is looked up on first use, so that everything else here works
without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard_executors.resharder import Resharder, RunRecord

__all__ = ["Resharder", "RunRecord"]

TORCH_EXTRA = "install the extra reshard-planner[torch]"
"""What to do where torch is missing."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from reshard_executors import resharder  # noqa: PLC0415 - torch is optional
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{name} needs torch, which is not installed; {TORCH_EXTRA}") from None
    return getattr(resharder, name)
