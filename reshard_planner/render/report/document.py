"""The data that the script of a report draws, in plain JSON types and compact: columns, not rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshard_planner.intset import format_ints
from reshard_planner.ir.plan import Plan
from reshard_planner.layout import Layout
from reshard_planner.render.report.loads import Flows, Loads
from reshard_planner.render.report.pictures import LayoutPicture
from reshard_planner.render.report.ports import PortLoad
from reshard_planner.render.report.timeline import FULL, Timeline, row_name
from reshard_planner.render.text import format_shape, plain
from reshard_planner.transfer import Medium, Role

MAX_FLOWS = 20_000
"""Most flows between places, the largest first."""

MAX_PORTS = 20_000
"""Most ports, the busiest first."""

MAX_TENSORS = 10_000
"""Most rows of the table of tensors, the largest first."""

MAX_NAME = 160
"""Most characters of a tensor's name; the middle of longer ones is left out."""


def build_document(
    plan: Plan, loads: Loads, timeline: Timeline, ports: Sequence[PortLoad], layouts: Sequence[LayoutPicture]
) -> dict[str, Any]:
    """All data of a page."""
    domain = loads.ports.domain
    by_domain: dict[int, list[int]] = {}
    for rank in loads.ranks.tolist():
        by_domain.setdefault(int(domain[rank]), []).append(rank)
    return {
        "bound": plan.certificate.bound.time_s,
        "domains": [[number, format_ints(ranks)] for number, ranks in sorted(by_domain.items())],
        "ports": _ports(ports),
        "flows": None if loads.flows is None else _flows(loads.flows),
        "timeline": _timeline(timeline),
        "tensors": _tensors(plan, loads, timeline, layouts),
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
    pairs = list(zip(flows.medium.tolist(), flows.role.tolist(), strict=True))
    kinds = sorted(set(pairs))
    shown = slice(0, MAX_FLOWS)
    return {
        "byRank": flows.by_rank,
        "all": len(pairs),
        "kinds": [f"{Medium(medium).label} {_role(role)}" for medium, role in kinds],
        "kind": [kinds.index(pair) for pair in pairs[shown]],
        "src": flows.src[shown].tolist(),
        "dst": flows.dst[shown].tolist(),
        "nbytes": flows.nbytes[shown].tolist(),
    }


def _role(role: int) -> str:
    return Role(role).label if role in set(Role) else f"role {role}"


def _timeline(timeline: Timeline) -> dict[str, Any]:
    return {
        "predicted": timeline.predicted,
        "edges": _short(timeline.edges_s),
        "slots": [list(pair) for pair in timeline.slots],
        "rows": [[row_name(ranks), format_ints(ranks)] for ranks in timeline.rows],
        "lanes": list(timeline.lanes),
        "full": FULL,
        "cells": base64.b64encode(timeline.cells.tobytes()).decode("ascii"),
    }


def _tensors(
    plan: Plan, loads: Loads, timeline: Timeline, layouts: Sequence[LayoutPicture]
) -> dict[str, Any]:
    tensors = plan.spec.tensors
    sizes = np.array([tensor.nbytes for tensor in tensors], dtype=np.int64)
    # the largest if not all are shown, in the order of the spec
    at = np.sort(np.argsort(-sizes, kind="stable")[:MAX_TENSORS])
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
        "nbytes": sizes[at].tolist(),
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
