"""The two labels of a transfer: over which medium it goes, and which role it plays in its tree."""

from enum import IntEnum


class Medium(IntEnum):
    """What a transfer goes over; values are stored in plan files."""

    LOCAL = 0
    """Within one rank."""
    NVLINK = 1
    """Within one domain, over NVLink or PCIe."""
    NETWORK = 2
    """Between domains, from NIC to NIC."""

    @property
    def label(self) -> str:
        return self.name.lower()


class Role(IntEnum):
    """What a transfer is for; values are stored in plan files."""

    COPY = 0
    """From one buffer of a rank to another."""
    INJECT = 1
    """A holder emits its own tile into the network."""
    RELAY = 2
    """A rank forwards over the network what it received."""
    FANOUT = 3
    """Over NVLink to a rank of the domain that needs the bytes."""
    HANDOFF = 4
    """Over NVLink to or from a neighbour that lends its NIC, and does not need the bytes itself."""

    @property
    def label(self) -> str:
        return self.name.lower()
