"""Interfaces: what the network of a host is made of, and which part of it gloo will use."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from reshard_executors.doctor import links
from reshard_executors.doctor.ports import is_loopback, is_own, resolve
from reshard_executors.launchers import LOOPBACK

VARIABLE: Final = "GLOO_SOCKET_IFNAME"
"""The environment variable that names the interfaces that gloo is to use, separated by commas."""

_FLAGS, _ADDRESS, _MTU = 0x8913, 0x8915, 0x8921  # SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFMTU
_UP, _IS_LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_ADDRESSES_6: Final = Path("/proc/self/net/if_inet6")


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface.

    Attributes:
        name: its name.
        up: whether it is up and has a carrier.
        loopback: whether it leads back to the host.
        mtu: bytes of a frame.
        addresses: its first IPv4 address and its IPv6 ones, in the order in which gloo looks at them.
        bytes_per_s: rate of the link; None where the driver does not tell.
    """

    name: str
    up: bool
    loopback: bool
    mtu: int
    addresses: tuple[str, ...]
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What gloo will use on one rank.

    Attributes:
        address: its own address; None if it will find none.
        interface: the one with that address; None if none has it.
        problem: what is wrong with it, in words; None if nothing is.
        named: whether the environment names interfaces; else the host's name decides.
    """

    address: str | None
    interface: str | None
    problem: str | None
    named: bool


@dataclass(frozen=True, slots=True)
class Interfaces:
    """What one rank sees of its network.

    Attributes:
        known: all interfaces.
        choice: what gloo will use.
        infiniband: rates of active ports of RDMA devices in bytes per second, by name.
    """

    known: tuple[Interface, ...]
    choice: Choice
    infiniband: dict[str, float] = field(default_factory=dict)

    @property
    def chosen(self) -> Interface | None:
        """The interface that gloo will use."""
        return next((one for one in self.known if one.name == self.choice.interface), None)


def gather(environ: Mapping[str, str], host: str) -> Interfaces:
    """Read what this process sees of its network.

    Args:
        environ: its environment.
        host: name of the host.
    """
    known = read_interfaces()
    return Interfaces(known, choose(environ, known, host), links.infiniband_rates())


def read_interfaces() -> tuple[Interface, ...]:
    """All interfaces of the network that this process is in; none where the system is not Linux."""
    if sys.platform != "linux":
        return ()
    six: dict[str, list[str]] = {}
    with suppress(OSError):
        for line in _ADDRESSES_6.read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            six.setdefault(name, []).append(str(ipaddress.ip_address(bytes.fromhex(digits))))
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for number, name in socket.if_nameindex():
            with suppress(OSError):  # it has gone meanwhile
                [flags] = struct.unpack("H", _ask(asking, name, _FLAGS)[:2])
                [mtu] = struct.unpack("i", _ask(asking, name, _MTU)[:4])
                addresses = tuple(six.get(name, ()))
                with suppress(OSError):  # it has no such address
                    addresses = (socket.inet_ntoa(_ask(asking, name, _ADDRESS)[4:8]), *addresses)
                up = flags & (_UP | _RUNNING) == _UP | _RUNNING
                rate = links.interface_rate(number, name)
                found.append(Interface(name, up, bool(flags & _IS_LOOPBACK), mtu, addresses, rate))
    return tuple(found)


def _ask(asking: socket.socket, name: str, what: int) -> bytes:
    """What the kernel says of an interface, after its name."""
    import fcntl  # noqa: PLC0415 - not on every system

    return fcntl.ioctl(asking, what, struct.pack("256s", name.encode()[:15]))[16:]


def choose(environ: Mapping[str, str], interfaces: Sequence[Interface], host: str) -> Choice:
    """What gloo will use: the first interface that is named, else what the host's name resolves to.

    Args:
        environ: the environment of the process.
        interfaces: of its network.
        host: name of the host.
    """
    named = [name for name in environ.get(VARIABLE, "").split(",") if name]
    if named:
        return _choose_named(named, interfaces)
    address = next(filter(is_own, resolve(host)), None)
    if address is None:
        problem = (
            f"the host's name resolves to no address of the host, so that gloo falls back to {LOOPBACK};"
            f" expected one that other hosts reach, or {VARIABLE}"
        )
        return Choice(LOOPBACK, _holder(LOOPBACK, interfaces), problem, named=False)
    return Choice(address, _holder(address, interfaces), None, named=False)


def _choose_named(named: Sequence[str], interfaces: Sequence[Interface]) -> Choice:
    by_name = {interface.name: interface for interface in interfaces}
    problem = None
    for name in named if interfaces else ():
        one = by_name.get(name)
        if one is None:
            problem = f"there is none of that name; expected one of {', '.join(by_name)}"
        elif not one.up:
            problem = "it is down or has no carrier; expected one that is up"
        elif not one.addresses:
            problem = "it has no address; expected one with an address"
        if problem is not None:
            problem = f"{VARIABLE} names {name}, but {problem}, and gloo cannot connect"
            break
    if problem is not None or not interfaces:
        return Choice(None, named[0], problem, named=True)
    return Choice(by_name[named[0]].addresses[0], named[0], None, named=True)


def _holder(address: str, interfaces: Sequence[Interface]) -> str | None:
    """Name of the interface that has an address; all of 127.0.0.0/8 is loopback's."""
    for interface in interfaces:
        if address in interface.addresses or (interface.loopback and is_loopback(address)):
            return interface.name
    return None
