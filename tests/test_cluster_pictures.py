"""Pictures of clusters: every device of a small one and who uses what, groups of a large one, no overlaps."""

from __future__ import annotations

import re
import runpy
import shutil
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from _hash_seeds import texts_under_hash_seeds
from _plans import HOSTILE_NAME
from cluster_strategies import clusters
from hypothesis import given, settings
from hypothesis import strategies as st
from soon import soon

from reshard_planner.render.cluster.draw import cluster_dot
from reshard_planner.render.sheets.spread import spread
from reshard_planner.render.svg import to_svg
from reshard_planner.topology.cluster.checks import check
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, HostPod, Overrides, Switch
from reshard_planner.topology.cluster.nics import find_uses
from reshard_planner.topology.cluster.presets import preset_cluster
from reshard_planner.topology.cluster.resolve import resolve

GB = 10**9

IMAGES = Path(__file__).parent.parent / "docs" / "images"

Attributes = dict[str, str]

ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s\]]+)')
STATEMENT = re.compile(r"\s*(\w+)(?: -> (\w+))? \[(.*)\]")

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program 'dot' is installed")


@dataclass(frozen=True)
class Drawn:
    """What a DOT text says: nodes, frames with the frame around them, frame of each node, lines."""

    nodes: dict[str, Attributes]
    frames: dict[str, Attributes]
    parents: dict[str, str | None]
    inside: dict[str, str | None]
    lines: list[tuple[str, str, Attributes]]

    def of(self, kind: str) -> dict[str, Attributes]:
        return {name: node for name, node in self.nodes.items() if node["class"] == kind}

    def box(self, name: str) -> tuple[float, float, float, float]:
        """Left, right, lower and upper end of a node or a frame, in points."""
        if name in self.frames:
            left, low, right, high = (float(part) for part in self.frames[name]["bb"].split(","))
            return left, right, low, high
        node = self.nodes[name]
        x, y = (float(part) for part in node["pos"].split(","))
        width, height = float(node["width"]) * 36, float(node["height"]) * 36
        return x - width, x + width, y - height, y + height


def read(dot: str) -> Drawn:
    """Parse our own DOT: one statement a line; an unknown line is a broken one."""
    drawn = Drawn({}, {}, {}, {}, [])
    opened: list[str] = []
    for line in dot.splitlines()[1:]:
        if frame := re.fullmatch(r"\t+subgraph cluster_(\w+) \{", line):
            assert frame[1] not in drawn.parents
            drawn.parents[frame[1]] = opened[-1] if opened else None
            opened.append(frame[1])
        elif line.strip() == "}":
            if opened:
                opened.pop()
        elif statement := STATEMENT.fullmatch(line):
            found = {key: value.strip('"') for key, value in ATTRIBUTE.findall(statement[3])}
            if statement[2]:
                drawn.lines.append((statement[1], statement[2], found))
            elif statement[1] not in ("graph", "node", "edge"):
                assert statement[1] not in drawn.nodes
                drawn.nodes[statement[1]] = found
                drawn.inside[statement[1]] = opened[-1] if opened else None
        else:
            assert re.fullmatch(r'\t+(\w+=("(?:[^"\\]|\\.)*"|[^\s"]+) ?)+', line), line
            drawn.frames[opened[-1]] = {key: value.strip('"') for key, value in ATTRIBUTE.findall(line)}
    return drawn


def draw(cluster: Cluster) -> Drawn:
    return read(cluster_dot(cluster, resolve(cluster), check(cluster)))


def sound(cluster: Cluster) -> Cluster:
    """A cluster of up to four hosts that resolves: with a GPU, without overrides that name nothing."""
    hosts = (*cluster.hosts[:3], Host("with a GPU", (Gpu("g"),)))
    names = {host.name for host in hosts}
    pods = tuple(pod for pod in cluster.pods if names.issuperset(pod.hosts))
    return replace(cluster, hosts=hosts, pods=pods, rank_map=None, overrides=Overrides())


def many(cluster: Cluster) -> Cluster:
    """A sound cluster with so many more hosts that they are drawn in groups."""
    cluster = sound(cluster)
    more = (replace(host, name=f"{host.name}~{copy}") for copy in range(4) for host in cluster.hosts)
    return replace(cluster, hosts=(*cluster.hosts, *more))


