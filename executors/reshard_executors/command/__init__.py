"""The command ``reshard-executors``, which every process of a launcher runs."""

from reshard_executors.command.start import start

__all__ = ["start"]
