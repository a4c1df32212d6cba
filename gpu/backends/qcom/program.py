"""Kernels that Mesa's compiler ir3 made, as programs and as text."""

from __future__ import annotations

from gpu.backends.hcq.program import QueueProgram
from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.bits import align_up
from gpu.core.errors import InvalidIndex
from gpu.core.ir3binary import NO_REGISTER, UNIT, Ir3Binary
from gpu.drivers.kgsl.device import KgslDevice
from gpu.hcq.args import ArgumentLayout
from gpu.runtime.device import LaunchData

_WORD = 8  # bytes of a parameter: an address, or a value as a long
_INSTRUCTION = 8  # bytes


def load_program(device: KgslDevice, name: str, lib: bytes, data: LaunchData) -> QueueProgram:
    """The kernel of the `Ir3Binary` that `lib` is; `data` as for `QueueProgram`, and more.

    ``values`` is how many of its parameters are numbers, behind the addresses of its buffers;
    ``written`` has a bit for each buffer that it writes. Raises Unsupported for code of another
    chip, InvalidIndex for more numbers than it has parameters, and what reading and loading raise.
    """
    binary = Ir3Binary.unpack(lib)
    values, words = data["values"], binary.parameters // _WORD
    if values > words:
        raise InvalidIndex(f"{values} numbers among the {words} parameters of {name}")
    layout = ArgumentLayout(words - values, "q" * values)
    return QueueProgram(device, device.load(binary, layout), data)


def disassemble(chip: str, code: bytes, start: int) -> list[str]:
    """Machine code and its address as lines, by Mesa's decoder. Raises Unsupported without it."""
    whole = code.ljust(align_up(len(code), UNIT), b"\0")
    numbers = dict.fromkeys(Ir3Binary._fields[:-3], 0)
    numbers |= {"chip": int(chip.removeprefix("a")), "block": 1}
    numbers |= {"group_at": NO_REGISTER, "thread_at": NO_REGISTER}
    binary = Ir3Binary(**numbers, name="code", code=whole, immediates=b"")
    text = Ir3Compiler(chip).disassemble(binary.pack()).splitlines()
    count = len(code) // _INSTRUCTION
    return [f"{start + _INSTRUCTION * at:#x}: {line}" for at, line in enumerate(text[:count])]
