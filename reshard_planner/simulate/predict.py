"""Predictions, from event to event: messages that share ports, between ranks that do one thing at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from reshard_planner.errors import InputError
from reshard_planner.ir.plan import Plan
from reshard_planner.progress import Progress, silent, within
from reshard_planner.simulate.costs import FREE, Costs, is_number
from reshard_planner.simulate.engine import Engine
from reshard_planner.simulate.joined import joined
from reshard_planner.simulate.paths import Paths, RunPorts
from reshard_planner.simulate.phases import Phase, plan_phases
from reshard_planner.simulate.values import Intervals, PortUse, Prediction, SlotTimes
from reshard_planner.simulate.workload import Workload
from reshard_planner.topology import Topology

Ints = NDArray[np.int64]

EXACT_MESSAGES = 10_000
"""Below as many messages a run is worked out exactly by default."""

TOLERANCE = 2e-4
"""Default tolerance from there on."""

MAX_TOLERANCE = 0.001
"""Largest tolerance: above, errors may be many times as large."""

REPORTED_WINDOWS = 200
"""Windows from one report of progress to the next."""


def predict(
    plan: Plan,
    costs: Costs = FREE,
    *,
    topology: Topology | None = None,
    phases: Sequence[Sequence[int]] | None = None,
    overlapped: bool = True,
    tolerance: float | None = None,
    progress: Progress = silent,
) -> Prediction:
    """Predict a run of a plan, as executors run it.

    A rank does one thing at a time. To begin a slot it copies, packs, and posts all its messages; it begins
    one as soon as at most one slot is in flight before it and every own slot that is ``lag`` or more
    before it has finished. To finish a slot it waits for all its messages and unpacks. A message starts when
    both ends have posted it, and takes the largest latency of the ports that it passes. Then ports serve
    messages of earlier slots first, as queues do, and those of one slot have max-min fair shares. The sender
    is done with a message when it has gone, or as soon as it starts if the transport buffers all of it.

    Args:
        plan: the plan.
        costs: what the ranks' own work costs.
        topology: a cluster in place of that of the plan, as with measured links; see
            :func:`reshard_planner.simulate.costs.with_link_costs`.
        phases: positions of tensors in the spec that run together, phase by phase, all ranks waiting for
            each other in between; by default all run together. See
            :func:`reshard_planner.simulate.phases.phases_by_pattern`.
        overlapped: whether ranks pack and unpack while messages are under way; if not, they pack all that
            they send in a phase before its first message, and unpack after its last one.
        tolerance: as for :func:`predict_workload`.
        progress: told how far the run is.

    Raises:
        InputError: if the plan is none, the tolerance is not from 0 to 0.001, or phases do not have every
            tensor once.
        VerificationError: if an operation moves what its rank does not have, or media contradict the
            topology.
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others, or the plan has more operations
            than :data:`reshard_planner.simulate.workload.MAX_OPERATIONS`.
    """
    if not isinstance(plan, Plan):
        raise InputError(f"plan is {plan!r:.60}; expected a Plan, such as Plan.load reads from a file")
    progress("workload")
    cluster = plan.spec.topology if topology is None else topology
    runs = plan_phases(plan, phases, overlapped=overlapped)
    return predict_phases(runs, cluster, costs, tolerance=tolerance, progress=progress)


def predict_phases(
    phases: Sequence[Phase],
    topology: Topology,
    costs: Costs = FREE,
    *,
    tolerance: float | None = None,
    progress: Progress = silent,
) -> Prediction:
    """Predict a run of phases of one plan, one after another; else as :func:`predict_workload`.

    Args:
        phases: what :func:`reshard_planner.simulate.phases.plan_phases` gives.
        topology: the cluster.
        costs: what the ranks' own work costs.
        tolerance: as for :func:`predict_workload`, of each phase.
        progress: told how far the run is.
    """
    if not phases:
        return joined([], (), 0)
    ranks = phases[0].workload.ranks
    ports = RunPorts.of(topology, ranks)
    found = []
    for number, phase in enumerate(phases, 1):
        tell = within(f"phase {number} of {len(phases)}", progress) if len(phases) > 1 else progress
        tell("simulate")
        run = _simulate(phase.workload, ports.paths(phase.workload), costs, tolerance, tell)
        found.append((run, phase.slots))
    return joined(found, ports.names, max(ranks, default=-1) + 1)


def predict_workload(
    workload: Workload,
    topology: Topology,
    costs: Costs = FREE,
    *,
    tolerance: float | None = None,
    progress: Progress = silent,
) -> Prediction:
    """Predict a run of a workload; as :func:`predict`, for one plan under many costs.

    Args:
        workload: what is to be done.
        topology: the cluster.
        costs: what the ranks' own work costs.
        tolerance: length of the windows within which the rates of messages change together, as a share of
            the time that the busiest port takes for its bytes; 0 for an exact run. By default 0 below 10,000
            messages, and :data:`TOLERANCE` from there on; docs/simulate.md has the errors that were measured.
        progress: told how far the run is.

    Raises:
        InputError: if the tolerance is not from 0 to 0.001, or ranks wait for each other for ever.
        MediumError: if a message over the network comes from or goes to a rank without a NIC.
        TopologyError: if a rank runs on no GPU of the topology.
        UnsupportedError: if GPUs share some of their NICs and not others.
    """
    return _simulate(workload, Paths.of(workload, topology), costs, tolerance, progress)


def _simulate(
    workload: Workload, paths: Paths, costs: Costs, tolerance: float | None, progress: Progress
) -> Prediction:
    messages = workload.messages
    if tolerance is None:
        tolerance = 0.0 if len(messages) < EXACT_MESSAGES else TOLERANCE
    if not is_number(tolerance) or not 0 <= tolerance <= MAX_TOLERANCE:
        raise InputError(f"tolerance is {tolerance!r}; expected a share of the time, 0 to {MAX_TOLERANCE}")
    carried = _carried(paths, messages.nbytes)
    used = np.flatnonzero(carried)
    window_s = tolerance * float((carried[used] / paths.bytes_per_s[used]).max(initial=0.0))
    run = Engine(workload, paths, costs, window_s)
    run.start()
    while run.next_window():
        if run.windows % REPORTED_WINDOWS == 0:
            progress(f"simulate, {run.arrived / len(messages):.0%}")
    elapsed_s = float(run.end_of_rank.max(initial=0.0))
    return Prediction(
        elapsed_s,
        run.end_of_rank,
        tuple(_uses(paths, carried, elapsed_s)),
        _intervals(run),
        _slot_times(run, costs),
        (elapsed_s,),
    )


def _intervals(run: Engine) -> Intervals:
    """When messages were under way."""
    workload, messages = run.workload, run.workload.messages
    return Intervals(
        messages.src,
        messages.dst,
        messages.slot,
        messages.medium,
        messages.nbytes,
        run.posted_s[workload.sender],
        run.posted_s[workload.receiver],
        run.start_s,
        np.where(run.buffered, run.start_s + run.latency_s, run.end_s),
        run.end_s,
    )


def _slot_times(run: Engine, costs: Costs) -> SlotTimes:
    """When ranks did their own work."""
    rows = run.workload.rank_slots
    begin_s = run.posted_s - run.begin_s
    pack_s = begin_s + costs.slot_s
    packed_s = pack_s + (rows.copy_nbytes + rows.pack_nbytes) * costs.pack_s_per_byte
    return SlotTimes(
        **{column.name: getattr(rows, column.name) for column in fields(rows)},
        begin_s=begin_s,
        pack_s=np.minimum(pack_s, run.posted_s),
        packed_s=np.minimum(packed_s, run.posted_s),
        posted_s=run.posted_s,
        unpack_s=run.unpacked_s - run.unpack_s,
        unpacked_s=run.unpacked_s,
    )


def _carried(paths: Paths, nbytes: Ints) -> Ints:
    """Bytes over each port."""
    carried = np.zeros(len(paths.bytes_per_s), dtype=np.int64)
    np.add.at(carried, paths.ports, nbytes[:, np.newaxis])
    return carried[:-1]


def _uses(paths: Paths, carried: Ints, elapsed_s: float) -> Iterator[PortUse]:
    """Bytes and utilisation of all ports that carry any."""
    for port in np.flatnonzero(carried).tolist():
        rate, total = float(paths.bytes_per_s[port]), int(carried[port])
        yield PortUse(paths.names[port], total, rate, total / rate / elapsed_s)
