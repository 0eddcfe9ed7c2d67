"""Exchange: bytes between this rank and another one, each call to its end; all that touches the device."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

WORDS: Final = 4
"""Numbers of one order."""

Call = tuple[Any, torch.Tensor, int]
"""``dist.isend`` or ``dist.irecv``, what is moved, and the rank at the other end."""


class Exchange:
    """Moves bytes of one rank. Whatever they are does not matter."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, most_nbytes: int) -> None:
        """Prepare buffers.

        Args:
            group: of all ranks.
            device: what is sent from and received to.
            most_nbytes: largest message.
        """
        self._group, self._device = group, device
        self._sent = torch.zeros(most_nbytes, dtype=torch.uint8, device=device)
        self._received = torch.empty(most_nbytes, dtype=torch.uint8, device=device)
        self._one = torch.zeros(1, device=device)

    def send(self, peer: int, nbytes: int) -> None:
        """Send bytes; returns when they have left, which over gloo may be before they have arrived."""
        self._move((dist.isend, self._sent[:nbytes], peer))

    def receive(self, peer: int, nbytes: int) -> None:
        """Receive bytes."""
        self._move((dist.irecv, self._received[:nbytes], peer))

    def swap(self, peer: int, nbytes: int) -> None:
        """Send and receive bytes at the same time."""
        self._move((dist.irecv, self._received[:nbytes], peer), (dist.isend, self._sent[:nbytes], peer))

    def tell(self, peer: int, *numbers: int) -> None:
        """Send an order."""
        self._move((dist.isend, torch.tensor(numbers, dtype=torch.int64, device=self._device), peer))

    def hear(self, peer: int) -> list[int]:
        """Receive an order."""
        numbers = torch.zeros(WORDS, dtype=torch.int64, device=self._device)
        self._move((dist.irecv, numbers, peer))
        found: list[int] = numbers.tolist()
        return found

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.all_reduce(self._one, group=self._group)
        self._settle()

    def _move(self, *calls: Call) -> None:
        # grouped also where it is one, as in runs of plans: alone, NCCL would make a communicator of the pair
        operations = [dist.P2POp(call, tensor, None, self._group, 0, peer) for call, tensor, peer in calls]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self._settle()

    def _settle(self) -> None:
        """Wait for the device, on which alone NCCL waits."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
