"""The verbs, one file each, in the order of the help text."""

from reshard_planner.cli.verb import Verb
from reshard_planner.cli.verbs import (
    compare,
    compile_,
    draw,
    emulate,
    explain,
    model,
    ops,
    replan,
    report,
    run,
    show,
    simulate,
    symbolic,
    tiles,
    topology,
    verify,
)

VERBS: tuple[Verb, ...] = (
    compile_.VERB,
    model.VERB,
    topology.VERB,
    verify.VERB,
    show.VERB,
    tiles.VERB,
    explain.VERB,
    ops.VERB,
    compare.VERB,
    simulate.VERB,
    symbolic.VERB,
    replan.VERB,
    run.VERB,
    emulate.VERB,
    draw.VERB,
    report.VERB,
)
"""All verbs."""
