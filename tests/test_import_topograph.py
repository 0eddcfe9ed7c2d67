"""Files of topograph: models of simulations and the output of its engine graph say the same of a cluster."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from imported_facts import domains, findings, in_time, parents, paths
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import FindingKind, Origin
from reshard_planner.topology.cluster.hostlist import expand_hosts, fold_hosts
from reshard_planner.topology.importers import topograph
from reshard_planner.topology.importers.labels import LabelKeys
from reshard_planner.topology.importers.reading import Reading, Settings

MODEL = (SAMPLES / "topograph_model_nvl72.yaml").read_text()
DOMAIN = "accelerator.topology.test/domain"
SUBDOMAIN = "accelerator.topology.test/sub-domain"
GRAPH = json.dumps(
    {
        "instances": [
            {
                "id": f"i-{number}",
                "network_layers": [f"leaf-{number // 2}", "spine"],
                "labels": {"accelerator.topograph.run/domain": f"nvl-{number // 2}", "example.com/rack": "r"},
            }
            for number in range(6)
        ]
    },
    indent=1,
)


def read(text, keys=LabelKeys()):  # noqa: B008 - it is frozen
    return topograph.read(text, Reading("", "model.yaml", Settings(label_keys=keys)))


def test_the_sample_has_four_domains_of_eighteen_hosts_under_four_leaves():
    imported = read(MODEL)
    assert len(imported.cluster.hosts) == 72
    for rack in ("1-1", "1-2", "2-1", "2-2"):
        hosts = list(expand_hosts(f"node[{rack.replace('-', '')}01-{rack.replace('-', '')}18]"))
        assert domains(imported)[f"nvl-{rack}"] == hosts
        assert {paths(imported)[host] for host in hosts} == {(f"leaf-{rack}", f"spine-{rack[0]}", "core")}
    assert parents(imported) == {
        "core": (),
        "spine-1": ("core",),
        "spine-2": ("core",),
        **{f"leaf-{rack}": (f"spine-{rack[0]}",) for rack in ("1-1", "1-2", "2-1", "2-2")},
    }
    assert {host.domain.origin for host in imported.cluster.hosts} == {Origin.FILE}
    assert not imported.findings
    assert not imported.cluster.gpu_count


def test_the_engine_graph_gives_instances_with_their_domains_and_layers():
    imported = read(GRAPH)
    assert domains(imported) == {f"nvl-{n}": [f"i-{2 * n}", f"i-{2 * n + 1}"] for n in range(3)}
    assert paths(imported) == {f"i-{n}": (f"leaf-{n // 2}", "spine") for n in range(6)}
    assert parents(imported) == {"spine": (), **{f"leaf-{n}": ("spine",) for n in range(3)}}
    [finding] = imported.findings
    assert "instance ids" in str(finding)


def test_the_older_spelling_of_the_engine_graph_has_its_domain_in_an_attribute():
    text = '{"instances": [{"id": "I21", "network_layers": ["S2", "S1"], "attributes": {"nvlink": "n1"}}]}'
    assert domains(read(text)) == {"n1": ["I21"]}


OLDER = {
    "lists": """
switches:
- {name: S1, switches: [S2, S3]}
- {name: S2, capacity_blocks: [CB2]}
- {name: S3, capacity_blocks: [CB3]}
capacity_blocks:
- {name: CB2, type: H100, nvlink: nvl2, nodes: [I21, I22]}
- {name: CB3, type: H100, nvlink: nvl3, nodes: ["I[34-35]"]}
""",
    "capacity blocks": """
switches:
  S1: {metadata: {region: r}, switches: [S2, S3]}
  S2: {nodes: ["I[21-22]"]}
  S3: {nodes: [I34, I35]}
capacity_blocks:
  CB2: {nodes: ["I[21-22]"], attributes: {nvlink: nvl2}}
  CB3: {nodes: ["I[34-35]"], attributes: {nvlink: nvl3}}
""",
    "nodes": """
switches:
  S1: {switches: [S2, S3]}
  S2: {nodes: ["I[21-22]"]}
  S3: {nodes: [I34, I35]}
nodes:
  I21: {attributes: {nvlink: nvl2}}
  I22: {capacity_block: CB2}
  I34: {labels: {network.topology.nvidia.com/accelerator: nvl3}}
  I35: {attributes: {nvlink: nvl3}}
capacity_blocks:
  CB2: {attributes: {nvlink: nvl2}}
""",
    "annotations of switches": f"""
switches:
  S1: {{switches: [S2, S3]}}
  S2: {{annotations: {{{DOMAIN}: nvl2}}}}
  S3: {{annotations: {{{DOMAIN}: wrong}}}}
