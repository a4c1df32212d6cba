"""What importing the package costs: which modules it loads, reads and says."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import gpu

ON_USE = ("llvmlite", "cffi", "usb", "tqdm", "torch", "ml_dtypes")
HOME = str(Path(gpu.__file__).parents[1])
VARIABLES = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": HOME}

# `gpu` imports what its names need when they are first used.
IMPORTS = ("import gpu", "import gpu; gpu.Tensor, gpu.Device, gpu.dtypes, gpu.Context")

# Refuses the modules named, as if they were not installed.
BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Refuse())
"""


def _python(code: str, *options: str, **variables: str) -> str:
    """What a fresh interpreter prints; fails unless it ends well and stderr is empty."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**VARIABLES, **variables},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("code", IMPORTS)
def test_import_loads_no_optional_package(code: str) -> None:
    code += f"; import sys; print([m for m in {ON_USE!r} if m in sys.modules])"
    assert _python(code).strip() == "[]"


@pytest.mark.parametrize("code", IMPORTS)
def test_import_is_silent_with_warnings_as_errors(code: str) -> None:
    assert _python(code, "-W", "error") == ""


def test_import_alone_loads_no_part_of_the_compiler() -> None:
    code = "import gpu, sys; print([m for m in sys.modules if m.startswith('gpu.')])"
    assert _python(code).strip() == "[]"


def test_every_module_imports_without_them() -> None:
    code = BLOCK.format(blocked=ON_USE) + (
        "import importlib, pkgutil, gpu.core, gpu.compiler, gpu.tensor, gpu.runtime\n"
        "for package in (gpu.core, gpu.compiler, gpu.tensor, gpu.runtime):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
    )
    assert _python(code) == ""


def test_block_blocks() -> None:
    with pytest.raises(AssertionError, match="cffi is blocked"):
        _python(BLOCK.format(blocked=ON_USE) + "import cffi")


# numpy and the standard library read variables of their own: they are imported before.
SPY = """
import argparse, ctypes, logging, mmap, os, subprocess, tempfile
import numpy
read = set()
class Spy(type(os.environ)):
    def __getitem__(self, name):
        read.add(name)
        return super().__getitem__(name)
os.environ.__class__ = Spy
{code}
print(*sorted(read))
"""


def test_import_reads_only_debug_of_the_environment() -> None:
    """The loggers follow DEBUG; all else is read on first use."""
    read = _python(SPY.format(code=IMPORTS[1])).split()
    assert set(read) <= {"DEBUG", "GPU_DEBUG"}


def test_spy_sees() -> None:
    code = "os.environ.get('ONE'); os.getenv('TWO'); 'THREE' in os.environ"
    assert _python(SPY.format(code=code)).split() == ["ONE", "THREE", "TWO"]


def test_autogen_is_part_of_the_package() -> None:
    import gpu.autogen

    assert gpu.autogen.__file__ == str(Path(HOME, "gpu", "autogen", "__init__.py"))


def test_type_checkers_read_the_annotations() -> None:
    assert Path(gpu.__file__).with_name("py.typed").is_file()


def test_the_distribution_has_the_version_of_the_package() -> None:
    try:
        assert version("gpu") == gpu.__version__
    except PackageNotFoundError:
        pytest.skip("gpu is imported from its source tree and not installed")
