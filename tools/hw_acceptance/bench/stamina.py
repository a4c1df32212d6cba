"""That nothing piles up and nothing is lost: many launches from threads, while Ctrl-C comes."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from gpu.core.errors import InvalidValue
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import WORDS, Ints, download, numbers, upload
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from tools.hw_acceptance.bench import rows
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.suites.opens import target_for

THREADS: Final = 4
_MODELS: Final = f"{os.sep}gpu{os.sep}sim{os.sep}"  # where the files of models are
_MOST_GROWTH: Final = 16 << 20  # bytes that a process may grow by
_MOST_MAPPINGS: Final = 20
_MOST_FILES: Final = 4  # queues get more memory for commands when threads are far ahead
_PERIOD: Final = 0.01  # seconds between two signals, on average
INTERRUPTIONS: Final = 8  # at least so many calls are interrupted, or little was tried
_PATIENCE: Final = 60.0  # seconds that signals have for it once all else is done
_SLICE: Final = 50  # launches of a thread between two waits
_SIZES: Final = 8  # of buffers, powers of two


Around = Callable[[Callable[[], object]], bool]
"""Calls a function; whether it came to its end."""
Checks = dict[str, tuple[bool, str]]


@dataclass(frozen=True)
class Held:
    """What a process holds, before and after."""

    files: int
    mappings: int
    addresses: int
    resident: int


@dataclass(frozen=True)
class Result:
    """What became of it all: checks with their names, and how many signals interrupted a call."""

    checks: Checks
    interrupted: int


def stamina(context: Context) -> None:
    """100,000 launches and 10,000 allocations on hardware. Raises StepFailed."""
    sizes = rows.SMALL if context.simulation is not None else rows.Sizes()
    target = target_for(context, traced=False)
    with target.open() as device:
        add = target.program(device, "add")
        began = time.perf_counter()
        held = partial(target.in_use, device)
        result = endure(device, add, sizes.launches, sizes.allocations, held)
        context.log.fact("seconds", time.perf_counter() - began)
        context.log.fact("interrupted calls", result.interrupted)
        for name, (good, told) in result.checks.items():
            context.log.check(name, good, told)


def endure(
    device: HCQDevice,
    add: HCQProgram,
    launches: int,
    allocations: int,
    in_use: Callable[[], int],
    seed: int = 1,
) -> Result:
    """Threads that launch and allocate beside the main thread, which is interrupted as it does so.

    The main thread launches on until `INTERRUPTIONS` signals came where they count: how many that
    are of so many launches is a matter of the machine and what else it does. ``add`` is the
    suite's, ``in_use`` tells bytes that the device holds. Of the main thread's launches those that
    were not interrupted have happened, and of the others each has or has not. Raises InvalidValue
    off the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidValue("signals come to the main thread: call it there")
    rounds = _Round(device, add, seed)
    rounds.run(launches // 4, allocations // 4)  # makes what is kept
    before = _held(in_use)
    checks, interrupted = rounds.run(launches, allocations)
    checks["nothing piles up"] = _flat(before, _held(in_use))
    return Result(checks, interrupted)


class Interrupts:
    """SIGINT as KeyboardInterrupt, but only within `around`."""

    def __init__(self) -> None:
        self.count = 0
        self._armed = False

    def handle(self, _: int, frame: FrameType | None) -> None:
        """The handler of the signal. What a model of a GPU runs is not interrupted: no GPU is."""
        if not self._armed:
            return
        while frame is not None:
            if _MODELS in frame.f_code.co_filename:
                return
            frame = frame.f_back
        self._armed = False
        raise KeyboardInterrupt

    def around(self, act: Callable[[], object]) -> bool:
        """Calls a function; whether it came to its end."""
        try:
            try:
                self._armed = True
                act()
            finally:
                self._armed = False
        except KeyboardInterrupt:
            self.count += 1
            return False
        return True


@contextmanager
def _interrupts(seed: int) -> Iterator[Interrupts]:
    """SIGINT again and again, at random times."""
    interrupts, ended, rng = Interrupts(), threading.Event(), random.Random(seed)

    def send() -> None:
        while not ended.wait(rng.uniform(0, 2 * _PERIOD)):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupts.handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield interrupts
    finally:
        ended.set()
        sender.join()
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True)
class _Round:
    """Launches and allocations of all threads at once."""

    device: HCQDevice
    add: HCQProgram
    seed: int

    def run(self, launches: int, allocations: int) -> tuple[Checks, int]:
        """So many of all threads together; what came of them, and how many were interrupted."""
        one = upload(self.device, numbers(0) * 0 + 1)
        counts = [upload(self.device, numbers(0) * 0) for _ in range(THREADS)]
        self.device.synchronize()
        each, kept = launches // THREADS, allocations // THREADS
        with ThreadPoolExecutor(THREADS - 1) as threads, _interrupts(self.seed) as interrupts:
            others = [
                threads.submit(self._work, count, one, each, kept, _call) for count in counts[1:]
            ]
            done, tried = self._work(counts[0], one, each, kept, interrupts.around), each
            late = time.monotonic() + _PATIENCE
            while interrupts.count < INTERRUPTIONS and time.monotonic() < late:
                done += self._work(counts[0], one, _SLICE, 0, interrupts.around)
                tried += _SLICE
            while not all(other.done() for other in others):
                interrupts.around(lambda: time.sleep(_PERIOD))
            finished = [done, *(other.result() for other in others)]
        self.device.synchronize()
        most = [tried] + [each] * (THREADS - 1)
        checks = {
            f"{n} launches of thread {number}": _counted(download(self.device, count), least, n)
            for number, (count, least, n) in enumerate(zip(counts, finished, most, strict=True))
        }
        del one, counts
        gc.collect()
        self.device.wait_in_order()  # the next submission takes back what was collected
        return checks, interrupts.count

    def _work(
        self, count: HCQBuffer, one: HCQBuffer, launches: int, allocations: int, around: Around
    ) -> int:
        """Launches that count and allocations, by turns; how many launches came to their end."""
        done = 0
        for start in range(0, launches, _SLICE):
            for _ in range(min(_SLICE, launches - start)):
                done += around(lambda: self.add(count, count, one, vals=(WORDS,)))
            for number in range(_part(start, launches, allocations)):
                around(partial(self.device.allocator.alloc, 1 << (8 + number % _SIZES)))
            around(self.device.wait_in_order)
        return done


def _call(act: Callable[[], object]) -> bool:
    """What threads do that signals do not come to."""
    act()
    return True


def _part(start: int, launches: int, allocations: int) -> int:
    """How many of the allocations belong to the slice of launches from ``start`` on."""
    ends = (min(at, launches) * allocations // launches for at in (start, start + _SLICE))
    first, last = ends
    return last - first


def _counted(found: Ints, least: int, most: int) -> tuple[bool, str]:
    same = bool((found == found[0]).all())
    return same and least <= int(found[0]) <= most, f"{found[:4].tolist()}: {least} to {most}"


def _held(in_use: Callable[[], int]) -> Held:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Held(len(os.listdir("/proc/self/fd")), maps, in_use(), pages << 12)


def _flat(before: Held, after: Held) -> tuple[bool, str]:
    flat = (
        after.files - before.files <= _MOST_FILES
        and after.mappings - before.mappings < _MOST_MAPPINGS
        and after.addresses - before.addresses < _MOST_GROWTH
        and after.resident - before.resident < _MOST_GROWTH
    )
    return flat, f"{before} and then {after}"
