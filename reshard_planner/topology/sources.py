"""Cluster descriptions from files, several of them joined: what ``topology import`` does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reshard_planner.document import read_text
from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import brief_names, expand_hosts
from reshard_planner.topology.cluster.merge import merge
from reshard_planner.topology.cluster.model import Cluster, Host
from reshard_planner.topology.importers import find_importer
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading, Settings


@dataclass(frozen=True, slots=True)
class Source:
    """One file to import.

    Attributes:
        path: the file.
        hosts: hosts that it describes, all alike, where its format does not tell; empty where nobody says.
    """

    path: Path
    hosts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read ``FILE`` or ``HOSTS=FILE``, where HOSTS is a host list.

        Raises:
            TopologyError: if HOSTS is no host list.
        """
        hosts, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            return cls(Path(text))
        return cls(Path(path), expand_hosts(hosts))


def import_sources(
    sources: Sequence[Source], settings: Settings | None = None
) -> tuple[Cluster, tuple[Finding, ...]]:
    """One cluster of several files, and what was found on the way, each finding where it is.

    Args:
        sources: the files, the most trusted first.
        settings: how to read them.

    Raises:
        SpecError: if a file cannot be read.
        TopologyError: if a file is of no known format, or no cluster comes out of them together.
    """
    settings = settings or Settings()
    clusters: list[Cluster] = []
    findings: list[Finding] = []
    for source in sources:
        imported = _import(source, settings)
        clusters.append(imported.cluster)
        findings.extend(imported.findings)
    cluster, conflicts = merge(clusters)
    return cluster, (*findings, *conflicts)


def _import(source: Source, settings: Settings) -> Imported:
    text = read_text(source.path)
    name = _host_name(source.path)
    host = source.hosts[0] if source.hosts else name
    importer = find_importer(text, source.path.name, settings.format_name)
    imported = importer.read(text, Reading(host, source.path.name, settings))
    names = [each.name for each in imported.cluster.hosts]
    if not importer.names_hosts and names == [host]:
        if not source.hosts:
            note = (
                "the file does not tell its host, which is named after the file; write HOST=FILE to name it"
            )
            findings = (*imported.findings, Finding(FindingKind.ASSUMED, f"host {host}", note))
            return replace(imported, findings=findings)
        return _repeated(imported, source)
    if source.hosts:
        raise TopologyError(
            f"{source.path.name} tells its {len(names)} hosts itself, such as"
            f" {names[0] if names else 'none'!r};"
            f" expected the file without {source.hosts[0]}="
        )
    return imported


def _repeated(imported: Imported, source: Source) -> Imported:
    """The one host of a file as every host that it stands for, without what only one of them can have."""
    if len(source.hosts) < 2:
        return imported
    [host] = imported.cluster.hosts
    plain = replace(
        host,
        gpus=tuple(replace(gpu, uuid=None) for gpu in host.gpus),
        nics=tuple(replace(nic, guid=None) for nic in host.nics),
    )
    hosts: tuple[Host, ...] = tuple(replace(plain, name=name) for name in source.hosts)
    note = f"taken to be as {source.path.name} says, for all {len(hosts)} hosts that it was given for"
    finding = Finding(FindingKind.ASSUMED, f"hosts {brief_names(source.hosts)}", note)
    return replace(
        imported, cluster=replace(imported.cluster, hosts=hosts), findings=(*imported.findings, finding)
    )


def _host_name(path: Path) -> str:
    """A name for the host of a file that does not tell it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)[:64] or "host"
