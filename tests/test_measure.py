"""Measuring a cluster: who measures with whom, what becomes of it, and real ranks on emulated hosts."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections import Counter
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import _measure_calls
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from reshard_executors.emulation import guard, namespaces, tools
from reshard_executors.local import ENVIRONMENT
from reshard_executors.measure import pairs
from reshard_executors.measure.full import Load, collect, plan_loads
from reshard_executors.measure.pairs import circle_round, circle_rounds, plan_full_turns, plan_turns
from reshard_executors.measure.samples import (
    Measurement,
    PairSample,
    Rate,
    Seat,
    SumSample,
    group_hosts,
    rates_by_direction,
)

from reshard_planner.cli.measured.cluster import measured_cluster, rounded
from reshard_planner.cli.measured.findings import find_all
from reshard_planner.cli.measured.places import find_places
from reshard_planner.cli.measured.reached import NIC, NVLINK, find_reached
from reshard_planner.cli.measured.table import measurement_text
from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import Fact, Finding, FindingKind, Origin, PortFacts
from reshard_planner.topology.cluster.merge import merge
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host, HostNic
from reshard_planner.topology.cluster.reading import cluster_from_form, load_cluster
from reshard_planner.topology.cluster.resolve import resolve
from reshard_planner.topology.cluster.writing import cluster_to_yaml

REASON = guard.reason_against()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

RANKS = 4

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=7).filter(lambda found: sum(found) > 1)


def hosts_of(counts: list[int]) -> list[list[int]]:
    """Ranks of hosts of so many, dealt out in turn as ``srun --distribution=cyclic`` does."""
    hosts: list[list[int]] = [[] for _ in counts]
    rank = 0
    while any(len(own) < count for own, count in zip(hosts, counts, strict=True)):
        for own, count in zip(hosts, counts, strict=True):
            if len(own) < count:
                own.append(rank)
                rank += 1
    return hosts


# who measures with whom


@given(st.integers(0, 40))
def test_rounds_of_the_circle_are_disjoint_and_have_every_pair_once(count):
    rounds = [circle_round(count, number) for number in range(circle_rounds(count))]
    assert all(max(Counter(sum(each, ())).values()) == 1 for each in rounds)
    assert sorted(chain.from_iterable(rounds)) == list(combinations(range(count), 2))


@given(sizes, st.integers(1, 400))
def test_turns_disturb_nobody_and_give_every_rank_several_partners(counts, most):
    hosts = hosts_of(counts)
    home = {rank: number for number, own in enumerate(hosts) for rank in own}
    plan = plan_turns(hosts, most)
    partners: dict[int, set[int]] = {rank: set() for rank in home}
    for turn in plan.turns:
        assert max(Counter(sum(turn, ())).values()) == 1
        reaching = [home[rank] for pair in turn if home[pair[0]] != home[pair[1]] for rank in pair]
        assert len(set(reaching)) == len(reaching)
        for low, high in turn:
            assert low < high
            assert high not in partners[low]
            partners[low].add(high)
            partners[high].add(low)
    for rank, own in partners.items():
        beside = len(hosts[home[rank]]) - 1
        inside = sum(home[one] == home[rank] for one in own)
        assert inside >= min(2, beside)
        assert len(own) - inside >= min(2, len(home) - beside - 1)


@given(sizes)
def test_all_pairs_are_measured_where_there_is_time(counts):
    hosts = hosts_of(counts)
    plan = plan_turns(hosts, 10_000)
    measured = sorted(pair for turn in plan.turns for pair in turn)
    assert measured == list(combinations(range(sum(counts)), 2))
    assert plan.pair_count == len(measured)


def test_a_large_world_is_sampled_within_its_turns():
    hosts = [list(range(8 * number, 8 * number + 8)) for number in range(256)]
    plan = plan_turns(hosts, 68)
    assert len(plan.turns) <= 68
    partners = Counter(rank for turn in plan.turns for pair in turn for rank in pair)
    assert min(partners.values()) >= 10
    assert len(partners) == 2048
    reached = [high for turn in plan.turns for low, high in turn if low == 0 and high >= 8]
    assert len({high // 8 for high in reached}) == len({high % 8 for high in reached}) == len(reached) >= 5


@given(sizes)
def test_every_host_sends_to_another_one_and_receives_at_the_same_time_as_nobody_else(counts):
    hosts = hosts_of(counts)
    senders, receivers = set(), set()
    for turn in plan_full_turns(hosts):
        of_turn = [rank for group in turn for train in group for rank in train]
        assert len(set(of_turn)) == len(of_turn)
        for group in turn:
            one, other = (next(own for own in hosts if rank in own) for rank in group[0])
            assert list(group) == list(zip(one, other, strict=False))
            senders.add(tuple(one))
            receivers.add(tuple(other))
    assert senders == receivers == (set(map(tuple, hosts)) if len(hosts) > 1 else set())


def test_examples_in_docstrings_hold():
    assert doctest.testmod(pairs) == doctest.TestResults(0, 1)


# what becomes of it


def measurement(
    hosts: list[str], ports: list[tuple[float, float]], nvlink: float = 400e9, **fields: Any
) -> Measurement:
    """All pairs of ranks on these hosts, whose NICs send and receive at these rates, in bytes per second."""
    locals_ = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    seats = tuple(
        Seat(rank, host, local) for rank, (host, local) in enumerate(zip(hosts, locals_, strict=True))
    )
    found = []
    for low, high in combinations(range(len(hosts)), 2):
        near = hosts[low] == hosts[high]
        up = nvlink if near else min(ports[low][0], ports[high][1])
        down = nvlink if near else min(ports[high][0], ports[low][1])
        rates = ((Rate(2**20, 4, rate / 2), Rate(2**26, 20, rate)) for rate in (up, down))
        both = Rate(2**26, 10, min(up, down))
        found.append(PairSample(low, high, 2e-6 if near else 7e-6, *rates, both))
    made = Measurement("nccl", seats, 4096, tuple(found), len(found), (), 3.0)
    return Measurement(**{**{name: getattr(made, name) for name in Measurement.__slots__}, **fields})


def described(measured: Measurement, known: Cluster | None = None) -> tuple[Cluster, tuple[Finding, ...]]:
    places, unknown = find_places(measured, known)
    reached = find_reached(measured, places)
    cluster, noted = measured_cluster(places, reached, known)
    return cluster, (*unknown, *noted, *find_all(measured, places, reached))


def nics_of(cluster: Cluster) -> list[HostNic]:
    return [nic for host in cluster.hosts for nic in host.nics]


def kinds(findings: tuple[Finding, ...]) -> list[FindingKind]:
    return [finding.kind for finding in findings]


rates = st.floats(1e6, 1e12)


@given(st.lists(st.tuples(rates, rates), min_size=4, max_size=8))
def test_a_port_is_what_its_best_partner_shows_of_it_and_the_file_says_so(ports):
    hosts = ["ab"[rank % 2] for rank in range(len(ports))]
    measured = measurement(hosts, ports)
    cluster, _ = described(measured)
    assert cluster_from_form(yaml.safe_load(cluster_to_yaml(cluster))) == cluster
    for number, host in enumerate(cluster.hosts):
        own = [rank for rank in range(len(ports)) if hosts[rank] == host.name]
        others = [rank for rank in range(len(ports)) if rank not in own]
        for rank, nic in zip(own, host.nics, strict=True):
            best_out = max(min(ports[rank][0], ports[other][1]) for other in others)
            best_in = max(min(ports[rank][1], ports[other][0]) for other in others)
            assert nic.port.bytes_per_s is not None
            assert nic.port.bytes_per_s.value == rounded(min(best_out, best_in)), number
        for port in (*(nic.port for nic in host.nics), *(gpu.nvlink for gpu in host.gpus)):
            assert {port.bytes_per_s.origin, port.efficiency.origin, port.latency_s.origin} == {
                Origin.MEASURED
            }
            assert port.efficiency.value == 1.0
    topology = resolve(cluster).topology
    assert [len(nic.gpus) for nic in topology.nics] == [1] * len(ports)


def test_latencies_are_those_of_the_port():
    cluster, _ = described(measurement(["a", "a", "b"], [(50e9, 50e9)] * 3))
    assert [gpu.nvlink.latency_s.value for gpu in cluster.hosts[0].gpus] == [2e-6, 2e-6]
    assert {nic.port.latency_s.value for nic in nics_of(cluster)} == {7e-6}
    assert cluster.hosts[1].gpus[0].nvlink == PortFacts()  # nobody else is on its host


SHEET = PortFacts(Fact(50_000_000_000, Origin.FILE, "ibnetdiscover"))


def known_cluster(**port: Any) -> Cluster:
    """Two hosts of two GPUs, with NICs named as by their driver, the first of them for the second GPU."""
    nics = (
        HostNic("mlx5_0", gpus=Fact((1,)), port=SHEET),
        HostNic("mlx5_1", gpus=Fact((0,)), port=SHEET),
    )
    gpus = (Gpu("GPU0", uuid="GPU-x"), Gpu("GPU1", uuid="GPU-y"))
    return Cluster(hosts=tuple(Host(name, gpus, nics) for name in ("a.site", "b.site")), **port)


def test_a_datasheet_rate_stays_and_the_efficiency_says_what_was_reached():
    measured = measurement(["a", "a", "b", "b"], [(45e9, 45e9), (40e9, 40e9)] * 2)
    cluster, findings = described(measured, known_cluster())
    assert [host.name for host in cluster.hosts] == ["a.site", "b.site"]
    assert FindingKind.UNKNOWN not in kinds(findings)
    efficiencies = {nic.name: nic.port.efficiency for nic in nics_of(cluster)}
    assert [efficiencies[name].value for name in ("mlx5_0", "mlx5_1")] == [0.8, 0.9]
    assert {fact.origin for fact in efficiencies.values()} == {Origin.MEASURED}
    assert all(nic.port.bytes_per_s == SHEET.bytes_per_s for nic in nics_of(cluster))
    merged, conflicts = merge([known_cluster(), cluster])
    assert conflicts == ()
    assert len(nics_of(merged)) == 4
    assert [nic.port.efficiency.value for nic in nics_of(merged)] == [0.8, 0.9] * 2


def test_more_than_the_datasheet_is_a_conflict_and_counts_as_all_of_it():
    cluster, findings = described(measurement(["a", "b"], [(60e9, 60e9)] * 2), known_cluster())
    assert nics_of(cluster)[1].port.efficiency.value == 1.0
    assert kinds(findings) == [FindingKind.CONFLICT] * 2
    assert "60 GB/s were measured, more than the 50 GB/s that ibnetdiscover says" in findings[0].text


def test_gpus_are_told_by_their_uuid_and_else_by_their_order():
    measured = measurement(["a", "a"], [(1.0, 1.0)] * 2)
    seats = tuple(Seat(rank, "a", rank, uuid) for rank, uuid in enumerate(["GPU-y", "GPU-x"]))
    places, _ = find_places(Measurement("nccl", seats, 1, measured.pairs, 1, (), 1.0), known_cluster())
    assert [place.gpu for place in places] == [1, 0]
    places, _ = find_places(measured, known_cluster())
    assert [place.gpu for place in places] == [0, 1]


def test_a_nic_of_two_gpus_is_as_fast_as_the_better_one_and_two_nics_of_one_share_what_it_reached():
    shared = HostNic("n0", gpus=Fact((0, 1)))
    ports = [(30e9, 30e9), (40e9, 40e9), (90e9, 90e9)]
    pair = (HostNic("n0", gpus=Fact((0,))), HostNic("n1", gpus=Fact((0,))))
    known = Cluster(hosts=(Host("a", (Gpu("GPU0"), Gpu("GPU1")), (shared,)), Host("b", (Gpu("GPU0"),), pair)))
    cluster, findings = described(measurement(["a", "a", "b"], ports), known)
    assert [nic.port.bytes_per_s.value for nic in nics_of(cluster)] == [40_000_000_000] + [20_000_000_000] * 2
    [assumed] = [finding for finding in findings if finding.kind is FindingKind.ASSUMED]
    assert "GPU 0 uses 2 NICs" in assumed.text


def test_hosts_of_one_domain_measure_nvlink_and_gpus_of_different_domains_of_a_host_measure_neither():
    fabric = tuple(
        Host(name, (Gpu("GPU0", fabric=Fact("f")), Gpu("GPU1", fabric=Fact("f")))) for name in "ab"
    )
    measured = measurement(["a", "a", "b", "b"], [(70e9, 70e9)] * 4)
    for hosts, media in (
        (fabric, {NVLINK}),
        (tuple(Host(name, (Gpu("g0", island=Fact(0)), Gpu("g1", island=Fact(1)))) for name in "ab"), {NIC}),
    ):
        places, _ = find_places(measured, Cluster(hosts=hosts))
        reached = find_reached(measured, places)
        assert {medium for _, medium in reached} == media
    assert reached[0, NIC].source == "nccl, messages of 64 MiB, rank 0 with 2-3"


def test_a_host_that_the_cluster_lacks_is_told_and_too_few_gpus_are_refused():
    _, findings = described(measurement(["a", "c"], [(50e9, 50e9)] * 2), known_cluster())
    assert [finding.place for finding in findings if finding.kind is FindingKind.UNKNOWN] == ["host c"]
    with pytest.raises(TopologyError, match="host 'a' runs 3 ranks, and the cluster file gives it 2 GPUs"):
        described(measurement(["a", "a", "a", "b"], [(50e9, 50e9)] * 4), known_cluster())


def test_what_is_slow_lopsided_or_shared_is_found_and_nothing_else():
    fine = [(50e9, 50e9)] * 8
    hosts = ["a"] * 4 + ["b"] * 4
    assert described(measurement(hosts, fine))[1] == ()
    [slow] = described(measurement(hosts, [(20e9, 20e9), *fine[1:]]))[1]
    assert slow.place == "host a, GPU 0 (rank 0)"
    assert "20 GB/s over NIC, 40% of the median 50 GB/s" in slow.text
    assert "2.5 times as long" in slow.text
    [_, lopsided] = described(measurement(hosts, [(50e9, 20e9), *fine[1:]]))[1]
    assert "sends 50 GB/s and receives 20 GB/s" in lopsided.text
    sums = (SumSample("a", "b", 4, 120e9, 200e9), SumSample("b", "a", 4, 190e9, 200e9))
    [shared] = described(measurement(hosts, fine, sums=sums))[1]
    assert shared.place == "host a"
    assert "120 GB/s together to host b, 60% of what they reach one at a time" in shared.text
    half = [
        PairSample(pair.low, pair.high, pair.latency_s, pair.up, pair.down, Rate(2**26, 9, 25e9))
        if (pair.low, pair.high) == (1, 6)
        else pair
        for pair in measurement(hosts, fine).pairs
    ]
    [duplex] = described(measurement(hosts, fine, pairs=tuple(half)))[1]
    assert duplex.place == "ranks 1 and 6"
    assert "over NIC 1 of 16 pairs reach less in each direction when both send, 50% at worst" in duplex.text


def test_the_table_names_the_slowest_and_the_fastest_pair_and_every_host():
    ports = [(50e9, 50e9), (20e9, 20e9), (50e9, 50e9), (50e9, 50e9)]
    sums = (SumSample("a", "b", 2, 60e9, 70e9),)
    measured = measurement(["a", "a", "b", "b"], ports, sums=sums)
    places, _ = find_places(measured, None)
    text = measurement_text(measured, places, find_reached(measured, places))
    assert "4 ranks on 2 hosts over nccl: 6 of 6 pairs measured in 3 s" in text
    assert "NIC     slowest  rank 1 (a, GPU 1) and rank 2 (b, GPU 0): 20 GB/s, 7 µs" in text
    assert "NIC     fastest  rank 0 (a, GPU 0) and rank 2 (b, GPU 0): 50 GB/s, 7 µs" in text
    rows = [" ".join(line.split()) for line in text.splitlines()[-2:]]
    assert rows[0] == "a 2 400 GB/s 2 µs 35 GB/s 7 µs 60 GB/s 70 GB/s"
    assert rows[1].endswith(" - -")


@given(sizes.filter(lambda counts: len(counts) > 1), st.randoms(use_true_random=False))
def test_trains_that_share_nothing_end_together_and_reach_their_sum(counts, random):
    hosts = hosts_of(counts)
    names = {rank: str(number) for number, own in enumerate(hosts) for rank in own}
    port = [random.uniform(1e9, 9e9) for _ in names]
    turns = plan_turns(hosts, 1).turns
    pairs_ = [
        PairSample(low, high, 1e-6, (rate,), (rate,), rate)
        for turn in turns
        for low, high in turn
        for rate in [Rate(2**20, 3, min(port[low], port[high]))]
    ]
    full_turns = plan_full_turns(hosts)
    loads = plan_loads(full_turns, rates_by_direction(pairs_), 0.5)
    elapsed = [[0.0] * len(full_turns) for _ in names]
    for number, turn in enumerate(full_turns):
        for group in turn:
            for train in group:
                assert loads[train].nbytes == pytest.approx(0.5 * loads[train].bytes_per_s)
                elapsed[train[0]][number] = 0.5
    found = collect(full_turns, loads, elapsed, [names[rank] for rank in sorted(names)])
    assert all(each.bytes_per_s == pytest.approx(each.alone_bytes_per_s, rel=1e-6) for each in found)
    assert {each.sender for each in found} == set(names.values())


def test_a_train_of_ranks_that_were_not_measured_sends_what_its_slower_end_reaches():
    fast, slow = Rate(2**22, 3, 8e9), Rate(2**20, 3, 2e9)
    measured = {(0, 3): fast, (3, 0): fast, (1, 2): slow, (2, 1): slow}
    loads = plan_loads([(((0, 2),),), (((2, 0),),)], measured, 0.5)
    assert loads[0, 2] == loads[2, 0] == Load(10**9, 2e9, 2**20)


def test_ranks_of_a_host_go_by_their_local_ranks():
    seats = [Seat(0, "b", 1), Seat(1, "a", 0), Seat(2, "b", 0), Seat(3, "a", 1)]
    assert group_hosts(seats) == {"b": [2, 0], "a": [1, 3]}


# real ranks


def test_a_process_that_is_alone_is_told_how_to_start_more(monkeypatch, capsys):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert _measure_calls.main(["topology", "measure"]) == 2
    assert "nothing to measure: this is the only process; expected several" in capsys.readouterr().err
    assert _measure_calls.main(["topology", "measure", "--seconds", "0"]) == 2
    assert "--seconds is 0.0; expected seconds above 0" in capsys.readouterr().err


def test_ranks_of_torchrun_on_two_hosts_write_a_file_that_covers_all_of_them(tmp_path):
    path = tmp_path / "measured.yaml"
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    command = (_measure_calls.__file__, "topology", "measure", "--seconds", "1", "-o", str(path))
    done = subprocess.run(
        [sys.executable, *launcher, *command],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4 ranks on 2 hosts over gloo: 6 of 6 pairs measured" in done.stdout
    cluster = load_cluster(path)
    assert [(host.name, len(host.gpus), len(host.nics)) for host in cluster.hosts] == [
        ("a", 2, 2),
        ("b", 2, 2),
    ]
    for host in cluster.hosts:
        for port in (*(gpu.nvlink for gpu in host.gpus), *(nic.port for nic in host.nics)):
            for fact in (port.bytes_per_s, port.efficiency, port.latency_s):
                assert fact is not None
                assert fact.origin is Origin.MEASURED
                assert fact.value > 0
                assert fact.source.startswith("gloo, messages of ")
    assert sum(len(nic.gpus) for nic in resolve(cluster).topology.nics) == RANKS


def forked(tag: str, folder: Path, *arguments: str, lost: int | None = None) -> list[int]:
    """Exit codes of ranks of ``_measure_calls``; what they print lies in the folder."""
    inside = (tools.find_tool("ip") or "ip", "netns", "exec", namespaces.switch(tag)) if tag != "-" else ()
    subprocess.run(
        [*inside, sys.executable, _measure_calls.__file__, "fork", tag, str(folder), *arguments],
        env={**os.environ, **ENVIRONMENT, **({} if lost is None else {"LOST": str(lost)})},
        timeout=100,
        check=True,
        capture_output=True,
    )
    return [int((folder / f"{rank}.code").read_text()) for rank in range(RANKS)]


def test_every_rank_says_that_one_is_lost_and_no_file_is_written(tmp_path):
    path = tmp_path / "measured.yaml"
    codes = forked("-", tmp_path, "topology", "measure", "--seconds", "1", "-o", str(path), lost=3)
    assert codes == [1, 1, 1, -9]
    for rank in range(3):
        said = (tmp_path / f"{rank}.err").read_text()
        assert said.startswith(f"reshard-planner: rank {rank}: ")
        assert "rank 3" in said
        assert len(said.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir() if each.suffix not in (".code", ".out", ".err")] == []


MBIT = 125_000
EMULATED = [
    namespaces.Gpu(rank, rank // 2, mbit * MBIT, 900 * MBIT) for rank, mbit in enumerate((60, 120, 60, 120))
]


@needs_namespaces
def test_emulated_rates_are_measured_and_unequal_nics_are_told_apart():
    with guard.cluster(EMULATED) as (tag, folder):
        path = folder / "measured.yaml"
        assert forked(tag, folder, "topology", "measure", "--seconds", "4", "-o", str(path)) == [0] * RANKS
        cluster = load_cluster(path)
    found = [nic.port.bytes_per_s.value for nic in nics_of(cluster)]
    assert found == [pytest.approx(gpu.nic_bytes_per_s, rel=0.1) for gpu in EMULATED]
    assert all(gpu.nvlink.bytes_per_s.value > 2 * max(found) for host in cluster.hosts for gpu in host.gpus)
