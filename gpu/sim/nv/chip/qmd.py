"""QMDs: decoding by bit tables, and every check before a grid may run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from gpu.core.bits import align_up, bits
from gpu.sim.executor import Size3
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.nv.chip.errors import graphics
from gpu.sim.nv.chip.launch import Bank

SIZES: Final = {3: 256, 4: 384, 5: 384}
SCHEDULE: Final = 1  # DEPENDENT_QMD_ACTION_*
COPY_SCHEDULE: Final = 3
_BANKS: Final = 8
_RELEASES: Final = 3
_REGISTER_FILE: Final = 65536
_GRID_CTA: Final = 2  # QMD_TYPE_*
_GRID_CLUSTER: Final = 3

# Queues, saved grids, latches: features that no driver of ours uses, so their fields must be 0.
_UNUSED: Final = re.compile(
    r"INNER_|OUTER_|HW_ONLY_|CIRCULAR_|\w*_RESUME|\w*LATCH|IS_QUEUE|SELF_COPY|QUEUE_ENTRIES"
    r"|CWD_REFERENCE|DEPENDENCE_COUNTER|TPC_DISABLE|SM_DISABLE|RELEASE\d?_RESERVED|COALESCE"
    r"|\w*SUB_TASK|HOLD_|PRIORITY_DEMOTE|INCOMPLETE_BOX"
)


class Field(NamedTuple):
    """Bits `high` to `low` of the first of `times` fields, which are `stride` bits apart."""

    high: int
    low: int
    times: int
    stride: int


@dataclass(frozen=True, slots=True)
class Release:
    """A semaphore that the end of a grid releases.

    Attributes:
        words: 4 with a time stamp, or 1 or 2 without.
        wide: whether the payload has 64 bits.
    """

    address: int
    payload: int
    words: int
    wide: bool
    trap: bool


class Dependent(NamedTuple):
    """A QMD that is scheduled at the end of another one's grid.

    Attributes:
        invalidate: whether it is read anew then (QMD_INVALIDATE_COPY_SCHEDULE).
        prefetch: whether it may be read as soon as the other one starts.
    """

    address: int
    invalidate: bool
    prefetch: bool


@cache
def parse_table(text: str) -> tuple[dict[str, Field], int]:
    """A table of `qmd_fields`: the fields by name, and the mask of all bits that have one."""
    fields = {}
    mask = 0
    for part in " ".join(text.split()).split(";")[:-1]:
        name, where = part.split()
        name, _, array = name.partition("[")
        count, stride = map(int, array.rstrip("]").split("*")) if array else (1, 0)
        high, low = map(int, where.split(":"))
        fields[name] = Field(high, low, count, stride)
        for i in range(count):
            mask |= (2 << high + i * stride) - (1 << low + i * stride)
    return fields, mask


class Qmd:
    """One QMD of a chip's version. Raises ChannelError from every getter that checks."""

    def __init__(self, chip: Chip, data: bytes):
        self.chip = chip
        self.data = data
        self._value = int.from_bytes(data, "little")
        self._fields, self._mask = parse_table(chip.qmd_text)

    def get(self, name: str, index: int = 0) -> int:
        """A field; of an array the one with an index."""
        field = self._fields[name]
        assert index < field.times, name
        at = index * field.stride
        return bits(self._value, field.high + at, field.low + at)

    def either(self, *names: str, index: int = 0) -> int:
        """The field that this version has, of names that versions give it."""
        name = next(name for name in names if name in self._fields)
        return self.get(name, index)

    def address(self, name: str, shift: int = 0, index: int = 0) -> int:
        """An address of two fields; "*" in the name stands for LOWER and UPPER."""
        low = self.get(name.replace("*", "LOWER"), index)
        return (self.get(name.replace("*", "UPPER"), index) << 32 | low) << shift

    def check_version(self) -> None:
        """The version must be the chip's, and nothing may be set that has no meaning."""
        major = self.get("QMD_MAJOR_VERSION")
        minor = self.either("QMD_MINOR_VERSION", "QMD_VERSION")
        if (major, minor) != (self.chip.qmd_major, 0):
            raise graphics(
                f"QMD version {major}.{minor}; {self.chip.name} takes {self.chip.qmd_major}.0"
            )
        stray = self._value & ~self._mask
        if stray:
            raise graphics(f"reserved bit {stray.bit_length() - 1} of the QMD is set")
        for name, field in self._fields.items():
            used = _UNUSED.match(name) and any(self.get(name, i) for i in range(field.times))
            if used:
                raise graphics(f"QMD field {name} is set, which the model does not know")

    def sizes(self) -> tuple[Size3, Size3, Size3]:
        """Grid, block and cluster."""
        grid = Size3(
            self.either("GRID_WIDTH", "CTA_RASTER_WIDTH"),
            self.either("GRID_HEIGHT", "CTA_RASTER_HEIGHT"),
            self.either("GRID_DEPTH", "CTA_RASTER_DEPTH"),
        )
        if not all(grid) or grid.x >= 1 << 31:  # the others have 16 bits
            raise graphics(f"a grid of {tuple(grid)} blocks; from 1 to 2^31 - 1, 65535, 65535")
        block = Size3(*(self.get(f"CTA_THREAD_DIMENSION{i}") for i in range(3)))
        if not all(block) or block.volume > 1024 or block.z > 64:
            raise graphics(f"a block of {tuple(block)} threads; at most 1024, and 64 deep")
        return grid, block, self._cluster(grid)

    def _cluster(self, grid: Size3) -> Size3:
        if self.chip.qmd_major == 3:
            return Size3(1, 1, 1)
        kind = self.get("QMD_TYPE")
        given = [self.get(f"GPC_CGA_{axis}") for axis in ("WIDTH", "HEIGHT", "DEPTH")]
        cluster = Size3(*(size or 1 for size in given))
        # Mesa's NVK leaves QMD_TYPE 0 on version 4 (nak/qmd.rs), and such grids run.
        plain = (0, _GRID_CTA) if self.chip.qmd_major == 4 else (_GRID_CTA,)
        wanted = (_GRID_CLUSTER,) if cluster.volume > 1 else plain
        if kind not in wanted:
            raise graphics(f"QMD_TYPE {kind} with clusters of {tuple(cluster)}; want {wanted}")
        if cluster.volume > 16 or any(a % b for a, b in zip(grid, cluster, strict=True)):
            raise graphics(f"clusters of {tuple(cluster)} in a grid of {tuple(grid)}")
        return cluster

    def registers(self, block: Size3) -> int:
        """Registers of a thread, of which all warps of a block must fit into an SM."""
        count = self.either("REGISTER_COUNT", "REGISTER_COUNT_V")
        warps = align_up((block.volume + 31) // 32, 4)
        if not 1 <= count <= 255 or warps * align_up(32 * count, 256) > _REGISTER_FILE:
            raise graphics(
                f"{count} registers of each of {block.volume} threads; an SM has {_REGISTER_FILE}"
            )
        return count

    def barriers(self) -> int:
        """Barriers of a block."""
        count = self.get("BARRIER_COUNT")
        if count > 16:
            raise graphics(f"{count} barriers; there are 16")
        return count

    def shared_bytes(self) -> int:
        """Shared memory of a block, which must fit into the carve-outs."""
        if self.chip.qmd_major == 5:
            size = self.get("SHARED_MEMORY_SIZE_SHIFTED7") << 7
        else:
            size = self.get("SHARED_MEMORY_SIZE")
        if size % 128:
            raise graphics(f"{size:#x} bytes of shared memory are no multiple of 128")
        least, most, target = (
            self.get(f"{which}_SM_CONFIG_SHARED_MEM_SIZE") for which in ("MIN", "MAX", "TARGET")
        )
        legal = {kib // 4 + 1 for kib in self.chip.carveouts}
        if not {least, most, target} <= legal or not least <= target <= most:
            raise graphics(
                f"carve-outs MIN {least}, TARGET {target}, MAX {most}: in this order, each KiB / 4"
                f" + 1 of {self.chip.carveouts}"
            )
        if (least - 1) * 4096 < size:
            raise graphics(f"{size:#x} bytes of shared memory, and MIN is {least * 4 - 4} KiB")
        return size

    def program(self) -> int:
        """Address of the first instruction."""
        if self.chip.qmd_major == 5:
            return self.address("PROGRAM_ADDRESS_*_SHIFTED4", 4)
        address = self.address("PROGRAM_ADDRESS_*")
        if address % 16:
            raise graphics(f"program address {address:#x} is no multiple of 16")
        return address

    def prefetch(self) -> tuple[int, int]:
        """Address and bytes of what is fetched ahead."""
        size = self.get("PROGRAM_PREFETCH_SIZE") << 8
        return self.address("PROGRAM_PREFETCH_ADDR_*_SHIFTED", 8), size

    def local_bytes(self) -> tuple[int, int]:
        """Local memory of a thread, as LOW_SIZE and as HIGH_SIZE."""
        shift = 4 if self.chip.qmd_major == 5 else 0
        suffix = "_SHIFTED4" if shift else ""
        low = self.get(f"SHADER_LOCAL_MEMORY_LOW_SIZE{suffix}") << shift
        high = self.get(f"SHADER_LOCAL_MEMORY_HIGH_SIZE{suffix}") << shift
        if low % 16 or high % 16:
            raise graphics(f"local memory of {low:#x} and {high:#x} bytes: multiples of 16")
        return low, high

    def sass_version(self) -> int:
        """What the code was made for; 0 is not checked (Mesa leaves it so)."""
        version = self.get("SASS_VERSION")
        own = self.chip.sm_version >> 4 & 0xF0 | self.chip.sm_version & 0xF
        if version not in (0, own):
            raise graphics(f"SASS version {version:#x} on a chip of {own:#x}")
        return version

    def banks(self) -> tuple[Bank | None, ...]:
        """The constant banks."""
        return tuple(self._bank(i) for i in range(_BANKS))

    def _bank(self, index: int) -> Bank | None:
        if not self.get("CONSTANT_BUFFER_VALID", index):
            return None
        size = self.get("CONSTANT_BUFFER_SIZE_SHIFTED4", index) << 4
        if self.chip.qmd_major == 3:
            address = self.address("CONSTANT_BUFFER_ADDR_*", index=index)
        else:
            address = self.address("CONSTANT_BUFFER_ADDR_*_SHIFTED6", 6, index)
        if address % 64 or not 0 < size <= 64 << 10:
            raise graphics(
                f"constant bank {index} of {size:#x} bytes at {address:#x}: 16 bytes to 64 KiB, at"
                " a multiple of 64"
            )
        return Bank(address, size)

    def releases(self) -> list[Release]:
        """The semaphores that are released at the end."""
        found = [self._release(i) for i in range(_RELEASES)]
        return [release for release in found if release]

    def _release(self, index: int) -> Release | None:
        old = self.chip.qmd_major == 3

        def setting(name: str) -> int:
            return self.get(f"RELEASE{index}_{name}") if old else self.get(f"RELEASE_{name}", index)

        if not setting("ENABLE"):
            return None
        base = f"RELEASE{index}_ADDRESS_*" if old else f"RELEASE_SEMAPHORE{index}_ADDR_*"
        address = self.address(base)
        payload = self.address(base.replace("ADDRESS", "PAYLOAD").replace("ADDR_", "PAYLOAD_"))
        words = {0: 4, 1: 1, 2: 2}.get(setting("STRUCTURE_SIZE"), 0)
        if not words or setting("REDUCTION_ENABLE") or address % (4 * words):
            raise graphics(
                f"release {index} at {address:#x} of {words} words: aligned to its size, no"
                " reduction"
            )
        wide = bool(setting("PAYLOAD64B"))
        if wide and words == 1:
            raise graphics(f"release {index} of one word with a payload of 64 bits")
        if not wide and payload >> 32:
            raise graphics(f"release {index} of 32 bits with the payload {payload:#x}")
        return Release(address, payload, words, wide, bool(setting("TRAP_TYPE")))

    def dependents(self) -> list[Dependent]:
        """The QMDs that follow."""
        found = []
        parts = ("ENABLE", "ACTION", "PREFETCH")
        for i in range(2):
            indexed = self.chip.qmd_major == 4
            enable, action, prefetch = (
                self.get(f"DEPENDENT_QMD_{part}", i)
                if indexed
                else self.get(f"DEPENDENT_QMD{i}_{part}")
                for part in parts
            )
            if enable and action not in (SCHEDULE, COPY_SCHEDULE):
                raise graphics(f"dependent QMD action {action}, which the model does not know")
            if enable:
                address = self.get(f"DEPENDENT_QMD{i}_POINTER") << 8
                found.append(Dependent(address, action == COPY_SCHEDULE, bool(prefetch)))
        return found
