"""What the backend promises of command buffers, on a GPU that is a few functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from gpu.autogen import metal as mtl
from gpu.backends.metal.context import MOST_RUNNING, GpuInfo, MetalContext
from gpu.backends.metal.graph import MetalGraph
from gpu.backends.metal.memory import PAGE, MetalAllocator, MetalMemory
from gpu.backends.metal.objc import Handle
from gpu.backends.metal.program import Libraries, MetalCompiler, MetalProgram, Scratch
from gpu.backends.metal.timer import MetalTimer
from gpu.core.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    GpuFault,
    InvalidIndex,
    InvalidType,
    InvalidValue,
    OutOfMemory,
    Unsupported,
)
from gpu.runtime.program import LaunchSize
from unit.metal.stand_in import StandIn

COMMANDS = "MTLCommandBufferErrorDomain"
SOURCE = (
    b"kernel void gpu_sum(\n    device float *p0 [[buffer(0)]],\n"
    b"    device uchar *workspace [[buffer(1)]],\n    constant long *values [[buffer(2)]],\n"
    b"    uint block [[threadgroup_position_in_grid]]) {\n}\n"
)
DATA = {"groups": 3, "block": 64, "workspace": 256, "values": 2}


class Gpu(StandIn):
    """A GPU whose commands are done when someone waits for them.

    Attributes:
        sent: selectors of messages, in order.
        status: of each command buffer, by its number.
        failing: numbers of those that are to fail.
        refused: what the compiler says of every source; nothing where it takes them.
        threads, width: most of a threadgroup, and those of a SIMD-group.
        math: what the compiler was told, and the number.
        wrong: what a Mac ends a process for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.lacks = {"setMathMode:", "setMathFloatingPointFunctions:"}  # as before macOS 15
        self.status: dict[int, int] = {}
        self.failing: set[int] = set()
        self.refused = ""
        self.threads, self.width = 1024, 32
        self.math: list[tuple[str, int]] = []
        self.wrong: list[str] = []
        self._blocks: dict[int, Any] = {}
        self._numbers = iter(range(10_000, 1 << 30))
        self.answers |= {
            "newCommandQueue": self._new,
            "commandBuffer": self._command_buffer,
            "computeCommandEncoder": lambda buffer, *_: next(self._numbers),
            "blitCommandEncoder": lambda buffer, *_: next(self._numbers),
            "newBufferWithLength:options:": self._buffer,
            "newBufferWithBytesNoCopy:length:options:deallocator:": self._new,
            "contents": lambda buffer, *_: ctypes.addressof(self._blocks[buffer]),
            "commit": self._commit,
            "status": lambda buffer, *_: self.status[buffer],
            "waitUntilCompleted": self._wait,
            "error": lambda *_: self.error(COMMANDS, 3, "page fault"),
            "alloc": self._new,
            "init": lambda made, *_: made,
            "stringWithUTF8String:": lambda _, text, *__: text,
            "newLibraryWithSource:options:error:": self._library,
            "newFunctionWithName:": self._new,
            "newComputePipelineStateWithFunction:error:": self._new,
            "maxTotalThreadsPerThreadgroup": lambda *_: self.threads,
            "threadExecutionWidth": lambda *_: self.width,
        }
        for selector in (
            "endEncoding", "setComputePipelineState:", "setBuffers:offsets:withRange:",
            "setBytes:length:atIndex:", "dispatchThreadgroups:threadsPerThreadgroup:",
            "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        ):  # fmt: skip
            self.answers[selector] = lambda *_: 0
        for selector in ("setFastMathEnabled:", "setMathMode:", "setMathFloatingPointFunctions:"):
            self.answers[selector] = partial(self._set, selector)
        device = Handle(self.objc, self._new())
        info = GpuInfo("Apple M9", "apple9", 1 << 33, 1 << 20)
        self.context = MetalContext(self.objc, device, info)
        self.allocator = MetalAllocator(self.context)
        self.libraries = Libraries(self.context)

    def program(
        self, source: bytes = SOURCE, scratch: Scratch | None = None, **data: int
    ) -> MetalProgram:
        scratch = scratch or Scratch(self.context, self.allocator)
        return MetalProgram(self.context, self.libraries, scratch, "sum", source, {**DATA, **data})

    def _send(self, receiver: int, selector: int, *registers: int) -> int:
        if (name := self._names[selector - 1]) != "respondsToSelector:":  # once for each
            self.sent.append(name)
        return super()._send(receiver, selector, *registers)

    def _set(self, selector: str, _: int, value: int, *__: int) -> int:
        self.math.append((selector, value))
        return 0

    def _new(self, *_: int) -> int:
        made = next(self._numbers)
        self.held[made] += 1
        return made

    def _buffer(self, _: int, size: int, *__: int) -> int:
        made = self._new()
        self._blocks[made] = ctypes.create_string_buffer(size)
        return made

    def _library(self, device: int, source: int, options: int, place: int, *_: int) -> int:
        if not self.refused:
            return self._new()
        ctypes.c_uint64.from_address(place).value = self.error(
            "MTLLibraryErrorDomain", 3, self.refused
        )
        return 0

    def _command_buffer(self, *_: int) -> int:
        made = next(self._numbers)
        self.status[made] = mtl.MTLCommandBufferStatusNotEnqueued
        return made

    def _commit(self, buffer: int, *_: int) -> int:
        self.status[buffer] = mtl.MTLCommandBufferStatusCommitted
        return 0

    def _wait(self, buffer: int, *_: int) -> int:
        if self.status[buffer] == mtl.MTLCommandBufferStatusNotEnqueued:
            self.wrong.append("waited for what was never committed")
        is_failing = [*self.status].index(buffer) in self.failing
        self.status[buffer] = (
            mtl.MTLCommandBufferStatusError if is_failing else mtl.MTLCommandBufferStatusCompleted
        )
        return 0

    def running(self) -> int:
        """How many command buffers someone holds."""
        return sum(self.held[buffer] for buffer in self.status)


CHECKS: Final[dict[str, Callable[[], None]]] = {}


def _check(function: Callable[[Gpu], None]) -> Callable[[Gpu], None]:
    CHECKS[function.__name__] = lambda: function(Gpu())
    return function


@_check
def a_launch_is_a_command_buffer(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(64)
    program(memory, vals=(3, 4))
    mac.sent.clear()
    program(memory, vals=(3, 4))
    assert mac.sent == [
        "commandBuffer",
        "computeCommandEncoder",
        "setComputePipelineState:",
        "setBuffers:offsets:withRange:",
        "setBytes:length:atIndex:",
        "dispatchThreadgroups:threadsPerThreadgroup:",
        "endEncoding",
        "commit",
    ]
    assert mac.running() == 2
    mac.context.synchronize()
    assert mac.running() == 0
    assert mac.pools == []


@_check
def a_replay_is_one_command_buffer(mac: Gpu) -> None:
    program, memories = mac.program(), [mac.allocator.alloc(64) for _ in range(2)]
    graph = MetalGraph([(program, (0,), (0, 1)), (program, (1,), (1, 0))], 2)
    graph(memories, (5, 6))
    mac.sent.clear()
    graph(memories, (5, 6))
    assert mac.sent.count("commandBuffer") == mac.sent.count("commit") == 1
    assert mac.sent.count("dispatchThreadgroups:threadsPerThreadgroup:") == 2
    assert {memory.ticket for memory in memories} == {2}
    with pytest.raises(InvalidValue, match="2 slots has a launch on one beyond"):
        MetalGraph([(program, (2,), (0, 1))], 2)


@_check
def memory_is_read_when_what_used_it_is_done(mac: Gpu) -> None:
    program, used, other = mac.program(), mac.allocator.alloc(8), mac.allocator.alloc(8)
    mac.allocator.copy_in(other, memoryview(b"12345678"))
    program(used, vals=(3, 4))
    back = bytearray(8)
    mac.allocator.copy_out(memoryview(back), other)
    assert (back, mac.running()) == (b"12345678", 1)
    mac.allocator.copy_out(memoryview(back), used)
    assert mac.running() == 0


@_check
def not_more_is_committed_than_a_queue_has(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    for _ in range(3 * MOST_RUNNING):
        program(memory, vals=(3, 4))
        assert mac.running() <= MOST_RUNNING
    mac.context.synchronize()
    assert mac.context.finished == 3 * MOST_RUNNING


@_check
def the_launch_that_failed_is_named_and_the_next_one_works(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    mac.failing = {1}
    for value in (3, 4, 5):
        program(memory, vals=(value, value))
    with pytest.raises(
        GpuFault, match=r"run sum of 3 x 64 threads with 8 bytes at \w+, 4, 4.*page"
    ):
        mac.context.synchronize()
    mac.context.synchronize()
    assert mac.context.finished == 3


@_check
def after_a_loss_everything_says_so(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    mac.failing = {0}
    mac.answers["error"] = lambda *_: mac.error(COMMANDS, 4, "ignored")
    program(memory, vals=(3, 4))
    for use in (mac.context.synchronize, lambda: program(memory, vals=(3, 4)), mac.program):
        with pytest.raises(DeviceLost, match="too many errors of its kernels"):
            use()


@_check
def what_a_kernel_takes_is_checked_before_anything_is_sent(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    mac.sent.clear()
    wrong: list[tuple[Sequence[Any], Sequence[Any], type[Exception]]] = [
        ((), (1, 2), InvalidValue),
        ((memory, memory), (1, 2), InvalidValue),
        ((memory,), (1,), InvalidValue),
        ((7,), (1, 2), InvalidType),
        ((memory,), (1, 1.5), InvalidType),
    ]
    for bufs, vals, error in wrong:
        try:
            program(*bufs, vals=vals)
        except error as told:
            assert "sum" in str(told)
        except (AttributeError, TypeError, ValueError) as other:
            pytest.fail(f"{bufs} and {vals}: {other!r}")
        else:
            pytest.fail(f"{bufs} and {vals} were taken")
    assert mac.sent == []


@_check
def a_source_is_refused_with_its_line(mac: Gpu) -> None:
    mac.refused = "program_source:3:4: error: unknown type name 'uchar'"
    with pytest.raises(CompileError, match=r"unknown type.*\(line 3: device uchar \*workspace"):
        mac.program()
    mac.refused = "scale:1:4: error: the user's own line 1"
    with pytest.raises(CompileError, match=r"own line 1 \(MTLLibraryErrorDomain 3\) \(at"):
        mac.program()
    mac.refused = "out of luck"
    with pytest.raises(CompileError, match=r"out of luck \(MTLLibraryErrorDomain 3\) \(at"):
        mac.program()


@_check
def a_kernel_that_cannot_be_launched_is_refused_when_it_is_loaded(mac: Gpu) -> None:
    with pytest.raises(InvalidIndex, match="no kernel gpu_sum"):
        mac.program(SOURCE.replace(b"gpu_sum", b"gpu_other"))
    with pytest.raises(Unsupported, match=r"threadgroups of 2048 threads.*may have 1024"):
        mac.program(block=2048)
    mac.width = 16
    mac.program()
    with pytest.raises(DeviceError, match="SIMD-groups of 16 threads"):
        mac.program(SOURCE.replace(b"{\n", b"{ simd_shuffle_xor(1, 1);\n"))


@_check
def memory_has_its_limits(mac: Gpu) -> None:
    with pytest.raises(OutOfMemory, match=r"at most 1,048,576 bytes \(maxBufferLength\)"):
        mac.allocator.alloc(1 << 40)
    mac.answers["newBufferWithLength:options:"] = lambda *_: 0
    with pytest.raises(OutOfMemory, match="cannot allocate 8 bytes on Apple M9"):
        mac.allocator.alloc(8)


@_check
def whole_pages_are_borrowed(mac: Gpu) -> None:
    data = np.zeros(1 << 16, np.uint8)
    page = -(-data.ctypes.data // PAGE) * PAGE
    borrowed = mac.allocator.borrow(page, 5000, data)
    assert borrowed is not None and borrowed.is_borrowed and borrowed.nbytes == 5000
    mac.program()(borrowed, vals=(1, 2))
    assert mac.running() == 0, "whose memory it is may change it as soon as it was read"
    assert mac.allocator.borrow(page + 4096, 5000, data) is None
    assert mac.allocator.borrow(page, 1 << 21, data) is None


@_check
def a_copy_is_behind_what_was_launched(mac: Gpu) -> None:
    a, b = mac.allocator.alloc(8), mac.allocator.alloc(8)
    mac.allocator.copy(a, b, 8)
    assert (a.ticket, b.ticket) == (1, 1)
    assert mac.sent[-4:-2] == [
        "blitCommandEncoder",
        "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
    ]
    with pytest.raises(InvalidType, match="what its allocator gives, got int 5"):
        mac.allocator.copy(a, 5, 8)  # type: ignore[arg-type]


@_check
def memory_that_is_dropped_is_given_back(mac: Gpu) -> None:
    before = sum(mac.held.values())
    memory: MetalMemory | None = mac.allocator.alloc(8)
    mac.allocator.free(memory, 8)
    memory = None
    assert sum(mac.held.values()) == before + 1
    mac.allocator.free_cache()
    assert sum(mac.held.values()) == before


_SENT: Final = (
    "commandBuffer",
    "computeCommandEncoder",
    "setComputePipelineState_",
    "setBuffers_offsets_withRange_",
    "dispatchThreadgroups_threadsPerThreadgroup_",
    "endEncoding",
    "objc_retain",
    "commit",
)


def _interrupted(whole: Callable[..., Any], after: bool) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if after:
            whole(*arguments)
        raise KeyboardInterrupt

    return call


def _interrupt(mac: Gpu, call: str, after: bool) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    program(memory, vals=(3, 4))
    whole = getattr(mac.objc, call)
    setattr(mac.objc, call, _interrupted(whole, after))
    with pytest.raises(KeyboardInterrupt):
        program(memory, vals=(3, 4))
    setattr(mac.objc, call, whole)
    assert mac.pools == []
    mac.allocator.copy_out(memoryview(bytearray(8)), memory)
    program(memory, vals=(3, 4))
    mac.context.synchronize()
    assert mac.running() == (1 if (call, after) == ("objc_retain", True) else 0)
    assert mac.status[max(mac.status)] == mtl.MTLCommandBufferStatusCompleted
    assert mac.sent.count("endEncoding") >= mac.sent.count("computeCommandEncoder") - (
        call in ("computeCommandEncoder", "endEncoding")
    )
    assert mac.wrong == []


@_check
def an_interrupt_in_a_launch_leaves_a_device_that_works(mac: Gpu) -> None:
    for call in _SENT:
        for after in (False, True):
            _interrupt(Gpu(), call, after)


@_check
def a_forked_child_is_told_and_sends_nothing(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    program(memory, vals=(3, 4))
    owned = Handle(mac.objc, mac.objc.objc_retain(1))
    sent, held = len(mac.sent), mac.held.copy()
    mac.context.forked()
    for use in (mac.context.synchronize, lambda: program(memory, vals=(3, 4)), mac.program):
        with pytest.raises(DeviceLost, match="opened before this process was forked"):
            use()
    del owned
    assert (len(mac.sent), mac.held) == (sent, held)


@_check
def the_process_ends_when_all_is_done_and_releases_nothing(mac: Gpu) -> None:
    program, memory = mac.program(), mac.allocator.alloc(8)
    owned = Handle(mac.objc, mac.objc.objc_retain(1))
    mac.failing = {1}
    for _ in range(2):
        program(memory, vals=(3, 4))
    with pytest.raises(GpuFault):
        mac.context.close()
    assert [mac.status[each] >= mtl.MTLCommandBufferStatusCompleted for each in mac.status] == [
        True,
        True,
    ]
    held = mac.held.copy()
    del owned
    assert mac.held == held, "modules that it needs may be gone by then"
    with pytest.raises(DeviceLost, match="was closed"):
        program(memory, vals=(3, 4))


@_check
def the_compiler_keeps_to_ieee_754(mac: Gpu) -> None:
    mac.program()
    assert mac.math == [("setFastMathEnabled:", 0)]
    newer = Gpu()
    newer.lacks.clear()
    newer.program()
    assert newer.math == [
        ("setMathMode:", mtl.MTLMathModeSafe),
        ("setMathFloatingPointFunctions:", mtl.MTLMathFloatingPointFunctionsPrecise),
    ]


@_check
def a_source_is_compiled_once(mac: Gpu) -> None:
    compiler = MetalCompiler(mac.libraries, "apple9")
    lib = compiler.compile(SOURCE.decode())
    programs = [mac.program(lib), mac.program(lib)]
    assert mac.sent.count("newLibraryWithSource:options:error:") == 1
    assert [each.launch_size for each in programs] == [LaunchSize((3, 1, 1), (64, 1, 1))] * 2


@_check
def a_graph_asks_for_the_most_memory_before_its_first_launch(mac: Gpu) -> None:
    scratch = Scratch(mac.context, mac.allocator)
    small = mac.program(scratch=scratch)
    large = mac.program(scratch=scratch, workspace=1024)
    graph = MetalGraph([(small, (0,), (0, 1)), (large, (0,), (0, 1))], 1)
    memory = mac.allocator.alloc(8)
    small(memory, vals=(1, 2))
    mac.sent.clear()
    graph([memory], (1, 2))
    at = mac.sent.index("commandBuffer")
    assert "newBufferWithLength:options:" in mac.sent[:at]
    assert "waitUntilCompleted" in mac.sent[:at], "the launch before has what is given up"
    assert "newBufferWithLength:options:" not in mac.sent[at:]


@_check
def launches_are_timed_when_they_are_done(mac: Gpu) -> None:
    times = {1: (1.0, 1.25), 2: (2.0, 2.5)}
    mac.context.times = lambda commands: times[commands.ticket]  # type: ignore[method-assign]
    timer, program, memory = MetalTimer(mac.context), mac.program(), mac.allocator.alloc(8)
    for key in ("a", "b"):
        timer.launch(program, [memory], (1, 2), key)
    assert (timer.pending, timer.collect(wait=False)) == (2, [])
    found = timer.collect(wait=True)
    assert [(each.key, each.name, each.start_ns, each.seconds) for each in found] == [
        ("a", "sum", 1_000_000_000, 0.25),
        ("b", "sum", 2_000_000_000, 0.5),
    ]
    assert timer.pending == 0
