"""``emulate SPEC``: run plans on a cluster that is emulated on this machine, and measure them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshard_planner.cli.inputs import compile_with_progress
from reshard_planner.cli.output import end_progress, print_json, print_text, terminal_progress
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError, UnsupportedError
from reshard_planner.ir.plan import Plan
from reshard_planner.render.emulation import EmulatedRow, emulation_table
from reshard_planner.routing import STRATEGIES as ALL_STRATEGIES
from reshard_planner.routing import find_strategy
from reshard_planner.simulate import EMULATED_COSTS, predict
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology.emulated import emulated_min_message, emulated_topology

if TYPE_CHECKING:
    from reshard_executors.emulation.results import RunResult

STRATEGIES = ("optimal", "direct")
"""What runs if no strategy is named."""

MAX_REPEAT = 1000

MAX_TIMEOUT_S = 7 * 24 * 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("spec", metavar="SPEC", type=Path, help="spec file, YAML or JSON")
    parser.add_argument(
        "--nic",
        metavar="RATE",
        required=True,
        help="rate of the fastest NIC, as tc writes it, such as 200mbit",
    )
    parser.add_argument(
        "--nvlink", metavar="RATE", required=True, help="rate of the fastest NVLink port, likewise"
    )
    parser.add_argument(
        "--strategy",
        metavar="S",
        action="append",
        help=f"strategy to run, of {', '.join(ALL_STRATEGIES)}; may be given several times"
        f" (default {' and '.join(STRATEGIES)})",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        action="append",
        default=[],
        help="also move the tensors by torch's collectives, as frameworks do: gather-broadcast or"
        " full-tensor; may be given several times",
    )
    parser.add_argument("--baselines", action="store_true", help="also run every baseline")
    parser.add_argument(
        "--repeat", metavar="N", type=int, default=3, help="times that each is run (default 3)"
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=600.0,
        help="give up after this many seconds (default 600)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile for the emulated cluster, run everything on it, print the figures; 1 if something is wrong."""
    from reshard_executors.emulation import cluster, rates  # noqa: PLC0415 - executors are another package

    if not 0 < arguments.timeout <= MAX_TIMEOUT_S:
        raise InputError(
            f"--timeout is {arguments.timeout}; expected seconds above 0 and up to {MAX_TIMEOUT_S}"
        )
    if not 1 <= arguments.repeat <= MAX_REPEAT:
        raise InputError(f"--repeat is {arguments.repeat}; expected an integer from 1 to {MAX_REPEAT}")
    cluster.require_torch()
    strategies = list(dict.fromkeys(arguments.strategy or STRATEGIES))
    for name in strategies:
        find_strategy(name)
    nic, nvlink = rates.parse_rate(arguments.nic, "--nic"), rates.parse_rate(arguments.nvlink, "--nvlink")
    spec = ReshardSpec.load(arguments.spec)
    scaled = emulated_spec(spec, nic, nvlink)
    gpus = cluster.gpus_of(scaled)  # refuses what cannot be emulated, before anything is compiled
    baselines = _baselines(arguments)
    plans, refused = _compile(scaled, strategies, named=arguments.strategy is not None)
    runs = [cluster.Run(name, plan) for name, plan in plans.items()]
    runs += [cluster.Run(f"baseline {name}", next(iter(plans.values())), name) for name in baselines]
    try:
        results = cluster.emulate(
            runs, gpus, repeat=arguments.repeat, timeout_s=arguments.timeout, progress=terminal_progress()
        )
    finally:
        end_progress()
    refused |= {result.name: result.refused for result in results if result.refused is not None}
    done = [result for result in results if result.refused is None]
    bound_s = next(iter(plans.values())).certificate.bound.time_s
    predicted = _predicted(plans)
    if arguments.json:
        print_json(_document(nic, nvlink, bound_s, done, refused, predicted))
    else:
        print_text(emulation_table([_row(result, predicted) for result in done], bound_s))
        for name, reason in refused.items():
            print_text(f"{name} refuses: {reason}")
        for result in done:
            if not result.correct:
                print_text(f"WRONG    {result.name}: {result.first_error}")
    return 0 if all(result.correct and result.bytes_ok is not False for result in done) else 1


