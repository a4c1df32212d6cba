"""Real machine code on the model: kernels that the driver loads, launched through queues."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pytest

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.llvm.amdgcn import AMDRenderer
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.core.dtype import dtypes
from gpu.core.errors import DeviceHang, GpuFault
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.kfd.port import QueueOptions, open_kfd
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.program import HCQProgram
from gpu.sim.amd.chip.caches import CacheControl, Caches
from gpu.sim.amd.chip.dispatch import Dispatch, KernelMemory
from gpu.sim.amd.chip.lanes import LaneExecutor
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.chunks import IN_PLACE, ChunkedMemory
from gpu.sim.clock import VirtualClock
from gpu.sim.executor import RunningKernel
from gpu.sim.isa import layout
from gpu.sim.linecaches import Mode
from gpu.sim.physical import Pool
from gpu.sim.record import DebugChannel
from gpu.sim.translate import AddressSpace, Mapping, PageFault
from gpu.transport.world import World
from unit.linear_kernels import Kernel, printed, scratch_kernel

pytestmark = pytest.mark.usefixtures("needs_llvm")


@pytest.fixture
def needs_llvm(need: Any) -> None:
    need("llvmlite")


class Machine:
    """A simulated GPU with a driver on it."""

    def __init__(
        self,
        compute: Literal["pm4", "aql"] = "pm4",
        coherence: Mode = "check",
        executor: LaneExecutor | None = None,
    ):
        executor = executor or LaneExecutor(7)
        self.world = KfdWorld(seed=5, executor=executor, coherence=coherence)
        options = QueueOptions(compute=compute)
        self.device = open_kfd(World(self.world.os, self.world.waiter), options=options)

    def load(self, program: Program) -> tuple[HCQProgram, dict[str, Any]]:
        renderer = AMDRenderer("gfx1100")
        lib = AMDCompiler("gfx1100").compile_cached(printed(renderer, program))
        sizes = renderer.launch_data(program)
        loaded = self.device.load(read_code_object(lib), program.name)
        return loaded, {"grid": (sizes["groups"], 1, 1), "block": (sizes["block"], 1, 1)}

    def buffer(self, array: np.ndarray[Any, Any]) -> HCQBuffer:
        made = self.device.allocator.alloc(array.nbytes)
        self.device.allocator.copy_in(made, array.tobytes())
        return made

    def array(self, buffer: HCQBuffer, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        data = np.frombuffer(self.device.allocator.copy_out(buffer), like.dtype)
        return data.reshape(like.shape)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(*getattr(request, "param", ()))
    yield made
    with suppress(DeviceHang):
        made.device.close()
    made.world.close()


def shifted(count: int, by: int, factor: float = 2.0) -> Program:
    """b[i + by] = factor * a[i] for `count` elements, whatever room there is."""
    k = Kernel(a=(dtypes.float32, count), b=(dtypes.float32, count))
    i = k.loop(count, kind="grid")
    place = k.alu("add", i, k.const(by))
    k.store(k.b, place, k.alu("mul", k.load(k.a, i), k.const(factor, dtypes.float32)))
    k.end(i)
    return k.program()


@pytest.mark.parametrize(
    "machine",
    [("pm4", "check"), ("aql", "check"), ("pm4", "oldest"), ("aql", "oldest")],
    ids="-".join,
    indirect=True,
)
def test_launches_follow_each_other(machine: Machine) -> None:
    """Each reads what the one before wrote, and none of the model's checks finds anything."""
    a = np.arange(600, dtype=np.float32)
    program, sizes = machine.load(shifted(600, 0))
    x, y = machine.buffer(a), machine.buffer(np.zeros_like(a))
    for _ in range(3):
        program(x, y, **sizes)
        program(y, x, **sizes)
    np.testing.assert_array_equal(machine.array(x, a), 64 * a)
    kept, sizes = machine.load(scratch_kernel(70).program())
    out = np.zeros(70, np.int64)
    z = machine.buffer(out)
    kept(z, **sizes)
    np.testing.assert_array_equal(machine.array(z, out), np.arange(70)[::-1] + 1)
    assert not machine.world.debug.violations


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ChunkedMemory]:
    """Whose memory was asked for something, once for each time."""
    found: list[ChunkedMemory] = []
    fill = ChunkedMemory.fill

    def filled(self: ChunkedMemory, address: int, size: int, access: int) -> None:
        found.append(self)
        fill(self, address, size, access)

    monkeypatch.setattr(ChunkedMemory, "fill", filled)
    return found


