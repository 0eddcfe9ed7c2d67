"""The doctor: each check against real inputs, examinations of loopback worlds and of emulated clusters."""

from __future__ import annotations

import doctest
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import _doctor_calls
import pytest
from _ranks import Ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from reshard_executors import spelling
from reshard_executors.command.doctor import code_of_report
from reshard_executors.command.main import main
from reshard_executors.doctor import (
    device_checks,
    domains,
    egress,
    findings,
    hosts,
    interface_checks,
    interfaces,
    links,
    ports,
    pulse,
    reach,
    versions,
)
from reshard_executors.doctor.claims import Claims, Wish
from reshard_executors.doctor.devices import Devices, Gpu, gather, parse_fabric
from reshard_executors.doctor.findings import Finding, Level, Report
from reshard_executors.doctor.hosts import Place, find_networks
from reshard_executors.doctor.interfaces import Choice, Interface, Interfaces
from reshard_executors.doctor.ports import MeetingPoint
from reshard_executors.doctor.probe import (
    ACROSS,
    ASKEW,
    INSIDE,
    Edge,
    Sample,
    choose_nbytes,
    collect,
    plan_edges,
)
from reshard_executors.doctor.versions import Versions
from reshard_executors.doctor.visit import visit
from reshard_executors.emulation import guard, namespaces, tools
from reshard_executors.launchers import LOOPBACK, rank_info
from torch._C._distributed_c10d import HashStore

import reshard_planner as rp

REASON = guard.reason_against()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))
linux = pytest.mark.skipif(sys.platform != "linux", reason="interfaces are read on Linux alone")

MBIT = 125_000
RANKS = 4

TWO_DOMAINS = [[0, 1], [2, 3]]


def compiled(grouped: list[list[int]] = TWO_DOMAINS, rows: int = 64, **topology: Any) -> rp.Plan:
    """Rows of two ranks to both replicas of two others."""
    train, serve = rp.Mesh([0, 1], ["tp"]), rp.Mesh([2, 3], ["dp"])
    layouts = rp.Layout(train, ["S(0)"]), rp.Layout(serve, ["R"])
    tensor = rp.TensorSpec("w", (rows, 64), "bfloat16", *layouts)
    return rp.compile(rp.ReshardSpec([tensor], rp.Topology.from_domains(grouped, **topology)))


PLAN = compiled()
CLAIMS = Claims(PLAN, (0, 1, 2, 3))


def failures(found: list[Finding] | tuple[Finding, ...], check: str | None = None) -> list[Finding]:
    return [one for one in found if one.level == Level.FAILURE and check in (None, one.check)]


def levels(found: list[Finding]) -> list[Level]:
    return [one.level for one in found]


# reports


def test_the_examples_of_docstrings_hold():
    for module in (links, spelling):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed


@given(st.sets(st.integers(0, 30), min_size=1))
def test_ranks_in_words_are_those_ranks_or_say_how_many_more(ranks):
    words = spelling.spell_ranks(ranks).split(maxsplit=1)[1].replace(" and ", ", ").split(", ")
    told = 0
    for word in words:
        if word.endswith(" more"):
            told += int(word.split()[0])
            continue
        first, _, last = word.partition("-")
        spelled = set(range(int(first), int(last or first) + 1))
        assert spelled <= ranks
        told += len(spelled)
    assert told == len(ranks)


@given(st.lists(st.text("ab", min_size=1, max_size=3)), st.integers(1, 5))
def test_a_list_of_names_has_all_of_them_or_says_how_many_more(names, limit):
    said = spelling.spell_names(names, limit)
    shown = said.replace(" and ", ", ").split(", ") if names else []
    if len(names) > limit:
        assert shown.pop() == f"{len(names) - limit} more"
    assert shown == names[:limit]


@given(st.integers(0, 2**62))
def test_bytes_are_spelled_to_three_digits(nbytes):
    number, unit = spelling.spell_nbytes(nbytes).split()
    power = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert float(number) < 1025
    assert float(number) * 1024**power == pytest.approx(nbytes, rel=5e-3)


# versions

HERE = Versions("3.11.7", "2.13.0", None, "2.4.6", "0.1.0", 2, "ab" * 32, None)


@pytest.mark.parametrize(
    ("field", "value", "level"),
    [
        ("torch", "2.12.1", Level.FAILURE),
        ("nccl", "2.27.5", Level.FAILURE),
        ("project", "0.0.9", Level.FAILURE),
        ("plan_format", 1, Level.FAILURE),
        ("digest", "cd" * 32, Level.FAILURE),
        ("python", "3.12.0", Level.WARNING),
        ("numpy", "1.26.0", Level.WARNING),
    ],
)
def test_the_rank_with_another_version_is_named_and_not_the_others(field, value, level):
    odd = replace(HERE, **{field: value})
    [found] = versions.judge([HERE, HERE, odd, HERE])
    assert (found.level, found.ranks) == (level, (2,))
    assert str(value)[:16] in found.text
    assert "on rank 2, but" in found.text
    assert "on 3 of 4 ranks" in found.text


