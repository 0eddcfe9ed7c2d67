"""The command ``reshard-executors``, which every process of a launcher runs."""

from reshard_executors.command.main import main, start

__all__ = ["main", "start"]
