"""Runs dispatches: what a kernel is given, and what was noticed of its threads."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, Final

from gpu.core import hostmem
from gpu.core.errors import CompileError
from gpu.sim.isa.native import load_code
from gpu.sim.metal import threads
from gpu.sim.metal.base import CompileMsl
from gpu.sim.metal.chips import THREADGROUP_BYTES
from gpu.sim.metal.dispatches import Bound, Dispatch
from gpu.sim.metal.instrument import optimised
from gpu.sim.metal.programs import CLANG_OPTIONS
from gpu.sim.metal.resources import Buffer, Memory, Shadow
from gpu.sim.metal.source import Parameter
from gpu.sim.metal.threads import Finding, Machine, Range, Thread
from gpu.sim.metal.work import INTERNAL, PAGE_FAULT, TIMEOUT, GpuFault
from gpu.sim.races import Access
from gpu.sim.simulation import Simulation

_STACK: Final = 64 << 10
_BUDGET: Final = 2_000_000_000
"""Accesses and jumps back of a dispatch; one that needs more never ends."""
_MOST_RANGES: Final = 512
_POISONS: Final = (0xFF, 0xCB, 0x7F, 0x01)
_HOW: Final = ("read", "write", "atomic operation")
INJECTED: Final = {"hang": TIMEOUT, "page-fault": PAGE_FAULT, "reset": INTERNAL}
"""Faults that are shown on purpose, each with the error of the command buffer."""
_FAULTS: Final = {
    threads.OUTSIDE: ("out-of-bounds", "is in nothing that was bound or declared"),
    threads.NOT_WRITABLE: ("write-to-constant", "is in memory that kernels only read"),
    threads.MISALIGNED: ("misaligned", "is not aligned as its type demands"),
    threads.PRIVATE_OUTSIDE: ("out-of-private", "is outside of the variable of the thread"),
    threads.BARRIER_DIVERGED: (
        "barrier-divergence",
        "not all threads are at the same barrier: some have ended or wait elsewhere",
    ),
    threads.SIMD_DIVERGED: (
        "simd-divergence", "threads of a SIMD-group exchange values at different places",
    ),
}  # fmt: skip


class Engine:
    """The threads of all devices: one dispatch runs at a time."""

    def __init__(self, simulation: Simulation, compile_msl: CompileMsl):
        self._debug = simulation.debug
        self._counts = simulation.counts
        self._injected = simulation.faults
        self._rng: Random = simulation.rng
        self._compile = compile_msl
        self._machine = Machine(clock=1, stack_bytes=_STACK)
        self._functions: dict[str, int] = {}
        self._kept: list[Any] = []
        self._local: tuple[Memory, Shadow] | None = None
        self._static: dict[int, Shadow] = {}

    def stamp(self) -> int:
        """A time after all accesses so far."""
        self._machine.clock += 1
        return int(self._machine.clock)

    def run(self, dispatch: Dispatch) -> list[Access]:
        """Runs a kernel; what it has accessed. Raises GpuFault."""
        self._open()
        if fault := self._injected.due(*INJECTED):
            name = dispatch.pipeline.kernel.name
            raise GpuFault(INJECTED[fault.name], f"kernel {name}: {fault.name}, on purpose")
        machine, pipeline = self._machine, dispatch.pipeline
        pipeline.program.load(self._functions)
        data = [ctypes.create_string_buffer(b.data, len(b.data)) for b in dispatch.bound.values()]
        inline = dict(zip(dispatch.bound, data, strict=True))
        arguments = (ctypes.c_uint64 * (len(pipeline.kernel.parameters) + 1))()
        ranges: list[tuple[Range, Buffer | None]] = []
        local = self._local_memory()
        for number, parameter in enumerate(pipeline.kernel.parameters):
            if parameter.kind == "number":
                continue
            if parameter.kind == "threadgroup":
                size = dispatch.local[parameter.index]
                arguments[number] = local
                ranges.append((self._local_range(local, size), None))
                local += size
                continue
            bound = dispatch.bound[parameter.index]
            start, made = _range_of(bound, inline[parameter.index], parameter)
            arguments[number] = start
            ranges.append((made, bound.buffer))
        ranges += [(_buffer_range(each, 0), each) for each in dispatch.declared]
        ranges += [
            (self._static_range(at, size), None)
            for at, size in pipeline.program.locals(pipeline.kernel.name)
        ]
        ranges += [(_readable(*each), None) for each in pipeline.program.constants()]
        for _, buffer in ranges:
            if buffer is not None:
                buffer.bring()
        table = (Range * len(ranges))(*[each for each, _ in ranges])
        self._begin(dispatch, table, arguments)
        self._run()
        self._counts.kernels += 1
        self._tell(dispatch, machine, ranges)
        return list(_accesses(table, ranges))

    def _begin(self, dispatch: Dispatch, table: Any, arguments: Any) -> None:
        machine = self._machine
        total = math.prod(dispatch.groups)
        machine.grid[:], machine.shape[:] = dispatch.threads, dispatch.threadgroup
        machine.groups[:] = dispatch.groups
        machine.ranges, machine.range_count = ctypes.addressof(table), len(table)
        machine.arguments = ctypes.addressof(arguments)
        machine.entry = dispatch.pipeline.program.entry(dispatch.pipeline.kernel.name)
        machine.first = self._rng.randrange(total)
        machine.step = next(
            step
            for step in iter(lambda: self._rng.randrange(1, total + 1), 0)
            if math.gcd(step, total) == 1
        )
        machine.random = self._rng.getrandbits(63) | 1
        machine.poison = self._rng.choice(_POISONS)
        machine.budget = _BUDGET
        machine.fault = machine.race = Finding()
        machine.free_count = threads.MOST_THREADS
        free = (ctypes.c_uint64 * threads.MOST_THREADS).from_address(machine.free)
        highest = self._stacks + threads.MOST_THREADS * _STACK
        free[:] = list(range(highest, self._stacks, -_STACK))

    def _open(self) -> None:
        """Loads the native code, and makes room for threads."""
        if self._functions:
            return
        compiled = self._compile(threads.SOURCE, CLANG_OPTIONS)
        if isinstance(compiled, str):
            raise CompileError(f"the model's own code does not compile: {compiled}")
        machine = self._machine
        switch = load_code("metal", threads.SWITCH, {})
        symbols = {
            "gpu_metal": ctypes.addressof(machine),
            "gpu_metal_switch": switch.address("gpu_metal_switch"),
        }
        text = _own_code(compiled)
        code = load_code("metal", text, symbols)
        functions = [word for word in _exported(text) if word != "gpu_metal_run"]
        all_threads = (Thread * threads.MOST_THREADS)()
        ready = (ctypes.c_uint32 * threads.MOST_THREADS)()
        free = (ctypes.c_uint64 * threads.MOST_THREADS)()
        machine.threads, machine.ready = ctypes.addressof(all_threads), ctypes.addressof(ready)
        machine.free = ctypes.addressof(free)
        self._stacks = hostmem.map_anonymous(threads.MOST_THREADS * _STACK, sparse=True)
        self._kept += [switch, code, all_threads, ready, free]
        self._run = ctypes.CFUNCTYPE(None)(code.address("gpu_metal_run"))
        self._functions = {name: code.address(name) for name in functions}

    def _local_memory(self) -> int:
        if self._local is None:
            memory = Memory(2 * THREADGROUP_BYTES)
            self._local = memory, Shadow(memory.start, memory.size)
        return self._local[0].start

    def _local_range(self, start: int, size: int) -> Range:
        assert self._local is not None
        shadow = self._local[1]
        return _range(start, start + size, threads.LOCAL, 0, shadow)

    def _static_range(self, start: int, size: int) -> Range:
        known = self._static.get(start)
        if known is None or known.size < size:
            if known is not None:  # of a program that is gone, in whose place another one is
                known.free()
            known = self._static[start] = Shadow(start, size)
        return _range(start, start + size, threads.LOCAL, 0, known)

    def _tell(
        self, dispatch: Dispatch, machine: Machine, ranges: list[tuple[Range, Buffer | None]]
    ) -> None:
        """Tells of what was noticed. Raises GpuFault where the kernel was stopped."""
        name = dispatch.pipeline.kernel.name
        race, fault = machine.race, machine.fault
        if race.kind == threads.RACE:
            other = "other threads" if race.other == 0xFFFF else f"thread {race.other}"
            self._debug.violation(
                f"kernel-race: {name}: {_HOW[race.how]} of {_told(race)} and one by {other}"
                f" of a threadgroup: nothing orders them{_place(race, ranges)}"
            )
        elif race.kind:
            self._debug.violation(
                f"uninitialised-threadgroup-memory: {name}: {_HOW[race.how]} of {_told(race)},"
                " which this threadgroup has not written"
            )
        if fault.kind == threads.TIMEOUT:
            raise GpuFault(TIMEOUT, f"kernel {name} does not end")
        if fault.kind:
            rule, why = _FAULTS[fault.kind]
            what = f"{_HOW[fault.how]} of {_told(fault)} {why}" if fault.size else why
            text = f"{name}: {what}{_place(fault, ranges)}"
            self._debug.violation(f"{rule}: {text}")
            raise GpuFault(PAGE_FAULT, text)


@cache
def _own_code(bitcode: bytes) -> str:
    return optimised(bitcode, racy=False)[0]


def _exported(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("define ") and "@gpu_metal_" in line:
            yield line.partition("@")[2].partition("(")[0]


def _told(finding: Finding) -> str:
    return (
        f"{finding.size} bytes at {finding.address:#x} by thread {finding.who} of threadgroup"
        f" {finding.group}"
    )


def _place(finding: Finding, ranges: list[tuple[Range, Buffer | None]]) -> str:
    """Where an address is among buffers, for messages."""
    for made, buffer in ranges:
        if (
            buffer is not None
            and finding.address - made.start >= -4096
            and (finding.address < made.end + 4096)
        ):
            return (
                f"; buffer of {buffer.length} bytes, offset {finding.address - buffer.gpu}, bound"
                f" from {made.start - buffer.gpu}"
            )
    return ""


def _range(start: int, end: int, kind: int, base: int, shadow: Shadow | None) -> Range:
    made = Range(start=start, end=end, base=base, kind=kind)
    if shadow is not None:
        made.origin, made.cells = shadow.origin, shadow.cells
    made.low[:] = [2**64 - 1] * 2
    return made


def _readable(start: int, size: int) -> Range:
    return _range(start, start + size, threads.CONSTANT, 0, None)


def _buffer_range(buffer: Buffer, offset: int) -> Range:
    start, end = buffer.gpu + offset, buffer.gpu + buffer.length
    return _range(start, end, threads.DEVICE, buffer.base, buffer.shadow)


def _range_of(bound: Bound, data: Any, parameter: Parameter) -> tuple[int, Range]:
    if bound.buffer is None:
        start = ctypes.addressof(data)
        return start, _readable(start, len(bound.data))
    made = _buffer_range(bound.buffer, bound.offset)
    if parameter.kind == "constant":
        made.kind = threads.CONSTANT
    return made.start, made


def _accesses(table: Any, ranges: list[tuple[Range, Buffer | None]]) -> Iterator[Access]:
    for made, (_, buffer) in zip(table, ranges, strict=True):
        if buffer is None:
            continue
        if made.high[0]:
            yield Access(made.low[0], made.high[0], "read")
        if made.high[1]:
            yield Access(made.low[1], made.high[1], "write")
