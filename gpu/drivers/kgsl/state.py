"""Registers that a launch depends on, and what one launch puts there.

Called as in `autogen/adreno_a6xx.py`, with which a test compares them; newer Mesa calls some
otherwise (SP_CS_CTRL_REG0 is SP_CS_CNTL_0 there, and SP_CS_CNTL_0 here is another register).
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from gpu.core.regs import Register, field


class StateRegister(Register):
    """A register by its place, an offset in dwords."""

    OFFSET: ClassVar[int]


class ThreadSize(IntEnum):
    """Threads of a wave."""

    THREAD64 = 0
    THREAD128 = 1


class ConstantRam(IntEnum):
    """For how many constants of a thread there is room, of 16 bytes."""

    CONSTLEN_128 = 0
    CONSTLEN_192 = 1
    CONSTLEN_256 = 2

    @classmethod
    def of(cls, constants: int) -> ConstantRam:
        """The smallest with room for so many."""
        if constants > 192:
            return cls.CONSTLEN_256
        return cls.CONSTLEN_192 if constants > 128 else cls.CONSTLEN_128


class SP_CS_CTRL_REG0(StateRegister):
    """What a thread needs."""

    OFFSET = 0xA9B0
    HALFREGFOOTPRINT = field(6, 1)
    FULLREGFOOTPRINT = field(12, 7)
    BRANCHSTACK = field(19, 14)
    THREADSIZE = field(20, enum=ThreadSize)
    EARLYPREAMBLE = field(23)
    MERGEDREGS = field(31)


class SP_CS_CTRL_REG1(StateRegister):
    """What a group needs."""

    OFFSET = 0xA9B1
    SHARED_SIZE = field(4, 0, doc="KiB less 1, at least 1")
    CONSTANTRAMMODE = field(6, 5, enum=ConstantRam)


class HLSQ_CS_CTRL_REG1(SP_CS_CTRL_REG1):
    """The same for the second front end."""

    OFFSET = 0xB9D0


class SP_CS_OBJ_FIRST_EXEC_OFFSET(StateRegister):
    """Where in the code a thread begins. Behind it: SP_CS_OBJ_START of 64 bits."""

    OFFSET = 0xA9B3
    VALUE = field(31, 0)


class SP_CS_PVT_MEM_PARAM(StateRegister):
    """Memory of a thread. Behind it: SP_CS_PVT_MEM_ADDR of 64 bits, then the next."""

    OFFSET = 0xA9B6
    MEMSIZEPERITEM = field(7, 0, doc="in 512 bytes")


class SP_CS_PVT_MEM_SIZE(StateRegister):
    """Such memory of all threads of a core."""

    OFFSET = 0xA9B9
    TOTALPVTMEMSIZE = field(17, 0, doc="in 4 KiB")
    PERWAVEMEMLAYOUT = field(31)


class SP_CS_CONFIG(StateRegister):
    """What a kernel reads by descriptors; behind it SP_CS_INSTRLEN."""

    OFFSET = 0xA9BB
    ENABLED = field(8)
    NTEX = field(16, 9)
    NSAMP = field(21, 17)
    NIBO = field(28, 22)


class SP_CS_INSTRLEN(StateRegister):
    """Units of 128 bytes that code has."""

    OFFSET = 0xA9BC
    VALUE = field(27, 0)


class SP_FS_INSTRLEN(SP_CS_INSTRLEN):
    """The same of pixel shaders."""

    OFFSET = 0xAB05


class SP_CS_PVT_MEM_HW_STACK_OFFSET(StateRegister):
    """Where in the memory of a core the stack of hardware begins: behind all threads'."""

    OFFSET = 0xA9BD
    STACK = field(18, 0, doc="in 2 KiB; Mesa calls it OFFSET")


class HLSQ_CS_CNTL_0(StateRegister):
    """Registers, counted in components, that a thread finds numbers in."""

    OFFSET = 0xB997
    WGIDCONSTID = field(7, 0)
    WGSIZECONSTID = field(15, 8)
    WGOFFSETCONSTID = field(23, 16)
    LOCALIDREGID = field(31, 24)


class HLSQ_CS_CNTL_1(StateRegister):
    """The same, and the size of a wave."""

    OFFSET = 0xB998
    LINEARLOCALIDREGID = field(7, 0)
    THREADSIZE = field(9, enum=ThreadSize)


class SP_CS_CNTL_0(HLSQ_CS_CNTL_0):
    """The same for the second front end; behind it its SP_CS_CNTL_1."""

    OFFSET = 0xA9C2


class SP_CS_CNTL_1(HLSQ_CS_CNTL_1):
    """The same for the second front end."""

    OFFSET = 0xA9C3


class HLSQ_CS_CNTL(StateRegister):
    """Constants that a kernel sees."""

    OFFSET = 0xB987
    CONSTLEN = field(7, 0, doc="in 64 bytes")
    ENABLED = field(8)


class HLSQ_CS_NDRANGE_0(StateRegister):
    """The size of a group, less 1. Behind it: threads in all and the first, of each axis."""

    OFFSET = 0xB990
    KERNELDIM = field(1, 0)
    LOCALSIZEX = field(11, 2)
    LOCALSIZEY = field(21, 12)
    LOCALSIZEZ = field(31, 22)


class HLSQ_CS_KERNEL_GROUP_X(StateRegister):
    """1 where a packet gives the number of groups (turnip); behind it those of Y and Z."""

    OFFSET = 0xB999
    VALUE = field(31, 0)


class HLSQ_INVALIDATE_CMD(StateRegister):
    """What was loaded before that is to be forgotten: code, constants, descriptors."""

    OFFSET = 0xBB08
    VS_STATE = field(0)
    HS_STATE = field(1)
    DS_STATE = field(2)
    GS_STATE = field(3)
    FS_STATE = field(4)
    CS_STATE = field(5)
    CS_IBO = field(6)
    GFX_IBO = field(7)
    GFX_SHARED_CONST = field(8)
    CS_BINDLESS = field(13, 9)
    GFX_BINDLESS = field(18, 14)
    CS_SHARED_CONST = field(19)


class SP_MODE_CONTROL(StateRegister):
    """How constants and loads of texels work."""

    OFFSET = 0xAB00
    CONSTANT_DEMOTION_ENABLE = field(0)
    ISAMMODE = field(2, 1, doc="2: as GL has it")
    SHARED_CONSTS_ENABLE = field(3)


class SP_TP_MODE_CNTL(StateRegister):
    """The same in the texture pipes."""

    OFFSET = 0xB309
    ISAMMODE = field(1, 0)
    UNK3 = field(7, 2)


class SP_FLOAT_CNTL(StateRegister):
    """Whether halves have infinities."""

    OFFSET = 0xAE04
    F16_NO_INF = field(3)


class HLSQ_SHARED_CONSTS(StateRegister):
    """Whether shaders of all kinds share constants."""

    OFFSET = 0xBB11
    ENABLE = field(0)


class HLSQ_CONTROL_5_REG(StateRegister):
    """Registers of pixel shaders, none of which is used."""

    OFFSET = 0xB986
    LINELENGTHREGID = field(7, 0)
