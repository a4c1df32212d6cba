"""Programs of tests in several processes: mpiexec, for Open MPI, on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from json import JSONDecoder
from pathlib import Path
from shutil import which
from typing import Any, Final

PROGRAMS: Final = Path(__file__).parent / "programs"
# Where a test's ranks wait for one that does not come, and longer than a loaded machine takes.
PATIENCE: Final = "60"


def find_mpiexec() -> str | None:
    """That of this Python's packages, else the first in PATH."""
    return which("mpiexec", path=sysconfig.get_path("scripts")) or which("mpiexec")


def mpiexec(
    ranks: int, program: str, *arguments: str, options: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program of `PROGRAMS` on as many ranks, however few cores there are."""
    found = find_mpiexec()
    assert found is not None, "the test needs mpi"
    tests = str(PROGRAMS.parents[1])
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH")))),
        "MPI_TIMEOUT": PATIENCE,
        # Open MPI: what is needed in containers, where the tests are root's.
        **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
        **variables,
    }
    how = ("-n", str(ranks), "--oversubscribe", "--bind-to", "none", *options)
    return subprocess.run(
        [found, *how, sys.executable, str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environ,
    )


def told_by_ranks(output: str) -> list[Any]:
    """What ranks printed as JSON with their number first, in its order.

    Lines of several processes may be joined.
    """
    found = re.finditer(re.escape('{"rank"'), output)
    told = [JSONDecoder().raw_decode(output, match.start())[0] for match in found]
    return sorted(told, key=lambda each: each["rank"])
