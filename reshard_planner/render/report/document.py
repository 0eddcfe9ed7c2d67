"""The data that the script of a report draws, in plain JSON types and compact: columns, not rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.layout import Layout
from reshard_planner.render.hops.flows import Flow
from reshard_planner.render.hops.lines import LINES, Line, line_of
from reshard_planner.render.kinds import medium_name, role_name
from reshard_planner.render.layouts.words import SIDE_NAMES
from reshard_planner.render.report.edges import MAX_TENSORS, Flows
from reshard_planner.render.report.hopdata import picture_data, tensor_graphs
from reshard_planner.render.report.loads import Loads
from reshard_planner.render.report.pairs import pair_data
from reshard_planner.render.report.pictures import LayoutPicture, Pictures
from reshard_planner.render.report.ports import PortLoad, binding_lane
from reshard_planner.render.report.timeline import FULL, Timeline, row_name
from reshard_planner.render.text import format_shape, plain
from reshard_planner.transfer import Medium

MAX_FLOWS = 20_000
"""Most flows between places, the largest first."""

MAX_PORTS = 20_000
"""Most ports, the busiest first."""

MAX_NAME = 160
"""Most characters of a tensor's name; the middle of longer ones is left out."""


def build_document(
    plan: Plan, loads: Loads, timeline: Timeline, ports: Sequence[PortLoad], pictures: Pictures
) -> dict[str, Any]:
    """All data of a page."""
    domain = loads.ports.domain
    by_domain: dict[int, list[int]] = {}
    for rank in loads.ranks.tolist():
        by_domain.setdefault(int(domain[rank]), []).append(rank)
    sizes = np.array([tensor.nbytes for tensor in plan.spec.tensors], dtype=np.int64)
    largest = np.argsort(-sizes, kind="stable")[:MAX_TENSORS].tolist()
    shown = sorted(largest)  # in the order of the spec
    drawn = tensor_graphs(plan, largest)
    picture = picture_data(pictures.scene, loads.edges, {at: row for row, at in enumerate(shown)})
    return {
        "bound": plan.certificate.bound.time_s,
        "after": SIDE_NAMES["dst"],
        "domains": [[number, format_ints(ranks)] for number, ranks in sorted(by_domain.items())],
        "ports": _ports(ports),
        "flows": _flows(loads.flows),
        "picture": picture,
        "graphs": drawn.graphs,
        "kinds": _kinds([*(flow for graph in (picture, *drawn.graphs) for flow in graph["flows"])]),
        "pairs": pair_data(plan, loads),
        "timeline": _timeline(timeline) | {"binds": binding_lane(plan.certificate.bound)},
        "tensors": _tensors(plan, loads, timeline, pictures.layouts, shown)
        | {"graph": [drawn.graph_of[at] for at in shown]},
    }


