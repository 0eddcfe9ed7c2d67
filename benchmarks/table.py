"""Tables for people, from finished records."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.record import PeerRecord, Record
from reshard_planner.render.text import align, format_nbytes, format_s

NONE = "-"


def plan_table(records: Sequence[Record]) -> str:
    """Costs and quality of the plans, and below them what failed."""
    done = [record for record in records if record.rows is not None]
    header = (
        "case", "GPUs", "compile", "stages, ms", "verify", "peak", "T*", "payload", "NIC", "NVLink", "uplink",
        "gap", "sched gap", "slots", "messages", "peers", "in slot", "rows", "operations",
    )  # fmt: skip
    parts = []
    if done:
        stages = "+".join(done[0].stages_s)
        parts = [align([header, *map(_plan_row, done)]), f"stages: {stages}"]
    parts += [_failure(record) for record in records if record.status != "ok"]
    parts += [
        f"WRONG {record.case}: T* is {record.bound_nbytes} bytes over one NIC,"
        f" by hand {record.expected_bound_nbytes}"
        for record in records
        if record.expected_bound_met is False
    ]
    parts += [f"MISSED {record.case}: {goal}" for record in records for goal in record.missed]
    return "\n".join(parts)


def _plan_row(record: Record) -> tuple[str, ...]:
    return (
        record.case.partition("/")[2],
        str(record.gpus),
        seconds(record.compile_s),
        "+".join(f"{1000 * each:.0f}" for each in record.stages_s.values()),
        seconds(record.verify_s),
        nbytes(record.peak_nbytes),
        seconds(record.bound_s),
        times(record.payload_ratio),
        times(record.nic_ratio),
        times(record.nvlink_ratio),
        times(record.uplink_ratio),
        times(record.gap),
        times(record.schedule_gap),
        count(record.slots),
        count(record.messages),
        count(record.peers_max),
        count(record.peers_in_slot_max),
        count(record.rows),
        count(record.operations),
    )


def _failure(record: Record) -> str:
    spent = ", ".join(f"{name} {seconds(time_s)}" for name, time_s in record.stages_s.items())
    peak = f" ({spent}; peak {nbytes(record.peak_nbytes)})" if spent else ""
    return f"FAILED {record.case}: {record.reason}{peak}"


def file_table(records: Sequence[Record]) -> str:
    """Plan files, for the cases that wrote one; empty without any."""
    rows = [
        (
            record.case.partition("/")[2],
            nbytes(record.file_nbytes),
            seconds(record.save_s),
            seconds(record.program_s),
        )
        for record in records
        if record.program_s is not None
    ]
    return align([("case", "plan file", "save", "one rank's program"), *rows]) if rows else ""


def predict_table(records: Sequence[Record]) -> str:
    """Predicted runs, for the cases that have some; empty without any."""
    rows = [
        (
            record.case.partition("/")[2],
            str(record.gpus),
            count(record.messages),
            seconds(record.predicted_s),
            times(record.predicted_ratio),
            seconds(record.predict_s),
            seconds(record.exact_predict_s),
            NONE if record.predict_error is None else f"{record.predict_error:.5f}",
        )
        for record in records
        if record.predict_s is not None
    ]
    header = ("case", "GPUs", "messages", "predicted", "x T*", "takes", "exactly", "error")
    return align([header, *rows]) if rows else ""


def m2n_table(records: Sequence[Record]) -> str:
    """Our ratios beside those of NCCL M2N; empty without any."""
    rows = []
    for record in records:
        for each in record.m2n if record.rows is not None else ():
            ours = times(record.payload_ratio), times(record.nic_ratio), times(record.nvlink_ratio)
            rows.append(
                (
                    record.case.partition("/")[2],
                    *ours,
                    each["mode"],
                    times(each["payload_ratio"]),
                    times(each["nic_ratio"]),
                )
            )
    header = ("case", "payload", "NIC", "NVLink", "M2N mode", "payload", "NIC")
    return align([header, *rows]) if rows else ""


def peer_table(records: Sequence[Record]) -> str:
    """Other planners beside ours; empty without any."""
    rows = []
    for record in records:
        if record.peers and record.rows is not None:
            rows.append(_peer_row(record, _ourselves(record)))
            rows.extend(_peer_row(record, peer) for peer in record.peers if peer.status == "ok")
    header = ("case", "planner", "plan", "transfers", "payload", "NIC", "NIC by phases", "NVLink")
    parts = [align([header, *rows])] if rows else []
    reasons = dict.fromkeys(
        f"{peer.status} {peer.peer}: {peer.reason}"
        for record in records
        for peer in record.peers
        if peer.status != "ok"
    )
    notes = dict.fromkeys(
        f"{peer.peer}: {peer.note}" for record in records for peer in record.peers if peer.note
    )
    return "\n".join([*parts, *reasons, *notes])


def _ourselves(record: Record) -> PeerRecord:
    return PeerRecord(
        "reshard planner",
        plan_s=record.compile_s,
        transfers=record.rows,
        payload_ratio=record.payload_ratio,
        nic_ratio=record.nic_ratio,
        phases_ratio=record.nic_ratio,
        nvlink_ratio=record.nvlink_ratio,
    )


def _peer_row(record: Record, peer: PeerRecord) -> tuple[str, ...]:
    return (
        record.case.partition("/")[2],
        peer.peer,
        seconds(peer.plan_s),
        count(peer.transfers),
        times(peer.payload_ratio),
        times(peer.nic_ratio),
        times(peer.phases_ratio),
        times(peer.nvlink_ratio),
    )


def seconds(value: float | None) -> str:
    """A time with three digits."""
    return NONE if value is None else format_s(value)


def nbytes(value: int | None) -> str:
    """A size in binary units."""
    return NONE if value is None else format_nbytes(value)


def times(value: float | None) -> str:
    """A ratio with three decimals."""
    return NONE if value is None else f"{round(value, 3) + 0.0:.3f}"  # never -0.000


def count(value: int | None) -> str:
    """A whole number."""
    return NONE if value is None else str(value)
