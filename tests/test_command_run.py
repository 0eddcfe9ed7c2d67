"""``reshard-executors run``: ranks agree how it ends, and rank 0 says what was measured, or what is wrong."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from _commands import Command, Commands, Done, free_port, variables
from _plans import sample_plans
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors.command import output
from reshard_executors.command.dry import describe_rank, describe_ranks
from reshard_executors.command.main import main
from reshard_executors.command.options import MAX_SECONDS, parse_ranks
from reshard_executors.command.output import Progress
from reshard_executors.command.reports import Planned, RankReport, Repeat
from reshard_executors.command.session import MAX_VOICES, has_voice
from reshard_executors.command.summary import Summary
from reshard_executors.store import Job, knock
from safetensors.numpy import save_file
from torch._C._distributed_c10d import HashStore, TCPStore

import reshard_planner as rp
from reshard_planner.errors import InputError
from reshard_planner.ir.forms import save_as
from reshard_planner.transfer import Medium

PLANS = sample_plans()
of_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())

TRAIN, SERVE = rp.Layout(rp.Mesh([0, 1]), ["S(0)"]), rp.Layout(rp.Mesh([2, 3]), ["S(1)"])
REPLICAS = rp.Layout(rp.Mesh([2, 3]), ["R"])
FOUR = rp.compile(
    rp.ReshardSpec(
        [
            rp.TensorSpec("up", (512, 96), "float32", TRAIN, SERVE),
            rp.TensorSpec("norm", (512,), "float32", TRAIN, REPLICAS),
        ],
        rp.Topology.from_domains([[0, 1], [2, 3]]),
    )
)
TWO = rp.compile(
    rp.ReshardSpec(
        [rp.TensorSpec("w", (4096, 1024), "float32", *(rp.Layout(rp.Mesh([r]), ["R"]) for r in (0, 1)))],
        rp.Topology.from_domains([[0], [1]]),
        rp.Options(staging_nbytes=2**18, min_message_nbytes=2**12),
    )
)
"""16 MiB in more than a hundred slots."""


@pytest.fixture
def four(tmp_path):
    path = tmp_path / "four.reshard"
    FOUR.save(path)
    return path


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.reshard"
    TWO.save(path)
    return path


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    found = Commands(tmp_path_factory.mktemp("commands"))
    yield found
    found.close()


def codes(ended: list[Done]) -> list[int]:
    return [done.code for done in ended]


def run_all(started: Iterable[Command]) -> list[Done]:
    """All of these run at once."""
    return [command.wait() for command in list(started)]


def sentence(ended: list[Done], speaker: int = 0) -> str:
    """What one rank says of a failure, in one line, while all others and all results are silent."""
    assert [done.out for done in ended] == [""] * len(ended)
    return sentence_of(ended, speaker)


def sentence_of(ended: list[Done], speaker: int = 0) -> str:
    """What one rank says of a failure, in one line, while all others are silent."""
    for rank, done in enumerate(ended):
        if rank == speaker:
            assert done.err.startswith(f"reshard-executors: rank {rank}: ")
            assert done.err.count("\n") == 1
        else:
            assert done.err == ""
    return ended[speaker].err


# without other processes


def test_a_dry_run_works_where_torch_is_missing(four):
    code = (
        "import sys\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "from reshard_executors.command.main import main\n"
        "for more in [], ['--rank', '2']:\n"
        "    assert main([*sys.argv[1:], *more]) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", four, "--dry-run", "--json"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(f'"digest": "{FOUR.digest}"') == 2


@of_plans
def test_a_dry_run_says_of_every_rank_what_its_program_does(plan):
    found = describe_ranks(plan, plan.ranks)
    assert [each["rank"] for each in found["ranks"]] == list(plan.ranks)
    for each in found["ranks"]:
        slots = plan.program(each["rank"]).slots
        assert each["slots"] == len(slots)
        for side, name in (("send", "sends"), ("receive", "receives")):
            moves = [(peer, move) for slot in slots for peer, moves in getattr(slot, name) for move in moves]
            sums = Counter()
            for _, move in moves:
                sums[move.medium] += move.nbytes
            assert each[side] == {
                "peers": len({peer for peer, _ in moves}),
                "network_nbytes": sums[Medium.NETWORK],
                "nvlink_nbytes": sums[Medium.NVLINK],
            }
        assert each["local_nbytes"] == sum(move.nbytes for slot in slots for move in slot.copies)


@of_plans
def test_a_dry_run_of_one_rank_adds_up_to_that_of_all(plan):
    for each in describe_ranks(plan, plan.ranks)["ranks"]:
        slots = describe_rank(plan, each["rank"])["slots"]
        assert len(slots) == each["slots"]
        for side, name in (("send", "sends"), ("receive", "receives")):
            rows = [row for slot in slots for row in slot[name]]
            assert all(row["messages"] >= 1 for row in rows)
            sums = [sum(row["nbytes"] for row in rows if row["medium"] == m) for m in ("network", "nvlink")]
            assert sums == [each[side]["network_nbytes"], each[side]["nvlink_nbytes"]]


def test_only_the_first_process_prints_a_dry_run(four, capsys):
    assert main(["run", str(four), "--dry-run", "--ranks", "3,2,1,0"], variables(0, 4, 1)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["0", "3"], ["1", "2"], ["2", "1"], ["3", "0"]]
    assert main(["run", str(four), "--dry-run"], variables(1, 4, 1)) == 0
    assert capsys.readouterr().out == ""


def test_a_dry_run_is_of_processes_that_play_their_own_ranks_unless_others_are_said():
    layouts = [rp.Layout(rp.Mesh([rank]), ["R"]) for rank in (2, 5)]
    plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "float32", *layouts)]))
    rows = [(each["rank"], each["process"]) for each in describe_ranks(plan)["ranks"]]
    assert rows == [(2, 2), (5, 5)]
    rows = [(each["rank"], each["process"]) for each in describe_ranks(plan, [7, 5, 2])["ranks"]]
    assert rows == [(2, 2), (5, 1)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dry-run", "--json", "--ranks", "0-1,7"), "--ranks leaves out ranks 2-3 of the plan;"),
        (("--dry-run", "--json", "--rank", "-1"), "--rank -1 is no rank of the plan, which has ranks 0-3"),
        (("--repeat", "0"), "--repeat is 0; expected an integer from 1"),
        (("--warm-up", "-1"), "--warm-up is -1; expected an integer from 0"),
        (("--timeout", "nan"), "--timeout is nan; expected seconds above 0"),
        (("--lost-after", "0"), "--lost-after is 0.0; expected seconds above 0"),
        (("--timeout", MAX_SECONDS + 1), f"expected seconds above 0 and up to {MAX_SECONDS}"),
        (("--ranks", "3-1"), "--ranks is '3-1'; expected ranks and ranges"),
        (("--ranks", "0-3,2"), "--ranks is '0-3,2', which has rank 2 twice; expected distinct ranks"),
        (("--ranks", "0-2"), "--ranks has 3 ranks; expected one for each process of the launcher, of which"),
        (("--rank", "1"), "--rank 1 goes with --dry-run"),
        (("--dry-run", "--rank", "9"), "--rank 9 is no rank of the plan, which has ranks 0-3"),
        (("--backend", "mpi"), "invalid choice: 'mpi'"),
        (("--guess",), "unrecognized arguments: --guess"),
    ],
)
def test_bad_options_are_refused_in_one_line_by_the_first_rank_alone(four, capsys, arguments, said):
    assert main(["run", str(four), *map(str, arguments)], variables(0, 4, 1)) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert said in found.err
    assert main(["run", str(four), *map(str, arguments)], variables(1, 4, 1)) == 2
    assert capsys.readouterr() == ("", "")


def test_without_a_launcher_it_says_how_to_start(four, capsys):
    assert main(["run", str(four)], {}) == 2
    said = capsys.readouterr().err
    assert "the plan has 4 ranks, and this process was started alone" in said
    assert f"torchrun --nproc-per-node 4 -m reshard_executors run {four}" in said
    assert said.count("\n") == 1


def test_wrong_variables_of_a_launcher_are_bad_input(four, capsys):
    assert main(["run", str(four)], {"RANK": "abc", "WORLD_SIZE": "4"}) == 2
    assert capsys.readouterr().err == "reshard-executors: RANK is 'abc'; expected an integer of at least 0\n"


def test_a_plan_of_one_rank_needs_no_launcher(tmp_path, capsys):
    here = rp.Mesh([0])
    tensor = rp.TensorSpec("w", (4, 6), "bfloat16", rp.Layout(here, ["R"]), rp.Layout(here, ["R"]))
    rp.compile(rp.ReshardSpec([tensor])).save(tmp_path / "one.reshard")
    assert main(["run", str(tmp_path / "one.reshard"), "--check", "--json"], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["correct"] is True
    assert found["sent"]["network"] == {"planned_nbytes": 0, "measured_nbytes": 0, "differing": {}}
    assert found["nics"]["sent"]["busiest_bytes_per_s"] is None


def test_the_command_is_there_as_a_module_and_as_a_script():
    script = Path(sys.executable).parent / "reshard-executors"
    shown = [
        subprocess.run([*start, "--help"], capture_output=True, text=True, timeout=180, check=True).stdout
        for start in ([script], [sys.executable, "-m", "reshard_executors"])
    ]
    assert shown[0] == shown[1]
    assert all(f"\n  {code} " in shown[0] for code in (0, 1, 2, 75, 130, 143))


@pytest.mark.parametrize("verb", ["run", "doctor"])
def test_help_and_documentation_list_the_same_exit_codes(verb, capsys):
    page = {"run": "launching.md", "doctor": "doctor.md"}[verb]
    text = (Path(__file__).resolve().parent.parent / "docs" / page).read_text(encoding="utf-8")
    table = text[text.index("| exit code | |") :].split("\n\n")[0].splitlines()[2:]
    written = [int(code) for row in table for code in row.split(" | ")[0].strip("| ").split(", ")]
    assert main([verb, "--help"], {}) == 0
    shown = capsys.readouterr().out.partition("\nexit codes")[2]
    assert written == list(map(int, re.findall(r"(?m)^  (\d+)  ", shown)))
    for said in (text, " ".join(shown.split())):
        assert "another job has the port of rank 0" in said


def print_dry_run(four, stream):
    """Exit code and errors of a dry run that prints into a stream."""
    done = subprocess.run(
        [sys.executable, "-m", "reshard_executors", "run", four, "--dry-run"],
        stdout=stream,
        stderr=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_result_that_cannot_be_printed_is_a_failure(four):
    with Path("/dev/full").open("w", encoding="ascii") as full:
        ended = print_dry_run(four, full)
    assert ended == (1, "reshard-executors: cannot print the result: No space left on device\n")


@pytest.mark.parametrize("arguments", [("run", "four.reshard", "--dry-run"), ("doctor",), ("--help",)])
@pytest.mark.parametrize(("shell", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left")])
def test_a_result_that_has_nowhere_to_go_is_a_failure_in_one_sentence(four, arguments, shell, why):
    command = shlex.join([sys.executable, "-m", "reshard_executors", *arguments])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} {shell}"],
        stderr=subprocess.PIPE,
        cwd=four.parent,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"reshard-executors: cannot print the result: {why}")
    assert done.stderr.count("\n") == 1


def test_a_result_that_nobody_reads_any_more_is_none(four):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert print_dry_run(four, writing) == (0, "")
    finally:
        os.close(writing)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_a_list_of_ranks_keeps_its_order(ranks):
    parts = []
    for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        first, *_, last = [(rank, rank) for _, rank in run] * 2
        parts.append(f"{first[0]}-{last[0]}" if last[0] > first[0] else str(first[0]))
    assert parse_ranks(",".join(parts)) == tuple(ranks)


@pytest.mark.parametrize("text", ["", "a", "1,", "1-", "-1", "2-1", "1 2", "1-2-3", "\u0661", "0-99999999"])
def test_other_lists_of_ranks_are_refused(text):
    with pytest.raises(InputError, match=r"^--ranks is "):
        parse_ranks(text)


# the summary


def summary_of(plan: rp.Plan, times: list[list[float]], extra: int = 0) -> Summary:
    """Of ranks that took these times per repeat, and sent what was planned and some bytes more."""
    reports = []
    for rank, own in zip(plan.ranks or (0,), times, strict=True):
        planned = Planned.of(plan, rank)
        repeats = tuple(
            Repeat(time_s, planned.network_sent + extra, planned.nvlink_sent, time_s / 4, time_s / 2, 0.0)
            for time_s in own
        )
        reports.append(RankReport(rank, planned, repeats, None, None))
    return Summary.of(plan, reports[::-1], checked=True)


@of_plans
def test_what_ranks_should_send_adds_up_to_the_payload(plan):
    payload = plan.certificate.payload
    summary = summary_of(plan, [[1.0]] * max(1, len(plan.ranks)))
    assert summary.sent("network") == (payload.network_nbytes, payload.network_nbytes, {})
    assert summary.sent("nvlink") == (payload.nvlink_nbytes, payload.nvlink_nbytes, {})
    received = sum(Planned.of(plan, rank).network_received for rank in plan.ranks)
    assert received == payload.network_nbytes


@of_plans
def test_nics_carry_the_network_payload_and_the_busiest_is_that_of_the_certificate(plan):
    summary = summary_of(plan, [[1.0]] * max(1, len(plan.ranks)))
    uses = [summary.nics(side) for side in ("sent", "received")]
    payload = plan.certificate.payload.network_nbytes
    assert [use.total_nbytes for use in uses] == [payload, payload]
    nics = plan.spec.topology.nics
    times = [0.0 if use.busiest is None else use.nbytes / nics[use.busiest].link.bytes_per_s for use in uses]
    assert max(times) == pytest.approx(plan.certificate.busiest_nic.time_s, rel=0.2, abs=1e-9)


def test_a_repeat_takes_as_long_as_its_slowest_rank_and_shares_are_of_the_one_in_the_middle():
    summary = summary_of(FOUR, [[1.0, 9.0, 2.0], [8.0, 1.0, 1.0], [1.0, 1.0, 4.0], [1.0, 1.0, 1.0]])
    found = summary.to_dict()
    assert found["elapsed_s"]["repeats"] == [8.0, 9.0, 4.0]
    assert (found["elapsed_s"]["median"], found["elapsed_s"]["min"], found["elapsed_s"]["max"]) == (8, 4, 9)
    assert found["elapsed_s"]["x_bound"] == pytest.approx(8.0 / FOUR.certificate.bound.time_s)
    assert found["slowest"] == {
        "rank": 1,
        "elapsed_s": 8.0,
        "pack_s": 2.0,
        "wire_s": 4.0,
        "unpack_s": 0.0,
        "other_s": 2.0,
    }
    assert "slowest   rank 1: pack 25.0%, wire 50.0%, unpack 0.0%, other 25.0%" in summary.to_text()


def test_bytes_other_than_planned_are_told_by_rank():
    summary = summary_of(FOUR, [[1.0]] * 4, extra=5)
    planned, measured, differing = summary.sent("network")
    assert measured == planned + 20
    assert set(differing) == {0, 1, 2, 3}
    sent = Planned.of(FOUR, 0).network_sent
    expected = f"other than planned on ranks 0-3 (rank 0: {sent + 5}, not {sent})"
    assert expected in summary.to_text()


# real processes


def test_a_run_measures_what_was_planned_checks_it_and_is_profiled(commands, four, tmp_path):
    trace = tmp_path / "trace.json"
    ended = commands.run_world(
        4, "run", four, "--check", "--repeat", 2, "--warm-up", 1, "--profile", trace, "--json"
    )
    assert codes(ended) == [0] * 4
    assert [done.err for done in ended] == [""] * 4
    assert [done.out for done in ended[1:]] == [""] * 3
    found, payload = json.loads(ended[0].out), FOUR.certificate.payload
    assert found["correct"] is True
    assert len(found["elapsed_s"]["repeats"]) == 2
    assert found["profile"] == str(trace)
    assert found["measured"]["network_nbytes"] == payload.network_nbytes
    assert found["measured"]["nvlink_nbytes"] == payload.nvlink_nbytes
    slowest = found["slowest"]
    shares = [slowest[f"{name}_s"] for name in ("pack", "wire", "unpack", "other")]
    assert sum(shares) == pytest.approx(slowest["elapsed_s"], rel=0.01)
    document = json.loads(trace.read_text(encoding="utf-8"))
    assert document["otherData"]["digest"] == FOUR.digest
    assert document["otherData"]["elapsed_s"] == found["elapsed_s"]["repeats"][-1]
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    rows = [each["args"]["name"] for each in document["traceEvents"] if each["name"] == "thread_name"]
    assert {" ".join(row.split()[:2]) for row in rows} == {f"rank {rank}" for rank in range(4)}
    for medium, nbytes in (("network", payload.network_nbytes), ("nvlink", payload.nvlink_nbytes)):
        for kind in ("send", "receive"):
            own = [event["args"]["nbytes"] for event in events if event["cat"] == f"{kind},{medium}"]
            assert sum(own) == nbytes
    arrows = Counter(event["ph"] for event in document["traceEvents"] if event["ph"] in "sf")
    assert arrows["s"] == arrows["f"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["four.reshard", "trace.json"]


def test_processes_play_the_ranks_that_they_are_given_and_others_none(commands, two):
    ended = commands.run_world(3, "run", two, "--ranks", "1,7,0", "--check", "--shadow", "--checksums")
    assert codes(ended) == [0] * 3
    lines = ended[0].out.splitlines()
    assert lines[0] == f"plan      {TWO.digest[:12]}, 3 processes"
    assert "network   16 MiB sent, as planned" in lines
    assert "nvlink    0 B sent, as planned" in lines
    assert lines[-1] == "correct   every destination element"


def test_a_wrong_element_fails_the_run_on_all_ranks(commands, two, tmp_path):
    # the receiving rank compares with another checkpoint than the one that was sent
    files = [tmp_path / f"{rank}.safetensors" for rank in (0, 1)]
    for value, path in enumerate(files):
        save_file({"w": np.full((4096, 1024), value, dtype=np.float32)}, path)
    port = free_port()
    started = [
        commands.start(["run", two, "--check", "--checkpoint", path], variables(rank, 2, port))
        for rank, path in enumerate(files)
    ]
    ended = [command.wait() for command in started]
    assert codes(ended) == [1, 1]
    wrong = "WRONG     tensor 'w', rank 1: element [0, 0] is 0x00000000; expected 0x3f800000"
    assert ended[0].out.splitlines()[-1] == wrong
    assert [done.err for done in ended] == ["", ""]


def test_what_one_rank_cannot_read_ends_all_and_the_first_says_so(commands, two, tmp_path):
    port = free_port()
    plans = [two, tmp_path / "absent.reshard"]
    started = [commands.start(["run", plan], variables(rank, 2, port)) for rank, plan in enumerate(plans)]
    ended = [command.wait() for command in started]
    assert codes(ended) == [2, 2]
    assert f"rank 1: cannot read {plans[1]}: No such file" in sentence(ended)


def named(rank: int, size: int, port: int, job: str) -> dict[str, str]:
    """What a launcher sets that gives jobs names."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": str(size),
        "PMI_JOBID": job,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def test_ranks_of_a_named_job_with_different_plans_end_with_bad_input(commands, two, four):
    port = free_port()
    started = [
        commands.start(["run", plan], named(rank, 4, port, "job"))
        for rank, plan in enumerate([four] * 3 + [two])
    ]
    ended = [command.wait() for command in started]
    assert codes(ended) == [2] * 4
    assert "the digest of the plan is " in sentence(ended)


