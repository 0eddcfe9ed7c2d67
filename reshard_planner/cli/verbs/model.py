"""``model CONFIG``: a whole model, from where it is trained to where it is served."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reshard_planner.cli.inputs import add_strategy, compile_with_progress
from reshard_planner.cli.output import plan_summary, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError, SpecError
from reshard_planner.ir.forms import save_as
from reshard_planner.ir.plan import Plan
from reshard_planner.models.coverage import SideCoverage, measure_coverage
from reshard_planner.models.load import load_model
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.parallelism import FRAMEWORKS, parse_parallelism
from reshard_planner.models.whole import assign_ranks, build_spec
from reshard_planner.render import model as text
from reshard_planner.render.summary import summarize
from reshard_planner.render.text import format_ranks, format_s
from reshard_planner.routing.m2n_limits import why_refused
from reshard_planner.spec import Options, ReshardSpec
from reshard_planner.spec.form import spec_to_dict
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.topology import Topology
from reshard_planner.topology.form import from_form
from reshard_planner.topology.presets import PRESETS

STAGING = "512MiB"
"""Staging of a rank unless asked for otherwise: twice that of specs, as rounds of whole models are large."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "config", metavar="CONFIG", type=Path, help="config.json, checkpoint folder or index, or a plain list"
    )
    frameworks = ", ".join(FRAMEWORKS)
    parser.add_argument(
        "--train", metavar="P", help=f"parallelism before: one of {frameworks}, with key=value options"
    )
    parser.add_argument(
        "--serve", metavar="P", action="append", help="parallelism after, likewise; once per group of engines"
    )
    parser.add_argument(
        "--topology",
        metavar="T",
        default="dgx-h100",
        help=f"a preset ({', '.join(PRESETS)}) with key=value options, gpus_per_domain=N, or a file"
        " (default: dgx-h100)",
    )
    parser.add_argument(
        "--override", metavar="FILE", type=Path, help="values for fields of the configuration"
    )
    parser.add_argument("--mtp", action="store_true", help="with layers of multi-token prediction")
    parser.add_argument("--dtype", metavar="D", help="dtype of all parameters instead of the configuration's")
    parser.add_argument("--staging", metavar="N", default=STAGING, help=f"per rank (default: {STAGING})")
    parser.add_argument("--spec", metavar="FILE", type=Path, help="write the spec, as JSON")
    parser.add_argument("-o", "--output", metavar="PLAN", type=Path, help="write the plan")
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the inventory; with parallelisms compile a plan, and print what it covers and claims."""
    model = load_model(
        arguments.config, overrides=arguments.override, mtp=arguments.mtp, dtype=arguments.dtype
    )
    found = _described(model, arguments.config)
    if not arguments.json:
        print_text(f"{found['name']}: {text.format_elements(model.elements)} of {model.family}")
        print_text(text.inventory(model))
        print_text(
            f"gather and broadcast: {text.format_gb(2 * model.nbytes)} logical payload, twice the weights"
        )
    if arguments.train is None and not arguments.serve:
        if arguments.output is not None or arguments.spec is not None:
            raise SpecError("--train and --serve are missing; expected both to make a spec or plan")
        if arguments.json:
            print_json(found)
        return 0
    if arguments.train is None or not arguments.serve:
        missing = "--train" if arguments.train is None else "--serve"
        raise SpecError(f"{missing} is missing; expected both, or neither for the inventory alone")
    return _plan(model, found, arguments)


def _plan(model: Model, found: dict[str, Any], arguments: argparse.Namespace) -> int:
    train = parse_parallelism(arguments.train, "--train")
    serve = [parse_parallelism(each, "--serve") for each in arguments.serve]
    options = Options(staging_nbytes=parse_nbytes(arguments.staging, "--staging"))
    ranks = assign_ranks(train, serve)
    topology = parse_topology(arguments.topology, max(rank for own in ranks for rank in own) + 1)
    spec = build_spec(model, train, serve, topology, options)
    before, after = measure_coverage(spec, "src"), measure_coverage(spec, "dst")
    reasons = _refused(model, spec)
    if arguments.spec is not None:
        _write_spec(spec, arguments.spec)
    begin = time.perf_counter()
    plan = compile_with_progress(spec, arguments.strategy)
    elapsed = time.perf_counter() - begin
    if arguments.output is not None:
        save_as(plan, arguments.output)
    if arguments.json:
        print_json({**found, **_plain_plan(plan, before, after, reasons), "compile_s": elapsed})
        return 0
    for word, asked, own in zip(
        ("train", *("serve" for _ in serve)), (arguments.train, *arguments.serve), ranks, strict=True
    ):
        print_text(f"{word}: {asked}, {len(own):,} GPUs, ranks {format_ranks(own)}")
    print_text(text.coverage(before, after))
    print_text(text.moved(plan.certificate.payload))
    print_text(text.refusals(reasons, model))
    print_text(summarize(plan))
    print_text(f"compiled in {format_s(elapsed)}")
    for path in (arguments.spec, arguments.output):
        if path is not None:
            print_text(f"wrote {path}")
    return 0


def parse_topology(given: str, ranks: int) -> Topology:
    """A topology from text: a preset with options, options of domains, or the name of a file.

    Args:
        given: such as ``dgx-h100``, ``gb200-nvl72 gpus_per_domain=64``, ``gpus_per_domain=8``, or a path.
        ranks: number of GPUs that it must have at least.

    Raises:
        SpecError: if it is none of these.
        TopologyError: if it cannot be built.
    """
    first, *rest = given.split() or [""]
    form: dict[str, Any] = {}
    if "=" in first:
        rest = [first, *rest]
    elif first in PRESETS:
        form["preset"] = first
    elif not rest and Path(given).is_file():
        form["file"] = given
    else:
        known = ", ".join(PRESETS)
        raise SpecError(f"--topology is {given!r}; expected a preset ({known}), gpus_per_domain=N or a file")
    for word in rest:
        key, _, value = word.partition("=")
        if key not in ("nodes", "gpus_per_domain") or not value.isascii() or not value.isdigit():
            raise SpecError(f"--topology has {word!r}; expected nodes=N or gpus_per_domain=N")
        form[key] = int(value)
    return from_form(form, ranks, Path())


def _refused(model: Model, spec: ReshardSpec) -> dict[str, list[Parameter]]:
    """Parameters that NCCL M2N would refuse, by reason."""
    known: dict[tuple[object, ...], str | None] = {}
    found: dict[str, list[Parameter]] = {}
    for tensor in spec.tensors:
        key = (tensor.geometry, tensor.dtype, tensor.dst_dtype)
        if key not in known:
            known[key] = why_refused(tensor)
        reason = known[key]
        if reason is not None:
            found.setdefault(reason, []).append(model.by_name[tensor.name])
    return found


def _described(model: Model, config: Path) -> dict[str, Any]:
    kinds = {
        kind: {
            "tensors": sum(each.tensors for each in own),
            "parameters": sum(each.elements for each in own),
            "nbytes": sum(each.nbytes for each in own),
        }
        for kind, own in text.by_kind(model).items()
    }
    return {
        "name": config.stem if config.is_file() and config.name != "config.json" else config.parent.name,
        "family": model.family,
        "parameters": model.elements,
        "nbytes": model.nbytes,
        "gather_broadcast_nbytes": 2 * model.nbytes,
        "feed_forward_share": text.feed_forward_share(model),
        "kinds": kinds,
        "notes": list(model.notes),
    }


def _plain_plan(
    plan: Plan,
    before: SideCoverage,
    after: SideCoverage,
    reasons: Mapping[str, Sequence[Parameter]],
) -> dict[str, Any]:
    sides = {
        name: {
            "nbytes": side.nbytes,
            "covered_nbytes": side.covered_nbytes,
            "stored_nbytes": side.stored_nbytes,
            "padding_nbytes": side.padding_nbytes,
        }
        for name, side in (("src", before), ("dst", after))
    }
    refused = {reason: [parameter.name for parameter in own] for reason, own in reasons.items()}
    return {"coverage": sides, "m2n_refuses": refused, **plan_summary(plan)}


def _write_spec(spec: ReshardSpec, path: Path) -> None:
    try:
        path.write_text(json.dumps(spec_to_dict(spec)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--spec {path} cannot be written: {error.strerror}") from None


VERB = Verb(
    "model",
    "plan a whole model from its configuration and two parallelisms",
    "Read the parameters of a model, place them as frameworks do, and compile one plan for all of them."
    " Without --train and --serve, print the inventory alone.",
    """\
examples:
  reshard-planner model config.json
  reshard-planner model config.json --train "megatron tp=4 pp=8 ep=16" --serve "vllm tp=8 dp=16" -o plan
  reshard-planner model config.json --train "fsdp dp=16 dtype=float32" --serve "vllm tp=8"
  reshard-planner model config.json --train "megatron pp=16 ep=16" --serve "vllm tp=32 dp=8" \\
      --topology "gb200-nvl72 gpus_per_domain=64"

options of frameworks, as key=value:
  megatron  tp cp ep etp dp pp vpp first last grouped pad
  vllm      tp dp ep redundant expert_placement
  fsdp      dp tp replicas
  plain     file (placements per name pattern)
  each      dtype, gpus (checked), ranks (such as 0-127)
""",
    add_arguments,
    run,
)
