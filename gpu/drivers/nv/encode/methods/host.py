"""Methods of the host engine, which every channel has on every subchannel.

Addresses and fields: clc56f.h and clc76f.h of open-gpu-doc (Ampere), clc86f.h of
open-gpu-kernel-modules (Hopper), which widens SEM_ADDR_HI to 25 bits and lists the operations
ACQUIRE, RELEASE and ACQ_CIRC_GEQ only: the others are taken to be kept.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpu.core.regs import field
from gpu.drivers.nv.encode.methods.method import Engine, Method, MethodSet


class SemOperation(IntEnum):
    """What SEM_EXECUTE does."""

    ACQUIRE = 0  # until it is equal
    RELEASE = 1
    ACQ_STRICT_GEQ = 2  # until it is at least as large, unsigned
    ACQ_CIRC_GEQ = 3  # the same modulo the payload's size
    ACQ_AND = 4
    ACQ_NOR = 5
    REDUCTION = 6


class MemOperation(IntEnum):
    """What MEM_OP_D does."""

    MEMBAR = 5
    MMU_TLB_INVALIDATE = 9
    MMU_TLB_INVALIDATE_TARGETED = 10
    L2_PEERMEM_INVALIDATE = 13
    L2_SYSMEM_INVALIDATE = 14
    L2_CLEAN_COMPTAGS = 15
    L2_FLUSH_DIRTY = 16
    L2_WAIT_FOR_SYS_PENDING_READS = 21
    ACCESS_COUNTER_CLR = 22


class HostMethod(Method):
    """A method of the host engine."""

    engine = Engine.HOST


class SET_OBJECT(HostMethod):
    """Binds a class to the subchannel it is sent to."""

    address = 0x0
    NVCLASS = field(15, 0)
    ENGINE = field(20, 16, doc="0x1f for software methods")


class NOP(HostMethod):
    """Does nothing."""

    address = 0x8
    HANDLE = field(31, 0)


class NON_STALL_INTERRUPT(HostMethod):
    """Interrupts the host processor."""

    address = 0x20
    HANDLE = field(31, 0)


class MEM_OP_A(HostMethod):
    """Operands of MEM_OP_D, which A to C must precede."""

    address = 0x28
    INVALIDATION_SIZE = field(5, 0)
    INVAL_SCOPE = field(7, 6)
    SYSMEMBAR = field(11)
    TARGET_ADDR_LO = field(31, 12)


class MEM_OP_B(HostMethod):
    """Operand of MEM_OP_D."""

    address = 0x2C
    TARGET_ADDR_HI = field(31, 0)


class MEM_OP_C(HostMethod):
    """Operand of MEM_OP_D; of its uses only that of barriers has its fields here."""

    address = 0x30
    MEMBAR_TYPE = field(2, 0, doc="0 system, 1 device")


class MEM_OP_D(HostMethod):
    """Operates on memory as a whole."""

    address = 0x34
    PDB_ADDR_HI = field(26, 0)
    OPERATION = field(31, 27, enum=MemOperation)


class SET_REFERENCE(HostMethod):
    """Stores a number in USERD once all before it is done."""

    address = 0x50
    COUNT = field(31, 0)


class SEM_ADDR_LO(HostMethod):
    """Address of the semaphore; a multiple of its size, or of 16 with a timestamp."""

    address = 0x5C
    OFFSET = field(31, 2)


class SEM_ADDR_HI(HostMethod):
    """The address from bit 32 on."""

    address = 0x60
    OFFSET = field(24, 0, doc="8 bits before Hopper")


class SEM_PAYLOAD_LO(HostMethod):
    """What to write or to compare with."""

    address = 0x64
    PAYLOAD = field(31, 0)


class SEM_PAYLOAD_HI(HostMethod):
    """The upper half of a payload of 64 bits."""

    address = 0x68
    PAYLOAD = field(31, 0)


class SEM_EXECUTE(HostMethod):
    """Acquires or releases. With a timestamp a release writes 16 bytes, nanoseconds at 8."""

    address = 0x6C
    OPERATION = field(2, 0, enum=SemOperation)
    ACQUIRE_SWITCH_TSG = field(12, doc="let other channel groups run while it waits")
    RELEASE_WFI = field(20, doc="once all before it is done")
    PAYLOAD_SIZE = field(24, doc="0 for 32 bits, 1 for 64")
    RELEASE_TIMESTAMP = field(25)
    REDUCTION = field(30, 27)
    REDUCTION_FORMAT = field(31)


class WFI(HostMethod):
    """Waits until the engine is idle."""

    address = 0x78
    SCOPE = field(0, doc="0 the current virtual engine, 1 all")


class YIELD(HostMethod):
    """Lets others run."""

    address = 0x80
    OP = field(1, 0)


class CLEAR_FAULTED(HostMethod):
    """Part of fault handling by the kernel driver."""

    address = 0x84
    HANDLE = field(30, 0)
    TYPE = field(31)


HOST: Final = MethodSet(
    "host",
    (
        *(SET_OBJECT, NOP, NON_STALL_INTERRUPT, MEM_OP_A, MEM_OP_B, MEM_OP_C, MEM_OP_D),
        *(SET_REFERENCE, SEM_ADDR_LO, SEM_ADDR_HI, SEM_PAYLOAD_LO, SEM_PAYLOAD_HI, SEM_EXECUTE),
        *(WFI, YIELD, CLEAR_FAULTED),
    ),
)
