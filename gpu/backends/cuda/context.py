"""The primary context of a GPU, which all users of CUDA in a process share.

The order of its life: opened; used; after a fault or a fork lost, when every call raises
`DeviceLost`; after a fault perhaps made anew by `recover`; closed when the process ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from gpu.backends.cuda.codes import Attribute, Result, error_of
from gpu.backends.cuda.launches import Launches
from gpu.backends.cuda.library import OLDEST, UPDATE, Library, Words, launch_config
from gpu.backends.cuda.streams import Streams
from gpu.core.errors import DeviceError, DeviceLost, GpuError, GpuFault, InvalidValue
from gpu.core.lifetime import close_at_exit, tell_of_forks
from gpu.core.log import get_logger

log = get_logger(__name__)

_NAME_BYTES: Final = 256
_NOTHING: Final = (
    b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }"
)


class GpuInfo(NamedTuple):
    """A GPU, as libcuda tells of it.

    Attributes:
        handle: CUdevice.
        name: of the product.
        capability: what compilers call its architecture, as a number: 90 is sm_90.
        multiprocessors: how many it has.
        memory: bytes in all.
        driver: the version of CUDA that the driver is of.
    """

    handle: int
    name: str
    capability: int
    multiprocessors: int
    memory: int
    driver: tuple[int, int]


class Made(Protocol):
    """Something that was made in a context, and goes with it."""

    def lose(self) -> None:
        """The context was made anew, and this is gone: it is made again on use, or says so."""

    def close(self) -> None:
        """The context is about to be given back, and so is this; nothing uses it any more."""


class CudaContext:
    """The primary context of one GPU, retained, with its streams.

    Attributes:
        library: libcuda.
        info: the GPU.
        handle: CUcontext.
        lost: why every use raises DeviceLost; None while it does not.
        streams: its streams.
        launched: what was launched and is perhaps not done.
        lock: held by who enqueues something, for as long as that takes.
        retired: what is to be given back: when up to this ticket all is done, by which function.
        copying: held by who copies between host and GPU, taken before `lock`.
    """

    def __init__(self, library: Library, info: GpuInfo):
        """Raises the error of libcuda's code where the context cannot be had."""
        self.library, self.info = library, info
        self.lock, self.copying = threading.RLock(), threading.Lock()
        self.launched = Launches()
        self.lost: str | None = None
        self._current = Words()
        self._tell_current = library.bind("cuCtxGetCurrent", self._current.address)
        self._made: WeakSet[Made] = WeakSet()
        self.retired: deque[tuple[int, Callable[[int], int], int]] = deque()
        self._process = os.getpid()
        self.handle = self._retain()
        self._set_current()
        self.streams = Streams(library, self.check)
        tell_of_forks(self)
        close_at_exit(self)

    def _retain(self) -> int:
        words = Words()
        retained = self.library.cuDevicePrimaryCtxRetain(words.address, self.info.handle)
        self.check(retained, f"use {self.info.name}")
        return words[0]

    def _set_current(self) -> None:
        self.check(self.library.cuCtxSetCurrent(self.handle), f"use {self.info.name}")

    def enter(self) -> None:
        """Makes the context this thread's current one, if another is; the lock is held.

        Raises DeviceLost.
        """
        if self.lost is not None:
            raise DeviceLost(self.lost)
        code = self._tell_current()
        if code or self._current.values[0] != self.handle:
            self.check(code, "tell the current context")
            self._set_current()

    def synchronize(self) -> None:
        """Waits until all that was enqueued is done. Raises GpuFault, DeviceLost."""
        with self.lock:
            self.enter()
            ticket = self.streams.ticket
        if ticket == self.streams.finished and not self.retired:
            return
        self.check(self.library.cuStreamSynchronize(self.streams.launches), "wait for the GPU")
        self.streams.finished = max(ticket, self.streams.finished)
        self.launched.forget(self.streams.finished)
        self._give_back()

    def synchronize_all(self) -> None:
        """Waits until all that anyone enqueued in the context is done, other libraries too."""
        with self.lock:
            self.enter()
        self.check(self.library.cuCtxSynchronize(), "wait for the GPU")

    def check(self, code: int, what: str) -> None:
        """Raises the error of a code that is not 0; after a fault, always DeviceLost."""
        if self.lost is not None:
            raise DeviceLost(self.lost)
        if not code:
            return
        error = error_of(code, self.library.error_name(code), what)
        if isinstance(error, GpuFault):
            error.add(self.launched.told())
            self.lost = (
                f"{error.message}; CUDA refuses all work in this process since. Start it again; or"
                " recover(force=True) of the device resets the GPU for this process, in which all"
                " tensors there are lost, those of other libraries too"
            )
        elif isinstance(error, DeviceLost):
            self.lost = error.message
        raise error

    @property
    def is_lost(self) -> bool:
        """Whether every use raises DeviceLost."""
        return self.lost is not None

    def forked(self) -> None:
        """Makes every later use in this process, a forked child, raise DeviceLost.

        libcuda does not work there (cuda.h: CUDA_ERROR_NOT_INITIALIZED).
        """
        # Who held a lock is not here.
        self.lock, self.copying = threading.RLock(), threading.Lock()
        self.lost = (
            f"the CUDA device {self.info.name} was opened before this process was forked, and CUDA"
            " does not work after that; open it in the child only (multiprocessing: use the start"
            " method spawn)"
        )

    def note(self, made: Made) -> None:
        """`made` is to be told when the context is made anew."""
        self._made.add(made)

    def retire(
        self, give_back: Callable[[int], int], handle: int, ticket: int | None = None
    ) -> None:
        """Gives something back when all up to a ticket is done; called at any moment.

        Without one that is all that is enqueued now.
        """
        if not self.is_lost:
            until = self.streams.ticket if ticket is None else ticket
            self.retired.append((until, give_back, handle))

    def give_back_ended(self) -> None:
        """Gives back what has ended of what was retired, and waits for nothing; the lock is held.

        Asked at each launch: else a program that borrows memory, and never reads a result, would
        keep all of it.
        """
        if self.retired and self.streams.has_come():
            self.launched.forget(self.streams.finished)
            self._give_back()

    def _give_back(self) -> None:
        with self.lock:
            self.enter()
            for _ in range(len(self.retired)):
                ticket, give_back, handle = self.retired.popleft()
                if ticket > self.streams.finished:
                    self.retired.append((ticket, give_back, handle))
                else:
                    self.check(give_back(handle), "give a module or graph back")

    def recover(self, force: bool = False) -> None:
        """Resets the context after a fault, and sees whether a launch works.

        Raises InvalidValue without `force`, DeviceLost where it does not help.
        """
        if not force:
            raise InvalidValue(
                "recover() of a CUDA device resets the GPU for the whole process: tensors there are"
                " lost, and so is what other libraries of the process have there, which nobody can"
                " count; say recover(force=True) if that is what you want"
            )
        with self.lock:
            if self._process != os.getpid():
                raise DeviceLost(str(self.lost))
            self.lost = None
            self.retired.clear()
            try:
                self._make_anew()
            except GpuError as error:
                self.lost = (
                    f"{self.info.name} does not work after a reset ({error.message}): restart the"
                    " process"
                )
                raise DeviceLost(self.lost) from error

    def _make_anew(self) -> None:
        library, device = self.library, self.info.handle
        self.launched.forget(self.streams.ticket)
        self.check(library.cuDevicePrimaryCtxRelease_v2(device), "release its context")
        # Others may have retained it as well: then it is still there, and does not work.
        self.check(library.cuDevicePrimaryCtxReset_v2(device), "reset its context")
        self.handle = self._retain()
        self._set_current()
        self.streams = Streams(library, self.check)
        for made in list(self._made):
            made.lose()
        self._launch_nothing()

    def _launch_nothing(self) -> None:
        library, module, function = self.library, Words(), Words()
        image, name = ctypes.create_string_buffer(_NOTHING), ctypes.create_string_buffer(b"nothing")
        loaded = library.cuModuleLoadDataEx(module.address, ctypes.addressof(image), 0, 0, 0)
        self.check(loaded, "load a kernel")
        found = library.cuModuleGetFunction(function.address, module[0], ctypes.addressof(name))
        self.check(found, "find a kernel")
        stream = self.streams.launches
        config = launch_config(1, 1, 0, stream)
        launched = library.cuLaunchKernelEx(config.address, function[0], 0, 0)
        self.check(launched, "launch a kernel")
        self.check(library.cuStreamSynchronize(stream), "wait for the GPU")
        self.check(library.cuModuleUnload(module[0]), "unload a kernel")

    def close(self) -> None:
        """Waits for what was enqueued, and gives the context back. Raises GpuFault."""
        if self.is_lost:
            return
        self.synchronize()
        with self.lock:
            self.enter()
            for made in list(self._made):
                made.close()
            self.streams.destroy()
            released = self.library.cuDevicePrimaryCtxRelease_v2(self.info.handle)
            self.check(released, "release its context")
            self.lost = f"the CUDA device {self.info.name} was closed"


