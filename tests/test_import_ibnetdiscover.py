"""Importer of `ibnetdiscover`: a real fabric, random ones, what is wrong with fabrics, and damaged texts."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_facts import assert_refused_or_found, in_time
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import FindingKind, Origin
from reshard_planner.topology.cluster.model import Gpu
from reshard_planner.topology.importers import ibnetdiscover
from reshard_planner.topology.importers.ibnet_text import bytes_per_s
from reshard_planner.topology.importers.reading import Reading

SAMPLE = (SAMPLES / "ibnetdiscover_dgx_h100_ndr.out").read_text()
GB = 1_000_000_000


def read(text):
    return ibnetdiscover.read(text, Reading("", "file"))


def switches_of(imported):
    return {switch.name: switch for switch in imported.cluster.switches}


def hosts_of(imported):
    return {host.name: host for host in imported.cluster.hosts}


def texts(imported, kind):
    return [f"{finding.place}: {finding.text}" for finding in imported.findings if finding.kind == kind]


# -- the sample: counted with grep and awk, not with the importer

LEAVES = (
    ("A09-01-01", 17, 18),
    ("A09-01-02", 14, 16),
    ("A09-01-03", 16, 18),
    ("A09-01-04", 18, 17),
    ("A09-02-01", 18, 18),
    ("A09-02-02", 18, 16),
    ("A09-02-03", 15, 18),
    ("A09-02-04", 16, 17),
    ("A09-03-02", 18, 16),
    ("A09-03-03", 18, 18),
    ("A09-03-04", 18, 17),
    ("A09-04-01", 18, 18),
    ("A09-04-02", 16, 16),
    ("A09-04-03", 18, 18),
    ("A09-04-04", 16, 17),
    ("B09-01-05", 16, 18),
    ("B09-01-06", 18, 18),
    ("B09-01-07", 16, 17),
    ("B09-01-08", 17, 17),
    ("B09-02-05", 18, 18),
    ("B09-02-06", 16, 18),
    ("B09-02-07", 18, 17),
    ("B09-02-08", 18, 17),
    ("B09-03-05", 18, 18),
    ("B09-03-06", 18, 18),
    ("B09-03-07", 15, 17),
    ("B09-03-08", 18, 19),
    ("B09-04-05", 18, 18),
    ("B09-04-06", 18, 18),
    ("B09-04-07", 18, 17),
    ("B09-04-08", 18, 19),
)
"""Row of racks, rail and group of hosts in the name of a leaf; links to spines and to hosts, of 50 GB/s."""

SPINES = {
    "A10-01": 55,
    "A10-02": 62,
    "A10-03": 62,
    "A10-04": 52,
    "B10-05": 60,
    "B10-06": 58,
    "B10-07": 60,
    "B10-08": 61,
    "B10-09": 62,
}


def test_the_switches_of_the_sample():
    imported = read(SAMPLE)
    found = switches_of(imported)
    assert len(found) == 31 + 9
    for name, up, down in LEAVES:
        row, _, place = name.partition("-")
        leaf = found.pop(f"{row}-P1-IBLEAF-{place}")
        assert leaf.uplink.bytes_per_s.value == up * 50 * GB
        assert leaf.downlink.bytes_per_s.value == down * 50 * GB
        assert leaf.uplink.bytes_per_s.origin == Origin.FILE
        assert 7 <= len(leaf.parents) <= 9
    for name, down in SPINES.items():
        row, _, place = name.partition("-")
        spine = found.pop(f"{row}-P1-IBSPINE-{place}")
        assert spine.parents == ()
        assert spine.uplink.bytes_per_s is None
        assert spine.downlink.bytes_per_s.value == down * 50 * GB
    assert not found


def test_the_hosts_of_the_sample():
    imported = read(SAMPLE)
    hosts = hosts_of(imported)
    assert ibnetdiscover.recognises(SAMPLE)
    assert len(hosts) == 122
    assert Counter(len(host.nics) for host in hosts.values()) == {4: 109, 3: 11, 2: 2}
    nics = [nic for host in hosts.values() for nic in host.nics]
    names = Counter(nic.name for nic in nics)
    assert names == {
        "HCA-1": 103,
        "HCA-2": 103,
        "HCA-5": 92,
        "HCA-6": 103,
        "mlx5_0": 19,
        "mlx5_1": 19,
        "mlx5_4": 17,
        "mlx5_5": 17,
    }
    assert {nic.port.bytes_per_s.value for nic in nics} == {50 * GB}
    assert all(host.gpus == () for host in hosts.values())
    # line 11 of the file
    (nic,) = [nic for nic in hosts["a08-p1-dgx-04-c01"].nics if nic.name == "mlx5_5"]
    assert (nic.guid, nic.leaf.value, nic.rail.value) == ("e09d7303007a4bd8", "A09-P1-IBLEAF-04-04", 3)


def test_the_rails_of_the_sample_are_those_in_the_names_of_its_leaves():
    odd = {"b08-p1-dgx-08-c01", "ubuntu", "B11-P1-CUFM-02"}
    for host in read(SAMPLE).cluster.hosts:
        for nic in host.nics:
            assert nic.rail.value == int(nic.leaf.value.split("-")[3]) - 1
            assumed = host.name in odd and nic.name not in {"HCA-1", "HCA-2"}
            assert nic.rail.origin == (Origin.ASSUMED if assumed else Origin.FILE)


def test_what_is_wrong_with_the_sample_is_found():
    imported = read(SAMPLE)
    degraded = "\n".join(texts(imported, FindingKind.DEGRADED))
    conflicts = "\n".join(texts(imported, FindingKind.CONFLICT))
    (unknown,) = texts(imported, FindingKind.UNKNOWN)
    assert "69 ports of 69 adapters name no host, such as 'MT4129 ConnectX7" in unknown
    low = [name for name, up, _ in LEAVES if up < 18]
    assert degraded.count("links up where most of its level have 18") == len(low) == 12
    assert (
        "IBLEAF-04-04: 16 links up where most of its level have 18: 0 of 2 to A10-P1-IBSPINE-01" in degraded
    )
    assert "hosts a05-p1-dgx-01-c[01,03-04,09,12-15,17-18],localhost: no HCA-5" in degraded
    assert "hosts localhost,ubuntu: a name that systems have" in conflicts
    assert "b08-p1-dgx-08-c01: HCA-5 on rail 3 instead of 2, HCA-6 on rail 2 instead of 3" in conflicts


# -- fabrics, written as ibnetdiscover does


@dataclass
class Fabric:
    """Nodes and links; ports are numbered as links come."""

    nodes: dict = field(default_factory=dict)  # node -> description
    lines: dict = field(default_factory=dict)  # node -> [(port, peer, peer port, rate)]

    def add(self, kind, description):
        node = f"{kind}-{0x1000 + 16 * len(self.nodes):016x}"
        self.nodes[node] = description
        self.lines[node] = []
        return node

    def join(self, a, b, rate="4xNDR"):
        ports = len(self.lines[a]) + 1, len(self.lines[b]) + 1
        self.lines[a].append((ports[0], b, ports[1], rate))
        self.lines[b].append((ports[1], a, ports[0], rate))

    def text(self):
        out = [
            "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n# Initiated from node 10 port 10\n"
        ]
        for node in sorted(self.nodes, reverse=True):  # switches, then adapters
            guid, switch = node[2:], node[0] == "S"
            own = "switch" if switch else "ca"
            out.append(f"\nvendid=0x2c9\ndevid=0x1021\nsysimgguid=0x{guid}\n{own}guid=0x{guid}")
            out.append(f"({guid})\n" if switch else "\n")
            tail = " enhanced port 0 lid 7 lmc 0" if switch else ""
            kind = "Switch" if switch else "Ca"
            count = 65 if switch else len(self.lines[node])
            out.append(f'{kind}\t{count} "{node}"\t\t# "{self.nodes[node]}"{tail}\n')
            for port, peer, peer_port, rate in self.lines[node]:
                there = f'"{peer}"[{peer_port}]' + ("" if peer[0] == "S" else f"({peer[2:]}) ")
                if switch:
                    out.append(f'[{port}]\t{there}\t\t# "{self.nodes[peer]}" lid 5 {rate}\n')
                else:
                    out.append(
                        f'[{port}]({guid}) \t{there}\t\t# lid 5 lmc 0 "{self.nodes[peer]}" lid 7 {rate}\n'
                    )
        return "".join(out)


def rail_fabric(
    groups=2, rails=2, hosts=3, spines=2, width=1, rate="4xNDR", nic="mlx5_{}", *, aggregation=False
):
    """Groups of hosts, each with a leaf for each of its rails, all joined to all spines."""
    fabric = Fabric()
    tops = [fabric.add("S", f"MF0;spine-{s}:MQM9700/U1") for s in range(spines)]
    for group in range(groups):
        leaves = [fabric.add("S", f"MF0;leaf-{group}-{rail}:MQM9700/U1") for rail in range(rails)]
        for leaf in leaves:
            if aggregation:
                fabric.join(leaf, fabric.add("H", "Mellanox Technologies Aggregation Node"), rate)
            for top in tops:
                for _ in range(width):
                    fabric.join(leaf, top, rate)
        for host in range(hosts):
            for rail, leaf in enumerate(leaves):
                fabric.join(leaf, fabric.add("H", f"n{group}-{host} {nic.format(rail)}"), rate)
    return fabric


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 3),
    rails=st.integers(1, 5),
    hosts=st.integers(1, 5),
    spines=st.integers(0, 3),
    width=st.integers(1, 4),
    rate=st.sampled_from(
        [("4xNDR", 50 * GB), ("4xHDR", 25 * GB), ("2xHDR", 12_500_000_000), ("4xXDR", 100 * GB)]
    ),
    nic=st.sampled_from(["mlx5_{}", "HCA-{}", "ibp{}s0"]),
    aggregation=st.booleans(),
    data=st.data(),
)
def test_what_a_fabric_is_is_read_back(groups, rails, hosts, spines, width, rate, nic, aggregation, data):
    fabric = rail_fabric(groups, rails, hosts, spines, width, rate[0], nic, aggregation=aggregation)
    ports = [node for node in fabric.nodes if node[0] == "H" and "Aggregation" not in fabric.nodes[node]]
    nameless = data.draw(st.sets(st.sampled_from(ports), max_size=2))
    expected = {}
    for node in ports:
        host, name = fabric.nodes[node].split()
        if node not in nameless:
            expected.setdefault(host, {})[name] = (
                node[2:],
                fabric.nodes[fabric.lines[node][0][1]].split(";")[1].split(":")[0],
            )
    for node in nameless:
        fabric.nodes[node] = "MT4129 ConnectX7   Mellanox Technologies"
    imported = read(fabric.text())
    found = {h.name: {n.name: (n.guid, n.leaf.value) for n in h.nics} for h in imported.cluster.hosts}
    assert found == expected
    assert {n.port.bytes_per_s.value for h in imported.cluster.hosts for n in h.nics} <= {rate[1]}
    used = sorted({leaf.rsplit("-", 1)[1] for nics in expected.values() for _, leaf in nics.values()})
    for host in imported.cluster.hosts:
        for one in host.nics:
            rail = used.index(one.leaf.value.rsplit("-", 1)[1])
            assert (
                (one.rail is None)
                if len(used) < 2
                else (one.rail.value, one.rail.origin) == (rail, Origin.FILE)
            )
    switches = switches_of(imported)
    assert len(switches) == spines + groups * rails
    for name, switch in switches.items():
        top = name.startswith("spine")
        assert switch.parents == (() if top else tuple(f"spine-{s}" for s in range(spines)))
        up = 0 if top else spines * width
        assert (switch.uplink.bytes_per_s.value if up else switch.uplink.bytes_per_s or 0) == up * rate[1]
        assert switch.downlink.bytes_per_s.value == (groups * rails * width if top else hosts) * rate[1]
    assert not texts(imported, FindingKind.CONFLICT)
    assert len(texts(imported, FindingKind.UNKNOWN)) == bool(nameless)


SMALL = rail_fabric(groups=2, rails=2, hosts=2, spines=2, aggregation=True).text()


def test_a_third_level_of_switches_is_above_the_second():
    fabric = rail_fabric(groups=2, rails=1, hosts=4, spines=2)
    core = fabric.add("S", "core")
    for node in [node for node, name in fabric.nodes.items() if "spine" in name]:
        fabric.join(node, core)
    switches = switches_of(read(fabric.text()))
    assert switches["spine-0"].parents == ("core",)
    assert switches["spine-0"].uplink.bytes_per_s.value == 50 * GB
    assert switches["core"].downlink.bytes_per_s.value == 100 * GB
    assert switches["leaf-0-0"].parents == ("spine-0", "spine-1")


def test_a_management_port_does_not_make_a_spine_a_leaf():
    fabric = rail_fabric(hosts=5)
    spine = next(node for node, name in fabric.nodes.items() if "spine-0" in name)
    fabric.join(spine, fabric.add("H", "ufm mlx5_0"))
    imported = read(fabric.text())
    assert switches_of(imported)["leaf-0-0"].parents == ("spine-0", "spine-1")
    assert [f.place for f in imported.findings if f.kind == FindingKind.ASSUMED] == ["switch spine-0"]


def test_switches_of_one_level_that_are_joined_are_said_to_be_no_tree():
    fabric = rail_fabric(groups=1, rails=2, spines=0)
    leaves = [node for node in fabric.nodes if node[0] == "S"]
    fabric.join(*leaves)
    imported = read(fabric.text())
    assert switches_of(imported)["leaf-0-0"].parents == ()
    assert "no tree" in "".join(texts(imported, FindingKind.UNKNOWN))


def test_hosts_with_all_nics_at_one_leaf_have_no_rails():
    fabric = Fabric()
    leaf, other = (fabric.add("S", f"MF0;tor-{i}:MQM9700/U1") for i in range(2))
    for at, switch in enumerate((leaf, other)):
        for host in range(3):
            for nic in range(4):
                fabric.join(switch, fabric.add("H", f"n{at}{host} mlx5_{nic}"))
    imported = read(fabric.text())
    assert {nic.rail for host in imported.cluster.hosts for nic in host.nics} == {None}
    assert imported.findings == ()


def test_two_nics_of_a_host_may_share_a_rail():
    fabric = Fabric()
    leaves = [fabric.add("S", f"leaf{i}") for i in range(2)]
    for host in range(3):
        for nic in range(4):
            fabric.join(leaves[nic % 2], fabric.add("H", f"n{host} mlx5_{nic}"))
    for host in read(fabric.text()).cluster.hosts:
        assert [nic.rail.value for nic in host.nics] == [0, 1, 0, 1]


def test_one_leaf_that_is_wired_otherwise_leaves_the_rails_of_others():
    fabric = rail_fabric(groups=2, rails=2, hosts=4)
    lone = fabric.add("S", "MF0;odd:MQM9700/U1")
    for nic in range(2):
        fabric.join(lone, fabric.add("H", f"n9 mlx5_{nic}"))
    imported = read(fabric.text())
    for host in imported.cluster.hosts:
        assert [nic.rail and nic.rail.value for nic in host.nics] == (
            [None, None] if host.name == "n9" else [0, 1]
        )
    assert [f.place for f in imported.findings if "rail is left open" in f.text] == ["switches odd"]


def test_hosts_of_one_nic_each_are_on_the_rails_of_their_names():
    fabric = Fabric()
    for rail in range(2):
        leaf = fabric.add("S", f"leaf{rail}")
        for host in range(2):
            fabric.join(leaf, fabric.add("H", f"n{rail}{host} mlx5_{rail}"))
    rails = {host.name: host.nics[0].rail.value for host in read(fabric.text()).cluster.hosts}
    assert rails == {"n00": 0, "n01": 0, "n10": 1, "n11": 1}


def test_guids_are_those_of_ports():
    fabric = rail_fabric(groups=1, rails=1, hosts=1, spines=0)
    node = next(node for node in fabric.nodes if node[0] == "H")
    text = fabric.text().replace(f"({node[2:]})", "(5c25730300d765c9)")
    assert text.count("5c25730300d765c9") == 2
    (host,) = read(text).cluster.hosts
    assert host.nics[0].guid == "5c25730300d765c9"


def test_a_cable_that_one_end_alone_states_is_taken_and_said():
    lines = SMALL.split("\n")
    at = next(i for i, line in enumerate(lines) if "n0-1 mlx5_1" in line and line.startswith("["))
    imported = read("\n".join(lines[:at] + lines[at + 1 :]))
    assert imported.cluster == read(SMALL).cluster
    (conflict,) = imported.findings
    assert (conflict.kind, conflict.place) == (FindingKind.CONFLICT, "file")
    assert conflict.text.startswith("the block at one end of a cable does not state it")


def two_ports():
    """A switch with two hosts, and what they are called."""
    fabric = Fabric()
    leaf, first, second = fabric.add("S", "leaf"), fabric.add("H", "n1 mlx5_0"), fabric.add("H", "n2 mlx5_0")
    fabric.join(leaf, first)
    fabric.join(leaf, second)
    return fabric.text(), leaf, first, second


def test_ends_that_name_different_ports_are_no_cable():
    text, leaf, _, _ = two_ports()
    imported = read(text.replace(f'"{leaf}"[1]', f'"{leaf}"[2]'))
    hosts = hosts_of(imported)
    assert hosts["n1"].nics[0].leaf is None
    assert hosts["n2"].nics[0].leaf.value == "leaf"
    assert "the two ends of a cable name other ports" in "".join(texts(imported, FindingKind.CONFLICT))


def test_a_port_has_one_cable_though_two_claim_it():
    text, _, first, second = two_ports()
    lines = [line for line in text.split("\n") if not line.startswith(f"[1]({first[2:]})")]
    claimed = "\n".join(lines).replace(f'[2]\t"{second}"[1]({second[2:]})', f'[2]\t"{first}"[1]({first[2:]})')
    imported = read(claimed.replace('# "n2 mlx5_0" lid', '# "n1 mlx5_0" lid'))
    assert [nic.name for nic in hosts_of(imported)["n1"].nics] == ["mlx5_0"]
    assert "the two ends of a cable name other ports" in "".join(texts(imported, FindingKind.CONFLICT))


def test_lines_that_are_not_understood_are_counted():
    lines = SMALL.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("[1]"))
    imported = read("\n".join([*lines[:at], "[x] who knows", *lines[at:]]))
    assert imported.cluster == read(SMALL).cluster
    (unknown,) = imported.findings
    assert unknown.place == f"file, line {at + 1}"
    assert "lines that were not understood: 1, the first '[x] who knows'" in unknown.text


def checked(imported):
    """What checks say is degraded once the hosts have GPUs, one for each NIC."""
    hosts = [
        replace(host, gpus=tuple(Gpu(f"GPU{number}") for number in range(len(host.nics))))
        for host in imported.cluster.hosts
    ]
    found = check(replace(imported.cluster, hosts=tuple(hosts)))
    return [finding for finding in found if finding.kind is FindingKind.DEGRADED]


def test_slow_nics_of_a_host_are_left_to_checks_which_say_them_once():
    fabric = rail_fabric(groups=1, rails=2, hosts=4, spines=4)
    for rail in range(2):
        slowed(fabric, f"n0-2 mlx5_{rail}", f"leaf-0-{rail}", "4xHDR")
    imported = read(fabric.text())
    assert imported.findings == ()
    [slow] = checked(imported)
    assert slow.place == "host n0-2, mlx5_0 and 1 more"
    assert "runs at 25 GB/s" in slow.text


def test_both_ports_of_an_adapter_are_nics():
    fabric = Fabric()
    leaf, adapter = fabric.add("S", "leaf"), fabric.add("H", "n1 mlx5_0")
    fabric.join(leaf, adapter)
    fabric.join(leaf, adapter)
    (host,) = read(fabric.text()).cluster.hosts
    assert [nic.name for nic in host.nics] == ["mlx5_0:1", "mlx5_0:2"]


def test_switches_of_equal_or_no_names_keep_those_of_their_nodes():
    fabric = Fabric()
    first, second, third = (
        fabric.add("S", "Quantum"),
        fabric.add("S", "Quantum"),
        fabric.add("S", "MF0;x:CS8500/L03/U1"),
    )
    for switch in (first, second, third):
        fabric.join(switch, fabric.add("H", f"n{switch[-3:]} mlx5_0"))
    assert set(switches_of(read(fabric.text()))) == {first, second, "x/L03/U1"}


def slowed(fabric, first, second, rate):
    """The text of a fabric after a change of the rate of links between two nodes, by parts of their names."""
    ends = [next(node for node, name in fabric.nodes.items() if part in name) for part in (first, second)]
    for here, there in (ends, reversed(ends)):
        fabric.lines[here] = [(p, n, q, rate if n == there else r) for p, n, q, r in fabric.lines[here]]
    return fabric.text()


def test_a_slow_port_of_a_switch_is_degraded_and_checks_say_that_its_leaf_is_oversubscribed():
    imported = read(slowed(rail_fabric(hosts=4, spines=4), "leaf-1-0", "spine-2", "4xSDR"))
    (slow,) = imported.findings
    assert (slow.kind, slow.place) == (FindingKind.DEGRADED, "switch leaf-1-0")
    assert slow.text == "links up at 1 GB/s where most have 50 GB/s: port 3 to spine-2"
    [share] = [finding for finding in checked(imported) if finding.place.startswith("switch")]
    assert share.place == "switch leaf-1-0"
    assert "151 GB/s" in share.text


def test_equal_names_of_ports_are_a_conflict_and_left_out():
    fabric = rail_fabric(hosts=3)
    for node, name in fabric.nodes.items():
        if name in {"n0-0 mlx5_1", "n1-0 mlx5_1"}:
            fabric.nodes[node] = "n9 mlx5_1"
        if name.startswith(("n0-1", "n1-1")):
            fabric.nodes[node] = f"localhost {name.split()[1]}"
        if name == "n0-2 mlx5_0":
            fabric.nodes[node] = "localhost mlx5_7"
    imported = read(fabric.text())
    assert "localhost" not in hosts_of(imported)
    assert "n9" not in hosts_of(imported)
    found = "\n".join(texts(imported, FindingKind.CONFLICT))
    assert "host localhost: several ports are called mlx5_0, mlx5_1" in found
    assert "host n9: several ports are called mlx5_1" in found


def test_ends_of_a_link_that_differ_are_a_conflict_and_the_lower_rate_is_taken():
    text = rail_fabric(groups=1, hosts=1).text()
    imported = read(text.replace("4xNDR", "4xHDR", 1))
    assert "differ in its rate" in "".join(texts(imported, FindingKind.CONFLICT))
    rates = [s.downlink.bytes_per_s.value for s in imported.cluster.switches]
    assert sum(rates) < sum(s.downlink.bytes_per_s.value for s in read(text).cluster.switches)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("4xNDR", 50 * GB),
        ("4xHDR", 25 * GB),
        ("2xHDR", 12_500_000_000),
        ("4xEDR", 12_500_000_000),
        ("4xXDR", 100 * GB),
        ("4xFDR10", 5 * GB),
        ("4xFDR", 6_818_181_818),
        ("4xQDR", 4 * GB),
        ("4xSDR", 1 * GB),
        ("4xABC", None),
        ("3xNDR", None),
        ("NDR", None),
    ],
)
def test_rates_are_lanes_times_generation(rate, expected):
    assert bytes_per_s(rate) == expected


@pytest.mark.parametrize("change", [lambda text: text.replace("\n", "\r\n"), lambda text: text.expandtabs(8)])
def test_line_ends_and_spaces_for_tabs_change_nothing(change):
    assert read(change(SAMPLE)) == read(SAMPLE)
    assert ibnetdiscover.recognises(change(SAMPLE))


# -- damage


def test_damaged_fabrics_never_give_another_cluster_in_silence():
    for text, count in ((SMALL, 1500), (SAMPLE, 13)):
        whole = read(text)
        changed = 0
        for damage in damages(text, count):
            imported = in_time(read, damage.text, "file has")
            if imported is None:
                continue
            changed += imported.cluster != whole.cluster
            assert imported.cluster == whole.cluster or set(imported.findings) - set(whole.findings), damage
        assert changed >= count // 20


def test_every_cut_gives_an_error_a_finding_or_all_of_it():
    text = rail_fabric(groups=1, rails=2, hosts=2, spines=1).text()
    whole = read(text)
    for end in range(len(text)):
        try:
            imported = read(text[:end])
        except TopologyError:
            continue
        assert imported.findings or imported.cluster == whole.cluster, text[max(0, end - 40) : end]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S" * 10_000_000,
        "\n" * 1_000_000,
        'Switch 65 "S-1" # "' + '"' * 10_000_000,
        'Switch 65 "S-1" # "a"\n' + ("[1]" + "(" * 900 + "\n") * 3000,
        'Switch 65 "S-1" # "a"\n' + "".join(f'[{i}] "S-{i:x}"[1] # "a" lid 1 4xNDR\n' for i in range(5000)),
        'Switch 65 "S-1" # "a"\n[1] "S-1"[1] # "a" lid 1 4xNDR\n',
        'Switch 65 "S-1" # "a"\n' * 20_000,
        "vendid=0x2c9\n" * 200_000,
    ],
    ids=range(9),
)
def test_hostile_texts_are_refused_or_read_in_time(text):
    assert_refused_or_found(ibnetdiscover, read, text)


@pytest.mark.parametrize(
    "name", ["nvidia_smi_qx_h100x8.xml", "nvidia_smi_topo_m_gb200_ansi.txt", "slurm_topology.yaml"]
)
def test_other_formats_are_not_recognised(name):
    assert not ibnetdiscover.recognises((SAMPLES / name).read_text())
