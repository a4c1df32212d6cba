"""What GSP and FSP are given, and what a ROM holds, in words: `gpu decode --kind nv-...`.

A line has an offset, a field and its value; what is wrong with a value stands behind it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.errors import FormatError
from gpu.drivers.nv.pci.images import read
from gpu.drivers.nv.pci.msgq import ELEMENT, HEAD, RPC, checksum
from gpu.drivers.nv.pci.vbios import find_fwsec, read_vbios

_FUNCTION, _EVENT = "NV_VGPU_MSG_FUNCTION_", "NV_VGPU_MSG_EVENT_"
_NAMES: Final = {
    value: name.removeprefix(start)
    for start in (_FUNCTION, _EVENT)
    for name, value in vars(gsp).items()
    if name.startswith(start)
}
_KINDS: Final = {0x00: "VBIOS", 0x03: "UEFI", 0xE0: "more of the VBIOS"}
_PACKET: Final = 8  # MCTP's and NVDM's words
_SHOWN: Final = 16


def _fields(
    value: ctypes.Structure, base: int = 0, prefix: str = ""
) -> Iterator[tuple[int, str, str]]:
    """Offset, name and value of each field, nested ones too."""
    for name, *_ in value._fields_:
        at = base + getattr(type(value), name).offset
        found = getattr(value, name)
        if isinstance(found, ctypes.Structure):
            yield from _fields(found, at, f"{prefix}{name}.")
        elif isinstance(found, ctypes.Array):
            data = bytes(found)
            rest = "..." if len(data) > _SHOWN else ""
            yield at, f"{prefix}{name}", f"{data[:_SHOWN].hex()}{rest} ({len(data)} bytes)"
        else:
            yield at, f"{prefix}{name}", f"{found:#x}"


def _line(at: int, name: str, value: str, more: str = "") -> str:
    return f"{at:#06x}  {name:32} {value}{f'  {more}' if more else ''}"


def decode_meta(data: bytes) -> Sequence[str]:
    """`GspFwWprMeta`. Raises FormatError where there are fewer bytes."""
    meta = read(gsp.GspFwWprMeta, data, 0, "WPR meta")
    told = {
        "magic": "" if meta.magic == gsp.GSP_FW_WPR_META_MAGIC else "wrong",
        "revision": "" if meta.revision == gsp.GSP_FW_WPR_META_REVISION else "wrong",
        "verified": "by booter" if meta.verified == gsp.GSP_FW_WPR_META_VERIFIED else "",
    }
    return [_line(at, name, value, told.get(name, "")) for at, name, value in _fields(meta)]


def decode_cot(data: bytes) -> Sequence[str]:
    """A chain of trust, or FSP's answer, with or without the packet's words.

    Raises FormatError for another length or kind of message.
    """
    lines: list[str] = []
    kind, at = gsp.NVDM_TYPE_COT, 0
    if len(data) != ctypes.sizeof(gsp.NVDM_PAYLOAD_COT):
        if len(data) < _PACKET:
            raise FormatError(
                f"a packet for FSP has {_PACKET} bytes at least, here are {len(data)}"
            )
        mctp, nvdm = (int.from_bytes(data[n : n + 4], "little") for n in (0, 4))
        kind, at = nvdm >> 24, _PACKET
        whole = "the whole message" if mctp >> 30 == 3 else "a part of a message"
        lines += [_line(0, "MCTP", f"{mctp:#010x}", whole)]
        lines += [_line(4, "NVDM", f"{nvdm:#010x}", f"vendor {nvdm >> 8 & 0xFFFF:#06x}, {kind:#x}")]
    if kind not in (gsp.NVDM_TYPE_COT, gsp.NVDM_TYPE_FSP_RESPONSE):
        raise FormatError(f"NVDM of kind {kind:#x}: {gsp.NVDM_TYPE_COT:#x} and 0x15 are known")
    answer = kind == gsp.NVDM_TYPE_FSP_RESPONSE
    struct_type = gsp.NVDM_PAYLOAD_COMMAND_RESPONSE if answer else gsp.NVDM_PAYLOAD_COT
    body = read(struct_type, data, at, "FSP's packet")
    return lines + [_line(place, name, value) for place, name, value in _fields(body, at)]


def decode_elements(data: bytes) -> Sequence[str]:
    """Elements of a queue, one message behind the other, up to one that is none.

    Raises FormatError where the first is none.
    """
    lines: list[str] = []
    at = 0
    while at < len(data):
        try:
            element = read(gsp.GSP_MSG_QUEUE_ELEMENT, data, at, "an element")
            length = HEAD + element.rpc.length
            if element.rpc.signature != gsp.NV_VGPU_MSG_SIGNATURE_VALID or not element.elemCount:
                raise FormatError(f"no message at {at:#x}: signature {element.rpc.signature:#x}")
        except FormatError:
            if not lines:
                raise
            return [*lines, f"{at:#06x}  no more messages"]
        whole = data[at : at + length]
        total = checksum(whole)
        right = "cut off" if len(whole) < length else "wrong" if total else "right"
        name = _NAMES.get(element.rpc.function, "unknown")
        told = {"checkSum": right, "rpc.function": name}
        fields = _fields(element, at)
        lines += [_line(place, name, value, told.get(name, "")) for place, name, value in fields]
        payload = whole[HEAD + RPC :]
        if payload:
            shown = f"{payload[:_SHOWN].hex()}{'...' if len(payload) > _SHOWN else ''}"
            lines.append(_line(at + HEAD + RPC, "payload", f"{shown} ({len(payload)} bytes)"))
        at += element.elemCount * ELEMENT
    return lines


def decode_vbios(data: bytes) -> Sequence[str]:
    """A ROM: its images, and FWSEC's code. Raises FormatError for what is none."""
    vbios = read_vbios(lambda at: int.from_bytes(data[at : at + 4].ljust(4, b"\xff"), "little"))
    lines = [
        _line(image.start, "image", f"{image.size:#x} bytes", _KINDS.get(image.kind, ""))
        for image in vbios.images
    ]
    fwsec = find_fwsec(vbios)
    code = fwsec.code
    start = vbios.images[0].start + vbios.data.index(code.image)
    values = {
        "FWSEC: instructions": f"{code.code[1]:#x} bytes, to run at {code.code_address:#x}",
        "FWSEC: data": f"{code.data[1]:#x} bytes, interface at {fwsec.interface:#x}",
        "FWSEC: signature": f"at {code.patch - code.data[0]:#x} of data",
        "FWSEC: signatures": f"{len(code.signatures)}, of fuse versions {code.versions:#x}",
        "FWSEC: ucode": f"{code.ucode_id}, engines {code.engine_mask:#x}",
    }
    return lines + [_line(start, name, value) for name, value in values.items()]
