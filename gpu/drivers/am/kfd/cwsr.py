"""How much memory the waves of a compute queue are saved to when it is taken off the hardware.

The kernel compares what a queue was given with its own computation, so it is done again here:
`kfd_queue_ctx_save_restore_size` and `kfd_queue_acquire_buffers`, kfd_queue.c of Linux 6.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.bits import align_up
from gpu.core.log import get_logger
from gpu.drivers.am.kfd.topology import GpuNode

_log = get_logger(__name__)

_PAGE: Final = 4096
_HEADER: Final = 40
_SCALARS_OF_UNIT: Final = 0x4000
_LOCAL_OF_UNIT: Final = 0x10000
_STATE_OF_UNIT: Final = 0x1000
_DEBUGGER_OF_WAVE: Final = 32
_NAVI10: Final = 100_100
# What the vector registers of a compute unit take, where it is not 0x40000.
_VECTORS_OF_UNIT: Final = {
    **dict.fromkeys((90_402, 90_010, 90_008, 90_500), 0x80000),
    **dict.fromkeys((110_000, 110_001, 110_501, 120_000, 120_001), 0x60000),
}
# Hardware of GFX10 cannot have a larger control stack.
_GFX10_STACK: Final = 0x7000
EOP_SIZE: Final = 4096
"""Bytes of the ring in which end-of-pipe events wait; the kernel wants exactly these."""


@dataclass(frozen=True, slots=True)
class ContextSave:
    """Sizes in bytes, of one XCC where there are several.

    Attributes:
        control_stack: told to the kernel as it is.
        area: control stack and registers; told to the kernel too.
        allocation: of the one buffer that the areas of all XCCs and the debugger's memory lie in.
    """

    control_stack: int
    area: int
    allocation: int


def context_save(gpu: GpuNode) -> ContextSave:
    """The sizes for a GPU. What the kernel tells of itself counts; before 6.12 it tells nothing."""
    version = gpu.gfx_target_version
    units = gpu.compute_units // gpu.num_xcc
    waves = units * 32 if version >= _NAVI10 else min(units * 40, gpu.shader_engines * 512)
    stack = align_up(_HEADER + waves * (12 if version >= _NAVI10 else 8) + 8, _PAGE)
    if version // 10_000 == 10:
        stack = min(stack, _GFX10_STACK)
    vectors = _VECTORS_OF_UNIT.get(version, 0x40000)
    local = gpu.lds_size_in_kb << 10 if version == 90_500 else _LOCAL_OF_UNIT
    unit = vectors + _SCALARS_OF_UNIT + local + _STATE_OF_UNIT
    stack, area = (
        _told(gpu, "ctl_stack_size", gpu.ctl_stack_size, stack),
        _told(gpu, "cwsr_size", gpu.cwsr_size, stack + align_up(units * unit, _PAGE)),
    )
    debugger = align_up(waves * _DEBUGGER_OF_WAVE, 64)
    return ContextSave(stack, area, align_up((area + debugger) * gpu.num_xcc, _PAGE))


def _told(gpu: GpuNode, name: str, told: int | None, computed: int) -> int:
    if told is None:
        return computed
    if told != computed:
        _log.warning(
            "%s: the kernel's %s is %#x where the rule of Linux 6.12 gives %#x",
            *(gpu, name, told, computed),
        )
    return told
