"""Methods of the copy classes, Ampere to Blackwell.

Addresses and fields: clc6b5.h, clc7b5.h, clc8b5.h, clc9b5.h and clcab5.h of open-gpu-doc. Where a
field grew, the wider one is here and ``doc`` says since when.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpu.autogen.nv import classes as ids
from gpu.core.regs import field
from gpu.drivers.nv.encode.methods.method import Engine, Method, MethodSet


class Transfer(IntEnum):
    """How LAUNCH_DMA moves data."""

    NONE = 0
    PIPELINED = 1  # may overlap with the transfers before it
    NON_PIPELINED = 2
    PREFETCH = 3  # GB20x


class SemaphoreType(IntEnum):
    """What LAUNCH_DMA writes when it is done."""

    NONE = 0
    ONE_WORD = 1  # the payload, without a timestamp
    FOUR_WORDS = 2  # the payload, then the timestamp at 8
    CONDITIONAL_INTERRUPT = 3


class Layout(IntEnum):
    """How memory is laid out."""

    BLOCKLINEAR = 0
    PITCH = 1


class Component(IntEnum):
    """Where a component of the destination comes from."""

    SRC_X = 0
    SRC_Y = 1
    SRC_Z = 2
    SRC_W = 3
    CONST_A = 4
    CONST_B = 5
    NO_WRITE = 6


class CopyMethod(Method):
    """A method of the copy engine."""

    engine = Engine.COPY


class NOP(CopyMethod):
    """Does nothing."""

    address = 0x100
    PARAMETER = field(31, 0)


class SET_SEMAPHORE_A(CopyMethod):
    """Address of the semaphore, from bit 32 on."""

    address = 0x240
    UPPER = field(24, 0, doc="17 bits before Hopper")


class SET_SEMAPHORE_B(CopyMethod):
    """Address of the semaphore."""

    address = 0x244
    LOWER = field(31, 0)


class SET_SEMAPHORE_PAYLOAD(CopyMethod):
    """What to write there."""

    address = 0x248
    PAYLOAD = field(31, 0)


class SET_SEMAPHORE_PAYLOAD_UPPER(CopyMethod):
    """Its upper half; not on GA100."""

    address = 0x24C
    PAYLOAD = field(31, 0)


class SET_SRC_PHYS_MODE(CopyMethod):
    """For physical addresses: what kind of memory they mean."""

    address = 0x260
    TARGET = field(1, 0)
    BASIC_KIND = field(5, 2)
    PEER_ID = field(8, 6)
    FLA = field(9)


class SET_DST_PHYS_MODE(CopyMethod):
    """For physical addresses: what kind of memory they mean."""

    address = 0x264
    TARGET = field(1, 0)
    BASIC_KIND = field(5, 2)
    PEER_ID = field(8, 6)
    FLA = field(9)


class LAUNCH_DMA(CopyMethod):
    """Transfers, then flushes, then writes the semaphore."""

    address = 0x300
    DATA_TRANSFER_TYPE = field(1, 0, enum=Transfer)
    FLUSH_ENABLE = field(2, doc="what was written is visible before the semaphore is")
    SEMAPHORE_TYPE = field(4, 3, enum=SemaphoreType)
    INTERRUPT_TYPE = field(6, 5)
    SRC_MEMORY_LAYOUT = field(7, enum=Layout)
    DST_MEMORY_LAYOUT = field(8, enum=Layout)
    MULTI_LINE_ENABLE = field(9)
    REMAP_ENABLE = field(10)
    SRC_TYPE = field(12, doc="1 physical")
    DST_TYPE = field(13, doc="1 physical")
    SEMAPHORE_REDUCTION = field(17, 14)
    SEMAPHORE_REDUCTION_SIGN = field(18)
    SEMAPHORE_REDUCTION_ENABLE = field(19)
    COPY_TYPE = field(21, 20, doc="from Hopper on")
    VPRMODE = field(22, doc="23:22 before Hopper")
    MEMORY_SCRUB_ENABLE = field(23, doc="from Hopper on")
    FLUSH_TYPE = field(25, doc="0 system, 1 device")
    DISABLE_PLC = field(26)
    SEMAPHORE_PAYLOAD_SIZE = field(27, doc="1 for 64 bits; not on GA100")


class OFFSET_IN_UPPER(CopyMethod):
    """The source, from bit 32 on."""

    address = 0x400
    UPPER = field(24, 0, doc="17 bits before Hopper")


class OFFSET_IN_LOWER(CopyMethod):
    """The source."""

    address = 0x404
    VALUE = field(31, 0)


class OFFSET_OUT_UPPER(CopyMethod):
    """The destination, from bit 32 on."""

    address = 0x408
    UPPER = field(24, 0, doc="17 bits before Hopper")


class OFFSET_OUT_LOWER(CopyMethod):
    """The destination."""

    address = 0x40C
    VALUE = field(31, 0)


class PITCH_IN(CopyMethod):
    """Bytes from line to line of the source."""

    address = 0x410
    VALUE = field(31, 0)


class PITCH_OUT(CopyMethod):
    """Bytes from line to line of the destination."""

    address = 0x414
    VALUE = field(31, 0)


class LINE_LENGTH_IN(CopyMethod):
    """Bytes of a line or, with remapping, its pixels."""

    address = 0x418
    VALUE = field(31, 0)


class LINE_COUNT(CopyMethod):
    """Lines."""

    address = 0x41C
    VALUE = field(31, 0)


class SET_REMAP_CONST_A(CopyMethod):
    """A constant for components."""

    address = 0x700
    V = field(31, 0)


class SET_REMAP_CONST_B(CopyMethod):
    """Another constant for components."""

    address = 0x704
    V = field(31, 0)


class SET_REMAP_COMPONENTS(CopyMethod):
    """What the components of a pixel of the destination are; sizes and numbers minus 1."""

    address = 0x708
    DST_X = field(2, 0, enum=Component)
    DST_Y = field(6, 4, enum=Component)
    DST_Z = field(10, 8, enum=Component)
    DST_W = field(14, 12, enum=Component)
    COMPONENT_SIZE = field(17, 16)
    NUM_SRC_COMPONENTS = field(21, 20)
    NUM_DST_COMPONENTS = field(25, 24)


_GA100: Final = (
    *(NOP, SET_SEMAPHORE_A, SET_SEMAPHORE_B, SET_SEMAPHORE_PAYLOAD, SET_SRC_PHYS_MODE),
    *(SET_DST_PHYS_MODE, LAUNCH_DMA, OFFSET_IN_UPPER, OFFSET_IN_LOWER, OFFSET_OUT_UPPER),
    *(OFFSET_OUT_LOWER, PITCH_IN, PITCH_OUT, LINE_LENGTH_IN, LINE_COUNT),
    *(SET_REMAP_CONST_A, SET_REMAP_CONST_B, SET_REMAP_COMPONENTS),
)
_AMPERE: Final = (*_GA100, SET_SEMAPHORE_PAYLOAD_UPPER)

COPY_CLASSES: Final[dict[int, MethodSet]] = {
    number: MethodSet(ids.class_name(number), methods)
    for number, methods in (
        (ids.AMPERE_DMA_COPY_A, _GA100),
        (ids.AMPERE_DMA_COPY_B, _AMPERE),
        (ids.HOPPER_DMA_COPY_A, _AMPERE),
        (ids.BLACKWELL_DMA_COPY_A, _AMPERE),
        (ids.BLACKWELL_DMA_COPY_B, _AMPERE),
    )
}
"""The methods by copy class."""
