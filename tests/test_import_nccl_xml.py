"""NCCL topology files: reading gives what was written, real files say what they say, damage is not silent."""

from __future__ import annotations

import contextlib
import re

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_facts import fact, findings, in_time
from soon import soon
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import FindingKind, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, Nearness
from reshard_planner.topology.importers import MAX_FINDINGS, import_text, nccl_xml
from reshard_planner.topology.importers.pci import pci_address
from reshard_planner.topology.importers.reading import Reading
from reshard_planner.topology.importers.safexml import MAX_CHARS, parse_xml, root_name

IBM = "ibm_vpc_h100_nccl_dump.xml"
AZURE = "azure_ndv5_h100_topo.xml"
AWS = "aws_p5_h100_topo.xml"
GRAPH = "azure_ncv4_nccl_graph.xml"


def sample(name):
    return (SAMPLES / name).read_text()


def read(text, host="a", source="f"):
    return nccl_xml.read(text, Reading(host, source))


# Random machines, written from a drawing and read back.


@st.composite
def hosts(draw, count):
    """One host: bridges as a forest below CPUs, GPUs and NICs anywhere in it, and links of one kind."""
    cpus = draw(st.integers(1, 3))
    spots = [("cpu", n) for n in range(cpus)]
    parents = {}
    for number in range(draw(st.integers(0, 6))):
        parents["bridge", number] = draw(st.sampled_from(spots))
        spots.append(("bridge", number))
    gpus = draw(st.lists(st.sampled_from(spots), min_size=1, max_size=6))
    nics = draw(st.lists(st.sampled_from(spots), max_size=5))
    kind = draw(st.sampled_from(["switch", "hidden"] if count > 1 else ["switch", "hidden", "direct"]))
    counts = [[draw(st.integers(1, 6)) for _ in range(3)] for _ in gpus]
    pairs = {(i, j): draw(st.integers(0, 2)) for i in range(len(gpus)) for j in range(i)}
    speeds = [draw(st.sampled_from([100_000, 200_000, 400_000])) for _ in nics]
    rails = draw(st.booleans())
    numa = draw(st.permutations(range(cpus)))
    return cpus, parents, gpus, nics, kind, counts, pairs, speeds, rails, numa


