"""The steps that measure: our side and the vendor's, each in a process of its own."""

from __future__ import annotations

from typing import Final

from tools.hw_acceptance.model import Step

GROUP: Final = "benchmarks"
_HERE: Final = "tools.hw_acceptance.bench"

BENCHMARKS: Final = (
    Step(
        "latency",
        "from launching a kernel without work to its release, prepared beforehand",
        GROUP,
        f"{_HERE}.latency:ours",
        30.0,
        needs=("9 launch",),
        hardware=True,
    ),
    Step(
        "latency of libcuda",
        "the same by cuLaunchKernel and a spinning cuStreamSynchronize, in C, and by cupy",
        GROUP,
        f"{_HERE}.latency:vendors",
        60.0,
        hardware=True,
    ),
    Step(
        "queues",
        "launches, graphs and copies by command queues",
        GROUP,
        f"{_HERE}.queues:ours",
        40.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "stamina",
        "launches and allocations from threads, while Ctrl-C comes: nothing piles up or is lost",
        GROUP,
        f"{_HERE}.stamina:stamina",
        120.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "tensors",
        "softmax, layernorm, matrix products, negation; none of the vendor's run-time libraries",
        GROUP,
        f"{_HERE}.tensors:ours",
        90.0,
        needs=("11 kernels", "12 copies"),
    ),
    Step(
        "vendor's side",
        "the same rows by libcuda, cupy and torch",
        GROUP,
        f"{_HERE}.theirs:theirs",
        90.0,
        hardware=True,
    ),
)
