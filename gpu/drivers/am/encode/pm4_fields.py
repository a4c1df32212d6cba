"""The words of PM4 packets, by name: what their bits mean, and the numbers that are put there.

Sources: as of `encode/pm4_packets.py`.
"""

from __future__ import annotations

from enum import IntEnum

from gpu.autogen.amd import pm4_gfx10
from gpu.core.regs import Register, field


class Header(Register):
    """The first word of a packet."""

    PREDICATE = field(0)
    SHADER_TYPE = field(1, doc="1: for compute")
    OPCODE = field(15, 8)
    COUNT = field(29, 16, doc="words that follow, less one")
    TYPE = field(31, 30)


class Event(IntEnum):
    """Events that a compute queue knows."""

    CS_PARTIAL_FLUSH = pm4_gfx10.EVENTS["CS_PARTIAL_FLUSH"]
    CACHE_FLUSH_AND_INV_TS = pm4_gfx10.EVENTS["CACHE_FLUSH_AND_INV_TS_EVENT"]
    BOTTOM_OF_PIPE_TS = pm4_gfx10.EVENTS["BOTTOM_OF_PIPE_TS"]
    CS_DONE = pm4_gfx10.EVENTS["CS_DONE"]


class EventIndex(IntEnum):
    """What sort of event it is."""

    OTHER = 0
    PARTIAL_FLUSH = 4
    END_OF_PIPE = 5
    SHADER_DONE = 6


class Function(IntEnum):
    """How a word that is polled compares with the reference."""

    ALWAYS = 0
    LESS = 1
    LESS_EQUAL = 2
    EQUAL = 3
    NOT_EQUAL = 4
    GREATER_EQUAL = 5
    GREATER = 6


class Space(IntEnum):
    """Where a word that is polled is."""

    REGISTER = 0
    MEMORY = 1


class WaitOperation(IntEnum):
    """What WAIT_REG_MEM does."""

    WAIT = 0
    WRITE_WAIT_WRITE = 1  # writes the reference to one register, then polls another one


class DataSel(IntEnum):
    """What RELEASE_MEM writes."""

    NOTHING = 0
    LOW_32 = 1
    ALL_64 = 2
    CLOCK = 3  # of the GPU, 100 MHz
    SYSTEM_CLOCK = 4


class IntSel(IntEnum):
    """What RELEASE_MEM tells when it has written."""

    NOTHING = 0
    INTERRUPT = 1
    INTERRUPT_AFTER_CONFIRM = 2
    AFTER_CONFIRM = 3


class WriteDestination(IntEnum):
    """Where WRITE_DATA writes."""

    REGISTER = 0
    L2 = 2
    MEMORY = 5


class CopySource(IntEnum):
    """Where COPY_DATA reads."""

    REGISTER = 0
    MEMORY = 1
    L2 = 2
    COUNTER = 4  # a register of a performance counter (Mesa's sid.h, COPY_DATA_PERF)
    IMMEDIATE = 5
    CLOCK = 9


class CopyDestination(IntEnum):
    """Where COPY_DATA writes."""

    REGISTER = 0
    L2 = 2
    MEMORY = 5


class WaitControl(Register):
    """Of WAIT_REG_MEM."""

    FUNCTION = field(2, 0, enum=Function)
    SPACE = field(4, enum=Space)
    OPERATION = field(7, 6, enum=WaitOperation)
    ENGINE = field(9, 8)


class WaitInterval(Register):
    """Of WAIT_REG_MEM."""

    INTERVAL = field(15, 0, doc="between two looks, in units of 16 clocks")


class EventControl(Register):
    """Of EVENT_WRITE."""

    TYPE = field(5, 0, enum=Event)
    INDEX = field(11, 8, enum=EventIndex)


