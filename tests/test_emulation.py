"""Emulated clusters: rates, scaling, a real run on network namespaces, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors.emulation import cluster, guard, guardian, tools
from reshard_executors.emulation.job import PortBytes
from reshard_executors.emulation.namespaces import Gpu, namespace
from reshard_executors.emulation.owners import Owner, of_tag, stale
from reshard_executors.emulation.rates import MAX_BYTES_PER_S, MIN_BYTES_PER_S, parse_rate
from reshard_executors.emulation.results import RankBytes

import reshard_planner as rp
from reshard_planner.cli import main
from reshard_planner.errors import ExecutionError, InputError, TopologyError, UnsupportedError
from reshard_planner.topology.emulated import emulated_min_message, emulated_topology
from reshard_planner.topology.model import Domain, Link, Nic, Pod, Topology

REASON = guard.reason_against()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

MBIT = 125_000

SPEC = """\
version: 1
meshes:
  train: {ranks: "0-1", axes: {tp: 2}}
  serve: {ranks: "2-3", axes: {dp: 2}}
topology:
  domains: [[0, 1], [2, 3]]
  nics:
    - {gpus: [0, 2, 3]}
    - {gpus: [1], bytes_per_s: 25e9}
tensors:
  - name: w
    shape: [1024, 2048]
    dtype: bfloat16
    src: {mesh: train, placements: [S(0)]}
    dst: {mesh: serve, placements: [R]}
options: {staging: 64MiB}
"""

TENSOR_NBYTES = 1024 * 2048 * 2

PAIR = [Gpu(0, 0, 100 * MBIT, 900 * MBIT), Gpu(1, 0, None, 900 * MBIT)]
APART = [Gpu(0, 0, 8 * MBIT, 8 * MBIT), Gpu(1, 1, 8 * MBIT, 8 * MBIT)]
"""Slow enough for what happens in the middle of a run."""

OWN_A_CLUSTER = """\
import subprocess, sys, time
from reshard_executors.emulation import guard
from reshard_executors.emulation.namespaces import Gpu, namespace
gpus = [Gpu(0, 0, 12_500_000, 125_000_000), Gpu(1, 1, 12_500_000, 125_000_000)]
with guard.cluster(gpus) as (tag, folder):
    command = ["ip", "netns", "exec", namespace(tag, gpus[1]), "sleep", "1000"]
    subprocess.Popen(command, start_new_session=True)
    print(tag, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def until(done: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def namespaces_of(pid: int) -> list[str]:
    return [name for name in tools.names() if name.startswith(f"reshard-{pid}-")]


def folders_of(pid: int) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"reshard-{pid}-*"))


def processes_of(names: list[str]) -> list[int]:
    inodes = {(found.st_dev, found.st_ino) for found in ((tools.NAMESPACES / name).stat() for name in names)}
    return list(tools.processes_in(inodes))


def sleeper(name: str) -> subprocess.Popen[bytes]:
    """A process in a network namespace that would stay."""
    return subprocess.Popen([tools.find_tool("ip") or "ip", "netns", "exec", name, "sleep", "1000"])


@contextmanager
def nothing_left(pid: int) -> Iterator[None]:
    yield
    until(lambda: not namespaces_of(pid))
    until(lambda: not folders_of(pid))


# rates


@given(st.integers(MIN_BYTES_PER_S, MAX_BYTES_PER_S))
def test_a_rate_in_bits_or_bytes_is_the_same_rate(bytes_per_s):
    assert parse_rate(f"{8 * bytes_per_s}bit", "--nic") == bytes_per_s
    assert parse_rate(f"{bytes_per_s}bps", "--nic") == bytes_per_s


