"""A simulated GPU of either vendor, and what is done with it while things go wrong."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from gpu.drivers.device import DriverDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.program import HCQProgram
from gpu.sim.machine import Machine
from gpu.sim.process import SimProcess
from gpu.transport.world import World

Device = DriverDevice[Any]


class Bench(ABC):
    """A machine with a GPU, of which a process has opened none yet."""

    machine: Machine

    @abstractmethod
    def open(self, process: SimProcess | None = None) -> Device:
        """The GPU, in a process or the machine's first."""

    @abstractmethod
    def load(self, device: Device, name: str) -> HCQProgram:
        """A kernel of `am.kernels` or `nv.kernels`."""

    def runs(self, device: Device) -> None:
        """Copies and a kernel have the right results."""
        out = upload(device, numbers(0))
        assert (download(device, out) == numbers(0)).all()
        self.load(device, "fill")(out, vals=(7, WORDS))
        assert (download(device, out) == 7).all()

    def opens(self, process: SimProcess | None = None) -> None:
        """The GPU can be opened in a process, and runs."""
        with self.open(process) as device:
            assert isinstance(device, DriverDevice)
            self.runs(device)


class AmdBench(Bench):
    """AMD's, behind KFD."""

    def __init__(self, chip: str, compute: Any, interface: int):
        from am.kernels import PythonKernels
        from gpu.sim.amd.kfd.world import KfdWorld

        kernels = PythonKernels()
        self.machine = KfdWorld(seed=3, chip=chip, executor=kernels, interface=interface)
        kernels.pause = lambda: self.machine.clock.advance(100_000)
        self._compute = compute

    def open(self, process: SimProcess | None = None) -> Device:
        from gpu.drivers.am.kfd.port import QueueOptions, open_kfd

        world = World((process or self.machine.process).os, self.machine.waiter)
        options = QueueOptions(self._compute, compute_ring=1 << 16, copy_ring=1 << 16)
        return open_kfd(world, options=options, command_memory=1 << 16, staging=1 << 18)

    def load(self, device: Device, name: str) -> HCQProgram:
        from am.kernels import LAYOUTS, WRITTEN, code_object
        from gpu.drivers.am.device import AmDevice

        assert isinstance(device, AmDevice)
        code = code_object(name, device.target.version)
        return device.load(code, name, LAYOUTS[name], written=WRITTEN)


class NvBench(Bench):
    """NVIDIA's, behind RM and UVM."""

    def __init__(self, chip: str):
        from gpu.sim.nv.world import NvSimWorld
        from nv.kernels import PythonKernels

        self.machine = NvSimWorld(seed=3, chip=chip, executor=PythonKernels())

    def open(self, process: SimProcess | None = None) -> Device:
        from gpu.drivers.nv.device import RmDevice
        from gpu.drivers.nv.nvk.gpu import open_gpu
        from gpu.drivers.nv.port import QueueOptions, port_of

        world = World((process or self.machine.process).os, self.machine.waiter)
        port = port_of(open_gpu(world), QueueOptions(ring=1 << 14))
        return RmDevice(port, command_memory=1 << 17, staging=1 << 18)

    def load(self, device: Device, name: str) -> HCQProgram:
        from gpu.drivers.nv.device import RmDevice
        from nv.kernels import LAYOUTS, WRITTEN, cubin

        assert isinstance(device, RmDevice)
        return device.load(cubin(device.target.sm, name), name, LAYOUTS[name], written=WRITTEN)


def make_bench(
    vendor: str, chip: str = "", compute: str | None = None, interface: int = 19
) -> Bench:
    """A machine of a vendor, by default with its usual chip."""
    if vendor == "NV":
        return NvBench(chip or "gh100")
    return AmdBench(chip or "gfx1100", compute, interface)


def launch(bench: Bench, device: Device) -> Callable[[], None]:
    """Runs a kernel, and looks at what it wrote."""
    program, out = bench.load(device, "fill"), upload(device, numbers(0))
    device.synchronize()

    def act() -> None:
        program(out, vals=(7, WORDS))
        device.synchronize()
        assert (download(device, out) == 7).all()

    return act


def copy(bench: Bench, device: Device) -> Callable[[], None]:
    """Copies to the device and back."""
    upload(device, numbers(0))  # all queues and buffers for it are there

    def act() -> None:
        assert (download(device, upload(device, numbers(1))) == numbers(1)).all()

    return act


def allocate(bench: Bench, device: Device) -> Callable[[], None]:
    """Allocates more than there is at hand."""

    def act() -> None:
        assert device.allocator.alloc(4 << 20).size == 4 << 20

    return act


def load(bench: Bench, device: Device) -> Callable[[], None]:
    """Loads a kernel that was not loaded before."""

    def act() -> None:
        assert bench.load(device, "add").name == "add"

    return act


def open_queue(bench: Bench, device: Device) -> Callable[[], None]:
    """Opens the second compute queue, which comes at first use."""

    def act() -> None:
        assert device.channel("compute", 1) in device.channels()

    return act


def recover(bench: Bench, device: Device) -> Callable[[], None]:
    """Recovers from a fault of memory, of which nobody has heard yet."""
    program, out = bench.load(device, "fill"), upload(device, numbers(0))
    bench.machine.faults.add("page-fault:write")
    program(out, vals=(7, WORDS))
    bench.machine.run_until_idle()

    def act() -> None:
        assert device.recover() is not None

    return act


def close(bench: Bench, device: Device) -> Callable[[], None]:
    """Closes the device."""
    bench.runs(device)
    return device.close


def end(bench: Bench, device: Device) -> Callable[[], None]:
    """Closes the device while a program's memory waits to be given back."""
    program = bench.load(device, "fill")
    device.synchronize()
    del program
    gc.collect()
    return device.close


_ACTS = (launch, copy, allocate, load, open_queue, recover, close, end)
ACTS = {act.__name__: act for act in _ACTS}
"""What is done with an open device: each prepares, and gives what is then done."""
