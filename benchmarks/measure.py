"""Measuring one case in this process; the caller gives every case a process of its own."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

import reshard_planner as rp
from benchmarks.case import Case
from benchmarks.goals import find_missed
from benchmarks.record import Record, ratio
from reshard_planner.errors import ReshardError
from reshard_planner.ir.forms import read_program
from reshard_planner.simulate import predict
from reshard_planner.simulate.predict import TOLERANCE
from reshard_planner.topology.model import NIC_LINK

LONG_S = 5.0
"""A first compile that takes longer is not repeated."""

Tell = Callable[[str], None]
"""Told the name of each stage as it begins."""


class Stopwatch:
    """Times between the stages of one compile."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._begun = perf_counter()
        self._stage: str | None = None
        self._spent: dict[str, float] = {}

    def stage(self, name: str) -> None:
        """Begin a stage, which ends the one before."""
        self._end()
        self._stage = name
        self._tell(name)
        self._begun = perf_counter()

    def stop(self) -> dict[str, float]:
        """End the last stage and return the seconds of each."""
        self._end()
        self._stage = None
        return dict(self._spent)

    def _end(self) -> None:
        if self._stage is not None:
            spent = perf_counter() - self._begun
            self._spent[self._stage] = self._spent.get(self._stage, 0.0) + spent


def measure(case: Case, repeat: int, tell: Tell) -> Record:
    """Build, compile, verify and, where the case asks for it, save and read back.

    Args:
        case: what to compile.
        repeat: compiles after the first, of which the median counts.
        tell: called with the name of each stage as it begins.
    """
    record = Record(case.name, case.name.partition("/")[0], case.about)
    record.m2n = [asdict(each) for each in case.m2n]
    record.expected_bound_nbytes = case.bound_nbytes
    at = "build"

    def begin(stage: str) -> None:
        nonlocal at
        at = stage
        tell(stage)

    try:
        begin("build")
        plan = _compile(case, repeat, record, begin)
        _describe(plan, record)
        _read_certificate(plan, record)
        begin("verify")
        started = perf_counter()
        rp.verify(plan)
        record.verify_s = perf_counter() - started
        if case.program:
            begin("file")
            _measure_file(plan, record)
        if case.predict != "no":
            begin("predict")
            _predict(plan, record, exactly=case.predict == "both")
        record.status = "ok"
    except ReshardError as error:
        record.reason = f"{at}: {error}"
    except MemoryError:
        record.reason = f"{at}: out of memory"
    except Exception as error:  # noqa: BLE001 - one case must not end the run
        record.reason = f"{at}: {type(error).__name__}: {error}".splitlines()[0]
    record.peak_nbytes = peak_nbytes()
    record.missed = find_missed(case.goals, record)
    return record