def test_launches_alike_give_themselves_memory(
    machine: Machine, asked: list[ChunkedMemory]
) -> None:
    """Only the first one asks for it, until something is mapped differently."""
    program, sizes = machine.load(shifted(600, 0))
    x, y, z = (machine.buffer(np.zeros(600, np.float32)) for _ in range(3))

    def run(target: HCQBuffer) -> int:
        before, a = len(asked), rng.random(600, np.float32)
        machine.device.allocator.copy_in(x, a.tobytes())
        program(x, target, **sizes)
        np.testing.assert_array_equal(machine.array(target, a), 2 * a)
        return len(asked) - before

    rng = np.random.default_rng(3)
    assert run(y) and [run(y) for _ in range(3)] == [0] * 3
    assert run(z) and [run(buffer) for buffer in (y, z, y)] == [0] * 3
    asked[-1]._space.flush_tlb()  # type: ignore[attr-defined]
    assert run(y) and not run(y)
    assert not machine.world.debug.violations


def test_code_that_was_overwritten_runs_as_it_is_now(machine: Machine) -> None:
    """Also where a launch like it has ended, whose grid could be taken over."""
    a = np.random.default_rng(4).random(600, np.float32)
    program, sizes = machine.load(shifted(600, 0, 4.0))
    held = machine.load(shifted(600, 0, 0.5))  # so that its code stays
    x, y = machine.buffer(a), machine.buffer(np.zeros_like(a))
    old, new = (memory.window for memory in machine.device.kernels)
    assert held and old and new
    for factor in (4.0, 4.0, 0.5, 0.5):
        if factor == 0.5:
            old.memory[:] = new.memory
        program(x, y, wait=True, **sizes)
        np.testing.assert_array_equal(machine.array(y, a), factor * a)