def test_a_plan_that_fails_its_check_fails_on_all_ranks(commands, tmp_path):
    path = tmp_path / "plan.json"
    save_as(TWO, path)
    path.write_text(path.read_text(encoding="utf-8").replace(TWO.digest, "0" * 64), encoding="utf-8")
    ended = commands.run_world(2, "run", path)
    assert codes(ended) == [1, 1]
    assert "digest" in sentence(ended)


def test_too_few_processes_are_bad_input(commands, four):
    ended = commands.run_world(2, "run", four)
    assert codes(ended) == [2, 2]
    assert "the plan has ranks [2, 3], which no process of the group plays" in sentence(ended)


def test_a_profile_that_cannot_be_written_is_refused_before_the_run(commands, two, tmp_path):
    ended = commands.run_world(2, "run", two, "--profile", tmp_path / "absent" / "trace.json")
    assert codes(ended) == [2, 2]
    assert "rank 0: --profile" in sentence(ended)
    assert "cannot be written: No such file or directory" in ended[0].err


def test_a_disk_that_is_full_in_the_end_does_not_lose_the_results(commands, two, tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text("of yesterday", encoding="ascii")
    ended = commands.run_world(2, "run", two, "--profile", trace, "--repeat", 2, most_nbytes=70_000)
    assert codes(ended) == [2, 2]
    assert ended[0].out.startswith(f"plan      {TWO.digest[:12]}, 2 processes\ntime ")
    assert ended[0].err == f"reshard-executors: cannot write {trace}: File too large\n"
    assert trace.read_text(encoding="ascii") == "of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.json", "two.reshard"]