def write(number, several, drawn, ranks):
    """The ``<cpu>`` elements of a host, and the host that they describe."""
    cpus, parents, gpus, nics, kind, counts, pairs, speeds, rails, numa = drawn
    graph = nx.Graph((child, parent) for child, parent in parents.items())
    graph.add_nodes_from(("cpu", n) for n in range(cpus))
    below = {spot: [] for spot in [*graph.nodes, *parents]}
    address = {("gpu", i): f"00{number:02x}:1{i:x}:00.0" for i in range(len(gpus))}
    address |= {("nic", i): f"00{number:02x}:2{i:x}:00.0" for i in range(len(nics))}
    links = nx.Graph()
    links.add_nodes_from(range(len(gpus)))
    totals = [0] * len(gpus)
    for i, spot in enumerate(gpus):
        if kind == "switch":
            targets = [(f"0000:f{n}:00.0", count, "0x068000") for n, count in enumerate(counts[i])]
        elif kind == "hidden":
            targets = [("fffffff:ff:ff.0", counts[i][0], "0x068000")]
        else:
            near = {j: pairs[max(i, j), min(i, j)] for j in range(len(gpus)) if j != i}
            targets = [(address["gpu", j].upper(), n, "0x030200") for j, n in near.items() if n]
            links.add_edges_from((i, j) for j, n in near.items() if n)
        if kind != "direct":
            links.add_edge("switch", i)
        totals[i] = sum(count for _, count, _ in targets)
        inside = "".join(f'<nvlink target="{t}" count="{n}" tclass="{c}"/>' for t, n, c in targets)
        inside += '<nvlink target="0000:00:00.0" count="4" tclass="0x068001"/><c2c bw="44712" count="10"/>'
        function = (
            f'<pci busid="{address["gpu", i]}" class="0x030200"><gpu dev="{i}" sm="90" rank="{ranks[i]}">'
            f"{inside}</gpu></pci>"
        )
        below[spot].append(function)
        graph.add_edge(("gpu", i), spot)
    for i, spot in enumerate(nics):
        rail = f' rail="{i % 2}"' if rails else ""
        function = (
            f'<pci busid="{address["nic", i]}" class="0x020700"><nic><net name="mlx5_{i}" dev="{i}"{rail}'
            f' speed="{speeds[i]}" port="1" guid="0x{i + 1:02x}00{number:02x}0003e1a258"/></nic></pci>'
        )
        below[spot].append(function)
        graph.add_edge(("nic", i), spot)
    for spot, parent in reversed(parents.items()):
        if below[spot]:
            below[parent].append(
                f'<pci busid="0000:3{spot[1]}:00.0" class="0x060400">{"".join(below[spot])}</pci>'
            )
    mark = f'host_hash="0x{number + 160:x}" ' if several else ""
    text = "".join(f'<cpu {mark}numaid="{numa[n]}">{"".join(below["cpu", n])}</cpu>' for n in range(cpus))

    def node_of(device):
        return fact(numa[next(n for n in range(cpus) if nx.has_path(graph, device, ("cpu", n)))])

    def between(one, other):
        if not nx.has_path(graph, one, other):
            return Nearness.SYS
        [*passed] = nx.shortest_path(graph, one, other)[1:-1]
        if any(spot[0] == "cpu" for spot in passed):
            return Nearness.PHB
        return Nearness.PIX if len(passed) == 1 else Nearness.PXB

    islands = sorted(sorted(set(part) - {"switch"}) for part in nx.connected_components(links))
    host = Host(
        f"host-{number + 160:x}" if several else "a",
        tuple(
            Gpu(
                f"GPU{i}",
                model=fact("sm90"),
                bus=address["gpu", i],
                numa=node_of(("gpu", i)),
                nvlinks=fact(totals[i]),
                island=fact(next(n for n, island in enumerate(islands) if i in island)),
                fabric=fact("nvlink-a0") if several else None,
            )
            for i in range(len(gpus))
        ),
        tuple(
            HostNic(
                f"mlx5_{i}",
                guid=f"58a2e10300{number:02x}00{i + 1:02x}",
                bus=address["nic", i],
                numa=node_of(("nic", i)),
                rail=fact(i % 2) if rails else None,
                near=fact(tuple(between(("nic", i), ("gpu", j)) for j in range(len(gpus)))),
                port=PortFacts(fact(speeds[i] * 10**6 // 8)),
            )
            for i in range(len(nics))
        ),
    )
    return text, host


@settings(max_examples=120)
@given(st.data(), st.integers(1, 3))
def test_reading_gives_back_the_machines_that_were_written(data, count):
    drawn = [data.draw(hosts(count)) for _ in range(count)]
    total = sum(len(host[2]) for host in drawn)
    order = data.draw(st.one_of(st.just(list(range(total))), st.permutations(range(total))))
    texts, expected, ranks, at = [], [], [], 0
    for number, host in enumerate(drawn):
        mine = order[at : at + len(host[2])]
        at += len(mine)
        text, made = write(number, count > 1, host, mine)
        texts.append(text)
        expected.append(made)
        ranks.append(mine)
    imported = read(f'<?xml version="1.0"?>\n<system version="1">{"".join(texts)}</system>')
    first = sorted(range(count), key=lambda n: min(ranks[n]))
    numbered = [rank for n in first for rank in ranks[n]]
    rank_map = tuple(numbered.index(rank) for rank in range(total))
    cluster = Cluster(
        hosts=tuple(expected[n] for n in first),
        rank_map=None if rank_map == tuple(range(total)) else rank_map,
    )
    assert imported.cluster == cluster
    assert not findings(imported, FindingKind.CONFLICT)


# Real files; the numbers are read off by hand.


def test_a_full_dump_says_everything_but_rails():
    imported = read(sample(IBM))
    [host] = imported.cluster.hosts
    assert imported.findings == ()
    assert imported.cluster.rank_map is None
    assert host.name == "a"
    assert [gpu.name for gpu in host.gpus] == [f"GPU{n}" for n in range(8)]
    assert [gpu.bus[5:7] for gpu in host.gpus] == ["a4", "ae", "b8", "c2", "cc", "d6", "e0", "ea"]
    assert {gpu.model.value for gpu in host.gpus} == {"sm90"}
    assert {gpu.nvlinks.value for gpu in host.gpus} == {18}
    assert {gpu.island.value for gpu in host.gpus} == {0}
    assert {gpu.fabric for gpu in host.gpus} == {None}
    assert [gpu.numa.value for gpu in host.gpus] == [0] * 4 + [1] * 4
    assert [nic.name for nic in host.nics] == [f"mlx5_{n}" for n in range(8)]
    # The virtual bridge above says 2.5 GT/s on one lane, the functions a width of 0: the port counts.
    assert {nic.port.bytes_per_s.value for nic in host.nics} == {25_000_000_000}
    for number, nic in enumerate(host.nics):
        assert nic.near.value[7 - number] is Nearness.PIX
        assert list(nic.near.value).count(Nearness.PHB) == 3
        assert list(nic.near.value).count(Nearness.SYS) == 4
    # 0xd4f6e30003e1a258 and 0x4f8e30003e1a258 in the file: 58a2e1 is the maker's prefix.
    assert host.nics[0].guid == "58a2e10300e3f6d4"
    assert host.nics[6].guid == "58a2e10300e3f804"
    assert {nic.rail for nic in host.nics} == {None}


def test_a_file_of_pci_functions_says_which_are_gpus_and_nics_and_what_it_does_not_say():
    imported = read(sample(AZURE))
    [host] = imported.cluster.hosts
    buses = ["0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c"]
    assert [gpu.bus for gpu in host.gpus] == [f"{bus}:00:00.0" for bus in buses]
    assert [nic.name for nic in host.nics] == [f"010{n}:00:00.0" for n in range(1, 9)]
    assert {(gpu.model, gpu.nvlinks, gpu.island) for gpu in host.gpus} == {(None, None, None)}
    assert {nic.port.bytes_per_s for nic in host.nics} == {None}
    assert [nic.near.value.index(Nearness.PIX) for nic in host.nics] == list(range(8))
    assert [nic.numa.value for nic in host.nics] == [0] * 4 + [1] * 4
    assert len(imported.findings) == 2
    assert "8 GPUs are PCI functions only" in str(imported.findings[0])
    assert "8 NICs are PCI functions only" in str(imported.findings[1])


def test_functions_without_a_class_are_not_taken_for_anything():
    imported = read(sample(AWS))
    [host] = imported.cluster.hosts
    assert (host.gpus, host.nics) == ((), ())
    assert any(" and 29 more: without a class" in text for text in findings(imported))


def test_a_graph_file_is_refused_with_what_it_holds():
    assert nccl_xml.recognises(sample(GRAPH))
    with pytest.raises(TopologyError, match=r"rings and trees .* expected what NCCL_TOPO_DUMP_FILE names"):
        read(sample(GRAPH))


def test_only_files_of_nccl_are_recognised():
    names = {path.name for path in SAMPLES.iterdir() if nccl_xml.recognises(path.read_text())}
    assert names == {IBM, AZURE, AWS, GRAPH}


# Single features, each in the smallest machine that has it.


def machine(*functions, version=1, numa=0):
    return f'<system version="{version}"><cpu numaid="{numa}">{"".join(functions)}</cpu></system>'


def gpu(dev, links=""):
    function = f'<pci busid="0000:0{dev}:00.0" class="0x030200">'
    return f'{function}<gpu dev="{dev}" sm="90" rank="{dev}">{links}</gpu></pci>'


def link(target, count=1, tclass="0x030200"):
    target = target if isinstance(target, str) else f"0000:0{target}:00.0"
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def net(number, **attributes):
    given = {
        "name": f"m{number}",
        "dev": number,
        "speed": 400000,
        "port": 1,
        "guid": "0x0",
        "gdr": 1,
    } | attributes
    return "<net " + " ".join(f'{key}="{value}"' for key, value in given.items()) + "/>"


def nic(number, device="0x1021", **attributes):
    function = f'<pci busid="0000:1{number}:00.0" class="0x020700" vendor="0x15b3" device="{device}">'
    return f"{function}<nic>{net(number, **attributes)}</nic></pci>"


def islands(imported):
    return [gpu.island.value for gpu in imported.cluster.hosts[0].gpus]


def test_a_target_of_all_f_is_a_switch_that_the_guest_does_not_see():
    four = "".join(link(f"0000:f{n}:00.0", 4, "0x068000") for n in range(4))
    for unseen in ("fffffff:ffff:ff", "fffffff:ff:ff.0", "FFFFFFFF:FF:FF.0"):
        imported = read(
            machine(gpu(0, link(unseen, 18, "0x068000")), gpu(1, four), gpu(2, link(unseen, 18, "")))
        )
        assert islands(imported) == [0, 0, 0]
        assert [gpu.nvlinks.value for gpu in imported.cluster.hosts[0].gpus] == [18, 16, 18]


def degraded(imported):
    """What checks say is less than its like."""
    return [str(finding) for finding in check(imported.cluster) if finding.kind is FindingKind.DEGRADED]


def test_a_gpu_without_links_among_others_is_alone_and_checks_name_it():
    imported = read(
        machine(*(gpu(n, link("0000:f0:00.0", 18, "0x068000") if n != 2 else "") for n in range(4)))
    )
    assert islands(imported) == [0, 0, 1, 0]
    assert findings(imported, FindingKind.DEGRADED) == []
    [text] = degraded(imported)
    assert "host a, GPU2: it has no NVLink, its peers 18" in text


def test_a_gpu_with_fewer_links_than_its_like_is_left_to_checks():
    imported = read(machine(*(gpu(n, link("0000:f0:00.0", 18 - (n == 1), "0x068000")) for n in range(3))))
    assert findings(imported, FindingKind.DEGRADED) == []
    [text] = degraded(imported)
    assert "GPU1: it has 17 NVLinks, its peers 18" in text


def test_links_to_cpus_are_none_between_gpus():
    cpu = link("0004:00:00.0", 3, "0x068001") + '<c2c bw="44712" count="5"/>'
    imported = read(machine(gpu(0, cpu), gpu(1, cpu)))
    assert islands(imported) == [0, 1]
    assert [gpu.nvlinks.value for gpu in imported.cluster.hosts[0].gpus] == [0, 0]
    assert "no GPU has an nvlink element" in findings(imported)[-1]


def test_direct_links_make_islands_and_pairs_without_one_are_told():
    chain = read(
        machine(gpu(0, link(1)), gpu(1, link(0) + link(2)), gpu(2, link(1)), gpu(3, link(4)), gpu(4, link(3)))
    )
    assert islands(chain) == [0, 0, 0, 1, 1]
    assert any(
        "GPU0 and GPU2 have no link of their own" in text for text in findings(chain, FindingKind.DEGRADED)
    )
    one_way = read(machine(gpu(0, link(1)), gpu(1)))
    assert islands(one_way) == [0, 0]
    assert any("GPU0 lists links to GPU1, which lists none back" in text for text in findings(one_way))
    elsewhere = read(machine(gpu(0, link(7)), gpu(1, link(7))))
    assert islands(elsewhere) == [0, 1]
    assert any("0000:07:00.0" in text and "not counted" in text for text in findings(elsewhere))


def test_a_number_of_links_that_is_none_is_unknown_and_the_island_is_not():
    known, broken = (link("0000:f0:00.0", count, "0x068000") for count in (18, "many"))
    imported = read(machine(gpu(0, known), gpu(1, broken)))
    assert islands(imported) == [0, 0]
    assert [gpu.nvlinks for gpu in imported.cluster.hosts[0].gpus] == [fact(18), None]


@pytest.mark.parametrize(
    ("numas", "expected"), [((0, 1), Nearness.SYS), ((1, 1), Nearness.NODE), ((-1, -1), Nearness.SYS)]
)
def test_what_lies_between_cpus_is_near_only_in_one_numa_node(numas, expected):
    one, other = numas
    text = f'<cpu numaid="{one}">{gpu(0)}</cpu><cpu numaid="{other}">{gpu(1)}{nic(0)}</cpu>'
    imported = read(f'<system version="1">{text}</system>')
    assert imported.cluster.hosts[0].nics[0].near.value == (expected, Nearness.PHB)


def test_hosts_of_a_dump_are_told_apart_and_share_one_fabric():
    def tray(host, first, broken=None):
        functions = "".join(
            f'<pci busid="000{n}:01:00.0" class="0x030200"><gpu dev="{n}" sm="100" rank="{first + n}">'
            + (link("fffffff:ff:ff.0", 18, "0x068000") if n != broken else "")
            + "</gpu></pci>"
            for n in range(4)
        )
        return f'<cpu host_hash="{host}" numaid="0">{functions}</cpu>'

    imported = read(f'<system version="1">{tray("0xBB", 4, broken=1)}{tray("0x0a", 0)}</system>')
    assert [host.name for host in imported.cluster.hosts] == ["host-0a", "host-bb"]
    fabrics = [[gpu.fabric.value for gpu in host.gpus] for host in imported.cluster.hosts]
    assert fabrics == [["nvlink-0a"] * 4, ["nvlink-0a", "", "nvlink-0a", "nvlink-0a"]]
    assert [text for text in degraded(imported) if "host host-bb, GPU1: it has no NVLink" in text]
    with pytest.raises(TopologyError, match="some have none"):
        read(f'<system version="1">{tray("0xbb", 4)}<cpu numaid="0"/></system>')
    with pytest.raises(TopologyError, match="host_hash of a cpu is 'x'"):
        read(f'<system version="1">{tray("x", 4)}</system>')


def test_amd_gpus_have_islands_of_xgmi_and_the_file_says_that_links_are_of_pairs():
    def amd(dev):
        links = "".join(
            f'<xgmi target="0000:0{n}:00.0" count="1" tclass="0x120000"/>' for n in range(3) if n != dev
        )
        function = f'<pci busid="0000:0{dev}:00.0" class="0x120000">'
        name = "gfx942:sramecc+" if dev else "942"
        return f'{function}<gpu dev="{dev}" sm="94" gcn="{name}">{links}</gpu></pci>'

    imported = read(machine(*map(amd, range(3)), version=2))
    assert islands(imported) == [0, 0, 0]
    assert {gpu.model.value for gpu in imported.cluster.hosts[0].gpus} == {"gfx942"}
    assert any("xGMI" in text for text in findings(imported, FindingKind.UNKNOWN))


def test_parts_of_a_gpu_share_its_links_and_ranks_on_one_gpu_are_one():
    links = link("fffffff:ff:ff.0", 36, "0x068000")
    one, other = (f'<gpu dev="0" sm="107" mlopart="{n}" rank="{n}">{links}</gpu>' for n in range(2))
    parts = read(machine(f'<pci busid="0002:81:00.0" class="0x030200">{one}{other}</pci>'))
    assert [(gpu.name, gpu.nvlinks.value) for gpu in parts.cluster.hosts[0].gpus] == [
        ("GPU0.0", 18),
        ("GPU0.1", 18),
    ]
    assert islands(parts) == [0, 0]
    whole = one.replace('mlopart="0" ', "")
    shared = read(machine(f'<pci busid="0002:81:00.0" class="0x030200">{whole}{whole}</pci>'))
    assert len(shared.cluster.hosts[0].gpus) == 1
    assert any("several ranks on one GPU" in text for text in findings(shared, FindingKind.ASSUMED))


@pytest.mark.parametrize("speed", ["0", "-1", "", "fast", "200000000", "9" * 40, "1e5"])
def test_a_speed_that_is_none_is_unknown_and_said(speed):
    imported = read(machine(gpu(0), nic(0, speed=speed)))
    assert imported.cluster.hosts[0].nics[0].port.bytes_per_s is None
    [text] = [text for text in findings(imported) if "its speed is" in text]
    assert ("NCCL takes 10 Gb/s" in text) == (speed != "200000000")


def test_a_nic_slower_than_others_is_left_to_checks():
    imported = read(machine(gpu(0), nic(0), nic(1, speed=200000), nic(2)))
    assert findings(imported, FindingKind.DEGRADED) == []
    [text] = degraded(imported)
    assert "host a, m1: it runs at 25 GB/s, most at 50" in text


def test_guids_that_name_no_single_port_are_left_out():
    same = "0x5e7ca70003e1a258"
    imported = read(
        machine(gpu(0), nic(0, guid=same), nic(1, guid=same), nic(2, guid="0x1"), nic(3, guid="zz"))
    )
    assert [nic.guid for nic in imported.cluster.hosts[0].nics] == [None] * 4
    assert any("m0, m1 have one GUID, 58a2e10300a77c5e" in text for text in findings(imported))


def test_a_device_below_every_cpu_is_one_nic_of_unknown_nearness():
    eth = f"<nic>{net(0, name='eth0', speed=10000, gdr=0)}</nic>"
    imported = read(
        f'<system version="1"><cpu numaid="0">{gpu(0)}{eth}</cpu><cpu numaid="1">{eth}</cpu></system>'
    )
    [port] = imported.cluster.hosts[0].nics
    assert (port.name, port.near, port.port.bytes_per_s.value) == ("eth0", None, 1_250_000_000)
    assert any("how near it is to GPUs is unknown" in text for text in findings(imported))
    assert any("GPUDirect" in text for text in findings(imported, FindingKind.DEGRADED))


def test_ports_of_one_function_keep_apart_and_merged_ports_are_not_counted_again():
    both = f"{net(0, name='m')}{net(1, name='m', port=2)}"
    two = read(machine(gpu(0), f'<pci busid="0000:10:00.0" class="0x020700"><nic>{both}</nic></pci>'))
    assert [nic.name for nic in two.cluster.hosts[0].nics] == ["m", "m:2"]
    merged = read(machine(gpu(0), nic(0), nic(1), nic(2, name="m0+m1")))
    assert [nic.name for nic in merged.cluster.hosts[0].nics] == ["m0", "m1"]
    assert any("made of NICs that are listed too" in text for text in findings(merged))
    alone = read(machine(gpu(0), nic(0, name="m0+m1", speed=800000)))
    assert [nic.name for nic in alone.cluster.hosts[0].nics] == ["m0+m1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (machine(gpu(0), gpu(0)), "is listed in two places"),
        (machine(gpu(0), gpu(2)), "number 1 is missing"),
        (machine(gpu(0), gpu(1).replace('dev="1"', 'dev="0"')), "have no dev number, or share one"),
        (machine(gpu(0).replace('sm="90"', "")), "its sm is missing"),
        (machine(gpu(0).replace("busid", "bus")), "its busid is missing"),
        (machine(gpu(0, link("0000:f0:00.0", "many", "0x068000"))), "is no number from 1 to 255"),
        (machine(gpu(0), nic(0), nic(0)), "NIC 'm0' is listed twice"),
        (machine(gpu(0), nic(0), nic(3)), "2 numbers are missing, the first 1"),
        (machine(gpu(0), nic(0, name="")), "a NIC has the name ''"),
        (machine(gpu(0), nic(0, plane=0), nic(1, plane=1)), "several planes"),
        (machine(gpu(0), numa=-1), "has no NUMA node"),
        (machine(gpu(0), "<gqu/>"), "1 elements are unknown"),
        (machine(gpu(0), "pci busid= />"), "text stands between elements"),
        (
            machine(gpu(0), '<pci busid="0000:55:00.0" class="0x030200"/>'),
            "PCI 0000:55:00.0: with the class of a GPU",
        ),
        (machine('<pci busid="0000:55:00.0" class="0x010802"/>'), "neither GPU nor NIC"),
        (machine('<pci busid="0000:55:00.0" class="0x030000"/>'), "neither GPU nor NIC"),
        (machine(gpu(0, link(0))), "no other GPU of the host and no switch, are not counted"),
        (machine(gpu(1).replace('rank="1"', 'rank="9"')), "ranks, from 9 to 9, are not those of a whole job"),
        (machine(), "no GPU is in the file"),
    ],
)
def test_what_is_odd_is_found(text, expected):
    imported = read(text)
    assert any(expected in finding for finding in findings(imported)), findings(imported)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f is empty"),
        (" \n", "f is empty"),
        ("GPU0 GPU1", "f is cut off or damaged"),
        (sample(IBM)[:5000], "f is cut off or damaged: .* in line"),
        (sample(IBM) + sample(IBM), "junk after document element in line"),
        ("<topology/>", "begins with element 'topology'; expected system"),
        ("<system/>", "version of system in f is none; expected 1"),
        ('<system version="3"/>', "version of system in f is '3'; expected 1"),
        ('<system version="1"/>', "no cpu element"),
        (machine(*(gpu(0).replace("0000:00", f"0000:{n:02x}") for n in range(65))), "host a has 65 GPUs"),
        (
            machine(
                gpu(0),
                *(nic(0).replace("0000:10", f"0{n:03x}:10").replace("m0", f"m{n}") for n in range(257)),
            ),
            "257",
        ),
        (machine("<pci>" * 40 + "</pci>" * 40), "nested 33 deep; expected at most 32"),
        (machine(gpu(0)).replace("dev", "de\ud800v"), "line 1 has a character that is none"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(text, expected):
    with pytest.raises(TopologyError, match=expected) as caught:
        read(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("different", [199, 200, 201, 250])
def test_of_findings_that_say_different_things_the_first_are_kept_and_the_rest_counted(different):
    """Those that say the same elsewhere do not count: of each of 8 GPUs the model is unknown."""
    count = different - 2  # beside those that all GPUs and all NICs have in common
    text = machine(
        *(gpu(n).replace('sm="90"', "") for n in range(8)),
        *(nic(0, name=f"m{n}", dev=n, speed=f"x{n}").replace("0000:", f"{n:04x}:") for n in range(count)),
    )
    raw, kept = read(text).findings, import_text(text, host="a", source="f").findings
    assert len({finding.text for finding in raw}) == different
    assert sum("its sm is missing" in finding.text for finding in kept) == 8
    if different <= MAX_FINDINGS:
        assert kept == raw
    else:
        assert len({finding.text for finding in kept[:-1]}) == MAX_FINDINGS
        assert kept[:-1] == raw[: len(kept) - 1]
        assert kept[-1].place == "f"
        assert kept[-1].text.startswith(f"{different - MAX_FINDINGS} more findings are not shown")


# Damage and malice.


def counts(imported):
    return [(len(host.gpus), len(host.nics)) for host in imported.cluster.hosts]


def records(text):
    return len(re.findall(r"<(?:net|gpu) |<pci [^>]*class=\"0x(?:0302|0207)", text))


@pytest.mark.parametrize("name", [IBM, AZURE, AWS])
def test_damage_is_refused_found_or_takes_a_whole_record_away(name):
    whole = read(sample(name))
    refused = 0
    for damage in damages(sample(name), 1500, seed=7):
        imported = in_time(read, damage.text)
        if imported is None:
            refused += 1
            continue
        if counts(imported) != counts(whole):
            fewer = records(damage.text) < records(sample(name))
            assert fewer or len(imported.findings) > len(whole.findings), damage.kind
            assert damage.kind != "truncate"
    assert refused > 500


def test_a_file_that_ends_early_is_never_read():
    text = sample(IBM).rstrip()
    for end in range(0, len(text), 41):
        with pytest.raises(TopologyError):
            read(text[:end])


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f'<!DOCTYPE system [<!ENTITY l0 "ha">{LAUGHS}]><system version="1">&l11;</system>',
            "declares entities",
        ),
        ('<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]><system v="&x;"/>', "declares entities"),
        ('<!DOCTYPE system [<!ATTLIST system version CDATA "1">]><system/>', "declares entities"),
        ('<!DOCTYPE system SYSTEM "x.dtd"><system version="1&x;"/>', "refers to an entity in line 1"),
        ('<system version="1">&x;</system>', "undefined entity in line 1"),
        ("<a/>" * (MAX_CHARS // 4), "elements; expected at most"),
        ("x" * (MAX_CHARS + 1), "characters; expected at most"),
    ],
    ids=["laughs", "file", "default", "undeclared", "undefined", "elements", "characters"],
)
def test_what_xml_must_not_have_is_named(text, expected):
    with soon(2), pytest.raises(TopologyError, match=expected):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "<a>" * 400_000,
        machine("<pci>" * 100_000 + "</pci>" * 100_000),
        f'<system version="{"1" * 10_000_000}"/>',
        "<!DOCTYPE" * 1_000_000,
        "<!--" * 2_000_000,
    ],
    ids=lambda text: text[:24],
)
def test_hostile_text_is_refused_soon(text):
    with soon(2):
        nccl_xml.recognises(text)
        with pytest.raises(TopologyError):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        machine(gpu(0, link("0000:f0:00.0", 1, "0x068000") * 40_000)),
        machine(gpu(0), nic(0) * 15_000),
        machine('<pci busid="0000:10:00.0"/>' * 40_000),
        machine(gpu(0), "<odd/>text" * 40_000),
        machine(f'<pci busid="0000:00:00.0" class="0x0302">{"<gpu/>" * 40_000}</pci>'),
    ],
    ids=["links", "nics", "functions", "odd", "gpus"],
)
def test_files_of_one_thing_again_and_again_take_linear_time(text):
    with soon(2), contextlib.suppress(TopologyError):
        assert len(import_text(text, host="a", source="f").findings) < 250


def test_names_of_roots_and_addresses_are_read_as_they_are_written():
    assert (
        root_name("\ufeff<?xml version='1.0'?>\n<!-- <a/> --><!DOCTYPE b SYSTEM 'c'>\n<b.c-d x='1'>")
        == "b.c-d"
    )
    assert root_name("b <a>") is None
    assert root_name("") is None
    assert parse_xml("\ufeff<a/>", "f").tag == "a"
    assert pci_address("00000000:A4:00.0") == "0000:a4:00.0"
    assert pci_address("00010000:A4:00.1") == "10000:a4:00.1"
    assert pci_address("a4:00.0") is None
