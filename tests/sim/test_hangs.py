"""Kernels that never end, on the drivers of both vendors: told at once, with kernel, place, reason.

The same kernels in LLVM IR for AMD's machine code and in PTX. No wait here is bounded by the clock:
a model knows that nothing will change.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from bounded import bounded
from gpu.core.errors import DeviceHang
from gpu.drivers.device import Rung
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import peek, system
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram

SECONDS = 5.0  # of the processor; a hang takes a few milliseconds
BLOCK = 64  # two waves

# Each kernel is given an address and a number; (LLVM IR, PTX).
KERNELS = {
    "endless": ("  br label %l\nl:\n  br label %l", "L: bra L;"),
    "counting": (
        "  br label %l\nl:\n  %i = phi i32 [%n, %entry], [%j, %l]\n  %j = add i32 %i, 3\n"
        "  store volatile i32 %j, ptr addrspace(1) %p\n  br label %l",
        "L: add.u32 %r1, %r1, 3; st.volatile.global.u32 [%rd1], %r1; bra L;",
    ),
    # The step of the loop is 0 where the number is.
    "stepping": (
        "  br label %l\nl:\n  %i = phi i32 [0, %entry], [%j, %l]\n  %j = add i32 %i, %n\n"
        "  %m = icmp ult i32 %j, 3000000\n  br i1 %m, label %l, label %e\n"
        "e:\n  store i32 %j, ptr addrspace(1) %p\n  ret void",
        "mov.u32 %r2, 0; L: add.u32 %r2, %r2, %r1; setp.lt.u32 %p1, %r2, 3000000;"
        " @%p1 bra L; st.global.u32 [%rd1], %r2; ret;",
    ),
    # Counts in memory, with registers that are the same at each jump back.
    "counter": (
        "  br label %l\nl:\n  %v = load volatile i32, ptr addrspace(1) %p\n  %w = add i32 %v, 1\n"
        "  store volatile i32 %w, ptr addrspace(1) %p\n  %m = icmp ult i32 %w, %n\n"
        "  br i1 %m, label %l, label %e\ne:\n  ret void",
        "L: ld.volatile.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1;"
        " st.volatile.global.u32 [%rd1], %r2; setp.lt.u32 %p1, %r2, %r1; mov.u32 %r2, 0;"
        " @%p1 bra L; ret;",
    ),
    # Waits until a word in memory is as large as the number, and writes the next word.
    "waiting": (
        "  br label %l\nl:\n"
        '  %v = load atomic i32, ptr addrspace(1) %p syncscope("") acquire, align 4\n'
        "  %m = icmp ult i32 %v, %n\n  br i1 %m, label %l, label %e\n"
        "e:\n  %q = getelementptr i32, ptr addrspace(1) %p, i32 1\n"
        "  store i32 %v, ptr addrspace(1) %q\n  ret void",
        "L: ld.relaxed.sys.global.u32 %r2, [%rd1]; setp.lt.u32 %p1, %r2, %r1; @%p1 bra L;"
        " st.global.u32 [%rd1+4], %r2; ret;",
    ),
    # The waves from the second on come to the barrier, the first one does not.
    "barrier": (
        "  %t = call i32 @llvm.amdgcn.workitem.id.x()\n  %f = icmp ult i32 %t, 32\n"
        "  br i1 %f, label %l, label %b\nl:\n  br label %l\n"
        "b:\n  call void @llvm.amdgcn.s.barrier()\n  ret void",
        "mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 32; @%p1 bra L; bar.sync 0; ret; L: bra L;",
    ),
}
AMD_TEXT = """
define amdgpu_kernel void @{name}(ptr addrspace(1) %p, i32 %n) #0 {{
entry:
{body}
}}
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier() convergent
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,1024" {unused} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
"""
PTX_TEXT = """.version 7.4
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 p, .param .u32 n)
{{
.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
{body}
}}
"""


class Vendor(ABC):
    """A simulated GPU with its driver."""

    device: HCQDevice
    world: Any

    @abstractmethod
    def load(self, name: str) -> HCQProgram:
        """One of the kernels."""

    def start(self, name: str, number: int, value: int = 0) -> HCQBuffer:
        """Launches a kernel with a buffer of two words, the first of which has the value."""
        buffer = system(self.device, np.array([value, 0], np.int32))
        self.load(name)(buffer, vals=(number,), grid=(1, 1, 1), block=(BLOCK, 1, 1))
        return buffer


def words(buffer: HCQBuffer) -> list[int]:
    found: list[int] = peek(buffer).tolist()
    return found


class Amd(Vendor):
    """gfx1100 behind KFD."""

    def __init__(self) -> None:
        from gpu.drivers.am.kfd.port import open_kfd
        from gpu.sim.amd.chip.lanes import LaneExecutor
        from gpu.sim.amd.kfd.world import KfdWorld
        from gpu.transport.world import World

        self.world = KfdWorld(seed=3, executor=LaneExecutor(4))
        self.device = open_kfd(World(self.world.os, self.world.waiter))

    def load(self, name: str) -> HCQProgram:
        from am.machine_code import _UNUSED
        from gpu.compiler.toolchain.amdgcn import AMDCompiler
        from gpu.drivers.am.code.object import read_code_object
        from gpu.hcq.args import ArgumentLayout

        unused = _UNUSED.replace('"amdgpu-no-workitem-id-x"', "")
        text = AMD_TEXT.format(name=name, body=KERNELS[name][0], unused=unused)
        code = read_code_object(AMDCompiler("gfx1100").compile_cached(text))
        return self.device.load(code, name, ArgumentLayout(1, ["I"]))  # type: ignore[attr-defined]


class Nv(Vendor):
    """gh100 through RM."""

    def __init__(self) -> None:
        from gpu.drivers.nv.device import RmDevice
        from gpu.sim.nv.chip.lanes import PtxExecutor
        from gpu.sim.nv.world import NvSimWorld
        from gpu.transport.world import World

        self.executor = PtxExecutor(seed=4)
        self.world = NvSimWorld(seed=3, chip="gh100", executor=self.executor)
        self.device = RmDevice.open(World(self.world.os, self.world.waiter))

    def load(self, name: str) -> HCQProgram:
        from gpu.drivers.nv.code.cubin import Cubin
        from gpu.hcq.args import ArgumentLayout
        from unit.nv.cubins import BASES, CubinWriter

        writer = CubinWriter(90)
        code = name.encode().ljust(256, b"\0")
        writer.kernel(name, code=code, parameters=[(0, 8), (8, 4)], shared=0x400, flags=1 << 20)
        text = PTX_TEXT.format(name=name, body=KERNELS[name][1])
        self.executor.learn(code, name, text, BASES[90])
        layout = ArgumentLayout(1, ["I"])
        return self.device.load(Cubin(writer.data()), name, layout)  # type: ignore[attr-defined]


@pytest.fixture(params=[Amd, Nv], ids=["amd", "nv"])
def vendor(request: pytest.FixtureRequest, need: Callable[[str], None]) -> Iterator[Vendor]:
    need("llvmlite")
    made = request.param()
    with bounded(SECONDS):
        yield made
        with suppress(DeviceHang):
            made.device.close()
    made.world.close()


# Where a wave is told to be, of each vendor.
PLACES = {
    Amd: r"pc 0x[0-9a-f]+ \([a-z]\w+ .*?\), workgroup \(0, 0, 0\), wave {index}, {reason}",
    Nv: r"kernel {name}, instruction \d+ \(line \d+: `[a-z].*?`\), block \(0, 0, 0\), warp {index},"
    r" {reason}",
}
ENDLESS = "is in an endless loop"
HELP = "recover() makes the device usable again"
LOOPS = "goes round in a loop that only a write to memory by others can end"
WAITS = "waits at a barrier for others that do not come"


def place(vendor: Vendor, name: str, index: int, reason: str) -> str:
    return PLACES[type(vendor)].format(name=name, index=index, reason=reason)


def hang(vendor: Vendor) -> str:
    """What is told of a hang; nothing waited for the bound."""
    before = vendor.world.clock.now_ns
    with pytest.raises(DeviceHang) as caught:
        vendor.device.synchronize()
    assert vendor.world.clock.now_ns - before < 1_000_000_000, "virtual nanoseconds"
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "number", "reasons"),
    [
        ("endless", 0, f"({ENDLESS}|{LOOPS})"),  # LLVM makes a condition that always holds
        ("counting", 5, ENDLESS),
        ("stepping", 0, LOOPS),
        ("waiting", 1, LOOPS),
    ],
)
def test_a_kernel_that_does_not_end(vendor: Vendor, name: str, number: int, reasons: str) -> None:
    vendor.start(name, number)
    told = hang(vendor)
    for index in range(2):
        assert re.search(place(vendor, name, index, reasons), told), told
    assert told.endswith(f"under way, the oldest first: {name}; {HELP}")
    assert "compute queue 0: the last value was" in told


def test_a_barrier_that_not_all_reach(vendor: Vendor) -> None:
    vendor.start("barrier", 0)
    told = hang(vendor)
    assert re.search(place(vendor, "barrier", 0, f"({ENDLESS}|{LOOPS})"), told), told
    assert re.search(place(vendor, "barrier", 1, WAITS), told), told
    assert told.endswith(f"under way, the oldest first: barrier; {HELP}")


def test_many_waves_are_told_in_short(vendor: Vendor) -> None:
    buffer = vendor.device.allocator.alloc(8)
    vendor.load("endless")(buffer, vals=(0,), grid=(8, 1, 1), block=(BLOCK, 1, 1))
    told = hang(vendor)
    assert len(re.findall(f"{ENDLESS}|{LOOPS}", told)) == 4 and "; 12 more" in told


def test_a_kernel_goes_on_when_the_host_writes_what_it_waits_for(vendor: Vendor) -> None:
    buffer = vendor.start("waiting", 7, 3)
    hang(vendor)
    assert buffer.window is not None
    buffer.window.store(0, (6).to_bytes(4, "little"))
    hang(vendor)
    buffer.window.store(0, (9).to_bytes(4, "little"))
    vendor.device.synchronize()
    assert words(buffer) == [9, 9]


def test_kernels_that_end_are_no_hang(vendor: Vendor) -> None:
    """One that takes a million turns, and one that a queue lets go on."""
    other = vendor.start("stepping", 3)
    vendor.device.synchronize()
    assert words(other)[0] == 3_000_000
    other.window.store(0, bytes(4))  # type: ignore[union-attr]
    waiting = vendor.start("waiting", 5, 1)
    vendor.load("stepping")(other, vals=(1,), grid=(1, 1, 1), block=(BLOCK, 1, 1))
    hang(vendor)
    assert waiting.window is not None
    waiting.window.store(0, (5).to_bytes(4, "little"))
    vendor.device.synchronize()
    assert words(waiting) == [5, 5] and words(other)[0] == 3_000_000


def test_a_loop_that_ends_by_what_it_writes_is_no_hang(vendor: Vendor) -> None:
    counter = vendor.start("counter", 1_000_000)
    vendor.device.synchronize()
    assert words(counter)[0] >= 1_000_000


def test_a_signal_that_never_comes(vendor: Vendor) -> None:
    never = vendor.device.signal(3)
    vendor.device.queue().wait(never, 5).submit(vendor.device)
    told = hang(vendor)
    assert re.search(f"wait.* {never.address:#x}|{never.address:#x}.* wait", told), told
    assert "under way" not in told
    never.set(5)
    vendor.device.synchronize()


def test_the_device_goes_on_after_a_hang() -> None:
    vendor = Amd()
    vendor.start("endless", 0)
    hang(vendor)
    assert vendor.device.recover() is Rung.QUEUES
    stepping = vendor.start("stepping", 3)
    vendor.device.synchronize()
    assert words(stepping)[0] == 3_000_000
    vendor.device.close()
    assert vendor.world.debug.violations == []
    vendor.world.close()