def test_boxes_stand_as_near_to_what_they_want_as_there_is_room() -> None:
    @given(st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 20)), max_size=5))
    @settings(max_examples=60)
    def law(boxes: list[tuple[int, int]]) -> None:
        boxes.sort(key=lambda box: box[0])
        wanted, heights = [box[0] for box in boxes], [box[1] for box in boxes]
        middles = spread(wanted, heights, 2)
        for (one, low), (two, high) in pairwise(zip(middles, heights, strict=True)):
            assert two - one >= (low + high) / 2 + 2 - 1e-9
        best = min(_block_costs(wanted, heights), default=0.0)
        cost = sum((a - b) ** 2 for a, b in zip(middles, wanted, strict=True))
        assert cost == pytest.approx(best, abs=1e-6)

    law()


def _block_costs(wanted: list[int], heights: list[int]) -> list[float]:
    """Costs of all ways to cut the boxes into blocks, each where it likes best, that do not overlap."""
    count, costs = len(wanted), []
    for cuts in (cuts for size in range(count) for cuts in combinations(range(1, count), size)):
        middles: list[float] = []
        for start, stop in pairwise((0, *cuts, count)):
            offsets, cursor = [], 0.0
            for height in heights[start:stop]:
                offsets.append(cursor + height / 2)
                cursor += height + 2
            shift = sum(w - o for w, o in zip(wanted[start:stop], offsets, strict=True)) / (stop - start)
            middles += [shift + offset for offset in offsets]
        free = all(
            two - one >= (heights[at] + heights[at + 1]) / 2 + 2 - 1e-9
            for at, (one, two) in enumerate(pairwise(middles))
        )
        if free:
            costs.append(sum((a - b) ** 2 for a, b in zip(middles, wanted, strict=True)))
    return costs


@given(clusters())
@settings(max_examples=20)
def test_a_small_cluster_shows_every_gpu_in_its_domain_and_host_and_every_nic(cluster: Cluster) -> None:
    cluster = sound(cluster)
    drawn, resolved = draw(cluster), resolve(cluster)
    gpus = drawn.of("gpu")
    assert set(gpus) == {f"gpu_{number}" for number in range(cluster.gpu_count)}
    domain_of = {gpu: at for at, domain in enumerate(resolved.topology.domains) for gpu in domain.gpus}
    numbers = iter(range(cluster.gpu_count))
    for at, host in enumerate(cluster.hosts):
        for _ in host.gpus:
            number = next(numbers)
            assert gpus[f"gpu_{number}"]["domain"] == str(domain_of[number])
            around = _around(drawn, f"gpu_{number}")
            assert f"host_{at}" in around
            assert any(re.fullmatch(rf"domain_{domain_of[number]}(_{at})?", frame) for frame in around)
    names = Counter(drawn.inside[name] for name in drawn.of("nic"))
    assert names == Counter(
        {f"host_{at}": len(host.nics) for at, host in enumerate(cluster.hosts) if host.nics}
    )


@given(clusters())
@settings(max_examples=20)
def test_lines_join_each_gpu_with_the_nics_that_it_uses_and_these_with_their_switch(cluster: Cluster) -> None:
    cluster = sound(cluster)
    drawn = draw(cluster)
    domains = resolve(cluster).topology.domains
    domain_of = {gpu: at for at, domain in enumerate(domains) for gpu in domain.gpus}
    onward: dict[str, set[str]] = {}
    for tail, head, _ in drawn.lines:
        onward.setdefault(tail, set()).add(head)
    number = 0
    for at, host in enumerate(cluster.hosts):
        of_host = [domain_of[number + position] for position in range(len(host.gpus))]
        place = {nic.name: position for position, nic in enumerate(host.nics)}
        for position in range(len(host.gpus)):
            reached = onward.get(f"gpu_{number + position}", set())
            through = {
                nic for joint in reached for nic in onward.get(joint, ()) if joint.startswith("shared")
            }
            expected = {
                f"nic_{at}_{place[use.nic.name]}"
                for use in find_uses(host, of_host)[0]
                if position in use.gpus
            }
            assert {name for name in (*reached, *through) if name.startswith("nic")} == expected
        for nic in host.nics:
            name = f"nic_{at}_{place[nic.name]}"
            if nic.leaf is not None and name in onward:
                [switch] = onward[name]
                assert drawn.nodes[switch]["class"] == "switch"
                assert drawn.nodes[switch].get("switch", "") in ("", nic.leaf.value)
        number += len(host.gpus)


