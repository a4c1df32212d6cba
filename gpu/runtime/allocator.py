"""Device memory: what an allocator is, and one that keeps what is freed for the next request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gpu.core.arguments import count_of
from gpu.core.config import config
from gpu.core.dtype import ImageDType
from gpu.core.errors import OutOfMemory, Unsupported
from gpu.core.unpicklable import Unpicklable
from gpu.runtime.exchange import Exchange

M = TypeVar("M")


class Allocator(Unpicklable, ABC, Generic[M]):
    """Memory of one device. `M` is whatever the device's programs take as a buffer.

    Threads use it at once without a lock, which `free`, called by the garbage collector at any
    moment, could not wait for.

    Attributes:
        live: bytes handed out now, as they were asked for.
        peak: the most there were at once, since the start or `reset_peak`.
        exchange: shares memory that is a device's own with other libraries; None where none does.
    """

    live = 0
    peak = 0
    exchange: Exchange[M] | None = None

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
        be of one kind. Otherwise whatever is launched afterwards may change `source`.
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

    def adopt(self, pointer: int, nbytes: int, offset: int = 0) -> M | None:
        """Memory that another user of the device names by `pointer`, in the device's own terms.

        It begins `offset` bytes behind that. An address in host memory, unless the device says
        otherwise. None where it cannot be used.
        """
        return self.borrow(pointer + offset, nbytes, None)

    def alloc(self, nbytes: int) -> M:
        """Memory of at least `nbytes` bytes with undefined contents.

        Raises OutOfMemory, also where MEMORY_LIMIT says so, InvalidType and InvalidValue for what
        is no number of bytes.
        """
        if type(nbytes) is not int or nbytes < 0:
            nbytes = count_of(nbytes, "the size of an allocation")
        memory = self._take(nbytes)
        self.live = live = self.live + nbytes
        if live > self.peak:  # noqa: PLR1730  # calling max costs more than all of this
            self.peak = live
        return memory

    def free(self, memory: M, nbytes: int) -> None:
        """Gives back what `alloc(nbytes)` returned."""
        self.live -= int(nbytes)  # a numpy integer would make one of the sum, which overflows
        self._keep(memory, nbytes)

    @property
    def cached(self) -> int:
        """Bytes kept for later."""
        return 0

    def reset_peak(self) -> None:
        """Counts `peak` from now on."""
        self.peak = self.live

    def free_cache(self) -> None:
        """Gives memory kept for later back to the device."""

    def _take(self, nbytes: int) -> M:
        """Memory to hand out: fresh, unless something is kept."""
        self._make_room(nbytes)
        return self._alloc(nbytes)

    def _keep(self, memory: M, nbytes: int) -> None:
        """Takes memory back."""
        self._free(memory, nbytes)

    def _make_room(self, nbytes: int) -> None:
        """Gives up what is kept if fresh memory passes MEMORY_LIMIT. Raises OutOfMemory."""
        limit = config.MEMORY_LIMIT
        if limit is None or self.live + self.cached + nbytes <= limit:
            return
        self.free_cache()
        if self.live + nbytes > limit:
            raise OutOfMemory(
                f"cannot allocate {nbytes:,} bytes: {self.live:,} are in use, and MEMORY_LIMIT "
                f"allows {limit:,} on each device; free tensors, use smaller ones, or raise it"
            )


class LRUAllocator(Allocator[M]):
    """Keeps freed memory by size and hands it out again; frees nothing until it must.

    What is kept is only taken by `pop`, which takes it or raises: threads need no lock.
    """

    def __init__(self) -> None:
        self._kept: defaultdict[int, list[M]] = defaultdict(list)
        self._cached = 0

    @property
    def cached(self) -> int:
        """Bytes kept for later."""
        return self._cached

    def _take(self, nbytes: int) -> M:
        """Memory that was kept, or fresh; OutOfMemory after giving up what is kept."""
        try:
            memory = self._kept[nbytes].pop()
        except IndexError:
            pass
        else:
            self._cached -= nbytes
            return memory
        return self._fresh(nbytes, lambda: self._alloc(nbytes))

    def _fresh(self, nbytes: int, make: Callable[[], M]) -> M:
        """What `make` gives, if need be in the place of what is kept."""
        self._make_room(nbytes)
        try:
            return make()
        except OutOfMemory:
            if not self.cached:
                raise
            self.free_cache()
            return make()

    def _keep(self, memory: M, nbytes: int) -> None:
        """Keeps `memory` for the next request of `nbytes`."""
        self._cached += nbytes
        self._kept[nbytes].append(memory)

    def free_cache(self) -> None:
        """Gives everything kept back to the device."""
        for nbytes, memories in list(self._kept.items()):
            while (memory := popped(memories)) is not None:
                self._cached -= nbytes
                self._free(memory, nbytes)


def popped(kept: list[M]) -> M | None:
    """The last of what is kept, which another thread may take first; None where nothing is."""
    try:
        return kept.pop()
    except IndexError:
        return None
