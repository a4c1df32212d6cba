"""The steps of the suites: command queues, then tensors by both compilers."""

from __future__ import annotations

from typing import Final

from tools.hw_acceptance.model import Step

GROUP: Final = "suites"

SUITES: Final = (
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
        130.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "op suite by PTX",
        "the same, their kernels compiled from our own PTX",
        GROUP,
        "tools.hw_acceptance.suites.tensors:by_ptx",
        80.0,
        needs=("11 kernels", "12 copies"),
    ),
)
