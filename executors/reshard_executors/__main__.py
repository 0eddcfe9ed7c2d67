"""``python -m reshard_executors``: the command line."""

from reshard_executors.command import start

if __name__ == "__main__":
    start()
