"""Several sources about one cluster, joined: whatever their order, and nothing lost or guessed silently."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from cluster_strategies import clusters
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.merge import merge
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic, Nearness, Overrides
from reshard_planner.topology.cluster.nics import apply_nic_overrides
from reshard_planner.topology.cluster.resolve import resolve
from reshard_planner.topology.cluster.speeds import model_of, nic_facts, nvlink_facts

GB = 10**9
GUID = "0123456789abcdef"
EIGHT = tuple(Gpu(f"GPU{index}", Fact("H100"), nvlinks=Fact(18)) for index in range(8))


@given(clusters())
@settings(max_examples=40)
def test_merging_a_cluster_with_itself_or_nothing_changes_nothing(cluster: Cluster) -> None:
    for sources in ([cluster], [cluster, cluster], [cluster, Cluster()], [Cluster(), cluster]):
        merged, findings = merge(sources)
        assert merged == cluster
        assert not findings


@given(clusters(), st.randoms())
@settings(max_examples=40)
def test_what_one_source_lacks_another_gives(cluster: Cluster, random: object) -> None:
    """Facts dealt out to two sources at random come together again."""

    def half(keep: bool) -> Cluster:  # noqa: FBT001
        hosts = []
        for host, choices in zip(cluster.hosts, dealt, strict=True):
            gpus = tuple(
                replace(
                    gpu,
                    **{
                        name: None
                        for name in ("model", "numa", "nvlinks", "island", "fabric")
                        if choice[name] != keep
                    },
                )
                for gpu, choice in zip(host.gpus, choices, strict=True)
            )
            hosts.append(replace(host, gpus=gpus))
        return replace(cluster, hosts=tuple(hosts))

    fields = ("model", "numa", "nvlinks", "island", "fabric")
    dealt = [
        [{name: random.random() < 0.5 for name in fields} for _ in host.gpus]  # type: ignore[attr-defined]
        for host in cluster.hosts
    ]
    merged, findings = merge([half(True), half(False)])
    assert merged == cluster
    assert not findings


def test_of_two_facts_the_more_trustworthy_wins_and_of_equal_ones_the_first_with_a_conflict() -> None:
    def with_links(links: int, origin: Origin) -> Cluster:
        return Cluster(hosts=(Host("a", (Gpu("GPU0", nvlinks=Fact(links, origin, f"{links}.txt")),)),))

    for first, second, links, conflicts in (
        (with_links(18, Origin.FILE), with_links(12, Origin.FILE), 18, 1),
        (with_links(12, Origin.FILE), with_links(18, Origin.FILE), 12, 1),
        (with_links(18, Origin.ASSUMED), with_links(12, Origin.FILE), 12, 0),
        (with_links(18, Origin.FILE), with_links(12, Origin.MEASURED), 12, 0),
        (with_links(18, Origin.PRESET), with_links(12, Origin.ASSUMED), 18, 0),
    ):
        merged, findings = merge([first, second])
        assert merged.hosts[0].gpus[0].nvlinks.value == links  # type: ignore[union-attr]
        assert len(findings) == conflicts
        for finding in findings:
            assert finding.kind is FindingKind.CONFLICT
            assert "18" in finding.text
            assert "12" in finding.text


def test_gpus_are_joined_by_uuid_then_bus_then_position() -> None:
    ours = Host("a", (Gpu("GPU0", uuid="u0", bus="b0"), Gpu("GPU1", uuid="u1", bus="b1"), Gpu("GPU2")))
    theirs = Host(
        "a",
        (Gpu("x", uuid="u1", numa=Fact(1)), Gpu("y", bus="b0", numa=Fact(0)), Gpu("z", numa=Fact(2))),
        (HostNic("n", near=Fact((Nearness.PIX, Nearness.PXB, Nearness.SYS)), gpus=Fact((0,))),),
    )
    merged, findings = merge([Cluster(hosts=(ours,)), Cluster(hosts=(theirs,))])
    [host] = merged.hosts
    assert [gpu.numa.value for gpu in host.gpus if gpu.numa] == [0, 1, 2]
    assert host.nics[0].near == Fact((Nearness.PXB, Nearness.PIX, Nearness.SYS))
    assert host.nics[0].gpus == Fact((1,))
    assert not findings


def test_a_product_and_a_compute_capability_of_one_generation_are_no_conflict() -> None:
    ours = Cluster(hosts=(Host("a", (Gpu("GPU0", Fact("sm90")),)),))
    theirs = Cluster(hosts=(Host("a", (Gpu("GPU0", Fact("NVIDIA H100 80GB HBM3")),)),))
    for sources in ([ours, theirs], [theirs, ours]):
        merged, findings = merge(sources)
        assert merged.hosts[0].gpus[0].model == Fact("NVIDIA H100 80GB HBM3")
        assert not findings


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_nics_that_only_a_third_source_links_are_one_in_every_order(order: tuple[int, ...]) -> None:
    sources = (
        Cluster(hosts=(Host("a", nics=(HostNic("HCA-1", guid=GUID, port=PortFacts(Fact(50 * GB))),)),)),
        Cluster(hosts=(Host("a", nics=(HostNic("mlx5_0", guid=GUID, numa=Fact(0)),)),)),
        Cluster(hosts=(Host("a", nics=(HostNic("mlx5_0", rail=Fact(3)),)),)),
    )
    merged, findings = merge([sources[index] for index in order])
    [nic] = merged.hosts[0].nics
    assert nic.rail == Fact(3)
    assert nic.numa == Fact(0)
    assert nic.port.bytes_per_s == Fact(50 * GB)
    assert not findings


def test_rank_maps_and_domains_follow_gpus_to_their_new_numbers() -> None:
    two = tuple(Gpu(f"GPU{index}", uuid=f"u{index}") for index in range(2))
    first = Cluster(hosts=(Host("b", two), Host("a", two[::-1])))
    second = Cluster(
        hosts=(Host("a", two), Host("b", two)),
        rank_map=(2, 3, 0, 1),
        overrides=Overrides(domains=(("a:0", "b"),)),
    )
    merged, findings = merge([first, second])
    assert [host.name for host in merged.hosts] == ["b", "a"]
    assert merged.rank_map == (0, 1, 3, 2)
    assert merged.overrides.domains == (("a:1", "b"),)
    assert not findings


def test_overrides_of_several_sources_add_up_and_differences_are_said() -> None:
    given = [
        Overrides(rails=(("n", 0),), disabled_nics=("x",), gpus_per_domain=4),
        Overrides(rails=(("n", 1), ("m", 2)), disabled_nics=("y",), gpu_model="H100", gpus_per_domain=8),
    ]
    merged, findings = merge([Cluster(overrides=each) for each in given])
    assert merged.overrides == Overrides((("n", 0), ("m", 2)), ("x", "y"), (), 4, "H100")
    assert sorted(finding.text.split(" says ")[1].split(",")[0] for finding in findings) == [
        "gpus_per_domain 4",
        "rails of n 0",
    ]
    maps = [Cluster(hosts=(Host("a", EIGHT),), rank_map=ranks) for ranks in (range(8), range(7, -1, -1))]
    merged, [finding] = merge([replace(each, rank_map=tuple(each.rank_map or ())) for each in maps])
    assert merged.rank_map == tuple(range(8))
    assert finding.kind is FindingKind.CONFLICT


def test_a_gpu_that_the_first_source_lacks_is_left_out_with_a_conflict() -> None:
    ours = Cluster(hosts=(Host("a", (Gpu("GPU0", uuid="a"), Gpu("GPU1", uuid="b"))),))
    theirs = Cluster(hosts=(Host("a", (Gpu("GPU0", uuid="c"), Gpu("GPU1", uuid="a", numa=Fact(1)))),))
    merged, [finding] = merge([ours, theirs])
    assert [(gpu.uuid, gpu.numa) for gpu in merged.hosts[0].gpus] == [("a", Fact(1)), ("b", None)]
    assert finding.kind is FindingKind.CONFLICT


def test_two_products_of_one_generation_are_a_conflict() -> None:
    sources = [Cluster(hosts=(Host("a", (Gpu("GPU0", Fact(model)),)),)) for model in ("H100", "H200")]
    merged, findings = merge(sources)
    assert merged.hosts[0].gpus[0].model == Fact("H100")
    assert len(findings) == 1


def test_nics_of_one_source_with_one_guid_stay_apart() -> None:
    nics = (HostNic("m0", guid="f" * 16, rail=Fact(0)), HostNic("m1", guid="f" * 16, rail=Fact(1)))
    cluster = Cluster(hosts=(Host("a", nics=nics),))
    assert merge([cluster, cluster]) == (cluster, ())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_overrides_follow_nics_and_gpus_to_their_new_names(order: tuple[int, ...]) -> None:
    fabric = Cluster(
        hosts=(Host("a", nics=(HostNic("HCA-1", guid=GUID),)),),
        overrides=Overrides(rails=(("a:HCA-1", 4),), disabled_nics=("HCA-1",)),
    )
    own = Cluster(hosts=(Host("a", EIGHT, (HostNic("mlx5_0", guid=GUID, bus="0000:a3:00.0"),)),))
    merged, findings = merge([(fabric, own)[index] for index in order])
    assert [nic.name for nic in merged.hosts[0].nics] == ["mlx5_0"]
    assert merged.overrides.rails == (("a:mlx5_0", 4),)
    assert merged.overrides.disabled_nics == ("a:mlx5_0",)
    assert not findings
    resolve(merged)


def test_a_domain_of_gpus_that_were_left_out_is_no_whole_host() -> None:
    ours = Cluster(hosts=(Host("a", (Gpu("GPU0", uuid="a"), Gpu("GPU1", uuid="b"))),))
    theirs = Cluster(
        hosts=(Host("a", (Gpu("GPU0", uuid="c"), Gpu("GPU1", uuid="a"))),),
        overrides=Overrides(domains=(("a:0",),)),
    )
    merged, findings = merge([ours, theirs])
    assert merged.overrides.domains == ()
    assert findings
    with pytest.raises(TopologyError, match="without positions"):
        resolve(replace(ours, overrides=Overrides(domains=(("a:",),))))


def test_domains_of_several_sources_add_up() -> None:
    sources = [
        Cluster(hosts=(Host(name, EIGHT),), overrides=Overrides(domains=((f"{name}:0-3",),))) for name in "ab"
    ]
    merged, findings = merge(sources)
    assert merged.overrides.domains == (("a:0-3",), ("b:0-3",))
    assert not findings


def test_gpus_that_only_their_position_ties_are_said_to_be_taken_as_one() -> None:
    ours = Cluster(hosts=(Host("a", (Gpu("GPU0", uuid="u0"), Gpu("GPU1", uuid="u1"))),))
    theirs = Cluster(hosts=(Host("a", (Gpu("GPU0", bus="b0"), Gpu("GPU1", bus="b1"))),))
    for sources in ([ours, theirs], [theirs, ours]):
        merged, [finding] = merge(sources)
        assert [(gpu.uuid, gpu.bus) for gpu in merged.hosts[0].gpus] == [("u0", "b0"), ("u1", "b1")]
        assert finding.kind is FindingKind.ASSUMED
        assert "tell GPU 0-1 by the same" in finding.text
    both = Cluster(hosts=(Host("a", (Gpu("GPU0", uuid="u0", bus="b0"), Gpu("GPU1", uuid="u1", bus="b1"))),))
    for order in permutations([ours, theirs, both]):
        assert not merge(order)[1]


@st.composite
def apart(draw: st.DrawFn, prefix: str) -> Cluster:
    """A cluster of hosts of its own, with overrides of all its devices and of NICs that it has."""
    cluster = draw(clusters())
    hosts = tuple(replace(host, name=f"{prefix}{at}") for at, host in enumerate(cluster.hosts))
    names = sorted({nic.name for host in hosts for nic in host.nics})
    most = min(2, len(names))
    known = st.sampled_from(names or [""])
    overrides = replace(
        cluster.overrides,
        rails=tuple(draw(st.dictionaries(known, st.integers(0, 7), max_size=most)).items()),
        disabled_nics=tuple(draw(st.lists(known, max_size=most, unique=True))),
        domains=(),
        gpus_per_domain=None,
    )
    return replace(cluster, hosts=hosts, switches=(), pods=(), rank_map=None, overrides=overrides)


def told(cluster: Cluster) -> dict[str, Any]:
    """What planning takes of every NIC and GPU, by host."""
    applied = apply_nic_overrides(cluster)
    return {
        host.name: (
            [
                (nic.name, nic.rail and nic.rail.value, nic.is_on, speed(nic_facts(cluster, host, nic)))
                for nic in host.nics
            ],
            [(model_of(cluster, host, gpu), speed(nvlink_facts(cluster, host, gpu))) for gpu in host.gpus],
        )
        for host in applied.hosts
    }


def speed(port: PortFacts) -> list[object]:
    return [fact and fact.value for fact in (port.bytes_per_s, port.efficiency, port.latency_s)]


@given(apart("a"), apart("b"))
@settings(max_examples=50)
def test_what_a_file_says_of_all_its_hosts_is_not_taken_of_those_of_others(
    ours: Cluster, theirs: Cluster
) -> None:
    assume(ours.hosts)
    assume(theirs.hosts)
    merged, findings = merge([ours, theirs])
    assert told(merged) == told(ours) | told(theirs)
    assert not findings


def test_a_file_without_hosts_speaks_of_all() -> None:
    gpus = (Gpu("GPU0"), Gpu("GPU1"))
    files = [Cluster(hosts=(Host(name, gpus, (HostNic("n0"), HostNic("n1"))),)) for name in "ab"]
    said = Overrides((("n0", 3),), ("n1",), (), 1, "H100", PortFacts(Fact(25 * GB)))
    merged, findings = merge([*files, Cluster(overrides=said, nvlink=PortFacts(efficiency=Fact(0.5)))])
    assert merged.overrides == said
    assert merged.nvlink == PortFacts(efficiency=Fact(0.5))
    assert not findings


def test_two_files_that_differ_on_the_hosts_of_both_are_a_conflict_on_those_alone() -> None:
    def file(names: str, rate: int) -> Cluster:
        hosts = tuple(Host(name, (Gpu("GPU0"),), (HostNic("n0"),)) for name in names)
        return Cluster(hosts=hosts, nic=PortFacts(Fact(rate * GB, source=f"{names}.yaml")))

    merged, [finding] = merge([file("ab", 50), file("bc", 25)])
    rates = [speed(nic_facts(merged, host, host.nics[0]))[0] for host in merged.hosts]
    assert rates == [50 * GB, 50 * GB, 25 * GB]
    assert finding.kind is FindingKind.CONFLICT
    assert finding.place == "default of NICs of b"
    assert "ab.yaml says bytes_per_s 50000000000, bc.yaml 25000000000" in finding.text


def test_a_size_of_domains_of_some_hosts_counts_for_all_and_says_so() -> None:
    files = [Cluster(hosts=(Host(name, EIGHT),)) for name in "ab"]
    files[0] = replace(files[0], overrides=Overrides(gpus_per_domain=4))
    merged, [finding] = merge(files)
    assert len(resolve(merged).domains) == 4
    assert finding.kind is FindingKind.ASSUMED
    assert "gpus_per_domain 4 is of sources that list 1 of 2 hosts" in finding.text
    for hosts in (tuple(Host(name, EIGHT) for name in "ab"), ()):  # a source of all hosts that says the same
        assert not merge([*files, Cluster(hosts=hosts, overrides=Overrides(gpus_per_domain=4))])[1]


def test_an_override_of_a_nic_that_only_other_hosts_have_is_refused() -> None:
    ours = Cluster(hosts=(Host("a", EIGHT),), overrides=Overrides(disabled_nics=("n0",)))
    theirs = Cluster(hosts=(Host("b", EIGHT, (HostNic("n0"),)),))
    merged, _ = merge([ours, theirs])
    with pytest.raises(TopologyError, match="names NIC 'a:n0', which no host has"):
        resolve(merged)
    own = Cluster(hosts=(Host("a", nics=(HostNic("n0"),)),))  # another file lists the NICs of a
    resolved, _ = merge([ours, theirs, own])
    assert resolved.overrides.disabled_nics == ("a:n0",)


@given(apart("a"), apart("b"), apart("a") | apart("c"), st.sampled_from(["its", "all"]))
@settings(max_examples=60)
def test_joining_step_by_step_is_joining_at_once(
    ours: Cluster, theirs: Cluster, more: Cluster, whose: str
) -> None:
    assume(ours.hosts)
    assume(theirs.hosts)
    if whose == "all":
        more = replace(more, hosts=(), overrides=replace(more.overrides, rails=(), disabled_nics=()))
    first, _ = merge([ours, theirs])
    for steps, at_once in (([first, more], [ours, theirs, more]), ([more, first], [more, ours, theirs])):
        assert told(merge(steps)[0]) == told(merge(at_once)[0])


@given(apart("a"), apart("b"))
@settings(max_examples=60)
def test_joining_a_source_again_changes_nothing_and_is_no_conflict(ours: Cluster, theirs: Cluster) -> None:
    assume(ours.hosts)
    assume(theirs.hosts)
    merged, _ = merge([ours, theirs])
    for sources in ([merged, ours], [merged, theirs], [ours, merged], [theirs, merged]):
        again, findings = merge(sources)
        assert told(again) == told(merged)
        assert not findings


@pytest.mark.parametrize("rails", [(("a:n0", 4), ("n0", 3)), (("n0", 3), ("a:n0", 4))])
def test_a_nic_of_a_host_goes_before_all_of_its_name_whatever_their_order(
    rails: tuple[tuple[str, int], ...],
) -> None:
    ours = Cluster(hosts=(Host("a", EIGHT, (HostNic("n0"),)),), overrides=Overrides(rails))
    for sources in ([ours], [ours, Cluster(hosts=(Host("b", EIGHT, (HostNic("n0"),)),))]):
        merged, findings = merge(sources)
        assert told(merged)["a"][0][0][1] == 4
        assert not findings


def test_a_bare_name_means_the_nics_that_only_other_files_list_too_where_one_has_a_new_name() -> None:
    fabric = Cluster(
        hosts=(Host("a", nics=(HostNic("HCA-1", guid=GUID),)), Host("b", EIGHT[:1])),
        overrides=Overrides((("HCA-1", 2),), ("HCA-1",)),
    )
    of_b = Cluster(hosts=(Host("b", EIGHT[:1], (HostNic("HCA-1"),)),))
    of_a = Cluster(hosts=(Host("a", EIGHT[:1], (HostNic("mlx5_0", guid=GUID, bus="0000:a3:00.0"),)),))
    for sources in permutations((fabric, of_b, of_a)):
        merged, findings = merge(sources)
        assert sorted(merged.overrides.disabled_nics) == ["a:mlx5_0", "b:HCA-1"]
        assert sorted(merged.overrides.rails) == [("a:mlx5_0", 2), ("b:HCA-1", 2)]
        assert not findings


def test_rails_of_one_nic_that_differ_are_a_conflict_however_sources_name_it() -> None:
    hosts = tuple(Host(name, EIGHT, (HostNic("n0"),)) for name in "ab")
    bare = Cluster(hosts=hosts, overrides=Overrides((("n0", 3),)))
    of_a = Cluster(hosts=hosts[:1], overrides=Overrides((("n0", 4),)))
    of_none = Cluster(overrides=Overrides((("a:n0", 4),)))
    for other in (of_a, of_none):
        for sources, rail in (([bare, other], 3), ([other, bare], 4)):
            merged, [finding] = merge(sources)
            assert [told(merged)[name][0][0][1] for name in "ab"] == [rail, 3]
            assert "rails of a:n0" in finding.text


def test_a_rank_map_without_hosts_is_one_of_the_joined_cluster() -> None:
    files = [Cluster(hosts=(Host(name, EIGHT[:2]),)) for name in "ab"]
    merged, findings = merge([*files, Cluster(rank_map=(3, 2, 1, 0))])
    assert merged.rank_map == (3, 2, 1, 0)
    assert not findings
    merged, [finding] = merge([*files, Cluster(rank_map=(4,))])
    assert merged.rank_map is None
    assert "the merged hosts lack" in finding.text


def test_overrides_find_nics_with_colons_in_their_names() -> None:
    ours = Cluster(hosts=(Host("a", EIGHT, (HostNic("m:1"),)),), overrides=Overrides((), ("a:m:1",)))
    merged, _ = merge([ours, Cluster(hosts=(Host("b", EIGHT),))])
    assert merged.overrides.disabled_nics == ("a:m:1",)


def test_sources_that_order_gpus_differently_make_a_position_a_guess() -> None:
    plain = Cluster(hosts=(Host("a", (Gpu("g0", nvlinks=Fact(18)), Gpu("g1", nvlinks=Fact(12)))),))
    keyed = [
        Cluster(hosts=(Host("a", (Gpu("x", uuid=one), Gpu("y", uuid=two))),)) for one, two in ("uv", "vu")
    ]
    for sources in permutations([plain, *keyed]):
        assert any(finding.kind is FindingKind.ASSUMED for finding in merge(sources)[1])
    assert not merge([plain, keyed[0], keyed[0]])[1]
    assert not merge(keyed)[1]