def test_a_missing_invalidate_is_seen_of_what_native_code_gave_itself(
    machine: Machine, asked: list[ChunkedMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, sizes = machine.load(shifted(600, 0))
    x, y = (machine.buffer(np.zeros(600, np.float32)) for _ in range(2))
    for _ in range(2):
        program(x, y, wait=True, **sizes)
    monkeypatch.setattr(Caches, "control", lambda *_: None)
    program(x, y, wait=True, **sizes)
    count = len(asked)
    assert not machine.world.debug.violations
    a = np.arange(600, dtype=np.float32)
    machine.device.allocator.copy_in(x, a.tobytes())
    program(x, y, wait=True, **sizes)
    assert len(asked) == count
    assert any("V$ holds an old copy" in text for text in machine.world.debug.violations)


def test_a_stray_store_is_a_fault(machine: Machine) -> None:
    a = np.zeros(3000, np.float32)
    program, sizes = machine.load(shifted(3000, 1 << 40))
    x = machine.buffer(a)
    with pytest.raises(GpuFault, match="not mapped"):
        program(x, x, wait=True, **sizes)
    assert machine.world.debug.faults


def test_code_that_is_none_hangs_and_says_where(machine: Machine) -> None:
    program, sizes = machine.load(shifted(64, 0))
    x = machine.buffer(np.zeros(64, np.float32))
    assert program.code is not None and program.code.window is not None
    start = program.info.kernel.entry_offset  # type: ignore[attr-defined]
    program.code.window.store(start, b"\xff" * 8)
    with pytest.raises(DeviceHang):
        program(x, x, wait=True, **sizes)
    assert any("kernel cannot go on" in text for text in machine.world.debug.violations)


class ForOthers(LaneExecutor):
    """An executor whose dispatches are of a chip that it runs no code of."""

    def launch(self, dispatch: Dispatch, memory: KernelMemory) -> RunningKernel:
        return super().launch(dispatch._replace(chip="gfx90a"), memory)


@pytest.mark.parametrize("compute", ["pm4", "aql"])
def test_code_runs_as_that_of_the_dispatchs_chip(compute: Literal["pm4", "aql"]) -> None:
    machine = Machine(compute, executor=ForOthers())
    program, sizes = machine.load(shifted(64, 0))
    x = machine.buffer(np.zeros(64, np.float32))
    with pytest.raises(DeviceHang):
        program(x, x, wait=True, **sizes)
    assert any("code of gfx90a is not" in text for text in machine.world.debug.violations)
    with suppress(DeviceHang):
        machine.device.close()
    machine.world.close()


def shown(memory: KernelMemory) -> ChunkedMemory:
    """What waves of a kernel see."""
    return ChunkedMemory(memory.vector, memory.scalar)


class Memory:
    """A mapping of a pool, as a kernel sees it."""

    SIZE = 4 * IN_PLACE
    AT = 1 << 40

    def __init__(self, mode: Mode, writable: bool = True):
        self.debug = DebugChannel(VirtualClock())
        self.pool = Pool("memory", self.SIZE, local=True)
        space = AddressSpace()
        end = self.AT + self.SIZE
        space.map(Mapping(self.AT, end, self.pool, 0, writable))
        self.space, self.caches = space, Caches(mode, True, self.debug)
        self.view = shown(KernelMemory(space, self.caches))

    def close(self) -> None:
        self.pool.close()


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    made = Memory(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("memory", ["check", "oldest"], indirect=True)
@pytest.mark.parametrize("access", [layout.READ, layout.SCALAR])
def test_a_missing_invalidate_is_seen(memory: Memory, access: int) -> None:
    at = memory.AT + 256
    for turn, value in enumerate((b"old!", b"new!", b"new!")):
        memory.pool.store(256, value)
        if turn == 2:
            both = CacheControl(invalidate_vector=True, invalidate_scalar=True, invalidate_l2=True)
            memory.caches.control(both)
        view = shown(KernelMemory(memory.space, memory.caches))
        view.fill(at, 4, access)
        stale = turn == 1 and memory.caches.mode == "oldest"
        assert view.map.read(at, 4) == (b"old!" if stale else value)
    assert len(memory.debug.violations) == (memory.caches.mode == "check")


@pytest.mark.parametrize("memory", ["check", "oldest"], indirect=True)
def test_what_a_kernel_wrote_is_there_after_its_turn(memory: Memory) -> None:
    view, at = memory.view, memory.AT + IN_PLACE - 2  # over the end of a chunk
    view.fill(at - 1, 1, layout.READ)
    view.fill(at, 4, layout.WRITE)
    host = view.map.host_address(at, 4)
    assert host is not None and view.map.allows(at, 4, layout.WRITE)
    ctypes.memset(host, 7, 4)
    view.end_turn(last=True)
    memory.caches.control(CacheControl(write_back_l2=True))
    assert memory.pool.load(IN_PLACE - 2, 4) == b"\7\7\7\7"


def test_what_is_only_offered_leaves_no_trace() -> None:
    memory = Memory("check")
    memory.view.fill(memory.AT, 4, layout.READ)
    memory.view.fill(memory.AT + IN_PLACE, 4, layout.READ | layout.WRITE)
    memory.view.end_turn(last=True)
    memory.caches.control(
        CacheControl(invalidate_vector=True, invalidate_scalar=True, invalidate_l2=True)
    )
    memory.caches.control(CacheControl(write_back_l2=True))
    like = memory.view
    like.again()
    assert like.map.host_address(memory.AT, 4) and not like.map.allows(memory.AT, 4, layout.READ)
    like.begin_turn()
    like.end_turn(last=True)
    memory.pool.store(0, b"new!" * (IN_PLACE // 2))
    memory.caches.load("sdma", memory.space.translate(memory.AT, False), IN_PLACE, 4)
    shown(KernelMemory(memory.space, memory.caches)).fill(memory.AT, 4, layout.READ)
    assert not memory.debug.violations
    memory.close()


def test_accesses_are_refused_as_the_tables_say() -> None:
    memory = Memory("check", writable=False)
    memory.view.fill(memory.AT, 4, layout.READ)
    assert not memory.view.map.allows(memory.AT, 4, layout.WRITE)
    with pytest.raises(PageFault):
        memory.view.fill(memory.AT, 4, layout.WRITE)
    with pytest.raises(PageFault):
        memory.view.fill(memory.AT + memory.SIZE, 4, layout.READ)
    memory.space.unmap(memory.AT)
    memory.space.flush_tlb()
    memory.view.begin_turn()
    assert not memory.view.map.allows(memory.AT, 4, layout.READ)
    memory.close()
