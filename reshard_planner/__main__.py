"""``python -m reshard_planner``."""

import sys

from reshard_planner.cli import main

sys.exit(main())
