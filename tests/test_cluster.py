"""Clusters: their file, what planning makes of them, joining of sources, checks."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from cluster_strategies import clusters
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from soon import soon

import reshard_planner as rp
from reshard_planner.errors import InputError, SpecError, TopologyError
from reshard_planner.render.cluster.text import cluster_text
from reshard_planner.topology.cluster.checks import check, worst
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.form import ClusterForm, schema
from reshard_planner.topology.cluster.model import (
    Cluster,
    Gpu,
    Host,
    HostNic,
    HostPod,
    Nearness,
    Overrides,
    Switch,
)
from reshard_planner.topology.cluster.pods import host_pods
from reshard_planner.topology.cluster.presets import preset_cluster
from reshard_planner.topology.cluster.reading import cluster_from_form, load_cluster
from reshard_planner.topology.cluster.resolve import Resolved, resolve
from reshard_planner.topology.cluster.speeds import find_link_speed
from reshard_planner.topology.cluster.writing import cluster_to_form, cluster_to_yaml
from reshard_planner.topology.importers import import_text
from reshard_planner.topology.presets import PRESETS
from reshard_planner.yamltext import parse_yaml

GB = 10**9
GUID = "0123456789abcdef"
EIGHT = tuple(Gpu(f"GPU{index}", Fact("H100"), nvlinks=Fact(18)) for index in range(8))


def nic(position: int, count: int = 8, **fields: object) -> HostNic:
    """A NIC that is nearest to the GPU of its position."""
    near = tuple(Nearness.PIX if gpu == position else Nearness.SYS for gpu in range(count))
    return HostNic(f"mlx5_{position}", near=Fact(near), **fields)  # type: ignore[arg-type]


def host(name: str, **fields: object) -> Host:
    """A host of eight GPUs, each with a NIC of 50 GB/s and a rail."""
    nics = tuple(nic(index, rail=Fact(index), port=PortFacts(Fact(50 * GB))) for index in range(8))
    return replace(Host(name, EIGHT, nics), **fields)  # type: ignore[arg-type]


def texts(resolved: Resolved, kind: FindingKind) -> list[str]:
    return [str(finding) for finding in resolved.findings if finding.kind is kind]


def as_json(value: object) -> object:
    return json.loads(json.dumps(value))


@given(clusters())
@settings(max_examples=40)
def test_a_cluster_file_read_back_is_the_cluster(cluster: Cluster) -> None:
    assert cluster_from_form(as_json(cluster_to_form(cluster))) == cluster
    assert cluster_from_form(parse_yaml(cluster_to_yaml(cluster))) == cluster


@given(clusters())
@settings(max_examples=40)
def test_a_cluster_file_keeps_to_the_printed_schema(cluster: Cluster) -> None:
    form = as_json(cluster_to_form(cluster))
    msgspec.convert(form, ClusterForm, strict=True)
    known = schema()["$defs"]["ClusterForm"]["properties"].keys()
    assert isinstance(form, dict)
    assert form.keys() <= known


@given(clusters())
@settings(max_examples=40)
def test_every_cluster_with_gpus_resolves_or_says_what_is_wrong(cluster: Cluster) -> None:
    resolved = None
    with suppress(InputError):  # such as overrides that name what is not there
        resolved = resolve(cluster)
    if resolved is None:
        return
    topology = resolved.topology
    assert sorted(gpu for domain in topology.domains for gpu in domain.gpus) == list(range(cluster.gpu_count))
    assert len(resolved.domains) == len(topology.domains)
    assert len(resolved.nics) == len(topology.nics)
    check(cluster)
    rp.Topology(topology.domains, topology.nics, topology.rank_map, topology.name, topology.pods)


@pytest.mark.parametrize(("machine", "nodes"), [("dgx-h100", 3), ("dgx-a100", 1), ("gb200-nvl72", 20)])
def test_preset_clusters_plan_as_preset_topologies_do(machine: str, nodes: int) -> None:
    resolved = resolve(preset_cluster(machine, [f"n{index}" for index in range(nodes)]))
    topology = rp.Topology.preset(machine, nodes)
    assert resolved.topology.domains == topology.domains
    assert tuple(replace(each, rail=None) for each in resolved.topology.nics) == topology.nics
    assert not resolved.findings


def test_a_gpu_off_the_fabric_is_a_domain_of_its_own() -> None:
    gpus = tuple(replace(gpu, nvlinks=Fact(0)) if gpu.name == "GPU2" else gpu for gpu in EIGHT)
    cluster = Cluster(hosts=(host("a", gpus=gpus),))
    resolved = resolve(cluster)
    assert [domain.gpus for domain in resolved.topology.domains] == [(0, 1, 3, 4, 5, 6, 7), (2,)]
    [finding] = worst(check(cluster))
    assert finding.place == "host a, GPU2"
    assert "domain of its own" in finding.text


def test_fewer_links_limit_the_domain_and_the_finding_says_to_what() -> None:
    gpus = tuple(replace(gpu, nvlinks=Fact(12)) if gpu.name == "GPU3" else gpu for gpu in EIGHT)
    cluster = Cluster(hosts=(host("a"), host("b", gpus=gpus)))
    [finding] = worst(check(cluster))
    assert finding.place == "host b, GPU3"
    assert finding.text == "it has 12 NVLinks, its peers 18: fan-out in this domain is limited to 247 GB/s"
    assert [domain.link.bytes_per_s for domain in resolve(cluster).topology.domains] == [450 * GB, 300 * GB]


def test_a_host_without_nvlink_is_one_domain_over_pcie() -> None:
    gpus = tuple(Gpu(f"GPU{index}", nvlinks=Fact(0)) for index in range(4))
    [domain] = resolve(Cluster(hosts=(Host("a", gpus),))).topology.domains
    assert domain.gpus == (0, 1, 2, 3)
    assert domain.link.bytes_per_s == 32 * GB


def test_one_fabric_joins_hosts_and_an_empty_one_does_not() -> None:
    def of_fabric(name: str, fabric: str, domain: str | None = None) -> Host:
        gpus = tuple(replace(gpu, fabric=Fact(fabric)) for gpu in EIGHT[:4])
        return Host(name, gpus, domain=None if domain is None else Fact(domain))

    joined = resolve(Cluster(hosts=(of_fabric("a", "u.1"), of_fabric("b", "u.1"), of_fabric("c", "u.2"))))
    assert [len(domain.gpus) for domain in joined.topology.domains] == [8, 4]
    apart = resolve(Cluster(hosts=(of_fabric("a", "", "block"), of_fabric("b", "", "block"))))
    assert [len(domain.gpus) for domain in apart.topology.domains] == [4, 4]
    assert len(texts(apart, FindingKind.CONFLICT)) == 1
    blocks = (Host(name, EIGHT[:4], domain=Fact("block")) for name in "ab")
    assert [len(domain.gpus) for domain in resolve(Cluster(hosts=tuple(blocks))).topology.domains] == [8]


def test_overrides_win_over_all_sources() -> None:
    cluster = Cluster(
        hosts=(host("a"), host("b")),
        overrides=Overrides(
            rails=(("mlx5_0", 5), ("b:mlx5_0", 6)),
            disabled_nics=("mlx5_7", "a:mlx5_6"),
            domains=(("a:0-3", "b"),),
            nic=PortFacts(Fact(25 * GB)),
            nvlink=PortFacts(Fact(100 * GB)),
        ),
    )
    topology = resolve(cluster).topology
    assert [domain.gpus for domain in topology.domains] == [(0, 1, 2, 3, *range(8, 16)), (4, 5, 6, 7)]
    assert {each.link.bytes_per_s for each in topology.nics} == {25 * GB}
    assert {domain.link.bytes_per_s for domain in topology.domains} == {100 * GB}
    assert [each.rail for each in topology.nics if each.gpus in ((0,), (8,))] == [5, 6]
    used = {gpu for each in topology.nics for gpu in each.gpus}
    assert {6, 7, 15}.isdisjoint(used)
    assert len(topology.nics) == 13


def test_domains_can_be_split_by_size() -> None:
    cluster = Cluster(hosts=(host("a"), host("b")), overrides=Overrides(gpus_per_domain=3))
    sizes = [len(domain.gpus) for domain in resolve(cluster).topology.domains]
    assert sizes == [3, 3, 2, 3, 3, 2]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (Overrides(rails=(("mlx5_9", 0),)), "names NIC 'mlx5_9'"),
        (Overrides(disabled_nics=("c:mlx5_0",)), "names NIC 'c:mlx5_0'"),
        (Overrides(domains=(("c",),)), "names host 'c'"),
        (Overrides(domains=(("a:8",),)), "names GPU 8"),
        (Overrides(domains=(("a:x",),)), "'x' is not a list"),
        (Overrides(domains=(("a",), ("a:3",))), "in domain 0 and in domain 1"),
    ],
)
def test_overrides_that_name_what_is_not_there_are_refused(overrides: Overrides, text: str) -> None:
    with pytest.raises(InputError, match=text):
        resolve(Cluster(hosts=(host("a"),), overrides=overrides))


def test_gpus_that_share_their_nearest_nics_share_all_of_these() -> None:
    near = Fact((Nearness.PIX, Nearness.PIX, Nearness.PXB, Nearness.SYS))
    far = Fact((Nearness.SYS, Nearness.SYS, Nearness.PXB, Nearness.PIX))
    nics = (HostNic("x", near=near), HostNic("y", near=far))
    topology = resolve(Cluster(hosts=(Host("a", EIGHT[:4], nics),))).topology
    assert {each.gpus for each in topology.nics} == {(0, 1, 2, 3)}
    apart = (
        HostNic("x", near=Fact((Nearness.PIX, Nearness.SYS))),
        HostNic("y", near=Fact((Nearness.SYS, Nearness.PIX))),
    )
    topology = resolve(Cluster(hosts=(Host("a", EIGHT[:2], apart),))).topology
    assert [each.gpus for each in topology.nics] == [(0,), (1,)]


def test_a_nic_shared_by_domains_is_divided_by_gpus() -> None:
    gpus = (*EIGHT[:3], replace(EIGHT[3], nvlinks=Fact(0)))
    shared = HostNic("x", gpus=Fact((0, 1, 2, 3)), port=PortFacts(Fact(40 * GB)))
    topology = resolve(Cluster(hosts=(Host("a", gpus, (shared,)),))).topology
    assert [(each.gpus, each.link.bytes_per_s) for each in topology.nics] == [
        ((0, 1, 2), 30 * GB),
        ((3,), 10 * GB),
    ]


def test_pods_follow_from_leaves_where_their_uplinks_are_a_limit() -> None:
    def plugged(name: str, leaf: str) -> Host:
        return host(name, nics=tuple(replace(each, leaf=Fact(leaf)) for each in host(name).nics))

    members = (plugged("a", "l0"), plugged("b", "l0"), plugged("c", "l1"))
    up = [PortFacts(Fact(200 * GB)), PortFacts(Fact(400 * GB))]
    switches = tuple(Switch(f"l{index}", ("spine",), port) for index, port in enumerate(up))
    topology = resolve(Cluster(hosts=members, switches=switches)).topology
    assert [(pod.domains, pod.uplink.bytes_per_s) for pod in topology.pods] == [((0, 1), 200 * GB)]
    stated = (HostPod("p", ("c",), oversubscription=Fact(4.0)),)
    topology = resolve(Cluster(hosts=members, switches=switches, pods=stated)).topology
    assert [(pod.domains, pod.uplink.bytes_per_s) for pod in topology.pods] == [((2,), 100 * GB)]
    unknown = resolve(
        Cluster(hosts=members, switches=tuple(replace(each, uplink=PortFacts()) for each in switches))
    )
    assert not unknown.topology.pods
    assert any("uplink is unknown" in text for text in texts(unknown, FindingKind.ASSUMED))


def leafy(uplinks: dict[str, PortFacts], *names: str) -> Cluster:
    """Hosts whose NICs are dealt out to these leaves: n is on all of them, n0 on the first one alone."""
    hosts = []
    for name in names:
        leaves = [list(uplinks)[int(name[1:])]] if name[1:] else list(uplinks)
        nics = [replace(each, leaf=Fact(leaves[at % len(leaves)])) for at, each in enumerate(host(name).nics)]
        hosts.append(host(name, nics=tuple(nics)))
    return Cluster(hosts=tuple(hosts), switches=tuple(Switch(name, (), up) for name, up in uplinks.items()))


def test_uplinks_of_the_leaves_of_a_pod_add_up_and_are_as_sure_as_the_least_sure_one() -> None:
    measured, assumed = (
        PortFacts(Fact(200 * GB, Origin.MEASURED, "probe")),
        PortFacts(Fact(100 * GB, Origin.ASSUMED, "guess")),
    )
    uplinks = {"l0": measured, "l1": assumed, "l2": PortFacts(Fact(50 * GB))}
    cluster = leafy({name: uplinks[name] for name in ("l0", "l1")}, "n", "m0")
    cluster = replace(cluster, hosts=(*cluster.hosts, *leafy({"l2": uplinks["l2"]}, "o").hosts))
    cluster = replace(
        cluster, switches=tuple(Switch(name, ("spine",), port) for name, port in uplinks.items())
    )
    pod, other = host_pods(cluster)
    assert pod.hosts == ("n", "m0")
    assert pod.uplink.bytes_per_s == Fact(300 * GB, Origin.ASSUMED, "guess")
    assert other == HostPod("l2", ("o",), uplinks["l2"])
    resolved = resolve(cluster)
    assert [(each.uplink.bytes_per_s, each.ratio) for each in resolved.pods if each.uplink] == [
        (300 * GB, 800 / 300),
        (50 * GB, 8),
    ]
    assert [each.uplink.bytes_per_s for each in resolved.topology.pods] == [300 * GB, 50 * GB]
    places = {finding.place: finding.text for finding in worst(check(cluster, resolved))}
    assert "limited to 300 GB/s" in places["pod l0 and 1 more"]
    assert "pod l2" in places
    text = cluster_text(cluster, resolved)
    assert "l0 and 1 more: 2 hosts, uplink 300 GB/s, 2.67:1 oversubscribed" in text
    unsure = replace(cluster, switches=(Switch("l0", (), measured), Switch("l1"), cluster.switches[2]))
    assert [each.uplink is None for each in resolve(unsure).pods] == [True, False]


@given(clusters())
@settings(max_examples=40)
def test_pods_of_planning_are_those_whose_uplinks_carry_less_than_their_nics(cluster: Cluster) -> None:
    resolved = None
    with suppress(InputError):
        resolved = resolve(cluster)
    if resolved is None:
        return
    rates = [
        sum(
            each.link.bytes_per_s
            for (name, _), each in zip(resolved.nics, resolved.topology.nics, strict=True)
            if name in pod.hosts
        )
        for pod in resolved.pods
    ]
    for pod, rate in zip(resolved.pods, rates, strict=True):
        assert pod.limits == (pod.uplink is not None and pod.uplink.bytes_per_s < rate)
    limits = [pod.uplink for pod in resolved.pods if pod.limits]
    assert all(pod.uplink in limits for pod in resolved.topology.pods)
    members = [name for pod in resolved.pods for name in pod.hosts]
    assert len(set(members)) == len(members)


@given(st.data(), st.integers(2, 9))
def test_a_circle_of_parents_is_refused_and_names_itself_wherever_it_is(
    data: st.DataObject, count: int
) -> None:
    names = data.draw(st.permutations([f"s{at}" for at in range(count)]))
    above = {
        name: data.draw(st.lists(st.sampled_from([*names[:at], "x"]), unique=True))
        for at, name in enumerate(names)
    }
    Cluster(switches=tuple(Switch(name, tuple(parents)) for name, parents in above.items()))
    top = data.draw(st.integers(0, count - 1))
    at = data.draw(st.integers(top, count - 1))
    for lower, upper in pairwise(range(top, at + 1)):  # up from `at` to `top`
        above[names[upper]] = list({*above[names[upper]], names[lower]})
    above[names[top]].append(names[at])
    shuffled = data.draw(st.permutations(list(above.items())))
    with pytest.raises(TopologyError, match="lead back to it") as caught:
        Cluster(switches=tuple(Switch(name, tuple(parents)) for name, parents in shuffled))
    first, *named = re.findall(r"'(\w+)'", str(caught.value))
    assert named[0] == named[-1] == first
    assert all(upper in above[lower] for lower, upper in pairwise(named[:3]))


def test_a_hundred_thousand_switches_one_above_the_other_are_no_burden() -> None:
    chain = [Switch(str(at), (str(at + 1),)) for at in range(100_000)]
    with soon(3):
        Cluster(switches=tuple(chain))
        with pytest.raises(TopologyError, match=r"'0' to '1' to '2' to \.\.\. to '0'; expected"):
            Cluster(switches=(*chain, Switch("100000", ("0",))))


def test_switches_above_others_are_counted_as_far_as_the_cluster_lists_them() -> None:
    cluster = Cluster(hosts=(host("a"),), switches=(Switch("l0", ("s0", "s1", "s2")), Switch("s0", ("c",))))
    assert "2, 1 of them above others" in cluster_text(cluster, None)


@pytest.mark.parametrize("machine", PRESETS)
def test_links_of_a_gpu_make_the_datasheet_rate_of_its_machine(machine: str) -> None:
    model = machine.partition("-")[2].upper() if machine.startswith("dgx") else "NVIDIA GB200"
    speed = find_link_speed(model)
    assert speed is not None
    assert speed.bytes_per_s * speed.links == PRESETS[machine].nvlink_bytes_per_s
    assert 0.75 < speed.reached_bytes_per_s / speed.bytes_per_s < 1
    bare = Cluster(hosts=(Host("a", tuple(Gpu(f"g{at}", Fact(model)) for at in range(2))),))
    assert {each.link.bytes_per_s for each in resolve(bare).topology.domains} == {
        PRESETS[machine].nvlink_bytes_per_s
    }


@pytest.mark.parametrize(
    ("shares", "slow"),
    [
        ([0.95, 0.2, 0.95, 0.95], {1}),
        ([0.95, 0.88, 0.9, 0.97], set()),  # as repeated probes differ
        ([0.95, 0.84, 0.95, 0.95], {1}),
        ([None, 0.2, None, None], {1}),
        ([None, 0.88, None, None], set()),  # of the others no better is known
        ([0.97, 0.97, 0.97, None], set()),
    ],
)
def test_a_nic_that_was_measured_as_slow_is_found_though_its_datasheet_is_as_good(
    shares: list[float | None], slow: set[int]
) -> None:
    nics = tuple(
        nic(
            at,
            4,
            port=PortFacts(
                Fact(50 * GB), None if share is None else Fact(share, Origin.MEASURED, "nccl, ...")
            ),
        )
        for at, share in enumerate(shares)
    )
    found = worst(check(Cluster(hosts=(Host("a", EIGHT[:4], nics),))))
    assert {finding.place for finding in found} == {f"host a, mlx5_{at}" for at in slow}


def test_rates_that_were_measured_are_compared_with_the_usual_one_not_with_the_best() -> None:
    rates = [46.1, 45.2, 60.0, 44.9, 45.8, 45.1, 30.0, 45.5]
    nics = tuple(
        nic(at, port=PortFacts(Fact(int(rate * GB), Origin.MEASURED))) for at, rate in enumerate(rates)
    )
    [finding] = worst(check(Cluster(hosts=(Host("a", EIGHT, nics),))))
    assert finding.place == "host a, mlx5_6"
    assert "30 GB/s, most at 45.5" in finding.text


def test_a_nic_that_is_down_is_found_whatever_its_source_is_called_and_a_disabled_one_is_not() -> None:
    down = replace(host("x").nics[0], enabled=Fact(value=False, origin=Origin.FILE, source="overrides"))
    cluster = Cluster(
        hosts=(host("a", nics=(down, *host("x").nics[1:])),), overrides=Overrides(disabled_nics=("mlx5_1",))
    )
    found = [finding.place for finding in worst(check(cluster)) if "port is down" in finding.text]
    assert found == ["host a, mlx5_0"]


def test_a_finding_in_plain_types_has_its_kind_place_and_text() -> None:
    plain = Finding(FindingKind.DEGRADED, "host a", "text").to_dict()
    assert as_json(plain) == {"kind": "degraded", "place": "host a", "text": "text"}
    assert all(type(value) is str for value in plain.values())


def test_every_port_that_nobody_stated_is_said_to_be_assumed() -> None:
    resolved = resolve(Cluster(hosts=(Host("a", tuple(Gpu(f"g{i}") for i in range(2)), (HostNic("n"),)),)))
    text = " ".join(texts(resolved, FindingKind.ASSUMED))
    assert "2 NVLink ports: the datasheet rate is unknown, 450 GB/s is assumed" in text
    assert "1 NIC: the datasheet rate is unknown, 50 GB/s is assumed" in text
    assert not resolve(Cluster(hosts=(host("a"),))).findings


@pytest.mark.parametrize(
    ("changed", "place", "text"),
    [
        ({"nics": host("x").nics[:7]}, "host b", "it uses 7 NICs, 2 hosts like it 8"),
        (
            {"nics": (replace(host("x").nics[0], port=PortFacts(Fact(25 * GB))), *host("x").nics[1:])},
            "host b, mlx5_0",
            "25 GB/s, most at 50",
        ),
        (
            {"nics": (replace(host("x").nics[0], enabled=Fact(value=False)), *host("x").nics[1:])},
            "host b, mlx5_0",
            "its port is down",
        ),
        (
            {"nics": (replace(host("x").nics[0], rail=Fact(9)), *host("x").nics[1:])},
            "host b",
            "on rails 1-7,9",
        ),
    ],
)
def test_checks_name_what_is_less_than_its_like(changed: dict[str, object], place: str, text: str) -> None:
    sound = Cluster(hosts=(host("a"), host("c"), host("b")))
    assert not worst(check(sound))
    found = worst(check(replace(sound, hosts=(*sound.hosts[:2], host("b", **changed)))))
    assert any(finding.place == place and text in finding.text for finding in found), found


def test_swapped_cables_and_oversubscribed_leaves_are_found() -> None:
    def plugged(name: str, *, swapped: bool) -> Host:
        nics = list(host(name).nics)
        for index, each in enumerate(nics):
            leaf = {0: 1, 1: 0}.get(index, index) if swapped else index
            nics[index] = replace(each, leaf=Fact(f"l{leaf}"))
        return host(name, nics=tuple(nics))

    members = tuple(plugged(name, swapped=name == "d") for name in "abcd")
    leaf = Switch("l0", ("s",), PortFacts(Fact(100 * GB)), PortFacts(Fact(400 * GB)))
    found = worst(check(Cluster(hosts=members, switches=(leaf,))))
    assert {finding.place for finding in found} == {"host d, mlx5_0", "host d, mlx5_1", "switch l0"}
    assert any("4 times what those up do" in finding.text for finding in found)


def test_a_domain_that_does_not_end_where_hosts_end_is_found() -> None:
    cluster = Cluster(hosts=(host("a"), host("b")), overrides=Overrides(domains=(("a", "b:0-3"),)))
    assert any("does not end where hosts end" in finding.text for finding in worst(check(cluster)))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({}, "lacks the field"),
        ({"version": 2, "hosts": []}, "version is 2"),
        ({"version": 1, "hosts": [{"name": "a", "gpus": [{"name": "g", "nvlink": 3}]}]}, "nvlink is 3"),
        ({"version": 1, "hosts": [{"name": "a", "gpu": 8}]}, "unknown field 'gpu'"),
        ({"version": 1, "hosts": [{"name": "a[1-", "gpus": 8}]}, "brackets"),
        ({"version": 1, "hosts": [{"name": "a,a", "gpus": 8}]}, "host 'a' is given twice"),
        ({"version": 1, "hosts": [{"name": "a", "gpus": -1}]}, "gpus is -1"),
        ({"version": 1, "hosts": [{"name": "a", "gpus": [{"name": "g[0-1]", "uuid": "u"}]}]}, "for 2 names"),
        ({"version": 1, "hosts": [{"name": "a", "nics": [{"name": "n", "rail": True}]}]}, "rail"),
        (
            {"version": 1, "hosts": [{"name": "a", "nics": [{"name": "n", "near": ["UP"]}], "gpus": 1}]},
            "'UP'",
        ),
        (
            {"version": 1, "hosts": [{"name": "a", "nics": [{"name": "n", "near": ["PIX"]}], "gpus": 2}]},
            "near of",
        ),
        (
            {"version": 1, "hosts": [{"name": "a", "nics": [{"name": "n", "gpus": 4}], "gpus": 2}]},
            "names GPU 4",
        ),
        ({"version": 1, "hosts": [{"name": "a"}], "nic": {"bytes_per_s": "50GB"}}, "nic.bytes_per_s"),
        ({"version": 1, "hosts": [{"name": "a"}], "nic": {"efficiency": 95}}, "efficiency"),
        ({"version": 1, "hosts": [{"name": "a"}], "pods": [{"name": "p", "hosts": "b"}]}, "host 'b'"),
        ({"version": 1, "hosts": [{"name": "a", "gpus": 2**21}]}, "expected a number from 0"),
        (
            {"version": 1, "hosts": [{"name": "a"}], "pods": [{"name": "p", "hosts": "a,a"}]},
            "host 'a' of pod 'p' is given twice",
        ),
        (
            {
                "version": 1,
                "hosts": [{"name": "a[0-1]"}],
                "pods": [{"name": "p", "hosts": "a[0-1]"}, {"name": "q", "hosts": "a0"}],
            },
            "pod 'q' names host 'a0', which is in pod 'p'; expected one pod at most",
        ),
        (
            {"version": 1, "hosts": [], "switches": [{"name": "l", "parents": ["s", "s"]}]},
            "parent 's' of switch 'l' is given twice",
        ),
        (
            {"version": 1, "hosts": [], "switches": [{"name": "l", "parents": ["l"]}]},
            "parents of switch 'l' lead back to it, 'l' to 'l'",
        ),
        (
            {"version": 1, "hosts": [{"name": "a", "domain": {"value": "d", "origin": "guessed"}}]},
            "hosts[0].domain.origin is 'guessed'",
        ),
    ],
)
def test_a_cluster_file_that_is_wrong_gets_one_clear_sentence(raw: object, text: str) -> None:
    with pytest.raises((SpecError, TopologyError)) as caught:
        cluster_from_form(raw)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_spec_may_refer_to_a_cluster_file(tmp_path: Path) -> None:
    cluster = replace(preset_cluster("dgx-h100", ["a", "b"]), rank_map=(*range(8, 16), *range(8)))
    (tmp_path / "cluster.yaml").write_text(cluster_to_yaml(cluster))
    (tmp_path / "spec.yaml").write_text(
        "version: 1\n"
        "meshes: {train: {ranks: '0-7', axes: {tp: 8}}, serve: {ranks: '8-15', axes: {tp: 8}}}\n"
        "topology: {file: cluster.yaml}\n"
        "tensors: [{name: w, shape: [8, 8], dtype: bfloat16, src: {mesh: train, placements: [S(0)]},"
        " dst: {mesh: serve, placements: [S(0)]}}]\n"
    )
    spec = rp.ReshardSpec.load(tmp_path / "spec.yaml")
    assert spec.topology == resolve(load_cluster(tmp_path / "cluster.yaml")).topology
    assert spec.topology.gpu_of(0) == 8
    assert [each.rail for each in spec.topology.nics] == [*range(8), *range(8)]
    plan = rp.compile(spec)
    rp.verify(plan)


@given(clusters())
@settings(max_examples=30)
def test_the_graph_has_every_host_gpu_and_nic(cluster: Cluster) -> None:
    graph = cluster.graph()
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert kinds.count("gpu") == cluster.gpu_count
    assert kinds.count("host") == len(cluster.hosts)
    assert kinds.count("nic") == sum(len(host.nics) for host in cluster.hosts)
    assert None not in kinds
    assume(cluster.gpu_count)
    numbers = sorted(number for _, number in graph.nodes(data="number") if number is not None)
    assert numbers == list(range(cluster.gpu_count))


def test_a_host_without_nvlink_is_said_to_be_on_pcie() -> None:
    gpus = tuple(Gpu(f"GPU{index}", nvlinks=Fact(0)) for index in range(2))
    cluster = Cluster(hosts=(Host("a", gpus),))
    resolved = resolve(cluster)
    [text] = texts(resolved, FindingKind.ASSUMED)
    assert "2 PCIe ports: the datasheet rate is unknown, 32 GB/s is assumed" in text
    assert "450 GB/s" not in cluster_text(cluster, resolved)


def test_what_is_assumed_of_nvlink_is_said_of_every_gpu_that_it_concerns() -> None:
    overridden = Cluster(hosts=(Host("a", EIGHT[:2]), Host("b", tuple(map(plain_gpu, "xyz")))))
    overridden = replace(overridden, overrides=Overrides(domains=(("a",),)))
    assert any("host b: " in text for text in texts(resolve(overridden), FindingKind.ASSUMED))
    joined = (replace(plain_gpu("g0"), island=Fact(0)), replace(plain_gpu("g1"), island=Fact(0)))
    partly = Cluster(hosts=(Host("a", (*joined, plain_gpu("g2"), plain_gpu("g3"))),))
    assert any("NVLinks of g2, g3" in text for text in texts(resolve(partly), FindingKind.ASSUMED))


def plain_gpu(name: str) -> Gpu:
    return Gpu(name)


def test_a_nic_that_nobody_uses_is_named() -> None:
    nics = (HostNic("x", gpus=Fact((0, 1))), HostNic("y"))
    resolved = resolve(Cluster(hosts=(Host("a", EIGHT[:2], nics),)))
    assert any("do not use y" in text for text in texts(resolved, FindingKind.UNKNOWN))
    assert any("1 NIC: the datasheet rate" in text for text in texts(resolved, FindingKind.ASSUMED))


def test_a_network_alone_is_checked_too() -> None:
    nics = [
        tuple(HostNic(f"n{i}", port=PortFacts(Fact(rate * GB))) for i in range(2)) for rate in (50, 50, 25)
    ]
    found = check(Cluster(hosts=tuple(Host(name, nics=each) for name, each in zip("abc", nics, strict=True))))
    assert sum("25 GB/s" in finding.text for finding in found) >= 1
    assert any("no source lists GPUs" in finding.text for finding in found)


def test_a_host_with_fewer_links_than_others_of_its_model_is_found() -> None:
    few = tuple(replace(gpu, nvlinks=Fact(12)) for gpu in EIGHT)
    [finding] = worst(check(Cluster(hosts=(host("a"), host("b", gpus=few)))))
    assert finding.place == "host b"
    assert finding.text.endswith("limited to 247 GB/s")


@pytest.mark.parametrize(
    "text",
    [
        '{version: 1, hosts: [{name: "n[01-16]", gpus: 8, nics: 8}]}',
        '{"version": 1, "hosts": [{"name": "n[01-16]", "gpus": 8, "nics": 8}]}',
        'hosts:\n- {name: "n[01-16]", gpus: 8, nics: 8}\nversion: 1\n',
    ],
)
def test_cluster_files_are_recognised_however_they_are_laid_out(text: str) -> None:
    imported = import_text(text, host="x", source="one.yaml")
    assert imported.cluster.gpu_count == 128


def test_findings_are_one_line_whatever_names_are() -> None:
    finding = Finding(FindingKind.UNKNOWN, "host a\nb", "is \x1b[31mred, ü")
    assert str(finding) == "unknown: host a\\nb: is \\x1b[31mred, ü"


@pytest.mark.parametrize("gpu", [-1, 8, True])
def test_a_rank_map_that_names_no_gpu_is_refused(gpu: int) -> None:
    with pytest.raises(TopologyError, match="rank_map puts rank 0 on GPU"):
        Cluster(hosts=(host("a"),), rank_map=(gpu,))