def test_equal_versions_are_told_once():
    [found] = versions.judge([HERE] * 4)
    assert found.level == Level.OK
    assert "torch 2.13.0 without NCCL" in found.text
    assert "plan abababababab on all 4 ranks" in found.text


def test_torch_is_as_new_as_the_project_asks_for():
    least = versions.least_torch()
    assert least is not None
    old = [replace(HERE, torch="1.13.1+cu117")] * 2
    [found] = failures(versions.judge(old))
    assert f"torch is 1.13.1+cu117; expected at least {least}" in found.text
    assert not failures(versions.judge([replace(HERE, torch=f"{least}.0+cpu")] * 2))


def test_ranks_without_torch_or_plan_are_named():
    found = versions.judge(
        [HERE, replace(HERE, torch=None), replace(HERE, digest=None, problem="p.reshard: no such file")]
    )
    assert [one.ranks for one in failures(found)] == [(1,), (2,)]
    assert "torch is not installed" in found[0].text
    assert "p.reshard: no such file" in found[1].text


# ports

NETWORKS = find_networks([Place("a", "a", "a"), Place("b", "b", "b")])


def alone(tmp_path: Path, **environ: str) -> Report:
    return visit(rank_info(environ), environ, saved(tmp_path), Wish(), 5.0)


def saved(folder: Path, plan: rp.Plan = PLAN) -> Path:
    path = folder / "plan.reshard"
    plan.save(path)
    return path


def test_a_port_that_somebody_listens_at_is_told_before_the_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        report = alone(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        [found] = failures(report.findings)
        assert report.failed
        assert found.text.startswith(
            f"port {port} of this host cannot be listened at: Address already in use"
        )
    report = alone(tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    assert not report.failed
    assert any(f"its port {port} is free" in one.text for one in report.findings)


def test_an_address_that_resolves_to_nothing_is_told():
    name = 70 * "x"  # no name has so long a part, so that nobody is asked
    [found] = ports.judge_alone(ports.gather(name, 29500))
    assert found.level == Level.FAILURE
    assert f"MASTER_ADDR is {name}, which resolves to no address" in found.text


def test_without_launcher_and_address_there_is_no_port_to_check():
    assert levels(ports.judge_alone(None)) == [Level.SKIPPED]


def test_an_address_that_leads_back_is_wrong_as_soon_as_there_are_several_hosts():
    points = [MeetingPoint("node0", 29500, ("127.0.1.1",)), MeetingPoint("node0", 29500, ("10.0.0.1",))]
    [found] = ports.judge(points, NETWORKS)
    assert (found.level, found.ranks) == (Level.FAILURE, (0,))
    assert "node0 resolves to 127.0.1.1" in found.text
    assert levels(ports.judge(points, NETWORKS[:1])) == [Level.OK]


def test_ranks_that_do_not_reach_one_another_are_named():
    with reach.listening("127.0.0.1", b"0" * 16) as first, reach.listening("127.0.0.1", b"1" * 16) as second:
        everyone = [first, second, replace(first, token=b"2" * 16)]
        assert reach.gather(0, [1], everyone) == reach.Reached(1, {})
        assert reach.gather(1, [0], everyone).reasons == {2: "another process answers there"}
    closed = reach.gather(0, [1], everyone)
    assert closed.reasons == {1: "Connection refused"}
    where = {rank: f"{one.address}:{one.port}" for rank, one in enumerate(everyone)}
    [found] = reach.judge([closed, reach.Reached(1, {}), reach.Reached(1, {})], where)
    assert (found.level, found.ranks) == (Level.FAILURE, (0,))
    assert f"rank 0 cannot reach rank 1 at 127.0.0.1:{second.port}: Connection refused" in found.text


def test_of_many_ranks_that_nobody_reaches_few_are_told_one_by_one():
    reached = [reach.Reached(20, dict.fromkeys(range(1, 21), "timed out"))]
    found = reach.judge(reached, dict.fromkeys(range(21), "10.0.0.1:1"))
    assert len(found) == reach.SHOWN + 1
    assert found[-1].ranks == tuple(range(1 + reach.SHOWN, 21))


# interfaces


@linux
def test_what_gloo_will_use_is_an_address_of_this_host():
    known = interfaces.read_interfaces()
    assert "127.0.0.1" in next(one for one in known if one.loopback).addresses
    assert {one.name for one in known} == {name for _, name in socket.if_nameindex()}
    found = interfaces.choose({}, known, socket.gethostname())
    assert found.address is not None
    assert ports.is_own(found.address)
    assert interfaces.choose({}, known, 70 * "x").address == LOOPBACK


@linux
def test_an_interface_that_does_not_exist_is_told_with_those_that_do(tmp_path):
    report = alone(tmp_path, GLOO_SOCKET_IFNAME="lo,none7")
    [found] = failures(report.findings)
    assert "GLOO_SOCKET_IFNAME names none7, but there is none of that name; expected one of lo" in found.text


UP = Interface("eth0", up=True, loopback=False, mtu=9000, addresses=("10.0.0.1",), bytes_per_s=25e9)
LO = Interface("lo", up=True, loopback=True, mtu=65536, addresses=("127.0.0.1",), bytes_per_s=None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"up": False}, "eth0, but it is down"), ({"addresses": ()}, "eth0, but it has no address")],
)
def test_an_interface_that_cannot_be_used_is_told(changes, words):
    choice = interfaces.choose({"GLOO_SOCKET_IFNAME": "eth0"}, [LO, replace(UP, **changes)], "a")
    [found] = interface_checks.judge([Interfaces((LO,), choice)], NETWORKS[:1], None)
    assert found.level == Level.FAILURE
    assert words in found.text


