"""``python -m benchmarks.emulated``: plans and what people run today, on clusters emulated on this machine.

Needs root, Linux, and the commands ip and tc. Each layout is launched once; all that is compared runs in that
launch. Costs are fitted on the first layout, and predict the times of all others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from reshard_executors.baselines import BASELINES
from reshard_executors.emulation import cluster, rates
from reshard_executors.emulation.results import RunResult

import reshard_planner as rp
from benchmarks import table
from benchmarks.layouts import EmulatedLayout, layouts
from benchmarks.pages import Place
from reshard_planner.cli.verbs.emulate import emulated_spec
from reshard_planner.errors import ReshardError, UnsupportedError
from reshard_planner.simulate import EMULATED_COSTS, Fit, Measurement, fit_costs, predict, with_link_costs
from reshard_planner.transfer import Medium

OURS = "optimal"

STRATEGIES = {
    **{name: name for name in (OURS, "direct", "striped", "m2n-node-aware")},
    "gather-broadcast, planned": "gather-broadcast",
}
"""Strategies by how their runs are called; the last one's name is that of a baseline."""

PLACE = Place("measured")
"""Where a page has the table."""

FITTED = ("nic_efficiency", "slot_s")
"""Costs that are fitted."""

SWEPT_LAGS = (1, 2, 3, 4)
SWEPT_FACTORS = (1 / 16, 1 / 4, 1, 4, 16, 64)
SWEPT_PEERS = (1, 2, 4, 32)
"""Options under which a sweep runs a layout."""

NEAR = 0.10
"""Goal for a prediction: how far it may be from the measured time."""

EXAMPLES = """examples:
  sudo .venv/bin/python -m benchmarks.emulated
  sudo .venv/bin/python -m benchmarks.emulated --layout relays --repeat 5 --no-baselines
  sudo .venv/bin/python -m benchmarks.emulated --write docs/emulation.md --json emulated.json
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one layout.

    Attributes:
        layout: name.
        run: strategy or baseline.
        elapsed_s: median, in seconds.
        bound_s: T* of the layout, in seconds.
        predicted_s: by costs fitted on the first layout, in seconds; None for a baseline.
        network_nbytes: bytes over all NICs, by the kernel's counters.
        nvlink_nbytes: bytes over all NVLink ports, likewise.
        nic_nbytes: bytes through the busiest NIC by the plan; None for a baseline.
        bytes_ok: whether every GPU sent what was planned over each medium; None for a baseline.
        correct: whether every element is right.
        missed: goals that were not reached.
    """

    layout: str
    run: str
    elapsed_s: float
    bound_s: float
    predicted_s: float | None
    network_nbytes: int
    nvlink_nbytes: int
    nic_nbytes: int | None
    bytes_ok: bool | None
    correct: bool
    missed: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Elapsed time over T*."""
        return self.elapsed_s / self.bound_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the layouts that are asked for; 0 if all goals are reached, 1 if not, 2 if they cannot be run."""
    parser = _parser()
    given = parser.parse_args(arguments)
    problem = None if given.write is None else PLACE.why_not(given.write)
    if problem is not None:
        parser.error(problem)
    try:
        return _run(given)
    except ReshardError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2


