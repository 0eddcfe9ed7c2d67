"""``python -m benchmarks.loopback``: the executor on loopback, beside a bare loop of the same messages.

Ranks are processes of this machine that exchange messages over gloo on the loopback interface, unshaped. The
bare loop posts the messages of one slot after another from and into buffers that are ready, waits for each
slot, and packs nothing. Both alternate in one run, and the figure that counts is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import reshard_planner as rp

MIB = 2**20
COLUMNS = 8192
"""Width of the matrices by default; half a row of bfloat16 is 8 KiB, the run of bytes that packing copies."""

CASES = ("views", "boxes", "model")
TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class LoopbackCase:
    """What is measured.

    Attributes:
        name: as on the command line.
        about: one line.
        spec: what is resharded.
    """

    name: str
    about: str
    spec: rp.ReshardSpec


@dataclass(frozen=True, slots=True)
class Sample:
    """Medians over the repeats of one case, of the slowest rank of each.

    Attributes:
        case: name.
        nbytes: bytes that all ranks send.
        messages: messages that they send.
        bare_s: time of the bare loop, in seconds.
        run_s: time of a run, with checking tensors and agreeing.
        ratio: bare_s over run_s.
        outside: share of a run spent outside packing, the wire and unpacking, on the rank where it is most.
        beyond_nbytes: how far the peak of memory of the worst rank lies above its tensors and the staging of
            the certificate; the budget is 64 MiB.
    """

    case: str
    nbytes: int
    messages: int
    bare_s: float
    run_s: float
    ratio: float
    outside: float
    beyond_nbytes: int


def cases(nbytes: int, columns: int = COLUMNS) -> list[LoopbackCase]:
    """The cases, of about ``nbytes`` bytes of weights each, in matrices of so many columns."""
    train, serve = rp.Mesh([0, 1], ["tp"]), rp.Mesh([2, 3], ["tp"])
    topology = rp.Topology.from_domains([[0, 1], [2, 3]])

    def spec(count: int, src: str, dst: str) -> rp.ReshardSpec:
        rows = max(2, nbytes // count // (columns * 2) // 4 * 4)
        tensors = [
            rp.TensorSpec(
                f"layer{at}", (rows, columns), "bfloat16", rp.Layout(train, [src]), rp.Layout(serve, [dst])
            )
            for at in range(count)
        ]
        return rp.ReshardSpec(tensors, topology)

    return [
        LoopbackCase("views", "rows to rows: every message is a contiguous view", spec(8, "S(0)", "S(0)")),
        LoopbackCase("boxes", "rows to columns: one end of every message packs", spec(8, "S(0)", "S(1)")),
        LoopbackCase("model", "700 tensors, rows to columns", spec(700, "S(0)", "S(1)")),
    ]


def measure(case: LoopbackCase, repeat: int) -> Sample:
    """Measure one case in processes of its own."""
    plan = rp.compile(case.spec)
    context = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pool = []
        for rank in plan.ranks:
            ours, theirs = context.Pipe()
            process = context.Process(target=_be_rank, args=(plan, rank, Path(folder), repeat, theirs))
            process.start()
            theirs.close()
            pool.append((process, ours))
        try:
            found = [connection.recv() for _, connection in pool]
        finally:
            for process, connection in pool:
                connection.close()
                process.join(10)
                process.kill()
    slowest = {
        what: statistics.median(map(max, zip(*(rank[what] for rank in found), strict=True)))
        for what in ("bare", "run")
    }
    return Sample(
        case.name,
        sum(rank["nbytes"] for rank in found),
        sum(rank["messages"] for rank in found),
        slowest["bare"],
        slowest["run"],
        slowest["bare"] / slowest["run"],
        max(statistics.median(rank["outside"]) for rank in found),
        max(rank["peak_nbytes"] for rank in found) - plan.certificate.staging_nbytes,
    )


def _be_rank(plan: rp.Plan, rank: int, folder: Path, repeat: int, answer: Any) -> None:
    import torch  # noqa: PLC0415 - imported by the parent before it forks
    import torch.distributed as dist  # noqa: PLC0415
    from reshard_executors import Resharder  # noqa: PLC0415
    from reshard_executors.values import empty_buffers  # noqa: PLC0415
    from reshard_executors.worker import as_tensors  # noqa: PLC0415

    torch.set_num_threads(1)
    at = plan.ranks.index(rank)
    store = dist.FileStore(str(folder / "store"), len(plan.ranks))  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=at, world_size=len(plan.ranks), timeout=TIMEOUT)
    sources = as_tensors(plan, "src", empty_buffers(plan, rank, "src"))
    destinations = as_tensors(plan, "dst", empty_buffers(plan, rank, "dst"))
    for tensors in (*sources.values(), *destinations.values()):
        for tensor in tensors:
            tensor.view(torch.uint8).fill_(1)
    before = _resident_nbytes()
    times: dict[str, list[float]] = {"bare": [], "run": [], "outside": []}
    with Resharder(plan, ranks=plan.ranks, timeout=TIMEOUT) as resharder:
        for _ in range(repeat + 1):
            dist.barrier()
            begin = time.perf_counter()
            record = resharder.run(sources, destinations)
            elapsed_s = time.perf_counter() - begin
            times["run"].append(elapsed_s)
            times["outside"].append(1 - (record.pack_s + record.wire_s + record.unpack_s) / elapsed_s)
        peak_nbytes = _resident_nbytes("VmHWM") - before
        bare = _bare_loop(plan, rank)
        for _ in range(repeat + 1):
            for what, call in (("bare", bare), ("run", lambda: resharder.run(sources, destinations))):
                dist.barrier()
                begin = time.perf_counter()
                call()
                times[what].append(time.perf_counter() - begin)
    dist.destroy_process_group()
    sent = record.network_nbytes + record.nvlink_nbytes
    half = {"bare": times["bare"][1:], "run": times["run"][repeat + 2 :], "outside": times["outside"][1:]}
    answer.send({**half, "nbytes": sent, "messages": record.messages, "peak_nbytes": peak_nbytes})


def _bare_loop(plan: rp.Plan, rank: int) -> Callable[[], None]:
    """The same messages, slot by slot, from and into buffers that are ready."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from reshard_executors.messages import lower_program  # noqa: PLC0415

    exchanges = lower_program(plan.program(rank)).exchanges
    slots: list[list[Any]] = [[] for _ in exchanges]
    for call, side in ((dist.irecv, "receives"), (dist.isend, "sends")):
        messages = [(at, message) for at, each in enumerate(exchanges) for message in getattr(each, side)]
        block = torch.ones(sum(message.nbytes for _, message in messages), dtype=torch.uint8)
        end = 0
        for at, message in messages:
            buffer = block[end : end + message.nbytes]
            end += message.nbytes
            slots[at].append((call, buffer, plan.ranks.index(message.peer)))

    def loop() -> None:
        for operations in slots:
            works = [call(buffer, peer) for call, buffer, peer in operations]
            for work in works:
                work.wait()

    return loop


