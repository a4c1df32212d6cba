"""Signed code of falcons: what the boot ROM compares before it starts any.

A boot ROM (BROM) takes code that is marked secure in instruction memory, and a signature (RSA-3K)
that lies in data memory where a register says. Each fuse version of a ucode has a signature of its
own (kernel_gsp_falcon_ga102.c, kernel_gsp_fwsec.c). No model can run such code: it is known by its
bytes, and `gpu.sim.nv.pci.securecode` acts as it would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

SIGNATURE_BYTES: Final = 384
RSA3K: Final = 1
BLOCK: Final = 256


class Engine(Enum):
    """A falcon: what it is called, and its bit in masks of engines (U)."""

    GSP = 0x400
    SEC2 = 0x1


class Signed(NamedTuple):
    """An image.

    Attributes:
        name: FWSEC, booter_load and so on.
        engine: that it is for.
        ucode_id: its number, by which fuses have its version.
        code, data: of the two memories of the falcon; code is addressed from `entry` on.
        entry: where it starts.
        signature_at: where in the data the signature is.
        signatures: by fuse version.
        changeable: parts of the data that are a driver's.
    """

    name: str
    engine: Engine
    ucode_id: int
    code: bytes
    data: bytes
    entry: int
    signature_at: int
    signatures: Mapping[int, bytes]
    changeable: tuple[range, ...] = ()


class Loaded(NamedTuple):
    """What a driver has put into a falcon.

    Attributes:
        blocks: of instruction memory, by the virtual address that each has: bytes, and security.
        data: all of data memory.
        algorithm, ucode_id, engine_mask, signature_at: the registers of the boot ROM.
        start: the boot vector.
    """

    blocks: Mapping[int, tuple[bytes, int]]
    data: bytes
    algorithm: int
    ucode_id: int
    engine_mask: int
    signature_at: int
    start: int


def why_unsigned(image: Signed, loaded: Loaded, version: int) -> Iterator[tuple[int, str]]:
    """Why the boot ROM does not start it: a code of the model's own (U), and words."""
    if loaded.algorithm != RSA3K:
        yield 0x11, f"MOD_SEL is {loaded.algorithm}, {RSA3K} (RSA-3K) wanted"
    if loaded.engine_mask != image.engine.value:
        yield 0x12, f"ENGIDMASK is {loaded.engine_mask:#x}, {image.engine.value:#x} wanted"
    if loaded.start != image.entry:
        yield 0x13, f"BOOTVEC is {loaded.start:#x}, {image.entry:#x} wanted"
    found = b""
    for address in range(image.entry, image.entry + len(image.code), BLOCK):
        block, security = loaded.blocks.get(address, (b"", 1))
        if not security:
            yield 0x14, f"instruction memory at {address:#x} is not secure"
        found += block
    if found[: len(image.code)] != image.code:
        yield 0x15, f"instruction memory is not {image.name}'s"
    if loaded.signature_at != image.signature_at:
        yield 0x16, f"PARAADDR is {loaded.signature_at:#x}, {image.signature_at:#x} wanted"
    place = range(image.signature_at, image.signature_at + SIGNATURE_BYTES)
    given = loaded.data[place.start : place.stop]
    if given != image.signatures[version]:
        other = next((v for v, bytes_ in image.signatures.items() if bytes_ == given), None)
        said = "none of the image's" if other is None else f"fuse version {other}'s"
        yield 0x17, f"the signature is {said}, the fuses have version {version}"
    masked = (mask(image, data) for data in (image.data, loaded.data))
    if len({*masked}) > 1:
        yield 0x18, f"data memory is not {image.name}'s"


def mask(image: Signed, data: bytes) -> bytes:
    """The data without what is not signed."""
    left = bytearray(data[: len(image.data)])
    places = (range(image.signature_at, image.signature_at + SIGNATURE_BYTES), *image.changeable)
    for place in places:
        left[place.start : place.stop] = bytes(len(place))
    return bytes(left)