class ReleaseEvent(EventControl):
    """Of RELEASE_MEM from GFX10 on: the event, and what is done to caches before the write."""

    GLM_WB = field(12)
    GLM_INV = field(13)
    GLV_INV = field(14)
    GL1_INV = field(15)
    GL2_US = field(16)
    GL2_RANGE = field(18, 17)
    GL2_DISCARD = field(19)
    GL2_INV = field(20)
    GL2_WB = field(21)
    SEQ = field(23, 22)
    CACHE_POLICY = field(26, 25)
    EXECUTE = field(28)


class ReleaseEventGfx9(EventControl):
    """Of RELEASE_MEM on GFX9."""

    TCL1_VOL_ACTION = field(12)
    TC_VOL_ACTION = field(13)
    TC_WB_ACTION = field(15)
    TCL1_ACTION = field(16)
    TC_ACTION = field(17)
    TC_NC_ACTION = field(19)
    TC_MD_ACTION = field(21)
    EXECUTE = field(28)


class ReleaseSelect(Register):
    """Of RELEASE_MEM: where and what it writes, and whom it tells."""

    DST_SEL = field(17, 16)
    INT_SEL = field(26, 24, enum=IntSel)
    DATA_SEL = field(31, 29, enum=DataSel)


class CacheControl(Register):
    """GCR_CNTL of ACQUIRE_MEM from GFX10 on; I, K, V: instructions, scalars, vectors.

    INV drops what a cache holds, WB writes what was changed.
    """

    GLI_INV = field(1, 0, doc="1: all")
    GL1_RANGE = field(3, 2)
    GLM_WB = field(4)
    GLM_INV = field(5)
    GLK_WB = field(6)
    GLK_INV = field(7)
    GLV_INV = field(8)
    GL1_INV = field(9)
    GL2_US = field(10)
    GL2_RANGE = field(12, 11)
    GL2_DISCARD = field(13)
    GL2_INV = field(14)
    GL2_WB = field(15)
    SEQ = field(17, 16)
    RANGE_IS_PA = field(18)


class CoherenceControl(Register):
    """CP_COHER_CNTL of ACQUIRE_MEM; used on GFX9 only, 0 later."""

    TC_NC_ACTION = field(3)
    TC_WC_ACTION = field(4)
    TC_INV_METADATA_ACTION = field(5)
    TCL1_VOL_ACTION = field(15)
    TC_WB_ACTION = field(18)
    TCL1_ACTION = field(22)
    TC_ACTION = field(23)
    CB_ACTION = field(25)
    DB_ACTION = field(26)
    SH_KCACHE_ACTION = field(27)
    SH_KCACHE_VOL_ACTION = field(28)
    SH_ICACHE_ACTION = field(29)
    SH_KCACHE_WB_ACTION = field(30)


class SizeHigh(Register):
    """The bits of ACQUIRE_MEM's size from 40 on; it is in units of 256 bytes."""

    SIZE_HI = field(23, 0)


class WriteControl(Register):
    """Of WRITE_DATA."""

    DST_SEL = field(11, 8, enum=WriteDestination)
    ONE_ADDRESS = field(16)
    CONFIRM = field(20)
    CACHE_POLICY = field(26, 25)
    ENGINE = field(31, 30)


class CopyControl(Register):
    """Of COPY_DATA."""

    SRC_SEL = field(3, 0, enum=CopySource)
    DST_SEL = field(11, 8, enum=CopyDestination)
    ALL_64 = field(16, doc="64 bits, not 32")
    CONFIRM = field(20)


class BufferControl(Register):
    """Of INDIRECT_BUFFER."""

    SIZE = field(19, 0, doc="in words")
    CHAIN = field(20)
    PRE_ENB = field(21)
    VALID = field(23)
    VMID = field(27, 24)
    CACHE_POLICY = field(29, 28)
    PRE_RESUME = field(30)


class PredicateControl(Register):
    """Of PRED_EXEC: the words behind it run on some XCCs only."""

    COUNT = field(13, 0)
    XCC_MASK = field(31, 24)


class RegisterStart(Register):
    """Of SET_SH_REG and the like: the first register, from where its kind begins."""

    OFFSET = field(15, 0)
    INDEX = field(31, 28)
