"""RM's classes: who may be whose parent, and what each takes when it is allocated.

From resource_list.h of open-gpu-kernel-modules 580.142. A class that RM does not know at all is
INVALID_CLASS, one that it knows and the chip lacks NOT_SUPPORTED (alloc_free.c,
resservResourceFactory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gpu.sim.nv.chip.chips import CHIPS, Chip
from gpu.sim.nv.rm import layouts
from gpu.sim.nv.rm.layout import Layout

Kind = Literal[
    "client", "device", "subdevice", "vaspace", "group", "share", "channel", "compute", "copy",
    "usermode", "memory", "virtual", "os_memory", "debugger", "event",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClassRule:
    """What RM checks before it makes an object.

    Attributes:
        kind: which of the model's objects it becomes.
        parents: legal kinds of parents; empty is any.
        params: what pAllocParms points to; None for classes that take nothing.
        required: whether pAllocParms may not be NULL.
        generic: whether every chip has it.
    """

    kind: Kind
    parents: tuple[Kind, ...]
    params: Layout | None
    required: bool = True
    generic: bool = True


ROOT_CLASSES: Final = (0x0, 0x1, 0x41)
DEVICE: Final = 0x80
SUBDEVICE: Final = 0x2080
MEMORY_SYSTEM: Final = 0x3E
MEMORY_LOCAL: Final = 0x40
MEMORY_VIRTUAL: Final = 0x70
OS_DESCRIPTOR: Final = 0x71
EVENT_CLASSES: Final = (0x5, 0x78, 0x79, 0x7E)  # NV01_EVENT, KERNEL_CALLBACK, OS_EVENT, _EX
OS_EVENT: Final = 0x79
VASPACE: Final = 0x90F1
GROUP: Final = 0xA06C
SHARE: Final = 0x9067
DEBUGGER: Final = 0x83DE

NOT_MODELLED: Final = frozenset(
    (
        *(0x2, 0x4, 0x503B, 0x50A0, 0x902D, 0x906F, 0xA140, 0xB2CC),  # ctxdma to profiler
        *(chip.graphics for chip in CHIPS.values()),
    )
)
"""Classes that RM knows, and the model refuses with NOT_SUPPORTED."""

_ANY: Final[tuple[Kind, ...]] = ()

RULES: Final[dict[int, ClassRule]] = {
    **{number: ClassRule("client", _ANY, layouts.ROOT, False) for number in ROOT_CLASSES},
    **{number: ClassRule("event", _ANY, layouts.EVENT) for number in EVENT_CLASSES},
    DEVICE: ClassRule("device", ("client",), layouts.DEVICE, False),
    SUBDEVICE: ClassRule("subdevice", ("device",), layouts.SUBDEVICE, False),
    MEMORY_SYSTEM: ClassRule("memory", ("device",), layouts.MEMORY),
    MEMORY_LOCAL: ClassRule("memory", ("device", "subdevice"), layouts.MEMORY),
    MEMORY_VIRTUAL: ClassRule("virtual", ("device",), layouts.MEMORY_VIRTUAL),
    OS_DESCRIPTOR: ClassRule("os_memory", ("device",), layouts.OS_DESCRIPTOR),
    VASPACE: ClassRule("vaspace", ("device", "subdevice"), layouts.VASPACE),
    GROUP: ClassRule("group", ("device",), layouts.CHANNEL_GROUP),
    SHARE: ClassRule("share", ("group",), layouts.CONTEXT_SHARE),
    DEBUGGER: ClassRule("debugger", ("device",), layouts.DEBUGGER),
    **{
        number: ClassRule("channel", ("device", "group"), layouts.CHANNEL, generic=False)
        for number in (0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F)
    },
    **{
        number: ClassRule("usermode", ("subdevice",), None, False, generic=False)
        for number in (0xC361, 0xC461, 0xC561)
    },
    **{
        number: ClassRule("usermode", ("subdevice",), layouts.USERMODE, False, generic=False)
        for number in (0xC661, 0xC761)
    },
    **{
        number: ClassRule("compute", ("channel",), layouts.GRAPHICS, False, generic=False)
        for number in (0xC3C0, 0xC5C0, 0xC6C0, 0xC7C0, 0xC9C0, 0xCBC0, 0xCDC0, 0xCEC0)
    },
    **{
        number: ClassRule("copy", ("channel",), layouts.COPY, False, generic=False)
        for number in (0xC3B5, 0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5, 0xC9B5, 0xCAB5)
    },
}


def chip_classes(chip: Chip) -> list[int]:
    """What CLASSLIST tells of a chip: the classes of these that it has, and its graphics class."""
    own = {chip.compute, chip.copy, chip.channel, *chip.classes}
    generic = {number for number, rule in RULES.items() if rule.generic}
    return sorted(own | generic | {chip.graphics, 0x902D})


def has_class(chip: Chip, number: int) -> bool:
    """Whether a chip has a class that RM knows."""
    return RULES[number].generic or number in (chip.compute, chip.copy, *chip.classes)


assert all(chip.channel in chip.classes for chip in CHIPS.values())
