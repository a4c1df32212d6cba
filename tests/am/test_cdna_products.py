"""Kernels of the tensor library that multiply matrices, or use 8-bit floats, on CDNA."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("chip", ["gfx942", "gfx950"])
def test_products_and_bytes(chip: str, need: Callable[[str], None]) -> None:
    need("llvmlite")
    usual = {name: value for name, value in os.environ.items() if name != "TRACE"}
    usual["PYTHONPATH"] = os.pathsep.join((str(TESTS), *filter(None, [usual.get("PYTHONPATH")])))
    ran = subprocess.run(
        [sys.executable, "-m", "am.cdna_products"],
        env={**usual, "SIM": chip, "DEV": "AMD"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "AMD agrees\n", ran.stderr