def peak_nbytes() -> int:
    """Largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _compile(case: Case, repeat: int, record: Record, begin: Tell) -> rp.Plan:
    totals: list[float] = []
    stages: list[dict[str, float]] = []

    def once() -> rp.Plan:
        spec = case.build()
        if not totals:
            _describe_spec(spec, record)
        watch = Stopwatch(begin)
        started = perf_counter()
        try:
            return rp.compile(spec, progress=watch.stage)
        finally:
            totals.append(perf_counter() - started)
            stages.append(watch.stop())
            record.stages_s = stages[-1]

    plan = once()
    record.first_compile_s = totals[0]
    if totals[0] <= LONG_S and repeat > 0:
        totals.clear()
        stages.clear()
        for _ in range(repeat):
            del plan
            plan = once()
    record.compile_s = median(totals)
    record.compile_runs = len(totals)
    record.stages_s = {name: median(each.get(name, 0.0) for each in stages) for name in stages[0]}
    return plan


def _describe_spec(spec: rp.ReshardSpec, record: Record) -> None:
    record.gpus = len(spec.ranks)
    record.domains = len(spec.topology.domains)
    record.tensors = len(spec.tensors)
    record.logical_nbytes = sum(tensor.nbytes for tensor in spec.tensors)


def _describe(plan: rp.Plan, record: Record) -> None:
    record.rows = len(plan.routes)
    record.units = len(plan.schedule)
    record.operations = count_operations(plan)


def count_operations(plan: rp.Plan) -> int:
    """Rows over all units, without expanding them."""
    pieces, schedule = plan.pieces, plan.schedule
    wide = int(max(pieces.part.max(initial=0), schedule.part.max(initial=0))) + 1
    key = pieces.group.astype(np.int64) * wide + pieces.part
    rows = np.bincount(key[plan.routes.piece], minlength=wide * max(1, len(plan.groups)))
    owner = plan.groups.routes_of[schedule.group].astype(np.int64)
    return int(rows[owner * wide + schedule.part].sum())


def _read_certificate(plan: rp.Plan, record: Record) -> None:
    claims = plan.certificate.to_dict()
    payload, bound, schedule = claims["payload"], claims["bound"], claims["schedule"]
    nic, nvlink = claims["busiest_nic"], claims["busiest_nvlink"]
    record.network_nbytes = payload["network_nbytes"]
    record.minimum_network_nbytes = payload["minimum_network_nbytes"]
    record.payload_ratio = ratio(payload["network_nbytes"], payload["minimum_network_nbytes"])
    record.bound_s, record.t0_s, record.bound_term = bound["time_s"], bound["t0_s"], bound["term"]
    record.bound_nbytes = bound["time_s"] * NIC_LINK.bytes_per_s
    if record.expected_bound_nbytes is not None:
        off = abs(record.bound_nbytes - record.expected_bound_nbytes)
        record.expected_bound_met = off <= record.expected_bound_nbytes * 1e-6
    record.busiest_nic, record.busiest_nic_nbytes = nic["resource"], nic["nbytes"]
    record.nic_ratio = ratio(nic["time_s"], bound["time_s"])
    record.busiest_nvlink_nbytes = nvlink["nbytes"]
    record.nvlink_ratio = ratio(nvlink["time_s"], bound["time_s"])
    if plan.spec.topology.pods:
        uplink = claims["busiest_uplink"]
        record.busiest_uplink_nbytes = uplink["nbytes"]
        record.uplink_ratio = ratio(uplink["time_s"], bound["time_s"])
    record.gap, record.staging_nbytes = claims["gap"], claims["staging_nbytes"]
    record.schedule_gap, record.schedule_s = schedule["gap"], schedule["time_s"]
    record.slots, record.messages = schedule["slots"], schedule["messages"]
    record.peers_max = schedule["peers_max"]
    record.peers_in_slot_max = schedule["peers_in_slot_max"]
    record.message_cost_s = schedule["message_cost_s"]
    peers = claims["peers"]
    record.network_peers_max, record.nvlink_peers_max = peers["network_max"], peers["nvlink_max"]
    record.connection_nbytes = peers["connection_nbytes"]


def _measure_file(plan: rp.Plan, record: Record) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.reshard"
        started = perf_counter()
        plan.save(path)
        record.save_s = perf_counter() - started
        record.file_nbytes = path.stat().st_size
        rank = plan.ranks[-1]
        started = perf_counter()
        read_program(path, rank)
        record.program_s = perf_counter() - started


def _predict(plan: rp.Plan, record: Record, *, exactly: bool) -> None:
    started = perf_counter()
    found = predict(plan, tolerance=TOLERANCE)
    record.predict_s = perf_counter() - started
    record.predicted_s = found.elapsed_s
    record.predicted_ratio = ratio(found.elapsed_s, plan.certificate.bound.time_s)
    if exactly:
        started = perf_counter()
        exact = predict(plan, tolerance=0.0)
        record.exact_predict_s = perf_counter() - started
        record.predict_error = abs(found.elapsed_s / exact.elapsed_s - 1)
