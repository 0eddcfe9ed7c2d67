"""The text form of a plan: one line per mesh, tensor, piece, transfer and unit; it parses back exactly.

Strings are quoted as in JSON, so that no name can break a line. Lines: :mod:`reshard_planner.ir.textlines`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from reshard_planner.box import Box
from reshard_planner.errors import PlanFileError
from reshard_planner.ir.ops import Ops
from reshard_planner.ir.plan import Plan
from reshard_planner.ir.reading import (
    check_digest,
    check_version,
    make_column,
    make_tables,
    read_certificate,
    read_spec,
)
from reshard_planner.ir.tables import Column, Tables
from reshard_planner.ir.textlines import (
    LineReader,
    dashed,
    dtypes_text,
    label,
    layouts_text,
    line,
    parse_dtypes,
    parse_layouts,
    parse_place,
    place_text,
    rows,
)
from reshard_planner.spec import ReshardSpec, spec_to_dict
from reshard_planner.spec.form import VERSION as SPEC_VERSION
from reshard_planner.spec.values import MAX_DIMS


def dumps(plan: Plan) -> str:
    """Write a plan as text; equal plans give equal text.

    Returns:
        ASCII lines, each ended by a newline.
    """
    lines = [line("plan", version=plan.version), line("digest", digest=plan.digest), *_spec_lines(plan.spec)]
    claims = plan.certificate.to_dict().items()
    lines += [line("certificate", claim=claim, value=json.dumps(value)) for claim, value in claims]
    lines += [*_group_lines(plan.tables), *_piece_lines(plan), *_route_lines(plan.tables)]
    lines.append(line("schedule", count=len(plan.schedule)))
    lines += [line("unit", **values) for values in rows(plan.schedule.columns())]
    return "\n".join(lines) + "\n"


def _spec_lines(spec: ReshardSpec) -> Iterator[str]:
    raw = spec_to_dict(spec)
    options, topology = raw["options"], raw["topology"]
    rails = options.pop("rails", None)
    yield line("options", name=json.dumps(options.pop("strategy")), **options)
    if rails is not None:
        yield line("preference", rails=rails)
    yield line("topology", name=json.dumps(topology["name"]))
    for word, entries in (("domain", topology["domains"]), ("nic", topology["nics"])):
        for entry in entries:
            gpus, rails = entry.pop("gpus"), entry.pop("rails", None)
            text = gpus if isinstance(gpus, str) else json.dumps(gpus, separators=(",", ":"))
            yield line(word, gpus=text, **{name: json.dumps(rate) for name, rate in entry.items()})
            if rails is not None:
                yield line("rails", gpus=rails)
    for entry in topology.get("pods", ()):
        yield line("pod", domains=entry["domains"], **{k: json.dumps(v) for k, v in entry["uplink"].items()})
    if "rank_map" in topology:
        yield line("rank_map", gpus=topology["rank_map"])
    for name, mesh in raw["meshes"].items():
        yield line("mesh", mesh=name, ranks=mesh["ranks"], axes=json.dumps(mesh["axes"]))
    for name, storage in raw.get("storages", {}).items():
        yield line("storage", storage=name, value=json.dumps(storage))
    for row, tensor in enumerate(raw["tensors"]):
        sides = {f"{side}_layouts": layouts_text(tensor[side]) for side in ("src", "dst")}
        name, dtype = json.dumps(tensor["name"]), dtypes_text(tensor)
        yield line("tensor", row=row, name=name, dtype=dtype, shape=tensor["shape"], **sides)


def _group_lines(tables: Tables) -> Iterator[str]:
    columns = tables.groups.columns()
    group_of, routes_of = columns.pop("group_of"), columns.pop("routes_of")
    yield line("groups", count=len(routes_of), substitutions=len(tables.groups.subst_group))
    yield line("group_of", group_of=group_of.tolist())
    yield from (line("group", **values) for values in rows({"routes_of": routes_of}))
    yield from (line("substitution", **values) for values in rows(columns))


def _piece_lines(plan: Plan) -> Iterator[str]:
    dims: dict[int, int] = {}
    for group, tensor in zip(plan.groups.group_of.tolist(), plan.spec.tensors, strict=False):
        dims[group] = max(dims.get(group, 0), len(tensor.shape))
    yield line("pieces", count=len(plan.pieces), dims=plan.pieces.lo.shape[1])
    for values in rows(plan.pieces.columns()):
        box = list(zip(values.pop("lo"), values.pop("hi"), strict=True))
        while len(box) > dims.get(values["group"], 0) and box[-1] == (0, 1):
            box.pop()  # the padding of tensors with fewer dimensions
        ranges = ", ".join(f"{first}:{last}" for first, last in box)
        values["cut_dim"] = dashed(values["cut_dim"])
        yield line("piece", **values, box=f"[{ranges}]")


def _route_lines(tables: Tables) -> Iterator[str]:
    yield line("routes", count=len(tables.routes))
    for values in rows(tables.routes.columns()):
        for field in ("medium", "role"):
            values[field] = label(field, values[field])
        values["parent"] = dashed(values["parent"])
        yield line("route", **values, place=place_text(values["scratch"], values["tile"]))


def loads(text: str, *, check: bool = True) -> Plan:
    """Read what :func:`dumps` wrote.

    Args:
        text: lines.
        check: whether to compare the digest with the content.

    Raises:
        PlanFileError: with the number and the text of the line that is wrong.
        DigestError: if the content is not what the digest says.
    """
    lines = LineReader(text)
    version = int(lines.take("plan")["version"])
    try:
        check_version(version)
    except PlanFileError as error:
        lines.fail(str(error))
    digest = lines.take("digest")["digest"]
    spec = _read_spec(lines)
    claims = {}
    while lines.comes("certificate"):
        fields = lines.take("certificate")
        if fields["claim"] in claims:
            lines.fail(f"the claim {fields['claim']} is given twice")
        claims[fields["claim"]] = lines.json(fields["value"])
    certificate = read_certificate(claims)
    columns = {**_read_groups(lines), **_read_pieces(lines), **_read_routes(lines)}
    units = lines.take_columns("unit", int(lines.take("schedule")["count"]))
    columns |= _columns("schedule", units)
    lines.end()
    plan = Plan(spec, make_tables(columns), certificate, digest)
    if check:
        check_digest(plan)
    return plan


def _read_spec(lines: LineReader) -> ReshardSpec:
    origin: dict[str, int] = {}  # line of each part of the spec, for errors
    fields: dict[str, Any] = lines.take("options")
    origin["options"] = lines.at
    named = {"strategy": lines.json(fields.pop("name")), "proxies": fields.pop("proxies")}
    options = {**named, **{name: int(number) for name, number in fields.items()}}
    if lines.comes("preference"):
        options["rails"] = lines.take("preference")["rails"]
    topology = _read_topology(lines, origin)
    meshes: dict[str, Any] = {}
    while lines.comes("mesh"):
        fields = lines.take("mesh")
        if fields["mesh"] in meshes:
            lines.fail(f"the mesh {fields['mesh']} is given twice")
        origin[f"meshes.{fields['mesh']}"] = lines.at
        meshes[fields["mesh"]] = {"ranks": fields["ranks"], "axes": lines.json(fields["axes"])}
    storages: dict[str, Any] = {}
    while lines.comes("storage"):
        fields = lines.take("storage")
        if fields["storage"] in storages:
            lines.fail(f"the storage {fields['storage']} is given twice")
        origin[f"storages.{fields['storage']}"] = lines.at
        storages[fields["storage"]] = lines.json(fields["value"])
    tensors: list[dict[str, Any]] = []
    while lines.comes("tensor"):
        fields = lines.take_row("tensor", len(tensors))
        origin[f"tensors[{len(tensors)}]"] = lines.at
        sides = {side: parse_layouts(fields[f"{side}_layouts"], lines.json) for side in ("src", "dst")}
        name, shape = lines.json(fields["name"]), lines.json(fields["shape"])
        tensors.append({"name": name, "shape": shape, **parse_dtypes(fields["dtype"], sides)})
    raw = {
        "version": SPEC_VERSION,
        "meshes": meshes,
        "storages": storages,
        "tensors": tensors,
        "topology": topology,
        "options": options,
    }
    try:
        return read_spec(raw)
    except PlanFileError as error:
        path = max((path for path in origin if path in str(error)), key=len, default=None)
        if path is None:
            raise
        lines.fail(str(error), origin[path])


def _read_topology(lines: LineReader, origin: dict[str, int]) -> dict[str, Any]:
    topology: dict[str, Any] = {"name": lines.json(lines.take("topology")["name"]), "domains": [], "nics": []}
    for word in ("domain", "nic"):
        while lines.comes(word):
            fields = lines.take(word)
            gpus = fields.pop("gpus")
            entries = topology[f"{word}s"]
            origin[f"topology.{word}s[{len(entries)}]"] = lines.at
            rates = {name: lines.json(rate) for name, rate in fields.items()}
            entries.append({"gpus": lines.json(gpus) if gpus.startswith("[") else gpus, **rates})
            if word == "nic" and lines.comes("rails"):
                entries[-1]["rails"] = lines.take("rails")["gpus"]
    while lines.comes("pod"):
        fields = lines.take("pod")
        pods = topology.setdefault("pods", [])
        origin[f"topology.pods[{len(pods)}]"] = lines.at
        domains = fields.pop("domains")
        pods.append({"domains": domains, "uplink": {name: lines.json(rate) for name, rate in fields.items()}})
    if lines.comes("rank_map"):
        topology["rank_map"] = lines.take("rank_map")["gpus"]
    return topology


def _columns(table: str, values: dict[str, Any]) -> dict[str, Column]:
    values.pop("row", None)
    return {f"{table}.{name}": make_column(f"{table}.{name}", column) for name, column in values.items()}


def _read_groups(lines: LineReader) -> dict[str, Column]:
    head = lines.take("groups")
    group_of = lines.json(lines.take("group_of")["group_of"])
    own = lines.take_columns("group", int(head["count"]))
    substitutions = lines.take_columns("substitution", int(head["substitutions"]))
    return _columns("groups", {"group_of": group_of, **own, **substitutions})


def _read_pieces(lines: LineReader) -> dict[str, Column]:
    head = lines.take("pieces")
    dims, count = int(head["dims"]), int(head["count"])
    if dims > MAX_DIMS:
        lines.fail(f"dims is {dims}; expected at most {MAX_DIMS}")
    first = lines.at + 1
    values = lines.take_columns("piece", count)
    lo, hi = [], []
    for row, text in enumerate(values.pop("box")):
        box = [tuple(map(int, bounds.split(":"))) for bounds in text[1:-1].split(", ") if bounds]
        if len(box) > dims:
            lines.fail(f"the box has {len(box)} dimensions; expected at most {dims}", first + row)
        box += [(0, 1)] * (dims - len(box))
        lo.append([bounds[0] for bounds in box])
        hi.append([bounds[1] for bounds in box])
    columns = _columns("pieces", {**values, "lo": lo, "hi": hi})
    if not count:
        columns |= {name: np.zeros((0, dims), dtype=np.int64) for name in ("pieces.lo", "pieces.hi")}
    return columns


def _read_routes(lines: LineReader) -> dict[str, Column]:
    values = lines.take_columns("route", int(lines.take("routes")["count"]))
    places = [parse_place(text) for text in values.pop("place")]
    values["scratch"] = [scratch for scratch, _ in places]
    values["tile"] = [tile for _, tile in places]
    return _columns("routes", values)


def show(plan: Plan, rank: int | None = None, slot: int | None = None) -> str:
    """The text form, or a list of what one rank or slot does.

    Args:
        plan: the plan.
        rank: only what this rank sends, receives and copies.
        slot: only what runs in this slot.

    Returns:
        Lines; the text form if neither is given, which alone parses back.
    """
    if rank is None and slot is None:
        return dumps(plan)
    ops = plan.ops(rank=rank)
    if slot is not None:
        ops = ops.select(ops.slot == slot)
    if not len(ops):
        who = "no rank has operations" if rank is None else f"rank {rank} has no operations"
        return who + ("" if slot is None else f" in slot {slot}") + "\n"
    lines: list[str] = []
    for number in np.unique(ops.slot).tolist():
        these = ops.select(ops.slot == number)
        lines.append(f"slot {number}: {len(these)} operations, {int(these.nbytes.sum())} bytes")
        if rank is None:
            order = np.arange(len(these))
        else:
            to, sent = these.dst == rank, these.src == rank
            order = np.lexsort((np.where(sent, these.dst, these.src), to.astype(np.int64) + (to & sent)))
        lines += [f"  {_operation(plan, these, at, rank)}" for at in order.tolist()]
    return "\n".join(lines) + "\n"


def _operation(plan: Plan, ops: Ops, at: int, rank: int | None) -> str:
    tensor = plan.spec.tensors[int(ops.tensor[at])]
    ndim = len(tensor.shape)
    box = Box(tuple(ops.lo[at, :ndim].tolist()), tuple(ops.hi[at, :ndim].tolist()))
    src, dst = int(ops.src[at]), int(ops.dst[at])
    if rank is None:
        who = f"r{src} -> r{dst}"
    elif src == dst:
        who = "copy"
    else:
        who = f"send to r{dst}" if src == rank else f"receive from r{src}"
    return (
        f"{who}: {json.dumps(tensor.name)} {box} {int(ops.nbytes[at])} bytes,"
        f" {label('medium', int(ops.medium[at]))} {label('role', int(ops.role[at]))},"
        f" {place_text(int(ops.scratch[at]), int(ops.tile[at]))},"
        f" op {int(ops.op[at])} parent {dashed(int(ops.parent[at]))}"
    )
