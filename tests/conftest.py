"""Hypothesis profiles: the same examples in every run by default, many more with ``--thorough``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

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
