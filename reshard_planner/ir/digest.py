"""Digests: SHA-256 over the header and over blocks of every stored column.

The header lists a hash per block, and the digest is the hash of the header; a reader that trusts the
digest can therefore check any block on its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.tables import Column, Routes, Tables
from reshard_planner.spec import ReshardSpec, spec_to_dict

BLOCK_ROWS = 65536
"""Rows of one block of a column."""

INDEX_NAME = "index.by_dst"
"""Name of the one stored column that no table has: the index of the routes by destination rank."""

INDEX_DTYPE = "<i4"
"""Element type of the index."""


def canonical_json(value: Any) -> bytes:
    """JSON without spaces, in ASCII, fields in their order; values built alike give equal bytes.

    Fields are not sorted: the order of the axes of a mesh is part of its meaning.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def destination_index(routes: Routes) -> Column:
    """Numbers of the rows of the routes sorted by (dst, row), int32 of shape (routes,).

    Rows themselves are sorted by source, so that with this index a rank finds what it sends and what it
    receives by bisection.
    """
    return np.argsort(routes.dst, kind="stable").astype(INDEX_DTYPE)


def stored_columns(tables: Tables) -> dict[str, Column]:
    """Everything that a plan file stores beside its header, by ``table.column``."""
    columns = {
        f"{table_name}.{name}": column
        for table_name, table in tables.named().items()
        for name, column in table.columns().items()
    }
    columns[INDEX_NAME] = destination_index(tables.routes)
    return columns


def block_hashes(columns: Mapping[str, Column]) -> dict[str, list[str]]:
    """Hexadecimal SHA-256 of every block of every column; an empty column has none."""
    return {
        name: [
            hashlib.sha256(column[start : start + BLOCK_ROWS].tobytes()).hexdigest()
            for start in range(0, len(column), BLOCK_ROWS)
        ]
        for name, column in columns.items()
    }


def make_header(
    version: int, spec: ReshardSpec, certificate: Certificate, columns: Mapping[str, Column]
) -> dict[str, Any]:
    """The header without its digest, in plain JSON types; ``columns`` are the stored ones."""
    return {
        "version": version,
        "spec": spec_to_dict(spec),
        "certificate": certificate.to_dict(),
        "columns": {name: [column.dtype.str, list(column.shape)] for name, column in columns.items()},
        "block_rows": BLOCK_ROWS,
        "blocks": block_hashes(columns),
    }


def header_digest(header: Mapping[str, Any]) -> str:
    """Digest of a header; its own field ``digest``, if it has one, does not count."""
    content = {name: value for name, value in header.items() if name != "digest"}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def digest_of(version: int, spec: ReshardSpec, tables: Tables, certificate: Certificate) -> str:
    """Digest of a plan's content."""
    return header_digest(make_header(version, spec, certificate, stored_columns(tables)))
