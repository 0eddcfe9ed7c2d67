"""Which GPU each rank runs on: launch orders agree with launchers' own rules, counted out rank by rank."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soon import soon

from reshard_planner.errors import TopologyError
from reshard_planner.topology.cluster.facts import FindingKind
from reshard_planner.topology.cluster.hostlist import fold_hosts
from reshard_planner.topology.cluster.model import Cluster, Gpu, Host
from reshard_planner.topology.cluster.ranks import hostfile_ranks, slurm_ranks, task_ranks, torchrun_ranks


def cluster(**sizes):
    return Cluster(
        hosts=tuple(Host(name, tuple(Gpu(f"GPU{n}") for n in range(size))) for name, size in sizes.items())
    )


def named(*names, size=2):
    return cluster(**dict.fromkeys(names, size))


FOUR = cluster(n1=8, n2=8, n3=8, n4=4)


@st.composite
def jobs(draw):
    """A cluster, some of its hosts in any order, and a number of ranks for each."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    known = cluster(**{f"n{n}": size for n, size in enumerate(sizes)})
    places = draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, len(sizes)))]
    return known, [(f"n{place}", draw(st.integers(1, sizes[place]))) for place in places]


def dealt(known, rows, turn):
    """GPU of each rank, dealt out one rank at a time: ``turn`` to a host, then to the next with room."""
    firsts, ranks, used = known.first_gpus(), [], {name: 0 for name, _ in rows}
    limits = dict(rows)
    place, in_turn = 0, 0
    while any(used[name] < limits[name] for name in used):
        name = rows[place % len(rows)][0]
        if used[name] == limits[name] or in_turn == turn:
            place, in_turn = place + 1, 0
            continue
        ranks.append(firsts[name] + used[name])
        used[name] += 1
        in_turn += 1
    return tuple(ranks)


@given(jobs())
def test_torchrun_and_hostfiles_go_host_by_host(job):
    known, rows = job
    expected = dealt(known, rows, None)
    assert (
        hostfile_ranks(known, "".join(f"{name} slots={count}\n" for name, count in rows)).rank_map == expected
    )
    assert hostfile_ranks(known, "\n".join(f"{name}:{count}" for name, count in rows)).rank_map == expected
    assert task_ranks(known, "".join(f"{name}\n" * count for name, count in rows)).rank_map == expected
    whole = [(name, len(known.hosts[int(name[1:])].gpus)) for name, _ in rows]
    names = [name for name, _ in rows]
    for order in (torchrun_ranks(known, names), torchrun_ranks(known, fold_hosts(names))):
        assert order.rank_map == dealt(known, whole, None)
    least = min(count for _, count in rows)
    assert torchrun_ranks(known, names, least).rank_map == dealt(
        known, [(name, least) for name in names], None
    )


@given(jobs(), st.integers(1, 9))
def test_slurm_deals_tasks_in_blocks_in_turn_and_in_planes(job, plane):
    known, rows = job
    nodelist = fold_hosts(name for name, _ in rows)
    tasks = ",".join(str(count) for _, count in rows)
    for distribution, turn in (
        ("block", None),
        ("cyclic", 1),
        (f"plane={plane}", plane),
        ("cyclic:block", 1),
    ):
        order = slurm_ranks(known, nodelist, tasks, distribution)
        assert order.rank_map == dealt(known, rows, turn)
        assert not order.findings
    by_node = hostfile_ranks(known, "".join(f"{name} slots={count}\n" for name, count in rows), by_node=True)
    assert by_node.rank_map == dealt(known, rows, 1)


@given(jobs(), st.sampled_from(["block", "cyclic", "plane=2"]))
def test_every_order_gives_each_gpu_to_one_rank_and_the_result_is_a_rank_map(job, distribution):
    known, rows = job
    ranks = slurm_ranks(known, fold_hosts(name for name, _ in rows), None, distribution).rank_map
    assert len(set(ranks)) == len(ranks)
    assert Cluster(hosts=known.hosts, rank_map=ranks).rank_map == ranks


