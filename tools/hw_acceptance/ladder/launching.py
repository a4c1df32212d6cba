"""Steps 9 to 11: kernels by launch descriptors that are filled in by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.core.bits import mask
from gpu.core.hoststore import fence
from gpu.drivers.nv.code.cubin import Cubin, Kernel
from gpu.drivers.nv.encode.launch import (
    LoadedKernel,
    Target,
    invalidate_caches,
    kernel_bank0,
    kernel_qmd,
    send,
    set_local_memory,
    set_up_compute,
    size_local_memory,
)
from gpu.drivers.nv.encode.methods.compute import PcasAction
from gpu.drivers.nv.encode.pushbuf import Pushbuffer
from gpu.drivers.nv.encode.qmd import ConstantBuffer, Release
from gpu.drivers.nv.encode.qmd_layout import qmd_layout
from gpu.drivers.nv.encode.semaphore import release
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.hcq.ports import MemoryKind
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import read_kernel
from tools.hw_acceptance.ladder import expected
from tools.hw_acceptance.ladder.submit import Bench, Semaphore, opened

PAYLOAD: Final = 0x0102_0304_0506_0708
_FIELD: Final = "qmd "
_BLOCKS_PER_SM: Final = 8
_ROUNDS: Final = 100
Dims = tuple[int, int, int]
Words = npt.NDArray[np.uint32]


class Launcher:
    """Loads the folder's kernels into a device and launches them, each with a release of its own.

    The options of a step change how: ``action``, ``launch memory``, and ``qmd NAME``, which sets a
    field of the descriptor to a number.
    """

    def __init__(self, context: Context, work: Bench):
        self._context = context
        self.work = work
        self.target = Target.of(work.gpu.classes, work.gpu.units)
        if action := context.options.get("action"):
            self.target = replace(self.target, action=PcasAction[action])
        far = context.options.get("launch memory") == "SYSTEM"
        self._launches = work.arena if far else work.near
        context.log.fact("target", repr(self.target))
        work.submit(work.gpu.compute_queue, set_up_compute(self.target))

    def load(self, name: str, dynamic_shared: int = 0) -> LoadedKernel:
        """A kernel in device memory. Raises FormatError where the folder has none."""
        cubin = Cubin(read_kernel(self._context.folder, self.target.sm, name))
        memory = self.work.gpu.alloc(cubin.image.size, MemoryKind.VISIBLE, name=f"code of {name}")
        assert memory.window is not None, "memory of this kind is mapped for the host"
        memory.window.store(0, bytes(memory.size))
        memory.window.store(0, cubin.link(memory.address))
        return LoadedKernel(cubin.kernel(name), memory.address, dynamic_shared)

    def prepare(
        self,
        loaded: LoadedKernel,
        values: tuple[int, ...],
        grid: Dims,
        block: Dims,
        done: Semaphore,
        payload: int = PAYLOAD,
    ) -> Pushbuffer:
        """Puts bank 0 and descriptor into memory; gives the methods that launch it."""
        parameters = pack(loaded.kernel, values)
        bank0 = kernel_bank0(self.target, loaded, parameters, grid, block)
        bank = ConstantBuffer(0, self._launches.put(bank0.data), len(bank0.data))
        releases = (Release(done.address, payload, timestamp=True),)
        qmd = kernel_qmd(self.target, loaded, bank, grid, block, releases=releases)
        address = self._launches.put(self._edited(qmd.data))
        push = Pushbuffer(compute=self.target.generation.compute)
        return push.write(*invalidate_caches(), *send(self.target, address))

    def launch(
        self, loaded: LoadedKernel, values: tuple[int, ...], grid: Dims, block: Dims
    ) -> Semaphore:
        """Launches, and waits for the descriptor's release. Raises HwTimeout, GpuFault."""
        done = self.work.semaphore()
        push = self.prepare(loaded, values, grid, block, done)
        self.work.submit(self.work.gpu.compute_queue, push)
        self.work.wait(done, PAYLOAD, f"the release of {loaded.kernel.name}")
        return done

    def give_local_memory(self, per_thread: int) -> None:
        """Local memory for all threads that can run at once."""
        gpu = self.work.gpu
        local = size_local_memory(per_thread, gpu.units)
        if self._context.options.get("local units") == "enabled":
            local = replace(local, units=sum(gpu.units.tpcs))
        memory = gpu.alloc(local.total, MemoryKind.VRAM, name="local memory")
        self._context.log.fact("local memory", f"{local} at {memory.address:#x}")
        push = set_local_memory(self.target, local, memory.address)
        self.work.submit(gpu.compute_queue, push)

    def _edited(self, qmd: bytes) -> bytes:
        """A descriptor with the fields that options name. Raises InvalidIndex for one it lacks."""
        layout, value = qmd_layout(self.target.generation.qmd_major), int.from_bytes(qmd, "little")
        for option, text in self._context.options.items():
            if option.startswith(_FIELD):
                span = layout.span(option.removeprefix(_FIELD))
                kept = value & ~mask(span.hi, span.lo)
                value = kept | int(text) << span.lo
        return value.to_bytes(layout.size, "little")