def open_context(library: Library, index: int) -> CudaContext:
    """The context of a GPU. Raises DeviceError where there is none of that number."""

    def check(code: int, what: str) -> None:
        if code == Result.NO_DEVICE:
            raise DeviceError(
                "libcuda finds no GPU: `gpu doctor` says what is missing, CUDA_VISIBLE_DEVICES may"
                " hide it, or the kernel's driver is of another version than libcuda"
            )
        if code:
            raise error_of(code, library.error_name(code), what)

    words = Words()
    check(library.cuInit(0), "begin")
    check(library.cuDriverGetVersion(words.address), "tell its version")
    driver = _int(words) // 1000, _int(words) % 1000 // 10
    if driver < OLDEST:
        raise DeviceError(
            f"the driver is of CUDA {driver[0]}.{driver[1]}, and CUDA {OLDEST[0]}.{OLDEST[1]} is"
            f" the oldest that is used here: {UPDATE}"
        )
    check(library.cuDeviceGetCount(words.address), "count GPUs")
    if (count := _int(words)) <= index:
        raise DeviceError(
            f"there is no CUDA:{index}: libcuda finds {count} GPU(s), of number 0"
            + (f" to {count - 1}" if count > 1 else "")
        )
    check(library.cuDeviceGet(words.address, index), f"find GPU {index}")
    handle = _int(words)

    def attribute(which: Attribute) -> int:
        told = library.cuDeviceGetAttribute(words.address, which, handle)
        check(told, f"tell {which.name.lower()}")
        return _int(words)

    major, minor, multiprocessors = (
        attribute(Attribute.COMPUTE_CAPABILITY_MAJOR),
        attribute(Attribute.COMPUTE_CAPABILITY_MINOR),
        attribute(Attribute.MULTIPROCESSOR_COUNT),
    )
    name = ctypes.create_string_buffer(_NAME_BYTES)
    named = library.cuDeviceGetName(ctypes.addressof(name), _NAME_BYTES, handle)
    check(named, "tell its name")
    check(library.cuDeviceTotalMem_v2(words.address, handle), "tell its memory")
    told = name.value.decode(errors="replace")
    return CudaContext(
        library, GpuInfo(handle, told, 10 * major + minor, multiprocessors, words[0], driver)
    )


def _int(words: Words) -> int:
    """The C int that was written."""
    return memoryview(words.memory).cast("i")[0]
