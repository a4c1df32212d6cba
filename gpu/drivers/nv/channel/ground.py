"""What channels stand on, whoever made it: the kernel driver, or this driver on a bare card.

Channels are objects of RM wherever it runs. What differs is who places what they are made of,
who gives their engines room for contexts, and whose page tables they run in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu.core.wait import Waiter
from gpu.core.window import Window
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ce_select import CopyEngine
from gpu.drivers.nv.memory import NvMemory
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import Generation
from gpu.drivers.nv.rm.object import RmClient, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.hcq.ports import Memory


class Session(Protocol):
    """Who speaks to RM for one GPU."""

    @property
    def client(self) -> RmClient:
        """The root of its objects."""
        ...

    @property
    def log(self) -> CallLog:
        """What it has called."""
        ...

    @property
    def waiter(self) -> Waiter:
        """The clock, and how to wait."""
        ...

    @property
    def version(self) -> str:
        """That of RM."""
        ...

    def attend(self) -> None:
        """Serves what RM tells without being asked, where nobody else does.

        Raises DeviceLost where RM is gone.
        """
        ...

    def heard(self) -> Sequence[str]:
        """Errors that RM told of since this was last asked, in words."""
        ...

    def evidence(self) -> Mapping[str, bytes]:
        """What is to be kept where RM itself fails, by short names."""
        ...


class Place(Protocol):
    """Where a GPU is."""

    @property
    def pci_address(self) -> object:
        """For messages."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GpuObjects:
    """A GPU in RM's tree, and what it is.

    Attributes:
        device, subdevice: in the tree.
        classes: of its generation.
        units: how large it is.
        usermode: the page with doorbell and clock.
    """

    device: RmObject
    subdevice: RmObject
    classes: Generation
    units: GraphicsInfo
    usermode: Window


@dataclass(frozen=True, slots=True, eq=False)
class GpuMemory:
    """A GPU's page tables, and what allocates in them; ``uuid`` is the GPU's name for people."""

    uuid: bytes
    vaspace: RmObject
    port: NvMemory


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A channel group; its channels share a fate, an engine and, if any, the context share."""

    object: RmObject
    engine_type: int
    context_share: RmObject | None


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMemory:
    """The memory of a channel: ring and USERD on the card, the notifier in system memory."""

    entries: int
    ring: Memory
    userd_offset: int
    notifier: Memory


class ChannelGround(Protocol):
    """What one GPU's channels stand on. Methods raise as `RmObject`'s."""

    def copy_engines(self) -> Sequence[CopyEngine]:
        """The copy engines that channels can use."""
        ...

    def new_channel(
        self, name: str, group: Group, class_id: int, memory: ChannelMemory, undo: Undo
    ) -> RmObject:
        """A channel below its group, ready to be given its engine; not scheduled."""
        ...

    def token(self, channel: RmObject) -> int:
        """What the doorbell takes for a channel."""
        ...

    def register(self, channel: RmObject, undo: Undo) -> None:
        """Gives a channel that has its engine all that it must have before it is scheduled."""
        ...

    def schedule(self, group: RmObject) -> None:
        """Lets the channels of a group run."""
        ...

    def renew_vaspace(self, old: RmObject) -> RmObject:
        """Other page tables in place of these, with all memory where it was."""
        ...