def pack(kernel: Kernel, values: tuple[int, ...]) -> bytes:
    """Parameters at the places that the kernel's cubin tells."""
    data = bytearray(kernel.parameter_size)
    for parameter, value in zip(kernel.parameters, values, strict=True):
        end = parameter.offset + parameter.size
        data[parameter.offset : end] = value.to_bytes(parameter.size, "little")
    return bytes(data)


@contextmanager
def launcher(context: Context) -> Iterator[Launcher]:
    """A launcher on an open device."""
    with opened(context) as work:
        yield Launcher(context, work)


def nothing(context: Context) -> None:
    """Step 9: a kernel that ends at once; its descriptor's release, then the host engine's."""
    with launcher(context) as launches:
        work = launches.work
        loaded = launches.load("nothing")
        done, behind = work.semaphore(), work.semaphore()
        push = launches.prepare(loaded, (), (1, 1, 1), (1, 1, 1), done)
        push.write(*release(behind.address, PAYLOAD, timestamp=True))
        work.submit(work.gpu.compute_queue, push)
        work.wait(behind, PAYLOAD, "the host engine's semaphore behind the launch")
        work.wait(done, PAYLOAD, "the release of the launch descriptor")
        context.log.fact("host engine after release, ns", behind.timestamp - done.timestamp)
        launches.launch(loaded, (), (1000, 3, 2), (128, 2, 1))
        for _ in range(_ROUNDS):
            launches.launch(loaded, (), (1, 1, 1), (1, 1, 1))
        context.log.check(f"{_ROUNDS} launches more", not work.gpu.failed())


def store(context: Context) -> None:
    """Step 10: parameters of all sizes, stored to system and to device memory."""
    value, wide, small = 0x1122_3344, 0x5566_7788_99AA_BBCC, 0xDDEE
    wanted = [value, wide & 0xFFFF_FFFF, wide >> 32, small]
    with launcher(context) as launches:
        loaded = launches.load("store")
        context.log.fact("parameters", [repr(each) for each in loaded.kernel.parameters])
        for name, arena in (("system", launches.work.arena), ("device", launches.work.near)):
            address, window = arena.take(16)
            window.store(0, b"\xee" * 16)
            fence()
            launches.launch(loaded, (address, value, wide, small), (1, 1, 1), (1, 1, 1))
            found = np.frombuffer(window.load(0, 16), np.uint32).tolist()
            text = " ".join(f"{each:#x}" for each in found)
            context.log.check(f"stored to {name} memory", found == wanted, text)


def kernels(context: Context) -> None:
    """Step 11: shapes, shared memory, barriers and local memory, each compared with numpy."""
    with launcher(context) as launches:
        for check in (_shape, _shared, _dynamic, _local):
            check(context, launches)


