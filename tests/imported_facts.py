"""What tests of importers ask of what was imported."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from soon import soon

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, FindingKind
from reshard_planner.topology.importers.imported import Imported

MOST_S = 2
"""Processor time within which any text is read or refused."""


def fact(value: object) -> Fact[object]:
    """A fact of the source that tests read."""
    return Fact(value, source="f")


def names(imported: Imported) -> list[str]:
    """Names of the hosts."""
    return [host.name for host in imported.cluster.hosts]


def domains(imported: Imported) -> dict[str, list[str]]:
    """Hosts of each domain."""
    found: dict[str, list[str]] = {}
    for host in imported.cluster.hosts:
        if host.domain is not None:
            found.setdefault(host.domain.value, []).append(host.name)
    return found


def paths(imported: Imported) -> dict[str, tuple[str, ...]]:
    """Switches above each host that has some, nearest first."""
    return {host.name: host.path.value for host in imported.cluster.hosts if host.path is not None}


def parents(imported: Imported) -> dict[str, tuple[str, ...]]:
    """Switches above each switch."""
    return {switch.name: switch.parents for switch in imported.cluster.switches}


def findings(imported: Imported, kind: FindingKind | None = None) -> list[str]:
    """Findings of a kind, or all."""
    return [str(finding) for finding in imported.findings if kind is None or finding.kind is kind]


def in_time(read: Callable[[str], Imported], text: str, begin: str = "") -> Imported | None:
    """What a text is read as; None where it is refused in one sentence, which begins as given."""
    with soon(MOST_S):
        imported, said = None, ""
        try:
            imported = read(text)
        except TopologyError as error:
            said = str(error)
        assert "\n" not in said
        assert imported is not None or (said and said.startswith(begin))
    return imported


def assert_refused_or_found(importer: ModuleType, read: Callable[[str], Imported], text: str) -> None:
    """A hostile text is refused briefly or read with findings, and either in time."""
    with soon(MOST_S):
        try:
            assert importer.recognises(text) in (True, False)
            assert read(text).findings
        except TopologyError as error:
            assert len(str(error)) < 300  # noqa: PT017 - either is right
