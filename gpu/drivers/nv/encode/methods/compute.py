"""Methods of the compute classes, Ampere to Blackwell: what launches and their set-up need.

Addresses and fields: clc6c0.h, clc7c0.h, clc9c0.h, clcbc0.h, clcdc0.h and clcec0.h of open-gpu-doc.
Where a field grew, the wider one is here and ``doc`` says since when.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gpu.autogen.nv import classes as ids
from gpu.core.regs import field
from gpu.drivers.nv.encode.methods.method import Engine, Method, MethodSet


class PcasAction(IntEnum):
    """What to do with the launch descriptor that SEND_PCAS_A named."""

    NOP = 0
    INVALIDATE = 1
    SCHEDULE = 2
    INVALIDATE_COPY_SCHEDULE = 3
    INCREMENT_PUT = 6
    DECREMENT_DEPENDENCE = 7
    PREFETCH = 8
    PREFETCH_SCHEDULE = 9
    INVALIDATE_PREFETCH_COPY_SCHEDULE = 10
    INVALIDATE_PREFETCH_COPY_FORCE_REQUIRE_SCHEDULING = 11
    INCREMENT_DEPENDENCE = 12  # this and the next not on GA100
    INCREMENT_CWD_REF_COUNTER = 13


class ComputeMethod(Method):
    """A method of the compute engine."""

    engine = Engine.COMPUTE


class NO_OPERATION(ComputeMethod):
    """Does nothing."""

    address = 0x100
    V = field(31, 0)


class WAIT_FOR_IDLE(ComputeMethod):
    """Starts nothing after it before all before it is done."""

    address = 0x110
    V = field(31, 0)


class SET_REPORT_SEMAPHORE_PAYLOAD_LOWER(ComputeMethod):
    """What REPORT_SEMAPHORE_EXECUTE writes. This group is not on GA100."""

    address = 0x158
    PAYLOAD_LOWER = field(31, 0)


class SET_REPORT_SEMAPHORE_PAYLOAD_UPPER(ComputeMethod):
    """Its upper half."""

    address = 0x15C
    PAYLOAD_UPPER = field(31, 0)


class SET_REPORT_SEMAPHORE_ADDRESS_LOWER(ComputeMethod):
    """Where to."""

    address = 0x160
    LOWER = field(31, 0)


class SET_REPORT_SEMAPHORE_ADDRESS_UPPER(ComputeMethod):
    """Where to, from bit 32 on."""

    address = 0x164
    UPPER = field(24, 0)


class REPORT_SEMAPHORE_EXECUTE(ComputeMethod):
    """Writes a semaphore from the compute engine."""

    address = 0x168
    OPERATION = field(1, 0, doc="0 release, 1 acquire, 2 report only, 3 trap")
    AWAKEN_ENABLE = field(2)
    STRUCTURE_SIZE = field(4, 3, doc="0 four words with timestamp, 1 one word, 2 two words")
    FLUSH_DISABLE = field(5)
    REDUCTION_ENABLE = field(6)
    REDUCTION_OP = field(9, 7)
    REDUCTION_FORMAT = field(11, 10)
    PAYLOAD_SIZE64 = field(12)
    TRAP_TYPE = field(14, 13)


class LINE_LENGTH_IN(ComputeMethod):
    """Bytes of a line of inline data."""

    address = 0x180
    VALUE = field(31, 0)


class LINE_COUNT(ComputeMethod):
    """Lines of inline data."""

    address = 0x184
    VALUE = field(31, 0)


class OFFSET_OUT_UPPER(ComputeMethod):
    """Where inline data goes, from bit 32 on."""

    address = 0x188
    VALUE = field(24, 0, doc="17 bits before Hopper")


class OFFSET_OUT(ComputeMethod):
    """Where inline data goes."""

    address = 0x18C
    VALUE = field(31, 0)


class LAUNCH_DMA(ComputeMethod):
    """Begins a transfer of inline data; not the copy engine's method of that name."""

    address = 0x1B0
    DST_MEMORY_LAYOUT = field(0, doc="1 linear")
    REDUCTION_ENABLE = field(1)
    REDUCTION_FORMAT = field(3, 2)
    COMPLETION_TYPE = field(5, 4, doc="0 no flush, 1 flush, 2 semaphore")
    SYSMEMBAR_DISABLE = field(6)
    INTERRUPT_TYPE = field(9, 8)
    SEMAPHORE_STRUCT_SIZE = field(12)
    REDUCTION_OP = field(15, 13)


