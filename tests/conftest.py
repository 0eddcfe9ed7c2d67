"""Hypothesis profiles, the same examples in every run or many more with ``--thorough``, and a plan file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from reshard_planner.cli import main

settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=60,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("default"), derandomize=False, max_examples=300)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="many more, random examples per property test")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--thorough"):
        settings.load_profile("thorough")


@pytest.fixture
def plan(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The plan file that the command makes of the spec file of a test."""
    path = tmp_path / "plan.reshard"
    assert main(["compile", str(spec), "-o", str(path)]) == 0
    capsys.readouterr()
    return path