def test_a_summary_that_cannot_be_printed_fails_the_run_on_all_ranks(commands, two):
    port = free_port()
    started = [
        commands.start(["run", two], variables(rank, 2, port), out=Path("/dev/full") if rank == 0 else None)
        for rank in (0, 1)
    ]
    ended = [command.wait() for command in started]
    assert codes(ended) == [1, 1]
    assert "cannot print the result: No space left on device" in sentence(ended)


def test_ranks_that_do_not_come_are_named(commands, two):
    port = free_port()
    late = [commands.start(["run", two, "--timeout", 1], variables(rank, 3, port)) for rank in (0, 1)]
    alone = commands.start(["run", two, "--timeout", 1], variables(1, 2, free_port()))
    ended = [command.wait() for command in late]
    assert codes(ended) == [75, 75]
    assert "rank 2 did not come within 1 s" in sentence(ended)
    done = alone.wait()
    assert done.code == 75
    assert "rank 0 could not be reached at 127.0.0.1" in done.err
    assert done.err.count("\n") == 1


def test_a_port_that_somebody_listens_at_is_told_by_rank_0(commands, two):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        done = commands.start(["run", two, "--timeout", 5], variables(0, 2, port)).wait()
    assert done.code == 75
    assert f"rank 0 cannot listen on port {port}: Address already in use" in sentence([done])


