"""Kernel descriptors: what an AQL packet's `kernel_object` points at, and what starts from it.

Layout: LLVM, "User Guide for AMDGPU Backend", "Kernel Descriptor" and "Initial Kernel Execution
State" (the order of the user SGPRs).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from gpu.core.bits import bits
from gpu.core.elf import SHF_ALLOC, parse_object
from gpu.core.errors import FormatError
from gpu.sim.isa.rdna.dispatch import Dispatch

DESCRIPTOR: Final = struct.Struct("<IIIIq20xIIIHH4x")
_REL64: Final = 5  # R_AMDGPU_REL64
_PROPERTIES: Final = (  # name, SGPRs, in the order in which they are put into s0 on
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
_WAVE32: Final = 1 << 10


@dataclass(frozen=True)
class KernelDescriptor:
    """The 64 bytes that describe a kernel.

    Attributes:
        address: GPU address of the descriptor.
        lds_bytes, scratch_bytes: fixed LDS of a workgroup, scratch of a lane.
        kernarg_bytes: size of the kernel arguments, 0 where it is not told.
        entry: GPU address of the code.
        rsrc1, rsrc2, rsrc3: the registers.
        properties: the bits of kernel_code_properties.
    """

    address: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int

    @classmethod
    def parse(cls, data: bytes, address: int) -> KernelDescriptor:
        """Raises FormatError for fewer than 64 bytes or for reserved fields that are set."""
        if len(data) < DESCRIPTOR.size:
            raise FormatError(f"a kernel descriptor has {DESCRIPTOR.size} bytes, not {len(data)}")
        lds, scratch, kernarg, reserved, entry, rsrc3, rsrc1, rsrc2, properties, _ = (
            DESCRIPTOR.unpack_from(data)
        )
        if reserved:
            raise FormatError(f"reserved bytes 12..15 of a kernel descriptor are {reserved:#x}")
        place = address + entry
        return cls(address, lds, scratch, kernarg, place, rsrc1, rsrc2, rsrc3, properties)

    def dispatch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        pointers: dict[str, int],
        dynamic_lds: int = 0,
        has_accumulators: bool = False,
    ) -> Dispatch:
        """A dispatch of it; `pointers` has values of user SGPRs by name, missing ones are 0."""
        users = []
        for bit, (name, count) in enumerate(_PROPERTIES):
            if self.properties >> bit & 1:
                value = pointers.get(name, 0)
                users += [value >> 32 * number & 0xFFFFFFFF for number in range(count)]
        users += [0] * (bits(self.rsrc2, 5, 1) - len(users))
        return Dispatch.of_resources(
            *(self.rsrc1, self.rsrc2, 32 if self.properties & _WAVE32 else 64),
            rsrc3=self.rsrc3 if has_accumulators else None,
            pc=self.entry,
            grid=grid,
            block=block,
            user_sgprs=tuple(users),
            lds_bytes=self.lds_bytes + dynamic_lds,
            scratch_bytes=self.scratch_bytes,
        )


@dataclass(frozen=True)
class CodeObject:
    """A relocatable object of one or more kernels, placed in one image.

    Attributes:
        image: the loaded sections, one behind the other, to be put at a multiple of 4096.
        descriptors: kernel name -> offset of its descriptor in the image.
    """

    image: bytes
    descriptors: dict[str, int]

    def descriptor(self, name: str, base: int) -> KernelDescriptor:
        """The descriptor of a kernel when the image lies at `base`."""
        offset = self.descriptors[name]
        data = self.image[offset : offset + DESCRIPTOR.size]
        return KernelDescriptor.parse(data, base + offset)


def place_object(data: bytes) -> CodeObject:
    """Lays out an AMD GPU object and resolves the entries of its kernels.

    Raises FormatError for a malformed object or another kind of relocation.
    """
    found = parse_object(data)
    image = bytearray()
    places: dict[int, int] = {}
    for section in found.sections:
        if section.flags & SHF_ALLOC and section.size:
            image += bytes(-len(image) % max(section.align, 1))
            places[section.index] = len(image)
            image += section.content
    for relocation in found.relocations:
        if relocation.section not in places:
            continue
        if relocation.type != _REL64:
            raise FormatError(f"relocation type {relocation.type} in an AMD GPU object")
        symbol = found.symbols[relocation.symbol]
        place = places[relocation.section] + relocation.offset
        value = places[symbol.section] + symbol.value + relocation.addend - place
        struct.pack_into("<q", image, place, value)
    descriptors = {
        symbol.name.removesuffix(".kd"): places[symbol.section] + symbol.value
        for symbol in found.symbols
        if symbol.name.endswith(".kd") and symbol.section in places
    }
    return CodeObject(bytes(image), descriptors)