def test_orders_of_real_jobs():
    assert torchrun_ranks(FOUR, "n[2,1]", 2).rank_map == (8, 9, 0, 1)
    assert slurm_ranks(FOUR, "n[1-2]", 4, "cyclic").rank_map == (0, 8, 1, 9, 2, 10, 3, 11)
    assert slurm_ranks(FOUR, "n[1-2]", "4", "plane=2").rank_map == (0, 1, 8, 9, 2, 3, 10, 11)
    assert slurm_ranks(FOUR, "n[1-4]", "2(x3),1").rank_map == (0, 1, 8, 9, 16, 17, 24)
    assert slurm_ranks(FOUR, "n[1,4]", "2,1", "cyclic").rank_map == (0, 24, 1)
    text = (
        "# two\n\nn3 slots=2 max_slots=8  # the fast one\nuser@n1 max-slots = 4 slots = 2\nn4:1 max_slots=2\n"
    )
    assert hostfile_ranks(FOUR, text).rank_map == (16, 17, 0, 1, 24)
    assert hostfile_ranks(FOUR, "n4\nn1 slots=1\n").rank_map == (24, 25, 26, 27, 0)
    assert task_ranks(FOUR, "n1\nn2\nn1\n").rank_map == (0, 8, 1)


def test_a_name_with_or_without_its_domain_finds_the_one_host_that_fits_and_says_so():
    known = cluster(**{"n1.cluster.local": 2, "n2": 2})
    order = torchrun_ranks(known, ["n1", "n2.cluster.local"])
    assert order.rank_map == (0, 1, 2, 3)
    [finding] = order.findings
    assert finding.kind is FindingKind.ASSUMED
    assert "hosts n1,n2.cluster.local" in str(finding)
    assert not torchrun_ranks(known, ["n1.cluster.local", "n2"]).findings


