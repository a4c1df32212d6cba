"""Firmware files made by hand, from amdgpu_ucode.h: nothing of the driver's is used."""

from __future__ import annotations

import struct

COMMON = 32


def common(total: int, header: int, version: tuple[int, int], start: int, size: int) -> bytes:
    """The header that all files begin with."""
    return struct.pack("<IIHHHHIIII", total, header, *version, 1, 0, 0x77, size, start, 0)


def simple(version: tuple[int, int], fields: tuple[int, ...], payload: bytes, size: int) -> bytes:
    """A file: the common header, fields of its own, and what is loaded, ``size`` bytes of it."""
    header = COMMON + 4 * len(fields)
    own = struct.pack(f"<{len(fields)}I", *fields)
    return common(header + len(payload), header, version, header, size) + own + payload


def secure(parts: list[tuple[int, bytes]], minor: int = 0, others: int = 0) -> bytes:
    """``psp_*_sos.bin``; the last ``others`` components are for other boards."""
    counts = (len(parts), len(parts) - others) if minor else (len(parts),)
    fields, payload = list(counts), b""
    for kind, data in parts:
        fields += [kind, 1, len(payload), len(data)]
        payload += data
    return simple((2, minor), tuple(fields), payload, len(payload))


def core(code: bytes, data: bytes, start: int) -> bytes:
    """``gc_*_mec.bin`` and the like."""
    at = COMMON + 4 * 7
    fields = (1, len(code), at, len(data), at + len(code), start & 0xFFFF_FFFF, start >> 32)
    return simple((2, 0), fields, code + data, len(code))


def rlc(minor: int, pieces: dict[str, bytes], code: bytes) -> bytes:
    """``gc_*_rlc.bin``: pieces are ``cntl``, ``gpm``, ``srm``, ``iram``, ``dram``, ``p``, ``v``."""
    count = 18 + 13 + (4 if minor >= 2 else 0) + (8 if minor >= 3 else 0)
    at = COMMON + 4 * count + len(code)
    places: dict[str, tuple[int, int]] = {}
    payload = code
    for name, data in pieces.items():
        places[name] = (len(data), at)
        payload += data
        at += len(data)
    fields = [0] * 18 + [0]
    for name in ("cntl", "gpm", "srm"):
        fields += [1, 1, *places.get(name, (0, 0))]
    if minor >= 2:
        fields += [*places.get("iram", (0, 0)), *places.get("dram", (0, 0))]
    if minor >= 3:
        fields += [1, 1, *places.get("p", (0, 0)), 1, 1, *places.get("v", (0, 0))]
    return simple((2, minor), tuple(fields), payload, len(code))


def imu(code: bytes, data: bytes) -> bytes:
    """``gc_*_imu.bin``."""
    return simple((1, 0), (len(code), 0, len(data), 0), code + data, len(code) + len(data))


def sdma(context: bytes, control: bytes) -> bytes:
    """``sdma_6_*.bin``."""
    at = COMMON + 4 * 8 + len(context)
    return simple(
        (2, 0), (1, len(context), 0, 0, at, len(control), 0, 0), context + control, len(context)
    )


def sdma_one(code: bytes) -> bytes:
    """``sdma_7_*.bin``."""
    return simple((3, 0), (1, COMMON + 12, len(code)), code, len(code))


def smu(code: bytes, minor: int = 1) -> bytes:
    """``smu_*.bin``, with power-play tables behind the code."""
    return simple((2, minor), (0x1000, 1, 0), code + b"tables", len(code))
