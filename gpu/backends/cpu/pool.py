"""Worker threads for kernels, and the native replay of whole tables of them.

Threads and their waiting are generated code (`gpu/backends/cpu/pool_code.py`): a launch costs about
a microsecond while the workers still spin, and a wake-up through the kernel once they sleep. The
code comes from the compiler's cache, so that a warm process does not import LLVM.

Threads are started by the first launch. A forked child has none and starts its own. They leave
when their pool is stopped, collected, or the interpreter exits; what runs later runs on the caller
alone.
Systems without Linux's futex get pools of one worker, and a line in the log.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from gpu.backends.cpu import pool_code
from gpu.backends.cpu.ircode import load_ir
from gpu.backends.cpu.native import native_function
from gpu.core.config import config
from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.core.log import get_logger
from gpu.core.objload import LoadedObject
from gpu.core.once import once

_log = get_logger(__name__)
_MAX_WORKERS: Final = 4096
# Nanoseconds before a waiter sleeps. That is longer than Python takes from one call to the next: a
# wake-up costs 50 us where the host has to wake a virtual processor.
_SPIN: Final = 200_000
_EXIT_TIMEOUT: Final = 5.0  # seconds
# Threads of a pool take no signals, so that Python's main thread is the one they interrupt; those
# for errors of the thread itself cannot be put off.
_ERROR_SIGNALS: Final = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class Memory(NamedTuple):
    """Zeroed, page-aligned memory, valid while `mapping` is alive."""

    mapping: mmap.mmap
    address: int
    size: int


def allocate(size: int) -> Memory:
    """Maps memory of at least `size` bytes. Raises OutOfMemory where there is none."""
    try:
        mapping = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise OutOfMemory(
            f"{size} bytes for the CPU's workers cannot be mapped: {error}"
        ) from error
    return Memory(mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping)), size)


class _Native(NamedTuple):
    """The native functions; addresses go in as integers."""

    code: LoadedObject
    start: Callable[[int], int]
    stop: Callable[[int], None]
    run: Callable[[int, int, int], None]
    run_packed: Callable[[int, int, bytes], None]
    replay: Callable[[int, int, int], None]


class _Threads:
    """Running threads, and the state they share.

    Attributes:
        address: of the state; it goes with this object.
    """

    def __init__(self, native: _Native, workers: int, spin: int):
        """Starts the threads of workers 1 and up. Raises OutOfMemory where that fails."""
        self._native = native
        self._memory = allocate(pool_code.RECORDS + pool_code.RECORD_SIZE * workers)
        self.address = self._memory.address
        for offset, value in ((pool_code.WORKERS, workers), (pool_code.SPIN, spin)):
            self._memory.mapping[offset : offset + 8] = value.to_bytes(8, "little")
        self._running = True
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _ERROR_SIGNALS)
        try:
            error = native.start(self.address)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if error:
            self.stop()
            raise OutOfMemory(
                f"{workers} threads for the CPU device cannot be started: {os.strerror(error)};"
                " set CPU_THREADS to fewer"
            )

    def stop(self) -> None:
        """Ends the threads and waits until they have left; does nothing the second time."""
        if self._running:
            self._running = False
            self._native.stop(self.address)

    def forget(self) -> None:
        """For a forked child, where the threads are not."""
        self._running = False


class Pool:
    """`workers` threads that run one kernel together, the calling thread being worker 0.

    All methods may be called from any Python thread: one launch runs at a time. The interpreter
    lock is released while one does.

    Attributes:
        workers: how many.
        lock: held during a launch; a re-entrant lock, to hold where several calls belong together.
    """

    def __init__(self, workers: int, spin: int = _SPIN):
        """`spin` is how long a waiting thread looks before it sleeps, in nanoseconds.

        Raises InvalidValue for a number of workers that is not 1 to 4096.
        """
        if not 1 <= workers <= _MAX_WORKERS:
            raise InvalidValue(f"{workers} workers; expected 1 to {_MAX_WORKERS}")
        if workers > 1 and sys.platform != "linux":
            _log.warning("kernels run on 1 thread: threads are not supported on %s", sys.platform)
            workers = 1
        self.workers = workers
        self.lock = threading.RLock()
        self._spin = spin
        self._native = _load_native()
        self._threads: _Threads | None = None
        self._state = 0  # their address, or 0
        self._scratch = Memory(mmap.mmap(-1, 1), 0, 0)
        _pools.add(self)

    def run(self, function: int, args: int) -> None:
        """Runs the kernel at address `function` with the words at address `args`, and waits.

        Raises OutOfMemory where the threads cannot be started.
        """
        with self.lock:
            self._native.run(self._state or self._start(), function, args)

    def run_packed(self, function: int, words: bytes) -> None:
        """As `run`, with the words themselves."""
        with self.lock:
            self._native.run_packed(self._state or self._start(), function, words)

    def replay(self, table: int, count: int) -> None:
        """Runs `count` kernels in order, in one native call.

        The table at address `table` has three 8-byte words for each: the address of its function,
        that of its words, and whether it runs on all workers (1) or on the caller alone (0).
        """
        with self.lock:
            self._native.replay(self._state or self._start(), table, count)

    def scratch(self, bytes_per_worker: int) -> Memory:
        """Scratch memory for all workers, shared by all that ask: use it with `lock` held.

        It is grown by making it anew; who keeps its address keeps the object too.
        """
        with self.lock:
            needed = self.workers * bytes_per_worker
            if self._scratch.size < needed:
                self._scratch = allocate(max(needed, 2 * self._scratch.size))
            return self._scratch

    def stop(self) -> None:
        """Ends the threads; the next launch starts new ones."""
        with self.lock:
            if self._threads is not None:
                self._threads.stop()
            self._threads, self._state = None, 0

    def forget_threads(self) -> None:
        """For a forked child, which has none of its parent's threads, whatever they were doing."""
        self.lock = threading.RLock()
        if self._threads is not None:
            self._threads.forget()
        self._threads, self._state = None, 0

    def _start(self) -> int:
        """Starts the threads; returns the address of their state."""
        workers = 1 if _exiting.is_set() else self.workers
        self._threads = _Threads(self._native, workers, self._spin)
        weakref.finalize(self, self._threads.stop).atexit = False  # `_stop_all` does that
        self._state = self._threads.address
        return self._state


