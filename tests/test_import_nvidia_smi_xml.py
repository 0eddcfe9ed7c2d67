"""Output of nvidia-smi: NVLink domains are those that drivers report, and what they do not report is said."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from imported_facts import fact, findings, in_time
from soon import soon
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import FindingKind, join_alike
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host
from reshard_planner.topology.importers import import_text, nvidia_smi_xml
from reshard_planner.topology.importers.reading import Reading

SAMPLE = (SAMPLES / "nvidia_smi_qx_h100x8.xml").read_text()
ZERO = "00000000-0000-0000-0000-000000000000"
RACK = "9c6f5af3-53bf-49b5-a436-b66766c413c3"


def read(text, host="a", source="f"):
    return nvidia_smi_xml.read(text, Reading(host, source))


@dataclass(frozen=True)
class Card:
    """What one ``<gpu>`` says."""

    number: int = 0
    host: int = 0
    cluster: str = RACK
    clique: int | str = 0
    state: str = "Completed"
    status: str = "Success"
    health: str = (
        "<summary>Healthy</summary><bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy>"
    )
    model: str = "NVIDIA GB200"
    more: str = ""

    @property
    def uuid(self):
        return f"GPU-{self.host:08x}-{self.number:04x}"

    def text(self):
        return f"""
        <gpu id="00000009:{self.number:02X}:00.0">
            <product_name>{self.model}</product_name>
            <uuid>{self.uuid}</uuid>
            {self.more}
            <fabric>
                <state>{self.state}</state>
                <status>{self.status}</status>
                <cliqueId>{self.clique}</cliqueId>
                <clusterUuid>{self.cluster}</clusterUuid>
                <health>{self.health}</health>
            </fabric>
        </gpu>"""

    def gpu(self):
        known = self.state == "Completed" and self.status == "Success" and self.cluster != "N/A"
        fabric = "" if self.cluster == ZERO else f"{self.cluster.lower()}.{self.clique}"
        return Gpu(
            f"GPU{self.number}",
            model=fact(self.model),
            uuid=self.uuid,
            bus=f"0009:{self.number:02x}:00.0",
            fabric=fact(fabric) if known else None,
        )


def output(*cards, attached=None):
    attached = len(cards) if attached is None else attached
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
    <attached_gpus>{attached}</attached_gpus>{"".join(c.text() for c in cards)}
</nvidia_smi_log>
"""


CARDS = st.builds(
    Card,
    cluster=st.sampled_from([ZERO, RACK, RACK.upper(), "N/A", "0f" * 4 + "-1234-abcd-0000-" + "7e" * 6]),
    clique=st.integers(0, 2**32 - 1),
    state=st.sampled_from(["Completed", "Completed", "Completed", "In Progress", "Not Started", "N/A"]),
    status=st.sampled_from(["Success", "Success", "Success", "N/A", "Insufficient Resources"]),
    health=st.sampled_from(
        ["N/A", "", "<summary>N/A</summary><bandwidth>Not Supported</bandwidth>", Card.health]
    ),
    model=st.sampled_from(["NVIDIA GB200", "NVIDIA H100 80GB HBM3"]),
)


@given(st.lists(st.lists(CARDS, max_size=8), min_size=1, max_size=4))
def test_reading_gives_back_the_hosts_that_were_written(drawn):
    cards = [
        [Card(**{**vars(card), "number": n, "host": host}) for n, card in enumerate(row)]
        for host, row in enumerate(drawn)
    ]
    imported = read("\n".join(output(*row) for row in cards))
    names = ["a"] if len(cards) == 1 else [f"a-{n}" for n in range(1, len(cards) + 1)]
    assert imported.cluster == Cluster(
        hosts=tuple(
            Host(name, tuple(card.gpu() for card in row)) for name, row in zip(names, cards, strict=True)
        )
    )
    unknown = any(gpu.fabric is None for host in imported.cluster.hosts for gpu in host.gpus)
    assert unknown == any("unknown" in text.rpartition(":")[2] for text in findings(imported))
    assert ("do not name their hosts" in str(findings(imported))) == (len(cards) > 1)


