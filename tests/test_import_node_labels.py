"""Labels of Kubernetes nodes: whoever wrote them, the same groups of nodes come out."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from imported_facts import findings, in_time, parents, paths
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import FindingKind, Origin
from reshard_planner.topology.importers import node_labels
from reshard_planner.topology.importers.labels import LabelKeys
from reshard_planner.topology.importers.reading import Reading, Settings

EKS = (SAMPLES / "aws_eks_node_topology_labels.json").read_text()
CLIQUE, COUNT, PRODUCT = "nvidia.com/gpu.clique", "nvidia.com/gpu.count", "nvidia.com/gpu.product"
TOPOGRAPH = "accelerator.topograph.run/domain"
UUID = "0a1b2c3d-0000-4444-8888-0123456789ab"
NONE = "00000000-0000-0000-0000-000000000000"
TIERS = LabelKeys().paths


def nodes(labels, capacity=None, **metadata):
    """The nodes as kubectl prints them, much shortened; ``labels`` by name of the node."""
    items = []
    for name, given_labels in labels.items():
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": given_labels}}
        if capacity is not None:
            node["status"] = {"capacity": {"cpu": "96", "nvidia.com/gpu": capacity}}
        items.append(node)
    return {
        "apiVersion": "v1",
        "items": items,
        "kind": "List",
        "metadata": {"resourceVersion": "", **metadata},
    }


def read(value, keys=LabelKeys()):  # noqa: B008 - it is frozen
    text = value if isinstance(value, str) else json.dumps(value)
    return node_labels.read(text, Reading("", "nodes.json", Settings(label_keys=keys)))


def domains(imported):
    return {host.name: host.domain.value for host in imported.cluster.hosts if host.domain is not None}


def test_the_sample_has_three_nodes_with_three_layers_each():
    assert node_labels.recognises(EKS)
    imported = read(EKS)
    first, second, third = (f"ip-192-168-{middle}-1.us-west-2.compute.internal" for middle in (0, 50, 51))
    nn = {digit: f"nn-{str(digit) * 10}example" for digit in range(1, 9)}
    assert paths(imported) == {
        first: (nn[3], nn[2], nn[1]),
        second: (nn[6], nn[5], nn[4]),
        third: (nn[8], nn[7], nn[4]),
    }
    assert parents(imported) == {
        nn[1]: (),
        nn[2]: (nn[1],),
        nn[3]: (nn[2],),
        nn[4]: (),
        nn[5]: (nn[4],),
        nn[6]: (nn[5],),
        nn[7]: (nn[4],),
        nn[8]: (nn[7],),
    }
    assert not domains(imported)
    [finding] = imported.findings
    assert "GPUs are not known" in str(finding)


def test_cliques_are_domains_and_gpus_have_a_number_and_a_model():
    labels = {f"n{n}": {CLIQUE: f"{UUID}.{n // 2}", COUNT: "4", PRODUCT: "NVIDIA-GB200"} for n in range(4)}
    imported = read(nodes(labels, "4"))
    assert domains(imported) == {f"n{n}": f"{UUID}.{n // 2}" for n in range(4)}
    assert imported.cluster.gpu_count == 16
    for host in imported.cluster.hosts:
        assert [gpu.name for gpu in host.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
        assert {gpu.model.value for gpu in host.gpus} == {"NVIDIA-GB200"}
        assert host.domain.origin is Origin.FILE
        assert host.domain.source == "nodes.json"
    assert not imported.findings


def test_a_clique_of_zeros_is_no_domain_and_the_gpus_know_that():
    imported = read(nodes({"n": {CLIQUE: f"{NONE}.0", COUNT: "8"}}))
    assert not domains(imported)
    assert {gpu.fabric.value for gpu in imported.cluster.hosts[0].gpus} == {""}
    assert not imported.findings
    imported = read(nodes({"n": {CLIQUE: f"{NONE}.0", COUNT: "8", TOPOGRAPH: "d"}}))
    assert domains(imported) == {"n": "d"}
    assert any("NVLink ends at the host" in text for text in findings(imported, FindingKind.CONFLICT))


def test_json_yaml_and_a_single_node_read_alike():
    value = nodes({"n1": {COUNT: "8", TOPOGRAPH: "d"}}, "8")
    as_json, as_yaml = read(json.dumps(value, indent=4)), read(yaml.safe_dump(value))
    assert as_json == as_yaml == read(value["items"][0])
    for text in (json.dumps(value), yaml.safe_dump(value), json.dumps(value["items"][0])):
        assert node_labels.recognises(text)


def test_only_its_own_sample_is_recognised():
    for path in SAMPLES.iterdir():
        assert node_labels.recognises(path.read_text()) == (
            path.name == "aws_eks_node_topology_labels.json"
        ), path


@pytest.mark.parametrize("scheme", TIERS, ids=[scheme[0] for scheme in TIERS])
def test_all_known_families_of_labels_give_paths_nearest_first(scheme):
    given_labels = {key: f"s{level}" for level, key in enumerate(scheme)}
    imported = read(nodes({"n": {COUNT: "8", **given_labels}}))
    assert paths(imported) == {"n": tuple(f"s{level}" for level in range(len(scheme)))}
    assert not imported.findings


def test_a_missing_level_and_a_cut_path_are_found():
    tier = "fabric.topograph.run/tier-"
    whole = {f"{tier}0": "a", f"{tier}1": "b", f"{tier}2": "c"}
    labels = {name: {COUNT: "8", **whole} for name in ("n1", "n2")}
    gap = {key: value for key, value in whole.items() if key != f"{tier}1"}
    found = findings(read(nodes({**labels, "n3": {COUNT: "8", **gap}})), FindingKind.UNKNOWN)
    assert any("hosts n3: labels skip a level" in text for text in found)
    cut = {key: value for key, value in whole.items() if key != f"{tier}2"}
    found = findings(read(nodes({**labels, "n3": {COUNT: "8", **cut}})), FindingKind.UNKNOWN)
    assert any("hosts n3: labels name fewer levels" in text for text in found)
    twice = {**whole, f"{tier}2": "a"}
    imported = read(nodes({"n": {COUNT: "8", **twice}}))
    assert not paths(imported)
    assert any("one switch at two levels" in text for text in findings(imported, FindingKind.UNKNOWN))


def test_labels_that_group_nodes_differently_conflict_and_other_names_for_a_group_do_not():
    def pair(*values):
        return nodes(
            {f"n{n}": {COUNT: "4", CLIQUE: f"{UUID}.{a}", TOPOGRAPH: b} for n, (a, b) in enumerate(values)}
        )

    same = read(pair((1, "x"), (1, "x"), (2, "y")))
    assert not findings(same, FindingKind.CONFLICT)
    assert any("name the same groups differently" in text for text in findings(same, FindingKind.ASSUMED))
    for values in (((1, "x"), (1, "y")), ((1, "x"), (2, "x")), ((1, f"{UUID}.2"),)):
        imported = read(pair(*values))
        assert any(f"{CLIQUE} and {TOPOGRAPH}" in text for text in findings(imported, FindingKind.CONFLICT))
        assert domains(imported) == {f"n{n}": f"{UUID}.{clique}" for n, (clique, _) in enumerate(values)}
    assert not read(pair((1, f"{UUID}.1"))).findings


def test_hashes_in_place_of_long_values_are_compared_only():
    labels = {
        f"n{n}": {COUNT: "4", TOPOGRAPH: "x3e4f1a2b3c4d5e6f" if n < 2 else "x0000000000000001"}
        for n in range(3)
    }
    assert list(domains(read(nodes(labels))).values()) == ["x3e4f1a2b3c4d5e6f"] * 2 + ["x0000000000000001"]


def test_paths_of_two_families_that_differ_conflict():
    aws, tier = "topology.k8s.aws/network-node-layer-", "fabric.topograph.run/tier-"
    same = {"n1": {COUNT: "8", f"{aws}3": "nn-1", f"{aws}2": "nn-2", f"{tier}0": "nn-1"}}
    assert not read(nodes(same)).findings
    labels = {f"n{n}": {COUNT: "8", f"{aws}3": f"nn-{n}", f"{tier}0": "leaf"} for n in range(2)}
    imported = read(nodes(labels))
    assert paths(imported) == {"n0": ("leaf",), "n1": ("leaf",)}
    assert len(findings(imported, FindingKind.CONFLICT)) == 1


def test_numbers_of_gpus_that_differ_conflict_and_the_label_wins():
    imported = read(nodes({"n1": {COUNT: "8"}, "n2": {COUNT: "8"}}, "7"))
    assert imported.cluster.gpu_count == 16
    assert any("hosts n[1-2]" in text for text in findings(imported, FindingKind.CONFLICT))
    assert read(nodes({"n1": {}}, "4")).cluster.gpu_count == 4


def test_nodes_without_a_domain_or_a_path_where_others_have_one_are_named():
    tier = "fabric.topograph.run/tier-0"
    imported = read(nodes({"n1": {COUNT: "8", TOPOGRAPH: "d", tier: "s"}, "n2": {COUNT: "8"}}))
    found = findings(imported, FindingKind.UNKNOWN)
    assert any("hosts n2: no label names their NVLink domain" in text for text in found)
    assert any("hosts n2: no label names a switch" in text for text in found)


def test_nodes_without_a_known_label_are_left_out_and_named():
    imported = read(nodes({"control": {"role": "x"}, "n1": {COUNT: "8"}}))
    assert [host.name for host in imported.cluster.hosts] == ["n1"]
    assert any("nodes control:" in text for text in findings(imported, FindingKind.UNKNOWN))


def test_a_list_with_a_continuation_says_that_it_ends_early():
    imported = read(nodes({"n1": {COUNT: "8"}}, **{"continue": "token", "remainingItemCount": 7}))
    assert any("ends early" in text for text in findings(imported, FindingKind.UNKNOWN))


def test_keys_of_labels_can_be_others():
    keys = LabelKeys(domains=("rack",), paths=(("tor", "pod"),), gpu_count="gpus", gpu_product="gpu")
    imported = read(
        nodes({"n": {"rack": "r", "tor": "t", "pod": "p", "gpus": "2", "gpu": "B300"}}), keys=keys
    )
    assert domains(imported) == {"n": "r"}
    assert paths(imported) == {"n": ("t", "p")}
    assert [gpu.model.value for gpu in imported.cluster.hosts[0].gpus] == ["B300", "B300"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("[]", "is a list of 0; expected fields"),
        ("{}", "neither items nor Nodes"),
        ('{"items": 3}', "items is 3; expected a list"),
        ('{"items": []}', "no node with a label"),
        ('{"items": [{"kind": "Pod", "metadata": {}}]}', "node 1 is of kind 'Pod'; expected Node"),
        ('{"items": [{"kind": "Node"}]}', "metadata is missing"),
        ('{"items": [{"metadata": {"labels": {}}}]}', "metadata.name is missing"),
        ('{"items": [{"metadata": {"name": "n", "labels": [1]}}]}', "labels is a list of 1"),
        (nodes({"n": {CLIQUE: 7}}), f"has {CLIQUE} 7; expected text"),
        (nodes({"n": {CLIQUE: "x" * 300}}), "expected text of at most 256"),
        (nodes({"n": {COUNT: "many"}}), f"{COUNT} is 'many'; expected 0 to 64"),
        (nodes({"n": {COUNT: "65"}}), "expected 0 to 64"),
        (nodes({"n": {COUNT: "-1"}}), "expected 0 to 64"),
        (nodes({"n": {COUNT: "8"}}, "0x8"), "status.capacity nvidia.com/gpu is '0x8'"),
        ('{"Nodes": [{"Topology": {}}]}', "Name is missing"),
        ('{"Nodes": [{"Name": "a", "Topology": 3}]}', "Topology is 3"),
        (json.dumps(nodes({"n": {COUNT: "8"}}))[:-5], "not valid JSON"),
        ('{"items": [], "items": []}', "the field 'items' is given twice"),
    ],
)
def test_what_is_no_list_of_nodes_is_refused_in_one_sentence(value, says):
    with pytest.raises(TopologyError, match=r"^nodes\.json") as caught:
        read(value)
    assert says in str(caught.value)


def test_a_node_that_is_there_twice_is_refused():
    value = nodes({"n": {COUNT: "8"}})
    value["items"] *= 2
    with pytest.raises(TopologyError, match="node 'n' twice"):
        read(value)


@st.composite
def clusters(draw):
    count = draw(st.integers(1, 12))
    rows = {}
    for number in range(count):
        leaf = draw(st.integers(0, 3))
        rows[f"n{number}"] = (
            draw(st.integers(0, 2)),
            (f"l{leaf}", f"s{leaf // 2}", "top"),
            draw(st.integers(1, 8)),
        )
    return rows


@given(clusters(), st.sampled_from([scheme for scheme in TIERS if len(scheme) >= 3]), st.booleans())
def test_nodes_are_read_back(rows, scheme, as_yaml):
    keys = scheme[-3:] if "aws" in scheme[0] else scheme[:3]
    value = nodes(
        {
            name: {CLIQUE: f"{UUID}.{clique}", COUNT: str(count), **dict(zip(keys, path, strict=True))}
            for name, (clique, path, count) in rows.items()
        }
    )
    imported = read(yaml.safe_dump(value) if as_yaml else value)
    assert domains(imported) == {name: f"{UUID}.{clique}" for name, (clique, _, _) in rows.items()}
    assert paths(imported) == {name: path for name, (_, path, _) in rows.items()}
    assert {host.name: len(host.gpus) for host in imported.cluster.hosts} == {
        n: row[2] for n, row in rows.items()
    }
    assert parents(imported) == {
        k: v for _, (a, b, c), _ in rows.values() for k, v in ((a, (b,)), (b, (c,)), (c, ()))
    }
    assert not imported.findings


def test_damaged_samples_are_refused_remarked_on_or_read_as_they_are_written():
    whole = read(EKS)
    key = "topology.k8s.aws/network-node-layer-"
    for damage in damages(EKS, 1500):
        imported = in_time(read, damage.text)
        if imported is None or imported == whole or len(imported.findings) > 1:
            continue
        written = json.loads(damage.text)["Nodes"]
        assert [host.name for host in imported.cluster.hosts] == [node["Name"] for node in written], damage
        expected = [tuple(node["Topology"].get(f"{key}{n}") for n in (3, 2, 1)) for node in written]
        assert list(paths(imported).values()) == expected, damage


def load_yaml(text):
    return yaml.load(text, yaml.CSafeLoader)


def test_damaged_lists_of_kubectl_are_refused_remarked_on_or_read_as_they_are_written():
    tier = "fabric.topograph.run/tier-"
    labels = {
        f"n{n}": {CLIQUE: f"{UUID}.{n // 2}", COUNT: "4", f"{tier}0": f"l{n // 2}", f"{tier}1": "top"}
        for n in range(6)
    }
    value = nodes(labels, "4")
    for text, load in ((json.dumps(value, indent=1), json.loads), (yaml.safe_dump(value), load_yaml)):
        whole = read(text)
        for damage in damages(text, 750):
            imported = in_time(read, damage.text)
            if imported is None or imported == whole or imported.findings:
                continue
            loaded = load(damage.text)
            items = loaded.get("items", [loaded])
            expected = {}
            for item in items:
                given_labels = item["metadata"].get("labels", {})
                if item["metadata"]["name"] in domains(imported):
                    expected[item["metadata"]["name"]] = given_labels[CLIQUE]
                host = next(host for host in imported.cluster.hosts if host.name == item["metadata"]["name"])
                count = given_labels.get(COUNT) or item["status"]["capacity"]["nvidia.com/gpu"]
                assert len(host.gpus) == int(count), damage
            assert domains(imported) == expected, damage
            assert len(items) == len(imported.cluster.hosts), damage


@pytest.mark.parametrize(
    "text",
    [
        '{"items": ' + "[" * 100_000,
        '{"items": [' + '{"kind": "Node", "metadata": ' * 20_000,
        '{"items": "' + "x" * 3_000_000 + '"}',
        "items: [" + "x," * 600_000 + "]",
        "items: " + "[" * 800 + "]" * 800,
        '{"items": [' + "9" * 5_000 + "]}",
        "items:\n- metadata: {name: a, labels: {nvidia.com/gpu.count: 0x" + "f" * 20_000 + "}}\n",
    ],
    ids=range(7),
)
def test_huge_lists_end_at_once(text):
    assert in_time(read, text) is None