def _run(given: argparse.Namespace) -> int:
    chosen = [layout for layout in layouts() if not given.layout or layout.name in given.layout]
    if given.sweep:
        for layout in chosen:
            sys.stdout.write(sweep(layout, given.repeat) + "\n")
            sys.stdout.flush()
        return 0
    measured = [
        (layout, *_measure(layout, given.repeat, baselines=not given.no_baselines)) for layout in chosen
    ]
    plans, results = measured[0][1], measured[0][2]
    fit = fit_costs(
        [Measurement(plans[name], _result(results, name).median_s) for name in plans], FITTED, EMULATED_COSTS
    )
    rows = [row for layout, plans, results in measured for row in _rows(layout, plans, results, fit)]
    text = report(rows, chosen, fit)
    sys.stdout.write(text)
    if given.write is not None:
        PLACE.write(given.write, text)
    if given.json is not None:
        document = {"fit": asdict(fit), "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(any(row.missed for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.emulated",
        description="Run plans and baselines on clusters that are emulated on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [layout.name for layout in layouts()]
    parser.add_argument("--layout", action="append", choices=names, help="only these; may be repeated")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each, median (3)")
    parser.add_argument("--sweep", action="store_true", help="run our plan under other options instead")
    parser.add_argument("--no-baselines", action="store_true", help="leave out what people run today")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables into a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser


def _measure(
    layout: EmulatedLayout, repeat: int, *, baselines: bool
) -> tuple[dict[str, rp.Plan], list[RunResult]]:
    spec = _scaled(layout)
    plans = dict(_compiled(spec))
    runs = [cluster.Run(name, plan) for name, plan in plans.items()]
    if baselines:  # they take long
        runs += [cluster.Run(name, plans[OURS], name, repeat=1) for name in BASELINES]
    results = cluster.emulate(runs, cluster.gpus_of(spec), repeat=repeat)
    bound_s = plans[OURS].certificate.bound.time_s
    shown = (f"{each.name} {each.median_s / bound_s:.3f}" for each in results if each.refused is None)
    sys.stderr.write(f"{layout.name}: x T* {', '.join(shown)}\n")
    return plans, results


def _compiled(spec: rp.ReshardSpec) -> Iterator[tuple[str, rp.Plan]]:
    """The plans of all strategies that take the spec, and that an emulated cluster can run."""
    domains = {gpu: at for at, domain in enumerate(spec.topology.domains) for gpu in domain.gpus}
    for run, strategy in STRATEGIES.items():
        try:
            plan = rp.compile(spec, strategy)
        except UnsupportedError:  # as NCCL M2N does
            continue
        ops = plan.ops()
        of = {rank: domains[spec.topology.gpu_of(rank)] for rank in plan.ranks}
        ends = zip(ops.src.tolist(), ops.dst.tolist(), ops.medium.tolist(), strict=True)
        if not any(of[src] == of[dst] for src, dst, medium in ends if medium == Medium.NETWORK):
            yield run, plan


def _scaled(layout: EmulatedLayout) -> rp.ReshardSpec:
    nic, nvlink = rates.parse_rate(layout.nic, "nic"), rates.parse_rate(layout.nvlink, "nvlink")
    return emulated_spec(layout.spec, nic, nvlink)


def sweep(layout: EmulatedLayout, repeat: int) -> str:
    """Times of one layout under other options, as a markdown table."""
    spec = _scaled(layout)
    least = spec.options.min_message_nbytes
    variants = {f"lag {lag}": {"lag": lag} for lag in SWEPT_LAGS}
    variants |= {
        f"min_message {table.nbytes(round(least * factor))}": {"min_message_nbytes": round(least * factor)}
        for factor in SWEPT_FACTORS
    }
    variants |= {f"max_peers_per_slot {count}": {"max_peers_per_slot": count} for count in SWEPT_PEERS}
    plans = {name: rp.compile(spec.with_options(**options)) for name, options in variants.items()}
    runs = [cluster.Run(name, plan) for name, plan in plans.items()]
    results = cluster.emulate(runs, cluster.gpus_of(spec), repeat=repeat)
    lines = [
        f"| {layout.name} | x T* | slots | messages | peers in a slot |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, plan in plans.items():
        claims = plan.certificate
        ratio = _result(results, name).median_s / claims.bound.time_s
        schedule = claims.schedule
        lines.append(
            f"| {name} | {ratio:.3f} | {schedule.slots} | {schedule.messages}"
            f" | {schedule.peers_in_slot_max} |"
        )
    return "\n".join(lines) + "\n"


def _result(results: Sequence[RunResult], name: str) -> RunResult:
    return next(result for result in results if result.name == name)


def _rows(
    layout: EmulatedLayout, plans: dict[str, rp.Plan], results: Sequence[RunResult], fit: Fit
) -> list[Row]:
    bound_s = plans[OURS].certificate.bound.time_s
    rows = []
    for result in results:
        if result.refused is not None:
            continue
        plan = plans.get(result.name)
        predicted_s = None
        if plan is not None:
            topology = with_link_costs(plan.spec.topology, fit.links)
            predicted_s = predict(plan, fit.costs, topology=topology).elapsed_s
        rows.append(
            Row(
                layout.name,
                result.name,
                result.median_s,
                bound_s,
                predicted_s,
                result.measured_nbytes("nic_sent"),
                result.measured_nbytes("nvlink_sent"),
                None if plan is None else plan.certificate.busiest_nic.nbytes,
                result.bytes_ok,
                result.correct,
                tuple(_missed(layout, result, bound_s, predicted_s)),
            )
        )
    return rows


def _missed(
    layout: EmulatedLayout, result: RunResult, bound_s: float, predicted_s: float | None
) -> list[str]:
    missed = []
    ratio = result.median_s / bound_s
    if result.name == OURS and ratio > layout.limit:
        missed.append(f"{ratio:.3f} x T*, goal {layout.limit:.2f}")
    if predicted_s is not None and abs(predicted_s / result.median_s - 1) > NEAR:
        missed.append(f"predicted {predicted_s:.3f} s")
    if result.bytes_ok is False:
        missed.append("bytes not as planned")
    if not result.correct:
        missed.append(f"WRONG: {result.first_error}")
    return missed


def report(rows: Sequence[Row], chosen: Sequence[EmulatedLayout], fit: Fit) -> str:
    """The tables, as markdown."""
    lines = ["| layout | | T* | run | elapsed | x T* | predicted | network | NVLink | bytes |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    about = {layout.name: f"{layout.about}; NICs {layout.nic}" for layout in chosen}
    last = ""
    for row in rows:
        head = (row.layout, about[row.layout], f"{row.bound_s:.2f} s") if row.layout != last else ("", "", "")
        last = row.layout
        predicted = "" if row.predicted_s is None else f"{row.predicted_s / row.elapsed_s - 1:+.1%}"
        cells = (
            *head,
            row.run,
            f"{row.elapsed_s:.3f} s",
            f"{row.ratio:.2f}",
            predicted,
            table.nbytes(row.network_nbytes),
            table.nbytes(row.nvlink_nbytes),
            {True: "as planned", False: "NOT AS PLANNED", None: ""}[row.bytes_ok],
        )
        lines.append("| " + " | ".join(cells) + " |")
    links, costs = fit.links, fit.costs
    lines.append("")
    lines.append(
        f"Fitted on `{rows[0].layout}`: efficiency of NICs {links.nic_efficiency:.3f},"
        f" {costs.slot_s * 1e6:.0f} µs per slot and rank."
    )
    missed = [f"- {row.layout}, {row.run}: {', '.join(row.missed)}" for row in rows if row.missed]
    return "\n".join([*lines, *(["", "Missed:", "", *missed] if missed else [])]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
