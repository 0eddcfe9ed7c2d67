"""What ``nvidia-smi -q -x`` prints: GPUs of one host, and the NVLink domain of each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind
from reshard_planner.topology.cluster.hostlist import MAX_HOSTS
from reshard_planner.topology.cluster.model import MAX_HOST_GPUS, Cluster, Gpu, Host
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.pci import pci_address
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.safexml import parse_xml, root_name, stray_text
from reshard_planner.topology.wording import listed, quote

_ROOT = "nvidia_smi_log"
_END = re.compile(rf"</{_ROOT}\s*>")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_CLIQUE = re.compile(r"[0-9]{1,10}", re.ASCII)
_NOTHING = frozenset(
    {"", "n/a", "none", "unknown", "not supported", "not available", "unknown error", "err!"}
)
_HEALTHY = _NOTHING | {"healthy", "full", "false", "no", "ok"}
_MAX_VALUE = 128


@dataclass(frozen=True, slots=True)
class _Report:
    """Where findings of one GPU go."""

    place: str
    findings: list[Finding]

    def add(self, kind: FindingKind, text: str) -> None:
        self.findings.append(Finding(kind, self.place, text))


def recognises(text: str) -> bool:
    """Whether the outermost element is that of nvidia-smi."""
    return root_name(text) == _ROOT


def read(text: str, reading: Reading) -> Imported:
    """The GPUs of the host that is read, or of several, its name with -1 and so on: no output names its host.

    Raises:
        TopologyError: if it is no output of nvidia-smi, ends early, is damaged, or is too large.
    """
    host, source = reading.host, reading.source
    documents = _split(text, source)
    findings: list[Finding] = []
    hosts = []
    homes: dict[str, str] = {}
    for number, document in enumerate(documents, 1):
        name = host if len(documents) == 1 else f"{host}-{number}"
        what = source if len(documents) == 1 else f"output {number} of {source}"
        read_host = _read_host(parse_xml(document, what), name, source, findings)
        known = [homes[gpu.uuid] for gpu in read_host.gpus if gpu.uuid in homes]
        if known:
            said = f"output {number} has GPUs of host {known[0]} again: it is left out"
            findings.append(Finding(FindingKind.CONFLICT, f"host {name}", said))
            continue
        homes.update((gpu.uuid, name) for gpu in read_host.gpus if gpu.uuid is not None)
        hosts.append(read_host)
    if len(documents) > 1:
        said = f"{len(documents)} outputs do not name their hosts: they are called {host}-1 and so on"
        findings.append(Finding(FindingKind.ASSUMED, "the file", said))
    return Imported(Cluster(hosts=tuple(hosts)), tuple(findings))


def _split(text: str, source: str) -> list[str]:
    """The outputs in a text; what stands after the last must be one too."""
    documents, start = [], 0
    for end in _END.finditer(text):
        documents.append(text[start : end.end()].lstrip())
        start = end.end()
    if text[start:].strip() or not documents:
        documents.append(text[start:].lstrip())
    if len(documents) > MAX_HOSTS:
        raise TopologyError(f"{source} has {len(documents)} outputs; expected at most {MAX_HOSTS}")
    return documents


def _read_host(root: Element, name: str, source: str, findings: list[Finding]) -> Host:
    if root.tag != _ROOT:
        raise TopologyError(
            f"{source} begins with element {quote(root.tag)}; expected {_ROOT}, as nvidia-smi writes it"
        )
    report = _Report(f"host {name}", findings)
    elements = root.findall("gpu")
    if len(elements) > MAX_HOST_GPUS:
        raise TopologyError(f"host {name} has {len(elements)} GPUs; expected at most {MAX_HOST_GPUS}")
    attached = _value(root, "attached_gpus", report)
    if attached is None or attached != str(len(elements)):
        said = "no number of GPUs" if attached is None else f"{quote(attached)} GPUs"
        report.add(
            FindingKind.UNKNOWN,
            f"has {said} by its own count, and {len(elements)} are listed: others may be missing",
        )
    if stray := stray_text(root):
        report.add(
            FindingKind.UNKNOWN, f"text stands between elements, first {quote(stray)}: some may be lost"
        )
    gpus: list[Gpu] = []
    taken: set[str] = set()
    for number, element in enumerate(elements):
        mine = _Report(f"host {name}, GPU{number}", findings)
        gpu = _read_gpu(element, f"GPU{number}", source, mine)
        again = {known for known in (gpu.uuid, gpu.bus) if known is not None and known in taken}
        if again:
            mine.add(FindingKind.CONFLICT, f"{min(again)} is listed twice: the second is left out")
            continue
        taken |= {known for known in (gpu.uuid, gpu.bus) if known is not None}
        gpus.append(gpu)
    _compare(gpus, name, findings)
    return Host(name, tuple(gpus))


def _read_gpu(element: Element, name: str, source: str, report: _Report) -> Gpu:
    bus = pci_address(element.get("id")) or pci_address(_value(element, "pci/pci_bus_id", report))
    if bus is None:
        report.add(
            FindingKind.UNKNOWN,
            "its id is no PCI address: other sources cannot be matched with it by address",
        )
    uuid = _value(element, "uuid", report)
    if uuid is None:
        report.add(FindingKind.UNKNOWN, "it has no uuid: a second output of its host would not be noticed")
    model = _value(element, "product_name", report)
    if model is None:
        report.add(
            FindingKind.UNKNOWN, "it has no product_name: its model, and so its NVLink speed, is unknown"
        )
    fabric = _read_fabric(element, report)
    _look_at_state(element, report)
    if stray := stray_text(element):
        report.add(
            FindingKind.UNKNOWN, f"text stands between its elements, first {quote(stray)}: some may be lost"
        )
    return Gpu(
        name,
        model=Fact(model, source=source) if model is not None else None,
        uuid=uuid,
        bus=bus,
        fabric=Fact(fabric, source=source) if fabric is not None else None,
    )


def _read_fabric(element: Element, report: _Report) -> str | None:
    """The NVLink domain as ``nvidia.com/gpu.clique`` spells it; "" for none, None where it is not known."""
    if element.find("fabric") is None:
        report.add(
            FindingKind.UNKNOWN, "it has no fabric element, as with old drivers: its NVLink domain is unknown"
        )
        return None
    state = _value(element, "fabric/state", report)
    status = _value(element, "fabric/status", report)
    if state is None:
        report.add(
            FindingKind.UNKNOWN, "it reports no fabric state: whether it has NVLink to other hosts is unknown"
        )
        return None
    if state.lower() != "completed":
        report.add(
            FindingKind.DEGRADED,
            f"its fabric state is {quote(state)}, not Completed: its NVLink may be down, its domain unknown",
        )
        return None
    if status is None or status.lower() != "success":
        shown = "none" if status is None else quote(status)
        report.add(
            FindingKind.DEGRADED,
            f"its fabric status is {shown}, not Success: its NVLink may be down, its domain unknown",
        )
        return None
    _look_at_health(element, report)
    cluster = _value(element, "fabric/clusterUuid", report)
    clique = _value(element, "fabric/cliqueId", report)
    if cluster is None or not _UUID.fullmatch(cluster):
        shown = "none" if cluster is None else quote(cluster)
        report.add(
            FindingKind.UNKNOWN, f"its clusterUuid is {shown}, expected a UUID: its NVLink domain is unknown"
        )
        return None
    # Machines whose NVLink ends at the host register with the fabric too, all with this one.
    if not cluster.strip("0-"):
        return ""
    if clique is None or not _CLIQUE.fullmatch(clique):
        shown = "none" if clique is None else quote(clique)
        report.add(
            FindingKind.UNKNOWN, f"its cliqueId is {shown}, expected a number: its NVLink domain is unknown"
        )
        return None
    return f"{cluster.lower()}.{int(clique)}"


def _look_at_health(element: Element, report: _Report) -> None:
    health = element.find("fabric/health")
    if health is None:
        return
    for part in (health, *health):
        said = " ".join((part.text or "").split())
        if said.lower() not in _HEALTHY:
            name = "health" if part is health else part.tag
            report.add(
                FindingKind.DEGRADED,
                f"its fabric reports {name} {quote(said)}: its NVLink is slower, or down",
            )


def _look_at_state(element: Element, report: _Report) -> None:
    """Modes and faults that make a GPU other than planned."""
    if (_value(element, "mig_mode/current_mig", report) or "").lower() == "enabled":
        report.add(
            FindingKind.DEGRADED, "MIG is enabled: its instances have no NVLink, and it is planned as one GPU"
        )
    action = _value(element, "gpu_recovery_action", report)
    if action is None and (_value(element, "gpu_reset_status/reset_required", report) or "").lower() == "yes":
        action = "reset"
    if action is not None:
        report.add(
            FindingKind.DEGRADED,
            f"its driver asks for {quote(action)}: it may fail, or be slower than planned",
        )
    most = _value(element, "pci/pci_gpu_link_info/link_widths/max_link_width", report)
    now = _value(element, "pci/pci_gpu_link_info/link_widths/current_link_width", report)
    if most is not None and now is not None and now != most:
        report.add(
            FindingKind.DEGRADED,
            f"its PCIe link is {quote(now)} wide of {quote(most)}: to its NIC it is slower",
        )


def _compare(gpus: list[Gpu], host: str, findings: list[Finding]) -> None:
    """Names GPUs that are not as most of their host."""
    domains = Counter(gpu.fabric.value for gpu in gpus if gpu.fabric is not None)
    if len(domains) > 1:
        common, _ = domains.most_common(1)[0]
        for gpu in gpus:
            if gpu.fabric is not None and gpu.fabric.value != common:
                said = (
                    f"its NVLink domain is {quote(gpu.fabric.value)}, most of its host have {quote(common)}"
                )
                text = f"{said}: they have no NVLink between them"
                findings.append(Finding(FindingKind.DEGRADED, f"host {host}, {gpu.name}", text))
    models = Counter(gpu.model.value for gpu in gpus if gpu.model is not None)
    if len(models) > 1:
        shown = listed([f"{count} {quote(model)}" for model, count in models.most_common()], 3)
        text = f"its GPUs are of several models: {shown}"
        findings.append(Finding(FindingKind.UNKNOWN, f"host {host}", text))


def _value(element: Element, path: str, report: _Report) -> str | None:
    """The text at a path, the first of several; None where there is none, or none that says anything."""
    values = [" ".join((found.text or "").split()) for found in element.findall(path)]
    if len(set(values)) > 1:
        shown = listed([quote(value) for value in values], 2)
        report.add(FindingKind.CONFLICT, f"{path} is given several times ({shown}): the first is taken")
    if not values or values[0].strip("[]").lower() in _NOTHING:
        return None
    if len(values[0]) > _MAX_VALUE:
        report.add(
            FindingKind.UNKNOWN,
            f"{path} has {len(values[0])} characters, expected at most {_MAX_VALUE}: left out",
        )
        return None
    return values[0]
