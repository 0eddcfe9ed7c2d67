"""Records: what is measured of one case, in plain JSON types."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """Everything measured of one case; what was not reached stays None.

    Attributes:
        case: name of the case.
        suite: name of its suite.
        about: one line for people.
        status: ``ok`` or ``failed``.
        reason: why it failed, one line.
        gpus: ranks of the spec.
        domains: domains of the topology.
        tensors: tensors of the spec.
        logical_nbytes: sum of the tensors' sizes.
        first_compile_s: time of the first compile in the process, lazy imports included.
        compile_s: median of the later compiles; the first where it took more than 5 s or was the only one.
        compile_runs: number of compiles that the median is of.
        stages_s: time from the begin of each stage to that of the next, by stage, medians likewise.
        verify_s: time of ``verify``.
        peak_nbytes: largest resident memory of the process that built, compiled, verified and saved.
        network_nbytes: bytes over the network.
        minimum_network_nbytes: P*, the least.
        payload_ratio: the former over the latter; None where both are 0.
        bound_s: T*.
        t0_s: T0.
        bound_term: kind of the binding cut.
        bound_nbytes: T* times the rate of one NIC of 50 GB/s.
        expected_bound_nbytes: the same as known by hand.
        expected_bound_met: whether they agree to a millionth.
        missed: goals of the case that it does not reach, one line each.
        busiest_nic: name of the busiest NIC and its direction.
        busiest_nic_nbytes: bytes over it.
        nic_ratio: its time over T*.
        busiest_nvlink_nbytes: bytes over the busiest NVLink port.
        nvlink_ratio: its time over T*.
        busiest_uplink_nbytes: bytes over the busiest uplink; None without pods.
        uplink_ratio: its time over T*.
        gap: time of the busiest of NIC, NVLink and uplink over T*, minus 1; None if only T* is 0; negative
            only for a baseline that moves more than the least.
        schedule_gap: sum over slots of the busiest port, over T*, minus 1.
        schedule_s: that sum with start-up times.
        slots: slots of the schedule.
        messages: packed messages, one per pair and slot.
        peers_max: most peers of any rank over all slots.
        peers_in_slot_max: most peers of any rank in one slot.
        message_cost_s: what it costs that messages are no smaller, in the sum over slots.
        network_peers_max: most network peers of any rank.
        nvlink_peers_max: most NVLink peers of any rank.
        connection_nbytes: estimated memory for connections of the rank that needs most.
        rows: rows of the table of routes.
        units: rows of the schedule.
        operations: rows over all units that run them, empty ones included.
        staging_nbytes: staging and scratch of the rank that needs most.
        file_nbytes: size of the plan file.
        save_s: time to write it.
        program_s: time to read one rank's program from it.
        predict_s: time to predict a run of the plan in windows of the default length.
        predicted_s: time of the run that is predicted, with efficiency and latency of the topology.
        predicted_ratio: the same over T*.
        exact_predict_s: time to predict the run exactly.
        predict_error: relative difference of the two predictions.
        m2n: figures of NCCL M2N, as ``mode``, ``payload_ratio`` and ``nic_ratio``; not measured here.
        peers: other planners on this case; see :class:`PeerRecord`.
    """

    case: str
    suite: str
    about: str
    status: str = "failed"
    reason: str | None = None
    gpus: int | None = None
    domains: int | None = None
    tensors: int | None = None
    logical_nbytes: int | None = None
    first_compile_s: float | None = None
    compile_s: float | None = None
    compile_runs: int | None = None
    stages_s: dict[str, float] = field(default_factory=dict)
    verify_s: float | None = None
    peak_nbytes: int | None = None
    network_nbytes: int | None = None
    minimum_network_nbytes: int | None = None
    payload_ratio: float | None = None
    bound_s: float | None = None
    t0_s: float | None = None
    bound_term: str | None = None
    bound_nbytes: float | None = None
    expected_bound_nbytes: int | None = None
    expected_bound_met: bool | None = None
    missed: list[str] = field(default_factory=list)
    busiest_nic: str | None = None
    busiest_nic_nbytes: int | None = None
    nic_ratio: float | None = None
    busiest_nvlink_nbytes: int | None = None
    nvlink_ratio: float | None = None
    busiest_uplink_nbytes: int | None = None
    uplink_ratio: float | None = None
    gap: float | None = None
    schedule_gap: float | None = None
    schedule_s: float | None = None
    slots: int | None = None
    messages: int | None = None
    peers_max: int | None = None
    peers_in_slot_max: int | None = None
    message_cost_s: float | None = None
    network_peers_max: int | None = None
    nvlink_peers_max: int | None = None
    connection_nbytes: int | None = None
    rows: int | None = None
    units: int | None = None
    operations: int | None = None
    staging_nbytes: int | None = None
    file_nbytes: int | None = None
    save_s: float | None = None
    program_s: float | None = None
    predict_s: float | None = None
    predicted_s: float | None = None
    predicted_ratio: float | None = None
    exact_predict_s: float | None = None
    predict_error: float | None = None
    m2n: list[dict[str, Any]] = field(default_factory=list)
    peers: list[PeerRecord] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """In plain JSON types."""
        return asdict(self)


@dataclass(slots=True)
class PeerRecord:
    """Another planner on one case.

    Attributes:
        peer: name of the planner and its mode.
        status: ``ok``, ``failed`` or ``skipped``.
        reason: why it was skipped or failed, one line.
        plan_s: time to plan for all ranks.
        transfers: point-to-point transfers that it plans, or steps of collectives.
        network_nbytes: bytes over the network.
        payload_ratio: these over the least.
        nic_nbytes: bytes over the busiest NIC in one direction, phases taken together.
        nic_ratio: its time over T*.
        phases_ratio: sum over phases, one after another, of the busiest NIC's time, over T*.
        nvlink_ratio: time of the busiest NVLink port in one direction over T*, phases taken together.
        note: what was assumed, and whether the problem is another one than the case.
    """

    peer: str
    status: str = "failed"
    reason: str | None = None
    plan_s: float | None = None
    transfers: int | None = None
    network_nbytes: int | None = None
    payload_ratio: float | None = None
    nic_nbytes: int | None = None
    nic_ratio: float | None = None
    phases_ratio: float | None = None
    nvlink_ratio: float | None = None
    note: str = ""


def ratio(value: float, base: float) -> float | None:
    """How many times ``base``; None where that means nothing."""
    return value / base if base else None
