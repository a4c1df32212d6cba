#!/usr/bin/env python3
"""What submitting costs on the host, with AMD's and Adreno's packets on devices that do nothing.

    python tools/bench/submission.py [--rounds 20]

Three things of each: one call of a program, a replay of a small graph, and one of a graph of 1,000
kernels that all read one of 3 inputs, which change each time. A round is some hundred calls, of
which the median counts; the figures are the best of the rounds, and their median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Final, NamedTuple

from gpu.autogen import amdhsa
from gpu.drivers.am.code.descriptor import parse_descriptor
from gpu.drivers.am.code.metadata import KernelArgument, KernelMetadata
from gpu.drivers.am.code.object import Kernel
from gpu.drivers.am.encode.dispatch import AmProgram, LoadedKernel
from gpu.drivers.am.encode.pm4_encoder import Pm4Encoder
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.target import Target
from gpu.drivers.kgsl.chips import CHIPS
from gpu.drivers.kgsl.copy_code import copy_code
from gpu.drivers.kgsl.encoder import KgslEncoder
from gpu.drivers.kgsl.program import LoadedKernel as LoadedIr3
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.nulldevice import open_null
from gpu.hcq.program import HCQProgram
from gpu.hcq.symbol import GpuVA

TARGET: Final = Target(version=(11, 0, 0), sdma=(6, 0, 0), compute_units=96)
CALLS: Final = 300
BARS: Final[Mapping[str, Mapping[str, float]]] = {
    "AMD": {
        "prog(*buffers)": 5.0,
        "replay of 1 kernel": 5.0 + 0.1,
        "replay of 1,000 kernels": 5.0 + 0.1 * 1000,
    },
    "Adreno": {
        "prog(*buffers)": 6.0,
        "replay of 1 kernel": 6.0,
        "replay of 1,000 kernels": 15.0,
    },
}
"""Microseconds that each is meant to take at most, without what the kernel takes."""


class Times(NamedTuple):
    """Microseconds of a call in the best of the rounds, and in the median one."""

    best: float
    median: float


def kernel(buffers: int = 3) -> Kernel:
    """A kernel of gfx1100 with pointers and one number; only its descriptor exists."""
    pointers = [KernelArgument("", 8 * i, 8, "global_buffer") for i in range(buffers)]
    arguments = (*pointers, KernelArgument("", 8 * buffers, 4, "by_value"))
    size = 8 * buffers + 4
    # The kernel asks for the address of its arguments; waves have 32 lanes.
    raw = amdhsa.kernel_descriptor_t(
        kernarg_size=size, kernel_code_properties=1 << 3 | 1 << 10, compute_pgm_rsrc2=2 << 1
    )
    metadata = KernelMetadata(
        name="k", symbol="k.kd", arguments=arguments, kernarg_size=size, kernarg_align=8,
        group_size=0, private_size=0, wavefront_size=32, max_workgroup=1024,
        required_workgroup=None, uses_dynamic_stack=False,
    )  # fmt: skip
    return Kernel(metadata, parse_descriptor(bytes(raw), TARGET.version), 0, 256)


def open_amd() -> tuple[HCQDevice, HCQProgram]:
    """A device that takes AMD's packets, and a program of three buffers and a number."""
    device = open_null({"compute": Pm4Encoder(TARGET), "copy": SdmaEncoder(TARGET)})
    return device, AmProgram(device, LoadedKernel(kernel(), 1 << 40), written=(0,))


def open_adreno() -> tuple[HCQDevice, HCQProgram]:
    """The same for those of an Adreno 630, whose arguments have 8 bytes each."""
    code = copy_code("a630")
    device = open_null(
        {"compute": KgslEncoder(CHIPS["a630"], LoadedIr3(code, GpuVA(1 << 40)), 1 << 39)}
    )
    loaded = LoadedIr3(code._replace(block=64, parameters=32), GpuVA(1 << 41))
    layout = ArgumentLayout(3, "q")
    return device, HCQProgram(device, "k", None, layout, written=(0,), info=loaded)


def measure(run: Callable[[], object], between: Callable[[], object], rounds: int) -> Times:
    """Microseconds of a call; ``between`` calls something is done that does not count.

    What measuring a call of nothing gives is subtracted.
    """
    nothing = min(_round(lambda: None, between) for _ in range(3))
    medians = [_round(run, between) - nothing for _ in range(rounds)]
    return Times(min(medians), statistics.median(medians))


def _round(run: Callable[[], object], between: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1000)
        between()
    return statistics.median(times)


def eager(device: HCQDevice, program: HCQProgram, rounds: int) -> Times:
    """One call after the other, of a program with three buffers and a number."""
    a, b, c = (device.allocator.alloc(4096) for _ in range(3))

    def call() -> None:
        program(a, b, c, vals=(7,), grid=(16, 1, 1), block=(64, 1, 1))

    return measure(call, lambda: None, rounds)


def replays(device: HCQDevice, program: HCQProgram, kernels: int, rounds: int) -> Times:
    """A graph of kernels in a chain, whose inputs are others at each replay.

    Each kernel reads an input and what the one before wrote.
    """
    size = 4096
    inputs = [[device.allocator.alloc(size) for _ in range(3)] for _ in range(4)]
    own = [device.allocator.alloc(size) for _ in range(3)]

    def item(number: int) -> GraphLaunch:
        out, before = own[number % 3], own[(number + 1) % 3]
        buffers = (out, before, inputs[0][number % 3])
        return GraphLaunch(program, buffers, (number,), (16, 1, 1), (64, 1, 1))

    graph = HCQGraph(device, [item(number) for number in range(kernels)], inputs[0])
    turns = cycle(inputs)

    # The device counts what it got as done when somebody waits for it.
    def finish() -> None:
        if not device.queues["compute"][0].timeline.passed(device.frontier[0][1]):
            device.port.waiter.idle(0)

    times = measure(lambda: graph(*next(turns)), finish, rounds)
    graph.close()
    return times


def main() -> None:
    """Prints a line for each of the three, of each vendor's packets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="how often each is measured")
    rounds = parser.parse_args().rounds
    for vendor, opens in (("AMD", open_amd), ("Adreno", open_adreno)):
        device, program = opens()
        found = {
            "prog(*buffers)": eager(device, program, rounds),
            "replay of 1 kernel": replays(device, program, 1, rounds),
            "replay of 1,000 kernels": replays(device, program, 1000, rounds),
        }
        for name, times in found.items():
            bar = f"bar {BARS[vendor][name]:6.1f} us"
            told = f"{times.best:8.2f} us, median {times.median:8.2f} us, {bar}"
            print(f"{vendor:<8}{name:<26}{told}")


if __name__ == "__main__":
    main()
