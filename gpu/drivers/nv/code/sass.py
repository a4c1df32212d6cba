"""Kernels that come as machine code alone, as Mesa's NAK makes them: no cubin, no driver's words.

Constant bank 0 holds their parameters from its beginning on, and nothing else. They keep local
memory as Mesa's Vulkan driver does, whose launch descriptors have its size in the LOW field
(src/nouveau/compiler/nak/qmd.rs); none of it belongs to the system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu.core.bits import align_up
from gpu.core.errors import FormatError, InvalidIndex
from gpu.drivers.nv.code.cubin import Kernel
from gpu.drivers.nv.code.image import AFTER_CODE, IMAGE_ALIGN
from gpu.drivers.nv.code.info import Parameter
from gpu.drivers.nv.encode.sm_limits import MAX_BARRIERS, MAX_LOCAL, MAX_REGISTERS

_WORD = 8


@dataclass(frozen=True, slots=True)
class BareSizes:
    """What a compiler tells of a kernel beside its code.

    Attributes:
        registers: of a thread.
        barriers: named ones that it uses.
        block: threads of a block that it was compiled for, along x.
        shared: bytes of shared memory of a block.
        local: bytes of local memory of a thread.
        parameters: bytes of them, in words of 8.
    """

    registers: int
    barriers: int
    block: int
    shared: int
    local: int
    parameters: int


class BareCode:
    """A kernel without a cubin, in the place of a `Cubin` when it is loaded."""

    def __init__(self, name: str, code: bytes, sizes: BareSizes):
        """Raises FormatError for sizes that no launch can have."""
        for what, value, most in (
            ("registers", sizes.registers, MAX_REGISTERS),
            ("barriers", sizes.barriers, MAX_BARRIERS),
            ("bytes of local memory", sizes.local, MAX_LOCAL),
        ):
            if value > most:
                raise FormatError(f"{name} has {value} {what}: at most {most} can be")
        if sizes.parameters % _WORD:
            raise FormatError(f"{name} has {sizes.parameters} bytes of parameters: words have 8")
        words = range(sizes.parameters // _WORD)
        self._code = code
        self._kernel = Kernel(
            name=name,
            offset=0,
            size=len(code),
            registers=sizes.registers,
            barriers=sizes.barriers,
            stack=sizes.local,
            shared=sizes.shared,
            parameters=tuple(Parameter(word, _WORD * word, _WORD) for word in words),
            parameter_base=0,
            parameter_size=sizes.parameters,
            banks=(),
            max_threads=None,
            required_block=(sizes.block, 1, 1),
            cluster=None,
            bare=True,
        )

    @property
    def size(self) -> int:
        """Bytes of memory that it takes: SMs fetch instructions ahead of those they run."""
        return align_up(len(self._code), IMAGE_ALIGN) + AFTER_CODE

    def kernel(self, name: str) -> Kernel:
        """The kernel, by its name. Raises InvalidIndex for another."""
        if name != self._kernel.name:
            raise InvalidIndex(f"no kernel {name!r}; there is {self._kernel.name}")
        return self._kernel

    def link(self, address: int, symbols: Mapping[str, int] | None = None) -> bytes:
        """What goes into memory at any address: the code as it is."""
        del address, symbols
        return self._code