def seen(*known: Interface, use: str = "eth0", named: bool = True) -> Interfaces:
    chosen = next(one for one in known if one.name == use)
    return Interfaces(known, Choice(chosen.addresses[0], use, None, named))


@pytest.mark.parametrize(
    ("second", "level", "words"),
    [
        (seen(LO, UP), Level.OK, "gloo will use eth0"),
        (seen(LO, UP, use="lo", named=False), Level.FAILURE, "127.0.0.1, to which the host's name leads"),
        (seen(LO, replace(UP, mtu=1500)), Level.WARNING, "frames have 1500 bytes (MTU), but 9000"),
        (
            seen(LO, replace(UP, bytes_per_s=1.25e9)),
            Level.WARNING,
            "eth0, which gloo will use, runs at 1.25 GB/s",
        ),
        (
            seen(LO, UP, replace(UP, name="eth1"), named=False),
            Level.WARNING,
            "there are 2 interfaces with addresses, eth0 and eth1",
        ),
    ],
)
def test_a_host_whose_interfaces_differ_is_named(second, level, words):
    found = interface_checks.judge([seen(LO, UP), second], NETWORKS, 25e9)
    [told] = [one for one in found if one.level == level]
    assert words in told.text
    assert level == Level.OK or told.hosts == ("b",)


def test_nccl_sends_by_rdma_devices_where_there_are_any():
    first, second = (replace(seen(LO, UP), infiniband={"mlx5_0/1": rate}) for rate in (50e9, 25e9))
    found = interface_checks.judge([first, second], NETWORKS, 50e9, "nccl")
    [told] = [one for one in found if one.level == Level.WARNING]
    assert told.hosts == ("b",)
    assert "mlx5_0/1, which nccl will use, runs at 25 GB/s; the topology expects 50 GB/s" in told.text
    assert levels(interface_checks.judge([first, first], NETWORKS, 50e9, "nccl")) == [Level.OK]
    assert interface_checks.judge([first, first], NETWORKS, 50e9, "gloo")[1].hosts == ("a", "b")


def test_what_is_so_on_many_hosts_is_told_once():
    found = findings.alike("interfaces", Level.WARNING, {"a": "slow", "b": "slow", "c": "down"})
    assert [(one.text, one.hosts) for one in found] == [("slow", ("a", "b")), ("down", ("c",))]


# devices

ONE_HOST = [Place("a", "a", "a")] * 2
CPU = Devices(0, 0, None, None, (0, 1), 2**30, 0, sends_from_gpu=False)


def on_gpu(uuid: str, **changes: Any) -> Devices:
    gpu = Gpu(uuid, 2**30, changes.pop("reaches", {}), changes.pop("fabric", None))
    return replace(CPU, count=2, gpu=gpu, sends_from_gpu=True, **changes)


@pytest.mark.parametrize(
    ("second", "level", "words"),
    [
        (on_gpu("y"), Level.OK, "every rank has a CUDA device of its own, with 1 GiB or more of free memory"),
        (on_gpu("x"), Level.FAILURE, "all use device x"),
        (replace(on_gpu("y"), gpu=None, local_rank=2), Level.FAILURE, "no device is left for local rank 2"),
        (on_gpu("y", visible="1"), Level.WARNING, "CUDA_VISIBLE_DEVICES has 2 values"),
        (on_gpu("y", need_nbytes=2**31), Level.FAILURE, "1 GiB of free memory, but the plan takes 2 GiB"),
    ],
)
def test_ranks_without_a_device_of_their_own_with_room_are_told(second, level, words):
    found = device_checks.judge([on_gpu("x"), second], ONE_HOST)
    [told] = [one for one in found if one.level == level]
    assert words in told.text


def test_processors_and_memory_of_a_host_are_shared_by_its_ranks():
    many = device_checks.judge([CPU] * 3, [Place("a", "a", "a")] * 3)
    assert levels(many) == [Level.OK, Level.WARNING]
    assert "3 ranks share 2 processors" in many[1].text
    full = [replace(CPU, need_nbytes=2**29 + 1)] * 2
    assert levels(device_checks.judge(full, ONE_HOST)) == [Level.FAILURE]
    assert levels(device_checks.judge(full, [Place("a", "a", "a"), Place("b", "b", "b")])) == [Level.OK]


