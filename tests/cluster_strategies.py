"""Random clusters: anything may be unknown, hosts may be alike or not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from reshard_planner.topology.cluster.facts import Fact, Origin, PortFacts
from reshard_planner.topology.cluster.model import (
    Cluster,
    Gpu,
    Host,
    HostNic,
    HostOverrides,
    HostPod,
    Nearness,
    Overrides,
    Switch,
)

names = st.text("abcXYZ019-._é", min_size=1, max_size=8)


def facts(values: st.SearchStrategy[object]) -> st.SearchStrategy[Fact[object] | None]:
    """Known with some origin, or unknown."""
    return st.none() | st.builds(Fact, values, st.sampled_from(Origin), st.sampled_from(["", "a.xml", "ü b"]))


port_facts = st.builds(
    PortFacts,
    facts(st.integers(1, 2**52)),
    facts(st.floats(1e-9, 1.0)),
    facts(st.sampled_from([0.0, 1e-6, 0.25])),
)

gpus = st.builds(
    Gpu,
    st.just(""),
    facts(st.sampled_from(["NVIDIA H100 80GB HBM3", "sm90", "sm100", "a thing"])),
    st.none(),
    st.none(),
    facts(st.integers(0, 3)),
    facts(st.integers(0, 18)),
    facts(st.integers(0, 2)),
    facts(st.sampled_from(["", "f1", "f2"])),
    port_facts,
)


@st.composite
def hosts(draw: st.DrawFn, name: str, leaves: list[str]) -> Host:
    """A host with any number of GPUs and NICs."""
    count = draw(st.integers(0, 4))
    devices = [draw(gpus) for _ in range(count)]
    nic_names = draw(st.lists(names, max_size=4, unique=True))
    nics = []
    for nic in nic_names:
        near = facts(st.lists(st.sampled_from(Nearness), min_size=count, max_size=count).map(tuple))
        users = facts(st.lists(st.integers(0, max(0, count - 1)), max_size=count, unique=True).map(tuple))
        nics.append(
            HostNic(
                nic,
                draw(st.none() | st.just(f"00000000{len(nics)}e000000{len(nics)}")),
                draw(st.none() | st.just(f"0000:a{len(nics)}:00.0")),
                draw(facts(st.integers(0, 3))),
                draw(facts(st.integers(0, 7))),
                draw(facts(st.sampled_from(leaves))) if leaves else None,
                draw(near),
                draw(users) if count else None,
                draw(facts(st.booleans())),
                draw(port_facts),
            )
        )
    gpu_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    path = st.lists(st.sampled_from(leaves), max_size=2).map(tuple) if leaves else st.just(())
    return Host(
        name,
        tuple(
            Gpu(name, *_rest(gpu, index, known=draw(st.booleans())))
            for index, (name, gpu) in enumerate(zip(gpu_names, devices, strict=True))
        ),
        tuple(nics),
        draw(facts(st.sampled_from(["", "d1", "d2"]))),
        draw(facts(path)),
        draw(port_facts),
        draw(port_facts),
        draw(st.builds(HostOverrides, st.none() | st.just("A100"), port_facts, port_facts)),
    )


def _rest(gpu: Gpu, number: int, *, known: bool) -> tuple[object, ...]:
    return (
        gpu.model,
        f"GPU-{number}" if known else None,
        f"0000:b{number}:00.0" if known else None,
        gpu.numa,
        gpu.nvlinks,
        gpu.island,
        gpu.fabric,
        gpu.nvlink,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any cluster that the model admits."""
    leaves = draw(st.lists(names, max_size=3, unique=True))
    host_names = draw(st.lists(names, max_size=5, unique=True))
    members = [draw(hosts(name, leaves)) for name in host_names]
    if len(members) > 1 and draw(st.booleans()):
        last = members[-2]
        members[-1] = replace(last, name=members[-1].name)
    above = [
        draw(st.lists(st.sampled_from([*leaves[:index], "spine", "core"]), max_size=2, unique=True))
        for index in range(len(leaves))
    ]  # of each leaf: some before it, and such as nothing is known of
    switches = tuple(
        Switch(name, tuple(parents), draw(port_facts), draw(port_facts))
        for name, parents in zip(leaves, above, strict=True)
    )
    pods = ()
    if host_names and draw(st.booleans()):
        inside = draw(st.lists(st.sampled_from(host_names), min_size=1, unique=True))
        cut = draw(st.integers(0, len(inside) - 1))
        pods = tuple(
            HostPod(name, tuple(members), draw(port_facts), draw(facts(st.floats(0.5, 16.0))))
            for name, members in (("pod", inside[cut:]), ("other", inside[:cut]))
            if members
        )
    count = sum(len(host.gpus) for host in members)
    rank_map = draw(st.none() | st.permutations(range(count)).map(tuple)) if count else None
    overrides = Overrides(
        tuple(draw(st.dictionaries(names, st.integers(0, 7), max_size=2)).items()),
        tuple(draw(st.lists(names, max_size=2, unique=True))),
        tuple((name,) for name in host_names[: draw(st.integers(0, 1))]),
        draw(st.none() | st.integers(1, 4)),
        draw(st.none() | st.just("H100")),
        draw(port_facts),
        draw(port_facts),
    )
    return Cluster(
        draw(names), tuple(members), switches, pods, rank_map, draw(port_facts), draw(port_facts), overrides
    )
