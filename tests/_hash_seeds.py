"""Texts under several hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def texts_under_hash_seeds(module: str, expression: str) -> set[bytes]:
    """What an expression over the names of a test module gives in processes with different hash seeds."""
    code = (
        f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import *;"
        f"sys.stdout.buffer.write(({expression}).encode())"
    )
    return {
        subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
