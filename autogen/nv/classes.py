"""RM class ids, and what each is called.

From src/common/sdk/nvidia/inc/class/*.h and src/nvidia/generated/g_gpu_class_list.c of
open-gpu-kernel-modules, and classes/ of open-gpu-doc.
"""

from typing import Final

NV01_MEMORY_SYSTEM: Final = 0x3E
NV01_MEMORY_LOCAL_USER: Final = 0x40
NV01_ROOT_CLIENT: Final = 0x41
NV01_MEMORY_VIRTUAL: Final = 0x70
NV01_MEMORY_SYSTEM_OS_DESCRIPTOR: Final = 0x71
NV01_DEVICE_0: Final = 0x80
NV20_SUBDEVICE_0: Final = 0x2080
GT200_DEBUGGER: Final = 0x83DE
FERMI_CONTEXT_SHARE_A: Final = 0x9067
FERMI_VASPACE_A: Final = 0x90F1
KEPLER_CHANNEL_GROUP_A: Final = 0xA06C

TURING_USERMODE_A: Final = 0xC461
AMPERE_USERMODE_A: Final = 0xC561
HOPPER_USERMODE_A: Final = 0xC661
BLACKWELL_USERMODE_A: Final = 0xC761

AMPERE_CHANNEL_GPFIFO_A: Final = 0xC56F
HOPPER_CHANNEL_GPFIFO_A: Final = 0xC86F
BLACKWELL_CHANNEL_GPFIFO_A: Final = 0xC96F
BLACKWELL_CHANNEL_GPFIFO_B: Final = 0xCA6F

AMPERE_COMPUTE_A: Final = 0xC6C0
AMPERE_COMPUTE_B: Final = 0xC7C0
ADA_COMPUTE_A: Final = 0xC9C0
HOPPER_COMPUTE_A: Final = 0xCBC0
BLACKWELL_COMPUTE_A: Final = 0xCDC0
BLACKWELL_COMPUTE_B: Final = 0xCEC0

AMPERE_DMA_COPY_A: Final = 0xC6B5
AMPERE_DMA_COPY_B: Final = 0xC7B5
HOPPER_DMA_COPY_A: Final = 0xC8B5
BLACKWELL_DMA_COPY_A: Final = 0xC9B5
BLACKWELL_DMA_COPY_B: Final = 0xCAB5

NAMES: Final[dict[int, str]] = {
    number: name for name, number in list(globals().items()) if isinstance(number, int)
}


def class_name(class_id: int) -> str:
    """The name of a class with its number, as in ``HOPPER_COMPUTE_A (0xcbc0)``."""
    return f"{NAMES.get(class_id, 'class')} ({class_id:#x})"