def test_devices_of_this_process_are_read():
    found = gather({"CUDA_VISIBLE_DEVICES": "3"}, 0, 5)
    assert (found.visible, found.need_nbytes) == ("3", 5)
    assert found.cores


def test_the_memory_that_a_rank_needs_is_that_of_its_destinations_and_of_staging():
    staging = PLAN.certificate.staging_nbytes
    assert [CLAIMS.need_nbytes(rank) - staging for rank in range(4)] == [0, 0, 64 * 64 * 2, 64 * 64 * 2]


FABRIC = """\
    Temperature
        GPU Current Temp                  : 30 C
    Fabric
        State                             : Completed
        Status                            : {status}
        CliqueId                          : {clique}
        ClusterUUID                       : {cluster}
        Health
            Bandwidth                     : Full
    Processes                             : None
        Status                            : Failed
"""


@pytest.mark.parametrize(
    ("status", "clique", "cluster", "fabric"),
    [
        ("Success", "7", "11111111-2222", "11111111-2222/7"),
        ("Success", "0", "00000000-0000-0000-0000-000000000000", None),
        ("Insufficient Resources", "7", "11111111-2222", None),
        ("N/A", "N/A", "N/A", None),
    ],
)
def test_a_fabric_is_a_cluster_and_a_clique_of_gpus_that_have_joined(status, clique, cluster, fabric):
    assert parse_fabric(FABRIC.format(status=status, clique=clique, cluster=cluster)) == fabric
    assert parse_fabric("") is None


# domains


@pytest.mark.parametrize(
    ("second", "places_", "level"),
    [
        (on_gpu("y"), ONE_HOST, Level.OK),
        (on_gpu("z"), ONE_HOST, Level.FAILURE),
        (on_gpu("unseen"), ONE_HOST, Level.WARNING),
        (on_gpu("y", fabric="f/1"), [Place("a", "a", "a"), Place("b", "b", "b")], Level.OK),
        (on_gpu("y", fabric="f/2"), [Place("a", "a", "a"), Place("b", "b", "b")], Level.FAILURE),
        (on_gpu("y"), [Place("a", "a", "a"), Place("b", "b", "b")], Level.WARNING),
    ],
)
def test_a_domain_is_what_the_drivers_say_of_its_devices(second, places_, level):
    first = on_gpu("x", reaches={"y": True, "z": False}, fabric="f/1")
    claims = Claims(compiled([[0, 1], [2], [3]]), (0, 1, 2, 3))
    found = domains.judge_devices(claims, [first, second, first, second], [*places_, *places_])
    assert levels(found) == [level]
    assert "domain 0" in found[0].text
    assert found[0].ranks == (0, 1)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 2**20),
)
@settings(max_examples=20)
def test_edges_of_a_turn_do_not_disturb_each_other(shape, most_nbytes):
    """``shape``: per domain the network of each of its ranks; two of them are those of the plan."""
    hosts = [number for domain in shape for number in domain]
    first = iter(range(len(hosts)))
    grouped = [[next(first) for _ in domain] for domain in shape]
    claims = Claims(spread(grouped), tuple(range(len(hosts))))
    networks = find_networks([Place(f"{host}", f"{host}", f"{host}") for host in hosts])
    edges = plan_edges(claims, networks)
    for turn in {edge.turn for edge in edges}:
        now = [edge for edge in edges if edge.turn == turn]
        ends = [rank for edge in now for rank in (edge.sender, edge.receiver)]
        assert len(set(ends)) == len(ends)
        assert len({hosts[edge.sender] for edge in now}) == len(now)
    home = claims.domain_of
    inside = [edge.sender for edge in edges if edge.kind == INSIDE]
    assert inside == [rank for domain in grouped if len(domain) > 1 for rank in domain]
    assert all((home[edge.sender] == home[edge.receiver]) == (edge.kind == INSIDE) for edge in edges)
    assert {edge.sender for edge in edges if edge.kind == ACROSS} == (
        set(home) if len(grouped) > 1 else set()
    )
    samples = [Sample(number, 1000, elapsed_s=1.0 + number) for number in range(len(edges))]
    nbytes = choose_nbytes(edges, samples, most_nbytes)
    assert all(0 < each <= most_nbytes for each in nbytes)


def spread(grouped: list[list[int]]) -> rp.Plan:
    """One tensor over all ranks of some domains, by rows on one side and whole on the other."""
    mesh = rp.Mesh([rank for domain in grouped for rank in domain], ["tp"])
    tensor = rp.TensorSpec("w", (16, 2), "bfloat16", rp.Layout(mesh, ["S(0)"]), rp.Layout(mesh, ["R"]))
    return rp.compile(rp.ReshardSpec([tensor], rp.Topology.from_domains(grouped)))


def measured(*edges: tuple[str, int, int, dict[str, int]]) -> Any:
    """Edges by kind, sender, receiver, and what left of 1000 bytes by which port."""
    made = [Edge(kind, CLAIMS.domain_of[one], one, other, 0) for kind, one, other, _ in edges]
    samples = [Sample(number, 1000, sent=sent) for number, (*_, sent) in enumerate(edges)]
    samples += [Sample(number, 1000, elapsed_s=1e-3) for number in range(len(edges))]
    return collect(made, samples, counted=True)


