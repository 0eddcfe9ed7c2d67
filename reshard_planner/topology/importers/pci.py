"""PCI addresses, which drivers and tools write with more or fewer digits."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)


def pci_address(text: str | None) -> str | None:
    """An address with a domain of four digits, or of as many as it takes; None where it is none.

    >>> pci_address("00000000:A4:00.0")
    '0000:a4:00.0'
    """
    match = _ADDRESS.fullmatch(text.strip()) if text is not None else None
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()
