"""Our own cluster file as a source among others."""

from __future__ import annotations

import re
from contextlib import suppress

from reshard_planner.document import parse_document
from reshard_planner.errors import SpecError, TopologyError
from reshard_planner.topology.cluster.reading import cluster_from_form
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading

_VERSION = re.compile(r'(?:^|[{,\s])"?version"?\s*:\s*\d')
_HOSTS = re.compile(r'(?:^|[{,\s])"?hosts"?\s*:\s*[\[-]')


def recognises(text: str) -> bool:
    """Whether the text has the two fields that every cluster file has."""
    return _VERSION.search(text) is not None and _HOSTS.search(text) is not None


def read(text: str, reading: Reading) -> Imported:
    """The cluster of a cluster file.

    Raises:
        TopologyError: if it is none.
    """
    try:
        return Imported(cluster_from_form(_parse(text)))
    except (SpecError, TopologyError) as error:
        raise TopologyError(f"{reading.source}: {error}") from None


def _parse(text: str) -> object:
    """Plain data of JSON, which is fast, or of YAML, whose mappings in braces look like it."""
    if text.lstrip().startswith("{"):
        with suppress(SpecError):
            return parse_document(text, is_json=True)
    return parse_document(text)