@given(clusters())
@settings(max_examples=20)
def test_groups_of_a_large_cluster_add_up_to_it(cluster: Cluster) -> None:
    cluster = many(cluster)
    groups = draw(cluster).of("hosts").values()
    assert sum(int(group["hosts"]) for group in groups) == len(cluster.hosts)
    assert sum(int(group["gpus"]) for group in groups) == cluster.gpu_count
    assert len(groups) <= 13


@given(cluster=clusters(), large=st.booleans())
@settings(max_examples=20)
def test_nothing_overlaps_frames_hold_what_is_theirs_and_lines_join_nodes(
    cluster: Cluster, *, large: bool
) -> None:
    drawn = draw(many(cluster) if large else sound(cluster))
    boxes = {name: drawn.box(name) for name in (*drawn.nodes, *drawn.frames)}
    around = {name: _around(drawn, name) for name in boxes}
    for one, two in combinations(boxes, 2):
        if two in around[one]:
            assert _within(boxes[one], boxes[two]), (one, two)
        elif one in around[two]:
            assert _within(boxes[two], boxes[one]), (one, two)
        else:
            assert _apart(boxes[one], boxes[two]), (one, two)
    ids = [each["id"] for each in (*drawn.nodes.values(), *drawn.frames.values())]
    ids += [line["id"] for _, _, line in drawn.lines]
    assert len(ids) == len(set(ids))
    for tail, head, _ in drawn.lines:
        assert {tail, head} <= drawn.nodes.keys()


def _around(drawn: Drawn, name: str) -> list[str]:
    """Frames around a node or a frame, the inner first."""
    frames = []
    frame = drawn.parents[name] if name in drawn.frames else drawn.inside[name]
    while frame is not None:
        frames.append(frame)
        frame = drawn.parents[frame]
    return frames


Box = tuple[float, float, float, float]


def _apart(one: Box, two: Box) -> bool:
    return (
        one[1] <= two[0] + 0.2 or two[1] <= one[0] + 0.2 or one[3] <= two[2] + 0.2 or two[3] <= one[2] + 0.2
    )


def _within(one: Box, two: Box) -> bool:
    return (
        one[0] >= two[0] - 0.2
        and one[1] <= two[1] + 0.2
        and one[2] >= two[2] - 0.2
        and one[3] <= two[3] + 0.2
    )


def damaged() -> Cluster:
    """Two hosts of four GPUs; devices of one are less than their like, or down, or unknown."""

    def host(name: str, links: list[int], rates: list[int | None]) -> Host:
        gpus = tuple(Gpu(f"GPU{at}", Fact("H100"), nvlinks=Fact(count)) for at, count in enumerate(links))
        nics = tuple(
            HostNic(
                f"mlx5_{at}",
                gpus=Fact((at,)),
                leaf=Fact("leaf"),
                rail=Fact(at),
                enabled=Fact(value=False) if name == "b" and at == 3 else None,
                port=PortFacts(None if rate is None else Fact(rate)),
            )
            for at, rate in enumerate(rates)
        )
        return Host(name, gpus, nics)

    leaf = Switch("leaf", ("spine",), PortFacts(Fact(100 * GB)), PortFacts(Fact(400 * GB)))
    fast = [50 * GB] * 4
    return Cluster(
        hosts=(
            host("a", [18] * 4, list(fast)),
            host("b", [18, 12, 0, 18], [50 * GB, 25 * GB, None, 50 * GB]),
        ),
        switches=(leaf,),
    )


def test_what_is_less_or_off_or_assumed_differs_by_words_and_frame_not_by_colour_alone() -> None:
    drawn = draw(damaged())
    marked = {name for name, node in drawn.nodes.items() if node.get("peripheries") == "2"}
    assert marked == {"gpu_5", "gpu_6", "gpu_7", "nic_1_1", "switch_0", "key_less"}
    words = {
        "gpu_5": "12 of 18 NVLinks",
        "gpu_6": "no NVLink, alone",
        "gpu_7": "no NIC of its own",
        "nic_1_1": "25 GB/s, rail 1\\nslower: others 50 GB/s",
        "nic_1_2": "50 GB/s assumed, rail 2",
        "nic_1_3": "down",
        "switch_0": "down 400 GB/s, up 100 GB/s\\n4:1 oversubscribed",
    }
    for name, text in words.items():
        assert text in drawn.nodes[name]["label"], name
    assert drawn.nodes["nic_1_2"]["style"] == "filled,dashed"
    assert drawn.nodes["nic_1_3"]["style"] == "filled,dotted"
    assert {"key_less", "key_off", "key_assumed"} <= drawn.nodes.keys()
    assert not [line for line in drawn.lines if "nic_1_3" in line[:2]]
    assert drawn.inside["gpu_6"] != drawn.inside["gpu_5"]