def test_a_domain_is_none_when_what_it_sends_inside_leaves_by_nics():
    right = [(ACROSS, 0, 2, {"eth0": 1001}), (INSIDE, 0, 1, {"nvl": 1001}), (INSIDE, 2, 3, {"eth0": 40})]
    assert not failures(domains.judge_traffic(CLAIMS, measured(*right), "gloo"))
    wrong = [(ACROSS, 0, 2, {"eth0": 1001}), (INSIDE, 0, 1, {}), (INSIDE, 2, 3, {"eth0": 1001})]
    [found] = failures(domains.judge_traffic(CLAIMS, measured(*wrong), "gloo"))
    assert found.ranks == (2, 3)
    assert found.text.startswith(
        "domain 1 is not one: of 1000 B that rank 2 sent to rank 3 over gloo, 1001 B"
    )


def test_a_domain_that_leaks_a_part_is_doubted():
    part = [(ACROSS, 0, 2, {"eth0": 1001}), (INSIDE, 0, 1, {"eth0": 200}), (INSIDE, 1, 0, {"eth0": 90})]
    found = domains.judge_traffic(CLAIMS, measured(*part), "gloo")
    [told] = [one for one in found if one.level == Level.WARNING]
    assert told.ranks == (0, 1)
    assert told.text.startswith("domain 0 may not be one: of 1000 B that rank 0 sent to rank 1")
    assert "200 B left by eth0, and so with 1 of its 2 pairs" in told.text


def test_without_traffic_between_domains_every_port_is_a_nic():
    [found] = failures(domains.judge_traffic(CLAIMS, measured((INSIDE, 0, 1, {"nvl": 1001})), "gloo"))
    assert found.text.startswith("domain 0 is not one")


def test_of_two_rounds_the_one_that_others_disturbed_less_counts():
    edges = [Edge(INSIDE, 0, 0, 1, 0)]
    samples = [Sample(0, 100, sent={"eth0": 90}), Sample(0, 1000, sent={"eth0": 20})]
    assert collect(edges, samples, counted=True).share(0, ["eth0"]) == 0.02
    assert collect(edges, samples[::-1], counted=True).share(0, ["eth0"]) == 0.02


def test_a_pair_that_is_far_slower_than_others_is_told():
    edges = [Edge(ACROSS, 0, 0, 2, 0), Edge(ACROSS, 0, 1, 3, 1), Edge(ACROSS, 1, 2, 0, 2)]
    times = (1e-3, 8e-3, 1e-3)
    samples = [Sample(number, 1000, elapsed_s=time_s) for number, time_s in enumerate(times)]
    found = domains.judge_traffic(CLAIMS, collect(edges, samples, counted=True), "gloo")
    [told] = [one for one in found if one.level == Level.WARNING]
    assert told.ranks == (1, 3)
    assert "the slowest at 125 kB/s" in told.text


# egress


def test_egress_by_the_index_of_the_destination_is_told():
    own = [
        (ACROSS, 0, 2, {"nic0": 1001}),
        (ASKEW, 0, 3, {"nic0": 1001}),
        (ACROSS, 1, 3, {"nic1": 1001}),
        (ASKEW, 1, 2, {"nic1": 1001}),
    ]
    networks = find_networks([Place(host, host, host) for host in "aabb"])
    assert levels(egress.judge_traffic(CLAIMS, measured(*own), networks)) == [Level.OK]
    turned = [own[0], (ASKEW, 0, 3, {"nic1": 1001}), own[2], (ASKEW, 1, 2, {"nic0": 1001})]
    [found] = egress.judge_traffic(CLAIMS, measured(*turned), networks)
    assert (found.level, found.ranks) == (Level.FAILURE, (0, 1))
    assert "egress goes by the destination's index" in found.text


def test_ranks_that_share_a_nic_which_the_topology_does_not_know_of_are_told():
    shared = measured((ACROSS, 0, 2, {"eth0": 1001}), (ACROSS, 1, 3, {"eth0": 1001}))
    networks = find_networks([Place(host, host, host) for host in "aabb"])
    [found] = egress.judge_traffic(CLAIMS, shared, networks)
    assert (found.level, found.ranks) == (Level.WARNING, (0, 1))
    assert "2 ranks all leave by eth0, but have 2 NICs in the topology" in found.text


@pytest.mark.parametrize(
    ("environ", "backend", "level"),
    [
        ([{}, {}], "gloo", Level.OK),
        ([{}, {}], "nccl", Level.WARNING),
        ([{"NCCL_PXN_DISABLE": "1"}] * 2, "nccl", Level.OK),
        ([{"NCCL_P2P_PXN_LEVEL": "0"}] * 2, "nccl", Level.OK),
        ([{"NCCL_PXN_DISABLE": "1"}, {}], "nccl", Level.FAILURE),
    ],
)
def test_the_rule_of_egress_is_read_from_the_environment(environ, backend, level):
    [found] = egress.judge_rule([egress.gather({**one, "HOME": "/"}) for one in environ], backend)
    assert found.level == level


