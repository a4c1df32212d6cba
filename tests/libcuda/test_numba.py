"""numba, which knows nothing of this package, on the simulated libcuda as a file."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.sim.cuda.sharedfile import SONAME
from libcuda.numba_tests import COMPILED, MISSED, WHY

HERE = Path(__file__).parent
KNOWN = "0.68.1"
_RESULT = re.compile(r"^(?:ERROR|FAIL): .*\(numba\.cuda\.tests\.cudadrv\.(\S+)\)$", re.MULTILINE)


def run(tmp_path: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """numba looks for other names first, and is told the path."""
    path = str(tmp_path / SONAME)
    command = [sys.executable, "-m", "gpu.sim.cuda", "--library", path, *program]
    environment = {**os.environ, "NUMBA_CUDA_DRIVER": path}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, env=environment
    )


def test_arrays_are_exchanged_both_ways(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("numba")
    ran = run(tmp_path, str(HERE / "with_numba.py"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "exchanged\n", "")


@pytest.mark.slow
def test_its_own_tests_pass_but_for_those_that_are_listed(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("numba")
    if (version := importlib.metadata.version("numba")) != KNOWN:
        pytest.skip(f"the list is of numba {KNOWN}, and {version} is installed")
    ran = run(tmp_path, "-m", "numba.runtests", "numba.cuda.tests.cudadrv")
    missed = {".".join(name.split(".")[-2:]) for name in _RESULT.findall(ran.stderr)}
    compiles = "Missing libdevice file" not in ran.stderr
    assert missed == MISSED.keys() | (() if compiles else COMPILED), ran.stderr[-3000:]
    count = re.search(r"Ran (\d+) tests", ran.stderr)
    assert count is not None and int(count[1]) >= 235
    assert "libcuda: " not in ran.stderr


def test_every_miss_has_a_reason_and_every_reason_a_miss() -> None:
    assert set(MISSED.values()) == WHY.keys()
