"""The three forms of a plan: what is written reads back equal, and nothing else reads back at all."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _plans import sample_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors
from safetensors.numpy import save_file
from strategies import specs

import reshard_planner as rp
from reshard_planner.cli import main
from reshard_planner.errors import DigestError, PlanFileError
from reshard_planner.ir import forms, jsonform, textform
from reshard_planner.ir.digest import block_hashes, canonical_json, destination_index, header_digest
from reshard_planner.ir.file import load_file, read_header
from reshard_planner.ir.tables import TABLE_TYPES, Tables

SAMPLES = tuple(sample_plans())
SUFFIXES = ("reshard", "json", "txt")
TEXT_FORMS = {"json": jsonform, "txt": textform}

Change = Callable[[Any], object]


@pytest.fixture(params=SUFFIXES)
def stored(request, tmp_path) -> Path:
    """The plan with most features in each of the forms."""
    path = tmp_path / f"plan.{request.param}"
    forms.save_as(sample_plans()["gather-broadcast"], path)
    return path


def assert_reads_back_or_is_refused(path: Path, plan: rp.Plan) -> None:
    with contextlib.suppress(PlanFileError, DigestError):
        assert forms.load(path) == plan
    with contextlib.suppress(PlanFileError):
        forms.load(path, check=False)


# --- what is written reads back equal ---


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_gives_the_plan_back(name, suffix, tmp_path):
    plan = sample_plans()[name]
    path = tmp_path / f"plan.{suffix}"
    forms.save_as(plan, path)
    assert rp.Plan.load(path) == plan
    assert forms.load(path, check=False) == plan
    assert forms.is_plan(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@given(specs())
def test_forms_of_any_plan_give_it_back(tmp_path_factory, spec):
    plan = rp.compile(spec)
    path = tmp_path_factory.mktemp("forms") / "plan"
    plan.save(path)
    assert rp.Plan.load(path) == plan
    assert jsonform.loads(plan.to_json()) == plan
    assert textform.loads(plan.to_text()) == plan


@given(st.data())
def test_malformed_tables_are_kept_as_they_are_for_verify_to_judge(tmp_path_factory, data):
    plan = sample_plans()[data.draw(st.sampled_from(["optimal", "gather-broadcast"]))]
    name = data.draw(st.sampled_from(list(TABLE_TYPES)))
    table = plan.tables.named()[name]
    column = data.draw(st.sampled_from([column for column, values in table.columns().items() if values.size]))
    values = table.columns()[column].copy()
    limits = np.iinfo(values.dtype)
    edges = st.sampled_from([limits.min, limits.max, max(limits.min, -1), 0])
    values.flat[data.draw(st.integers(0, values.size - 1))] = data.draw(edges)
    changed = type(table).of({**table.columns(), column: values})
    bad = rp.Plan.seal(plan.spec, replace(plan.tables, **{name: changed}), plan.certificate)
    path = tmp_path_factory.mktemp("forms") / "plan"
    bad.save(path)
    assert rp.Plan.load(path) == bad
    assert jsonform.loads(bad.to_json()) == bad
    assert textform.loads(bad.to_text()) == bad


def test_a_plan_without_rows_keeps_the_dimensions_of_its_boxes(tmp_path):
    plan = sample_plans()["plain"]
    empty = {
        name: type(table).of({column: values[:0] for column, values in table.columns().items()})
        for name, table in plan.tables.named().items()
    }
    bare = rp.Plan.seal(plan.spec, Tables(**empty), plan.certificate)
    bare.save(tmp_path / "plan")
    assert rp.Plan.load(tmp_path / "plan") == bare
    assert textform.loads(bare.to_text()).pieces.lo.shape == (0, 2)


def test_saving_a_loaded_plan_gives_the_same_bytes(stored):
    before = stored.read_bytes()
    forms.save_as(forms.load(stored), stored)
    assert stored.read_bytes() == before


def test_equal_plans_have_equal_bytes_under_any_hash_seed(tmp_path):
    script = (
        "import sys; from pathlib import Path; from _plans import sample_plans\n"
        "from reshard_planner.ir.forms import save_as\n"
        "for name, plan in sample_plans().items():\n"
        "    for suffix in ('reshard', 'json', 'txt'):\n"
        "        save_as(plan, Path(sys.argv[1]) / f'{name}.{suffix}')\n"
    )
    contents = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)}
        subprocess.run([sys.executable, "-c", script, str(folder)], env=environment, check=True)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(contents[0]) == len(SAMPLES) * len(SUFFIXES)
    assert contents[0] == contents[1]


def test_the_form_is_told_by_content_and_not_by_name(stored):
    renamed = stored.with_name("anything.yaml")
    stored.rename(renamed)
    assert forms.is_plan(renamed)
    assert forms.load(renamed) == sample_plans()["gather-broadcast"]


# --- nothing else reads back ---


def test_a_truncated_plan_is_refused(stored):
    whole = stored.read_bytes()
    step = max(1, len(whole) // 150)
    for length in [*range(0, len(whole) - 1, step), len(whole) - 2]:
        stored.write_bytes(whole[:length])
        with pytest.raises((PlanFileError, DigestError)):
            forms.load(stored)


def test_a_lengthened_plan_is_refused_or_equal(stored):
    whole = stored.read_bytes()
    for tail in (b"\0", b"x", b"\n", whole):
        stored.write_bytes(whole + tail)
        assert_reads_back_or_is_refused(stored, sample_plans()["gather-broadcast"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_plan_is_refused_or_equal(tmp_path_factory, suffix, data):
    plan = sample_plans()["optimal"]
    path = tmp_path_factory.mktemp("damaged") / f"plan.{suffix}"
    forms.save_as(plan, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert_reads_back_or_is_refused(path, plan)


@settings(max_examples=300)
@given(data=st.data())
def test_a_json_plan_with_any_value_replaced_is_refused_or_equal(data):
    plan = sample_plans()["optimal"]
    raw = json.loads(plan.to_json())
    at: Any = raw
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.integers(0, 3)) == 0:
            break
        at = at[key]
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    odd = [2**31, 2**63, 10**30, "0-3", "0-99999999", "R", "S(0)", "P", "_S(9, sf=3)", float("inf")]
    at[key] = data.draw(st.sampled_from(odd) | st.recursive(leaves, st.lists, max_leaves=3))
    text = json.dumps(raw)
    with contextlib.suppress(PlanFileError, DigestError):
        assert jsonform.loads(text) == plan
    try:
        found = jsonform.loads(text, check=False)
    except PlanFileError:
        return
    assert textform.loads(found.to_text(), check=False) == found


FOREIGN = {
    "empty": b"",
    "blank": b" \n",
    "zeros": bytes(64),
    "prose": b"plans are useless, planning is everything\n",
    "spec": b"version: 1\nmeshes: {}\ntensors: []\n",
    "json spec": b'{"version": 1, "meshes": {}, "tensors": []}',
    "json list": b"[1, 2]",
    "json of another program": b'{"digest": 3}',
    "not utf-8": b'{"version": 1, "digest": "\xff"}',
    "zip": b"PK\x03\x04" + bytes(60),
    "pickle": pickle.dumps({"version": 1}),
    "nested json": b'{"version":' + b"[" * 100_000,
    "nested safetensors": (10**5).to_bytes(8, "little") + b'{"a":' * 20_000,
    "safetensors without header": to_safetensors({"w": np.zeros(3, dtype=np.float32)}),
    "safetensors with other metadata": to_safetensors({"w": np.zeros(3)}, {"format": "pt"}),
    "huge header": (2**31).to_bytes(8, "little") + b"{}",
    "another version as text": b"plan 1\n",
    "another version as json": b'{"version": 1}',
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_files_are_refused_in_one_sentence_that_names_them(tmp_path, content):
    path = tmp_path / "foreign"
    path.write_bytes(content)
    for read in (forms.load, load_file, read_header):
        with pytest.raises(PlanFileError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_specs_and_other_documents_do_not_look_like_plans(tmp_path):
    path = tmp_path / "other"
    for name in ("empty", "prose", "spec", "json spec", "json list", "json of another program", "pickle"):
        path.write_bytes(FOREIGN[name])
        assert not forms.is_plan(path)
    assert not forms.is_plan(tmp_path)
    assert not forms.is_plan(tmp_path / "missing")


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(PlanFileError, match=r"cannot read .*missing: No such file or directory"):
        forms.load(tmp_path / "missing")
    with pytest.raises(PlanFileError, match="not a regular file"):
        forms.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanFileError, match="not a regular file"):
        load_file(tmp_path / "pipe")


def test_files_too_large_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(PlanFileError, match="1099511627776 bytes; expected at most"):
        load_file(path)
    with path.open("wb") as stream:
        stream.write(b"plan 2")
        stream.truncate(2**31)
    with pytest.raises(PlanFileError, match="2147483648 bytes; expected at most"):
        forms.load(path)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_loading_never_unpickles(tmp_path):
    target = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(target))
    column = np.frombuffer(bomb, dtype=np.uint8)
    path = tmp_path / "plan"
    for content in (
        bomb,
        b"plan 2\n" + bomb,
        to_safetensors({"routes.src": column}, {"reshard_plan": pickle.dumps(Bomb(target), 0).decode()}),
    ):
        path.write_bytes(content)
        for read in (forms.load, load_file, read_header):
            with pytest.raises(PlanFileError):
                read(path)
    assert not target.exists()
    pickle.loads(bomb)  # noqa: S301 - shows that the bomb works
    assert target.exists()


# --- files made with care, whose hashes are right ---


def forge(path: Path, columns: Change = bool, header: Change = bool) -> None:
    """Change columns and header of a plan file and make all hashes right again."""
    with safe_open(path, framework="np") as file:
        raw = json.loads(file.metadata()["reshard_plan"])
        content = {name: file.get_tensor(name) for name in raw["columns"]}
    columns(content)
    raw["blocks"] = block_hashes(content)
    raw["columns"] = {name: [column.dtype.str, list(column.shape)] for name, column in content.items()}
    header(raw)
    if len(raw["digest"]) == 64:
        raw["digest"] = header_digest(raw)
    save_file(content, path, {"reshard_plan": canonical_json(raw).decode()})


@pytest.fixture
def binary(tmp_path) -> Path:
    path = tmp_path / "plan.reshard"
    sample_plans()["optimal"].save(path)
    return path


def test_a_forged_file_without_changes_is_the_plan(binary):
    before = binary.read_bytes()
    forge(binary)
    assert binary.read_bytes() == before


def set_topology(**fields: object) -> Change:
    def change(raw: Any) -> None:
        raw["spec"]["topology"] = fields

    return change


FORGED_HEADERS = {
    "version is 1": lambda raw: raw.update(version=1),
    "version is True": lambda raw: raw.update(version=True),
    "unknown field 'extra'": lambda raw: raw.update(extra=1),
    "digest is 'x'": lambda raw: raw.update(digest="x"),
    "lacks the field 'spec'": lambda raw: raw.pop("spec"),
    "certificate is 3": lambda raw: raw.update(certificate=3),
    "certificate lacks the field 'gap'": lambda raw: raw["certificate"].pop("gap"),
    "canonical form": lambda raw: raw["spec"]["options"].update(staging="1GiB"),
    "spec: options.lag is 0": lambda raw: raw["spec"]["options"].update(lag=0),
    "topology has the field 'file'": set_topology(file="other.yaml"),
    "topology has the field 'preset'": set_topology(preset="dgx-h100", nodes=10**12),
    "topology is 'here'": lambda raw: raw["spec"].update(topology="here"),
    "lists 100000": lambda raw: raw["spec"]["meshes"]["m0"].update(ranks="0-9999999"),
    "lists 100": set_topology(domains=["0-9999999"] * 100),
    "block 0 of column 'routes.src'": lambda raw: raw["blocks"].update({"routes.src": []}),
    "block 0 of column 'index.by_dst'": lambda raw: raw["blocks"].update({"index.by_dst": ["0" * 64]}),
    "or not that of its content": lambda raw: raw["blocks"].update({"routes.src2": []}),
}


@pytest.mark.parametrize("expected", FORGED_HEADERS)
def test_forged_headers_are_refused(binary, expected):
    forge(binary, header=FORGED_HEADERS[expected])
    with pytest.raises((PlanFileError, DigestError), match=re.escape(expected)):
        load_file(binary)


def assign(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(content: Any) -> None:
        content[name] = make(content[name])

    return change


ROWS = len(sample_plans()["optimal"].routes)
FORGED_COLUMNS = {
    "'routes.src' is missing": lambda content: content.pop("routes.src"),
    "'routes.weight' is unknown": lambda content: content.update({"routes.weight": np.zeros(3)}),
    "'index.by_dst' is missing": lambda content: content.pop("index.by_dst"),
    "'routes.src' has elements <i8": assign("routes.src", lambda column: column.astype(np.int64)),
    "'routes.dst' has elements F32": assign("routes.dst", lambda column: column.astype(np.float32)),
    "'routes.medium' has elements I8": assign("routes.medium", lambda column: column.astype(np.int8)),
    "'routes.piece' has elements <i4 and shape": assign("routes.piece", lambda column: column[None]),
    "'pieces.lo' has elements": assign("pieces.lo", lambda column: column[:, 0].copy()),
    "'pieces.hi' have": assign("pieces.hi", lambda column: column[:, :1].copy()),
    f"'routes.tile' has {ROWS - 1} rows; expected {ROWS}": assign(
        "routes.tile", lambda column: column[1:].copy()
    ),
    "'groups.subst_to' has 1 rows": assign("groups.subst_to", lambda _: np.zeros(1, dtype=np.int32)),
    "at most 16": lambda content: content.update(
        {name: np.zeros((len(content[name]), 65), dtype=np.int64) for name in ("pieces.lo", "pieces.hi")}
    ),
    f"'index.by_dst' has elements <i4 and shape [{ROWS - 1}]": assign(
        "index.by_dst", lambda column: column[1:].copy()
    ),
    "not the order of the routes": assign("index.by_dst", lambda column: column[::-1].copy()),
}


@pytest.mark.parametrize("expected", FORGED_COLUMNS)
def test_forged_columns_are_refused(binary, expected):
    forge(binary, columns=FORGED_COLUMNS[expected])
    with pytest.raises(PlanFileError, match=re.escape(expected)):
        load_file(binary)


@pytest.mark.parametrize("bad", [-1, 2**31 - 1])
def test_an_index_out_of_range_is_refused(binary, bad):
    forge(binary, columns=assign("index.by_dst", lambda column: np.full_like(column, bad)))
    with pytest.raises(PlanFileError, match="not the order of the routes"):
        load_file(binary)


def test_a_plan_that_contradicts_its_digest_is_read_only_when_asked(tmp_path):
    plan = replace(sample_plans()["optimal"], digest="0" * 64)
    for suffix in SUFFIXES:
        path = tmp_path / f"plan.{suffix}"
        forms.save_as(plan, path)
        with pytest.raises(DigestError, match="digest is 0000"):
            forms.load(path)
        assert forms.load(path, check=False) == plan


# --- the file ---


def test_the_header_is_read_alone_and_checked(binary):
    plan = sample_plans()["optimal"]
    header = read_header(binary)
    assert header["digest"] == plan.digest
    assert header["version"] == plan.version
    assert header["certificate"] == json.loads(json.dumps(plan.certificate.to_dict()))
    content = binary.read_bytes().replace(b'\\"lag\\":2', b'\\"lag\\":3')
    binary.write_bytes(content)
    with pytest.raises(DigestError, match="the header gives"):
        read_header(binary)


def test_the_index_lists_what_each_rank_receives(binary):
    plan = sample_plans()["optimal"]
    with safe_open(binary, framework="np") as file:
        index = file.get_tensor("index.by_dst")
    assert sorted(index.tolist()) == list(range(len(plan.routes)))
    assert index.tolist() == destination_index(plan.routes).tolist()
    for rank in plan.ranks:
        first, last = np.searchsorted(plan.routes.dst[index], [rank, rank + 1])
        assert index[first:last].tolist() == np.flatnonzero(plan.routes.dst == rank).tolist()


def test_columns_of_a_loaded_plan_are_read_only(stored):
    for table in forms.load(stored).tables.named().values():
        for column in table.columns().values():
            assert not column.flags.writeable


# --- writing is all or nothing ---


def fail(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("named", [False, True], ids=["nameless", "named"])
def test_a_failed_write_leaves_the_folder_as_it_was(monkeypatch, tmp_path, suffix, step, named):
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    old, new = tmp_path / f"old.{suffix}", tmp_path / f"new.{suffix}"
    old.write_text("older content")
    plan = sample_plans()["plain"]
    monkeypatch.setattr(os, step, fail)
    for path in (old, new):
        with pytest.raises(PlanFileError, match=f"cannot write .*{path.name}: No space left on device"):
            forms.save_as(plan, path)
    monkeypatch.setattr(os, step, interrupt)
    for path in (old, new):
        with pytest.raises(KeyboardInterrupt):
            forms.save_as(plan, path)
    assert [entry.name for entry in tmp_path.iterdir()] == [old.name]
    assert old.read_text() == "older content"


def test_files_are_written_where_the_system_has_no_nameless_ones(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    sample_plans()["plain"].save(tmp_path / "plan")
    assert rp.Plan.load(tmp_path / "plan") == sample_plans()["plain"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan"]


def test_a_full_disk_leaves_nothing(tmp_path):
    script = (
        "import resource, sys; from pathlib import Path; from _plans import sample_plans\n"
        "plan = sample_plans()['plain']\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "plan.save(Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "plan")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PlanFileError: cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_only_whole_files(tmp_path):
    script = (
        "import sys; from pathlib import Path; from _plans import sample_plans\n"
        "while True: sample_plans()['plain'].save(Path(sys.argv[1])); print('saved', flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", script, str(tmp_path / "plan")]
    for times in (1, 7):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert [writer.stdout.readline() for _ in range(times)] == ["saved\n"] * times
            writer.kill()
        assert (tmp_path / "plan").exists()
        for path in tmp_path.iterdir():
            assert rp.Plan.load(path) == sample_plans()["plain"]


def test_files_that_cannot_be_written_are_refused(tmp_path):
    plan = sample_plans()["plain"]
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "folder").mkdir()
    for path, reason in (
        (tmp_path / "missing" / "plan", "No such file or directory"),
        (tmp_path / "file" / "plan", "Not a directory"),
        (tmp_path / "folder", "it is not a regular file"),
        (Path(os.devnull), "it is not a regular file"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "nul\0name", "null byte"),
    ):
        with pytest.raises(PlanFileError, match=f"cannot write (.|\\n)*{reason}"):
            plan.save(path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_link_is_written_through(tmp_path):
    plan = sample_plans()["plain"]
    (tmp_path / "target").write_text("older content")
    (tmp_path / "link").symlink_to("target")
    plan.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert rp.Plan.load(tmp_path / "target") == plan


def test_files_get_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        sample_plans()["plain"].save(tmp_path / "plan")
    finally:
        os.umask(before)
    assert (tmp_path / "plan").stat().st_mode & 0o777 == 0o640


# --- the readable forms ---


@pytest.mark.parametrize("form", TEXT_FORMS.values(), ids=TEXT_FORMS.keys())
def test_readable_forms_are_ascii_lines(form):
    for plan in sample_plans().values():
        text = form.dumps(plan)
        assert text.isascii()
        assert text.endswith("\n")
        assert all(line == line.rstrip() and line.isprintable() for line in text.split("\n"))


def test_the_json_form_has_five_fields_and_all_columns():
    raw = json.loads(sample_plans()["optimal"].to_json())
    assert list(raw) == ["version", "digest", "spec", "certificate", "tables"]
    for name, kind in TABLE_TYPES.items():
        assert list(raw["tables"][name]) == list(kind.DTYPES)


BROKEN_LINES = [
    (r"plan 2", "plan one", "LINE is \"plan one\"; expected 'plan {version}'"),
    (r"plan 2", "plan 1", "LINE is .*; version is 1; this release reads version 2"),
    (r"lag 2", "lag two", "LINE is .*; expected 'options strategy"),
    (r"lag 2", "lag 0", "LINE is .*; spec: options.lag is 0"),
    (r'"tp": 2', '"tp": 2,', "LINE is .*; not valid JSON"),
    (r'"tp": 2', '"tp": 3', "LINE is .*; spec: meshes.m0: "),
    (r"ranks 0-1", "ranks 1-0", "LINE is .*; spec: meshes.m0.ranks: range '1-0' runs backwards"),
    (r"tensor 0", "tensor 1", "LINE is .*; expected the number 0"),
    (r"bfloat16", "float15", r"LINE is .*; spec: tensors\[0\].dtype: dtype 'float15'"),
    (r"S\(1\)", "S(2)", r"LINE is .*; spec: tensors\[0\]: "),
    (r"efficiency 0.7", "efficiency x", "LINE is .*; not valid JSON"),
    (r"gap 0.0", "gap 0,0", "LINE is .*; not valid JSON"),
    (r"gap 0.0", "gap 1e999", "certificate: a number is not finite"),
    (r"certificate gap .*\n", "", "certificate lacks the field 'gap'"),
    (r"route 3: piece", "route 4: piece", "LINE is .*; expected the number 3"),
    (r"r0 -> r3", "r0 -> r99999999999", "LINE is .*; dst is out of range"),
    (
        r"r0 -> r3 network",
        "r0 -> r3 pigeon",
        "LINE is .*; medium is 'pigeon'; expected one of local, nvlink",
    ),
    (r"r0 -> r3 network", "r0 to r3 network", "LINE is .*; expected 'route {row}: piece"),
    (
        r"box \[0:4, 0:2\]",
        "box [0:4, 0:2, 0:1]",
        "LINE is .*; the box has 3 dimensions; expected at most 2",
    ),
    (r"dims 2", "dims 999", "LINE is .*; dims is 999; expected at most 16"),
    (r"box \[0:4, 0:2\]", "box [0:4, 0:9999999999999999999]", "column 'pieces.hi' has a number of more"),
    (r"routes 8", "routes 9", r"line \d+ is .schedule 1.; expected 'route {row}"),
    (r"unit 0.*\n", "", r"the text ends after line \d+; expected 'unit {row}"),
    (r"(unit 0.*\n)", r"\1\1", "NEXT is .*; expected the end of the text"),
]


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN_LINES)
def test_errors_of_the_text_form_name_the_line_and_show_it(old, new, expected):
    text = sample_plans()["plain"].to_text()
    match = re.search(old, text)
    number = text.count("\n", 0, match.start()) + 1
    pattern = expected.replace("LINE", f"line {number}").replace("NEXT", f"line {number + 1}")
    with pytest.raises(PlanFileError, match=pattern):
        textform.loads(text[: match.start()] + match.expand(new) + text[match.end() :])


def test_an_edited_text_contradicts_its_digest():
    text = sample_plans()["plain"].to_text().replace("r0 -> r3", "r0 -> r5")
    with pytest.raises(DigestError, match="the content gives"):
        textform.loads(text)
    assert 5 in textform.loads(text, check=False).routes.dst[:4].tolist()


BROKEN_JSON = [
    ('"version": 2', '"version": 2, "version": 2', "'version' is given twice"),
    ('"version": 2', '"version": "2"', "version is '2'; this release reads version 2"),
    ('"version": 2', '"version": 1', "version is 1; this release reads version 2"),
    ('"gap": 0.0', '"gap": "0"', "certificate.gap is '0'; expected float"),
    ('"slots": ', '"slots": 0.5, "slot": ', "certificate.schedule.slots is 0.5; expected int"),
    ('"digest"', '"digest_"', "not a plan: it has no digest"),
    ('"group_of": [0]', '"group_of": [0.0]', "column 'groups.group_of': Expected `int`, got `float`"),
    ('"group_of": [0]', '"group_of": [true]', "column 'groups.group_of': Expected `int`, got `bool`"),
    ('"group_of": [0]', '"group_of": [4294967296]', "'groups.group_of' has 4294967296 in row 0; expected -2"),
    ('"group_of": [0]', f'"group_of": [{10**30}]', "'groups.group_of' has a number of more"),
    ('"lo": [[0, 0], ', '"lo": [[0], ', "'pieces.lo' has rows of different lengths"),
    ('"round": [0]', '"round": []', "column 'schedule.round' has 0 rows; expected 1"),
    ('"round"', '"rounds"', "column 'schedule.round' is missing"),
]


@pytest.mark.parametrize(("old", "new", "expected"), BROKEN_JSON)
def test_errors_of_the_json_form_name_the_field(old, new, expected):
    text = sample_plans()["plain"].to_json()
    assert old in text
    with pytest.raises(PlanFileError, match=expected):
        jsonform.loads(text.replace(old, new, 1))


# --- show ---


def test_show_without_filters_is_the_text_form():
    plan = sample_plans()["gather-broadcast"]
    assert textform.show(plan) == plan.to_text()


def test_show_lists_every_operation_where_it_is_sent_received_and_copied():
    plan = sample_plans()["gather-broadcast"]
    ops = plan.ops()
    seen: dict[str, list[int]] = {"send": [], "receive": [], "copy:": []}
    for rank in plan.ranks:
        for line in textform.show(plan, rank=rank).splitlines():
            if not line.startswith("slot"):
                seen[line.split()[0]].append(int(re.search(r" op (\d+) ", line)[1]))
    moved = ops.op[ops.src != ops.dst].tolist()
    assert sorted(seen["send"]) == sorted(seen["receive"]) == moved
    assert sorted(seen["copy:"]) == ops.op[ops.src == ops.dst].tolist()


def test_show_of_a_slot_lists_its_operations_with_their_sum():
    plan = sample_plans()["gather-broadcast"]
    ops = plan.ops()
    for slot in np.unique(ops.slot).tolist():
        first, *lines = textform.show(plan, slot=slot).splitlines()
        these = ops.select(ops.slot == slot)
        assert first == f"slot {slot}: {len(these)} operations, {these.nbytes.sum()} bytes"
        assert len(lines) == len(these)


def test_show_says_medium_role_tensor_box_and_bytes():
    shown = textform.show(sample_plans()["plain"], rank=2, slot=0)
    assert shown == (
        "slot 0: 2 operations, 32 bytes\n"
        '  receive from r0: "w" [0:4, 0:2] 16 bytes, network inject, tile 0, op 0 parent -\n'
        '  receive from r1: "w" [4:8, 0:2] 16 bytes, network inject, tile 0, op 4 parent -\n'
    )


def test_show_says_so_where_nothing_happens():
    plan = sample_plans()["plain"]
    assert textform.show(plan, slot=99) == "no rank has operations in slot 99\n"
    assert textform.show(plan, rank=99) == "rank 99 has no operations\n"
    assert textform.show(plan, rank=0, slot=99) == "rank 0 has no operations in slot 99\n"


@pytest.mark.parametrize("where", [(), ("payload",), ("schedule",), ("transfers_by_medium",)])
def test_claims_that_no_certificate_makes_are_refused(where):
    raw = json.loads(jsonform.dumps(sample_plans()["optimal"]))
    inner = raw["certificate"]
    for key in where:
        inner = inner[key]
    inner["network_mb"] = 7
    with pytest.raises(PlanFileError, match="unknown field 'network_mb'"):
        jsonform.loads(json.dumps(raw), check=False)


@pytest.mark.parametrize("start", ["certificate staging_nbytes", "mesh m0"])
def test_claims_and_meshes_given_twice_are_refused(start):
    text = textform.dumps(sample_plans()["optimal"])
    line = next(line for line in text.splitlines() if line.startswith(start))
    with pytest.raises(PlanFileError, match=f"{start.split()[1]} is given twice"):
        textform.loads(text.replace(line, f"{line}\n{line}"), check=False)


@pytest.mark.parametrize("damaged", ["index.by_dst", "header"])
def test_verify_looks_at_what_only_the_file_holds(damaged, tmp_path, capsys):
    path = tmp_path / "plan.reshard"
    sample_plans()["optimal"].save(path)
    with safe_open(path, framework="np") as stored:
        header = stored.metadata()["reshard_plan"]
        columns = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a mapping
    if damaged == "header":
        raw = json.loads(header)
        raw["blocks"]["routes.src"] = ["0" * 64]
        header = json.dumps(raw)
    else:
        columns[damaged] = np.zeros_like(columns[damaged])
    save_file(columns, path, metadata={"reshard_plan": header})
    assert main(["verify", str(path)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
