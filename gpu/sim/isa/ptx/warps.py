"""What the warps of a grid begin with."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout, scheduler
from gpu.sim.isa.grid import GroupId, Start
from gpu.sim.isa.native import Library
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.program import Program
from gpu.sim.isa.waves import Bytes, aligned_bytes

_MXCSR: Final = 0x1F80  # all exceptions masked, to nearest; the direction is in bits 14:13
_LANES: Final = np.arange(wave.LANES, dtype=np.uint32)
_BEHIND: Final = 16  # bytes that may be read behind parameters
_AXES: Final = ("x", "y", "z")
Three = tuple[int, int, int]


@dataclass(frozen=True)
class GridShape:
    """What a grid starts with.

    Attributes:
        grid, block, cluster: blocks of the grid, threads of a block, blocks of a cluster.
        parameters: what the kernel is called with. Grids that differ in it alone begin alike, and
            compare equal.
        shared_bytes: shared memory of a block.
        shared_window, shared_window_size, local_window: generic addresses of those memories.
        barriers: how many a block has, at most 16.
    """

    grid: Three
    block: Three
    parameters: bytes = field(default=b"", compare=False)
    shared_bytes: int = 0
    cluster: Three = (1, 1, 1)
    shared_window: int = 0x7F00_0000_0000
    shared_window_size: int = 1 << 24
    local_window: int = 0x7F80_0000_0000
    barriers: int = 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // wave.LANES)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def start_of(engine: Library, program: Program, shape: GridShape) -> Start:
    """What the warps of a grid begin with."""
    arguments = np.zeros(len(shape.parameters) + _BEHIND, np.uint8)
    header = _header(engine, program, shape, arguments.ctypes.data)
    ids = [each for name in sorted(program.specials) for each in _ids(name, shape)]
    return Start(
        wave=wave.WARP,
        groups=shape.blocks,
        templates=_templates(program, shape, header),
        arguments=arguments[: len(shape.parameters)],
        ids=[each for each in ids if each.wrap > 1],
        lds_bytes=shape.shared_bytes,
        scratch_bytes=program.local_bytes * wave.LANES,
    )


def _templates(program: Program, shape: GridShape, header: bytes) -> npt.NDArray[np.uint8]:
    """The warps of a block as they begin."""
    count = shape.warps
    memory = aligned_bytes(count * program.end).reshape(count, program.end)
    memory[:] = _base(program, shape, header)
    rows = memory.view(np.uint32).reshape(count, -1, wave.LANES)
    flat = np.arange(count * wave.LANES, dtype=np.uint32)
    x, y, _ = shape.block
    values = {"%tid.x": flat % x, "%tid.y": flat // x % y, "%tid.z": flat // (x * y)}
    values["%warpid"] = flat // wave.LANES
    for name in program.specials & set(values):
        rows[:, wave.SPECIALS[name] // wave.ROW] = values[name].reshape(count, -1)
    left = shape.threads - np.arange(count) * wave.LANES
    masks = ((1 << np.minimum(left, wave.LANES)) - 1).astype(np.uint32)
    words = memory.view(np.uint32)
    words[:, wave.ALIVE // 4] = masks
    words[:, wave.EXEC // 4] = masks
    return memory


def _header(engine: Library, program: Program, shape: GridShape, parameters: int) -> bytes:
    header = bytearray(layout.HEADER)
    fields = {
        layout.LDS_SIZE: ("<I", shape.shared_bytes),
        layout.SCRATCH_SIZE: ("<I", program.local_bytes),
        layout.MXCSR32: ("<I", _MXCSR),
        layout.RESUME: ("<Q", program.address),
        layout.LOWEST: ("<I", layout.NOBODY),
        layout.LOOK: ("<I", scheduler.LOOK),
        wave.CODE: ("<Q", program.address),
        wave.ROUND_DOWN: ("<I", _MXCSR | 1 << 13),
        wave.ROUND_UP: ("<I", _MXCSR | 2 << 13),
        wave.ROUND_TOWARD_ZERO: ("<I", _MXCSR | 3 << 13),
        wave.RESOLVE: ("<Q", engine.address("resolve_lanes")),
        wave.PARAMETERS: ("<Q", parameters),
        wave.PARAMETER_SIZE: ("<Q", len(shape.parameters)),
        wave.SHARED_WINDOW: ("<Q", shape.shared_window),
        wave.SHARED_WINDOW_SIZE: ("<Q", shape.shared_window_size),
        wave.LOCAL_WINDOW: ("<Q", shape.local_window),
    }
    for place, (form, value) in fields.items():
        struct.pack_into(form, header, place, value)
    return bytes(header)


def _base(program: Program, shape: GridShape, header: bytes) -> Bytes:
    """What all warps of the grid have in common."""
    base = aligned_bytes(program.end)
    base[: len(header)] = np.frombuffer(header, np.uint8)
    for place, data in program.constants.items():
        base[place : place + len(data)] = np.frombuffer(data, np.uint8)
    for name in program.specials:
        _fill_special(base, name, shape)
    for window, place in program.windows.items():
        value = struct.unpack_from("<Q", header, window)[0]
        base[place : place + 2 * wave.ROW].view(np.uint64)[:] = value
    return base


def _fill_special(base: npt.NDArray[np.uint8], name: str, shape: GridShape) -> None:
    """A special register that is the same for all blocks and warps."""
    one = np.uint32(1)
    blocks = tuple(g // c for g, c in zip(shape.grid, shape.cluster, strict=True))
    in_cluster = shape.cluster[0] * shape.cluster[1] * shape.cluster[2]
    same: dict[str, int | npt.NDArray[np.uint32]] = {
        "%laneid": _LANES,
        "%lanemask_eq": one << _LANES,
        "%lanemask_lt": (one << _LANES) - one,
        "%lanemask_le": (np.uint32(2) << _LANES) - one,
        "%lanemask_ge": ~((one << _LANES) - one),
        "%lanemask_gt": ~((np.uint32(2) << _LANES) - one),
        "%nwarpid": shape.warps,
        "%total_smem_size": shape.shared_bytes,
        "%aggr_smem_size": shape.shared_bytes,
        "%cluster_nctarank": in_cluster,
        "%is_explicit_cluster": int(in_cluster > 1),
        "%nsmid": 1,
    }
    for axis, letter in enumerate(_AXES):
        same[f"%ntid.{letter}"] = shape.block[axis]
        same[f"%nctaid.{letter}"] = shape.grid[axis]
        same[f"%nclusterid.{letter}"] = blocks[axis]
        same[f"%cluster_nctaid.{letter}"] = shape.cluster[axis]
    place = wave.SPECIALS[name] // 4
    base.view(np.uint32)[place : place + wave.LANES] = same.get(name, 0)


def _ids(name: str, shape: GridShape) -> list[GroupId]:
    """How a special register differs among blocks."""
    at, found, scale = wave.SPECIALS[name], [], 1
    steps = (1, shape.grid[0], shape.grid[0] * shape.grid[1])
    for axis, letter in enumerate(_AXES):
        whole = GroupId(at, steps[axis], shape.grid[axis])
        size = shape.cluster[axis]
        if name == f"%ctaid.{letter}":
            found.append(whole)
        elif name == f"%clusterid.{letter}":
            found.append(whole._replace(divisor=size))
        elif name == f"%cluster_ctaid.{letter}":
            found.append(whole._replace(modulus=size))
        elif name == "%cluster_ctarank":
            found.append(whole._replace(modulus=size, scale=scale))
        scale *= size
    return found
