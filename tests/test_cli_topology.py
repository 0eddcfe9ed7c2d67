"""``reshard-planner topology``: what each action prints and writes, and bad input in one sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from test_cli import assert_refused, call, result
from test_import_nvidia_smi_xml import Card, output
from test_import_topo_matrix import matrix, nv_matrix

from reshard_planner.cli.verbs.topology import ACTIONS
from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.form import ClusterForm, schema
from reshard_planner.topology.cluster.reading import load_cluster
from reshard_planner.topology.cluster.resolve import resolve
from reshard_planner.topology.importers import IMPORTERS, find_importer
from reshard_planner.topology.importers.reading import Reading

SAMPLES = Path(__file__).parent / "data" / "topology"
DGX = SAMPLES / "ibm_vpc_h100_nccl_dump.xml"
TREE = """\
SwitchName=leaf1 Nodes=a
SwitchName=leaf2 Nodes=b
SwitchName=spine Switches=leaf[1-2]
"""
SPEC = """\
version: 1
meshes:
  train: {ranks: "0-7", axes: {tp: 8}}
  serve: {ranks: "8-15", axes: {tp: 8}}
topology: {file: cluster.yaml}
tensors:
  - name: w
    shape: [64, 64]
    dtype: bfloat16
    src: {mesh: train, placements: [S(0)]}
    dst: {mesh: serve, placements: [S(1)]}
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """What NCCL says of one host of eight GPUs and eight NICs."""
    path = tmp_path / "node.xml"
    shutil.copy(DGX, path)
    return path


@pytest.fixture
def degraded(tmp_path: Path) -> Path:
    """The same, with a GPU that has lost links, and a NIC at half its rate."""
    gpus = DGX.read_text().split("<gpu ")
    gpus[6] = gpus[6].replace('count="5"', 'count="3"')
    path = tmp_path / "degraded.xml"
    path.write_text("<gpu ".join(gpus).replace('dev="5" speed="200000"', 'dev="5" speed="100000"'))
    return path