class LOAD_INLINE_DATA(ComputeMethod):
    """The data, word by word."""

    address = 0x1B4
    V = field(31, 0)


class INVALIDATE_SHADER_CACHES(ComputeMethod):
    """Invalidates caches of all SMs once they are idle."""

    address = 0x21C
    INSTRUCTION = field(0)
    LOCKS = field(1)
    FLUSH_DATA = field(2)
    DATA = field(4)
    CONSTANT = field(12)


class INVALIDATE_TEXTURE_HEADER_CACHE_NO_WFI(ComputeMethod):
    """Forgets descriptors of textures."""

    address = 0x244
    LINES = field(0, doc="0 all")
    TAG = field(25, 4)


class SET_COMPUTE_CLASS_VERSION(ComputeMethod):
    """Tells which version of the class the driver knows."""

    address = 0x280
    CURRENT = field(15, 0)
    OLDEST_SUPPORTED = field(31, 16)


class SET_QMD_VERSION(ComputeMethod):
    """Tells which version of launch descriptors comes."""

    address = 0x288
    CURRENT = field(15, 0)
    OLDEST_SUPPORTED = field(31, 16)


class INVALIDATE_SKED_CACHES(ComputeMethod):
    """Forgets launch descriptors; not on Blackwell."""

    address = 0x298
    V = field(0)


class SET_SHADER_SHARED_MEMORY_WINDOW_A(ComputeMethod):
    """Where generic addresses mean shared memory, from bit 32 on."""

    address = 0x2A0
    BASE_ADDRESS_UPPER = field(16, 0)


class SET_SHADER_SHARED_MEMORY_WINDOW_B(ComputeMethod):
    """The lower half of it, which must be 0 on Hopper: the window is 4 GiB, and aligned so."""

    address = 0x2A4
    BASE_ADDRESS = field(31, 0)


class SEND_PCAS_A(ComputeMethod):
    """Names a launch descriptor."""

    address = 0x2B4
    QMD_ADDRESS_SHIFTED8 = field(31, 0)


class SEND_SIGNALING_PCAS2_B(ComputeMethod):
    """Acts on the launch descriptor."""

    address = 0x2C0
    PCAS_ACTION = field(3, 0, enum=PcasAction)
    SELECT = field(13, 8)
    OFFSET_MINUS_ONE = field(23, 14)


class SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A(ComputeMethod):
    """Bytes of local memory of a TPC, from bit 32 on."""

    address = 0x2E4
    SIZE_UPPER = field(7, 0)


class SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B(ComputeMethod):
    """Bytes of local memory of a TPC."""

    address = 0x2E8
    SIZE_LOWER = field(31, 0)


class SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C(ComputeMethod):
    """For how many units there is local memory; its exact meaning is not documented."""

    address = 0x2EC
    MAX_SM_COUNT = field(8, 0)
    MAX_PLURAL_TPC_GPC_COUNT = field(23, 16, doc="from Hopper on")
    MAX_SINGLETON_TPC_GPC_COUNT = field(31, 24, doc="from Hopper on")


class SET_SPA_VERSION(ComputeMethod):
    """Tells which version of shaders comes."""

    address = 0x310
    MINOR = field(7, 0)
    MAJOR = field(15, 8)


class SET_INLINE_QMD_ADDRESS_A(ComputeMethod):
    """Where a launch descriptor that comes inline is kept, from bit 40 on."""

    address = 0x318
    QMD_ADDRESS_SHIFTED8_UPPER = field(8, 0)
    INLINE_SIZE = field(30, doc="0 for 256 bytes, 1 for 384; from Hopper on")


class SET_INLINE_QMD_ADDRESS_B(ComputeMethod):
    """Where it is kept."""

    address = 0x31C
    QMD_ADDRESS_SHIFTED8_LOWER = field(31, 0)


class LOAD_INLINE_QMD_DATA(ComputeMethod):
    """Its words."""

    address = 0x320
    count = 96  # 64 before Hopper
    V = field(31, 0)