@contextmanager
def foreign(kind: str) -> Iterator[int]:
    """The port of somebody who is not rank 0: silent, of few or other words, or a store of something else."""
    if kind == "store":
        port = free_port()
        store = TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)
        yield port
        del store
        return
    held = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # closed
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    if kind == "of other words":
                        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                    if kind == "of few words":
                        held.pop().close()

        Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()


@pytest.mark.parametrize("verb", ["run", "doctor"])
def test_whoever_listens_but_is_not_rank_0_is_named_in_time(commands, two, verb):
    order = [verb, two, "--ranks", "0,1", "--timeout", 1]
    with ExitStack() as listening:
        kinds = ("silent", "of few words", "of other words", "store")
        ports = [listening.enter_context(foreign(kind)) for kind in kinds]
        begin = time.monotonic()
        ended = run_all(commands.start(order, variables(1, 2, port)) for port in ports)
        assert time.monotonic() < begin + 1 + 5
    for kind, port, done in zip(kinds, ports, ended, strict=True):
        assert (done.code, done.out) == (75, ""), kind
        said = (
            f"reshard-executors: rank 1: somebody listens at 127.0.0.1:{port} who is not rank 0 of this job: "
        )
        assert done.err.startswith(said), kind
        assert done.err.count("\n") == 1, kind


