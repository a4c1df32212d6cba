"""``python -m tools.hw_acceptance``."""

from __future__ import annotations

import sys

from tools.hw_acceptance.cli import main

sys.exit(main(sys.argv[1:]))
