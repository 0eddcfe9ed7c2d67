"""Topologies: datasheet figures, forms, ranks on GPUs, capacities, and the graph."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import topologies

import reshard_planner as rp
from reshard_planner.errors import TopologyError, UnsupportedError
from reshard_planner.spec import parse_spec, spec_from_dict
from reshard_planner.topology import PRESETS, Domain, Link, Nic, Pod, Ports

GB = 10**9
NIC = Link(50 * GB, 1.0, 0.0)


@pytest.mark.parametrize(
    ("name", "nodes", "domains", "gpus", "nvlink", "nic"),
    [
        ("dgx-a100", 2, 2, 16, 300 * GB, 25 * GB),
        ("dgx-h100", 2, 2, 16, 450 * GB, 50 * GB),
        ("dgx-h200", 3, 3, 24, 450 * GB, 50 * GB),
        ("dgx-b200", 1, 1, 8, 900 * GB, 50 * GB),
        ("gb200-nvl72", 18, 1, 72, 900 * GB, 50 * GB),
        ("gb200-nvl72", 36, 2, 144, 900 * GB, 50 * GB),
    ],
)
def test_presets_have_their_datasheet_figures(name, nodes, domains, gpus, nvlink, nic):
    topology = rp.Topology.preset(name, nodes)
    assert (len(topology.domains), topology.gpu_count, topology.name) == (domains, gpus, name)
    assert {domain.link.bytes_per_s for domain in topology.domains} == {nvlink}
    assert {port.link.bytes_per_s for port in topology.nics} == {nic}
    assert [port.gpus for port in topology.nics] == [(gpu,) for gpu in range(gpus)]
    for link in (topology.domains[0].link, topology.nics[0].link):
        assert 0 < link.efficiency < 1
        assert 0 < link.latency_s < 1e-3


def test_every_preset_builds_and_parses():
    for name, preset in PRESETS.items():
        topology = rp.Topology.preset(name, 2)
        assert topology.gpu_count == 2 * preset.gpus_per_node
        assert read({"preset": name, "nodes": 2}) == topology


def test_the_domain_of_a_rack_may_be_cut_smaller():
    topology = rp.Topology.preset("gb200-nvl72", 4, gpus_per_domain=8)
    assert [len(domain.gpus) for domain in topology.domains] == [8, 8]
    for size in (0, 73, -1):
        with pytest.raises(TopologyError, match=f"gpus_per_domain {size}"):
            rp.Topology.preset("gb200-nvl72", 1, gpus_per_domain=size)
    with pytest.raises(TopologyError, match="gpus_per_domain 4 does not fit preset dgx-h100"):
        rp.Topology.preset("dgx-h100", 1, gpus_per_domain=4)
    with pytest.raises(TopologyError, match="nodes 0"):
        rp.Topology.preset("dgx-h100", 0)


def read(topology: object, ranks: int = 6) -> rp.Topology:
    return spec_from_dict(
        {
            "version": 1,
            "meshes": {"m": {"ranks": list(range(ranks))}},
            "tensors": [
                {
                    "name": "w",
                    "shape": [1],
                    "dtype": "int8",
                    "src": {"mesh": "m", "placements": ["R"]},
                    "dst": {"mesh": "m", "placements": ["R"]},
                }
            ],
            "topology": topology,
        }
    ).topology


def test_every_form_is_read():
    split = rp.Topology.from_domains([[0, 1], [2, 3, 4, 5]])
    assert read({"domains": [[0, 1], [2, 3, 4, 5]]}) == split
    assert read({"domains": ["0-1", "2-5"]}) == split
    assert read({"domains": [{"gpus": "0-1"}, {"gpus": [2, 3, 4, 5]}]}) == split
    assert read({"gpus_per_domain": 4}) == rp.Topology.uniform(8, 4)
    assert read({"preset": "dgx-h100"}) == rp.Topology.preset("dgx-h100", 1)
    assert read({"preset": "gb200-nvl72", "gpus_per_domain": 4}) == rp.Topology.preset("gb200-nvl72", 2, 4)
    assert read({"domains": ["0-5"], "name": "lab"}).name == "lab"
    assert read(None) == rp.Topology.uniform(6, 8)


def test_rates_may_be_set_for_all_or_for_single_ports():
    slow = Link(25 * GB, 0.5, 2e-5)
    nic = {"bytes_per_s": 25 * GB, "efficiency": 0.5, "latency_s": 2e-5}
    assert {port.link for port in read({"gpus_per_domain": 4, "nic": nic}).nics} == {slow}
    assert {d.link for d in read({"domains": ["0-5"], "nvlink": nic}).domains} == {slow}
    mixed = read({"domains": [{"gpus": "0-3", **nic}, "4-5"], "nics": [{"gpus": [0, [1, 2]], **nic}]})
    assert [domain.link == slow for domain in mixed.domains] == [True, False]
    assert mixed.nics == (Nic((0,), slow), Nic((1, 2), slow))
    assert read({"domains": ["0-5"], "nics": []}).nics == ()
    assert (
        read({"domains": ["0-5"], "nics": [{"gpus": "0-5", "bytes_per_s": 1e9}]}).nics[5].link.bytes_per_s
        == GB
    )


def test_pods_go_with_every_form_but_a_file():
    uplink = Link(100 * GB, 0.95, 0.0)
    pods = [
        {"domains": "0", "uplink": {"bytes_per_s": 1e11}},
        {"domains": [2], "uplink": {"bytes_per_s": 10**11}},
    ]
    expected = (Pod((0,), uplink), Pod((2,), uplink))
    for form in (
        {"domains": ["0-1", "2-3", "4-5"]},
        {"gpus_per_domain": 2},
        {"preset": "dgx-h100", "nodes": 3},
    ):
        assert read({**form, "pods": pods}).pods == expected
    exact = [{"domains": [1], "uplink": {"bytes_per_s": 5, "efficiency": 0.5, "latency_s": 1e-5}}]
    assert read({"gpus_per_domain": 3, "pods": exact}).pods == (Pod((1,), Link(5, 0.5, 1e-5)),)
    assert "pods" not in read({"gpus_per_domain": 3, "pods": []}).to_dict()


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([{"domains": [0], "uplink": {}}], "topology.pods[0].uplink lacks the field 'bytes_per_s'"),
        ([{"domains": [0]}], "topology.pods[0] lacks the field 'uplink'"),
        ([{"uplink": {"bytes_per_s": 1}}], "topology.pods[0] lacks the field 'domains'"),
        (
            [{"domains": [0], "uplink": {"bytes_per_s": 1}, "name": "a"}],
            "topology.pods[0] has the unknown field",
        ),
        ([{"domains": [0], "uplink": {"rate": 1}}], "topology.pods[0].uplink"),
        ([{"domains": "x", "uplink": {"bytes_per_s": 1}}], "topology.pods[0].domains"),
        ([{"domains": [], "uplink": {"bytes_per_s": 1}}], "pod 0 has no domains"),
        ([{"domains": [2], "uplink": {"bytes_per_s": 1}}], "pod 0 names domain 2; expected 0 to 1"),
        ([{"domains": [0, 0], "uplink": {"bytes_per_s": 1}}], "domain 0 is in pod 0 and in pod 0"),
        (
            [{"domains": [n], "uplink": {"bytes_per_s": 1}} for n in (1, 1)],
            "domain 1 is in pod 0 and in pod 1",
        ),
        ([{"domains": [0], "uplink": {"bytes_per_s": 0}}], "bytes_per_s 0"),
    ],
)
def test_impossible_pods_are_refused(pods, said):
    with pytest.raises(rp.InputError) as caught:
        read({"gpus_per_domain": 3, "pods": pods})
    assert said in str(caught.value)


def test_plans_carry_pods_in_every_form(tmp_path):
    topology = replace(rp.Topology.from_domains([[0], [1], [2]]), pods=(Pod((0, 2), Link(GB, 0.9, 1e-6)),))
    tensor = rp.TensorSpec(
        "w", (8,), "int8", rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1, 2]), ["R"])
    )
    plan = rp.compile(rp.ReshardSpec([tensor], topology), "direct")
    for name in ("plan.reshard", "plan.json", "plan.txt"):
        plan.save(tmp_path / name)
        read_back = rp.Plan.load(tmp_path / name)
        assert read_back == plan
        assert read_back.spec.topology == topology
        rp.verify(read_back)


def test_small_numbers_may_be_written_without_a_decimal_point():
    text = """
    version: 1
    meshes: {m: {ranks: "0-1"}}
    topology: {gpus_per_domain: 2, nic: {latency_s: 1e-5, bytes_per_s: 25e9}}
    tensors: [{name: w, shape: [2], dtype: int8,
               src: {mesh: m, placements: [R]}, dst: {mesh: m, placements: [R]}}]
    """
    link = parse_spec(text).topology.nics[0].link
    assert (link.latency_s, link.bytes_per_s) == (1e-5, 25 * GB)


@st.composite
def pods_of(draw: st.DrawFn, topology: rp.Topology) -> rp.Topology:
    """The topology with some of its domains in pods."""
    homes = [draw(st.integers(-1, 2)) for _ in topology.domains]
    uplink = st.builds(
        Link, st.integers(1, 2**50), st.sampled_from([1.0, 0.95]), st.sampled_from([0.0, 1e-6])
    )
    pods = [
        Pod(tuple(index for index, home in enumerate(homes) if home == number), draw(uplink))
        for number in sorted(set(homes) - {-1})
    ]
    return replace(topology, pods=tuple(pods))


@given(st.integers(1, 12).flatmap(lambda n: topologies(range(n), uplinks=False).flatmap(pods_of)))
def test_the_explicit_form_reads_back(topology):
    ranks = 1 + max(gpu for domain in topology.domains for gpu in domain.gpus)
    assert read(topology.to_dict(), ranks) == topology


def test_ranks_run_on_the_gpus_that_rank_map_names():
    topology = rp.Topology.from_domains([[0, 1], [2, 3]], rank_map=[3, 1, 0])
    assert [topology.gpu_of(rank) for rank in range(3)] == [3, 1, 0]
    with pytest.raises(TopologyError, match="rank 3 is not in rank_map"):
        topology.gpu_of(3)
    ports = Ports.of(topology, range(3))
    assert ports.domain.tolist() == [1, 0, 0]
    assert read({"domains": [[0, 1], [2, 3]], "rank_map": [3, 1, 0]}, 3) == topology
    assert read({"domains": [[0, 1], [2, 3]], "rank_map": "3,0-1"}, 3).rank_map == (3, 0, 1)
    assert read({"gpus_per_domain": 4, "rank_map": [9, 0]}, 2).gpu_count == 12


@given(st.permutations(range(6)))
def test_moving_ranks_with_their_domains_changes_no_certificate(order):
    source = rp.Layout(rp.Mesh([0, 1]), ["S(0)"])
    wanted = rp.Layout(rp.Mesh([[2, 3], [4, 5]]), ["R", "S(0)"])
    tensor = rp.TensorSpec("w", (8, 8), "bfloat16", source, wanted)
    domains = [[0, 1], [2, 3, 4], [5]]
    moved = [[order[gpu] for gpu in domain] for domain in domains]
    plain = rp.compile(rp.ReshardSpec([tensor], rp.Topology.from_domains(domains))).certificate
    mapped = rp.compile(
        rp.ReshardSpec([tensor], rp.Topology.from_domains(moved, rank_map=list(order)))
    ).certificate
    assert (plain.payload, plain.bound, plain.gap) == (mapped.payload, mapped.bound, mapped.gap)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), topologies(range(n)))))
def test_ports_carry_the_domain_and_the_rates_of_every_rank(pair):
    ranks, topology = pair
    ports = Ports.of(topology, range(ranks))
    for index, domain in enumerate(topology.domains):
        for gpu in domain.gpus:
            assert ports.domain[gpu] == index
            assert ports.nvlink_bytes_per_s[gpu] == domain.link.bytes_per_s
            group = ports.nic_group[gpu]
            mine = [nic for nic in topology.nics if gpu in nic.gpus]
            assert ports.nic_bytes_per_s[group] == sum(nic.link.bytes_per_s for nic in mine)
            assert ports.nic_domain[group] == index
    assert ports.nic_bytes_per_s.sum() == sum(nic.link.bytes_per_s for nic in topology.nics)


def test_ports_carry_the_pod_of_every_rank_and_the_rate_of_every_uplink():
    topology = replace(
        rp.Topology.from_domains([[0, 1], [2], [3]], rank_map=[3, 2, 1]),
        pods=(Pod((1,), Link(7, 1.0, 0.0)), Pod((0,), Link(9, 1.0, 0.0))),
    )
    ports = Ports.of(topology, [0, 1, 2])
    assert ports.pod.tolist() == [-1, 0, 1]
    assert ports.uplink_bytes_per_s.tolist() == [7, 9]
    assert Ports.of(rp.Topology.uniform(2, 1), [0, 1]).pod.tolist() == [-1, -1]


@pytest.mark.parametrize("slowest", ["nic", "nvlink", "uplink"])
def test_a_slot_starts_up_as_slowly_as_the_slowest_port(slowest):
    links = {port: Link(GB, 1.0, 3e-5 if port == slowest else 1e-6) for port in ("nic", "nvlink", "uplink")}
    topology = rp.Topology(
        (Domain((0,), Link(GB, 1.0, 0.0)), Domain((1,), links["nvlink"])),
        (Nic((0,), Link(GB, 1.0, 0.0)), Nic((1,), links["nic"])),
        pods=(Pod((0,), links["uplink"]),),
    )
    assert topology.alpha_s == 3e-5
    assert rp.Topology.uniform(2, 1).alpha_s == 15e-6


def test_the_graph_leads_the_nics_of_a_pod_over_its_uplink():
    topology = replace(rp.Topology.from_domains([[0], [1], [2]]), pods=(Pod((0, 2), Link(GB, 0.9, 1e-6)),))
    graph = topology.graph()
    assert set(graph.neighbors("network")) == {"pod 0", "nic 1"}
    assert set(graph.neighbors("pod 0")) == {"network", "nic 0", "nic 2"}
    assert graph.nodes["pod 0"]["kind"] == "pod"
    assert graph.edges["pod 0", "network"] == {"bytes_per_s": GB, "efficiency": 0.9, "latency_s": 1e-6}


def test_gpus_that_share_all_their_nics_are_one_group():
    topology = rp.Topology((Domain((0, 1, 2, 3)),), (Nic((0, 1)), Nic((1, 0)), Nic((2,))))
    ports = Ports.of(topology, range(4))
    assert ports.nic_group.tolist() == [0, 0, 1, -1]
    assert ports.nic_bytes_per_s.tolist() == [100 * GB, 50 * GB]
    assert ports.nic_name == ("nic of gpu 0,1", "nic of gpu 2")


def test_gpus_that_share_some_of_their_nics_are_refused():
    topology = rp.Topology((Domain((0, 1, 2)),), (Nic((0, 1)), Nic((1, 2))))
    with pytest.raises(UnsupportedError, match="NIC 0 serves GPUs \\[0, 1\\] but not GPU 2"):
        Ports.of(topology, range(3))


@given(st.integers(1, 12).flatmap(lambda n: topologies(range(n), uplinks=False)))
def test_the_graph_has_every_port_with_its_rate(topology):
    graph = topology.graph()
    kinds = nx.get_node_attributes(graph, "kind")
    count = {kind: list(kinds.values()).count(kind) for kind in ("network", "domain", "gpu", "nic")}
    assert count == {
        "network": 1,
        "domain": len(topology.domains),
        "gpu": topology.gpu_count,
        "nic": len(topology.nics),
    }
    rates = nx.get_edge_attributes(graph, "bytes_per_s")
    network = sum(rate for edge, rate in rates.items() if "network" in edge)
    assert network == sum(nic.link.bytes_per_s for nic in topology.nics)
    assert graph.degree("network", weight="bytes_per_s") == network
    for index, domain in enumerate(topology.domains):
        assert set(graph.neighbors(f"domain {index}")) == {f"gpu {gpu}" for gpu in domain.gpus}
        total = graph.degree(f"domain {index}", weight="bytes_per_s")
        assert total == len(domain.gpus) * domain.link.bytes_per_s
        for gpu in domain.gpus:
            assert graph.nodes[f"gpu {gpu}"]["domain"] == index
            assert graph.nodes[f"gpu {gpu}"]["rank"] == gpu
    assert all(link["efficiency"] <= 1 and link["latency_s"] >= 0 for *_, link in graph.edges(data=True))


@given(st.integers(2, 12).flatmap(lambda n: topologies(range(n), uplinks=False)))
def test_a_cut_of_the_graph_between_domains_is_the_rate_of_their_nics(topology):
    """Max flow from one domain to another over the network: the smaller of the NIC and NVLink totals."""
    if len(topology.domains) < 2:
        return
    graph = nx.DiGraph()
    for a, b, link in topology.graph().edges(data=True):
        graph.add_edge(a, b, capacity=link["bytes_per_s"])
        graph.add_edge(b, a, capacity=link["bytes_per_s"])

    def limit(index: int) -> int:
        """NIC groups of a domain, each also limited by the NVLink ports of its GPUs."""
        gpus = set(topology.domains[index].gpus)
        rates: dict[tuple[int, ...], int] = {}
        for nic in topology.nics:
            if gpus.issuperset(nic.gpus):
                rates[nic.gpus] = rates.get(nic.gpus, 0) + nic.link.bytes_per_s
        nvlink = topology.domains[index].link.bytes_per_s
        return sum(min(rate, len(group) * nvlink) for group, rate in rates.items())

    flow, _ = nx.maximum_flow(graph, "domain 0", "domain 1")
    assert flow == min(limit(0), limit(1))


def test_a_mapped_graph_names_the_rank_of_each_gpu():
    graph = rp.Topology.from_domains([[0, 1], [2, 3]], rank_map=[3, 1, 0]).graph()
    assert [graph.nodes[f"gpu {gpu}"]["rank"] for gpu in range(4)] == [2, 1, None, 0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rp.Topology((), ()), "no domains"),
        (lambda: rp.Topology.from_domains([[0], []]), "domain 1 has no GPUs"),
        (lambda: rp.Topology.from_domains([[0, 1], [1]]), "GPU 1 is in domain 0 and in domain 1"),
        (lambda: rp.Topology.from_domains([[0, 0]]), "GPU 0 is in domain 0 and in domain 0"),
        (lambda: rp.Topology.from_domains([[-1]]), "GPU -1 of domain 0"),
        (lambda: rp.Topology.from_domains([[2**24]]), "GPU 16777216"),
        (lambda: rp.Topology.from_domains([[0.0]]), "GPU 0.0 of domain 0 is not an integer"),
        (lambda: rp.Topology.from_domains([[True]]), "GPU True of domain 0 is not an integer"),
        (lambda: rp.Topology((Domain((0,)),), (Nic((1,)),)), "NIC 0 names GPU 1"),
        (lambda: rp.Topology((Domain((0,)),), (Nic(()),)), "NIC 0"),
        (lambda: rp.Topology((Domain((0,)), Domain((1,))), (Nic((0, 1)),)), "GPUs of one domain"),
        (lambda: rp.Topology.from_domains([[0]], rank_map=[1]), "rank 0 on GPU 1"),
        (lambda: rp.Topology.from_domains([[0]], rank_map=[0.0]), "rank 0 on GPU 0.0"),
        (lambda: rp.Topology.from_domains([[0]], rank_map=[0, 0]), "GPU 0 twice"),
        (lambda: rp.Topology.uniform(0, 8), "0 GPUs in domains of 8"),
        (lambda: rp.Topology.uniform(8, 0), "domains of 0"),
        (lambda: rp.Topology.preset("dgx-h900", 1), "'dgx-h900' is unknown"),
        (lambda: replace(rp.Topology.uniform(2, 1), pods=(Pod((True,), NIC),)), "domain True of pod 0"),
        (lambda: Link(0, 1.0, 0.0), "bytes_per_s 0"),
        (lambda: Link(2**53, 1.0, 0.0), "bytes_per_s 9007199254740992"),
        (lambda: Link(1, 0.0, 0.0), "efficiency 0.0"),
        (lambda: Link(1, 1.1, 0.0), "efficiency 1.1"),
        (lambda: Link(1, float("nan"), 0.0), "efficiency nan"),
        (lambda: Link(1, 1.0, float("inf")), "latency_s inf"),
        (lambda: Link(1, 1.0, -1e-9), "latency_s -1e-09"),
    ],
)
def test_impossible_clusters_are_refused(make, said):
    with pytest.raises(TopologyError) as caught:
        make()
    assert said in str(caught.value)


def test_a_rank_without_a_gpu_is_refused_by_number():
    layout = rp.Layout(rp.Mesh([0, 9]), ["R"])
    with pytest.raises(
        TopologyError, match="rank 9 has no GPU in the topology, which has 8 GPUs in 1 domains"
    ):
        rp.ReshardSpec([rp.TensorSpec("w", (1,), "int8", layout, layout)], rp.Topology.uniform(8, 8))


def test_bytes_that_would_cross_the_network_need_a_nic():
    src, dst = rp.Layout(rp.Mesh([0]), ["R"]), rp.Layout(rp.Mesh([1]), ["R"])
    tensor = rp.TensorSpec("w", (4,), "int8", src, dst)
    alone = rp.Topology((Domain((0,)), Domain((1,))), (Nic((0,)),))
    with pytest.raises(rp.InputError, match="no rank has a NIC"):
        rp.compile(rp.ReshardSpec([tensor], alone))
    together = rp.Topology((Domain((0, 1)),), ())
    assert rp.compile(rp.ReshardSpec([tensor], together)).certificate.payload.nvlink_nbytes == 4
