"""`gpu distributed check`, as the command line runs it."""

from __future__ import annotations

import sys

from gpu.cli.main import main

sys.exit(main(["distributed", "check", "--rounds", "2"]))
