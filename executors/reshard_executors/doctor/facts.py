"""Facts: all that one rank finds out about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reshard_executors.doctor import devices, egress, infiniband, places, ports, versions
from reshard_executors.doctor.claims import Claims
from reshard_executors.doctor.devices import Devices
from reshard_executors.doctor.interface_checks import Interfaces
from reshard_executors.doctor.interfaces import choose, read_interfaces
from reshard_executors.doctor.places import Place
from reshard_executors.doctor.ports import MeetingPoint
from reshard_executors.doctor.versions import Versions


@dataclass(frozen=True, slots=True)
class Facts:
    """All that one rank has found out about itself.

    Attributes:
        place: where it runs.
        versions: of what it runs.
        point: where ranks meet, as it sees it; None without a launcher and an address.
        interfaces: of its network.
        devices: what it computes on.
        nccl: variables that say which NIC NCCL sends by.
    """

    place: Place
    versions: Versions
    point: MeetingPoint | None
    interfaces: Interfaces
    devices: Devices
    nccl: dict[str, str]


def gather(
    environ: Mapping[str, str],
    rank: int,
    local_rank: int,
    meeting_at: tuple[str, int] | None,
    claims: Claims | None,
    problem: str | None = None,
) -> Facts:
    """Find out about this process all that can be known without others.

    Args:
        environ: its environment.
        rank: of this process in the world.
        local_rank: its number on the host.
        meeting_at: address and port at which ranks meet; None if nothing names them.
        claims: what the plan expects; None without a plan.
        problem: why there is no plan, if one was asked for.
    """
    place = places.gather()
    known = read_interfaces()
    return Facts(
        place,
        versions.gather(None if claims is None else claims.plan, problem),
        None if meeting_at is None else ports.gather(*meeting_at),
        Interfaces(known, choose(environ, known, place.host), infiniband.read_rates()),
        devices.gather(environ, local_rank, 0 if claims is None else claims.need_nbytes(rank)),
        egress.gather(environ),
    )