@given(st.integers(1, 40_000))
def test_prefixes_are_powers_of_ten_and_of_two(count):
    assert parse_rate(f"{count}Mbit", "--nic") == count * MBIT
    assert parse_rate(f"{count / 1000:.3f} gbit", "--nic") == count * MBIT
    assert parse_rate(f"{min(count, 4000)}mibit", "--nic") == min(count, 4000) * 2**20 // 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "200",
        "fast",
        "-1mbit",
        "1mbit/s",
        "1e3mbit",
        "0mbit",
        "999kbit",
        "41gbit",
        "1" * 40 + "bit",
        "\u0661mbit",
    ],
)
def test_other_rates_are_refused_by_option(text):
    with pytest.raises(InputError, match=r"^--nvlink is "):
        parse_rate(text, "--nvlink")


# scaling

links = st.builds(Link, st.integers(10**6, 10**12), st.just(0.9), st.sampled_from([0.0, 1e-5]))


@given(st.lists(st.tuples(links, links), min_size=1, max_size=5), st.integers(10**6, 10**9))
def test_scaling_keeps_ratios(ports, rate):
    topology = Topology(
        tuple(Domain((gpu,), nvlink) for gpu, (_, nvlink) in enumerate(ports)),
        tuple(Nic((gpu,), nic) for gpu, (nic, _) in enumerate(ports)),
    )
    scaled = emulated_topology(topology, range(len(ports)), rate, 2 * rate)
    for before, after, new in (
        ([nic.link for nic in topology.nics], [nic.link for nic in scaled.nics], rate),
        ([each.link for each in topology.domains], [each.link for each in scaled.domains], 2 * rate),
    ):
        fastest = max(link.bytes_per_s for link in before)
        assert max(link.bytes_per_s for link in after) == new
        for old, made in zip(before, after, strict=True):
            assert abs(made.bytes_per_s - old.bytes_per_s * new / fastest) <= 1


def test_only_used_gpus_set_the_scale():
    slow, fast = Link(10**9, 1.0, 0.0), Link(10**10, 1.0, 0.0)
    topology = Topology(
        (Domain((0, 1), slow), Domain((2,), fast)), (Nic((0,), slow), Nic((1,), slow), Nic((2,), fast))
    )
    scaled = emulated_topology(topology, [0, 1], 10**7, 10**8)
    assert [nic.link.bytes_per_s for nic in scaled.nics] == [10**7, 10**7, 10**8]
    assert [domain.link.bytes_per_s for domain in scaled.domains] == [10**8, 10**9]


def test_nics_of_one_gpu_are_scaled_together():
    link = Link(10**10, 1.0, 1e-5)
    topology = Topology((Domain((0, 1), link),), (Nic((0,), link), Nic((0,), link), Nic((1,), link)))
    scaled = emulated_topology(topology, [0, 1], 10**7, 10**8)
    assert [nic.link.bytes_per_s for nic in scaled.nics] == [5 * 10**6] * 3


def test_least_messages_stay_as_many_start_up_times():
    topology = Topology.from_domains([[0], [1]], nic=Link(10**10, 1.0, 1e-5))
    assert emulated_min_message(topology, [0, 1], 10**7, 4_000_000) == 4_000_000 * (10**7 // 1000) // 10**5


def test_what_cannot_be_emulated_is_refused():
    link = Link(10**9, 1.0, 0.0)
    shared = Topology((Domain((0, 1), link),), (Nic((0, 1), link),))
    pods = Topology((Domain((0,), link),), (Nic((0,), link),), pods=(Pod((0,), link),))
    with pytest.raises(UnsupportedError, match=r"NIC 0 is shared by GPUs \[0, 1\]"):
        emulated_topology(shared, [0], 10**7, 10**8)
    with pytest.raises(UnsupportedError, match="pods"):
        emulated_topology(pods, [0], 10**7, 10**8)
    with pytest.raises(TopologyError, match="rank 5"):
        emulated_topology(Topology.from_domains([[0]], rank_map=[0]), [5], 10**7, 10**8)


def test_planned_bytes_with_headers_and_control_traffic_are_as_planned():
    planned = PortBytes(10**8, 0, 0, 0)
    for sent, nvlink, right in (
        (10**8 - 1, 0, False),
        (10**8, 0, True),
        (10**8 + 300_000 + 2 * 16_384, 2 * 16_384, True),
        (10**8 + 300_001 + 2 * 16_384, 0, False),
        (10**8, 2 * 16_384 + 1, False),
    ):
        assert RankBytes(planned, (PortBytes(sent, 0, nvlink, 0),)).as_planned(2) == right


# refusals of the command


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["emulate", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    return found.err


RATES = ("--nic", "100mbit", "--nvlink", "900mbit")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nic", "fast", "--nvlink", "1gbit"), "--nic is 'fast'"),
        (("--nic", "1mbit", "--nvlink", "1"), "--nvlink is '1'"),
        ((*RATES, "--repeat", "0"), "--repeat is 0"),
        ((*RATES, "--timeout", "nan"), "--timeout is nan"),
        ((*RATES, "--strategy", "guess"), "guess"),
        ((*RATES, "--baseline", "guess"), "baseline 'guess' is unknown"),
    ],
)
def test_bad_options_are_refused(spec, capsys, arguments, sentence):
    assert sentence in refusal(capsys, str(spec), *arguments)


