"""Versions: what a process runs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from reshard_planner.ir.plan import VERSION, Plan

PROJECT: Final = "reshard-planner"
"""Name of the distribution."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What one rank runs.

    Attributes:
        python: of Python.
        torch: of torch, which brings its gloo; None without torch.
        nccl: of the NCCL that torch was built with; None without.
        numpy: of numpy.
        project: of this project.
        plan_format: of plan files.
        digest: of the plan; None without.
        problem: why there is no plan, if one was asked for.
    """

    python: str
    torch: str | None
    nccl: str | None
    numpy: str
    project: str
    plan_format: int
    digest: str | None
    problem: str | None


def gather(plan: Plan | None, problem: str | None = None) -> Versions:
    """What this process runs.

    Args:
        plan: to be run, if any.
        problem: why there is no plan, if one was asked for.
    """
    torch, nccl = _torch()
    digest = None if plan is None else plan.digest
    numpy, project = version("numpy"), _of_project()
    return Versions(platform.python_version(), torch, nccl, numpy, project, VERSION, digest, problem)


def _torch() -> tuple[str | None, str | None]:
    """Versions of torch and NCCL."""
    try:
        import torch  # noqa: PLC0415 - may be missing, which is a finding
    except ImportError:
        return None, None
    nccl = None
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return str(torch.__version__), nccl


def _of_project() -> str:
    try:
        return version(PROJECT)
    except PackageNotFoundError:  # run from its sources
        return "of no release"
