"""What an importer is told beside the text."""

from __future__ import annotations

from dataclasses import dataclass, field

from reshard_planner.topology.importers.labels import LabelKeys


@dataclass(frozen=True, slots=True)
class Settings:
    """How sources are read.

    Attributes:
        format_name: a key of :data:`~reshard_planner.topology.importers.IMPORTERS`; recognised from each text
            when None.
        slurm_topology: the one to read of a ``topology.yaml``; its default when None.
        label_keys: keys of the labels of Kubernetes nodes, and of topograph.
    """

    format_name: str | None = None
    slurm_topology: str | None = None
    label_keys: LabelKeys = field(default_factory=LabelKeys)


@dataclass(frozen=True, slots=True)
class Reading:
    """One text that is read.

    Attributes:
        host: name of the host that it describes, where its format does not tell.
        source: name of the text, for facts and errors.
        settings: how to read it.
    """

    host: str
    source: str
    settings: Settings = field(default_factory=Settings)
