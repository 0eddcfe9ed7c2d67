"""README and docs/ are run: their Python, their commands, their specs and their links.

Blocks are marked by their language:

- ``python`` runs, in one namespace per page; a ``text`` block right after it is what it prints.
- ``console`` lines that start with ``$ reshard-planner`` or ``$ python`` run, and the lines below each are
  what it prints; empty lines between commands do not count. Other commands are for the reader only.
  Those of the README are processes, as a reader starts them; elsewhere ``reshard-planner`` runs in this one.
- ``yaml`` that starts with a comment such as ``# spec.yaml`` is saved under that name for what follows. Every
  other ``yaml`` block is a spec; one without ``version`` replaces fields of the page's first one. A ``text``
  block right after it is the sentence with which the spec is refused; without one it must be accepted.

In what is printed, ``...`` stands for anything: any lines if it is a line, else any part of a line.

Started as a program (``make docs``) this file writes into the pages what their blocks print now.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from test_architecture import ORDER

import reshard_planner
from reshard_planner.cli import main
from reshard_planner.errors import InputError
from reshard_planner.spec.file import parse_spec

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMANDS = ("reshard-planner", "python")
WIDTH = "100"


@dataclass(frozen=True)
class Block:
    """One fenced block; ``start`` and ``stop`` are where its content lies in the page."""

    language: str
    content: str
    start: int
    stop: int


@dataclass(frozen=True)
class Shown:
    """What a page shows at ``start:stop`` as printed, and what was printed now."""

    line: int
    start: int
    stop: int
    expected: str
    actual: str

    @property
    def matches(self) -> bool:
        return matches(self.expected, self.actual)

    @property
    def updated(self) -> str:
        """What is to be shown: what was printed, with the dots of those lines that are still right."""
        new, old = self.actual.splitlines(keepends=True), self.expected.splitlines(keepends=True)
        if len(new) != len(old):
            return self.actual
        return "".join(was if matches(was, now) else now for was, now in zip(old, new, strict=True))


def matches(expected: str, actual: str) -> bool:
    """Whether a text is the expected one, in which dots stand for anything."""
    dots = re.compile(r"(?m)^ *\.\.\.\n|\.\.\.")
    parts, marks = dots.split(expected), dots.findall(expected)
    pattern = re.escape(parts[0])
    for mark, part in zip(marks, parts[1:], strict=True):
        pattern += (r"(?:.*\n)*" if mark.endswith("\n") else r"[^\n]*") + re.escape(part)
    return re.fullmatch(pattern, actual) is not None


def find_blocks(page: str) -> list[Block]:
    return [Block(match[1], match[2], match.start(2), match.end(2)) for match in FENCE.finditer(page)]


def run_page(page: str, run_command: Callable[[list[str]], str]) -> Iterator[Shown]:
    """Run all blocks of a page in the current folder; ``run_command`` gives what a command prints."""
    namespace: dict[str, object] = {"__name__": "page"}
    base: dict[str, object] = {}
    blocks = find_blocks(page)
    for number, block in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        if after and (after.language != "text" or page[block.stop : after.start].strip("`\n") != "text"):
            after = None
        if block.language == "console":
            yield from _run_console(page, block, run_command)
        elif block.language == "python":
            printed = _run_python(block.content, namespace)
        elif block.language == "yaml":
            printed = _read_yaml(block.content, base)
        if block.language in ("python", "yaml") and after:
            yield _shown(page, after.start, after.content, printed)
        elif block.language == "yaml" and printed:
            pytest.fail(f"a spec of the page is refused: {printed}")


def _shown(page: str, start: int, expected: str, actual: str) -> Shown:
    return Shown(page.count("\n", 0, start) + 1, start, start + len(expected), expected, actual)


def _run_python(code: str, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), namespace)  # noqa: S102 - the page's own example
    return printed.getvalue()


def _read_yaml(text: str, base: dict[str, object]) -> str:
    """Read one spec; returns the sentence that refuses it, or nothing."""
    fields = yaml.safe_load(text)
    if name := re.match(r"# (\S+\.(?:yaml|json))\n", text):
        Path(name[1]).write_text(text, encoding="utf-8")
        if "version" not in fields:
            return ""
    if "version" in fields:
        base.update({} if base else fields)
    else:
        text = yaml.safe_dump({**base, **fields})
    try:
        parse_spec(text)
    except InputError as error:
        return f"{error}\n"
    return ""


def _run_console(page: str, block: Block, run_command: Callable[[list[str]], str]) -> Iterator[Shown]:
    position = block.start
    for part in re.split(r"(?m)^(?=\$ )", block.content):
        command, _, printed = part.partition("\n")
        expected = printed.rstrip("\n") + "\n" if printed.strip() else ""
        words = shlex.split(command.removeprefix("$ "), comments=True)
        if command.startswith("$ ") and words[0] in COMMANDS:
            yield _shown(page, position + len(command) + 1, expected, run_command(words))
        position += len(part)


def run_here(words: list[str]) -> str:
    """Run a command of the planner in this process, which saves it half a second; others in their own."""
    if words[0] != "reshard-planner":
        return run_process(words)
    printed = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        patch.setenv("COLUMNS", WIDTH)
        code = main(words[1:])
    if code:
        pytest.fail(f"{shlex.join(words)} exits with {code}:\n{printed.getvalue()}")
    return printed.getvalue()


def run_process(words: list[str]) -> str:
    """Run a command in a process of its own."""
    folder = Path(sys.executable).parent
    program = Path(sys.executable) if words[0] == "python" else folder / words[0]
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": WIDTH}
    done = subprocess.run(
        [program, *words[1:]],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.fail(f"{shlex.join(words)} exits with {done.returncode}:\n{done.stdout}")
    return done.stdout


def copy_examples(folder: Path) -> None:
    """Lay the files that pages name into a folder of their own."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def runner_of(page: Path) -> Callable[[list[str]], str]:
    """How commands of a page run."""
    return run_process if page.name == "README.md" else run_here


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_page_shows_what_its_examples_print(page, tmp_path, monkeypatch):
    copy_examples(tmp_path)
    monkeypatch.chdir(tmp_path)
    for shown in run_page(page.read_text(encoding="utf-8"), runner_of(page)):
        if not shown.matches:
            pytest.fail(f"{name_of(page)}, line {shown.line}, see `make docs`; printed now:\n{shown.actual}")


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_exist(page):
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in LINK.findall(prose):
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", FENCE.sub("", file.read_text(encoding="utf-8")))
            assert anchor in map(slug, headings), f"{name_of(page)} links to {target}"