def emulated_spec(spec: ReshardSpec, nic_bytes_per_s: int, nvlink_bytes_per_s: int) -> ReshardSpec:
    """The spec for a cluster of these rates, with messages as small in relation to them."""
    before, options = spec.topology, spec.options
    topology = emulated_topology(before, spec.ranks, nic_bytes_per_s, nvlink_bytes_per_s)
    least = emulated_min_message(before, spec.ranks, nic_bytes_per_s, options.min_message_nbytes)
    return ReshardSpec(spec.tensors, topology, replace(options, min_message_nbytes=least))


def _compile(
    spec: ReshardSpec, strategies: Sequence[str], *, named: bool
) -> tuple[dict[str, Plan], dict[str, str]]:
    """A plan by strategy, and why others refuse the spec; those that the user named must not."""
    plans: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    for name in strategies:
        try:
            plans[name] = compile_with_progress(spec, name)
        except UnsupportedError as error:
            if named or name == STRATEGIES[0]:
                raise
            refused[name] = str(error)
    return plans, refused


def _baselines(arguments: argparse.Namespace) -> list[str]:
    """Names of the baselines that were asked for."""
    if not arguments.baselines and not arguments.baseline:
        return []
    from reshard_executors.baselines import BASELINES, find_baseline  # noqa: PLC0415 - as above

    names = [*arguments.baseline, *(BASELINES if arguments.baselines else ())]
    for name in names:
        find_baseline(name)
    return list(dict.fromkeys(names))


def _predicted(plans: Mapping[str, Plan]) -> dict[str, float]:
    """Predicted time of each plan, in seconds."""
    return {name: predict(plan, EMULATED_COSTS).elapsed_s for name, plan in plans.items()}


def _row(result: RunResult, predicted: Mapping[str, float]) -> EmulatedRow:
    return EmulatedRow(
        result.name,
        result.median_s,
        predicted.get(result.name),
        (result.planned_nbytes("nic_sent"), result.measured_nbytes("nic_sent")),
        (result.planned_nbytes("nvlink_sent"), result.measured_nbytes("nvlink_sent")),
        result.correct,
        result.bytes_ok,
    )


def _document(
    nic_bytes_per_s: int,
    nvlink_bytes_per_s: int,
    bound_s: float,
    results: Sequence[RunResult],
    refused: Mapping[str, str],
    predicted: Mapping[str, float],
) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "nic_bytes_per_s": nic_bytes_per_s,
        "nvlink_bytes_per_s": nvlink_bytes_per_s,
        "bound": {"time_s": bound_s},
        "runs": [
            {
                **result.to_dict(),
                "x_bound": result.median_s / bound_s if bound_s else None,
                "predicted_s": predicted.get(result.name),
            }
            for result in results
        ],
        "refused": dict(refused),
        "correct": all(result.correct for result in results),
    }


VERB = Verb(
    "emulate",
    "run plans on a cluster emulated on this machine, and measure them",
    """\
Make a cluster on this Linux machine, with a network namespace per GPU: a NIC to a common switch and an NVLink
port to that of its domain, shaped to the rates given. The spec's topology is kept and its rates are scaled.
Compile the spec for it, start a process per rank with torchrun, run every plan, check every element, and
print time and bytes by the kernel's counters. Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN, and the
commands ip and tc. A GPU without NIC gets one of 1 Mbit/s, over which it only finds the others. At most 16
ranks, which take half a minute to start. Columns: median time, and what was predicted; bytes over NICs and
NVLink, planned and by the kernel's counters; whether every element is right, and whether every GPU sent what
was planned. Exit code 1 if not.""",
    """\
examples:
  sudo .venv/bin/reshard-planner emulate spec.yaml --nic 200mbit --nvlink 1800mbit
  sudo .venv/bin/reshard-planner emulate spec.yaml --nic 100mbit --nvlink 900mbit --repeat 5 --json
  sudo .venv/bin/reshard-planner emulate spec.yaml --nic 100mbit --nvlink 900mbit --baselines
""",
    add_arguments,
    run,
)
