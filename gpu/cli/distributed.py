"""`gpu distributed check`, of which mpiexec or srun starts one process a rank.

What takes long to import is imported when it runs, not with the other commands.
"""

from __future__ import annotations

import argparse

from gpu.cli.options import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu distributed`."""
    parser.add_argument("what", choices=["check"], help="compare and measure all ranks")
    parser.add_argument(
        "--rounds", type=positive, default=20, help="of each measurement (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measures, and prints on rank 0. Raises DistributedError without other ranks."""
    from gpu.cli.ranks import check

    check(arguments.rounds)
    return 0
