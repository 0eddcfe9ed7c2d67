"""Ports: whether ranks find the address at which they meet, and reach one another."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.interfaces import is_loopback, is_own
from reshard_executors.doctor.places import Network

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
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter for names that cannot be written
        return MeetingPoint(address, port, ())
    return MeetingPoint(address, port, tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))


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
    problem = port_problem(point.port)
    if problem is not None:
        return [Finding(CHECK, Level.FAILURE, problem)]
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


def port_problem(port: int) -> str | None:
    """Why nobody can listen at a port of this host, as rank 0 will, as a sentence; None if one can."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        with closing(socket.create_server(("", port), family=family, dualstack_ipv6=both)):
            return None
    except OSError as error:
        return (
            f"port {port} of this host cannot be listened at: {error.strerror or error}; expected a free one"
            " in MASTER_PORT, or else rank 0 cannot start"
        )


def reach_problem(point: MeetingPoint, timeout_s: float) -> str | None:
    """Why this process cannot reach the port at which ranks meet, as a sentence; None if it can."""
    if not point.resolved:
        return unresolved(point)
    try:
        with socket.create_connection((point.address, point.port), timeout=timeout_s):
            return None
    except OSError as error:
        reason = error.strerror or str(error)
        return (
            f"MASTER_ADDR {point.address} ({point.resolved[0]}), port {point.port}, cannot be reached:"
            f" {reason}; expected rank 0 to listen there and no firewall between, or else ranks do not meet"
        )
