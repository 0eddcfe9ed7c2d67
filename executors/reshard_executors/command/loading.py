"""Loading torch, which takes a second, and may fail in ways of its own."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from reshard_executors import TORCH_EXTRA
from reshard_planner.errors import InputError


def load_torch(purpose: str) -> None:
    """Import ``torch.distributed``.

    Args:
        purpose: what needs it, such as ``running a plan``.

    Raises:
        InputError: if torch is missing, or does not take its own variables.
    """
    if find_spec("torch") is None:
        raise InputError(f"{purpose} needs torch, which is not installed; {TORCH_EXTRA}")
    try:
        import_module("torch.distributed")
    except (ValueError, RuntimeError, OSError, ImportError) as failure:
        raise InputError(f"{purpose} needs torch, which cannot be loaded: {failure}") from None
