"""Ctrl-C ends the command in one sentence at any moment, also while it is imported."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reshard_planner import early

SCRIPT = [str(Path(sys.executable).parent / "reshard-planner")]
MODULE = ["-m", "reshard_planner"]
FIRST = "reshard_planner.errors"
"""What the command imports first, after it has begun to listen."""

LONG = ["model", str(Path(__file__).parent.parent / "examples" / "configs" / "Qwen3-30B-A3B.json")]
LONG += ["--train", "megatron tp=2 pp=2 ep=8", "--serve", "vllm tp=4 dp=4", "--json"]


def interrupted(start, module, wait_s=0.0):
    """Exit code and what was said, where Ctrl-C comes so long after a module has been imported."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *start, *LONG],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said, sent = [], False
        for line in process.stderr:
            said.append(line)
            if not sent and line.split()[-1] == module:  # others come later
                time.sleep(wait_s)
                process.send_signal(signal.SIGINT)
                sent = True
    return process.returncode, [line for line in said if not line.startswith("import time:")]


@pytest.mark.parametrize("start", [SCRIPT, MODULE], ids=["script", "module"])
@pytest.mark.parametrize("module", [FIRST, "numpy", "reshard_planner.cli.verbs"])
def test_an_interrupt_while_the_command_is_imported_is_told_in_one_sentence(start, module):
    assert interrupted(start, module) == (130, ["reshard-planner: interrupted\n"])


def test_an_interrupt_at_a_random_early_moment_is_told_in_one_sentence():
    draw = random.Random(7)  # noqa: S311 - no secret
    for start in (SCRIPT, MODULE) * 3:
        assert interrupted(start, FIRST, draw.uniform(0, 0.6)) == (
            130,
            ["reshard-planner: interrupted\n"],
        )


def test_a_command_that_is_started_with_interrupts_ignored_ignores_them():
    command = [sys.executable, *MODULE, "--version"]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], stdout=subprocess.PIPE
    ) as process:
        for _ in range(5):
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


def test_a_program_that_imports_the_planner_keeps_its_interrupts():
    check = (
        "import signal, reshard_planner; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("script", "words", "is_command"),
    [
        ("/bin/reshard-planner", ["python", "/bin/reshard-planner", "compile", "spec.yaml"], True),
        ("/bin/reshard-planner", ["python", "-X", "importtime", "/bin/reshard-planner"], True),
        ("/bin/reshard-planner", ["python", "-c", "from multiprocessing.spawn import spawn_main"], False),
        ("-m", ["python", "-X", "importtime", "-m", "reshard_planner", "verify"], True),
        ("-m", ["python", "-m", "pytest", "reshard-planner"], False),
        ("train.py", ["python", "train.py", "--with", "reshard-planner"], False),
        ("-c", ["python", "-c", "import reshard_planner"], False),
        ("", ["python"], False),
        ("", [], False),
    ],
)
def test_only_the_command_itself_is_the_command(script, words, is_command):
    assert early.is_command(script, words) is is_command
