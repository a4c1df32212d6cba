"""What packets and launches depend on of an AMD GPU: its generation, its units, its queues' extras.

Sources: LLVM's "User Guide for AMDGPU Backend" (what a chip of which number has), the kernel's
`kfd_device.c` (which versions there are), and the register tables in autogen/amd.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue, Unsupported
from gpu.drivers.am.graphics_core import RegisterTable, gc_9_4_3, gc_10_3_0, gc_11_0_0, gc_12_0_0
from gpu.hcq.symbol import GpuVA

Version = tuple[int, int, int]
"""Of a block of the chip: major, minor, stepping."""


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What all chips of one kind have in common.

    Attributes:
        name: for messages.
        registers: gives those of its graphics core.
        has_gcr: caches are controlled by GCR_CNTL, as from GFX10 on, not by CP_COHER_CNTL.
        has_glm: there is a cache of metadata that fences write back, as up to GFX11.
        has_wave32: waves may have 32 lanes.
        scratch_granule: bytes of scratch memory of a wave come in multiples of it.
        architected_scratch: the dispatcher is told where scratch memory is, not the kernel.
        counts_waves_per_engine: TMPRING_SIZE has the waves of one shader engine, not of all.
        needs_priv: RSRC1.PRIV must be set, or the trap handler that saves waves goes wrong.
        lds_block: bytes that RSRC2.LDS_SIZE counts.
        lds_size: bytes of LDS of a group, at most.
    """

    name: str
    registers: Callable[[], RegisterTable]
    has_gcr: bool
    has_glm: bool
    has_wave32: bool
    scratch_granule: int
    architected_scratch: bool
    counts_waves_per_engine: bool
    needs_priv: bool
    lds_block: int = 512
    lds_size: int = 64 << 10


_GFX90A: Final = Generation(
    name="GFX90A",
    registers=gc_9_4_3,
    has_gcr=False,
    has_glm=False,
    has_wave32=False,
    scratch_granule=1024,
    architected_scratch=False,
    counts_waves_per_engine=False,
    needs_priv=False,
)
_GFX940: Final = replace(_GFX90A, name="GFX940", architected_scratch=True)
_GFX950: Final = replace(_GFX940, name="GFX950", lds_block=1280, lds_size=160 << 10)
_GFX10: Final = replace(
    _GFX90A,
    name="GFX10",
    registers=gc_10_3_0,
    has_gcr=True,
    has_glm=True,
    has_wave32=True,
)
_GFX11: Final = replace(
    _GFX10,
    name="GFX11",
    registers=gc_11_0_0,
    scratch_granule=256,
    architected_scratch=True,
    counts_waves_per_engine=True,
    needs_priv=True,  # as tinygrad's ops_amd.py sets it on GFX11; no header tells
)
_GFX12: Final = replace(_GFX11, name="GFX12", registers=gc_12_0_0, has_glm=False, needs_priv=False)

# (major, minor) -> generation; GFX9 of which only CDNA 2 and later are of interest by the third.
_GENERATIONS: Final[dict[tuple[int, int], Generation]] = {
    (9, 4): _GFX940,
    (9, 5): _GFX950,
    (10, 1): _GFX10,
    (10, 3): _GFX10,
    (11, 0): _GFX11,
    (11, 5): _GFX11,
    (12, 0): _GFX12,
}


def generation_of(version: Version) -> Generation:
    """The generation of a graphics core. Raises Unsupported for one that is not in the table."""
    if version == (9, 0, 10):
        return _GFX90A
    found = _GENERATIONS.get(version[:2])
    if found is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in _GENERATIONS)
        raise Unsupported(f"graphics core {dotted(version)}: known are 9.0.10, {known}")
    return found


def dotted(version: Version) -> str:
    """A version as text, such as 11.0.0."""
    return ".".join(map(str, version))


def parse_gfx_version(number: int) -> Version:
    """The version in KFD's ``gfx_target_version``: 110001 is 11.0.1 (two decimal digits each)."""
    if not 0 < number < 1_000_000:
        raise InvalidValue(f"gfx_target_version {number}: at most six digits are expected")
    return number // 10_000, number // 100 % 100, number % 100


def parse_gfx_name(name: str) -> Version:
    """The version in a chip's name: gfx90a is (9, 0, 10). Raises InvalidValue for other text."""
    match = re.fullmatch(r"gfx([0-9]+)([0-9a-f])([0-9a-f])", name)
    if match is None:
        raise InvalidValue(f"chip {name!r}: a name such as gfx1100 or gfx90a is wanted")
    return int(match.group(1)), int(match.group(2), 16), int(match.group(3), 16)


class Wake(NamedTuple):
    """How a queue wakes the host: writes an event's number into its slot, and interrupts.

    Attributes:
        slot: of the event, in the page of events.
        event: its number, which the interrupt carries too.
    """

    slot: GpuVA
    event: int


class Target(NamedTuple):
    """A GPU, as far as packets depend on it.

    Attributes:
        version: of the graphics core, (11, 0, 0) for gfx1100.
        sdma: version of the copy engine, (6, 0, 0) beside that one.
        shader_engines: how many there are.
        compute_units: how many there are, in all.
        scratch_waves: how many waves of a unit may have scratch memory.
        xccs: in how many XCCs, the dies with compute units, each launch runs.
        priv: whether launches set RSRC1.PRIV where the generation is said to need it.
        arrays: of a shader engine.
        units_per_array: compute units that an array has room for.
    """

    version: Version
    sdma: Version
    shader_engines: int = 1
    compute_units: int = 1
    scratch_waves: int = 32
    xccs: int = 1
    priv: bool = True
    arrays: int = 1
    units_per_array: int = 1

    @property
    def generation(self) -> Generation:
        """Raises Unsupported for a version that is not known."""
        return generation_of(self.version)