def test_a_sound_cluster_has_no_marks_and_no_key_of_them() -> None:
    drawn = draw(preset_cluster("dgx-h100", ["a", "b"]))
    assert not [node for node in drawn.nodes.values() if node.get("peripheries") == "2"]
    assert set(drawn.of("key")) == {"key_assumed", "key_0_text"}


def test_a_domain_across_hosts_is_a_frame_around_them() -> None:
    small = draw(preset_cluster("gb200-nvl72", ["t1", "t2"]))
    assert small.parents["host_0"] == small.parents["host_1"] == "domain_0"
    assert "8 GPUs, NVLink 900 GB/s each (preset)" in small.frames["domain_0"]["label"]
    large = draw(preset_cluster("gb200-nvl72", [f"t{at:02}" for at in range(36)]))
    assert {large.inside[name] for name in large.of("hosts")} == {"domain_0", "domain_1"}


def test_part_of_a_domain_says_with_which_hosts_it_is_one() -> None:
    cluster = preset_cluster("dgx-h100", ["a", "b"])
    cluster = replace(cluster, overrides=Overrides(domains=(("a:0-3", "b:0-3"),)))
    drawn = draw(cluster)
    assert "part of domain 0: 8 GPUs" in drawn.frames["domain_0_0"]["label"]
    assert "with b" in drawn.frames["domain_0_0"]["label"]
    assert "with a" in drawn.frames["domain_0_1"]["label"]


def test_what_is_measured_is_slow_from_ten_percent_on_as_the_check_says() -> None:
    [host] = preset_cluster("dgx-h100", ["a"]).hosts
    shares = [0.2, 0.88, *[0.95] * 6]
    nics = tuple(
        replace(nic, port=replace(nic.port, efficiency=Fact(share, Origin.MEASURED)))
        for nic, share in zip(host.nics, shares, strict=True)
    )
    drawn = draw(Cluster(hosts=(replace(host, nics=nics),)))
    marked = {name for name, node in drawn.of("nic").items() if node.get("peripheries") == "2"}
    assert marked == {"nic_0_0"}
    assert drawn.nodes["nic_0_0"]["label"].endswith("slower: others 47.5 GB/s")


def test_nics_that_are_down_and_nics_that_overrides_disable_differ_whatever_sources_are_called() -> None:
    [host] = preset_cluster("dgx-h100", ["a"]).hosts
    down = replace(host.nics[0], enabled=Fact(value=False, source="overrides"))
    cluster = Cluster(
        hosts=(replace(host, nics=(down, *host.nics[1:])),),
        overrides=Overrides(disabled_nics=("a:NIC1", "NIC2")),
    )
    drawn = draw(cluster)
    assert [drawn.nodes[f"nic_0_{at}"]["label"].split("\\n")[1] for at in range(3)] == [
        "down",
        "disabled",
        "disabled",
    ]


