"""GPU generations: which classes to allocate, and what their queues read.

The kernel lists the classes of a device; its compute class names the generation. Class numbers:
g_gpu_class_list.c of open-gpu-kernel-modules; QMD versions: Mesa's NAK chooses by compute class
in the same way (src/nouveau/compiler/nak/qmd.rs) and open-gpu-doc has the layouts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import classes as ids
from gpu.core.errors import Unsupported

_COMPUTE_KIND: Final = 0xC0  # the low byte of a compute class
_FIRST_COMPUTE: Final = 0x90C0  # Fermi's; lower numbers with this low byte are something else


@dataclass(frozen=True, slots=True)
class Generation:
    """The classes of one GPU generation.

    Attributes:
        name: as people call it.
        compute: class of the compute object.
        gpfifo: class of channels.
        dma: class of the copy object.
        usermode: classes of the doorbell page, the preferred first.
        qmd_major: major version of the launch descriptor.
        qmd_size: its size in bytes.
        sm: the generation's architecture number, 90 for sm_90.
        sm_from_device: whether the device's own SM_VERSION is the architecture; on GB20x it is
            another number (tinygrad's ops_nv.py has the same exception).
    """

    name: str
    compute: int
    gpfifo: int
    dma: int
    usermode: tuple[int, ...]
    qmd_major: int
    qmd_size: int
    sm: int
    sm_from_device: bool = True


# Turing's leads to the same registers, and gVisor lets no other of the two through.
_AMPERE_USERMODE: Final = (ids.TURING_USERMODE_A, ids.AMPERE_USERMODE_A)
_HOPPER_USERMODE: Final = (ids.HOPPER_USERMODE_A,)
_BLACKWELL_USERMODE: Final = (ids.HOPPER_USERMODE_A, ids.BLACKWELL_USERMODE_A)

# fmt: off
_ROWS: Final = (
    Generation("Ampere GA100", ids.AMPERE_COMPUTE_A, ids.AMPERE_CHANNEL_GPFIFO_A,
               ids.AMPERE_DMA_COPY_A, _AMPERE_USERMODE, 3, 256, 80),
    Generation("Ampere GA10x", ids.AMPERE_COMPUTE_B, ids.AMPERE_CHANNEL_GPFIFO_A,
               ids.AMPERE_DMA_COPY_B, _AMPERE_USERMODE, 3, 256, 86),
    Generation("Ada", ids.ADA_COMPUTE_A, ids.AMPERE_CHANNEL_GPFIFO_A,
               ids.AMPERE_DMA_COPY_B, _AMPERE_USERMODE, 3, 256, 89),
    Generation("Hopper", ids.HOPPER_COMPUTE_A, ids.HOPPER_CHANNEL_GPFIFO_A,
               ids.HOPPER_DMA_COPY_A, _HOPPER_USERMODE, 4, 384, 90),
    Generation("Blackwell GB100", ids.BLACKWELL_COMPUTE_A, ids.BLACKWELL_CHANNEL_GPFIFO_A,
               ids.BLACKWELL_DMA_COPY_A, _BLACKWELL_USERMODE, 5, 384, 100),
    Generation("Blackwell GB20x", ids.BLACKWELL_COMPUTE_B, ids.BLACKWELL_CHANNEL_GPFIFO_B,
               ids.BLACKWELL_DMA_COPY_B, _BLACKWELL_USERMODE, 5, 384, 120, sm_from_device=False),
)
# fmt: on
GENERATIONS: Final[dict[int, Generation]] = {row.compute: row for row in _ROWS}
"""By compute class."""


def generation(compute: int) -> Generation:
    """The row of a compute class. Raises Unsupported, with the number, for one not in the table."""
    row = GENERATIONS.get(compute)
    if row is None:
        raise Unsupported(f"compute class {compute:#x} is not one of {_known()}")
    return row


def choose(listed: Collection[int]) -> Generation:
    """The generation of a device, from the classes that the kernel lists for it.

    Raises Unsupported where no compute class of the table is listed, or a class that its
    generation needs is not.
    """
    compute = [number for number in GENERATIONS if number in listed]
    if not compute:
        candidates = [
            f"{number:#x}"
            for number in sorted(listed)
            if number & 0xFF == _COMPUTE_KIND and number >= _FIRST_COMPUTE
        ]
        seen = ", ".join(candidates) or f"none among {len(listed)} classes"
        raise Unsupported(f"this GPU's compute class is {seen}; known are {_known()}")
    row = GENERATIONS[max(compute)]
    for role, wanted in (
        ("channel", (row.gpfifo,)),
        ("copy", (row.dma,)),
        ("doorbell", row.usermode),
    ):
        if not any(number in listed for number in wanted):
            names = " or ".join(ids.class_name(number) for number in wanted)
            raise Unsupported(
                f"this {row.name} lists no {role} class {names}: its driver branch or virtual GPU"
                f" profile has another one than the table in {__name__}"
            )
    return row


def usermode_class(row: Generation, listed: Collection[int]) -> int:
    """The doorbell class to allocate: the first of the row's that is listed (`choose` checked)."""
    return next(number for number in row.usermode if number in listed)


def _known() -> str:
    return ", ".join(f"{row.compute:#x} ({row.name})" for row in _ROWS)
