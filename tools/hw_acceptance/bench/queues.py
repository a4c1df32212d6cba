"""Our side of launches, graphs and copies, through command queues."""

from __future__ import annotations

import time

import numpy as np

from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import download, expect_equal, numbers, upload
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import GraphLaunch, HCQGraph
from gpu.hcq.ports import MemoryKind
from tools.hw_acceptance.bench import rows
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.suites.mapped import mapped_libraries
from tools.hw_acceptance.suites.opens import Opens, target_for

_ONE = (1, 1, 1)
_WORD = 4  # bytes that a thread of the kernel copies at once


def ours(context: Context) -> None:
    """All rows of queues, and copies within a device by engine and kernel. Raises StepFailed."""
    simulated = context.simulation is not None
    sizes, most = (rows.SMALL, 3) if simulated else (rows.Sizes(), 1000)
    target = target_for(context, traced=False)
    began = time.perf_counter()
    device = target.open()
    with device:
        nothing = target.program(device, "nothing")
        nothing()
        device.synchronize()
        seconds = {rows.OPEN: time.perf_counter() - began}
        seconds |= _launches(device, target, most)
        seconds |= _copies(device, sizes, min(most, 20))
        context.log.fact(rows.OURS, seconds)
        _compare_ways(context, device, target, sizes, min(most, 20))
    found = mapped_libraries()
    context.log.check("no run-time library of the vendor's", not found, ", ".join(found))


def _launches(device: HCQDevice, target: Opens, most: int) -> dict[str, float]:
    nothing, fill = (target.program(device, name) for name in ("nothing", "fill"))
    out = upload(device, numbers(0))
    bound = device.queue().exec(nothing, nothing.arguments(), _ONE, _ONE).bind(device)
    steps = [GraphLaunch(fill, (out,), (n, 1)) for n in range(rows.GRAPH_LENGTH)]
    graph = HCQGraph(device, steps)

    def from_python() -> None:
        nothing()
        device.wait_in_order()

    def idle() -> None:
        pass

    seconds = {
        rows.LAUNCH: rows.time_calls(lambda: device.wait(bound.submit()), idle, most),
        rows.LAUNCH_PYTHON: rows.time_calls(from_python, idle, most),
        rows.GRAPH: rows.time_calls(lambda: device.wait(graph()), idle, most),
    }
    bound.close()
    graph.close()
    last = download(device, out)[:1]
    expect_equal(last, np.array([rows.GRAPH_LENGTH - 1], np.int32), "the last kernel of a graph")
    return seconds


def _copies(device: HCQDevice, sizes: rows.Sizes, most: int) -> dict[str, float]:
    """Copies by the copy engine, between buffers that are there already."""

    def timed(target: MemoryKind, source: MemoryKind, size: int) -> float:
        to, of = (device.allocator.alloc(size, kind) for kind in (target, source))
        bound = device.queue("copy").copy(to, of, size).bind(device)
        seconds = rows.time_calls(bound.submit, device.synchronize, most)
        bound.close()
        to.free()
        of.free()
        return seconds

    near, host = MemoryKind.VRAM, MemoryKind.SYSTEM
    return {
        rows.COPY: timed(near, near, sizes.copied),
        rows.TO_DEVICE: timed(near, host, sizes.pinned),
        rows.TO_HOST: timed(host, near, sizes.pinned),
    }


def _compare_ways(
    context: Context, device: HCQDevice, target: Opens, sizes: rows.Sizes, most: int
) -> None:
    """Copies within the device by engine and by kernel: whether kernels are worth it, and when."""
    simulated = context.simulation is not None
    blocks, threads = (1, 32) if simulated else (8 * target.units(device), 256)
    kernel = target.program(device, "copy")
    measured: list[tuple[int, dict[str, float]]] = []
    for size in sizes.within:
        to, of = device.allocator.alloc(size), device.allocator.alloc(size)
        device.allocator.copy_in(of, np.random.default_rng(size).bytes(size))

        def by_engine(to: HCQBuffer = to, of: HCQBuffer = of) -> None:
            device.allocator.copy(to, of)

        def by_kernel(to: HCQBuffer = to, of: HCQBuffer = of) -> None:
            words = of.size // _WORD
            kernel(of, to, vals=(words,), grid=(blocks, 1, 1), block=(threads, 1, 1))

        engine = rows.time_calls(by_engine, device.synchronize, most)
        device.allocator.copy_in(to, bytes(size))
        seconds = rows.time_calls(by_kernel, device.synchronize, most)
        same = device.allocator.copy_out(to) == device.allocator.copy_out(of)
        context.log.check(f"{size} bytes copied by the kernel", same)
        measured.append((size, {"engine": engine, "kernel": seconds}))
        to.free()
        of.free()
    context.log.fact("copies within the device", [[size, ways] for size, ways in measured])
