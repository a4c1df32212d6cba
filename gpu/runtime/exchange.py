"""Sharing device memory in place with other libraries of the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

M = TypeVar("M")


class MemoryHandle(NamedTuple):
    """What another process opens memory by; all of it can be sent anywhere but `file`.

    Attributes:
        machine: which start of which machine it is of.
        device: the device's own name of itself, the same in every process.
        process: the number of the process that has the memory.
        nbytes: how many there are.
        token: what the device's library opens the memory by; empty where a file is.
        file: the descriptor of a file that stands for the memory; -1 where a token does.
    """

    machine: str
    device: bytes
    process: int
    nbytes: int
    token: bytes
    file: int = -1


class Exchange(ABC, Generic[M]):
    """How a device's memory is lent to others, and theirs is used; `M` is as its allocator's.

    Work of others is in streams of their own, which are named by numbers, as in `__dlpack__`.

    Attributes:
        device: what DLPack calls the device: its type and number.
        alignment: bytes of which the address of memory that programs use is a multiple.
    """

    device: tuple[int, int]
    alignment: int

    @property
    @abstractmethod
    def stream(self) -> int | None:
        """The stream that everything launched here is in; None where others name none.

        Then who takes memory waits first for what makes its value. Raises DeviceLost.
        """

    @abstractmethod
    def lend(self, memory: M, stream: int | None, owner: object) -> tuple[int, object]:
        """The address of `memory`, and what is held for as long as someone else uses it.

        What comes in `stream` from now on is behind all that was enqueued here. With None they say
        nothing of streams, and the host waits. `memory` is handed out again only behind what is in
        `stream` when that is dropped, or where it cannot be told apart, behind all there is.
        `owner` is kept as long. Raises InvalidValue for a stream that there is not.
        """

    def offset(self, memory: M) -> int:
        """How many bytes behind the address that `lend` gives `memory` begins."""
        del memory
        return 0

    @abstractmethod
    def adopt(self, address: int, nbytes: int, owner: object, offset: int = 0) -> tuple[M, object]:
        """Memory of others, `offset` bytes behind an address or in what the device has there.

        And what is held for as long as it is used here: `owner` is kept alive until that is dropped
        and what is enqueued on the memory is done. Raises InvalidValue for an address that is no
        memory of this device, or has fewer bytes.
        """

    @abstractmethod
    def home(self, address: int) -> tuple[int, int]:
        """Which device has the memory at an address: this, or another of the kind.

        Raises InvalidValue for an address that is no memory of one.
        """

    @abstractmethod
    def follow(self, stream: int | None) -> None:
        """What is launched from now on comes behind all that is in a stream of others now.

        With None behind all that there is. Raises InvalidValue for a stream that there is not.
        """


class ProcessExchange(Exchange[M]):
    """An `Exchange` of a device whose memory other processes can open too."""

    @abstractmethod
    def export(self, nbytes: int, as_file: bool) -> tuple[int, object, MemoryHandle]:
        """New memory that other processes can open: its address, what keeps it, and a handle.

        By a file it is there until the last who opened it lets go; else until what keeps it is
        dropped. Raises OutOfMemory, and Unsupported where the driver cannot do that.
        """

    @abstractmethod
    def open(self, handle: MemoryHandle) -> tuple[int, object]:
        """Memory of another process: its address here, and what keeps it open.

        Raises InvalidValue for a handle of another machine or device, of this process, and of
        memory that is gone or is shorter; Unsupported where the driver cannot do that.
        """
