"""The steps of the suites: command queues, then tensors by each compiler."""

from __future__ import annotations

from typing import Final

from gpu.drivers.nv.channel.probes import CHAINING
from tools.hw_acceptance.model import Step, Trial

GROUP: Final = "suites"
TENSOR_SECONDS: Final = {
    "NV": 130.0,
    "NV:PTX": 80.0,
    "NV:NAK": 80.0,
    "CUDA": 80.0,
    "CL": 60.0,
    "WEBGPU": 60.0,
    "AMD": 230.0,
}
"""What tests of tensors take of a run, by device; also where a model's steps may take longer."""
RULES_SECONDS: Final = 90.0

SUITES: Final = (
    Step(
        "PTX instruction vectors",
        "each form of an instruction gives what the simulator says",
        GROUP,
        "tools.hw_acceptance.vectors.compare:instructions",
        120.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "chained launches",
        "launches of one submission that start each other, by each way to do so",
        GROUP,
        "tools.hw_acceptance.suites.chains:chains",
        20.0,
        needs=("11 kernels", "12 copies"),
        trials=(
            Trial(),
            *(Trial(f"chaining: {way}", {CHAINING.name: way}) for way in CHAINING.variants[1:]),
        ),
    ),
    Step(
        "conformance",
        "command queues, memory, graphs, threads: as on every device with queues",
        GROUP,
        "tools.hw_acceptance.suites.conformance:conformance",
        120.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "op suite by nvrtc",
        "tensor operations, their kernels compiled from CUDA C",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_nvrtc",
        TENSOR_SECONDS["NV"],
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "op suite by PTX",
        "the same, their kernels compiled from our own PTX",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_ptx",
        TENSOR_SECONDS["NV:PTX"],
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "op suite by NAK",
        "the same, their kernels compiled by Mesa; only where the package tinymesa is",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_nak",
        TENSOR_SECONDS["NV:NAK"],
        needs=("11 kernels", "12 copies"),
        hardware=True,
    ),
    Step(
        "op suite by libcuda",
        "the same on the device CUDA, and what it launches, copies, replays and loads by itself",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_libcuda",
        TENSOR_SECONDS["CUDA"],
    ),
    Step(
        "rules of libcuda",
        "what the model answers, libcuda answers too: each outcome of its table, in a child",
        GROUP,
        "tools.hw_acceptance.suites.cuda:rules",
        RULES_SECONDS,
    ),
    Step(
        "CUDA beside NV",
        "random programs on both in one process, and copies from the one to the other",
        GROUP,
        "tools.hw_acceptance.suites.cuda:beside",
        60.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "exchange",
        "memory shared with torch, JAX, CuPy and numba under streams, each round checked",
        GROUP,
        "tools.hw_acceptance.suites.exchange:exchange",
        240.0,
    ),
    Step(
        "op suite by OpenCL",
        "the tests of tensors on the device CL, by NVIDIA's OpenCL",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_opencl",
        TENSOR_SECONDS["CL"],
        hardware=True,
    ),
    Step(
        "op suite by WebGPU",
        "the same on the device WEBGPU, by NVIDIA's Vulkan",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_webgpu",
        TENSOR_SECONDS["WEBGPU"],
        hardware=True,
    ),
)