def test_pods_are_frames_with_their_uplink_and_oversubscription() -> None:
    names = [f"n{at:03}" for at in range(128)]
    pods = tuple(
        HostPod(f"p{at}", tuple(names[64 * at : 64 * at + 64]), oversubscription=Fact(4.0)) for at in range(2)
    )
    drawn = draw(replace(preset_cluster("dgx-h100", names), pods=pods))
    assert [frame["label"] for frame in drawn.frames.values()] == ["pod p0: 64 hosts", "pod p1: 64 hosts"]
    for name, node in drawn.of("pod").items():
        assert node["label"].endswith("6.4 TB/s\\n4:1 oversubscribed")
        assert node["bytes_per_s"] == str(64 * 8 * 50 * GB // 4)
        assert (name, "network") in [line[:2] for line in drawn.lines]
    assert "n[000-063]: 64 hosts x 8 GPUs" in drawn.nodes["hosts_0"]["label"]
    assert "domains 0-63: one per host" in drawn.nodes["hosts_0"]["label"]


def test_one_host_unlike_the_others_is_a_box_of_its_own() -> None:
    cluster = preset_cluster("dgx-h100", [f"n{at:02}" for at in range(32)])
    hosts = list(cluster.hosts)
    hosts[7] = replace(hosts[7], gpus=hosts[7].gpus[:-1], nics=())
    drawn = draw(replace(cluster, hosts=tuple(hosts)))
    labels = [node["label"] for node in drawn.of("hosts").values()]
    assert any(label.startswith("host n07\\n7 GPUs") and "NICs unknown" in label for label in labels)
    assert any(label.startswith("n[00-06,08-31]: 31 hosts x 8 GPUs") for label in labels)


def test_several_gpus_with_several_nics_meet_in_one_node_and_nobody_else_does() -> None:
    gpus = tuple(Gpu(f"GPU{at}") for at in range(4))
    one = Host("a", gpus, (HostNic("eth0"),))
    several = Host("b", gpus, tuple(HostNic(f"eth{at}") for at in range(3)))
    drawn = draw(Cluster(hosts=(one, several)))
    [joint] = drawn.of("shared")
    assert drawn.nodes[joint]["label"] == "4 GPUs share\\n3 NICs"
    uses = {line[:2] for line in drawn.lines if line[2]["class"] == "use"}
    assert uses == {
        *((f"gpu_{at}", "nic_0_0") for at in range(4)),
        *((f"gpu_{at}", joint) for at in range(4, 8)),
        *((joint, f"nic_1_{at}") for at in range(3)),
    }


def test_a_nic_that_no_gpu_uses_says_so_and_has_no_lines() -> None:
    [host] = preset_cluster("dgx-h100", ["a"]).hosts
    drawn = draw(Cluster(hosts=(replace(host, nics=(*host.nics, HostNic("storage"))),)))
    assert drawn.nodes["nic_0_8"]["label"].endswith("\\nused by no GPU")
    assert drawn.nodes["nic_0_8"]["style"] == "filled,dotted"
    assert not [line for line in drawn.lines if "nic_0_8" in line[:2]]


def test_what_a_nic_reached_when_measured_stands_beside_its_rate() -> None:
    cluster = preset_cluster("dgx-h100", ["a"])
    measured = replace(cluster, nic=PortFacts(efficiency=Fact(0.8, Origin.MEASURED)))
    assert draw(measured).nodes["nic_0_3"]["label"] == "NIC3: 50 GB/s, 80% of it reached, rail 3"
    assert "reached" not in draw(cluster).nodes["nic_0_3"]["label"]


def test_a_domain_in_two_pods_has_no_frame_in_either() -> None:
    cluster = preset_cluster("gb200-nvl72", [f"t{at}" for at in range(8)])
    pods = (HostPod("p", ("t0", "t1", "t2")), HostPod("q", ("t3", "t4", "t5", "t6", "t7")))
    drawn = draw(replace(cluster, pods=pods))
    assert [frame["label"] for frame in drawn.frames.values()] == ["pod p: 3 hosts", "pod q: 5 hosts"]
    assert all("domain 0: 32 GPUs on 8 hosts" in node["label"] for node in drawn.of("hosts").values())


def test_many_pods_that_are_alike_share_a_frame() -> None:
    cluster = preset_cluster("dgx-h100", [f"n{at:02}" for at in range(32)])
    pods = tuple(
        HostPod(f"p{at}", (f"n{2 * at:02}", f"n{2 * at + 1:02}"), oversubscription=Fact(2.0))
        for at in range(16)
    )
    drawn = draw(replace(cluster, pods=pods))
    assert [frame["label"] for frame in drawn.frames.values()] == ["16 pods, each: 2 hosts"]
    [uplinks] = drawn.of("pod").values()
    assert uplinks["label"] == "16 uplinks of pods p[0-15]\\neach 400 GB/s\\n2:1 oversubscribed"


def test_findings_that_cost_time_stand_above_the_picture_and_the_rest_is_counted() -> None:
    cluster = preset_cluster("dgx-h100", ["a"])
    wrong = [Finding(FindingKind.DEGRADED, f"host {at}", f"text {at}") for at in range(7)]
    assumed = [Finding(FindingKind.ASSUMED, "host a", "nothing")]
    drawn = read(cluster_dot(cluster, resolve(cluster), [*assumed, *wrong]))
    above = [node["label"] for node in drawn.of("heading").values()]
    assert "degraded: host 3: text 3" in above
    assert "degraded: host 4: text 4" not in above
    assert "and 3 more; topology check says all of them" in above
    assert "1 assumption; topology check says which" in above


def test_switches_of_a_network_that_are_alike_are_one_box_and_lines_of_switches_lead_upwards() -> None:
    def leafy(count: int, parents: dict[str, tuple[str, ...]]) -> Cluster:
        cluster = preset_cluster("dgx-h100", [f"n{at:02}" for at in range(count)])
        hosts = tuple(
            replace(
                host,
                nics=tuple(replace(nic, leaf=Fact(f"leaf{at}")) for at, nic in enumerate(host.nics)),
            )
            for host in cluster.hosts
        )
        rate = PortFacts(Fact(GB))
        switches = tuple(Switch(name, above, rate, rate) for name, above in parents.items())
        return replace(cluster, hosts=hosts, switches=switches)

    drawn = draw(leafy(64, {f"leaf{at}": ("s0", "s1") for at in range(8)}))
    switches = drawn.of("switch")
    assert [node["count"] for node in switches.values()] == ["8", "2"]
    assert "each of one rail: 0-7" in switches["switch_0"]["label"]
    crooked = {f"leaf{at}": ("s0",) for at in range(7)} | {"leaf7": ("leaf0", "s1"), "s0": ("s1",), "s1": ()}
    for count in (2, 64):
        drawn = draw(leafy(count, crooked))
        assert (
            sum("s1" in node["label"] or "s[0-1]" in node["label"] for node in drawn.of("switch").values())
            == 1
        )
        for tail, head, line in drawn.lines:
            if line["class"] == "uplink":
                assert drawn.box(tail)[1] < drawn.box(head)[0], "a line leads upwards"


def test_a_thousand_hosts_are_drawn_in_a_second() -> None:
    cluster = preset_cluster("dgx-h100", [f"n{at:04}" for at in range(1000)])
    resolved = resolve(cluster)
    with soon(1):
        dot = cluster_dot(cluster, resolved)
    assert len(read(dot).of("hosts")) == 1


def hostile(count: int) -> Cluster:
    """Names with all that could break a line, a quote or an encoding."""
    names = [f"{HOSTILE_NAME}{end}" for end in ("\\", '"', "<b>&amp;", "->", "]", "x" * 200)]
    gpus = tuple(Gpu(name, Fact(name)) for name in names)
    nics = tuple(HostNic(name, leaf=Fact(name), gpus=Fact((at,))) for at, name in enumerate(names))
    hosts = tuple(Host(f"{at}{names[at % 6]}"[:256], gpus, nics, Fact(names[at % 2])) for at in range(count))
    pods = tuple(HostPod(f"{host.name}"[:256], (host.name,), oversubscription=Fact(2.0)) for host in hosts)
    return Cluster(names[0], hosts, tuple(Switch(name, (names[0],)) for name in names[1:]), pods)


@needs_dot
@pytest.mark.parametrize("count", [2, 9])
def test_no_name_breaks_the_picture(count: int) -> None:
    cluster = hostile(count)
    dot = cluster_dot(cluster, resolve(cluster), check(cluster))
    drawn = read(dot)
    picture = ET.fromstring(to_svg(dot))  # noqa: S314 - our own
    ids = {element.get("id") for element in picture.iter()}
    assert drawn.nodes.keys() | drawn.frames.keys() <= ids
    assert "SNOWMAN" not in dot


def test_the_same_cluster_gives_the_same_picture_in_every_process() -> None:
    drawn = "cluster_dot(damaged(), resolve(damaged())) + cluster_dot(hostile(9), resolve(hostile(9)))"
    assert len(texts_under_hash_seeds("test_cluster_pictures", drawn)) == 1


def test_the_pictures_of_the_documentation_are_up_to_date() -> None:
    for name, text in runpy.run_path(str(IMAGES / "make.py"))["clusters"]().items():
        assert (IMAGES / name).read_text(encoding="utf-8") == text, f"{name}: run python docs/images/make.py"
        assert (IMAGES / name).with_suffix(".svg").exists()
