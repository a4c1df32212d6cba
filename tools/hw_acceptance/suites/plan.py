"""The steps of the suites: command queues, then tensors by each compiler."""

from __future__ import annotations

from typing import Final

from gpu.drivers.nv.channel.probes import CHAINING
from tools.hw_acceptance.model import Step, Trial

GROUP: Final = "suites"
TENSOR_SECONDS: Final = {"NV": 130.0, "NV:PTX": 80.0, "NV:NAK": 80.0, "CUDA": 80.0, "AMD": 230.0}
"""What tests of tensors take of a run, by device; also where a model's steps may take longer."""

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
        hardware=True,
    ),
)
