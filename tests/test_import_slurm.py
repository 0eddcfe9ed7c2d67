"""Slurm's topology.conf and topology.yaml: what they say is read, and damage never as something else."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from imported_facts import domains, findings, in_time, names, parents, paths
from topology_damage import SAMPLES, damages

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import FindingKind, Origin
from reshard_planner.topology.cluster.hostlist import expand_hosts, fold_hosts
from reshard_planner.topology.importers import slurm_conf, slurm_yaml
from reshard_planner.topology.importers.imported import Imported
from reshard_planner.topology.importers.reading import Reading, Settings

CONF = (SAMPLES / "slurm_topology_block.conf").read_text()
YAML = (SAMPLES / "slurm_topology.yaml").read_text()


def conf(text):
    return slurm_conf.read(text, Reading("", "topology.conf"))


def topology(text, name=None):
    return slurm_yaml.read(text, Reading("", "topology.yaml", Settings(slurm_topology=name)))


# samples


def test_the_sample_of_blocks_has_eight_domains_of_four_hosts():
    imported = conf(CONF)
    assert names(imported) == [f"node{number:02}" for number in range(1, 33)]
    assert domains(imported) == {
        f"b{block}": [f"node{number:02}" for number in range(4 * block - 3, 4 * block + 1)]
        for block in range(1, 9)
    }
    assert {host.domain.origin for host in imported.cluster.hosts} == {Origin.ASSUMED}
    assert {host.domain.source for host in imported.cluster.hosts} == {"topology.conf"}
    assert not imported.cluster.switches
    assert not imported.cluster.gpu_count
    [finding] = imported.findings
    assert finding.kind is FindingKind.ASSUMED
    assert "b[1-8]" in str(finding)
    assert "8, 16, 32, 64" in str(finding)


def test_the_sample_of_topologies_gives_the_default_one_and_names_the_others():
    imported = topology(YAML)
    assert names(imported) == ["node01", "node02", "node03", "node04"]
    assert paths(imported) == {
        "node01": ("s1", "sw_root"),
        "node02": ("s1", "sw_root"),
        "node03": ("s2", "sw_root"),
        "node04": ("s2", "sw_root"),
    }
    assert parents(imported) == {"sw_root": (), "s1": ("sw_root",), "s2": ("sw_root",)}
    [finding] = imported.findings
    assert "topo2 (block), topo3 (flat), topo3a (flat), topo4 (ring), topo5 (torus3d)" in str(finding)
    assert "asked for by name" in str(finding)


@pytest.mark.parametrize(("name", "hosts"), [("topo3", 0), ("topo3a", 0), ("topo4", 16), ("topo5", 32)])
def test_flat_rings_and_tori_give_names_and_say_that_it_is_all(name, hosts):
    imported = topology(YAML, name)
    assert names(imported) == [f"node{number:02}" for number in range(1, hosts + 1)]
    assert not paths(imported)
    assert not domains(imported)
    assert any(
        "nothing but names of hosts is known" in text for text in findings(imported, FindingKind.UNKNOWN)
    )


def test_a_topology_is_chosen_by_its_name():
    assert list(domains(topology(YAML, "topo2")).values()) == [
        list(expand_hosts(hosts)) for hosts in ("node[01-04]", "node[05-08]", "node[09-12]", "node[13-16]")
    ]
    with pytest.raises(TopologyError, match="no topology 'topo22'; expected one of its own, such as 'topo2'"):
        topology(YAML, "topo22")


def test_each_format_recognises_its_own_sample_alone():
    for path in SAMPLES.iterdir():
        if path.suffix != ".txt" or "smi" in path.name:
            text = path.read_text()
            assert slurm_conf.recognises(text) == (path.name == "slurm_topology_block.conf"), path
            assert slurm_yaml.recognises(text) == (path.name == "slurm_topology.yaml"), path


# grammar of topology.conf


def test_comments_continuations_quotes_and_letter_case_are_slurms():
    imported = conf(
        "# a tree\nSWITCHNAME = s0 switches=s[1-2]   # the top\n\n"
        'switchname=s1 Nodes="n[1-2]"\nSwitchName=s2 \\\n   Nodes=n[3-\\\n4]\n'
    )
    assert paths(imported) == {"n1": ("s1", "s0"), "n2": ("s1", "s0"), "n3": ("s2", "s0"), "n4": ("s2", "s0")}
    assert not imported.findings


def test_trees_may_be_unbalanced():
    imported = conf(
        "SwitchName=top Switches=mid,s3\nSwitchName=mid Switches=s1\nSwitchName=s1 Nodes=a\n"
        "SwitchName=s3 Nodes=b\n"
    )
    assert paths(imported) == {"a": ("s1", "mid", "top"), "b": ("s3", "top")}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SwitchName=s1 Nodes=n[1-2\n", "line 1: host list 'n[1-2' has brackets that do not match"),
        ("SwitchName=s1\n", "neither Switches nor Nodes"),
        ("SwitchName=s1 Nodes=a Switches=s2\n", "both Switches and Nodes"),
        ("SwitchName=s1 Switches=s2\n", "no switch 's2'"),
        ("SwitchName=s1 Nodes=a\nSwitchName=s1 Nodes=b\n", "switch 's1' twice"),
        ("SwitchName=s1 Switches=s2\nSwitchName=s2 Switches=s1\n", "ring of switches"),
        ("SwitchName=s1 Switches=s1\n", "ring of switches"),
        ("SwitchName=s[1-2] Nodes=a\n", "expected one name"),
        ("SwitchName=s1 Nodes=a, b\n", "line 1 has 'b'; expected KEY=VALUE"),
        ("SwitchName=s1 Nodes=a Nodes=b\n", "gives Nodes twice"),
        ("SwitchName=s1 Noodles=a\n", "has noodles beside SwitchName; expected Switches, Nodes, LinkSpeed"),
        ("BlockName=b1 Switches=a\n", "has switches beside BlockName; expected Nodes"),
        ("BlockName=b1\n", "BlockName b1 has no Nodes"),
        ("BlockName=b1 Nodes=a\nBlockName=b1 Nodes=c\n", "line 2: BlockName b1 is given twice"),
        ("BlockName=b1 Nodes=a\nBlockSizes=4,x\n", "BlockSizes 4,x; expected numbers"),
        ("Nodes=a\n", "has 0 of SwitchName, BlockName, RingName, BlockSizes"),
        ("# nothing\n", "no line with SwitchName"),
        ("", "no line with SwitchName"),
        (
            "".join(f"SwitchName=s{n} Switches=s{n + 1}\n" for n in range(40)) + "SwitchName=s40 Nodes=a\n",
            "more than 32",
        ),
    ],
)
def test_what_slurm_would_refuse_is_refused_in_one_sentence(text, says):
    with pytest.raises(TopologyError) as caught:
        conf(text)
    assert says in str(caught.value)
    assert "topology.conf" in str(caught.value)


def test_link_speeds_rings_and_included_files_are_not_passed_over_in_silence():
    imported = conf("include more.conf\nSwitchName=s1 Nodes=a LinkSpeed=100\nRingName=r Nodes=b[1-2]\n")
    assert names(imported) == ["a", "b1", "b2"]
    found = findings(imported, FindingKind.UNKNOWN)
    assert any("more.conf is not read" in text for text in found)
    assert any("switches s1: LinkSpeed" in text for text in found)
    assert any("rings r:" in text for text in found)


def test_a_host_under_two_leaves_has_no_path_and_one_in_two_blocks_no_domain():
    imported = conf(
        "SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n[3-4]\n"
        "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[2-3]\n"
    )
    assert paths(imported) == {"n1": ("s1",), "n2": ("s1",), "n4": ("s2",)}
    assert domains(imported) == {"b1": ["n1"], "b2": ["n3"]}
    conflicts = findings(imported, FindingKind.CONFLICT)
    assert any("hosts n3: listed under several switches, s[1-2]" in text for text in conflicts)
    assert any("hosts n2: listed in the blocks b[1-2]" in text for text in conflicts)


def test_a_switch_below_two_others_keeps_both_and_paths_end_there():
    imported = conf("SwitchName=a Switches=leaf\nSwitchName=b Switches=leaf\nSwitchName=leaf Nodes=n\n")
    assert parents(imported)["leaf"] == ("a", "b")
    assert paths(imported) == {"n": ("leaf",)}
    assert any("paths of hosts end there" in text for text in findings(imported, FindingKind.UNKNOWN))


def test_blocks_smaller_than_others_or_than_their_size_are_found():
    imported = conf("BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockName=b3 Nodes=n[37-53]\n")
    assert any(
        "blocks b3: have 17 hosts where most have 18" in text
        for text in findings(imported, FindingKind.DEGRADED)
    )
    imported = conf("BlockName=b1 Nodes=n[1-4]\nBlockSizes=18\n")
    assert any("BlockSizes asks for 18" in text for text in findings(imported, FindingKind.DEGRADED))


# topology.yaml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n", "is an object with fields; expected a list"),
        ("[]\n", "has no topology"),
        ("- tree: {}\n", "topology 1: topology is missing"),
        ("- topology: 7\n  flat: true\n", "topology is 7; expected text, in quotes"),
        ("- topology: t\n", "has 0 of tree, block"),
        ("- {topology: t, flat: true, block: {}}\n", "has 2 of tree, block"),
        ("- {topology: t, flat: true}\n- {topology: t, flat: true}\n", "name 't' again"),
        ("- {topology: t, cluster_default: maybe, flat: true}\n", "cluster_default is 'maybe'"),
        ("- {topology: t, tree: {}}\n", "switches is missing; expected a list"),
        ("- {topology: t, tree: {switches: [{switch: s}]}}\n", "neither children nor nodes"),
        (
            "- {topology: t, tree: {switches: [{switch: s, nodes: a, children: b}]}}\n",
            "both children and nodes",
        ),
        ("- {topology: t, tree: {switches: [{switch: s, children: b}]}}\n", "no switch 'b'"),
        ("- {topology: t, block: {blocks: [{block: b}]}}\n", "nodes is missing; expected text"),
        ("- {topology: t, block: {blocks: [{block: b, nodes: ','}]}}\n", "names nothing; expected a name"),
        (
            "- {topology: t, block: {blocks: [{block: b, nodes: a}, {block: b, nodes: c}]}}\n",
            "name 'b' again",
        ),
        ("- {topology: t, block: {block_sizes: [x], blocks: []}}\n", "block_sizes has 'x'"),
        ("- {topology: t, tree: [1]}\n", "is a list of 1; expected fields"),
        ("- topology: t\n  topology: u\n", "gives the field 'topology' twice"),
        ("- {topology: t\n", "not valid YAML"),
        ("- {topology: 2020-13-45, flat: true}\n", "date or number"),
    ],
)
def test_what_is_no_topology_is_refused_in_one_sentence(text, says):
    with pytest.raises(TopologyError) as caught:
        topology(text)
    assert says in str(caught.value)


def test_without_a_default_or_with_two_the_first_is_read_and_that_is_said():
    two = "- {topology: t, flat: true}\n- {topology: u, cluster_default: true, flat: true}\n"
    assert not findings(topology(two), FindingKind.ASSUMED)
    assert "topology u:" in str(topology(two).findings[0])
    for text in (
        two.replace("true, flat", "false, flat"),
        two.replace("t, flat", "t, cluster_default: true, flat"),
    ):
        assert any("topology t:" in found for found in findings(topology(text), FindingKind.ASSUMED))


def test_fields_that_are_not_known_are_named():
    imported = topology("- {topology: t, shape: x, tree: {switches: [{switch: s, nodes: a, speed: 1}]}}\n")
    assert any("shape" in text for text in findings(imported, FindingKind.UNKNOWN))
    assert any("speed" in text for text in findings(imported, FindingKind.UNKNOWN))


# what is written can be read


@st.composite
def trees(draw):
    """Switches with their children or hosts, the children after their parents."""
    count = draw(st.integers(1, 12))
    above = [None, *(draw(st.integers(0, child - 1)) for child in range(1, count))]
    leaves = [place for place in range(count) if place not in above]
    sizes = [draw(st.integers(1, 5)) for _ in leaves]
    prefix = draw(st.sampled_from(["n", "rack7-n0", "node"]))
    hosts, given = {}, 0
    for place, size in zip(leaves, sizes, strict=True):
        hosts[f"s{place}"] = [f"{prefix}{number}" for number in range(given, given + size)]
        given += size
    children = {f"s{p}": [f"s{c}" for c in range(count) if above[c] == p] for p in range(count) if p in above}
    return children, hosts, {f"s{c}": () if p is None else (f"s{p}",) for c, p in enumerate(above)}


def up(switch, parent):
    return (switch, *(up(parent[switch][0], parent) if parent[switch] else ()))


def conf_of(children, hosts):
    rows = [f"SwitchName={name} Switches={fold_hosts(below)}" for name, below in children.items()]
    return "".join(
        f"{row}\n" for row in rows + [f"SwitchName={s} Nodes={fold_hosts(h)}" for s, h in hosts.items()]
    )


def yaml_of(children, hosts):
    switches = [{"switch": name, "children": fold_hosts(below)} for name, below in children.items()]
    switches += [{"switch": name, "nodes": fold_hosts(below)} for name, below in hosts.items()]
    return yaml.safe_dump([{"topology": "t", "cluster_default": True, "tree": {"switches": switches}}])


@given(trees())
def test_trees_are_read_back_from_both_formats(tree):
    children, hosts, parent = tree
    expected = {host: up(leaf, parent) for leaf, below in hosts.items() for host in below}
    for imported in (conf(conf_of(children, hosts)), topology(yaml_of(children, hosts))):
        assert paths(imported) == expected
        assert parents(imported) == parent
        assert not imported.findings


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_blocks_are_read_back_from_both_formats(sizes):
    blocks, given_hosts = {}, 0
    for block, size in enumerate(sizes):
        blocks[f"b{block}"] = [f"n{number:03}" for number in range(given_hosts, given_hosts + size)]
        given_hosts += size
    as_conf = "".join(f"BlockName={name} Nodes={fold_hosts(hosts)}\n" for name, hosts in blocks.items())
    rows = [{"block": name, "nodes": fold_hosts(hosts)} for name, hosts in blocks.items()]
    as_yaml = yaml.safe_dump([{"topology": "t", "block": {"block_sizes": [1], "blocks": rows}}])
    for imported in (conf(as_conf + "BlockSizes=1\n"), topology(as_yaml)):
        assert domains(imported) == blocks
        assert any("NVLink domain" in text for text in findings(imported, FindingKind.ASSUMED))
        assert bool(findings(imported, FindingKind.DEGRADED)) == (len(set(sizes)) > 1)


# damage


def test_damaged_blocks_are_refused_remarked_on_or_lack_whole_lines():
    whole = domains(conf(CONF))
    for damage in damages(CONF, 1500):
        imported = in_time(conf, damage.text)
        if imported is None or domains(imported) == whole:
            continue
        assert isinstance(imported, Imported)
        remarks = [finding for finding in imported.findings if finding.kind is not FindingKind.ASSUMED]
        of_lines = {
            row[1]: list(expand_hosts(row[2]))
            for line in damage.text.split("\n")
            if (row := re.match(r"\s*blockname\s*=\s*(\S+)\s+nodes\s*=\s*(\S+)", line, re.IGNORECASE))
        }
        # without a remark, what was read is word for word what the lines still say
        assert remarks or domains(imported) == of_lines, damage


def plainly(text, name):
    """Blocks or leaves of a topology with their hosts, read without a look at what is wrong."""
    entries = yaml.load(text, yaml.CSafeLoader)
    default = next((entry for entry in entries if entry.get("cluster_default")), entries[0])
    entry = next(entry for entry in entries if entry["topology"] == name) if name else default
    rows = entry["tree"]["switches"] if "tree" in entry else entry.get("block", {}).get("blocks", [])
    return {row.get("switch") or row.get("block"): row["nodes"] for row in rows if row.get("nodes")}


@pytest.mark.parametrize(("name", "seed"), [(None, 1), ("topo2", 2)])
def test_damaged_topologies_are_refused_remarked_on_or_read_as_they_are_written(name, seed):
    whole = topology(YAML, name)
    for damage in damages(YAML, 750, seed):
        imported = in_time(lambda text: topology(text, name), damage.text)
        if imported is None or imported == whole:
            continue
        if any(finding.kind is FindingKind.CONFLICT for finding in imported.findings):
            continue
        expected = {row: set(expand_hosts(hosts)) for row, hosts in plainly(damage.text, name).items()}
        found = {}
        for host in imported.cluster.hosts:
            row = host.domain.value if host.domain else host.path.value[0] if host.path else None
            found.setdefault(row, set()).add(host.name)
        found.pop(None, None)
        assert found == expected, damage


@pytest.mark.parametrize("text", [CONF, YAML], ids=["conf", "yaml"])
def test_a_file_that_ends_within_a_line_is_refused_or_says_so(text):
    read = conf if text is CONF else topology
    for end in range(1, len(text)):
        if text[end - 1] == "\n":
            continue
        imported = in_time(read, text[:end])
        assert imported is None or any("may end early" in str(finding) for finding in imported.findings)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "SwitchName=s Nodes=" + "n" * 10_000_000,
        "SwitchName=s Nodes=n[0-999999999]",
        "SwitchName=s" + " " * 10_000_000 + "x",
        "BlockName=" + "b" * 3_000_000,
        "a=b " * 1_000_000,
        "\\\n" * 1_000_000,
        "\n" * 1_000_000,
        "".join(f"SwitchName=s{n} Nodes=n[0-131071]\n" for n in range(50)),
        "".join(f"SwitchName=s{n} Switches=s[0-3999]\n" for n in range(4000)),
        "#" * 40_000_000,
    ],
    ids=range(11),
)
def test_huge_conf_files_end_at_once(text):
    assert in_time(conf, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "- topology: t\n  tree: " + "[" * 100_000,
        "- topology: t\n  tree: " + "[" * 900 + "]" * 900,
        "- " * 100_000,
        "[" + "x," * 1_000_000 + "]",
        "a: &a [x,x]\nb: &b [*a,*a]\n"
        + "".join(f"c{n}: &c{n} [*{'b' if not n else f'c{n - 1}'}," + "*b]\n" for n in range(40)),
        "- {topology: t, block: {blocks: [{block: b, nodes: 'n[0-999999999]'}]}}\n",
        "- {topology: t, block: {block_sizes: [0x" + "f" * 20_000 + "], blocks: []}}\n",
        "? 0x" + "f" * 20_000 + "\n: 1\n",
        "- topology: t\n  tree: {switches: [" + "{switch: s, children: 's[0-99999]'}," * 500 + "]}\n",
    ],
    ids=range(10),
)
def test_huge_yaml_files_end_at_once(text):
    assert in_time(topology, text) is None
