"""Plans on clusters imported from files: near the optimum of a linear program with the same limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fluid import Fluid

import reshard_planner as rp
from reshard_planner.demand import find_demands, find_geometries
from reshard_planner.ir.traffic import measure_traffic
from reshard_planner.topology import Ports, Topology
from reshard_planner.topology.cluster.facts import Fact, PortFacts
from reshard_planner.topology.cluster.model import Cluster, HostPod, Overrides
from reshard_planner.topology.cluster.resolve import resolve
from reshard_planner.topology.sources import Source, import_sources

DUMP = Path(__file__).parent / "data" / "topology" / "ibm_vpc_h100_nccl_dump.xml"
GB = 10**9


def imported(hosts: str) -> Cluster:
    """Hosts as one NCCL dump of a real machine describes each: 8 GPUs, 8 NICs of 25 GB/s."""
    return import_sources([Source.parse(f"{hosts}={DUMP}")])[0]


def unequal() -> Cluster:
    """One NIC of a host twice as fast as the others, and another at half of their speed."""
    cluster = imported("n[0-1]")
    first, second = cluster.hosts
    rates = {"mlx5_0": 50 * GB, "mlx5_3": 12 * GB}
    nics = tuple(
        replace(nic, port=PortFacts(Fact(rates[nic.name]))) if nic.name in rates else nic
        for nic in second.nics
    )
    return replace(cluster, hosts=(first, replace(second, nics=nics)))


def without_a_nic() -> Cluster:
    """A GPU whose NIC may not be used."""
    return replace(imported("n[0-1]"), overrides=Overrides(disabled_nics=("n1:mlx5_5",)))


def two_pods() -> Cluster:
    """Two pods of two hosts, four to one oversubscribed."""
    pods = tuple(
        HostPod(name, hosts, oversubscription=Fact(4.0))
        for name, hosts in (("left", ("n0", "n1")), ("right", ("n2", "n3")))
    )
    return replace(imported("n[0-3]"), pods=pods)


def spread(topology: Topology, shape: tuple[int, ...] = (768, 1024)) -> rp.ReshardSpec:
    """Tensors that the first half of the GPUs hold, and that every host of the second half needs whole."""
    count = topology.gpu_count
    train = rp.Mesh(range(count // 2))
    serve = rp.Mesh(range(count // 2, count), None, (count // 16, 8))
    return rp.ReshardSpec(
        [
            rp.TensorSpec("a", shape, "float32", rp.Layout(train, ["S(0)"]), rp.Layout(serve, ["R", "S(1)"])),
            rp.TensorSpec("b", shape, "float32", rp.Layout(train, ["R"]), rp.Layout(serve, ["R", "R"])),
        ],
        topology,
    )


@pytest.mark.parametrize("cluster", [unequal, without_a_nic, two_pods])
def test_the_busiest_port_of_an_imported_cluster_is_within_2_percent_of_the_linear_program(cluster) -> None:
    spec = spread(resolve(cluster()).topology)
    plan = rp.compile(spec)
    rp.verify(plan)
    ports = Ports.of(spec.topology, spec.ranks)
    demands = find_demands(find_geometries(spec, ports), ports)
    best = Fluid(spec, demands, proxies=True).least_time()
    claims = plan.certificate
    busiest = max(port.time_s for port in (claims.busiest_nic, claims.busiest_nvlink, claims.busiest_uplink))
    assert best * 0.999 <= busiest <= best * 1.02
    assert claims.payload.network_nbytes == claims.payload.minimum_network_nbytes


def test_imported_limits_reach_the_topology_that_planning_uses() -> None:
    rates = sorted(nic.link.bytes_per_s for nic in resolve(unequal()).topology.nics)
    assert rates == [12 * GB, *[25 * GB] * 14, 50 * GB]
    lacking = resolve(without_a_nic()).topology
    assert {gpu for nic in lacking.nics for gpu in nic.gpus} == set(range(16)) - {8 + 2}
    assert [pod.uplink.bytes_per_s for pod in resolve(two_pods()).topology.pods] == [100 * GB, 100 * GB]


def test_every_byte_passes_each_uplink_once_and_each_domain_once() -> None:
    spec = spread(resolve(two_pods()).topology)
    plan = rp.compile(spec)
    traffic = measure_traffic(spec, plan.tables, Ports.of(spec.topology, spec.ranks))
    size = sum(tensor.nbytes for tensor in spec.tensors)
    assert traffic.uplink.tolist() == [[size, 0], [0, size]]
    # into two serving domains each
    assert plan.certificate.payload.network_nbytes == 2 * size
