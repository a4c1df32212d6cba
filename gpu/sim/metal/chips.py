"""Apple's GPUs, and others in Macs, as far as Metal tells them apart.

"Metal Feature Set Tables" (Apple): "GPU families", "GPU implementation limits by family". Names are
those of products; sizes of memory are the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.devspec import did_you_mean
from gpu.core.errors import ConfigError

_APPLE1: Final = 1001
_MAC2: Final = 2002
_COMMON: Final = (3001, 3002, 3003)
_METAL3: Final = 5001
KNOWN_FAMILIES: Final = frozenset(
    [*range(1001, 1011), 2001, 2002, *_COMMON, 4001, 4002, _METAL3, 5002]
)
"""Those that MTLGPUFamily has."""


@dataclass(frozen=True)
class Chip:
    """One kind of GPU.

    Attributes:
        name: what `name` of the device says.
        families: of MTLGPUFamily, that it supports.
        prefix: what names of the classes of its objects begin with.
        unified: whether the CPU and it share memory.
        page: bytes of a page of the machine.
        constant_alignment: of offsets of buffers in the constant address space.
        memory: bytes that it is said to work with well.
        largest: bytes of the largest buffer.
        is_virtual: whether it is a guest's, which has no indirect command buffers.
    """

    name: str
    families: frozenset[int]
    prefix: str
    unified: bool = True
    page: int = 16 << 10
    constant_alignment: int = 4
    memory: int = 8 << 30
    largest: int = 4 << 30
    is_virtual: bool = False


def _apple(generation: int) -> frozenset[int]:
    apple = range(_APPLE1, _APPLE1 + generation)
    return frozenset([*apple, *_COMMON, *((_MAC2, 2001, _METAL3) if generation >= 7 else ())])


CHIPS: Final = {
    "apple7": Chip("Apple M1", _apple(7), "AGXG13XFamily"),
    "apple8": Chip("Apple M2", _apple(8), "AGXG14XFamily"),
    "apple9": Chip("Apple M3", _apple(9), "AGXG15XFamily"),
    "mac2": Chip(
        "AMD Radeon Pro 5500M",
        frozenset([_MAC2, 2001, *_COMMON, _METAL3]),
        "BronzeMtl",
        unified=False,
        page=4 << 10,
        constant_alignment=32,
    ),
    "paravirtual": Chip(
        "Apple Paravirtual device",
        frozenset([*_apple(5), _MAC2, 2001]),
        "AppleParavirt",
        is_virtual=True,
    ),
}
"""What `SIM` may name."""
SIMD_WIDTH: Final = 32
MOST_THREADS: Final = 1024
"""Threads of a threadgroup."""
THREADGROUP_BYTES: Final = 32 << 10
BUFFERS: Final = 31
INLINE_BYTES: Final = 4 << 10
"""Bytes that `setBytes:length:atIndex:` takes."""
THREADGROUP_ALIGN: Final = 16


def find_chip(name: str) -> Chip:
    """The chip of a name, in any case. Raises ConfigError."""
    found = CHIPS.get(name.strip().lower())
    if found is None:
        raise ConfigError(
            f"SIM={name}: there is no such GPU of Metal{did_you_mean(name, CHIPS)}; there are "
            f"{', '.join(CHIPS)}"
        )
    return found