# loopback worlds


@pytest.fixture(scope="module")
def world() -> Iterator[Ranks]:
    ranks = Ranks(RANKS)
    yield ranks
    ranks.close()


def examined(world: Ranks, folder: Path, *mine: tuple[rp.Plan | None, dict[str, Any]], **more: Any) -> Report:
    """What all ranks of the world report, which is the same."""
    reports = world.call(_doctor_calls.check, [(str(folder), *one, *more.values()) for one in mine])
    assert isinstance(reports[0], Report), reports
    assert all(report == reports[0] for report in reports)
    return reports[0]


def test_ranks_of_one_host_pass_and_hear_the_same(world, tmp_path):
    report = examined(world, tmp_path, *[(PLAN, {})] * RANKS)
    assert not report.failed
    said = [one.text for one in report.findings if one.check in ("hosts", "domains")]
    assert any("domain 0 is ranks 0-1" in text for text in said)
    assert any("what was sent over gloo inside domains 0 and 1 stayed off the NICs" in text for text in said)
    assert sum("one pair at a time sends" in text for text in said) == 2


def test_the_rank_with_another_plan_is_named_and_what_needs_a_plan_is_skipped(world, tmp_path):
    other = compiled(rows=32)
    report = examined(world, tmp_path, (PLAN, {}), (PLAN, {}), (PLAN, {}), (other, {}))
    [found] = failures(report.findings)
    assert found.ranks == (3,)
    assert found.text.startswith(
        f"the plan is {other.digest[:16]} on rank 3, but {PLAN.digest[:16]} on 3 of 4"
    )
    skipped = {one.check for one in report.findings if one.level == Level.SKIPPED}
    assert skipped == {"hosts", "domains", "egress"}


def test_the_rank_with_another_torch_is_named_and_nothing_is_measured(world, tmp_path):
    old = {"versions": {"torch": "2.12.0"}}
    report = examined(world, tmp_path, (PLAN, {}), (PLAN, old), (PLAN, {}), (PLAN, {}))
    [found] = failures(report.findings)
    assert (found.check, found.ranks) == ("versions", (1,))
    assert any("ranks would not connect: see versions" in one.text for one in report.findings)


def on_host(name: str) -> dict[str, Any]:
    return {"place": {"host": name, "machine": name, "network": name}}


def test_hosts_that_do_not_fit_the_domains_are_named_and_so_is_loopback(world, tmp_path):
    report = examined(world, tmp_path, *[(PLAN, on_host(name)) for name in "abab"])
    [mixed] = failures(report.findings, "hosts")
    assert mixed.ranks == (0, 2)
    assert "ranks 0 and 2 are both on host a, but in domains 0 and 1" in mixed.text
    assert [one.hosts for one in failures(report.findings, "interfaces")] == [("a", "b")]
    [back] = failures(report.findings, "ports")
    assert back.ranks == (0, 1, 2, 3)


def test_ranks_of_the_plan_that_nobody_plays_are_named(world, tmp_path):
    report = examined(world, tmp_path, *[(spread([[0, 1], [2, 3, 4, 5]]), {})] * RANKS)
    [found] = failures(report.findings)
    assert found.text.startswith("the plan has 6 ranks, and no process plays ranks 4-5")


def test_ranks_without_a_part_are_told_and_nothing_is_measured_when_asked(world, tmp_path):
    more = {"end_after": None, "most_nbytes": 0}
    report = examined(world, tmp_path, *[(spread([[0, 1]]), {})] * RANKS, **more)
    [idle] = [one for one in report.findings if one.level == Level.WARNING and one.check == "hosts"]
    assert idle.ranks == (2, 3)
    assert any("nothing was measured, as was asked for" in one.text for one in report.findings)


def test_why_the_probe_could_not_be_done_is_told_by_all(world, tmp_path):
    """The interface of rank 1 goes away after it was found to be right."""
    reports = world.call(_doctor_calls.check_without_interface, [(str(tmp_path), PLAN, 1)] * RANKS)
    assert reports == [reports[0]] * RANKS
    [found] = failures(reports[0].findings)
    assert found.check == "domains"
    assert "gloo cannot connect" in found.text


def test_a_transfer_that_never_ends_is_told_by_all_before_ranks_count_as_lost(world, tmp_path):
    found = world.call(_doctor_calls.probe_with_one_that_hangs, [(str(tmp_path), 0)] * RANKS)
    assert found == [found[0]] * RANKS
    text, ranks = found[0]
    assert text.startswith("gloo cannot send 262144 bytes to rank 1: nothing has happened for ")
    assert ranks == (0,)