def to_script(document: dict[str, Any]) -> str:
    """JSON as it may stand in a script element: no character in it opens or closes one."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _ports(ports: Sequence[PortLoad]) -> dict[str, Any]:
    kinds = list(dict.fromkeys(port.kind for port in ports))
    shown = ports[:MAX_PORTS]
    return {
        "kinds": kinds,
        "all": len(ports),
        "kind": [kinds.index(port.kind) for port in shown],
        "name": [port.name for port in shown],
        "ranks": [format_ints(port.ranks) for port in shown],
        "nbytes": [port.nbytes for port in shown],
        "rate": [port.bytes_per_s for port in shown],
    }


def _flows(flows: Flows) -> dict[str, Any]:
    by_rank = all(len(place.ranks) == 1 for place in flows.places)
    shown = slice(0, MAX_FLOWS)
    return {
        "byRank": by_rank,
        "places": [
            [_name(place.ranks if by_rank else place.domains, by_rank=by_rank), format_ints(place.ranks)]
            for place in flows.places
        ],
        "all": len(flows.nbytes),
        "kind": [
            " ".join(_words(*pair))
            for pair in zip(flows.medium[shown].tolist(), flows.role[shown].tolist(), strict=True)
        ],
        "src": flows.src[shown].tolist(),
        "dst": flows.dst[shown].tolist(),
        "nbytes": flows.nbytes[shown].tolist(),
    }


def _name(numbers: Sequence[int], *, by_rank: bool) -> str:
    """What a place is called: a rank, a domain, or several of these."""
    return f"{'rank' if by_rank else 'domain'}{'s' * (len(numbers) > 1)} {format_ints(numbers)}"


def _line(medium: int, role: int) -> Line:
    """How flows of a medium and role are drawn."""
    return line_of(Flow(0, 0, medium, role, 0, 0, 0))


def _words(medium: int, role: int) -> tuple[str, str]:
    """Names of a medium and a role as pictures have them."""
    name = "NVLink" if medium == Medium.NVLINK else medium_name(medium)
    known = medium != Medium.LOCAL and (medium, role) in LINES
    return name, _line(medium, role).name if known else role_name(role)


def _kinds(flows: Iterable[Sequence[int]]) -> dict[str, list[str | bool]]:
    """Of each medium and role that occur their names, what they mean, and how their lines look."""
    found: dict[str, list[str | bool]] = {}
    known = list(LINES)
    pairs = {(flow[2], flow[3]) for flow in flows}
    for medium, role in sorted(pairs, key=lambda pair: (known.index(pair) if pair in known else 9, pair)):
        line = _line(medium, role)
        meaning = "within a rank" if medium == Medium.LOCAL else line.meaning
        found[f"{medium} {role}"] = [*_words(medium, role), meaning, line.style, line.arrow, line.double]
    return found


def _timeline(timeline: Timeline) -> dict[str, Any]:
    return {
        "runs": [[kind, time_s] for kind, time_s in timeline.runs],
        "edges": _short(timeline.edges_s),
        "stretch": list(timeline.stretch),
        "slots": [list(pair) for pair in timeline.slots],
        "rows": [[row_name(ranks), format_ints(ranks)] for ranks in timeline.rows],
        "lanes": [list(lane) for lane in timeline.lanes],
        "tops": list(timeline.tops),
        "full": FULL,
        "cells": base64.b64encode(timeline.cells.tobytes()).decode("ascii"),
    }


def _tensors(
    plan: Plan,
    loads: Loads,
    timeline: Timeline,
    layouts: Sequence[LayoutPicture],
    shown: Sequence[int],
) -> dict[str, Any]:
    tensors, at = plan.spec.tensors, np.array(shown, dtype=np.int64)
    picture = np.full(len(tensors), -1, dtype=np.int64)
    for number, layout in enumerate(layouts):
        picture[list(layout.tensors)] = number
    sides: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], int] = {}
    names: list[list[str]] = []
    side = []
    for tensor in (tensors[position] for position in at.tolist()):
        pair = (tensor.src, tensor.dst)
        if pair not in sides:
            sides[pair] = len(names)
            names.append([_ranks(layouts_of) for layouts_of in pair])
        side.append(sides[pair])
    local, nvlink, network = loads.moved[:, at].tolist()
    chosen = [tensors[position] for position in at.tolist()]
    return {
        "all": len(tensors),
        "number": at.tolist(),
        "name": [plain(tensor.name, MAX_NAME) for tensor in chosen],
        "shape": [format_shape(tensor.shape) for tensor in chosen],
        "dtype": [
            tensor.dtype if tensor.dtype == tensor.dst_dtype else f"{tensor.dtype} to {tensor.dst_dtype}"
            for tensor in chosen
        ],
        "elements": [prod(tensor.shape) for tensor in chosen],
        "nbytes": [tensor.nbytes for tensor in chosen],
        "network": network,
        "nvlink": nvlink,
        "local": local,
        "first": loads.first_slot[at].tolist(),
        "last": loads.last_slot[at].tolist(),
        "begin": _short(timeline.tensor_s[0, at]),
        "end": _short(timeline.tensor_s[1, at]),
        "picture": picture[at].tolist(),
        "side": side,
        "sides": names,
    }


def _ranks(layouts: Iterable[Layout]) -> str:
    return format_ints(sorted({rank for layout in layouts for rank in layout.mesh.ranks}))


def _short(times_s: NDArray[np.float64]) -> list[float]:
    """Times with seven digits, which is more than a screen shows."""
    return [float(f"{time_s:.7g}") for time_s in times_s.tolist()]
