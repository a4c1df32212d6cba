"""Kernel descriptors and code objects as text."""

from __future__ import annotations

from gpu.autogen import amdhsa
from gpu.drivers.am.code.descriptor import DESCRIPTOR_SIZE, registers_of
from gpu.drivers.am.code.object import read_code_object
from gpu.drivers.am.target import Version, generation_of
from gpu.drivers.listing import Line, raw, register_text

_REGISTERS = {
    "compute_pgm_rsrc1": "COMPUTE_PGM_RSRC1",
    "compute_pgm_rsrc2": "COMPUTE_PGM_RSRC2",
    "compute_pgm_rsrc3": "COMPUTE_PGM_RSRC3",
    "kernel_code_properties": "KERNEL_CODE_PROPERTY",
    "kernarg_preload": "KERNARG_PRELOAD_SPEC",
}


def decode_descriptor(data: bytes, version: Version, offset: int = 0) -> list[Line]:
    """A line for each field of a descriptor. Raises Unsupported for an unknown version."""
    generation_of(version)
    lines: list[Line] = []
    for name, *_ in amdhsa.kernel_descriptor_t._fields_:
        place = getattr(amdhsa.kernel_descriptor_t, name)
        some = data[place.offset : place.offset + place.size]
        if name.startswith("reserved"):
            if any(some):
                lines += raw(some, offset + place.offset, f"{name}, which should be 0")
        elif len(some) < place.size:
            lines += raw(some, offset + place.offset, f"{name}, cut off", place.size)
        else:
            lines.append(_field(name, int.from_bytes(some, "little"), offset, version))
    rest = data[DESCRIPTOR_SIZE:]
    return lines + list(raw(rest, offset + DESCRIPTOR_SIZE, "behind the descriptor"))


def _field(name: str, number: int, offset: int, version: Version) -> Line:
    place = getattr(amdhsa.kernel_descriptor_t, name)
    text = f"{name} {number:#x}"
    if name in _REGISTERS:
        text = register_text(registers_of(version[0])[_REGISTERS[name]].parse(number))
    return Line(offset + place.offset, place.size, number, text)


def decode_code_object(data: bytes) -> list[str]:
    """The kernels of a code object: descriptors and arguments. Errors as of `read_code_object`."""
    found = read_code_object(data)
    image = found.image(0)
    out = [f"{found.target}, {found.size:#x} bytes"]
    for kernel in found.kernels.values():
        metadata, start = kernel.metadata, kernel.descriptor_offset
        out.append(f"kernel {kernel.name}, code at {kernel.entry_offset:#x}, descriptor:")
        descriptor = image[start : start + DESCRIPTOR_SIZE]
        out += map(str, decode_descriptor(descriptor, found.version, start))
        out += [f"  argument {a.offset:#x}, {a.size} bytes, {a.kind} {a.name}".rstrip()
                for a in metadata.arguments]  # fmt: skip
    return out
