"""Digests: SHA-256 over the header and over blocks of every column.

The header lists a hash per block, and the digest is the hash of the header; a reader that trusts the
digest can therefore check any block on its own.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from reshard_planner.ir.certificate import Certificate
from reshard_planner.ir.tables import Tables
from reshard_planner.spec import ReshardSpec, spec_to_dict

BLOCK_ROWS = 65536
"""Rows of one block of a column."""


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces, in ASCII; equal values give equal bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def block_hashes(tables: Tables) -> dict[str, list[str]]:
    """Hexadecimal SHA-256 of every block, by ``table.column``; an empty column has none."""
    hashes: dict[str, list[str]] = {}
    for table_name, table in tables.named().items():
        for name, column in table.columns().items():
            hashes[f"{table_name}.{name}"] = [
                hashlib.sha256(column[start : start + BLOCK_ROWS].tobytes()).hexdigest()
                for start in range(0, len(column), BLOCK_ROWS)
            ]
    return hashes


def make_header(version: int, spec: ReshardSpec, tables: Tables, certificate: Certificate) -> dict[str, Any]:
    """The header without its digest, in plain JSON types."""
    return {
        "version": version,
        "spec": spec_to_dict(spec),
        "certificate": certificate.to_dict(),
        "columns": {
            f"{table_name}.{name}": [column.dtype.str, list(column.shape)]
            for table_name, table in tables.named().items()
            for name, column in table.columns().items()
        },
        "block_rows": BLOCK_ROWS,
        "blocks": block_hashes(tables),
    }


def digest_of(version: int, spec: ReshardSpec, tables: Tables, certificate: Certificate) -> str:
    """Digest of a plan's content."""
    return hashlib.sha256(canonical_json(make_header(version, spec, tables, certificate))).hexdigest()