def _resident_nbytes(field: str = "VmRSS") -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases that are asked for and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loopback",
        description="Measure the executor on loopback, beside a bare loop of the same messages.",
    )
    parser.add_argument("--mib", type=int, default=512, help="weights per case (512)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind, median (5)")
    parser.add_argument("--columns", type=int, default=COLUMNS, help=f"width of the matrices ({COLUMNS})")
    parser.add_argument("--case", action="append", choices=CASES, help="only these; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    import reshard_executors.worker  # noqa: F401, PLC0415 - torch, once for all ranks

    gc.freeze()
    samples = []
    for case in cases(given.mib * MIB, given.columns):
        if given.case and case.name not in given.case:
            continue
        samples.append(measure(case, given.repeat))
        if not given.json:
            sample = samples[-1]
            sys.stdout.write(
                f"{sample.case:6} {sample.nbytes / MIB:7.0f} MiB {sample.messages:5} messages"
                f"  bare {sample.bare_s:.3f} s  run {sample.run_s:.3f} s  ratio {sample.ratio:.2f}"
                f"  outside {sample.outside:.1%}  beyond {sample.beyond_nbytes / MIB:.0f} MiB\n"
            )
            sys.stdout.flush()
    if given.json:
        sys.stdout.write(json.dumps([asdict(sample) for sample in samples], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
