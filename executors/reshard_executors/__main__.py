"""``python -m reshard_executors``: the command line."""

from reshard_executors.command.start import start

if __name__ == "__main__":
    start()