def test_a_rank_of_another_job_is_refused_and_the_first_job_goes_on(commands, two, four):
    port = free_port()
    keeper = commands.start(["run", two], named(0, 2, port, "first"))
    others = [
        (["run", two], named(1, 3, port, "first"), "its job has 2 ranks, and this one 3"),
        (["doctor", two], named(1, 2, port, "first"), "its job has come for run, and this one for doctor"),
        (["run", two], named(1, 2, port, "other"), "its job is first, and this one other"),
        (
            ["run", four],
            variables(1, 2, port),
            f"its job has plan {TWO.digest[:12]}, and this one {FOUR.digest[:12]}",
        ),
    ]
    started = [commands.start(arguments, environ) for arguments, environ, _ in others]
    for command, (_, _, difference) in zip(started, others, strict=True):
        done = command.wait()
        assert (done.code, done.out, done.err.count("\n")) == (75, "", 1)
        assert f"who is not rank 0 of this job: {difference}" in done.err
    ended = [keeper.wait() for keeper in (keeper, commands.start(["run", two], named(1, 2, port, "first")))]
    assert codes(ended) == [0, 0]
    assert [done.err for done in ended] == ["", ""]


def test_a_rank_0_that_hangs_is_not_waited_for_without_end(commands, two):
    hanging, waiting = [], []
    for verb in ("run", "doctor"):
        port = free_port()
        order = [verb, two, "--ranks", "0-2", "--timeout", 2]
        first, second = (commands.start(order, variables(rank, 3, port)) for rank in (0, 1))
        assert knock("127.0.0.1", port, 20) is None
        first.signal(signal.SIGSTOP)
        hanging.append(first)
        waiting.append(second)
    begin = time.monotonic()
    for done in run_all(waiting):
        assert (done.code, done.err.count("\n")) == (75, 1)
        assert "has not answered" in done.err
    assert time.monotonic() < begin + 2 + 5
    for first in hanging:
        first.signal(signal.SIGKILL)
        first.wait()