class SET_SHADER_LOCAL_MEMORY_A(ComputeMethod):
    """Where local memory of all threads lies, from bit 32 on."""

    address = 0x790
    ADDRESS_UPPER = field(24, 0, doc="17 bits before Hopper")


class SET_SHADER_LOCAL_MEMORY_B(ComputeMethod):
    """Where local memory of all threads lies."""

    address = 0x794
    ADDRESS_LOWER = field(31, 0)


class SET_SHADER_LOCAL_MEMORY_WINDOW_A(ComputeMethod):
    """Where generic addresses mean local memory, from bit 32 on."""

    address = 0x7B0
    BASE_ADDRESS_UPPER = field(16, 0)


class SET_SHADER_LOCAL_MEMORY_WINDOW_B(ComputeMethod):
    """The lower half of it; the window is 16 MiB."""

    address = 0x7B4
    BASE_ADDRESS = field(31, 0)


class INVALIDATE_TEXTURE_DATA_CACHE_NO_WFI(ComputeMethod):
    """Forgets texels."""

    address = 0x1288
    LINES = field(0, doc="0 all")
    TAG = field(25, 4)


class INVALIDATE_SAMPLER_CACHE_NO_WFI(ComputeMethod):
    """Forgets samplers."""

    address = 0x1424
    LINES = field(0, doc="0 all")
    TAG = field(25, 4)


class INVALIDATE_SHADER_CACHES_NO_WFI(ComputeMethod):
    """Invalidates caches of all SMs, for what starts after it."""

    address = 0x1698
    INSTRUCTION = field(0)
    GLOBAL_DATA = field(4)
    CONSTANT = field(12)


_GA100: Final = (
    *(NO_OPERATION, WAIT_FOR_IDLE, LINE_LENGTH_IN, LINE_COUNT, OFFSET_OUT_UPPER, OFFSET_OUT),
    *(LAUNCH_DMA, LOAD_INLINE_DATA, INVALIDATE_SHADER_CACHES),
    *(INVALIDATE_TEXTURE_HEADER_CACHE_NO_WFI, SET_COMPUTE_CLASS_VERSION, SET_QMD_VERSION),
    *(SET_SHADER_SHARED_MEMORY_WINDOW_A, SET_SHADER_SHARED_MEMORY_WINDOW_B, SEND_PCAS_A),
    SEND_SIGNALING_PCAS2_B,
    SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A,
    SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B,
    SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C,
    *(SET_SPA_VERSION, SET_INLINE_QMD_ADDRESS_A, SET_INLINE_QMD_ADDRESS_B, LOAD_INLINE_QMD_DATA),
    *(SET_SHADER_LOCAL_MEMORY_A, SET_SHADER_LOCAL_MEMORY_B, SET_SHADER_LOCAL_MEMORY_WINDOW_A),
    *(SET_SHADER_LOCAL_MEMORY_WINDOW_B, INVALIDATE_TEXTURE_DATA_CACHE_NO_WFI),
    *(INVALIDATE_SAMPLER_CACHE_NO_WFI, INVALIDATE_SHADER_CACHES_NO_WFI),
)
_REPORT: Final = (
    SET_REPORT_SEMAPHORE_PAYLOAD_LOWER,
    SET_REPORT_SEMAPHORE_PAYLOAD_UPPER,
    SET_REPORT_SEMAPHORE_ADDRESS_LOWER,
    SET_REPORT_SEMAPHORE_ADDRESS_UPPER,
    REPORT_SEMAPHORE_EXECUTE,
)
_BLACKWELL: Final = _GA100 + _REPORT
_AMPERE: Final = (*_BLACKWELL, INVALIDATE_SKED_CACHES)

COMPUTE_CLASSES: Final[dict[int, MethodSet]] = {
    number: MethodSet(ids.class_name(number), methods)
    for number, methods in (
        (ids.AMPERE_COMPUTE_A, (*_GA100, INVALIDATE_SKED_CACHES)),
        (ids.AMPERE_COMPUTE_B, _AMPERE),
        (ids.ADA_COMPUTE_A, _AMPERE),
        (ids.HOPPER_COMPUTE_A, _AMPERE),
        (ids.BLACKWELL_COMPUTE_A, _BLACKWELL),
        (ids.BLACKWELL_COMPUTE_B, _BLACKWELL),
    )
}
"""The methods by compute class."""
