"""The rooms of the project: imports point one way, optional parts load lazily, and house rules hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import reshard_planner
from reshard_planner import errors

PLANNER = Path(reshard_planner.__file__).parent
EXECUTORS = PLANNER.parent / "executors" / "reshard_executors"

ORDER = (
    "early",
    "errors",
    "dtypes",
    "box",
    "intset",
    "transfer",
    "forms",
    "yamltext",
    "document",
    "progress",
    "layout",
    "topology",
    "spec",
    "atoms",
    "demand",
    "capacities",
    "bounds",
    "routing",
    "schedule",
    "ir",
    "simulate",
    "compiler",
    "symbolic",
    "replan",
    "models",
    "render",
    "cli",
    "__main__",
)
"""The rooms; each may import only those that stand before it."""

UPWARD = {("ir/plan.py", "render")}
"""Imports against the order: the display hooks of plans, inside functions."""

EXECUTORS_MAY_IMPORT = {"box", "dtypes", "errors", "ir", "spec", "transfer"}
"""What executors see of the planner: the IR, the values that it is made of, and errors."""

COMPILING_EXECUTORS = {"dtensor.py": {"compiler", "layout", "topology"}}
"""What single executors see beside: the front for users of DTensor compiles what they ask for (ADR 14)."""

OUTSIDE = {"intset.py": {"ValueError"}}
"""Errors from outside the tree: callers of these functions add the field and raise their own."""

PROCESS_STATE = {("belongings.py", "_live"), ("groups.py", "_inherited")}
"""Containers that do change: what a process gives back when it ends, and leaves alone when it was forked."""

MAX_LINES = 400

MODULES = sorted(PLANNER.rglob("*.py"))
EVERY_MODULE = [*MODULES, *sorted(EXECUTORS.rglob("*.py"))]


def short(path: Path) -> str:
    root = PLANNER if path.is_relative_to(PLANNER) else EXECUTORS
    return path.relative_to(root).as_posix()


def of_modules(paths: list[Path]) -> pytest.MarkDecorator:
    names = [path.relative_to(PLANNER.parent).as_posix() for path in paths]
    return pytest.mark.parametrize("path", paths, ids=names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    return path.relative_to(PLANNER).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Full names of everything a module imports, and whether that happens inside a function or for types."""
    tree = parse(path)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(function, ast.If) and ast.unparse(function.test) == "TYPE_CHECKING")
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in inside


def planner_rooms(path: Path) -> Iterator[tuple[str, bool]]:
    for name, lazy in imported(path):
        parts = name.split(".")
        if parts[0] == "reshard_planner":
            yield parts[1], lazy


def test_every_room_stands_in_the_order():
    rooms = {room_of(path) for path in MODULES} - {"__init__"}
    assert rooms == set(ORDER)


@of_modules([path for path in MODULES if room_of(path) != "__init__"])
def test_imports_point_one_way(path):
    at = ORDER.index(room_of(path))
    for room, lazy in planner_rooms(path):
        assert room in ORDER, f"{path} imports {room} from the facade, which imports everything"
        allowed = ORDER.index(room) <= at or ((short(path), room) in UPWARD and lazy)
        assert allowed, f"{room_of(path)} must not import {room}"


def test_exceptions_to_the_order_are_used():
    used = {(short(path), room) for path in MODULES for room, _ in planner_rooms(path)}
    assert used >= UPWARD


def test_the_facade_leaves_out_the_command_line_and_the_pictures():
    rooms = {room for room, _ in planner_rooms(PLANNER / "__init__.py")}
    assert not rooms & {"cli", "render", "__main__"}
    assert set(reshard_planner.__all__) <= set(dir(reshard_planner))


@of_modules(sorted(EXECUTORS.rglob("*.py")))
def test_executors_see_only_the_ir(path):
    allowed = EXECUTORS_MAY_IMPORT | COMPILING_EXECUTORS.get(short(path), set())
    assert {room for room, _ in planner_rooms(path)} <= allowed


def test_exceptions_to_what_executors_see_are_used():
    for name, rooms in COMPILING_EXECUTORS.items():
        assert {room for room, _ in planner_rooms(EXECUTORS / name)} >= rooms