def test_a_rank_that_ends_during_the_probe_is_named_by_all_others(world, tmp_path):
    """The last test of this world, which lacks a rank from then on."""
    ends = ["step 4 of the probe" if rank == 1 else None for rank in range(RANKS)]
    found = world.call(_doctor_calls.check, [(str(tmp_path), PLAN, {}, end) for end in ends])
    report = found[0]
    assert found == [report, "gone", report, report]
    assert report.lost == (1,)
    [lost] = failures(report.findings, "ranks")
    assert "rank 1 has not come to step 5 of the probe" in lost.text


# the command


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def of_rank(rank: int, size: int = 2, port: int | None = None) -> dict[str, str]:
    """The environment of a rank that somebody has started by hand."""
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), **at}


def visit_together(arguments: list[str], environs: list[dict[str, str]]) -> list[int]:
    """Exit codes of the command in several processes, for which threads stand here."""
    with ThreadPoolExecutor(len(environs)) as pool:
        return list(pool.map(lambda environ: main(["doctor", *arguments], environ), environs))


def test_all_ranks_of_a_launcher_check_a_plan_and_one_prints(tmp_path, capsys):
    path, port = saved(tmp_path, spread([[0], [1]])), free_port()
    environs = [of_rank(rank, port=port) for rank in range(2)]
    assert visit_together([str(path), "--mib", "1", "--json"], environs) == [0, 0]
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["exit_code"], found["lost"]) == (2, 0, [])
    assert {one["check"] for one in found["findings"]} == {
        *("versions", "ports", "interfaces", "devices", "hosts", "domains", "egress")
    }


def test_a_process_whose_rank_another_has_takes_no_part_and_says_so(capsys):
    port = free_port()
    environs = [of_rank(rank, 3, port) for rank in (0, 1, 1)]
    assert sorted(visit_together(["--timeout", "1", "--json"], environs)) == [2, 75, 75]
    said = capsys.readouterr()
    assert json.loads(said.out)["lost"] == [2]
    assert said.err == (
        "reshard-executors: rank 1: the rank of this process is 1, which another process has too;"
        " expected distinct ranks, and another MASTER_PORT for each job\n"
    )


def test_a_rank_without_signs_of_life_is_lost_and_one_that_has_not_come_is_not(monkeypatch):
    monkeypatch.setattr(pulse, "BEAT_S", 0.05)
    monkeypatch.setattr(pulse, "LOST_AFTER_S", 0.5)
    store = HashStore()
    ours, theirs, silent = (pulse.Pulse(store, rank) for rank in range(3))
    try:
        time.sleep(0.1)
        silent.close()
        found: dict[int, str] = {}
        until = time.monotonic() + 5
        while not found and time.monotonic() < until:
            found = ours.find_ended(range(4))
            time.sleep(0.02)
        assert found == {2: "it has given no sign of life for 0.5 s"}
        theirs.say("it was interrupted")
        time.sleep(0.06)
        assert ours.find_ended([0, 1]) == {1: "it was interrupted"}
    finally:
        ours.close()
        theirs.close()


@given(st.lists(st.sampled_from(list(Level))), st.booleans())
def test_the_exit_code_tells_the_worst(found, lost):
    report = Report(2, tuple(Finding("ports", level, "so") for level in found), (1,) if lost else ())
    assert code_of_report(report) == (75 if lost else int(Level.FAILURE in found))


def test_alone_it_prints_a_table_of_this_host(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["doctor", str(saved(tmp_path))], {"GLOO_SOCKET_IFNAME": "lo"}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 90 for line in lines)
    assert lines[0].startswith("ok       versions    all")
    assert "this needs a plan and all ranks" in "".join(lines)
    assert lines[-1] == "this host alone: 3 ok, 1 warning, 0 failure, 4 skipped"


def test_a_failure_is_in_the_exit_code_and_in_the_table(capsys):
    assert main(["doctor", "--json"], {"GLOO_SOCKET_IFNAME": "none7"}) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found["findings"] if one["level"] == "failure"] == ["interfaces"]


