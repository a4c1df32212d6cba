"""Kernels that Mesa compiles, through the whole model: objects, packets, the lane engine."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpu.compiler.render.nir.ir3 import IR3Renderer
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.dtype import dtypes
from gpu.core.ir3binary import VECTOR, Ir3Binary
from gpu.sim.kgsl.chip.lanes import Ir3Executor
from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.conftest import Make
from sim.kgsl.raw_kgsl import (
    CONSTANTS,
    CS_SHADER,
    DROP_UCHE,
    PAGE,
    Kernel,
    Object,
    RawKgsl,
    fails,
    load,
    operation,
    registers,
)
from unit.linear_kernels import Kernel as Linear
from unit.linear_kernels import printed

Array = np.ndarray[Any, Any]
COUNT = 1000


@pytest.fixture(autouse=True)
def tools_are_there(need: Callable[[str], None]) -> None:
    need("tinymesa")
    need("llvmlite")


@cache
def compiled() -> tuple[Ir3Binary, int]:
    """out[i] = a[i] * b[i] + a[i] of COUNT int32, and its workgroups."""
    k = Linear(a=(dtypes.int32, COUNT), b=(dtypes.int32, COUNT), out=(dtypes.int32, COUNT))
    i = k.loop(COUNT, kind="grid")
    a = k.load(k.a, i)
    k.store(k.out, i, k.alu("add", k.alu("mul", a, k.load(k.b, i)), a))
    k.end(i)
    renderer, program = IR3Renderer("a630"), k.program()
    binary = Ir3Binary.unpack(Ir3Compiler("a630").compile_cached(printed(renderer, program)))
    return binary, renderer.launch_data(program)["groups"]


class Running:
    """That kernel, its code and constants in objects of a process."""

    def __init__(self, user: RawKgsl, flags: int = 0):
        self.user = user
        self.binary, self.groups = compiled()
        self.code = user.alloc(len(self.binary.code) + PAGE)
        self.code.host.store(0, self.binary.code)
        self.a, self.b, self.out = (user.alloc(4 * COUNT, flags) for _ in range(3))
        self.constants = user.alloc(self.binary.constants * VECTOR)
        immediates = self.binary.immediates_at * VECTOR
        self.constants.host.store(immediates, self.binary.immediates)
        self.point(self.a, self.b, self.out)

    def point(self, *items: Object) -> None:
        """Has the kernel work on some objects."""
        words = np.array([item.address for item in items], np.uint64)
        self.constants.host.store(0, words.tobytes())

    def words(self) -> list[int]:
        binary = self.binary
        made = Kernel(
            self.code.address,
            units=len(binary.code) // 128,
            groups=(self.groups, 1, 1),
            block=(binary.block, 1, 1),
            full=binary.full,
            wide=binary.double,
            constants=-(-binary.constants // 4) * 4,
            more={
                0xA9B0: binary.full << 7
                | binary.branches << 14
                | binary.double << 20
                | binary.early << 23
                | binary.merged << 31,
                0xB997: binary.group_at | 0xFCFC00 | binary.thread_at << 24,
            },
        )
        state = made.state()
        state += load(CONSTANTS, CS_SHADER, self.constants.address, binary.constants)
        return state + operation("EXEC_CS", 0, self.groups, 1, 1)

    def check(self) -> None:
        """Runs it on fresh values."""
        draw = np.random.default_rng(len(self.user.world.debug.records))
        a, b = (draw.integers(-1000, 1000, COUNT, np.int32) for _ in range(2))
        for item, values in ((self.a, a), (self.b, b)):
            item.host.store(0, values.tobytes())
        self.user.run(operation("EVENT", DROP_UCHE) + self.words())
        found = np.frombuffer(self.out.host.load(0, 4 * COUNT), np.int32)
        assert np.array_equal(found, a * b + a), self.user.world.debug.records


@pytest.mark.parametrize("mode", ["check", "oldest", "none"])
def test_a_kernel_runs(make: Make, mode: str) -> None:
    world = make(executor=Ir3Executor(), coherence=mode)
    running = Running(RawKgsl(world.process))
    for _ in range(3):
        running.check()
    assert not world.debug.violations and not world.debug.faults
    assert world.counts.kernels == 3 and world.counts.instructions > 3 * 10


def test_a_missing_invalidate_is_noticed(make: Make) -> None:
    for mode in ("check", "oldest"):
        world = make(executor=Ir3Executor(), coherence=mode)
        running = Running(RawKgsl(world.process))
        running.check()
        running.a.host.store(0, np.full(COUNT, 3, np.int32).tobytes())
        before = running.out.host.load(0, 4 * COUNT)
        running.user.run(running.words())
        if mode == "check":
            assert "UCHE holds an old copy" in world.debug.violations[0]
        else:
            assert running.out.host.load(0, 4 * COUNT) == before


def test_code_that_has_changed(make: Make) -> None:
    world = make(executor=Ir3Executor())
    running = Running(RawKgsl(world.process))
    running.check()
    running.code.host.store(0, bytes(len(running.binary.code)))  # nops, and no end
    stamp = running.user.run(operation("EVENT", DROP_UCHE) + running.words(), wait=False)
    with fails(errno.EDEADLK):
        running.user.wait(stamp)
    assert "a kernel cannot go on" in world.debug.violations[-1]


def test_code_that_cannot_begin(make: Make) -> None:
    world = make(executor=Ir3Executor())
    running = Running(RawKgsl(world.process))
    words = running.words()
    words[words.index(registers(0xA9B0, 0)[0]) + 1] &= ~(1 << 31)  # SP_CS_CTRL_REG0.MERGEDREGS
    stamp = running.user.run(words, wait=False)
    with fails(errno.EDEADLK):
        running.user.wait(stamp)
    assert "set MERGEDREGS" in world.debug.violations[-1]


@pytest.mark.parametrize("policy", ["halt", "continue"])
def test_a_kernel_that_faults(make: Make, policy: str) -> None:
    world = make(executor=Ir3Executor(), page_faults=policy)
    running = Running(RawKgsl(world.process))
    hole = Object(0, 0, 0, 0x40_7654_0000)
    running.b.host.store(0, np.full(COUNT, 9, np.int32).tobytes())
    running.point(hole, running.b, running.out)
    running.out.host.store(0, b"x" * 4 * COUNT)
    stamp = running.user.run(running.words(), wait=False)
    if policy == "halt":
        with fails(errno.EDEADLK):
            running.user.wait(stamp)
    else:
        running.user.wait(stamp)
        assert running.out.host.load(0, 4 * COUNT) == bytes(4 * COUNT)  # reads gave 0
    assert "read at 0x4076540" in world.debug.faults[0] and not world.debug.violations
    context = running.user.new_context()
    running.point(running.a, running.b, running.out)
    running.user.context = context
    running.check()


def test_many_launches_leave_nothing(make: Make) -> None:
    world: KgslWorld = make(executor=Ir3Executor())
    running = Running(RawKgsl(world.process))
    words = np.array(operation("EVENT", DROP_UCHE) + running.words(), np.uint32)
    buffer = running.user.alloc(words.nbytes)
    buffer.host.store(0, words.tobytes())
    before = world.usage()
    for _ in range(30):
        running.user.wait(running.user.submit([(buffer.address, words.nbytes)]))
    assert world.usage() == before and world.counts.kernels == 30