@pytest.fixture
def cluster(tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The cluster file of two hosts."""
    path = tmp_path / "cluster.yaml"
    assert call(capsys, "topology", "import", f"a={node}", f"b={node}", "-o", path)[0] == 0
    return path


def test_every_action_has_a_help_with_examples(capsys):
    assert [action.name for action in ACTIONS] == [
        "import",
        "preset",
        "show",
        "check",
        "draw",
        "measure",
        "schema",
    ]
    for action in ACTIONS:
        code, out, err = call(capsys, "topology", action.name, "--help")
        assert (code, err) == (0, "")
        assert "examples:\n" in out
        assert re.search(rf"topology {action.name}\b", out)


def test_import_names_every_format_in_its_help(capsys):
    out = call(capsys, "topology", "import", "--help")[1]
    for importer in IMPORTERS.values():
        assert f"  {importer.name:<16} {importer.summary}\n" in out


def test_formats_load_when_they_are_used_and_no_sooner():
    """Their modules, and YAML, XML and pictures with them, are slow to import."""
    loading = "import sys, reshard_planner.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "reshard_planner.topology.importers" in loaded
    formats = {f"reshard_planner.topology.importers.{importer.module}" for importer in IMPORTERS.values()}
    slow = {"yaml", "xml.etree.ElementTree", "reshard_planner.render.cluster.draw"}
    assert not loaded & (formats | slow)


@pytest.mark.parametrize("importer", IMPORTERS.values(), ids=IMPORTERS)
def test_no_format_recognises_or_reads_an_empty_text(importer):
    assert not importer.recognises("")
    with pytest.raises(TopologyError, match=r"^f"):
        importer.read("", Reading("a", "f"))


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_formats_that_do_not_name_hosts_take_the_name_that_is_given_and_no_others_do(path):
    text = path.read_text()
    try:
        importer = find_importer(text, path.name)
        hosts = importer.read(text, Reading("given", path.name)).cluster.hosts
    except TopologyError:
        return  # that it is refused is another test's
    assert {host.name.startswith("given") for host in hosts} == {not importer.names_hosts}


def test_a_byte_order_mark_is_passed_over(node, cluster, tmp_path, capsys):
    (tmp_path / "marked.xml").write_text(node.read_text(), encoding="utf-8-sig")
    form = json.dumps(yaml.safe_load(cluster.read_text()), indent=1)
    (tmp_path / "marked.json").write_text(form, encoding="utf-8-sig")
    for plain, marked in ((f"a={node}", f"a={tmp_path / 'marked.xml'}"), (cluster, tmp_path / "marked.json")):
        found, other = (result(capsys, "topology", "show", source) for source in (plain, marked))
        assert other["topology"] == found["topology"]
    assert load_cluster(tmp_path / "marked.json") == load_cluster(cluster)


def test_the_files_of_the_examples_are_samples_or_one_with_less(node, degraded):
    examples = SAMPLES.parents[2] / "examples" / "clusters"
    assert (examples / "h100-node.xml").read_text() == node.read_text()
    assert (examples / "h100-degraded.xml").read_text() == degraded.read_text()


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_every_sample_is_imported_or_refused_in_a_sentence_and_what_is_written_is_imported_alike(
    path, tmp_path, capsys
):
    """Import of the written file writes the same file: nothing is lost, and nothing is added."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    outcome = call(capsys, "topology", "import", path, "-o", first)
    if outcome[0]:
        assert_refused(outcome, path.name)
        assert path.name in ("SOURCES.txt", "azure_ncv4_nccl_graph.xml")
        assert not first.exists()
        return
    assert call(capsys, "topology", "import", first, "-o", second)[0] == 0
    assert first.read_text() == second.read_text()
    msgspec.convert(yaml.safe_load(first.read_text()), ClusterForm, strict=True)


def test_import_prints_the_file_that_it_would_write_and_findings_apart(node, tmp_path, capsys):
    code, out, err = call(capsys, "topology", "import", f"n[1-4]={node}")
    assert code == 0
    assert "assumed: hosts n[1-4]: taken to be as node.xml says" in err
    path = tmp_path / "c.yaml"
    call(capsys, "topology", "import", f"n[1-4]={node}", "-o", path)
    assert path.read_text() == out


def test_yaml_and_json_say_the_same(cluster, tmp_path, capsys):
    path = tmp_path / "c.json"
    assert call(capsys, "topology", "import", cluster, "-o", path)[0] == 0
    assert load_cluster(path) == load_cluster(cluster)
    assert result(capsys, "topology", "import", cluster)["cluster"] == json.loads(path.read_text())


def test_sources_are_joined_and_the_first_of_equal_trust_wins_with_a_finding(
    node, degraded, tmp_path, capsys
):
    for first, second, rate in ((node, degraded, 25), (degraded, node, 12.5)):
        path = tmp_path / f"{first.stem}.yaml"
        code, out, _ = call(capsys, "topology", "import", f"a={first}", f"a={second}", "-o", path)
        assert code == 0
        assert re.search(r"(?m)^conflict: host a, mlx5_5", out)
        [host] = load_cluster(path).hosts
        rates = {nic.name: nic.port.bytes_per_s.value / 1e9 for nic in host.nics if nic.port.bytes_per_s}
        assert rates["mlx5_5"] == rate


def test_overrides_win_and_are_written_into_the_file(node, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    options = [
        "--rail",
        "mlx5_0=7",
        "--rail",
        "b:mlx5_0=6",
        "--disable-nic",
        "a:mlx5_1",
        "--domain",
        "a:0-3+b:0-3",
    ]
    options += ["--gpu-model", "B200", "--name", "two"]
    call(capsys, "topology", "import", f"a={node}", f"b={node}", "-o", path, *options)
    assert yaml.safe_load(path.read_text())["overrides"] == {
        "rails": {"mlx5_0": 7, "b:mlx5_0": 6},
        "disabled_nics": ["a:mlx5_1"],
        "domains": [["a:0-3", "b:0-3"]],
        "gpu_model": "B200",
    }
    resolved = resolve(load_cluster(path))
    rails = dict(zip(resolved.nics, (nic.rail for nic in resolved.topology.nics), strict=True))
    assert (rails["a", "mlx5_0"], rails["b", "mlx5_0"]) == (7, 6)
    assert ("a", "mlx5_1") not in rails
    assert resolved.domains[0].gpus == (0, 1, 2, 3, 8, 9, 10, 11)
    assert call(capsys, "topology", "import", path, "-o", tmp_path / "d.yaml")[0] == 0
    assert (tmp_path / "d.yaml").read_text() == path.read_text()


def test_ranks_go_to_hosts_as_launchers_give_them(cluster, tmp_path, capsys):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("b slots=8\na slots=8\n")
    swapped = (*range(8, 16), *range(8))
    for options, expected in (
        (["--torchrun", "b,a"], swapped),
        (["--hostfile", hostfile], swapped),
        (["--nodelist", "a,b"], tuple(range(16))),
        (
            ["--nodelist", "a,b", "--distribution", "cyclic"],
            tuple(gpu for at in range(8) for gpu in (at, 8 + at)),
        ),
    ):
        path = tmp_path / "ranks.yaml"
        code, _, err = call(capsys, "topology", "import", cluster, "-o", path, *options)
        assert (code, err) == (0, "")
        assert (load_cluster(path).rank_map or tuple(range(16))) == expected


def test_a_preset_is_a_cluster_file_of_its_hosts(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    options = ("--hosts", "tray[01-36]", "--gpus-per-domain", "36")
    code, out, err = call(capsys, "topology", "preset", "gb200-nvl72", *options, "-o", path)
    assert (code, err) == (0, "")
    assert out.startswith(
        f"wrote {path}\nCluster gb200-nvl72: 36 hosts, 144 GPUs, 4 domains, 144 NICs in use\n"
    )
    assert len(resolve(load_cluster(path)).domains) == 4


def test_show_tells_every_speed_with_its_origin(cluster, capsys):
    code, out, err = call(capsys, "topology", "show", cluster)
    assert (code, err) == (0, "")
    assert out.splitlines()[:6] == [
        "Cluster: 2 hosts, 16 GPUs, 2 domains, 16 NICs in use",
        "  hosts     a,b, 2 hosts, each: 8 GPUs (sm90) of 18 NVLinks; 8 NICs",
        "  domains   0: GPUs 0-7 on a",
        "            1: GPUs 8-15 on b",
        (
            "  NVLink    16 GPUs: 450 GB/s (preset: 18 NVLinks of sm90), efficiency 0.7 (assumed),"
            " latency 10 µs (assumed)"
        ),
        "  NICs      16 NICs: 25 GB/s (file: node.xml), efficiency 0.95 (assumed), latency 15 µs (assumed)",
    ]
    found = result(capsys, "topology", "show", cluster)
    assert set(found) == {"cluster", "topology", "domains", "nics", "findings"}
    assert found["domains"][1] == {"name": "host b, island 0", "gpus": list(range(8, 16))}
    assert found["nics"][0]["host"] == "a"
    for finding in found["findings"]:
        assert set(finding) == {"kind", "place", "text"}


def test_show_tells_what_is_known_of_hosts_without_gpus(tmp_path, capsys):
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    code, out, _ = call(capsys, "topology", "show", path)
    assert code == 0
    assert out.startswith(
        "Cluster: 2 hosts, GPUs unknown\n  hosts     a,b, 2 hosts, each: GPUs unknown; NICs unknown\n"
    )
    assert "\n  switches  3, 1 of them above others\n" in out
    assert "topology" not in result(capsys, "topology", "show", path)


def test_check_fails_where_hardware_is_less_than_its_like_and_says_what_follows(node, degraded, capsys):
    code, out, err = call(capsys, "topology", "check", f"a={node}", f"b={degraded}")
    assert (code, err) == (1, "")
    assert "degraded: host b, GPU5: it has 14 NVLinks, its peers 18: fan-out in this domain is limited" in out
    assert "degraded: host b, mlx5_5: it runs at 12.5 GB/s, most at 25" in out
    assert re.search(r"(?m)^[1-9]\d* to look at, \d+ unknown or assumed$", out)
    code, out, err = call(capsys, "topology", "check", f"a={node}", f"b={degraded}", "--json")
    found = json.loads(out)
    assert (code, err, found["ok"]) == (1, "", False)
    assert {finding["kind"] for finding in found["findings"]} >= {"degraded"}


def test_every_defect_is_said_once_and_import_says_what_check_says(node, degraded, tmp_path, capsys):
    """RC-103: one GPU of a matrix has no links; beside it a GPU and a NIC of another host are less."""
    cells = nv_matrix(8)
    for gpu in range(8):
        cells[2][gpu] = cells[gpu][2] = "NODE" if gpu < 4 else "SYS"
    (tmp_path / "topo.txt").write_text(matrix(cells, 8, numa=[0] * 4 + [1] * 4))
    sources = [f"a={node}", f"b={degraded}", f"c={tmp_path / 'topo.txt'}"]
    out = call(capsys, "topology", "check", *sources)[1]
    defects = re.findall(r"(?m)^degraded: (host \w, \w+): ", out)
    assert sorted(defects) == ["host b, GPU5", "host b, mlx5_5", "host c, GPU2"]
    told = out.splitlines()[:-1]
    assert call(capsys, "topology", "import", *sources)[2].splitlines() == told
    written = call(capsys, "topology", "import", *sources, "-o", tmp_path / "c.yaml")[1]
    assert written.splitlines()[-len(told) :] == told


@pytest.mark.parametrize("counts", [[10], [4, 4], [1, 8, 3]])
def test_a_finding_of_several_gpus_tells_how_many_they_are(counts, tmp_path, capsys):
    """However many hosts and files they are of."""
    for host, count in enumerate(counts):
        gpus = (Card(number, host, state="N/A") for number in range(count))
        (tmp_path / f"h{host}.xml").write_text(output(*gpus))
    sources = [f"h{host}={tmp_path / f'h{host}.xml'}" for host in range(len(counts))]
    for out in (
        call(capsys, "topology", "check", *sources)[1],
        call(capsys, "topology", "import", *sources)[2],
    ):
        assert f"unknown: host h0, GPU0 and {sum(counts) - 1} more: it reports no fabric state" in out


def test_check_passes_where_things_are_assumed_at_most(node, capsys):
    code, out, err = call(capsys, "topology", "check", f"a={node}", f"b={node}")
    assert (code, err) == (0, "")
    assert out.endswith("nothing is wrong, 1 unknown or assumed\n")
    assert result(capsys, "topology", "check", f"a={node}")["ok"] is True


def test_check_fails_where_sources_contradict_each_other(node, degraded, capsys):
    code, out, _ = call(capsys, "topology", "check", f"a={node}", f"a={degraded}")
    assert code == 1
    assert out.startswith("conflict: host a")


def test_draw_writes_the_picture_of_its_suffix(cluster, tmp_path, capsys):
    for suffix, start in ((".dot", "digraph cluster {"), (".gv", "digraph cluster {"), (".svg", "<?xml")):
        path = tmp_path / f"picture{suffix}"
        code, out, err = call(capsys, "topology", "draw", cluster, "-o", path)
        assert (code, out, err) == (0, f"wrote {path}\n", "")
        assert path.read_text().startswith(start)
    assert result(capsys, "topology", "draw", cluster, "-o", tmp_path / "c.dot") == {
        "file": str(tmp_path / "c.dot")
    }


def test_the_schema_describes_every_field_of_the_written_file(cluster, capsys):
    code, out, err = call(capsys, "topology", "schema")
    assert (code, err) == (0, "")
    assert json.loads(out) == schema() == result(capsys, "topology", "schema")
    assert yaml.safe_load(cluster.read_text()).keys() <= schema()["$defs"]["ClusterForm"]["properties"].keys()


@pytest.mark.usefixtures("cluster")
def test_a_spec_plans_on_a_cluster_file(tmp_path, capsys):
    (tmp_path / "spec.yaml").write_text(SPEC)
    certificate = result(capsys, "compile", tmp_path / "spec.yaml")
    assert certificate["bound"]["time_s"] == pytest.approx(64 * 64 * 2 / (8 * 25e9))


BAD = {
    "missing file": (["{folder}/none.xml"], ["cannot read", "none.xml"]),
    "directory": (["{folder}"], ["cannot read", "not a regular file"]),
    "binary": (["{folder}/binary"], ["binary", "not a text file"]),
    "empty": (["{folder}/empty"], ["empty", "no known format"]),
    "unknown text": (["{folder}/words"], ["words", "no known format"]),
    "wrong format": (["{node}", "--format", "ibnetdiscover"], ["node.xml"]),
    "unknown format": (["{node}", "--format", "junk"], ["--format", "junk"]),
    "hosts that the file tells": (["x={folder}/topology.conf"], ["topology.conf tells its 2 hosts itself"]),
    "bracket": (["n[1-={node}"], ["n[1-", "brackets"]),
    "backward": (["n[9-1]={node}"], ["9-1", "backwards"]),
    "same host twice": (["a,a={node}"], ["'a'", "twice"]),
    "too many hosts": (["n[1-999999]={node}"], ["stands for more than"]),
    "rail without number": (["a={node}", "--rail", "mlx5_0"], ["--rail", "mlx5_0", "NIC=N"]),
    "rail given twice": (["a={node}", "--rail", "mlx5_0=1", "--rail", "mlx5_0=2"], ["--rail", "1 and 2"]),
    "empty model": (["a={node}", "--gpu-model", ""], ["--gpu-model"]),
    "empty name": (["a={node}", "--name", ""], ["--name"]),
    "rail not a number": (["a={node}", "--rail", "mlx5_0=x"], ["--rail", "NIC=N"]),
    "rail of no NIC": (["a={node}", "--rail", "none=1"], ["none", "no host has"]),
    "disabled none": (["a={node}", "--disable-nic", "none"], ["none", "no host has"]),
    "domain of no host": (["a={node}", "--domain", "z"], ["'z'"]),
    "domain of no GPU": (["a={node}", "--domain", "a:9"], ["9"]),
    "domain junk": (["a={node}", "--domain", "a:x"], ["overrides.domains", "'x'"]),
    "domain twice": (["a={node}", "--domain", "a:0+a:0"], ["GPU 0 of host 'a'", "once"]),
    "domain size": (["a={node}", "--gpus-per-domain", "0"], ["--gpus-per-domain", "at least 1"]),
    "domain size text": (["a={node}", "--gpus-per-domain", "x"], ["--gpus-per-domain", "x"]),
    "torchrun of no host": (["a={node}", "--torchrun", "z"], ["z"]),
    "nodelist junk": (["a={node}", "--nodelist", "a["], ["brackets"]),
    "hostfile missing": (["a={node}", "--hostfile", "{folder}/none"], ["cannot read", "none"]),
    "two orders": (["a={node}", "--torchrun", "a", "--nodelist", "a"], ["--nodelist"]),
    "ranks per host alone": (["a={node}", "--ranks-per-host", "4"], ["--ranks-per-host", "--torchrun"]),
    "ranks per host 0": (["a={node}", "--torchrun", "a", "--ranks-per-host", "0"], ["at least 1"]),
    "distribution alone": (["a={node}", "--distribution", "cyclic"], ["--distribution", "--nodelist"]),
    "distribution junk": (["a={node}", "--nodelist", "a", "--distribution", "x"], ["x"]),
}
"""Arguments of ``topology import`` after its output, and what the sentence that refuses them mentions."""


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_import_is_one_sentence_and_nothing_is_written(name, node, tmp_path, capsys):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    (tmp_path / "words").write_text("these are words\n")
    (tmp_path / "topology.conf").write_text(TREE)
    arguments, mentions = BAD[name]
    given = [argument.format(folder=tmp_path, node=node) for argument in arguments]
    output = tmp_path / "out.yaml"
    assert_refused(call(capsys, "topology", "import", "-o", output, *given), *mentions)
    assert not output.exists()


@pytest.mark.parametrize("action", ["show", "check", "draw"])
@pytest.mark.parametrize(
    "name", ["missing file", "directory", "binary", "empty", "bracket", "same host twice"]
)
def test_bad_sources_are_refused_by_every_action(action, name, node, tmp_path, capsys):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    arguments, mentions = BAD[name]
    given = [argument.format(folder=tmp_path, node=node) for argument in arguments]
    output = ["-o", tmp_path / "out.svg"] if action == "draw" else []
    assert_refused(call(capsys, "topology", action, *given, *output), *mentions)
    assert not (tmp_path / "out.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["preset", "dgx-h900", "--hosts", "a"], ["dgx-h900"]),
        (["preset", "dgx-h100"], ["--hosts"]),
        (["preset", "dgx-h100", "--hosts", "a["], ["brackets"]),
        (["preset", "dgx-h100", "--hosts", "a,a"], ["'a'", "twice"]),
        (["preset", "dgx-h100", "--hosts", "n[0-131072]"], ["stands for more than"]),
        (["draw", "x.yaml"], ["-o"]),
        (["none"], ["none"]),
        ([], ["ACTION"]),
        (["schema", "x"], ["x"]),
    ],
)
def test_bad_arguments_of_the_other_actions_are_one_sentence(arguments, mentions, capsys):
    assert_refused(call(capsys, "topology", *arguments), *mentions)


def test_files_that_are_read_are_never_written_over(cluster, tmp_path, capsys):
    hostfile = tmp_path / "hosts.yaml"
    hostfile.write_text("a slots=8\nb slots=8\n")
    dot = tmp_path / "n.dot"
    shutil.copy(cluster, dot)
    link = tmp_path / "link.yaml"
    link.symlink_to(cluster)
    for arguments in (
        ["import", cluster, "-o", cluster],
        ["import", cluster, "-o", link],
        ["import", cluster, "--hostfile", hostfile, "-o", hostfile],
        ["draw", dot, "-o", dot],
        ["draw", f"x={dot}", "-o", dot],
    ):
        target = Path(arguments[-1])
        before = target.read_bytes()
        assert_refused(call(capsys, "topology", *arguments), "is the file that is read", target.name)
        assert target.read_bytes() == before


@pytest.mark.parametrize("action", ["import", "preset", "draw"])
def test_an_output_of_another_kind_is_refused_before_anything_is_read(action, tmp_path, capsys):
    source = ["dgx-h100", "--hosts", "a"] if action == "preset" else ["none.xml"]
    for name in ("c.txt", "c", "c.yaml.bak"):
        outcome = call(capsys, "topology", action, *source, "-o", tmp_path / name)
        assert_refused(outcome, "--output", name, ".svg" if action == "draw" else ".yaml")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused(cluster, tmp_path, capsys):
    for action, name in (("import", "c.yaml"), ("draw", "c.dot")):
        outcome = call(capsys, "topology", action, cluster, "-o", tmp_path / "none" / name)
        assert_refused(outcome, "none")


def test_hosts_without_gpus_cannot_be_drawn_and_are_checked_as_far_as_known(tmp_path, capsys):
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    assert_refused(call(capsys, "topology", "draw", path, "-o", tmp_path / "c.dot"), "2 hosts", "GPUs")
    code, out, err = call(capsys, "topology", "check", path)
    assert (code, err) == (0, "")
    assert "unknown: 2 hosts: no source lists GPUs" in out
    assert not (tmp_path / "c.dot").exists()


def test_names_that_no_terminal_should_see_are_escaped(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    hosts = [{"name": "a\u202eb", "gpus": 2, "nics": 2}]
    path.write_text(yaml.safe_dump({"version": 1, "name": '\u001b[31mred\n"x" <b>', "hosts": hosts}))
    for arguments in (["show", path], ["check", path], ["draw", path, "-o", tmp_path / "c.dot"]):
        code, out, err = call(capsys, "topology", *arguments)
        assert (code, err) == (0, "")
        assert not {"\u001b", "\u202e"} & set(out)
    assert not {"\u001b", "\u202e"} & set((tmp_path / "c.dot").read_text())