blocks:
- {{switch: S2, nodes: ["I[21-22]"]}}
- {{switch: S3, nodes: ["I[34-35]"], annotations: {{{DOMAIN}: nvl3}}}}
""",
}


@pytest.mark.parametrize("text", OLDER.values(), ids=OLDER)
def test_all_spellings_of_a_model_say_the_same(text):
    assert topograph.recognises(text)
    imported = read(text)
    assert domains(imported) == {"nvl2": ["I21", "I22"], "nvl3": ["I34", "I35"]}
    assert paths(imported) == {
        "I21": ("S2", "S1"),
        "I22": ("S2", "S1"),
        "I34": ("S3", "S1"),
        "I35": ("S3", "S1"),
    }
    assert not imported.findings


def test_only_its_own_sample_is_recognised():
    for path in SAMPLES.iterdir():
        assert topograph.recognises(path.read_text()) == (path.name == "topograph_model_nvl72.yaml"), path
    assert topograph.recognises(GRAPH)


def test_the_key_of_domains_can_be_another_one():
    text = "switches: {s: {}}\nblocks:\n- {switch: s, nodes: [a], labels: {rack: r1}}\n"
    assert not domains(read(text))
    assert any(
        "no label names an NVLink domain" in text for text in findings(read(text), FindingKind.UNKNOWN)
    )
    assert domains(read(text, keys=LabelKeys(domains=("rack",)))) == {"r1": ["a"]}


def test_subdomains_hosts_without_switches_and_empty_switches_are_remarked_on():
    imported = read(
        "switches: {s: {}, t: {}}\nspare: 1\nblocks:\n"
        f"- {{switch: s, nodes: [a], annotations: {{{DOMAIN}: d, {SUBDOMAIN}: e}}}}\n"
        f"- {{nodes: [b], annotations: {{{DOMAIN}: d}}}}\n"
    )
    assert domains(imported) == {"d": ["a", "b"]}
    assert any("sub-domains" in text for text in findings(imported, FindingKind.ASSUMED))
    unknown = findings(imported, FindingKind.UNKNOWN)
    assert any("hosts b: no switch" in text for text in unknown)
    assert any("switches t: without hosts" in text for text in unknown)
    assert any("spare" in text for text in unknown)


def test_a_host_in_two_blocks_has_no_domain_where_they_differ():
    imported = read(
        "switches: {s: {}, t: {}}\nblocks:\n"
        f"- {{switch: s, nodes: [a, b], annotations: {{{DOMAIN}: d}}}}\n"
        f"- {{switch: t, nodes: [b, c], annotations: {{{DOMAIN}: e}}}}\n"
    )
    assert domains(imported) == {"d": ["a"], "e": ["c"]}
    assert paths(imported) == {"a": ("s",), "c": ("t",)}
    assert len(findings(imported, FindingKind.CONFLICT)) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n", "neither instances nor switches"),
        ("- a\n", "is a list of 1; expected fields"),
        ("switches: {}\n", "has no nodes"),
        ("switches: 3\n", "is 3; expected fields"),
        ("switches: {s: {switches: t}}\n", "switches is 't'; expected a list"),
        ("switches: {s: {switches: [s]}}\n", "ring of switches"),
        ("switches: {s: {nodes: ['n[1-']}}\n", "do not match"),
        ("switches: {s: {nodes: [7]}}\n", "is 7; expected text"),
        ("switches: {s: {}}\nblocks: [{switch: t, nodes: [a]}]\n", "switch 't', which the file lacks"),
        ("switches: {s: {}}\nblocks: [{switch: s}]\n", "block 1 has no nodes"),
        ("switches: {s: {}}\nblocks: [{switch: s, nodes: [a], labels: 3}]\n", "labels is 3; expected fields"),
        ("switches: [{name: s}, {name: s}]\n", "s is given twice"),
        ("switches: {s: {}\n", "not valid YAML"),
        ('{"instances": []}', "no instance"),
        ('{"instances": [{}]}', "id is missing"),
        ('{"instances": [{"id": "a"}, {"id": "a"}]}', "id 'a' again"),
        ('{"instances": [{"id": "a", "network_layers": ["s", "s"]}]}', "names a switch twice"),
        ('{"instances": [{"id": "a", "network_layers": [""]}]}', "network_layers is ''"),
        ('{"instances": [{"id": "a", "id": "b"}]}', "the field 'id' is given twice"),
        ('{"instances": [{"id": "a"', "not valid JSON at line 1"),
        (
            '{"instances": [{"id": "a"}, {"id": "b", "network_layers": ["t", "u", "t"]}]}',
            "instance 2: network_layers names a switch twice",
        ),
    ],
)
def test_what_is_no_file_of_topograph_is_refused_in_one_sentence(text, says):
    with pytest.raises(TopologyError, match=r"^model\.yaml") as caught:
        read(text)
    assert says in str(caught.value)


def test_layers_of_two_instances_that_contradict_each_other_are_refused():
    layers = (["s", "t"], ["t", "s"])
    rows = [{"id": f"i{number}", "network_layers": each} for number, each in enumerate(layers)]
    with pytest.raises(TopologyError, match="ring of switches"):
        read(json.dumps({"instances": rows}))


@st.composite
def clusters(draw):
    """Leaves below spines, with hosts of several domains."""
    spines = draw(st.integers(1, 3))
    leaves = {f"leaf{n}": f"spine{draw(st.integers(0, spines - 1))}" for n in range(draw(st.integers(1, 6)))}
    hosts, count = [], 0
    for leaf in leaves:
        for _ in range(draw(st.integers(1, 2))):
            size = draw(st.integers(1, 4))
            names = [f"n{number:02}" for number in range(count, count + size)]
            hosts.append((leaf, names, f"d{draw(st.integers(0, 3))}"))
            count += size
    return leaves, hosts


@given(clusters())
def test_models_and_graphs_are_read_back(cluster):
    leaves, rows = cluster
    switches = {
        spine: {"switches": [leaf for leaf in leaves if leaves[leaf] == spine]} for spine in leaves.values()
    }
    blocks = [
        {"switch": leaf, "nodes": [fold_hosts(names)], "annotations": {DOMAIN: d}} for leaf, names, d in rows
    ]
    instances = [
        {"id": name, "network_layers": [leaf, leaves[leaf]], "labels": {DOMAIN: d}}
        for leaf, names, d in rows
        for name in names
    ]
    expected = {}
    for _, names, domain in rows:
        expected.setdefault(domain, []).extend(names)
    for text in (
        yaml.safe_dump({"switches": switches, "blocks": blocks}),
        json.dumps({"instances": instances}),
    ):
        imported = read(text)
        assert topograph.recognises(text)
        assert domains(imported) == expected
        assert paths(imported) == {name: (leaf, leaves[leaf]) for leaf, names, _ in rows for name in names}
        assert parents(imported) == {
            **dict.fromkeys(leaves.values(), ()),
            **{k: (v,) for k, v in leaves.items()},
        }
        assert {finding.kind for finding in imported.findings} <= {FindingKind.ASSUMED}


def test_damaged_models_are_refused_remarked_on_or_read_as_they_are_written():
    whole = read(MODEL)
    for damage in damages(MODEL, 1500):
        imported = in_time(read, damage.text)
        if imported is None or imported == whole or imported.findings:
            continue
        written = yaml.load(damage.text, yaml.CSafeLoader)
        blocks = written["blocks"]
        expected = {}
        for block in blocks:
            for name in expand_hosts(",".join(block["nodes"])):
                expected.setdefault(block["annotations"][DOMAIN], []).append(name)
        assert domains(imported) == expected, damage
        assert {path[0] for path in paths(imported).values()} == {block["switch"] for block in blocks}, damage


def test_damaged_graphs_are_refused_remarked_on_or_read_as_they_are_written():
    whole = read(GRAPH)
    for damage in damages(GRAPH, 1500):
        imported = in_time(read, damage.text)
        if imported is None or imported == whole or len(imported.findings) > 1:
            continue
        instances = json.loads(damage.text)["instances"]
        assert [host.name for host in imported.cluster.hosts] == [instance["id"] for instance in instances], (
            damage
        )
        assert list(paths(imported).values()) == [
            tuple(instance["network_layers"]) for instance in instances
        ], damage


@pytest.mark.parametrize("text", [MODEL, GRAPH], ids=["model", "graph"])
def test_a_file_that_ends_within_a_line_is_refused_or_says_so(text):
    for end in range(len(text) // 2, len(text)):
        if text[end - 1] != "\n":
            imported = in_time(read, text[:end])
            assert imported is None or any("may end early" in str(finding) for finding in imported.findings)


@pytest.mark.parametrize(
    "text",
    [
        "switches: " + "x" * 3_000_000,
        "switches: " + "[" * 100_000,
        '{"instances": ' + "[" * 100_000,
        '{"instances": [' + "9" * 100_000 + "]}",
        "switches: {s: {nodes: ['n[0-999999999]']}}\n",
        "switches: {s: {nodes: [" + "'n[0-99999]'," * 5_000 + "]}}\n",
        "switches:\n" + "".join(f"  s{n}: {{switches: [s{n + 1}]}}\n" for n in range(2000)),
        json.dumps({"instances": [{"id": "a", "network_layers": [f"s{n}" for n in range(100_000)]}]}),
        json.dumps({"instances": [{"id": f"a{n}"} for n in range(140_000)]}),
    ],
    ids=range(9),
)
def test_huge_files_end_at_once(text):
    assert in_time(read, text) is None


def test_a_switch_below_thousands_of_others_is_read_in_time():
    rows = [{"id": f"a{n}", "network_layers": ["leaf", f"s{n}"]} for n in range(5_000)]
    imported = in_time(read, json.dumps({"instances": rows}))
    assert len(parents(imported)["leaf"]) == 5_000
