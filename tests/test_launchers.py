"""Launchers: what their variables say, by recorded environments, and real ones that start the same job."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from _commands import variables
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors import RankInfo, rank_info
from reshard_executors.emulation import guard
from reshard_executors.emulation.namespaces import NIC, Gpu, address, namespace
from reshard_executors.emulation.tools import find_tool
from reshard_executors.launchers import device_index, first_host
from reshard_executors.local import ENVIRONMENT

import reshard_planner as rp
from reshard_planner.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

TORCHRUN = {
    **variables(5, 8, 29400),
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "ROLE_NAME": "default",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "gpu01.cluster",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}

ALLOCATION = {
    "SLURM_CLUSTER_NAME": "cluster",
    "SLURM_JOB_ID": "901593",
    "SLURM_JOBID": "901593",
    "SLURM_JOB_NODELIST": "gpu[003-005,010]",
    "SLURM_NODELIST": "gpu[003-005,010]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_NTASKS": "16",
    "SLURM_NPROCS": "16",
    "SLURM_TASKS_PER_NODE": "4(x4)",
    "SLURM_SUBMIT_HOST": "login1",
}
"""What every process of an allocation of four nodes has."""

BATCH = {
    **ALLOCATION,
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_GTIDS": "0",
    "SLURM_TASK_PID": "16360",
    "SLURMD_NODENAME": "gpu003",
}
"""A batch script, which sbatch starts on the first node."""

STEP = {
    **ALLOCATION,
    "SLURM_STEP_ID": "2",
    "SLURM_STEPID": "2",
    "SLURM_STEP_NODELIST": "gpu[004-005]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_GTIDS": "3,4",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.3",
    "SLURM_SRUN_COMM_HOST": "10.0.0.3",
    "SLURM_STEP_LAUNCHER_PORT": "33360",
    "SLURMD_NODENAME": "gpu005",
}
"""The last of five tasks that srun has started on two of the nodes."""

ONE_NODE = {
    **STEP,
    "SLURM_JOB_NODELIST": "gpu7",
    "SLURM_STEP_NODELIST": "gpu7",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "0",
}

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-gpu003-9245@1",
    "PMIX_RANK": "1",
}

HYDRA = {
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "PMI_FD": "7",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
    "MASTER_ADDR": "node1",
}


# variables


def test_torchrun_says_everything():
    assert rank_info(TORCHRUN) == RankInfo("torchrun", 5, 8, 1, 4, "gpu01.cluster", 29400, "job")


def test_srun_leads_to_the_first_host_of_the_step():
    found = rank_info(STEP)
    assert found == RankInfo("srun", 4, 5, 1, 2, "gpu004", found.port, "901593.2")
    found = rank_info(ONE_NODE)
    assert found == RankInfo("srun", 3, 4, 3, 4, "gpu7", found.port, "901593.2")


def test_srun_says_enough_without_its_newer_variables():
    kept = ("SLURM_JOB_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODELIST")
    found = rank_info({name: STEP[name] for name in kept})
    assert found == replace(rank_info(STEP), address="gpu003", local_world_size=None)


def test_ranks_of_a_step_meet_at_one_port_and_other_steps_at_others():
    tasks = [{**STEP, "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in range(5)]
    assert len({rank_info(task).port for task in tasks}) == 1
    others = [{**STEP, "SLURM_STEP_ID": str(step)} for step in range(20)]
    others += [{**STEP, "SLURM_JOB_ID": str(job)} for job in range(901_594, 901_614)]
    ports = [rank_info(other).port for other in others]
    assert len(set(ports)) >= 38
    assert all(12_000 <= port < 28_000 for port in ports)


def test_mpirun_meets_on_loopback_where_all_ranks_are_on_one_host():
    found = rank_info(OPENMPI)
    assert found == RankInfo("openmpi", 1, 4, 1, 4, "127.0.0.1", found.port, "prterun-gpu003-9245@1")
    assert rank_info({**OPENMPI, "OMPI_COMM_WORLD_RANK": "0"}).port == found.port
    assert rank_info({**OPENMPI, "PMIX_NAMESPACE": "prterun-gpu003-9246@1"}).port != found.port


def test_mpich_and_intel_mpi_are_told_by_pmi():
    assert rank_info(HYDRA) == RankInfo("mpich", 2, 4, 0, 2, "node1", 29500)


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, ""),  # torchrun's word for a job without a name
        ({**HYDRA, "PMI_JOBID": "kvs_1"}, "kvs_1"),
        ({"RANK": "0", "WORLD_SIZE": "1", **ALLOCATION}, ""),  # which may not be that of all ranks
    ],
)
def test_a_job_has_the_name_that_its_launcher_gives_it(environ, job):
    assert rank_info(environ).job == job


def test_a_process_without_a_launcher_is_alone():
    assert rank_info({"PATH": "/bin"}) == RankInfo("none", 0, 1, 0, 1, "127.0.0.1", 0)


@pytest.mark.parametrize("environ", [TORCHRUN, STEP, ONE_NODE, OPENMPI, HYDRA])
def test_an_address_that_is_set_wins(environ):
    found = rank_info({**environ, "MASTER_ADDR": "here", "MASTER_PORT": "123"})
    assert (found.address, found.port) == ("here", 123)


def test_variables_set_by_hand_need_not_tell_of_the_host():
    """As operators of Kubernetes set them for one process per pod."""
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "master-0"}
    assert rank_info(pod) == RankInfo("torchrun", 1, 2, 0, None, "master-0", 29500)


# several launchers


def test_torchrun_counts_inside_of_srun_and_of_mpirun():
    agent = {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
    assert rank_info({**agent, **TORCHRUN}) == rank_info(TORCHRUN)
    assert rank_info({**OPENMPI, **TORCHRUN}) == rank_info(TORCHRUN)


def test_mpirun_counts_inside_of_an_allocation_whose_daemons_srun_has_started():
    daemon = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"}
    assert rank_info({**daemon, **OPENMPI}) == rank_info(OPENMPI)
    assert rank_info({**BATCH, **OPENMPI}) == rank_info(OPENMPI)
    assert rank_info({**daemon, **HYDRA}) == rank_info(HYDRA)


def test_srun_counts_where_slurm_itself_serves_pmi():
    assert rank_info({**STEP, "PMI_RANK": "4", "PMI_SIZE": "5", "PMI_FD": "9"}) == rank_info(STEP)


def test_a_batch_script_is_no_step_of_srun():
    assert rank_info(BATCH).launcher == "none"


@pytest.mark.parametrize("number", [4294967290, 4294967291, 4294967292])
def test_an_interactive_shell_and_the_like_are_no_steps_of_srun(number):
    assert rank_info({**BATCH, "SLURM_STEP_ID": str(number), "SLURM_STEP_NUM_TASKS": "1"}).launcher == "none"


def test_ranks_use_the_device_of_their_number_or_the_only_one_that_they_see():
    assert [device_index(local_rank, 4) for local_rank in range(5)] == [0, 1, 2, 3, None]
    assert device_index(3, 1) == 0
    assert device_index(0, 0) is None


# what cannot be


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({**TORCHRUN, "RANK": "abc"}, "RANK is 'abc'; expected an integer of at least 0"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK is '-1'; expected an integer"),
        ({**TORCHRUN, "RANK": ""}, "RANK is ''; expected an integer"),
        ({**TORCHRUN, "RANK": "\u0661"}, "RANK is '\u0661'; expected an integer"),
        ({**TORCHRUN, "RANK": "8"}, "RANK is 8, but WORLD_SIZE is 8; expected a rank from 0 to 7"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; expected an integer of at least 1"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4, but this host has 4"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE says that 9 processes are on this host"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT is '70000'; expected an integer from 1 to 65535"),
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "WORLD_SIZE and LOCAL_RANK are set, but RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set, and torchrun does not say"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "4 processes, 2 of them on this host"),
        ({**HYDRA, "MASTER_ADDR": ""}, "MASTER_ADDR is not set, and mpich does not say"),
        ({**HYDRA, "PMI_SIZE": "2"}, "PMI_RANK is 2, but PMI_SIZE is 2"),
        ({**STEP, "SLURM_PROCID": "5"}, "SLURM_PROCID is 5, but SLURM_STEP_NUM_TASKS is 5"),
        ({**STEP, "SLURM_STEP_NODELIST": "gpu[004-"}, r"SLURM_STEP_NODELIST is 'gpu[004-'; expected hosts"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "3"}, "has no entry for SLURM_NODEID 1"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "three"}, "expected numbers of tasks, such as '4(x2),3'"),
    ],
)
def test_values_that_cannot_be_are_refused_by_variable(environ, sentence):
    with pytest.raises(InputError) as caught:
        rank_info(environ)
    assert sentence in str(caught.value)


# lists of hosts

names = st.text("abcxyz-.", min_size=1, max_size=6)
spans = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), min_size=1, max_size=3)


@st.composite
def host_lists(draw):
    """A list of hosts as Slurm writes it, and the hosts that it stands for."""
    parts, hosts = [], []
    for _ in range(draw(st.integers(1, 3))):
        text, own = draw(names), None
        own = [text]
        for _ in range(draw(st.integers(0, 2))):
            width, ranges = draw(st.integers(1, 4)), draw(spans)
            inside = []
            numbers = []
            for low, count in ranges:
                first, last = f"{low:0{width}d}", f"{low + count:0{width}d}"
                inside.append(first if count == 0 else f"{first}-{last}")
                numbers += [f"{number:0{width}d}" for number in range(low, low + count + 1)]
            suffix = draw(st.sampled_from(["", "-ib"]))
            text += f"[{','.join(inside)}]{suffix}"
            own = [f"{prefix}{number}{suffix}" for prefix in own for number in numbers]
        parts.append(text)
        hosts += own
    return ",".join(parts), hosts


@given(host_lists())
def test_the_first_host_is_the_first_of_those_that_the_list_stands_for(pair):
    text, hosts = pair
    assert first_host(text, "SLURM_JOB_NODELIST") == hosts[0]


@pytest.mark.parametrize("text", ["", ",a", "a[", "a]", "a[1", "a[]", "a[x]", "a[1-]", "a[1]]", "a b"])
def test_other_lists_are_refused(text):
    with pytest.raises(InputError, match=r"^SLURM_JOB_NODELIST is "):
        first_host(text, "SLURM_JOB_NODELIST")


# real launchers; on one host docs/launching.md has torchrun

QUIET = {**ENVIRONMENT, "TORCH_CPP_LOG_LEVEL": "ERROR", "RAY_USAGE_STATS_ENABLED": "0"}
EXAMPLE = ROOT / "examples" / "launched.py"
REFITS = [f"refit {step}: every element is right, 198656 bytes over the network" for step in (1, 2)]


def launch(
    command: list[object], environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE"))}
    return subprocess.run(
        list(map(str, command)),
        env={**kept, **QUIET, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def mpirun() -> list[object]:
    found = BIN / "mpirun"
    if not found.exists():
        pytest.skip("Open MPI is not installed; `make test` does that")
    rights = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [found, *rights, "--oversubscribe", "--bind-to", "none"]


REASON = guard.reason_against()


@pytest.mark.skipif(
    REASON is None, reason="torchrun starts it on two hosts below, and a plan in docs/launching.md"
)
def test_torchrun_starts_the_example():
    launcher = [BIN / "torchrun", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=4"]
    done = launch([*launcher, EXAMPLE])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == REFITS


def test_under_torchrun_others_name_the_rank_that_was_killed(tmp_path):
    layouts = [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in (0, 1)]
    rp.compile(
        rp.ReshardSpec(
            [rp.TensorSpec("w", (4096, 1024), "float32", *layouts)], rp.Topology.from_domains([[0], [1]])
        )
    ).save(tmp_path / "two.reshard")
    launcher = [BIN / "torchrun", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=3"]
    command = ["-m", "reshard_executors", "run", tmp_path / "two.reshard", "--ranks", "0,1,7"]
    with subprocess.Popen(
        list(map(str, [*launcher, *command, "--repeat", "10000"])),
        env={**os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as agent:
        try:
            until = time.monotonic() + 60
            while _written_nbytes((pids := _pids_of_ranks(agent.pid)).get("0")) < 2**28:
                assert time.monotonic() < until
                assert agent.poll() is None
                time.sleep(0.1)
            os.kill(pids["1"], signal.SIGKILL)
            out, err = agent.communicate(timeout=180)
        finally:
            agent.kill()
    assert agent.returncode == 1
    said = [line for line in err.splitlines() if line.startswith("reshard-executors: rank ")]
    assert [line.split(": ")[1] for line in sorted(said)] == ["rank 0", "rank 2"]
    assert all("rank 1 has given no sign of life" in line for line in said)
    assert "PARTIAL" in out


def _pids_of_ranks(agent: int) -> dict[str, int]:
    """The processes that an agent of torchrun has started, by rank."""
    found = {}
    for children in Path(f"/proc/{agent}/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):  # it has ended
                entries = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
                variables = dict(entry.partition("=")[::2] for entry in entries)
                found[variables.get("RANK", "")] = int(pid)
    return found


def _written_nbytes(pid: int | None) -> int:
    """Bytes that a process has written into files and connections; 0 for none."""
    if pid is None:
        return 0
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def test_mpirun_starts_the_example():
    done = launch([*mpirun(), "-n", 4, sys.executable, EXAMPLE])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == REFITS


def test_mpirun_ends_with_the_exit_code_of_the_ranks(tmp_path):
    command = [sys.executable, "-m", "reshard_executors", "run", tmp_path / "absent", "--dry-run"]
    done = launch([*mpirun(), "-n", 2, *command])
    assert done.returncode == 2
    assert done.stderr.count("reshard-executors: rank 0: cannot read") == 1
    assert "reshard-executors: rank 1" not in done.stderr


def test_ray_starts_the_example():
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; `make test` does that")
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets need short names
    try:
        done = launch(
            [sys.executable, ROOT / "examples" / "on_ray.py"], {"HOME": folder, "RAY_TMPDIR": folder}
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == REFITS
    finally:
        shutil.rmtree(folder, ignore_errors=True)


HOSTS = [Gpu(0, 0, 125_000_000, 900_000_000), Gpu(1, 1, 125_000_000, 900_000_000)]


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """What a command begins with that runs on each of two hosts, which a network joins."""
    with guard.cluster(HOSTS) as (tag, _):
        yield [[find_tool("ip") or "ip", "netns", "exec", namespace(tag, host)] for host in HOSTS]


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_torchrun_on_two_hosts_starts_the_example(hosts):
    started = [
        subprocess.Popen(
            [
                *(*enter, BIN / "torchrun", "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=2"),
                *(f"--master-addr={address(0)}", "--master-port=29400", f"--local-addr={address(number)}"),
                EXAMPLE,
            ],
            env={**os.environ, **QUIET, "GLOO_SOCKET_IFNAME": NIC},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, enter in enumerate(hosts)
    ]
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [0, 0], said
    assert said[0][0].splitlines() == REFITS
    assert said[1][0].strip() == ""
