"""Words of ir3 written by hand, and programs of them that store what threads have computed.

Registers are numbers of components: r1.y is 5.
"""

from __future__ import annotations

import numpy as np

from gpu.sim.isa.ir3.dispatch import Dispatch
from sim.ir3.machine import Machine
from sim.ir3.running import CODE, Array, Memory

FULL, SS, SY, JP = 1 << 52, 1 << 44, 1 << 60, 1 << 59
END = 6 << 55
OUT = 40  # r10.x and r10.y: where the thread's result belongs
THREAD = 0
ALU = {"add.u": 16, "sub.u": 18, "cmps.u": 20, "shl.b": 54, "and.b": 28}


def imm(value: int) -> int:
    """An immediate source."""
    return 4 << 11 | value & 0x7FF


def const(number: int) -> int:
    """A constant as a source."""
    return 2 << 11 | number


def alu(name: str, dst: int, a: int, b: int, flags: int = 0, nop: int = 0, repeat: int = 0) -> int:
    """Of two whole sources, with so many cycles to wait behind."""
    waits = (nop & 1) << 43 | (nop >> 1) << 51
    head = 2 << 61 | ALU[name] << 53 | FULL | flags | waits | repeat << 40
    return head | dst << 32 | b << 16 | a


def subtract(dst: int, a: int, b: int) -> int:
    """sub.u."""
    return alu("sub.u", dst, a, b)


def compare(dst: int, a: int, b: int, condition: int = 0, nop: int = 0, half: bool = False) -> int:
    """cmps.u: `condition` 0 is less, 4 equal."""
    return alu("cmps.u", dst, a, b, condition << 48 | half << 46, nop)


def nops(cycles: int, flags: int = 0) -> int:
    """Waits so many cycles, up to 6."""
    return flags | (cycles - 1) << 40


def move(dst: int, source: int, flags: int = 0, kind: int = 3) -> int:
    """mov.u32u32 of a register."""
    return 1 << 61 | flags | kind << 46 | kind << 50 | dst << 32 | source


def move_const(dst: int, number: int) -> int:
    """mov.u32u32 of a constant."""
    return move(dst, number, 1 << 53)


def move_imm(dst: int, value: int) -> int:
    """mov.u32u32 of an immediate."""
    return move(dst, value, 2 << 53)


def widen(dst: int, half: int, flags: int = 0) -> int:
    """cov.u16u32."""
    return 1 << 61 | flags | 3 << 46 | 2 << 50 | dst << 32 | half


def special(opcode: int, dst: int, source: int) -> int:
    """Category 4: 0 is rcp."""
    return 4 << 61 | opcode << 53 | FULL | dst << 32 | source


def load(opcode: int, dst: int, address: int, count: int = 1, flags: int = 0) -> int:
    """ldg 0, ldl 1, ldp 2 of u32."""
    head = 6 << 61 | opcode << 54 | 3 << 49 | 1 << 23 | 1 | flags
    return head | dst << 32 | count << 24 | address << 14


def store(opcode: int, address: int, source: int, count: int = 1, flags: int = 0) -> int:
    """stg 3, stl 4, stp 5 of u32."""
    head = 6 << 61 | opcode << 54 | 3 << 49 | 1 << 40 | 1 << 23 | flags
    return head | address << 41 | count << 24 | source << 1


def atomic_add(dst: int, address: int, data: int, everywhere: bool) -> int:
    """Of u32, in memory of the group or by an address of two registers."""
    head = 6 << 61 | 16 << 54 | 3 << 49 | 1 | everywhere << 52
    return head | dst << 32 | data << 24 | address << 14


def flow(opcode: int, high: int, distance: int = 0, kind: int = 0, flags: int = 0) -> int:
    """Category 0: jump (2, 0), br (1, 0), getone (5, 1), predt (13, 1), ..."""
    return opcode << 55 | high << 49 | kind << 37 | flags | distance & 0xFFFFFFFF


def branch(distance: int, inverted: bool = False, flags: int = 0) -> int:
    """br p0.x."""
    return flow(1, 0, distance, flags=flags | inverted << 52)


BARRIER = 7 << 61 | 1 << 54 | 1 << 49
P0 = 62 << 2
START = (
    *(alu("shl.b", 44, THREAD, imm(2), nop=3), alu("add.u", OUT, 44, const(0), nop=3)),
    *(move_const(OUT + 1, 1), nops(6)),
)
"""Has r10.x and r10.y be the address of the thread's word of the results, which begin at c0.x."""
STARTED = len(START)


def words(*code: int) -> bytes:
    """Code."""
    return b"".join(word.to_bytes(8, "little") for word in code)


def run(
    code: bytes, out: Array, lanes: int = 64, threads: int = 64, chip: str = "a630", **more: int
) -> None:
    """Runs a workgroup of code whose c0.x on is the address of `out`."""
    memory = Memory(code)
    address = memory.buffer(out.view(np.uint8))
    constants = np.array([address % (1 << 32), address >> 32, 5, 7], np.uint32).tobytes()
    dispatch = Dispatch(
        *(CODE, len(code), (1, 1, 1), (threads, 1, 1), lanes, constants),
        full=16, thread_at=THREAD, shared_bytes=512, **more,
    )  # fmt: skip
    Machine(memory, chip=chip).run(dispatch)


def results(
    *code: int, lanes: int = 64, threads: int = 64, chip: str = "a630", **more: int
) -> Array:
    """What each thread stores that has its value in r1.x behind code."""
    out = np.zeros(threads, np.uint32)
    ends = (nops(6, SS | SY), store(3, OUT, 4), END)
    run(words(*START, *code, *ends), out, lanes, threads, chip, **more)
    return out