@pytest.mark.parametrize(
    ("names", "asked", "says"),
    [
        (("n1.a", "n1.b"), "n1", "host 'n1' can be 'n1.a' and 'n1.b'; expected the whole name"),
        (("n1.a",), "n1.b", "no host 'n1.b'; expected one of its hosts, such as n1.a"),
        (("n01", "n02"), "n1", "no host 'n1'; expected one of its hosts, such as n01"),
        (("gpu-a", "gpu-b"), "cpu", "no host 'cpu'"),
        ((), "n1", "but it has none"),
    ],
)
def test_names_that_fit_no_host_or_several_are_refused_with_those_that_are_near(names, asked, says):
    known = named(*names)
    for call in (
        lambda: torchrun_ranks(known, [asked]),
        lambda: slurm_ranks(known, asked),
        lambda: hostfile_ranks(known, asked),
        lambda: task_ranks(known, asked),
    ):
        with pytest.raises(TopologyError) as caught:
            call()
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: torchrun_ranks(FOUR, "n[1,1]"), "host 'n1' is given twice; expected each host once"),
        (lambda: torchrun_ranks(named("n1.a"), ["n1", "n1.a"]), "host 'n1.a' is given twice and as 'n1'"),
        (
            lambda: torchrun_ranks(FOUR, "n[3-4]", 8),
            "host 'n4' has 4 GPUs, and 8 ranks; expected one GPU for each",
        ),
        (lambda: torchrun_ranks(cluster(n1=0), "n1"), "host 'n1' has 0 GPUs"),
        (lambda: torchrun_ranks(FOUR, "n[1-2]", 0), "no host"),
        (lambda: torchrun_ranks(FOUR, []), "no host; expected one at least"),
        (lambda: torchrun_ranks(FOUR, "n[1-"), "brackets"),
        (lambda: slurm_ranks(FOUR, "n[1-2]", 0), "tasks_per_node is 0; expected 1 or more"),
        (lambda: slurm_ranks(FOUR, "n[1-2]", "8(x3)"), "is for more nodes; expected 2"),
        (lambda: slurm_ranks(FOUR, "n[1-3]", "8,8"), "is for 2 nodes; expected 3"),
        (
            lambda: slurm_ranks(FOUR, "n[1-2]", "8(x)"),
            "tasks_per_node is '8(x)'; expected numbers for 2 nodes",
        ),
        (lambda: slurm_ranks(FOUR, "n1", "9"), "host 'n1' has 8 GPUs, and 9 ranks"),
        (lambda: slurm_ranks(FOUR, "n1", 1, "random"), "'random' is none; expected block, cyclic or plane=N"),
        (lambda: slurm_ranks(FOUR, "n1", 1, "plane=0"), "expected block, cyclic or plane=N"),
        (lambda: slurm_ranks(FOUR, "n1", 1, "arbitrary"), "use task_ranks for the hosts of SLURM_HOSTFILE"),
        (
            lambda: hostfile_ranks(FOUR, "n1 slots=9"),
            "line 1 of the hostfile: host 'n1' has 8 GPUs, and 9 ranks",
        ),
        (lambda: hostfile_ranks(FOUR, "n1\n\nn1"), "line 3 of the hostfile: host 'n1' is given twice"),
        (lambda: hostfile_ranks(FOUR, "n1 slots"), "line 1 of the hostfile is 'n1 slots'; expected a host"),
        (lambda: hostfile_ranks(FOUR, "n1 slots=two"), "is 'n1 slots=two'; expected a host"),
        (lambda: hostfile_ranks(FOUR, "n1 slots=2 slots=3"), "gives slots twice"),
        (lambda: hostfile_ranks(FOUR, "n1:2 slots=3"), "gives slots twice"),
        (lambda: hostfile_ranks(FOUR, "n1 ports=2"), "has ports; expected slots and max_slots at most"),
        (lambda: hostfile_ranks(FOUR, "n1 slots=4 max_slots=2"), "max_slots 2 below its 4 slots"),
        (lambda: hostfile_ranks(FOUR, "n1 max_slots=2 slots=4"), "max_slots 2 below its 4 slots"),
        (lambda: hostfile_ranks(FOUR, "# none\n"), "no host; expected one at least"),
        (lambda: task_ranks(FOUR, "n4\n" * 5), "line 5 of the file: host 'n4' has 4 GPUs, and 5 ranks"),
        (lambda: task_ranks(FOUR, ""), "no host; expected one at least"),
    ],
)
def test_what_cannot_be_launched_is_refused_in_one_sentence(call, says):
    with pytest.raises(TopologyError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_hostfiles_give_an_order_or_one_sentence():
    rng = random.Random(3)  # noqa: S311 - not for secrets
    text = "# hosts\nn1 slots=8\nn2:4\nn3 slots=2 max_slots=8\nn4\n"
    for _ in range(1500):
        damaged = list(text)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(
                ["", "=", ":", "#", "9", " ", "\n", "\x00", "\u0663"]
            )
        for read in (hostfile_ranks, task_ranks):
            try:
                ranks = read(FOUR, "".join(damaged)).rank_map
            except TopologyError as error:
                ranks, sentence = (), str(error)
                assert "\n" not in sentence
            assert len(set(ranks)) == len(ranks)
            assert all(0 <= rank < FOUR.gpu_count for rank in ranks)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torchrun_ranks(FOUR, "n[0-999999999]"),
        lambda: torchrun_ranks(FOUR, "n[1-131000]"),
        lambda: slurm_ranks(FOUR, "n[1-4]", "1(x999999)," * 100_000),
        lambda: slurm_ranks(FOUR, "n[1-4]", "1," * 1_000_000),
        lambda: hostfile_ranks(FOUR, "n1 " + "slots=" * 500_000),
        lambda: hostfile_ranks(FOUR, "n1" + " a=1" * 100_000),
        lambda: hostfile_ranks(FOUR, "x" * 3_000_000),
        lambda: hostfile_ranks(FOUR, "n1 slots=" + "9" * 3_000_000),
        lambda: task_ranks(FOUR, "n1\n" * 300_000),
    ],
    ids=range(9),
)
def test_huge_orders_are_refused_at_once(call):
    with soon(2), pytest.raises(TopologyError) as caught:
        call()
    assert len(str(caught.value)) < 300


def test_a_large_cluster_names_near_hosts_in_time():
    known = Cluster(hosts=tuple(Host(f"node{n:06}") for n in range(20_000)))
    with soon(2), pytest.raises(TopologyError, match=r"such as node01\d{4}, node01\d{4}"):
        torchrun_ranks(known, ["node01234"])
