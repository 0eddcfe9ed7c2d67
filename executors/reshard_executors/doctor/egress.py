"""Egress: which NIC the traffic of a rank leaves by, in comparison with the one that the plan counts with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.hosts import Network
from reshard_executors.doctor.probe import ACROSS, ASKEW, Measured
from reshard_executors.spelling import spell_names

CHECK: Final = "egress"

VARIABLES: Final = ("NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL", "NCCL_CROSS_NIC")
"""Environment variables that say which NIC NCCL sends by."""

PXN_LEVEL: Final = "2"
"""Default of NCCL_P2P_PXN_LEVEL: sends and receives always go by the NIC of the destination's index."""


def gather(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment of this process says of NCCL's choice of NICs."""
    return {name: environ[name] for name in VARIABLES if name in environ}


def judge_rule(everyone: Sequence[Mapping[str, str]], backend: str) -> list[Finding]:
    """Which rule applies, by the environments of all ranks.

    Args:
        everyone: what :func:`gather` gave, by rank.
        backend: what plans are run with.
    """
    if backend != "nccl":
        text = (
            f"{backend} sends by the system's routes, from the address that it uses; variables of NCCL do not"
            " matter"
        )
        return [Finding(CHECK, Level.OK, text)]
    first = everyone[0]
    odd = tuple(rank for rank, one in enumerate(everyone) if one != first)
    if odd:
        text = (
            f"{', '.join(VARIABLES)} have other values than on rank 0; expected the same, or else egress"
            " differs"
        )
        return [Finding(CHECK, Level.FAILURE, text, odd)]
    said = ", ".join(f"{name} is {value}" for name, value in first.items()) or "no variable says otherwise"
    if first.get("NCCL_PXN_DISABLE", "0") == "0" and first.get("NCCL_P2P_PXN_LEVEL", PXN_LEVEL) != "0":
        text = (
            "NCCL may send by the NIC of the destination's index, over NVLink to the GPU beside it (PXN;"
            f" {said}); the plan counts with the sender's own NIC; expected NCCL_PXN_DISABLE=1, or else NICs"
            " are loaded otherwise than planned"
        )
        return [Finding(CHECK, Level.WARNING, text)]
    return [Finding(CHECK, Level.OK, f"NCCL sends by the sender's own NIC, as the plan counts with: {said}")]


def judge_traffic(claims: Claims, measured: Measured, networks: Sequence[Network]) -> list[Finding]:
    """Which rule applies, by what has left by which port.

    Args:
        claims: what the plan expects.
        measured: what the probe has measured.
        networks: which ranks share ports.
    """
    ports = {
        kind: {
            edge.sender: measured.ports(number)
            for number, edge in enumerate(measured.edges)
            if edge.kind == kind and measured.ports(number)
        }
        for kind in (ACROSS, ASKEW)
    }
    if not ports[ACROSS] and not ports[ASKEW]:
        text = "no traffic between domains has left a host, so that nothing tells which NIC it would leave by"
        return [Finding(CHECK, Level.SKIPPED, text)]
    found: list[Finding] = []
    for network in networks:
        found.extend(_judge_network(claims, ports, network))
    if not found:
        used = sorted({port for of_kind in ports.values() for names in of_kind.values() for port in names})
        text = (
            f"traffic between domains leaves by the sender's own NIC ({spell_names(used)}), as the plan"
            " counts with"
        )
        found.append(Finding(CHECK, Level.OK, text))
    return found


def _judge_network(
    claims: Claims, ports: Mapping[str, Mapping[int, tuple[str, ...]]], network: Network
) -> Iterator[Finding]:
    across, askew = ports[ACROSS], ports[ASKEW]
    turned = tuple(
        rank
        for rank in network.ranks
        if rank in across and rank in askew and not set(across[rank]) & set(askew[rank])
    )
    if turned and len(network.ranks) > 1:
        own, next_one = (spell_names(ports_of[turned[0]]) for ports_of in (across, askew))
        text = (
            f"rank {turned[0]} sends by {own} to the GPU of its own index in another domain, but by"
            f" {next_one} to the next one: egress goes by the destination's"
            " index; expected the sender's own NIC, which the plan counts with (NCCL_PXN_DISABLE=1), or else"
            " NICs are loaded otherwise"
        )
        yield Finding(CHECK, Level.FAILURE, text, turned)
        return
    sharing: dict[str, list[int]] = {}
    for rank in network.ranks:
        for port in across.get(rank, ()):
            sharing.setdefault(port, []).append(rank)
    for port, ranks in sharing.items():
        nics = {claims.nics_of[rank] for rank in ranks}
        if len(nics) > 1:
            text = (
                f"{len(ranks)} ranks all leave by {port}, but have {len(nics)} NICs in the topology; expected"
                " a NIC for each, or a topology in which they share one, or else the plan takes longer than"
                " it says"
            )
            yield Finding(CHECK, Level.WARNING, text, tuple(ranks))