def test_eight_h100_have_no_nvlink_beyond_their_host():
    imported = read(SAMPLE)
    [host] = imported.cluster.hosts
    assert imported.findings == ()
    assert (host.name, host.nics) == ("a", ())
    assert [gpu.name for gpu in host.gpus] == [f"GPU{n}" for n in range(8)]
    assert [gpu.bus[5:7] for gpu in host.gpus] == ["53", "64", "75", "86", "97", "a8", "b9", "ca"]
    assert {gpu.model.value for gpu in host.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert {gpu.fabric.value for gpu in host.gpus} == {""}
    assert host.gpus[7].uuid == "GPU-00000007-0000-0000-0000-000000000007"


def test_only_output_of_nvidia_smi_is_recognised():
    recognised = [path.name for path in SAMPLES.iterdir() if nvidia_smi_xml.recognises(path.read_text())]
    assert recognised == ["nvidia_smi_qx_h100x8.xml"]


def test_hosts_of_one_rack_share_a_domain_and_partitions_do_not():
    trays = [output(*(Card(n, host, clique=host // 2) for n in range(4))) for host in range(4)]
    hosts = read("".join(trays)).cluster.hosts
    assert [host.gpus[0].fabric.value for host in hosts] == [f"{RACK}.0"] * 2 + [f"{RACK}.1"] * 2


def test_an_output_given_twice_is_taken_once():
    imported = read(SAMPLE + SAMPLE)
    assert [len(host.gpus) for host in imported.cluster.hosts] == [8]
    assert any(
        "output 2 has GPUs of host a-1 again" in text for text in findings(imported, FindingKind.CONFLICT)
    )


@pytest.mark.parametrize(
    ("card", "kind", "expected"),
    [
        (Card(1, state="In Progress"), "degraded", "its fabric state is 'In Progress', not Completed"),
        (Card(1, state="N/A"), "unknown", "reports no fabric state"),
        (
            Card(1, status="Insufficient Resources"),
            "degraded",
            "its fabric status is 'Insufficient Resources'",
        ),
        (Card(1, cluster="N/A"), "unknown", "its clusterUuid is none"),
        (Card(1, cluster="7"), "unknown", "its clusterUuid is '7', expected a UUID"),
        (Card(1, clique="-1"), "unknown", "its cliqueId is '-1', expected a number"),
        (Card(1, health="<summary>Unhealthy</summary>"), "degraded", "reports summary 'Unhealthy'"),
        (Card(1, health="<bandwidth>Degraded</bandwidth>"), "degraded", "reports bandwidth 'Degraded'"),
        (
            Card(1, health="<route_recovery_in_progress>True</route_recovery_in_progress>"),
            "degraded",
            "'True'",
        ),
        (Card(1, health="Degraded"), "degraded", "reports health 'Degraded'"),
        (Card(1, cluster=ZERO), "degraded", "its NVLink domain is '', most of its host have"),
        (Card(1, clique=7), "degraded", f"its NVLink domain is '{RACK}"),
        (Card(1, model="[Unknown Error]"), "unknown", "it has no product_name"),
        (Card(1, model="NVIDIA B200"), "unknown", "of several models: 2 'NVIDIA GB200', 1 'NVIDIA B200'"),
        (
            Card(1, more="<mig_mode><current_mig>Enabled</current_mig></mig_mode>"),
            "degraded",
            "MIG is enabled",
        ),
        (
            Card(1, more="<gpu_recovery_action>GPU Reset</gpu_recovery_action>"),
            "degraded",
            "asks for 'GPU Reset'",
        ),
        (
            Card(1, more="<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>"),
            "degraded",
            "asks for 'reset'",
        ),
        (
            Card(
                1,
                more="<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>8x"
                "</current_link_width></link_widths></pci_gpu_link_info></pci>",
            ),
            "degraded",
            "its PCIe link is '8x' wide of '16x'",
        ),
        (
            Card(1, more="<uuid>GPU-7</uuid>"),
            "conflict",
            "uuid is given several times ('GPU-00000000-0001', 'GPU-7')",
        ),
        (Card(1, more="uuid>"), "unknown", "text stands between its elements, first 'uuid>'"),
    ],
)
def test_what_is_odd_about_one_gpu_is_found_with_its_place(card, kind, expected):
    imported = read(output(Card(0), card, Card(2)))
    [text] = [text for text in findings(imported) if expected in text]
    assert text.startswith(f"{kind}: host a")
    assert "several models" in text or text.startswith(f"{kind}: host a, GPU1: ")
    assert len(imported.cluster.hosts[0].gpus) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (output(Card(0), attached=8), "has '8' GPUs by its own count, and 1 are listed"),
        (output(Card(0), attached="N/A"), "has no number of GPUs by its own count"),
        (output(Card(0), Card(0)), "is listed twice"),
        (output(Card(0)).replace("00000009:00:00.0", "first"), "its id is no PCI address"),
        (output(Card(0)).replace("fabric>", "fabrics>"), "it has no fabric element"),
        (output(Card(0)).replace("uuid>", "uid>"), "it has no uuid"),
        (output(Card(0)).replace("</attached_gpus>", "</attached_gpus>gpu>"), "first 'gpu>'"),
        (output(Card(0, model="x" * 5000)), "product_name has 5000 characters"),
    ],
)
def test_what_is_odd_about_an_output_is_found(text, expected):
    imported = read(text)
    assert len(imported.cluster.hosts[0].gpus) == 1
    assert any(expected in finding for finding in findings(imported)), findings(imported)


def test_equal_findings_of_many_gpus_are_one_when_they_are_joined():
    found = read(output(*(Card(n, state="N/A") for n in range(8)))).findings
    assert [finding.place for finding in found] == [f"host a, GPU{n}" for n in range(8)]
    [joined] = join_alike(found)
    assert joined.place == "host a, GPU0 and 7 more"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f is empty"),
        ("No devices were found\n", "f is cut off or damaged"),
        (SAMPLE[:100_000], "f is cut off or damaged: .* in line"),
        (SAMPLE + SAMPLE[:100_000], "output 2 of f is cut off or damaged"),
        (SAMPLE + "Killed\n", "output 2 of f is cut off or damaged"),
        ("<smi/>", "begins with element 'smi'; expected nvidia_smi_log"),
        (output(*(Card(n) for n in range(65))), "host a has 65 GPUs; expected at most 64"),
        (output(Card(0)).replace("GB200", "GB&x;"), "refers to an entity in line 6"),
        (output(Card(0)).replace('dtd">', 'dtd" [<!ENTITY x "y">]>'), "declares entities"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(text, expected):
    with pytest.raises(TopologyError, match=expected) as caught:
        read(text)
    assert len(str(caught.value)) < 300


def two_of_eight():
    """The sample with two of its GPUs, so that many damaged texts are read in little time."""
    head, *gpus = re.split(r"(?=\t<gpu id)", SAMPLE)
    end = SAMPLE[SAMPLE.rindex("</nvidia_smi_log>") :]
    return head.replace("<attached_gpus>8", "<attached_gpus>2") + "".join(gpus[:2]) + "\n" + end


@pytest.mark.parametrize(("text", "count"), [(SAMPLE, 130), (two_of_eight(), 1500)], ids=["eight", "two"])
def test_damage_is_refused_found_or_changes_no_count(text, count):
    whole = read(text)
    refused = 0
    for damage in damages(text, count, seed=3):
        imported = in_time(read, damage.text)
        if imported is None:
            refused += 1
            continue
        gpus = [gpu for host in imported.cluster.hosts for gpu in host.gpus]
        if len(gpus) != len(whole.cluster.hosts[0].gpus) or len({gpu.fabric for gpu in gpus}) > 1:
            assert imported.findings, damage.kind
        assert damage.kind != "truncate" or damage.text.rstrip() == text.rstrip()
    assert refused > count / 3


@pytest.mark.parametrize(
    "text",
    [
        output(Card(0, model="x" * 10_000_000)),
        output(Card(0, more="<a>" * 100_000 + "</a>" * 100_000)),
        output(Card(0, more="<uuid>b</uuid>" * 100_000)),
        "<nvidia_smi_log/>" * 200_000,
        "<nvidia_smi_log></nvidia_smi_log>" * 200_000,
        "</nvidia_smi_log>" * 200_000,
        output(Card(0)) * 2_000,
    ],
    ids=["line", "deep", "values", "single", "empty", "ends", "outputs"],
)
def test_hostile_text_takes_linear_time(text):
    with soon(2):
        try:
            assert len(import_text(text, host="a", source="f").findings) < 250
        except TopologyError as error:
            assert len(str(error)) < 300  # noqa: PT017 - some are read, some refused
