"""Reach: every rank listens where gloo would, and its neighbour in the ring and peers of the plan connect."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reshard_executors.doctor.findings import Finding, Level
from reshard_executors.doctor.ports import CHECK
from reshard_executors.spelling import spell_ranks

CONNECT_S: Final = 5.0
"""How long one connection may take, in seconds; the first packet may be lost and is sent again after one."""

AT_ONCE: Final = 16
"""Connections that a rank makes at a time."""

MOST_PEERS: Final = 256
"""Peers that a rank tries, so that this ends soon in large worlds."""

SHOWN: Final = 8
"""Ranks that nobody reaches, each with a finding of its own."""

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, slots=True)
class Listening:
    """Where one rank listens.

    Attributes:
        address: its own; None if it knows of none.
        port: chosen by the system, as gloo has it chosen; 0 if nobody can listen at the address.
        token: what it says to those that connect, so that they know it from others.
    """

    address: str | None
    port: int
    token: bytes


@dataclass(frozen=True, slots=True)
class Reached:
    """What one rank has reached.

    Attributes:
        tried: number of ranks that it tried to reach.
        reasons: why not, by rank that it did not reach.
    """

    tried: int
    reasons: dict[int, str]


@contextmanager
def listening(address: str | None, token: bytes) -> Iterator[Listening]:
    """Listen at an address during a ``with`` block, and tell everybody who connects the token."""
    server = None if address is None else _listen(address)
    if server is None:
        yield Listening(address, 0, token)
        return
    with server:
        threading.Thread(target=_answer, args=(server, token), name="doctor", daemon=True).start()
        try:
            yield Listening(address, server.getsockname()[1], token)
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close does not


def _listen(address: str) -> socket.socket | None:
    """A socket that listens at an address; None if that cannot be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=MOST_PEERS)
    except OSError:
        return None


def _answer(server: socket.socket, token: bytes) -> None:
    """Tell the token to whoever connects, until the socket is closed."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.settimeout(CONNECT_S)
                connection.sendall(token)


def gather(rank: int, peers: Sequence[int], everyone: Sequence[Listening]) -> Reached:
    """Connect to the next rank and to peers.

    Args:
        rank: of this process.
        peers: ranks that this one sends to.
        everyone: where each rank listens.
    """
    following = (rank + 1) % len(everyone)
    others = [one for one in dict.fromkeys([following, *peers]) if one != rank]
    wanted = [one for one in others if everyone[one].address is not None][:MOST_PEERS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda peer: _problem(everyone[peer]), wanted))
    return Reached(
        len(wanted), {peer: text for peer, text in zip(wanted, found, strict=True) if text is not None}
    )


def _problem(there: Listening) -> str | None:
    """Why a rank cannot be reached where it listens; None if it can."""
    try:
        with socket.create_connection((there.address, there.port), timeout=CONNECT_S) as connection:
            said = connection.recv(len(there.token), socket.MSG_WAITALL)
    except OSError as error:
        return error.strerror or str(error)
    return None if said == there.token else "another process answers there"


def judge(everyone: Sequence[Reached], places: Mapping[int, str]) -> list[Finding]:
    """Which ranks do not reach which.

    Args:
        everyone: by rank.
        places: address and port at which each rank listened, for messages.
    """
    grouped: dict[tuple[int, str], list[int]] = {}
    for rank, one in enumerate(everyone):
        for peer, reason in one.reasons.items():
            grouped.setdefault((peer, reason), []).append(rank)
    found = []
    for (peer, reason), ranks in sorted(grouped.items())[:SHOWN]:
        text = (
            f"{spell_ranks(ranks)} cannot reach rank {peer} at {places[peer]}: {reason}; expected hosts to"
            f" reach one another at {_ephemeral()}, since gloo connects all pairs of ranks there"
        )
        found.append(Finding(CHECK, Level.FAILURE, text, tuple(ranks)))
    hidden = {peer for peer, _ in sorted(grouped)[SHOWN:]}
    if hidden:
        text = f"nor can others reach {spell_ranks(hidden)}; expected it, as above"
        found.append(Finding(CHECK, Level.FAILURE, text, tuple(sorted(hidden))))
    if not found:
        tried = sum(one.tried for one in everyone)
        if not tried and len(everyone) > 1:
            text = "no rank knows at what address gloo would listen, so that none was tried"
            return [Finding(CHECK, Level.SKIPPED, text)]
        text = (
            f"hosts reach one another at {_ephemeral()}: {tried} connections of neighbours and of peers of"
            " the plan"
        )
        found.append(Finding(CHECK, Level.OK, text))
    return found


def _ephemeral() -> str:
    """The ports that the system chooses from."""
    try:
        least, most = _RANGE.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return "all ports that the system chooses"
    return f"ports {least} to {most}"
