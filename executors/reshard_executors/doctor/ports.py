"""Ports: whether ranks find the address and the port at which they meet."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.hosts import Network
from reshard_executors.store import try_port

CHECK: Final = "ports"


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The address at which ranks meet, as one of them sees it.

    Attributes:
        address: as it is given, MASTER_ADDR mostly.
        port: likewise.
        resolved: addresses that it resolves to; none if it does not.
    """

    address: str
    port: int
    resolved: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        """Whether it leads back to the host of whoever uses it."""
        return bool(self.resolved) and all(map(is_loopback, self.resolved))


def gather(address: str, port: int) -> MeetingPoint:
    """Resolve the address at which ranks meet."""
    return MeetingPoint(address, port, resolve(address))


def judge(everyone: Sequence[MeetingPoint], networks: Sequence[Network]) -> list[Finding]:
    """Compare the meeting points of ranks that have met.

    Args:
        everyone: by rank.
        networks: which ranks share interfaces.
    """
    point = everyone[0]
    back = tuple(rank for rank, one in enumerate(everyone) if one.is_loopback)
    if back and len(networks) > 1:
        text = (
            f"{point.address} resolves to {everyone[back[0]].resolved[0]}, which leads back to the host, and"
            " ranks are on several hosts; expected an address that all of them reach, or else they do not"
            " meet, or give each other addresses that lead nowhere"
        )
        return [Finding(CHECK, Level.FAILURE, text, back)]
    return [Finding(CHECK, Level.OK, f"all ranks have met at {point.address}, port {point.port}")]


def judge_alone(point: MeetingPoint | None) -> list[Finding]:
    """Check the meeting point before anybody is there: from a process that no launcher has started.

    Args:
        point: the meeting point; None if none is given.
    """
    if point is None:
        text = "there is no launcher and no MASTER_ADDR, so that there is no port to check"
        return [Finding(CHECK, Level.SKIPPED, text)]
    if not point.resolved:
        return [Finding(CHECK, Level.FAILURE, unresolved(point))]
    if not any(map(is_own, point.resolved)):
        text = (
            f"{point.address} is another host, {point.resolved[0]}; whether its port {point.port} is free was"
            " not checked"
        )
        return [Finding(CHECK, Level.SKIPPED, text)]
    taken = try_port(point.port)
    if taken is not None:
        return [Finding(CHECK, Level.FAILURE, unlistened(point.port, taken))]
    text = f"{point.address} is this host, {point.resolved[0]}, and its port {point.port} is free"
    if point.is_loopback:
        text += "; only ranks on this host can meet there"
    return [Finding(CHECK, Level.OK, text)]


def unresolved(point: MeetingPoint) -> str:
    """Why ranks cannot meet at a point without address."""
    return (
        f"MASTER_ADDR is {point.address}, which resolves to no address; expected the name or address of the"
        " host of rank 0, or else ranks do not meet"
    )


def unlistened(port: int, reason: str) -> str:
    """A sentence on a port at which rank 0 cannot listen, for a reason that the system gives."""
    return (
        f"port {port} of this host cannot be listened at: {reason}; expected a free one in MASTER_PORT, or"
        " else rank 0 cannot start"
    )


def unreached(point: MeetingPoint, reason: str) -> str:
    """A sentence on a point at which this rank meets nobody, for a reason that the system gives."""
    if not point.resolved:
        return unresolved(point)
    return (
        f"MASTER_ADDR {point.address} ({point.resolved[0]}), port {point.port}, cannot be reached:"
        f" {reason}; expected rank 0 to listen there and no firewall between, or else ranks do not meet"
    )


def foreign(point: MeetingPoint, reason: str) -> str:
    """A sentence on a point at which somebody else listens, as this rank knows for some reason."""
    return (
        f"somebody listens at {point.address}:{point.port} who is not rank 0 of this job: {reason};"
        " expected a port in MASTER_PORT that nobody else uses, or else ranks do not meet"
    )


def resolve(host: str) -> tuple[str, ...]:
    """Addresses of a name, as the system orders them; none if it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for names that cannot be written
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_own(address: str) -> bool:
    """Whether an address is one of this host's, as gloo finds out: by binding it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.bind((address, 0))
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether an address leads back to the host that uses it."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
