"""``explain SPEC|PLAN --tensor T``: why each byte of a tensor takes its way."""

from __future__ import annotations

import argparse
from pathlib import Path

from reshard_planner.cli.inputs import add_strategy, load_or_compile
from reshard_planner.cli.output import print_json, print_text
from reshard_planner.cli.verb import Verb
from reshard_planner.render.explain.data import explain_data
from reshard_planner.render.explain.facts import Facts
from reshard_planner.render.explain.sentences import explain_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "plan", metavar="SPEC|PLAN", type=Path, help="plan file in any of its forms, or a spec file"
    )
    parser.add_argument("--tensor", metavar="T", required=True, help="name of the tensor")
    parser.add_argument(
        "--rank", metavar="R", type=int, help="only what this rank sends, receives and keeps of it"
    )
    add_strategy(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the sentences, or the facts that they are made of."""
    facts = Facts(load_or_compile(arguments.plan, arguments.strategy), arguments.tensor)
    if arguments.json:
        print_json(explain_data(facts, arguments.rank))
    else:
        print_text(explain_text(facts, arguments.rank))
    return 0


VERB = Verb(
    "explain",
    "say why each byte of a tensor takes its way",
    "Say for each class of a tensor's bytes who held it, who needs it, how it goes, and what binds the plan.",
    """\
examples:
  reshard-planner explain plan.reshard --tensor w
  reshard-planner explain spec.yaml --tensor w --rank 3
  reshard-planner explain spec.yaml --tensor w --strategy direct --json
""",
    add_arguments,
    run,
)