def test_every_decision_is_listed_in_order():
    decisions = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert [slug(heading) for heading in re.findall(r"(?m)^## (.*)$", text)] == [
            "context",
            "decision",
            "consequence",
        ], path.name


def test_the_architecture_lists_the_rooms_in_their_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^\| (`.+`) \|", page[page.index("## The rooms") :])
    listed = [sorted(ORDER.index(name) for name in re.findall(r"`(\w+)(?:\.py|/)`", line)) for line in lines]
    assert [at for line in listed for at in line] == list(range(len(ORDER)))


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a in ... ms\n", "a in 3 ms\n", True),
        ("a in ... ms\n", "a in 3\n4 ms\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("a.b\n", "axb\n", False),
    ],
)
def test_three_dots_stand_for_anything(expected, actual, same):
    assert matches(expected, actual) == same


def test_an_update_keeps_the_dots_of_lines_that_are_right():
    assert Shown(1, 0, 0, "a\nin ... ms\nc\n", "b\nin 3 ms\nc\n").updated == "b\nin ... ms\nc\n"


@pytest.mark.parametrize(
    "name", [module.name for module in pkgutil.walk_packages(reshard_planner.__path__, "reshard_planner.")]
)
def test_the_examples_of_docstrings_hold(name):
    if name != "reshard_planner.__main__":
        assert doctest.testmod(importlib.import_module(name)).failed == 0


def update(page: Path) -> None:
    """Write into a page what its blocks print now, where that differs."""
    text = page.read_text(encoding="utf-8")
    new = text
    with tempfile.TemporaryDirectory() as folder:
        copy_examples(Path(folder))
        with contextlib.chdir(folder):
            shown = [entry for entry in run_page(text, runner_of(page)) if not entry.matches]
    for entry in reversed(shown):
        new = new[: entry.start] + entry.updated + new[entry.stop :]
    if new != text:
        page.write_text(new, encoding="utf-8")
        sys.stdout.write(f"{name_of(page)}: {len(shown)} blocks updated\n")


if __name__ == "__main__":
    for each in PAGES:
        update(each)
