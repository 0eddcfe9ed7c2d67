"""How the cluster is wired: a network namespace per GPU and one for all switches.

Every GPU has two ports. ``nic`` goes to a switch that joins all GPUs, ``nvl`` to that of its domain. Each is
shaped at both ends: the GPU's end is its way out, the switch's end its way in. The GPU's one address lies on
``nic``; a route per peer sends what goes to neighbours of the domain over ``nvl`` and all else over ``nic``.
So a transport that knows one interface uses the medium that the plan says.

As on fabrics with flow control nothing is lost on the way: what connections have on their way is limited, and
the queues hold all of it. Bytes sent again would show in the counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reshard_executors.emulation.tools import Step

NIC, NVLINK = "nic", "nvl"
"""Names of a GPU's ports in its namespace."""

MTU = 9000
"""Bytes of a frame, as data-centre fabrics have them: payload is 0.993 of the rate, 0.957 with 1500."""

TRICKLE_BYTES_PER_S = 125_000
"""Rate of the port of a GPU without NIC, which ranks need to find each other: 1 Mbit/s."""

BURST_S, MIN_BURST_NBYTES = 0.005, 65_536 + MTU
"""What a port may send at once after a pause: this time at its rate, at least one packet of the kernel."""

WINDOW_S, MIN_WINDOW_FRAMES = 0.005, 16
"""What one connection may have on its way: this time at the rate, but at least so many frames."""

PATIENCE_S = 1
"""How long the kernel waits for an acknowledgement before it sends again: queues of slow ports take longer
than its usual fifth of a second."""

CONNECTIONS = 8
"""Windows per peer that a port's queue has room for: of several connections, and windows are rounded up."""

FIRST_PORT = 29_400
"""Port on which the ranks find each other; free, because the namespace is new."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the cluster.

    Attributes:
        rank: the rank that runs on it.
        domain: number of its domain.
        nic_bytes_per_s: rate of its NIC per direction; None without NIC.
        nvlink_bytes_per_s: rate of its NVLink port per direction.
    """

    rank: int
    domain: int
    nic_bytes_per_s: int | None
    nvlink_bytes_per_s: int


def namespace(tag: str, gpu: Gpu) -> str:
    """Name of a GPU's network namespace."""
    return namespace_of(tag, gpu.rank)


def namespace_of(tag: str, rank: int) -> str:
    """Name of the network namespace of a rank's GPU."""
    return f"{tag}-r{rank}"


def switch(tag: str) -> str:
    """Name of the network namespace that holds all switches."""
    return f"{tag}-switch"


def address(position: int) -> str:
    """Address of the GPU at a position."""
    return f"10.77.0.{position + 1}"


def probe(tag: str) -> list[Step]:
    """Steps that need every right and kernel module that a cluster needs, in a namespace of its own."""
    inside = f"{tag}-probe"
    return [
        Step("ip", None, (f"netns add {inside}",)),
        Step("ip", inside, ("link add name a type veth peer name b", "link add name c type bridge")),
        Step("tc", inside, (f"qdisc add dev a root {_shape(TRICKLE_BYTES_PER_S, 1)}",)),
    ]


def wiring(tag: str, gpus: Sequence[Gpu]) -> list[Step]:
    """Steps that make the cluster.

    Args:
        tag: what its names begin with.
        gpus: its GPUs; addresses go by position.
    """
    centre = switch(tag)
    spaces = [namespace(tag, gpu) for gpu in gpus]
    bridges = ["net", *(f"dom{domain}" for domain in sorted({gpu.domain for gpu in gpus}))]
    making, shaping = ["link set dev lo up"], []
    for bridge in bridges:
        making.append(f"link add name {bridge} mtu {MTU} type bridge stp_state 0 mcast_snooping 0")
        making.extend(_bring_up(bridge))
    for position, gpu in enumerate(gpus):
        for device, bridge, bytes_per_s in _ports(gpu):
            port = f"{device}{position}"
            making.append(
                f"link add name {port} mtu {MTU} type veth peer name {device} mtu {MTU}"
                f" address {_hardware_address(device, position)} netns {spaces[position]}"
            )
            making.append(f"link set dev {port} master {bridge}")
            making.extend(_bring_up(port))
            shaping.append(f"qdisc add dev {port} root {_shape(bytes_per_s, len(gpus))}")
    return [
        Step("ip", None, tuple(f"netns add {name}" for name in (centre, *spaces))),
        Step("ip", centre, tuple(making)),
        Step("tc", centre, tuple(shaping)),
        *(step for position in range(len(gpus)) for step in _inside(spaces[position], position, gpus)),
    ]


def _inside(space: str, position: int, gpus: Sequence[Gpu]) -> Iterator[Step]:
    """Steps in the namespace of one GPU."""
    own = gpus[position]
    lines = ["link set dev lo up", f"addr add {address(position)}/32 dev {NIC}"]
    for device, _, _ in _ports(own):
        lines.extend(_bring_up(device))
    for other, peer in enumerate(gpus):
        if other != position:
            device = NVLINK if peer.domain == own.domain else NIC
            there = _hardware_address(device, other)
            slower = min(_rate(own, device), _rate(peer, device))
            lines.append(
                f"route add {address(other)}/32 dev {device} src {address(position)}"
                f" window {_window_frames(slower) * MTU} congctl reno rto_min {PATIENCE_S}s"
            )
            lines.append(f"neigh add {address(other)} lladdr {there} dev {device} nud permanent")
    yield Step("ip", space, tuple(lines))
    shapes = ((device, _shape(bytes_per_s, len(gpus))) for device, _, bytes_per_s in _ports(own))
    yield Step("tc", space, tuple(f"qdisc add dev {device} root {shape}" for device, shape in shapes))


def _ports(gpu: Gpu) -> tuple[tuple[str, str, int], ...]:
    """Ports of a GPU: name, the switch that it goes to, rate."""
    nic_bytes_per_s = TRICKLE_BYTES_PER_S if gpu.nic_bytes_per_s is None else gpu.nic_bytes_per_s
    return (NIC, "net", nic_bytes_per_s), (NVLINK, f"dom{gpu.domain}", gpu.nvlink_bytes_per_s)


def _bring_up(device: str) -> Iterator[str]:
    if Path("/proc/sys/net/ipv6").exists():  # it would announce addresses, which counters would show
        yield f"link set dev {device} addrgenmode none"
    yield f"link set dev {device} up"


def _hardware_address(device: str, position: int) -> str:
    return f"02:00:00:00:{1 if device == NIC else 2:02x}:{position + 1:02x}"


def _rate(gpu: Gpu, device: str) -> int:
    return next(bytes_per_s for name, _, bytes_per_s in _ports(gpu) if name == device)


def _window_frames(bytes_per_s: int) -> int:
    return max(int(bytes_per_s * WINDOW_S) // MTU, MIN_WINDOW_FRAMES)


def _shape(bytes_per_s: int, peers: int) -> str:
    """The discipline that holds a port to its rate."""
    burst = max(int(bytes_per_s * BURST_S), MIN_BURST_NBYTES)
    queue = burst + CONNECTIONS * peers * _window_frames(bytes_per_s) * MTU
    return f"tbf rate {8 * bytes_per_s}bit burst {burst} limit {queue}"
