"""The driver half needs the standard library and numpy, and nothing else, to be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu

HOME = str(Path(gpu.__file__).parents[1])
BLOCKED = ("cffi", "usb", "tqdm", "llvmlite", "ml_dtypes")
PACKAGES = ("gpu.core", "gpu.transport", "gpu.hcq", "gpu.drivers.nv")

CODE = f"""
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Refuse())
for name in {{package!r}},:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
{{more}}
"""


def _run(package: str, more: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE.format(package=package, more=more)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": HOME},
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_without_optional_packages(package: str) -> None:
    done = _run(package)
    assert done.returncode == 0, done.stderr


def test_the_block_blocks() -> None:
    assert "cffi is blocked" in _run("gpu.drivers.nv", "import cffi").stderr
