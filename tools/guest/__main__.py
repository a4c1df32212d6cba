"""Runs a script in a guest with the device `edu`; see `tools.guest`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpu.core.config import config
from tools.guest.machine import run
from tools.guest.packages import Unavailable, unpacked


def main() -> int:
    """Prints what the script printed; gives its exit code, and 2 without a guest."""
    parser = argparse.ArgumentParser(prog="python -m tools.guest", description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--device", action="append", help="of QEMU, edu by default")
    parser.add_argument("--timeout", type=float, default=110, metavar="SECONDS")
    given = parser.parse_args()
    try:
        parts = unpacked(config.CACHE_DIR / "guest")
        devices = given.device or ["edu,dma_mask=0xffffffffffffffff"]
        code, output = run(parts, given.script.resolve(), devices, given.timeout)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    print(output, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
