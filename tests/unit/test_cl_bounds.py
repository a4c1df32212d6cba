"""Kernels on Oclgrind, which sees accesses out of bounds: those it must complain of, and ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

import nested

_TESTS: Final = Path(__file__).parents[1]
# Writes, reads, and both well.
_WRONG = """
import numpy as np
import pytest
from unit.cl_kernels import cl_device
from unit.test_cl_device import SIZES

SOURCE = '''__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void SYMBOL(k)(__global float *out, __global const float *a) { out[%d] = a[%d]; }
'''

@pytest.mark.parametrize(("write", "read"), [(4, 0), (0, 4), (3, 3)])
def test_it(write, read):
    device = cl_device()
    assert "Oclgrind" in device.context.info.name
    program = device.runtime("k", device.compiler.compile(SOURCE % (write, read)), SIZES)
    out, a = device.allocator.alloc(16), device.allocator.alloc(16)
    device.allocator.copy_in(a, np.ones(4, np.float32).view(np.uint8).data)
    program(out, a)
"""


def run(*arguments: str, where: Path) -> str:
    """What pytest says of tests on Oclgrind."""
    kept = {k: v for k, v in nested.environment().items() if not k.startswith("OCLGRIND_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(_TESTS.parent / "pyproject.toml"),
         "-p", "oclgrind", "-p", "no:cacheprovider", *arguments],
        env=kept | {"TMPDIR": str(where), "CACHE_DIR": str(where / "cache")},
        cwd=_TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.slow
def test_accesses_out_of_bounds_fail_tests(need: Callable[[str], None], tmp_path: Path) -> None:
    need("oclgrind")
    need("torch")
    path = tmp_path / "test_wrong.py"
    path.write_text(_WRONG)
    said = run(str(path), f"--rootdir={tmp_path}", where=tmp_path)
    assert "2 failed, 1 passed" in said, said
    assert "Invalid write of size 4" in said and "Invalid read of size 4" in said


@pytest.mark.slow
@pytest.mark.parametrize("file", ["backend/test_replay.py", "tensor/test_views.py"])
def test_ours_stay_in_their_memory(need: Callable[[str], None], tmp_path: Path, file: str) -> None:
    need("oclgrind")
    need("torch")
    said = run(str(_TESTS / file), "--device=CL,CLCPU", where=tmp_path)
    assert " passed" in said and " failed" not in said and " error" not in said, said
