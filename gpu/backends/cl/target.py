"""The compiler's view of an OpenCL device, made of the properties it tells."""

from __future__ import annotations

from typing import Final

from gpu.autogen import opencl as cl
from gpu.backends.cl.platforms import DeviceInfo
from gpu.backends.cl.quirks import quirks_of
from gpu.compiler.ir.optable import OPS
from gpu.compiler.targets import DERIVED, NARROW_FLOATS, Native, Target
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

_VECTOR_REGISTERS: Final = {32: 16, 64: 32}
"""Vector registers by their width in bytes: AVX and AVX-512; others have 16 at least."""
# No property tells these; they suit the GPUs of all vendors.
_REGISTERS: Final = 64
_MAX_THREADS: Final = 256
_WARP: Final = 32


def device_target(info: DeviceInfo) -> Target:
    """The target of a device.

    A CPU is a handful of workers with vector registers, anything else a grid of blocks of threads.
    Raises Unsupported for a device that no program could be compiled for.
    """
    _refuse(info)
    features = _features(info)
    ops = frozenset(OPS) - DERIVED
    if not info.single & cl.CL_FP_FMA:
        ops -= {"fma"}
    half = frozenset({dtypes.float16}) if "fp16" in features else frozenset()
    native = Native(
        ops=ops,
        storage_only=NARROW_FLOATS - half,
        compute_as_float32=half,
        lacking=frozenset() if info.double else frozenset({dtypes.float64}),
    )
    name, features_text = f"opencl {info.name}", ",".join(features)
    if info.kind == "CPU":
        vector_bytes = 4 * info.vector_width if info.vector_width > 1 else 0
        return Target(
            name=name,
            native=native,
            parallel="worker",
            workers=info.units,
            images=info.images,
            vector_bytes=vector_bytes,
            registers=_VECTOR_REGISTERS.get(vector_bytes, 16) if vector_bytes else 0,
            features=features_text,
        )
    return Target(
        name=name,
        native=native,
        parallel="grid",
        workers=info.units,
        images=info.images,
        registers=_REGISTERS,
        threads=min(info.group, _MAX_THREADS) // _WARP * _WARP,
        shared_bytes=info.local_memory,
        warp=_WARP,
        features=features_text,
    )


def _features(info: DeviceInfo) -> list[str]:
    """What the renderer may use beyond OpenCL 1.2, in a fixed order."""
    return [
        *quirks_of(info).features,
        *(["fp16"] if "cl_khr_fp16" in info.extensions else []),
        *(["fp64"] if info.double else []),
        *(["rounded"] if info.single & cl.CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT else []),
    ]


def build_options(target: Target) -> str:
    """Options of the compiler for a target: exact arithmetic, and no warnings on stderr."""
    rounded = "rounded" in target.features.split(",")
    return "-w -cl-std=CL1.2" + (" -cl-fp32-correctly-rounded-divide-sqrt" if rounded else "")


def _refuse(info: DeviceInfo) -> None:
    reasons = []
    if not info.can_compile:
        reasons.append("has no compiler")
    if not info.little_endian:
        reasons.append("stores numbers with the high byte first")
    if not info.single & cl.CL_FP_INF_NAN:
        reasons.append("knows no infinity and no NaN")
    if info.version.startswith(("OpenCL 1.0", "OpenCL 1.1")):
        reasons.append(f"has {info.version}, which is older than 1.2")
    if reasons:
        raise Unsupported(
            f"the OpenCL device {info.name} {', and '.join(reasons)}; choose another one with"
            " DEV=CL:1 or CL_PLATFORM"
        )