def test_a_service_that_is_not_rank_0_brings_no_messages_of_torch_to_the_terminal(two):
    with foreign("of few words") as port:
        done = subprocess.run(
            [sys.executable, "-m", "reshard_executors", "doctor", two, "--ranks", "0,1", "--timeout", "4"],
            env={name: value for name, value in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
            | variables(1, 2, port),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (75, "", 1)


jobs = st.builds(
    Job,
    st.integers(1, 2),
    st.sampled_from(["run", "doctor"]),
    st.sampled_from(["", "one", "two"]),
    st.sampled_from(["", "a", "b"]),
)


@given(jobs, jobs)
def test_two_jobs_differ_both_ways_or_not_at_all(first, second):
    assert (first.difference(second) is None) == (second.difference(first) is None)
    assert first.difference(first) is None


def test_a_process_whose_rank_another_has_ends_alone(commands, two):
    port = free_port()
    first = [commands.start(["run", two, "--timeout", 1], variables(rank, 3, port)) for rank in (0, 1, 1)]
    ended = [command.wait() for command in first]
    assert sorted(codes(ended)) == [2, 75, 75]
    assert any("the rank of this process is 1, which another process has too" in done.err for done in ended)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeat", 3], "--repeat is 1 on rank 0, but 3 on rank 1; expected the same on all"),
        (["--warm-up", 1], "--warm-up is 0 on rank 0, but 1 on rank 1; expected the same on all"),
        (["--check"], "--check is not given on rank 0, but given on rank 1; expected the same on all"),
    ],
)
def test_options_that_differ_between_ranks_are_refused_on_all(commands, two, options, said):
    port = free_port()
    started = [
        commands.start(["run", two, *(options if rank else [])], variables(rank, 2, port)) for rank in (0, 1)
    ]
    ended = [command.wait() for command in started]
    assert codes(ended) == [2, 2]
    assert [done.err for done in ended] == [f"reshard-executors: rank 0: {said}\n", ""]


