"""Adreno GPUs that are modelled, and what differs between them.

Numbers of the kernel driver are of adreno-gpulist.h (qualcomm-linux/kgsl), those of shader
processors of Mesa's freedreno_devices.py. KGSL never drove an a690, whose kernel driver is msm: its
row has what KGSL says of the a660, whose generation it is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.core.devspec import did_you_mean
from gpu.core.errors import ConfigError


class Protected(NamedTuple):
    """Registers that indirect buffers may not write, and where not `readable` not read either."""

    first: int
    last: int
    readable: bool


class Chip(NamedTuple):
    """A kind of GPU.

    Attributes:
        chip_id: as DEVICE_INFO tells it: core, major, minor, patch from the highest byte on.
        gmem: bytes of its memory for tiles.
        bank_bit: highest bit of addresses that chooses a memory bank.
        io_coherent: whether it can look into the CPU's caches.
        lpac: whether it has a second compute queue, and so a second set of some registers.
        protected: see `Protected`; a register that no row names is free.
        cores: shader processors.
        fibers: threads that one of them holds, for whom private memory has to be there.
        vectors: registers of 4 x 32 bits for each of the 128 lanes that share a register file.
        instruction_cache: units of 128 bytes.
    """

    name: str
    chip_id: int
    gmem: int
    bank_bit: int
    io_coherent: bool
    lpac: bool
    protected: tuple[Protected, ...]
    cores: int
    fibers: int
    vectors: int
    instruction_cache: int

    @property
    def revision(self) -> int:
        """The number in its name."""
        return int(self.name[1:])


def _protected(text: str) -> tuple[Protected, ...]:
    """Rows of first-last in hexadecimal; a "r" behind one says that it may be read."""
    rows = []
    for row in text.split():
        span = row.rstrip("r")
        first, _, last = span.partition("-")
        rows.append(Protected(int(first, 16), int(last or first, 16), row.endswith("r")))
    return tuple(rows)


_A630: Final = _protected(
    "0-4ffr 501-506r 50b-7ffr 50e 510 534 800-882 8a0-8a8 8ab-8cf 8d0-98cr 900-94d 98d-bff e00-e01"
    " e03-e0f 3c00-3cc3 3cc4-5cc3r 8630-87ff 8e00 8e08 8e50-8e6f 9624-97ff 9e70-9e71 9e78-9fff"
    " a630-a7ff ae02 ae50-b17f b604 be02-be03 be20-d5ff f000-fbff fc00-11bffr 11c00"
)
_A660: Final = _protected(
    "0-4ffr 501-506r 50b-7ffr 50e 510 534 800-882 8a0-8a8 8ab-8cf 8d0-98cr 900-94d 98d-bff e00-e01"
    " e03-e0f 3c00-3cc3 3cc4-5cc3r 8630-87ff 8e00 8e08 8e50-8e6f 8e80-90ff 9624-97ff 9e60-9e71"
    " 9e78-9fff a630-a7ff ae02 ae50-af7f b604 b608-b60e be02-be03 be20-bf7f d000-d5ff f000-fbff"
    " fc00-11bffr 18400-1a3ff 1a400-1c3ff 1c400-1e3ff 1f400-1f843 1f844-1f8bfr 1f860 1f887-1f8a2"
    " 1f8c0"
)
_KIB: Final = 1 << 10
_FIRST: Final = 128 * 16  # fibers of a core, of the first generation
CHIPS: Final = {
    chip.name: chip
    for chip in (
        Chip("a618", 0x06010800, 512 * _KIB, 14, True, False, _A630, 1, _FIRST, 96, 64),
        Chip("a630", 0x06030001, 1024 * _KIB, 15, True, False, _A630, 2, _FIRST, 96, 64),
        Chip("a640", 0x06040001, 1024 * _KIB, 15, True, False, _A630, 2, 4 * _FIRST, 96, 64),
        Chip("a660", 0x06060001, 1536 * _KIB, 16, True, True, _A660, 3, 2 * _FIRST, 64, 127),
        Chip("a690", 0x06090000, 4096 * _KIB, 16, True, True, _A660, 8, 2 * _FIRST, 64, 127),
    )
}
"""By name."""


def find_chip(name: str) -> Chip:
    """The chip of a name. Raises ConfigError."""
    if name not in CHIPS:
        raise ConfigError(f"there is no model of {name!r}{did_you_mean(name, CHIPS)}")
    return CHIPS[name]
