"""Reports: everything about one plan on a page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.timeline import Timeline
from reshard_planner.render.report import sections
from reshard_planner.render.report.alternatives import Alternative
from reshard_planner.render.report.beside import comparison
from reshard_planner.render.report.document import build_document, to_script
from reshard_planner.render.report.hopdata import picture_edges
from reshard_planner.render.report.loads import measure_loads
from reshard_planner.render.report.pictures import draw_pictures
from reshard_planner.render.report.ports import alike_domains, port_loads
from reshard_planner.render.report.timeline import MAX_BINS, find_timeline
from reshard_planner.render.report.words import claims
from reshard_planner.render.summary import facts
from reshard_planner.render.text import format_count, format_nbytes, format_s, plain
from reshard_planner.simulate import Prediction

NAVIGATION = (
    ("certificate", "Certificate"),
    ("comparison", "Comparison"),
    ("ports", "Ports"),
    ("hops", "Transfers"),
    ("timeline", "Timeline"),
    ("layouts", "Layouts"),
    ("tensors", "Tensors"),
)
"""Sections by id, in order."""


SCRIPTS = (
    "base.js",
    "pictures.js",
    "hops.js",
    "diagram.js",
    "own.js",
    "ports.js",
    "timeline.js",
    "tensors.js",
    "start.js",
)
"""Parts of the script, which share one scope, in order."""


GAP = {"gap": "busiest port"}
"""What a figure is called that without its name would read as the distance of the run's time to the bound."""


def report_html(
    plan: Plan,
    *,
    alternatives: Sequence[Alternative] | None = None,
    prediction: Prediction | None = None,
    measured: Timeline | None = None,
    name: str = "",
) -> str:
    """Write a report of a plan.

    The page loads nothing, and its own policy forbids it to. Names are text in it, whatever they are. It is
    the same for the same arguments.

    Args:
        plan: the plan.
        alternatives: the same spec by other strategies; no comparison for None.
        prediction: a predicted run of the plan, for the timeline and its time; by default the timeline shows
            the schedule, which is known without predicting anything.
        measured: events of a measured run of the plan, which the timeline shows beside it; those of ranks
            that are not the plan's are left out.
        name: what the plan is called, such as the name of its file.

    Returns:
        One HTML document, below 5 MB for whole models.

    Raises:
        TopologyError: if a rank runs on no GPU of the topology.
        TableError: if the tables rename impossible ranks.
    """
    pictures = draw_pictures(plan)
    loads = measure_loads(plan, MAX_BINS, picture_edges(pictures.scene))
    timeline = find_timeline(plan, loads, prediction, measured)
    elapsed_s = None if prediction is None else prediction.elapsed_s
    mine = Alternative.of(plan, elapsed_s)
    document = build_document(plan, loads, timeline, port_loads(loads), pictures)
    parts = {
        "certificate": (
            sections.certificate(claims(plan, elapsed_s, alike_domains(plan, loads))) + _all_facts(plan)
        ),
        "comparison": comparison(plan, mine, alternatives),
        "ports": _part("parts/ports.html"),
        "hops": sections.hops(pictures) + _part("parts/flows.html"),
        "timeline": (
            f'<p class="note">{escape(sections.timeline_note(timeline))}</p>{_part("parts/timeline.html")}'
        ),
        "layouts": sections.layouts(plan, pictures),
        "tensors": _part("parts/tensors.html"),
    }
    title = f"Plan {plan.digest[:12]}"
    if name:
        title = f"{plain(name, 80)} \N{EN DASH} {title}"
    return _page(title, _subtitle(plan, prediction), parts, to_script(document))


def _subtitle(plan: Plan, prediction: Prediction | None) -> str:
    size = format_nbytes(sum(tensor.nbytes for tensor in plan.spec.tensors))
    text = (
        f"{format_count(len(plan.spec.tensors), 'tensor')} of {size},"
        f" {format_count(len(plan.ranks), 'rank')} in"
        f" {format_count(len(plan.spec.topology.domains), 'domain')}, strategy"
        f" {plain(plan.spec.options.strategy)}"
    )
    return text if prediction is None else f"{text}, predicted {format_s(prediction.elapsed_s)}"


def _all_facts(plan: Plan) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(GAP.get(name, name))}</th>'
        f"<td>{escape(value.removeprefix(f'{GAP.get(name)} '))}</td></tr>"
        for name, value in facts(plan)
    )
    digest = f'<tr><th scope="row">digest</th><td><code>{escape(plan.digest)}</code></td></tr>'
    return (
        f"<details><summary>All figures</summary><table>{rows}{digest}</table>"
        '<p class="note">reshard-planner verify PLAN computes every one of them again, and sums up the cut'
        " that proves the bound.</p></details>"
    )


def _part(path: str) -> str:
    """A file of this package."""
    return files("reshard_planner.render.report").joinpath(*path.split("/")).read_text(encoding="utf-8")


def _page(title: str, subtitle: str, parts: dict[str, str], data: str) -> str:
    style = _part("style.css")
    script = f'"use strict";\n(() => {{\n{"".join(_part(f"script/{name}") for name in SCRIPTS)}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<a href="#{name}">{label}</a>' for name, label in NAVIGATION)
    body = "".join(
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{label}</h2>'
        f"{parts[name]}</section>"
        for name, label in NAVIGATION
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#certificate">Skip to the certificate</a>
<header><div><h1><bdi>{escape(title)}</bdi></h1><p>{escape(subtitle)}</p></div>
<div class="tools"><label>Show <select id="focus"></select></label>
<label>Theme <select id="theme"><option value="">as the system</option><option value="light">light</option>\
<option value="dark">dark</option></select></label></div></header>
<nav aria-label="Sections">{links}</nav>
<div id="chosen" role="status" aria-live="polite" hidden></div>
<noscript><p class="warning">Without JavaScript the certificate, the comparison and the pictures are shown;
ports, the timeline and the table of tensors are not.</p></noscript>
<main>{body}</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""