def _shape(context: Context, launches: Launcher) -> None:
    loaded = launches.load("shape")
    for grid, block in (
        ((1, 1, 1), (1, 1, 1)),
        ((3, 2, 2), (8, 4, 2)),
        ((1, 1, 1), (1024, 1, 1)),
        ((7, 5, 3), (5, 3, 2)),
    ):
        wanted = expected.shape(grid, block)
        found = _run(launches, loaded, wanted.size, (), grid, block)
        _compare(context, f"shape {grid} x {block}", found, wanted)


def _shared(context: Context, launches: Launcher) -> None:
    loaded, blocks = launches.load("shared"), 300
    numbers = _numbers(blocks * 256)
    source = _put(launches, numbers)
    sums, window = launches.work.arena.take(4 * blocks)
    found = _run(
        launches, loaded, numbers.size, (source,), (blocks, 1, 1), (256, 1, 1), after=(sums,)
    )
    totals = np.frombuffer(window.load(0, 4 * blocks), np.uint32)
    wanted, wanted_totals = expected.shared(numbers)
    _compare(context, "static shared memory", found, wanted)
    _compare(context, "sums behind barriers", totals, wanted_totals)


def _dynamic(context: Context, launches: Launcher) -> None:
    for count in (1024, 11 * 1024):
        loaded, blocks = launches.load("dynamic", dynamic_shared=4 * count), 20
        numbers = _numbers(blocks * count)
        source = _put(launches, numbers)
        found = _run(
            *(launches, loaded, numbers.size, (source,), (blocks, 1, 1), (96, 1, 1)),
            after=(count,),
        )
        wanted = expected.dynamic(numbers, count)
        _compare(context, f"{4 * count} bytes of dynamic shared memory", found, wanted)


def _local(context: Context, launches: Launcher) -> None:
    loaded, rounds, threads = launches.load("local"), 37, 128
    context.log.fact("local bytes of a thread", loaded.local)
    launches.give_local_memory(loaded.local)
    blocks = _BLOCKS_PER_SM * _units(launches).sms
    numbers = _numbers(64)
    source = _put(launches, numbers)
    found = _run(
        *(launches, loaded, blocks * threads, (source,), (blocks, 1, 1), (threads, 1, 1)),
        after=(rounds,),
    )
    wanted = expected.local(numbers, blocks * threads, rounds)
    _compare(context, f"local memory of {blocks * threads} threads", found, wanted)


def _run(
    launches: Launcher,
    loaded: LoadedKernel,
    count: int,
    before: tuple[int, ...],
    grid: Dims,
    block: Dims,
    after: tuple[int, ...] = (),
) -> Words:
    """Launches with arguments and, among them, room for ``count`` words, which it returns."""
    memory = launches.work.gpu.alloc(4 * count, MemoryKind.SYSTEM, name="results")
    assert memory.window is not None, "memory of this kind is mapped for the host"
    memory.window.store(0, b"\xee" * memory.size)
    fence()
    launches.launch(loaded, (*before, memory.address, *after), grid, block)
    found = np.frombuffer(memory.window.load(0, 4 * count), np.uint32)
    launches.work.gpu.free(memory)
    return found


def _put(launches: Launcher, numbers: Words) -> int:
    """The address of a copy in device memory."""
    memory = launches.work.gpu.alloc(numbers.nbytes, MemoryKind.VISIBLE, name="numbers")
    assert memory.window is not None, "memory of this kind is mapped for the host"
    memory.window.store(0, numbers.tobytes())
    return memory.address


def _numbers(count: int) -> Words:
    return np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)


def _units(launches: Launcher) -> GraphicsInfo:
    return launches.work.gpu.units


def _compare(context: Context, name: str, found: Words, wanted: Words) -> None:
    wrong = np.flatnonzero(found != wanted)
    details = ""
    if wrong.size:
        at = int(wrong[0])
        details = (
            f"{wrong.size} of {wanted.size} words are wrong, first word {at}:"
            f" {int(found[at]):#x}, not {int(wanted[at]):#x}"
        )
    context.log.check(name, not wrong.size, details)