def test_too_many_ranks_are_refused(tmp_path, capsys):
    path = tmp_path / "large.yaml"
    path.write_text(SPEC.replace('"0-1"', '"0-15"').replace("tp: 2", "tp: 16").replace('"2-3"', '"16-17"'))
    text = path.read_text().split("topology:")
    tensors = text[1].split("tensors:")[1]
    path.write_text(f"{text[0]}topology: {{gpus_per_domain: 8}}\ntensors:{tensors}")
    assert "18 ranks; emulation takes at most 16" in refusal(capsys, str(path), *RATES)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give up its rights"
)
def test_without_rights_it_is_refused(spec):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    dropped = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
    done = subprocess.run(
        [*dropped, sys.executable, "-m", "reshard_planner", "emulate", str(spec), *RATES],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "CAP_SYS_ADMIN and CAP_NET_ADMIN" in done.stderr or "iproute2" in done.stderr


# real clusters


@needs_namespaces
def test_a_real_cluster_moves_what_was_planned_over_the_right_media(spec, capsys):
    with nothing_left(os.getpid()):
        assert main(["emulate", str(spec), *RATES, "--repeat", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    runs = {run["name"]: run for run in found["runs"]}
    assert set(runs) == {"optimal", "direct"}
    assert found["correct"]
    for run in runs.values():
        assert run["correct"]
        assert run["bytes_ok"]
        assert len(run["elapsed_s"]) == 2
        assert min(run["elapsed_s"]) > 0.8 * found["bound"]["time_s"]  # bursts come on top of rates
        for rank in run["ranks"].values():
            assert len(rank["measured"]) == 2
    assert runs["optimal"]["network_nbytes"]["planned"] == TENSOR_NBYTES
    assert runs["optimal"]["nvlink_nbytes"]["planned"] >= TENSOR_NBYTES
    assert runs["direct"]["network_nbytes"]["planned"] == 2 * TENSOR_NBYTES
    assert runs["direct"]["nvlink_nbytes"]["planned"] == 0
    measured = runs["optimal"]["ranks"]["2"]["measured"][0]
    assert measured["nic_received"] >= TENSOR_NBYTES // 3
    assert measured["nvlink_sent"] >= TENSOR_NBYTES // 3
    # the second NIC is half as fast as the first
    assert found["bound"]["time_s"] == pytest.approx(TENSOR_NBYTES / (150 * MBIT), rel=0.01)


def plan_between_two() -> rp.Plan:
    """8 MiB from rank 0 to rank 1: 8 s on slow ports."""
    layouts = [rp.Layout(rp.Mesh([rank], ["tp"]), ["R"]) for rank in (0, 1)]
    tensor = rp.TensorSpec("w", (2048, 2048), "bfloat16", *layouts)
    return rp.compile(rp.ReshardSpec([tensor], Topology.from_domains([[0], [1]])))


@needs_namespaces
def test_a_rank_that_is_killed_ends_the_run_and_is_named():
    pid = os.getpid()

    def kill_one(stage: str) -> None:
        if stage == "slow":
            threading.Timer(1.0, kill_rank, (pid, 1)).start()

    with nothing_left(pid), pytest.raises(ExecutionError, match="process of rank 1 ended before"):
        cluster.emulate([cluster.Run("slow", plan_between_two())], APART, timeout_s=100, progress=kill_one)


def kill_rank(owner: int, rank: int) -> None:
    for pid in processes_of([name for name in namespaces_of(owner) if name.endswith(f"-r{rank}")]):
        if b"reshard_executors.emulation.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@needs_namespaces
def test_an_error_of_a_rank_comes_through():
    run = cluster.Run("unknown", plan_between_two(), "guess")
    with nothing_left(os.getpid()), pytest.raises(InputError, match="baseline 'guess' is unknown"):
        cluster.emulate([run], APART, timeout_s=100)


@needs_namespaces
def test_runs_that_take_too_long_are_ended():
    run = cluster.Run("late", plan_between_two())
    with nothing_left(os.getpid()), pytest.raises(ExecutionError, match=r"did not end within 0\.5 s"):
        cluster.emulate([run], APART, timeout_s=0.5)


@needs_namespaces
def test_a_cluster_is_gone_after_its_block_with_all_its_processes():
    with nothing_left(os.getpid()):
        with guard.cluster(PAIR) as (tag, folder):
            assert folder.is_dir()
            spaces = of_tag(tools.names(), tag)
            assert len(spaces) == 3
            inside = sleeper(namespace(tag, PAIR[1]))
            until(lambda: processes_of(spaces))
        assert not of_tag(tools.names(), tag)
        assert not folder.exists()
        assert inside.wait(10) == -signal.SIGKILL


@needs_namespaces
def test_two_clusters_of_one_process_do_not_meet():
    with guard.cluster(PAIR) as (first, _), guard.cluster(PAIR) as (second, _):
        assert len(of_tag(tools.names(), first)) == len(of_tag(tools.names(), second)) == 3


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_cluster_goes_with_its_owner(number):
    with subprocess.Popen(
        [sys.executable, "-c", OWN_A_CLUSTER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        tag = owner.stdout.readline().strip()
        until(lambda: processes_of(of_tag(tools.names(), tag)))
        with nothing_left(owner.pid):
            owner.send_signal(number)
            owner.wait(30)


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_leaves_nothing_when_it_is_stopped(spec, number):
    with subprocess.Popen(
        [sys.executable, "-m", "reshard_planner", "emulate", str(spec), *RATES],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        until(lambda: len(processes_of(namespaces_of(command.pid))) >= 4)
        with nothing_left(command.pid):
            command.send_signal(number)
            _, said = command.communicate(timeout=30)
    assert command.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in said


@needs_namespaces
def test_what_dead_owners_left_is_removed_by_the_next_run():
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        pass
    name, folder = f"reshard-{ended.pid}-1-abcdef-r0", guardian.folder_of(f"reshard-{ended.pid}-1-abcdef")
    assert tools.perform(tools.Step("ip", None, (f"netns add {name}",))) is None
    folder.mkdir()
    inside = sleeper(name)
    until(lambda: processes_of([name]))
    assert name in stale(tools.names())
    with guard.cluster(PAIR):
        assert name not in tools.names()
        assert not folder.exists()
    assert inside.wait(10) == -signal.SIGKILL


def test_names_tell_living_owners_from_dead_ones():
    alive = Owner.this()
    kept = f"{alive.new_tag()}-r0"
    gone = f"{Owner(alive.pid, alive.start + 1).new_tag()}-r0"  # its number went to another process
    assert stale([kept, gone, "somebody-elses", "reshard-x-r0"]) == [gone]


def test_the_owner_and_the_guardian_do_not_import_torch():
    code = (
        "import sys, reshard_executors.emulation.cluster, reshard_executors.emulation.guardian;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