@pytest.mark.parametrize(
    ("arguments", "environ", "sentence"),
    [
        (["--mib", "-1"], {}, "--mib is -1; expected an integer from 0 to 4096"),
        (["--timeout", "nan"], {}, "--timeout is nan; expected seconds above 0"),
        (["--ranks", "0-1"], {}, "--ranks has 2 ranks; expected one for each process of the launcher"),
        (["--ranks", "1,1"], of_rank(0), "--ranks is '1,1', which has rank 1 twice; expected distinct ranks"),
        (["--backend", "mpi"], {}, "invalid choice: 'mpi'"),
        (["none.reshard"], {}, "none.reshard"),
        (["none.reshard"], of_rank(0, 1), "none.reshard"),
        ([], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'; expected an integer"),
        ([], {"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(capsys, arguments, environ, sentence):
    assert main(["doctor", *arguments], environ) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert sentence in found.err


def test_what_the_system_refuses_is_not_told_as_a_result_that_cannot_be_printed(capsys):
    main(["doctor"], {})  # imports all that it needs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            main(["doctor"], {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    capsys.readouterr()
    main(["doctor"], {})
    assert "this host alone" in capsys.readouterr().out


def test_ranks_that_do_not_come_are_named(capsys):
    assert main(["doctor", "--timeout", "0.5", "--json"], of_rank(0, 3)) == 75
    found = json.loads(capsys.readouterr().out)
    assert found["lost"] == [1, 2]
    assert found["findings"][0]["text"].startswith("ranks 1-2 have not come to tell what they run on")
    assert {one["check"] for one in found["findings"]} == {"ranks", "versions", "interfaces", "devices"}


def test_rank_0_that_nobody_reaches_or_that_cannot_listen_is_told_by_those_who_know(capsys):
    assert main(["doctor", "--timeout", "0.2"], of_rank(1)) == 75
    found = capsys.readouterr()
    assert found.out == ""
    assert "rank 1: MASTER_ADDR 127.0.0.1 (127.0.0.1)" in found.err
    assert "cannot be reached: Connection refused" in found.err
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert main(["doctor", "--json"], of_rank(0, port=port)) == 75
    told = json.loads(capsys.readouterr().out)["findings"][0]
    assert told["text"].startswith(f"port {port} of this host cannot be listened at: Address already in use")


# emulated clusters

CLUSTER = [namespaces.Gpu(rank, rank // 2, 100 * MBIT, 900 * MBIT) for rank in range(RANKS)]
PLANS = {"right": TWO_DOMAINS, "wrong": [[0], [1, 2], [3]], "exchanged": [[0, 2], [1, 3]]}


@pytest.fixture(scope="module")
def visits() -> dict[str, list[dict[str, Any]]]:
    """What each rank of a cluster of two domains reports of each plan."""
    with guard.cluster(CLUSTER) as (tag, folder):
        for name, grouped in PLANS.items():
            compiled(grouped, rows=1024).save(folder / f"{name}.reshard")
        subprocess.run(
            [
                *(tools.find_tool("ip") or "ip", "netns", "exec", namespaces.switch(tag)),
                *(sys.executable, _doctor_calls.__file__, tag, str(folder), str(RANKS)),
            ],
            check=True,
            timeout=180,
            capture_output=True,
        )
        return {
            name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(RANKS)]
            for name in PLANS
        }


def told(report: dict[str, Any], level: str, check: str) -> list[dict[str, Any]]:
    return [one for one in report["findings"] if (one["level"], one["check"]) == (level, check)]


@needs_namespaces
def test_a_plan_that_knows_its_cluster_passes(visits):
    for report in visits["right"]:
        assert not [one for one in report["findings"] if one["level"] == "failure"]
        assert report["findings"] == visits["right"][0]["findings"]
    report = visits["right"][0]
    [inside, *rates] = told(report, "ok", "domains")
    assert "inside domains 0 and 1 stayed off the NICs" in inside["text"]
    assert len(rates) == 2
    assert any("by the sender's own NIC (nic)" in one["text"] for one in told(report, "ok", "egress"))
    [interface] = told(report, "ok", "interfaces")
    assert "gloo will use nic (MTU 9000), with 10.77.0.1, 10.77.0.2" in interface["text"]


@needs_namespaces
@pytest.mark.parametrize(("name", "wrong"), [("wrong", {1: [1, 2]}), ("exchanged", {0: [0, 2], 1: [1, 3]})])
def test_a_domain_that_is_joined_by_nics_alone_is_caught_by_its_name(visits, name, wrong):
    for report in visits[name]:
        found = [one for one in report["findings"] if one["level"] == "failure"]
        assert [one["ranks"] for one in found] == list(wrong.values())
        for number, one in zip(wrong, found, strict=True):
            assert one["text"].startswith(f"domain {number} is not one: of ")
            assert "left by nic," in one["text"]


IN_NAMESPACE = """\
import json
from reshard_executors.doctor import hosts, interfaces, ports
from reshard_executors.store import knock
known = interfaces.read_interfaces()
named = interfaces.choose({"GLOO_SOCKET_IFNAME": "nic"}, known, "a")
point = ports.gather("10.77.0.9", 29400)
unreached = ports.unreached(point, knock("10.77.0.9", 29400, 1.0))
print(json.dumps([named.problem, hosts.gather().network, unreached]))
"""


@needs_namespaces
def test_an_interface_that_is_down_and_a_port_that_is_out_of_reach_are_told():
    with guard.cluster(CLUSTER[:1]) as (tag, _):
        space = namespaces.namespace(tag, CLUSTER[0])
        assert tools.perform(tools.Step("ip", space, ("link set dev nic down",))) is None
        command = [tools.find_tool("ip") or "ip", "netns", "exec", space, sys.executable, "-c", IN_NAMESPACE]
        done = subprocess.run(command, check=True, timeout=180, capture_output=True, text=True)
    problem, network, unreached = json.loads(done.stdout)
    assert problem.startswith("GLOO_SOCKET_IFNAME names nic, but it is down")
    assert network != hosts.gather().network
    assert "MASTER_ADDR 10.77.0.9 (10.77.0.9), port 29400, cannot be reached" in unreached
