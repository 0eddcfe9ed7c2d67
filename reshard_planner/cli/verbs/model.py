"""``model CONFIG``: a whole model, from where it is trained to where it is served."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reshard_planner.cli.inputs import add_strategy, compile_with_progress
from reshard_planner.cli.output import plan_summary, print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.errors import InputError, SpecError
from reshard_planner.ir.file import write_atomically
from reshard_planner.ir.forms import save_as
from reshard_planner.ir.plan import Plan
from reshard_planner.models.coverage import SideCoverage, measure_coverage
from reshard_planner.models.families import FAMILIES
from reshard_planner.models.headers import INDEX_NAME
from reshard_planner.models.load import CONFIG_NAME, load_model
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.whole import OPTIONS, assign_ranks, build_spec
from reshard_planner.render import model as text
from reshard_planner.render.summary import summarize
from reshard_planner.render.text import format_count, format_nbytes, format_ranks, format_s, plain
from reshard_planner.routing import m2n_node_aware, m2n_uniform
from reshard_planner.routing.m2n_limits import M2nLimits
from reshard_planner.spec import ReshardSpec
from reshard_planner.spec.form import spec_to_dict
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.topology import Ports, Topology
from reshard_planner.topology.form import from_form
from reshard_planner.topology.presets import PRESETS

ALIKE = (CONFIG_NAME, INDEX_NAME, "model.safetensors")
"""Files that say nothing of the model by their names."""

_NUMBER = re.compile("[0-9]{1,9}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "config", metavar="CONFIG", type=Path, help="config.json, checkpoint folder or index, or a plain list"
    )
    parser.add_argument("--train", metavar="P", action="append", help="parallelism before; see below")
    parser.add_argument(
        "--serve", metavar="P", action="append", help="parallelism after; once per group of engines"
    )
    parser.add_argument(
        "--topology",
        metavar="T",
        default="dgx-h100",
        help=f"a preset ({', '.join(PRESETS)}), maybe with gpus_per_domain=N or nodes=N; gpus_per_domain=N"
        " alone; or a file, see docs/spec.md (default: dgx-h100)",
    )
    parser.add_argument(
        "--override", metavar="FILE", type=Path, help="values for fields of the configuration"
    )
    parser.add_argument("--mtp", action="store_true", help="with layers of multi-token prediction")
    parser.add_argument("--dtype", metavar="D", help="dtype of all parameters instead of the configuration's")
    parser.add_argument(
        "--staging",
        metavar="N",
        default=format_nbytes(OPTIONS.staging_nbytes).replace(" ", ""),
        help="memory of each rank for messages and scratch (default: %(default)s)",
    )
    parser.add_argument("--spec", metavar="FILE", type=Path, help="write the spec, as JSON")
    parser.add_argument(
        "-o", "--output", metavar="PLAN", type=Path, help="write the plan; .json and .txt give those forms"
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the inventory; with parallelisms compile a plan, and print what it covers and claims."""
    model = load_model(
        arguments.config, overrides=arguments.override, mtp=arguments.mtp, dtype=arguments.dtype
    )
    found = _described(model, arguments.config)
    lines = [
        f"{plain(found['name'])}: {text.format_elements(model.elements)} of {model.family}",
        text.inventory(model),
        text.logical(model),
    ]
    if arguments.train is None and not arguments.serve:
        if arguments.output is not None or arguments.spec is not None:
            raise SpecError("--train and --serve are missing; expected both to make a spec or plan")
    elif arguments.train is None or not arguments.serve:
        missing = "--train" if arguments.train is None else "--serve"
        raise SpecError(f"{missing} is missing; expected both, or neither for the inventory alone")
    elif len(arguments.train) > 1:
        raise SpecError(f"--train is given {len(arguments.train)} times; expected it once")
    else:
        more, told = _plan(model, arguments)
        found |= more
        lines += told
    # at the end, so that bad input prints its error and nothing else
    if arguments.json:
        print_json(found)
    else:
        print_text("\n".join(lines))
    return 0


