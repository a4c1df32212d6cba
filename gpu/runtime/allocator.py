"""Device memory: what an allocator is, and one that keeps what is freed for the next request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any, Generic, TypeVar

from gpu.core.arguments import count_of
from gpu.core.dtype import ImageDType
from gpu.core.errors import OutOfMemory, Unsupported
from gpu.core.unpicklable import Unpicklable

M = TypeVar("M")


class Allocator(Unpicklable, ABC, Generic[M]):
    """Memory of one device. `M` is whatever the device's programs take as a buffer."""

    @abstractmethod
    def _alloc(self, nbytes: int) -> M:
        """Fresh memory. Raises OutOfMemory."""

    @abstractmethod
    def _free(self, memory: M, nbytes: int) -> None:
        """Gives memory back to the device."""

    @abstractmethod
    def copy_in(self, memory: M, data: memoryview) -> None:
        """Copies bytes from the host to the start of `memory`.

        Of a number that is no multiple of 4, the bytes up to the next multiple may be overwritten.
        """

    @abstractmethod
    def copy_out(self, data: memoryview, memory: M) -> None:
        """Copies bytes from the start of `memory` to the host, after all work on it is done."""

    def copy(self, target: M, source: M, nbytes: int) -> None:
        """Copies bytes from the start of `source` to the start of `target`, through the host."""
        staging = memoryview(bytearray(count_of(nbytes, "the number of bytes to copy")))
        self.copy_out(staging, source)
        self.copy_in(target, staging)

    def transfer(self, target: M, source: object, nbytes: int, owner: Allocator[Any]) -> bool:
        """Copies bytes from the start of another device's memory without going through the host.

        Args:
            target: memory of this allocator.
            source: memory of `owner`, in that one's terms.
            nbytes: how many; both have as many.
            owner: the allocator that `source` is of.

        Returns False, having done nothing, where there is no way between the devices; they need not
        be of one kind. Otherwise `source` may change as soon as this returns.
        """
        return False

    def host_address(self, memory: M) -> int | None:
        """Where the host can read `memory` in place; None where it cannot."""
        return None

    def borrow(self, address: int, nbytes: int, owner: object) -> M | None:
        """Host memory of someone else as memory of this device, without a copy.

        None where programs cannot use it in place. What this gives keeps `owner` alive as long as
        programs may use the memory.
        """
        return None

    def alloc_image(self, image: ImageDType) -> M:
        """Memory for an image, with undefined contents.

        Raises OutOfMemory, Unsupported on devices without images.
        """
        raise Unsupported(f"this device has no images, and {image.name} is one; use float32")

    def free_image(self, memory: M, image: ImageDType) -> None:
        """Gives back what `alloc_image(image)` returned."""
        raise AssertionError("a device without images gave none")

    def adopt_image(self, pointer: int, image: ImageDType) -> M:
        """As `adopt`, of an image. Raises Unsupported on devices without images."""
        raise Unsupported(f"this device has no images, and {image.name} is one; use float32")

    def adopt(self, pointer: int, nbytes: int) -> M | None:
        """Memory that another user of the device names by `pointer`, in the device's own terms.

        An address in host memory, unless the device says otherwise. None where it cannot be used.
        """
        return self.borrow(pointer, nbytes, None)

    def alloc(self, nbytes: int) -> M:
        """Memory of at least `nbytes` bytes with undefined contents.

        Raises OutOfMemory, InvalidType and InvalidValue for what is no number of bytes.
        """
        return self._alloc(count_of(nbytes, "the size of an allocation"))

    def free(self, memory: M, nbytes: int) -> None:
        """Gives back what `alloc(nbytes)` returned."""
        self._free(memory, nbytes)

    def free_cache(self) -> None:
        """Gives memory kept for later back to the device."""


class LRUAllocator(Allocator[M]):
    """Keeps freed memory by size and hands it out again; frees nothing until it must.

    Threads use it at once without a lock, which `free`, called by the garbage collector at any
    moment, could not wait for: what is kept is only taken by `pop`, which takes it or raises.

    Attributes:
        used: bytes handed out now.
        cached: bytes kept for later.
    """

    def __init__(self) -> None:
        self._kept: defaultdict[int, list[M]] = defaultdict(list)
        self.used = 0
        self.cached = 0

    def alloc(self, nbytes: int) -> M:
        """As `Allocator.alloc`; raises OutOfMemory after giving up what is kept."""
        nbytes = count_of(nbytes, "the size of an allocation")
        try:
            memory = self._kept[nbytes].pop()
        except IndexError:
            memory = self._alloc_or_make_room(nbytes)
        else:
            self.cached -= nbytes
        self.used += nbytes
        return memory

    def _alloc_or_make_room(self, nbytes: int) -> M:
        try:
            return self._alloc(nbytes)
        except OutOfMemory:
            if not self.cached:
                raise
            self.free_cache()
            return self._alloc(nbytes)

    def free(self, memory: M, nbytes: int) -> None:
        """Keeps `memory` for the next request of `nbytes`."""
        self.used -= nbytes
        self.cached += nbytes
        self._kept[nbytes].append(memory)

    def free_cache(self) -> None:
        """Gives everything kept back to the device."""
        for nbytes, memories in list(self._kept.items()):
            while True:
                try:
                    memory = memories.pop()
                except IndexError:
                    break
                self.cached -= nbytes
                self._free(memory, nbytes)
