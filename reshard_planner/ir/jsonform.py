"""The JSON form of a plan: ``{"version", "digest", "spec", "certificate", "tables"}``, one column a line."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from reshard_planner.ir.plan import Plan
from reshard_planner.ir.reading import (
    COLUMN_DTYPES,
    check_digest,
    check_names,
    make_column,
    make_tables,
    parse_json,
    read_certificate,
    read_form,
    read_spec,
)
from reshard_planner.spec import spec_to_dict

LINE_LENGTH = 110
"""Characters up to which a value that holds other values stands on one line."""


class PlanForm(msgspec.Struct, forbid_unknown_fields=True):
    """A whole plan."""

    version: int
    digest: str
    spec: dict[str, Any]
    certificate: dict[str, Any]
    tables: dict[str, dict[str, list[Any]]]


def dumps(plan: Plan) -> str:
    """Write a plan as JSON; equal plans give equal text.

    Returns:
        ASCII text that ends with a newline.
    """
    tables = {
        table_name: {name: column.tolist() for name, column in table.columns().items()}
        for table_name, table in plan.tables.named().items()
    }
    content = {
        "version": plan.version,
        "digest": plan.digest,
        "spec": spec_to_dict(plan.spec),
        "certificate": plan.certificate.to_dict(),
        "tables": tables,
    }
    return _pretty(content) + "\n"


def _pretty(value: Any, indent: str = "") -> str:
    """JSON in which short values, and those that hold no others, stand on one line."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not any(isinstance(entry, dict | list) for entry in inner):
        return json.dumps(value, allow_nan=False)
    deeper = indent + "  "
    parts = [_pretty(entry, deeper) for entry in inner]
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {part}" for key, part in zip(value, parts, strict=True)]
    first, last = "{}" if isinstance(value, dict) else "[]"
    flat = ", ".join(parts)
    if indent and len(indent) + len(flat) < LINE_LENGTH and "\n" not in flat:
        return first + flat + last
    lines = ",\n".join(deeper + part for part in parts)
    return f"{first}\n{lines}\n{indent}{last}"


def loads(text: str, *, check: bool = True) -> Plan:
    """Read what :func:`dumps` wrote.

    Args:
        text: one JSON document.
        check: whether to compare the digest with the content.

    Raises:
        PlanFileError: naming the field that is wrong.
        DigestError: if the content is not what the digest says.
    """
    form = read_form(parse_json(text), PlanForm)
    values = {
        f"{table}.{name}": column
        for table, columns in form.tables.items()
        for name, column in columns.items()
    }
    check_names("column", values, COLUMN_DTYPES)
    tables = make_tables({name: make_column(name, column) for name, column in values.items()})
    plan = Plan(read_spec(form.spec), tables, read_certificate(form.certificate), form.digest)
    if check:
        check_digest(plan)
    return plan
