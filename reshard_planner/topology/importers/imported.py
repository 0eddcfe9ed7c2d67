"""What an importer returns."""

from __future__ import annotations

from dataclasses import dataclass

from reshard_planner.topology.cluster.facts import Finding
from reshard_planner.topology.cluster.model import Cluster


@dataclass(frozen=True, slots=True)
class Imported:
    """The facts of one source.

    Attributes:
        cluster: what the source says; everything that it does not say is None.
        findings: what it does not say, or says so that it could not be taken; those that say the same of
            several places are joined when all sources are read.
    """

    cluster: Cluster
    findings: tuple[Finding, ...] = ()
