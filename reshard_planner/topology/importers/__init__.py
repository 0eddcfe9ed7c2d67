"""Importers: facts of a cluster out of files that its machines and its scheduler already have.

Each format is one module with ``recognises(text)`` and ``read(text, reading)``, which is imported when a text
may be of its format: some need YAML or XML, and most commands need none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Finding, FindingKind
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading, Settings

MAX_FINDINGS = 200
"""Most different findings of one source; those that differ in their place alone count as one."""


@dataclass(frozen=True, slots=True)
class Importer:
    """One format.

    Attributes:
        name: as ``--format`` spells it.
        module: name of its module in this package.
        summary: one line: what the file is, and how people get it.
        names_hosts: whether a file tells the names of its hosts.
    """

    name: str
    module: str
    summary: str
    names_hosts: bool = True

    def recognises(self, text: str) -> bool:
        """Whether a text looks like the format."""
        found: bool = self._load().recognises(text)
        return found

    def read(self, text: str, reading: Reading) -> Imported:
        """The facts of a text.

        Raises:
            TopologyError: if it is not of the format, is damaged beyond sense, or is too large.
        """
        imported: Imported = self._load().read(text, reading)
        return replace(imported, findings=_capped(imported.findings, reading.source))

    def _load(self) -> ModuleType:
        return import_module(f"{__name__}.{self.module}")


IMPORTERS = {
    importer.name: importer
    for importer in (
        Importer(
            "cluster",
            "cluster_file",
            "a cluster file of this project, as `topology import` writes it and `topology schema`"
            " describes it",
        ),
        Importer(
            "nccl-xml",
            "nccl_xml",
            "topology XML of NCCL or RCCL: a run writes it to the file that NCCL_TOPO_DUMP_FILE names",
            names_hosts=False,
        ),
        Importer(
            "nvidia-smi-xml",
            "nvidia_smi_xml",
            "output of nvidia-smi -q -x: GPUs and NVLink domains of one host, or of several, one output after"
            " another",
            names_hosts=False,
        ),
        Importer(
            "nvidia-smi-topo",
            "topo_matrix",
            "matrix of links between the GPUs and NICs of one host, as `nvidia-smi topo -m` prints it",
            names_hosts=False,
        ),
        Importer(
            "ibnetdiscover",
            "ibnetdiscover",
            "switches, hosts, NICs and links of an InfiniBand network, as `ibnetdiscover` prints them",
        ),
        Importer(
            "slurm-conf",
            "slurm_conf",
            "topology.conf of Slurm: switches or blocks, and the hosts in them; lies beside slurm.conf",
        ),
        Importer(
            "slurm-yaml",
            "slurm_yaml",
            "topology.yaml of Slurm 25.05 and later: trees of switches or blocks of hosts; lies beside"
            " slurm.conf",
        ),
        Importer(
            "topograph",
            "topograph",
            "topograph: JSON of its engine graph, or a model of its simulations: switches and NVLink domains",
        ),
        Importer(
            "node-labels",
            "node_labels",
            "kubectl get nodes -o json (or yaml): NVLink domains, switches and GPUs from labels of nodes",
        ),
    )
}
"""All formats by name, in the order in which they are tried."""


def find_importer(text: str, source: str, format_name: str | None = None) -> Importer:
    """The format of a text: the one of that name, or the first that recognises it when None.

    Raises:
        TopologyError: if there is none.
    """
    if format_name is None:
        found = next((importer for importer in IMPORTERS.values() if importer.recognises(text)), None)
        if found is None:
            raise TopologyError(f"{source} is of no known format; expected one of {', '.join(IMPORTERS)}")
        return found
    if format_name not in IMPORTERS:
        raise TopologyError(f"format {format_name!r:.60} is unknown; expected one of {', '.join(IMPORTERS)}")
    return IMPORTERS[format_name]


def import_text(text: str, *, host: str, source: str, settings: Settings | None = None) -> Imported:
    """The facts of one source.

    Args:
        text: its content.
        host: name of the host that it describes, where the format does not tell.
        source: name of the source, for facts and errors.
        settings: how to read it.

    Raises:
        TopologyError: if no format recognises the text, the format is unknown, or the text is not of it.
    """
    settings = settings or Settings()
    return find_importer(text, source, settings.format_name).read(text, Reading(host, source, settings))


def _capped(findings: Iterable[Finding], source: str) -> tuple[Finding, ...]:
    """Each finding once, and of those that say different things the first :data:`MAX_FINDINGS`."""
    said: dict[tuple[FindingKind, str], bool] = {}
    kept = [
        finding
        for finding in dict.fromkeys(findings)
        if said.setdefault((finding.kind, finding.text), len(said) < MAX_FINDINGS)
    ]
    if len(said) > MAX_FINDINGS:
        rest = f"{len(said) - MAX_FINDINGS} more findings are not shown: the file may be damaged as a whole"
        kept.append(Finding(FindingKind.UNKNOWN, source, rest))
    return tuple(kept)
