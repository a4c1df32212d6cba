"""GPU drivers in pure Python with a lazy, compiled tensor library on top.

    >>> from gpu import Tensor
    >>> (Tensor([1.0, 2.0]) + 1).tolist()
    [2.0, 3.0]

Names are imported when they are first used, so that ``import gpu`` costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu.core.config import Context
    from gpu.core.dtype import dtypes
    from gpu.core.errors import GpuError
    from gpu.runtime.device import Device
    from gpu.runtime.memory_stats import assert_no_leaks, memory_stats, reset_peak_memory_stats
    from gpu.tensor.checkpoint import checkpoint
    from gpu.tensor.crosscompile import compile_for
    from gpu.tensor.formats.files import load, save
    from gpu.tensor.jit import jit
    from gpu.tensor.kernels import kernel
    from gpu.tensor.mesh import Mesh
    from gpu.tensor.scan import scan
    from gpu.tensor.shared import share
    from gpu.tensor.tensor import Tensor
    from gpu.tensor.tracing import JitError
    from gpu.tensor.variable import Var

__version__: Final = "0.1.0"
__all__ = [
    "Context",
    "Device",
    "GpuError",
    "JitError",
    "Mesh",
    "Tensor",
    "Var",
    "__version__",
    "array_api",
    "assert_no_leaks",
    "checkpoint",
    "compile_for",
    "distributed",
    "dtypes",
    "fft",
    "func",
    "jit",
    "kernel",
    "linalg",
    "load",
    "memory_stats",
    "nn",
    "reset_peak_memory_stats",
    "save",
    "scan",
    "share",
    "show_config",
    "signal",
    "special",
]

_HOMES: Final = {
    "Context": "gpu.core.config",
    "Device": "gpu.runtime.device",
    "GpuError": "gpu.core.errors",
    "Mesh": "gpu.tensor.mesh",
    "Tensor": "gpu.tensor.tensor",
    "assert_no_leaks": "gpu.runtime.memory_stats",
    "memory_stats": "gpu.runtime.memory_stats",
    "reset_peak_memory_stats": "gpu.runtime.memory_stats",
    "checkpoint": "gpu.tensor.checkpoint",
    "compile_for": "gpu.tensor.crosscompile",
    "dtypes": "gpu.core.dtype",
    "jit": "gpu.tensor.jit",
    "kernel": "gpu.tensor.kernels",
    "load": "gpu.tensor.formats.files",
    "save": "gpu.tensor.formats.files",
    "scan": "gpu.tensor.scan",
    "share": "gpu.tensor.shared",
    "JitError": "gpu.tensor.tracing",
    "Var": "gpu.tensor.variable",
}


def show_config() -> None:
    """Prints every setting with its value, the variables that set it, and what it does."""
    from gpu.core.config import SETTINGS, config

    for name, setting in SETTINGS.items():
        print(f"{name} = {getattr(config, name)!r}  ({', '.join(setting.spellings)})")
        print(f"    {setting.doc}; default: {setting.default_doc}")


def __getattr__(name: str) -> Any:
    if name in ("array_api", "distributed", "fft", "func", "linalg", "nn", "signal", "special"):
        return importlib.import_module(f"gpu.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(_why_missing(name))
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _why_missing(name: str) -> str:
    if name.startswith("_"):
        return f"module 'gpu' has no attribute {name!r}"
    from gpu.core.dtype import dtypes
    from gpu.tensor.tensor import Tensor
    from gpu.tensor.torchnames import missing_from_package

    return missing_from_package(name, dir(Tensor), dir(dtypes))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