@of_modules(MODULES)
def test_the_planner_never_imports_torch_and_only_the_command_line_runs_executors(path):
    found = [(name.split(".")[0], lazy) for name, lazy in imported(path)]
    assert "torch" not in dict(found)
    of_executors = [lazy for name, lazy in found if name == "reshard_executors"]
    if of_executors:
        assert room_of(path) == "cli"
        assert all(of_executors), "executors are loaded only when they run"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_module_of_the_planner_loads_where_torch_is_missing():
    code = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # any import of it fails
import reshard_planner
for module in pkgutil.walk_packages(reshard_planner.__path__, "reshard_planner."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(sorted({name.split(".")[0] for name in sys.modules} & {"reshard_executors", "scipy", "hypothesis"}))
"""
    assert run(code) == "[]"


def test_the_planner_alone_loads_nothing_slow():
    slow = {"networkx", "graphviz", "yaml", "safetensors", "scipy", "sympy", "torch", "reshard_executors"}
    slow.add("argparse")
    found = run(f"import sys, reshard_planner; print(sorted({slow!r} & set(sys.modules)))")
    assert found == "[]"


def test_rooms_that_need_an_optional_part_load_it_on_use():
    code = """
import sys
import reshard_planner as rp
rp.Topology.uniform(8, 4).graph()
print("networkx" in sys.modules, "yaml" in sys.modules)
from reshard_planner.spec import parse_spec
print("yaml" in sys.modules)
"""
    assert run(code).splitlines()[0] == "True False"


@of_modules(EVERY_MODULE)
def test_modules_are_short_and_say_what_they_do(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert ast.get_docstring(parse(path)), f"{path} has no docstring"


@of_modules(EVERY_MODULE)
def test_library_code_neither_asserts_nor_prints(path):
    for node in ast.walk(parse(path)):
        assert not isinstance(node, ast.Assert), f"{path}:{node.lineno} asserts"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "cli" not in path.parts:
            assert node.func.id not in {"print", "input", "eval", "exec"}, f"{path}:{node.lineno}"


@of_modules([path for path in MODULES if room_of(path) not in {"cli", "__main__", "early"}])
def test_the_environment_and_the_terminal_are_read_by_the_command_line_only(path):
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            assert name not in {"os.environ", "os.getenv", "sys.argv", "sys.stdout", "sys.stderr", "sys.exit"}


def error_classes() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }


@of_modules(MODULES)
def test_every_error_raised_is_in_the_tree(path):
    allowed = set(error_classes()) | OUTSIDE.get(short(path), set())
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(made, ast.Call):
            assert ast.unparse(made) == "type(error)", f"{path}:{node.lineno}"
        else:
            assert ast.unparse(made) in allowed, f"{path}:{node.lineno} raises {ast.unparse(made)}"


def test_the_tree_of_errors_is_drawn_as_it_is():
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(?P<indent>[| ]*)(?:\+-- )?(?P<name>[A-Z]\w+Error)\b", line)
        if match:
            depth = len(match["indent"]) // 4 + ("+--" in line)
            above[depth:] = [match["name"]]
            drawn[match["name"]] = above[depth - 1] if depth else None
    classes = error_classes()
    assert {name: base for name, base in drawn.items() if base} == {
        name: value.__base__.__name__ for name, value in classes.items() if name != "ReshardError"
    }
    assert all(value.__doc__ for value in classes.values())


MUTATORS = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear", "remove"}


def bound_names(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


def containers_of(path: Path) -> set[str]:
    """Names of the dicts, lists and sets at module level."""
    made = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
    return {
        name
        for name, value in bound_names(parse(path))
        if isinstance(value, made)
        or (isinstance(value, ast.Call) and getattr(value.func, "id", "") in {"dict", "list", "set"})
    }


def test_exceptions_to_modules_without_state_are_used():
    for name, container in PROCESS_STATE:
        assert container in containers_of(EXECUTORS / name)


@of_modules(EVERY_MODULE)
def test_modules_hold_no_state_that_changes(path):
    """Containers at module level are constants: named so, and changed by no function."""
    tree = parse(path)
    containers = {name for name in containers_of(path) if (short(path), name) not in PROCESS_STATE}
    assert all(name.strip("_").isupper() or name == "__all__" for name in containers), containers
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Global), f"{path}:{node.lineno} changes a global"
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            target = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in MUTATORS else None
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                target = node.value
            if isinstance(target, ast.Name):
                assert target.id not in containers, f"{path}:{node.lineno} changes {target.id}"
