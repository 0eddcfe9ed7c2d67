"""What an installation brings, and that the project's files agree about it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, entry_points, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# what builds of torch for GPUs bring besides; torch itself fixes their versions
GPU_LIBRARIES = re.compile(r"nvidia-.*|cuda-.*|triton")


def requirements(name: str, extras: set[str]) -> list[Requirement]:
    """What an installed package asks for here, with some of its extras."""
    wanted = [Requirement(text) for text in requires(name) or ()]
    return [
        each
        for each in wanted
        if not GPU_LIBRARIES.fullmatch(each.name)
        and (each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}))
    ]


def closure(extras: set[str]) -> set[str]:
    """All packages that an installation with these extras brings, the project left out."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(PROJECT["name"], frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in found:
            continue
        found.add((name, wanted))
        try:
            waiting.extend(
                (canonicalize_name(each.name), frozenset(each.extras))
                for each in requirements(name, set(wanted))
            )
        except PackageNotFoundError:
            pytest.fail(f"{name} is required and not installed")
    return {name for name, _ in found} - {PROJECT["name"]}


def pins() -> dict[str, str]:
    """The versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_planner_alone_brings_no_torch():
    assert "torch" not in closure(set())
    assert "torch" in closure({"torch"})


def test_the_planner_alone_brings_no_tools():
    assert closure(set()) == {
        "graphviz",
        "ml-dtypes",
        "mpmath",
        "msgspec",
        "networkx",
        "numpy",
        "pyyaml",
        "safetensors",
        "scipy",
        "sympy",
    }


def test_every_package_is_pinned_to_one_version():
    pinned = {canonicalize_name(name) for name in pins()}
    assert closure({"dev"}) - pinned == set()
    assert all(re.fullmatch(r"[\w.]+", number) for number in pins().values())


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="`make test` installs the launchers")
def test_every_package_of_the_launchers_is_pinned_and_none_comes_with_the_tools():
    pinned = {canonicalize_name(name) for name in pins()}
    found = closure({"launchers"})
    assert found - pinned == set()
    assert {"openmpi", "ray"} <= found - closure({"dev"})


def test_every_pin_is_in_the_range_that_the_project_states():
    by_name = {canonicalize_name(name): number for name, number in pins().items()}
    for each in requirements(PROJECT["name"], {"dev", "launchers", "torch", "viz"}):
        if each.name != PROJECT["name"]:
            assert by_name[canonicalize_name(each.name)] in each.specifier, each


def test_torch_is_pinned_in_the_lock_and_free_in_the_project():
    assert pins()["torch"] == "2.13.0"
    [torch] = [Requirement(text) for text in PROJECT["optional-dependencies"]["torch"]]
    assert not any(each.operator in ("==", "===", "<", "<=") for each in torch.specifier)


@pytest.mark.parametrize("package", ["reshard_planner", "reshard_executors"])
def test_the_package_says_that_it_is_typed(package):
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


def test_the_wheel_has_everything_that_is_read_from_the_package(tmp_path):
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("reshard_planner", "executors"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=kept)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('out'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    read = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "reshard_planner").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert len([name for name in read if name.endswith((".css", ".js", ".html"))]) >= 10
    assert read - packed == set()


def test_the_version_is_the_same_everywhere():
    assert version(PROJECT["name"]) == PROJECT["version"]
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^## \[(.+)\]", log)
    assert headings[:2] == ["Unreleased", PROJECT["version"]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reshard-planner", "reshard_planner.cli:main"),
        ("reshard-executors", "reshard_executors.command:start"),
    ],
)
def test_the_command_is_installed_and_starts_the_command_line(name, value):
    [script] = entry_points(group="console_scripts", name=name)
    assert script.value == value
    assert callable(script.load())


def test_the_licence_travels_with_the_package():
    assert PROJECT["license"] == "Apache-2.0"
    assert distribution(PROJECT["name"]).metadata["License-Expression"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