_pools: Final[weakref.WeakSet[Pool]] = weakref.WeakSet()
_exiting: Final = threading.Event()


@once
def shared_pool() -> Pool:
    """The pool of this process, of CPU_THREADS workers."""
    return Pool(config.CPU_THREADS)


@cache
def _load_native() -> _Native:
    code = load_ir(pool_code.pool_source, pool_code.EXTERNALS)

    def function(name: str, signature: str) -> Callable[..., Any]:
        return native_function(code.address(name), signature)

    return _Native(
        code,
        start=function("pool_start", "int32_t(*)(uintptr_t)"),
        stop=function("pool_stop", "void(*)(uintptr_t)"),
        run=function("pool_run", "void(*)(uintptr_t, uintptr_t, uintptr_t)"),
        run_packed=function("pool_run", "void(*)(uintptr_t, uintptr_t, char const *)"),
        replay=function("pool_replay", "void(*)(uintptr_t, uintptr_t, int64_t)"),
    )


def _stop_all() -> None:
    """At exit: a thread must not outlive the code it runs, nor Python what a launch works on.

    The locks are never given back, so that threads of Python that still go on launch nothing. A
    launch that does not end in time keeps its threads, and what it works on is left to its luck.
    """
    _exiting.set()
    for pool in list(_pools):
        if pool.lock.acquire(timeout=_EXIT_TIMEOUT):
            pool.stop()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget_threads()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget_all)