def _plan(model: Model, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Compile and write; what there is to say of the plan, as JSON types and as text."""
    asked = [("--train", arguments.train[0]), *(("--serve", each) for each in arguments.serve)]
    train, *serve = (parse_parallelism(given, option) for option, given in asked)
    options = replace(OPTIONS, staging_nbytes=parse_nbytes(arguments.staging, "--staging"))
    ranks = assign_ranks(train, serve)
    topology = parse_topology(arguments.topology, max(rank for own in ranks for rank in own) + 1)
    targets = _targets(arguments)
    spec = build_spec(model, train, serve, topology, options)
    before, after = measure_coverage(spec, "src"), measure_coverage(spec, "dst")
    reasons = _refused(model, spec)
    begin = time.perf_counter()
    plan = compile_with_progress(spec, arguments.strategy)
    elapsed = time.perf_counter() - begin
    if arguments.output is not None:
        save_as(plan, arguments.output)
    if arguments.spec is not None:
        write_atomically(arguments.spec, json.dumps(spec_to_dict(spec)).encode("ascii"))
    lines = [f"topology: {plain(arguments.topology)}, {text.domains(topology)}"]
    for (option, given), group, own in zip(asked, (train, *serve), ranks, strict=True):
        what = f"{option[2:]}: {plain(' '.join(given.split()), 300)}"
        lines.append(f"{what}, {format_count(len(own), 'GPU')}, ranks {format_ranks(own)}")
        lines += [f"  note: {note}" for note in group.notes(model)]
    if _is_shared(topology, ranks):
        lines.append("  note: groups have ranks in one domain, and exchange bytes over NVLink there")
    lines += [
        text.coverage(before, after),
        text.moved(plan.certificate.payload),
        text.refusals(reasons, model),
        summarize(plan),
        *text.warnings(plan.certificate),
        f"compiled in {format_s(elapsed)}",
        *(f"wrote {plain(str(path), 300)}" for path in targets),
    ]
    return {**_plain_plan(plan, before, after, reasons), "compile_s": elapsed}, lines


def _is_shared(topology: Topology, ranks: Sequence[Sequence[int]]) -> bool:
    """Whether groups have ranks in one domain."""
    domain = Ports.of(topology, [rank for own in ranks for rank in own]).domain
    found = [{int(domain[rank]) for rank in own} for own in ranks]
    return sum(map(len, found)) > len(set[int]().union(*found))


def _targets(arguments: argparse.Namespace) -> list[Path]:
    """The files to write, which can be written as far as can be told before the work.

    Raises:
        InputError: if one is a folder or in none, or would replace the other or what is read.
    """
    read = (arguments.config, arguments.config / CONFIG_NAME, arguments.override, Path(arguments.topology))
    taken = [path for path in read if path is not None]
    found = []
    for option, path in (("--spec", arguments.spec), ("--output", arguments.output)):
        if path is None:
            continue
        try:
            if path.is_dir() or not path.parent.is_dir():
                reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
                raise InputError(f"{option} {path} cannot be written: {reason}")
            if any(path == other or (path.exists() and _is_same(path, other)) for other in taken):
                raise InputError(f"{option} {path} is read or written besides; expected another file")
        except OSError as error:
            raise InputError(f"{option} {path} cannot be written: {error.strerror}") from None
        taken.append(path)
        found.append(path)
    return found


def _is_same(path: Path, other: Path) -> bool:
    """Whether two names are of one file; what does not exist is of none."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


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
    elif _is_file(given):
        return from_form({"file": given}, ranks, Path())
    else:
        known = ", ".join(PRESETS)
        raise SpecError(f"--topology is {given!r}; expected a preset ({known}), gpus_per_domain=N or a file")
    for word in rest:
        key, _, value = word.partition("=")
        if key not in ("nodes", "gpus_per_domain") or key in form or not _NUMBER.fullmatch(value):
            raise SpecError(f"--topology has {word!r}; expected nodes=N or gpus_per_domain=N, each once")
        form[key] = int(value)
    return from_form(form, ranks, Path())


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # such as a name that is too long
        return False


def _refused(model: Model, spec: ReshardSpec) -> dict[str, list[Parameter]]:
    """Parameters that NCCL M2N would refuse in both of its modes, by reason."""
    ports = Ports.of(spec.topology, spec.ranks)
    uniform, node_aware = (M2nLimits(ports, mode.deal) for mode in (m2n_uniform, m2n_node_aware))
    found: dict[str, list[Parameter]] = {}
    for tensor in spec.tensors:
        reason = node_aware.why_refused(tensor) and uniform.why_refused(tensor)
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
        "name": _name(config),
        "family": model.family,
        "parameters": model.elements,
        "nbytes": model.nbytes,
        "gather_broadcast_nbytes": 2 * model.nbytes,
        "feed_forward_share": text.feed_forward_share(model),
        "kinds": kinds,
        "notes": list(model.notes),
    }


def _name(config: Path) -> str:
    """What a model is called: its file, or its folder where all models' files are called alike."""
    if config.is_dir():
        return config.resolve().name
    return config.parent.resolve().name if config.name in ALIKE else config.stem


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


VERB = Verb(
    "model",
    "plan a whole model from its configuration and two parallelisms",
    "Read the parameters of a model, place them as frameworks do, and compile one plan for all of them."
    " Without --train and --serve, print the inventory alone. Families: " + ", ".join(FAMILIES) + ".",
    """\
examples:
  reshard-planner model config.json
  reshard-planner model config.json --train "megatron tp=4 pp=8 ep=16" --serve "vllm tp=8 dp=16" -o plan
  reshard-planner model config.json --train "fsdp dp=16 dtype=float32" --serve "vllm tp=8"
  reshard-planner model config.json --train "megatron pp=16 ep=16" --serve "vllm tp=32 dp=8" \\
      --topology "gb200-nvl72 gpus_per_domain=64"

parallelisms are a framework and its options as key=value, separated by spaces; sizes are 1 unless given:
  megatron  tp cp ep etp pp vpp; dp (least that fits); first, last (layers of these stages);
            grouped=true (one buffer for all local experts); pad (of vocabularies, default 128)
  vllm      tp; dp (engines of their own); ep (ranks that share experts, a multiple of tp);
            redundant (experts); expert_placement=linear or round_robin
  fsdp      dp, tp, replicas
  plain     file=FILE (placements per name pattern)
  each      dtype (of this side); ranks, such as 0-127 (default: one group after another);
            gpus (checked; not for plain)
docs/models.md has all of it.
""",
    add_arguments,
    run,
)
