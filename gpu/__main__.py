"""`python -m gpu`: the same as the command `gpu`."""

from __future__ import annotations

import sys

from gpu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