def test_a_rank_that_was_started_by_hand_with_a_bad_option_says_so_itself(commands, two):
    of_launcher = variables(1, 2, free_port())
    by_hand = {name: value for name, value in of_launcher.items() if name != "LOCAL_WORLD_SIZE"}
    for environment, said in (
        (by_hand, "rank 1: --repeat is 0; expected an integer from 1 to 10000"),
        (of_launcher, ""),
    ):
        done = commands.start(["run", two, "--repeat", 0], environment).wait()
        assert done.code == 2
        assert done.err == (f"reshard-executors: {said}\n" if said else "")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "GLOO_SOCKET_IFNAME",
            "nope0",
            "GLOO_SOCKET_IFNAME names 'nope0', which is no interface of this host",
        ),
        (
            "TORCH_DISTRIBUTED_DEBUG",
            "bogus",
            "running a plan needs torch, which cannot be loaded: The value of",
        ),
    ],
)
def test_a_variable_that_torch_does_not_take_is_bad_input(two, name, value, said):
    done = subprocess.run(
        [sys.executable, "-m", "reshard_executors", "run", two, "--ranks", "0"],
        env={**os.environ, **variables(0, 1, free_port()), name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def start_endless(commands: Commands, two: Path, *more: str) -> list[Command]:
    """Two ranks that are in the middle of a run without end."""
    started = commands.start_world(2, "run", two, "--repeat", 10_000, "--lost-after", 2, *more)
    deadline = time.monotonic() + 30
    while written_nbytes(started[0].pid) < 10 * TWO.certificate.payload.network_nbytes:
        assert time.monotonic() < deadline, "the run does not begin"
        time.sleep(0.05)
    return started


def written_nbytes(pid: int) -> int:
    """Bytes that a process has written into files and connections."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def test_a_killed_rank_ends_the_others_who_name_it_and_what_they_measured_is_not_lost(commands, two):
    started = start_endless(commands, two)
    started[1].signal(signal.SIGKILL)
    ended = [command.wait() for command in started]
    assert codes(ended) == [75, -signal.SIGKILL]
    assert "rank 1" in sentence_of(ended)
    lines = ended[0].out.splitlines()
    assert lines[1].startswith("PARTIAL   ")
    assert lines[1].endswith(" of 10000 runs ended well; figures of rank 0 alone")
    assert lines[2].startswith("time      ")
    assert lines[3] == "network   16 MiB sent, as planned"


def test_a_rank_that_a_signal_ends_tells_the_others(commands, two):
    signals = [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")]
    cases = [(*each, rank) for each in signals for rank in (0, 1)]
    worlds = []
    for number, _, _, rank in cases:  # one begins while others wait for the cause of their signal
        worlds.append(start_endless(commands, two))
        worlds[-1][rank].signal(number)
    for (_, code, said, rank), started in zip(cases, worlds, strict=True):
        ended = run_all(started)
        assert codes(ended) == [code if rank == 0 else 75, code if rank == 1 else 75], said
        assert f"rank {rank}: it was {said}" in ended[1 - rank].err
        assert "PARTIAL" in ended[0].out
        assert ended[1].out == ""
        if rank == 0:  # of the signal the first rank of a host tells
            assert ended[0].err.startswith(f"reshard-executors: rank 0: {said} at: run, repeat ")


def test_an_interrupted_run_prints_json_of_the_runs_that_ended_well(commands, two):
    started = start_endless(commands, two, "--json", "--check")
    for _ in range(2):  # launchers send a signal of their own after that of the terminal
        for command in started:
            command.signal(signal.SIGINT)
        time.sleep(0.1)
    ended = [command.wait() for command in started]
    assert codes(ended) == [130, 130]
    found = json.loads(ended[0].out)
    assert found["partial"] == {
        "rank": 0,
        "repeats": len(found["elapsed_s"]["repeats"]),
        "asked_repeats": 10_000,
    }
    assert found["sent"]["network"] == dict.fromkeys(("planned_nbytes", "measured_nbytes"), 2**24)
    assert found["correct"] is True


def test_of_many_ranks_that_lose_another_one_the_first_few_say_so():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert [has_voice() for _ in range(MAX_VOICES + 2)] == [True] * MAX_VOICES + [False] * 2
    finally:
        dist.destroy_process_group()


def test_a_rank_of_the_doctor_that_a_signal_ends_tells_the_others(commands, two):
    worlds = []
    for rank in (0, 1):
        port = free_port()
        order = ["doctor", two, "--ranks", "0-2", "--timeout", 30]
        started = [commands.start(order, variables(each, 3, port)) for each in (0, 1)]
        assert knock("127.0.0.1", port, 20) is None
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        store.wait([f"pulse/{each}" for each in (0, 1)], timedelta(seconds=20))
        time.sleep(0.2)  # until they know how to say so
        started[rank].signal(signal.SIGTERM)
        worlds.append(started)
    begin = time.monotonic()
    for rank, started in enumerate(worlds):
        ended = run_all(started)
        assert codes(ended) == [143 if rank == 0 else 75, 143 if rank == 1 else 75]
        told = ended[1].err if rank == 0 else " ".join(ended[0].out.split())
        assert f"rank {rank} has not stayed: it was ended by SIGTERM" in told
    assert time.monotonic() < begin + 15  # and not 30, which all wait for the last rank


@pytest.mark.parametrize("module", ["numpy", "reshard_executors.command.output"])
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 143, "ended by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_signal_while_the_command_is_imported_ends_it_in_one_sentence(four, number, code, said, module):
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "reshard_executors", "run", four],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said_all = []
        for line in process.stderr:
            said_all.append(line)
            if line.split()[-1] == module:  # others come later
                process.send_signal(number)
    assert process.returncode == code
    others = [line for line in said_all if not line.startswith("import time:")]
    assert others == [f"reshard-executors: {said}\n"]


def test_progress_is_shown_on_a_terminal_with_the_time_so_far(monkeypatch):
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        progress = Progress(shown=True)
        for number in range(1, 4):
            progress.say("run", f"repeat {number} of 3")
        assert progress.stage == "run, repeat 3 of 3"
        progress.tick()
        progress.stop()
        progress.say("run", "repeat 4 of 3")
        shown = ""
        while select.select([screen], [], [], 0.5)[0]:
            shown += screen.read(1000).decode()
        shown = shown.split("\r\x1b[K")
    assert shown == ["", "run, repeat 1 of 3 ...", "run, repeat 3 of 3: 0 s so far", ""]


def test_in_a_log_many_short_repeats_count_as_one_stage(monkeypatch, capsys):
    now_s = 100.0
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: now_s))
    progress = Progress(shown=True)
    for number in range(1, 4):
        progress.say("run", f"repeat {number} of 3")
        now_s += 0.6 * output.PATIENCE_S
        progress.tick()
    shown_s = 1.2 * output.PATIENCE_S
    assert capsys.readouterr().err == f"reshard-executors: run, repeat 2 of 3: {shown_s:.0f} s so far\n"


def test_signals_end_a_rank_at_once_and_in_one_sentence(commands, two):
    signals = {signal.SIGTERM: (143, "ended by SIGTERM"), signal.SIGINT: (130, "interrupted")}
    waiting = {}
    for number in signals:
        port = free_port()
        waiting[number] = commands.start(["run", two], variables(0, 2, port), out=None)
        assert knock("127.0.0.1", port, 20) is None  # from then on it waits
    for number, command in waiting.items():
        command.signal(number)
    for number, (code, word) in signals.items():
        done = waiting[number].wait()
        assert done.code == code
        assert done.err == f"reshard-executors: rank 0: {word} at: wait for all ranks\n"
