"""Kernel descriptors: 64 bytes beside the code that say what the hardware has to give a kernel.

Source: "Code Object V3 Kernel Descriptor" of LLVM's "User Guide for AMDGPU Backend"; the bits are
those of its header AMDHSAKernelDescriptor.h (autogen/amdhsa.py), in which some differ between
generations.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from gpu.autogen import amdhsa
from gpu.core.errors import FormatError
from gpu.core.register import register_from_table
from gpu.core.regs import Register
from gpu.drivers.am.target import Version, dotted, generation_of

DESCRIPTOR_SIZE: Final = amdhsa.SIZES["kernel_descriptor_t"]
DESCRIPTOR_ALIGN: Final = 64
ENTRY_ALIGN: Final = 256


def _names(major: int) -> dict[str, tuple[str, ...]]:
    """Which of the header's tables are of a register of a generation."""
    up_to = "GFX6_GFX11" if major <= 11 else "GFX12_PLUS"
    first = ["COMPUTE_PGM_RSRC1", f"COMPUTE_PGM_RSRC1_{up_to}", "COMPUTE_PGM_RSRC1_GFX9_PLUS"]
    first.append(f"COMPUTE_PGM_RSRC1_{'GFX6_GFX9' if major == 9 else 'GFX10_PLUS'}")
    third = {
        9: ("COMPUTE_PGM_RSRC3_GFX90A",),
        10: (*("COMPUTE_PGM_RSRC3_GFX10_GFX11", "COMPUTE_PGM_RSRC3_GFX10"),),
        11: (
            *("COMPUTE_PGM_RSRC3_GFX10_GFX11", "COMPUTE_PGM_RSRC3_GFX11"),
            "COMPUTE_PGM_RSRC3_GFX11_PLUS",
        ),
        12: ("COMPUTE_PGM_RSRC3_GFX12_PLUS", "COMPUTE_PGM_RSRC3_GFX11_PLUS"),
    }[major]
    late = () if major == 9 else ("COMPUTE_PGM_RSRC3_GFX10_PLUS",)
    return {
        "COMPUTE_PGM_RSRC1": tuple(first),
        "COMPUTE_PGM_RSRC2": ("COMPUTE_PGM_RSRC2", f"COMPUTE_PGM_RSRC2_{up_to}"),
        "COMPUTE_PGM_RSRC3": (*third, *late),
        "KERNEL_CODE_PROPERTY": ("KERNEL_CODE_PROPERTY",),
        "KERNARG_PRELOAD_SPEC": ("KERNARG_PRELOAD_SPEC",),
    }


@cache
def registers_of(major: int) -> dict[str, type[Register]]:
    """The classes of a descriptor's words with bits, by name, for GFX9 to GFX12."""
    made = {}
    for name, tables in _names(major).items():
        fields = [(field, *bits) for t in tables for field, bits in amdhsa.FIELDS[t].items()]
        wide = name.startswith("COMPUTE")
        made[name] = register_from_table(name, sorted(fields, key=_lowest), 32 if wide else 16)
    return made


def _lowest(field: tuple[str, int, int]) -> int:
    return field[1]


class KernelDescriptor(NamedTuple):
    """A descriptor, read for a generation.

    Attributes:
        version: of the graphics core that it is for.
        group_size: bytes of LDS of a group, without those that a launch adds.
        private_size: bytes of scratch memory of a lane.
        kernarg_size: bytes of the kernel's arguments; 0 where it does not tell.
        entry: where the code begins, from the descriptor on.
        rsrc1, rsrc2, rsrc3: registers for the dispatch.
        properties: which SGPRs are set, wave size.
        preload: which arguments are in SGPRs when it starts.
    """

    version: Version
    group_size: int
    private_size: int
    kernarg_size: int
    entry: int
    rsrc1: Register
    rsrc2: Register
    rsrc3: Register
    properties: Register
    preload: Register

    @property
    def wave32(self) -> bool:
        """Whether waves have 32 lanes, else 64."""
        return bool(self.properties["ENABLE_WAVEFRONT_SIZE32"])


def parse_descriptor(data: bytes, version: Version, *, strict: bool = True) -> KernelDescriptor:
    """Reads the 64 bytes of a descriptor for a graphics core of some version.

    Raises FormatError for another size and, where it is ``strict``, for reserved bits that are set;
    Unsupported for a version that is not known.
    """
    if len(data) != DESCRIPTOR_SIZE:
        raise FormatError(f"kernel descriptor of {len(data)} bytes: {DESCRIPTOR_SIZE} are wanted")
    generation_of(version)
    raw = amdhsa.kernel_descriptor_t.from_buffer_copy(data)
    classes = registers_of(version[0])
    descriptor = KernelDescriptor(
        version=version,
        group_size=raw.group_segment_fixed_size,
        private_size=raw.private_segment_fixed_size,
        kernarg_size=raw.kernarg_size,
        entry=raw.kernel_code_entry_byte_offset,
        rsrc1=classes["COMPUTE_PGM_RSRC1"].parse(raw.compute_pgm_rsrc1),
        rsrc2=classes["COMPUTE_PGM_RSRC2"].parse(raw.compute_pgm_rsrc2),
        rsrc3=classes["COMPUTE_PGM_RSRC3"].parse(raw.compute_pgm_rsrc3),
        properties=classes["KERNEL_CODE_PROPERTY"].parse(raw.kernel_code_properties),
        preload=classes["KERNARG_PRELOAD_SPEC"].parse(raw.kernarg_preload),
    )
    if strict:
        _check_reserved(raw, descriptor, version)
    return descriptor


def _check_reserved(
    raw: amdhsa.kernel_descriptor_t, descriptor: KernelDescriptor, version: Version
) -> None:
    if any((*raw.reserved0, *raw.reserved1, *raw.reserved3)):
        raise FormatError("kernel descriptor: reserved bytes are not 0")
    registers = (descriptor.rsrc1, descriptor.rsrc2, descriptor.rsrc3, descriptor.properties)
    for register in registers:
        unknown = register.value & ~sum(
            field.mask for name, field in type(register).fields.items() if not _is_reserved(name)
        )
        if unknown:
            raise FormatError(
                f"kernel descriptor: {type(register).__name__} {register.value:#x} has the bits"
                f" {unknown:#x}, which mean nothing on {dotted(version)}"
            )


def _is_reserved(name: str) -> bool:
    return name.startswith("RESERVED")
