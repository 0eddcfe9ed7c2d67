"""Options that say what a run costs beside the bytes over datasheet rates."""

from __future__ import annotations

import argparse

from reshard_planner.errors import InputError
from reshard_planner.simulate import Costs, LinkCosts
from reshard_planner.spec.sizes import parse_nbytes
from reshard_planner.topology.model import MAX_TIME_S, MIN_EFFICIENCY, MIN_LATENCY_S

TIMES = {
    "slot_cost": "time of a rank to begin a slot, in seconds (default 0)",
    "message_cost": "time of a rank to post a message, sent or received, in seconds (default 0)",
    "nic_latency": "start-up of a message over the network, in seconds (default: the topology's)",
    "nvlink_latency": "start-up of a message over NVLink, in seconds (default: the topology's)",
}
"""Options that are times."""

SHARES = {
    "nic_efficiency": "share of their rate that NICs reach, above 0, at most 1 (default: the topology's)",
    "nvlink_efficiency": "likewise, NVLink ports",
}
"""Options that are shares of a rate."""


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("costs")
    group.add_argument(
        "--pack-rate",
        metavar="RATE",
        help="bytes that a rank copies, packs or unpacks in a second, such as 2TB (default: no time at all)",
    )
    for name, text in TIMES.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar="S", type=float, help=text)
    for name, text in SHARES.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar="X", type=float, help=text)
    group.add_argument(
        "--buffered",
        metavar="SIZE",
        help="largest message that the transport takes over from its sender, such as 256KiB (default 0)",
    )


def read_costs(arguments: argparse.Namespace) -> tuple[Costs, LinkCosts]:
    """What ranks and links cost, as the options say.

    Raises:
        InputError: naming an option whose value is impossible.
    """
    for name in TIMES:
        value = getattr(arguments, name)
        if value is None:
            continue
        option = f"--{name.replace('_', '-')} is {value}"
        if not 0 <= value < MAX_TIME_S:
            raise InputError(f"{option}; expected seconds, 0 or more and below {MAX_TIME_S:.0f}")
        if name.endswith("latency") and 0 < value < MIN_LATENCY_S:
            raise InputError(f"{option}; expected seconds, 0 or at least {MIN_LATENCY_S:g}")
    for name in SHARES:
        value = getattr(arguments, name)
        if value is not None and not MIN_EFFICIENCY <= value <= 1:
            raise InputError(
                f"--{name.replace('_', '-')} is {value}; expected a share above 0, at most 1"
                f" and at least {MIN_EFFICIENCY:g}"
            )
    rate = None
    if arguments.pack_rate is not None:
        rate = parse_nbytes(arguments.pack_rate, "--pack-rate")
        if not rate:
            raise InputError(f"--pack-rate is {arguments.pack_rate}; expected more than 0 bytes in a second")
    buffered = 0 if arguments.buffered is None else parse_nbytes(arguments.buffered, "--buffered")
    costs = Costs(rate, arguments.slot_cost or 0.0, arguments.message_cost or 0.0, buffered)
    links = LinkCosts(
        arguments.nic_efficiency, arguments.nic_latency, arguments.nvlink_efficiency, arguments.nvlink_latency
    )
    return costs, links
