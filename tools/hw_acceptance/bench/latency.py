"""How long a launch takes from the call to its completion, seen by a host that spins.

Ours is prepared beforehand: pushbuffer, descriptor and constants lie in memory, and a launch is one
native call that writes the ring, the pointer and the doorbell, and one that spins; both are called
from Python. The vendor's is cuLaunchKernel and cuStreamSynchronize called from C.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gpu.core import hoststore
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.nv.channel.channel import ENTRY_SIZE, GP_PUT
from gpu.drivers.nv.encode.pushbuf import gp_entry
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import LAUNCH_LOOP, read_kernel
from tools.hw_acceptance.ladder.launching import Launcher, launcher
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.vendor.libcuda import Cuda

_COUNT: Final = 2000
_WARM_UP: Final = 200
_PREPARED: Final = 64
_PATIENCE_NS: Final = 1_000_000_000


def ours(context: Context) -> None:
    """Launches of a kernel without work, prepared in turns with payloads of their own."""
    with launcher(context) as launches:
        times = _time_ours(launches)
        faults = launches.work.gpu.failed().values()
        context.log.check("no fault", not faults, "; ".join(str(each) for each in faults))
        _tell(context, "launch to completion", times[_WARM_UP:])


def vendors(context: Context) -> None:
    """The same through libcuda, and through cupy where it is installed.

    Raises Unavailable without libcuda, StepFailed for its errors.
    """
    with Cuda() as cuda:
        _tell(context, "cuLaunchKernel to completion", time_libcuda(context, cuda)[_WARM_UP:])
        if times := time_cupy(context):
            _tell(context, "cupy to completion", times[_WARM_UP:])


def _time_ours(launches: Launcher) -> list[int]:
    work = launches.work
    channel = work.gpu.compute_queue
    loaded = launches.load("nothing")
    done = work.semaphore()
    entries = []
    for payload in range(1, _PREPARED + 1):
        push = launches.prepare(loaded, (), (1, 1, 1), (1, 1, 1), done, payload)
        address = work.pushes.put(bytes(push.data))
        entries.append(gp_entry(address, len(push.data) // 4))
    template = (ctypes.c_uint64 * _PREPARED)(*entries)
    ring, pointer = _address(channel.ring), _address(channel.userd) + GP_PUT
    doorbell, place = _address(channel.doorbell), _address(done.window)
    words = channel.entries * ENTRY_SIZE // 4
    times = []
    put = channel.put()
    for number in range(_WARM_UP + _COUNT):
        index = number % _PREPARED
        entry = ctypes.addressof(template) + ENTRY_SIZE * index
        following = (put + 1) % channel.entries
        began = time.perf_counter_ns()
        hoststore.kick(
            *(ring, words, 2 * put, entry, 2),
            *(pointer, following, 4, doorbell, channel.token, 4, 0, 0),
        )
        equal = hoststore.SpinOp.EQUAL
        if not hoststore.spin(place, 8, index + 1, equal, _PATIENCE_NS):
            raise StepFailed(f"launch {number}: the release did not come, {done.value:#x} is there")
        times.append(time.perf_counter_ns() - began)
        put = following
    return times


def time_libcuda(context: Context, cuda: Cuda) -> list[int]:
    """Nanoseconds of each launch through libcuda, from C. Raises StepFailed."""
    major, minor = (cuda.attribute(number) for number in (75, 76))
    function = cuda.load(read_kernel(context.folder, 10 * major + minor, "nothing"), "nothing")
    loop = ctypes.CDLL(str(context.folder / LAUNCH_LOOP)).time_launches
    times = (ctypes.c_uint64 * (_WARM_UP + _COUNT))()
    error = loop(
        cuda.library.cuLaunchKernel,
        cuda.library.cuStreamSynchronize,
        *(function, None, None, len(times), times),
    )
    if error:
        raise StepFailed(f"launching through libcuda: CUresult {error}")
    return list(times)


def time_cupy(context: Context) -> list[int]:
    """Nanoseconds of each launch through cupy, from Python; none where cupy does not work."""
    if importlib.util.find_spec("cupy") is None:
        return []
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # there may be no home folder to write to
    try:
        cupy = importlib.import_module("cupy")
        kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
        stream = cupy.cuda.get_current_stream()

        def once() -> None:
            kernel((1,), (1,), ())
            stream.synchronize()

        return _time(once)
    except (ImportError, OSError, RuntimeError) as error:
        context.log.fact("cupy", f"{type(error).__name__}: {error}")
        return []


def _time(once: Callable[[], None]) -> list[int]:
    times = []
    for _ in range(_WARM_UP + _COUNT):
        began = time.perf_counter_ns()
        once()
        times.append(time.perf_counter_ns() - began)
    return times


def _tell(context: Context, name: str, times: Sequence[int]) -> None:
    points = np.percentile(times, (0, 10, 50, 90, 99)).round().astype(int).tolist()
    names = ("least", "p10", "median", "p90", "p99")
    context.log.fact(f"{name}, ns", dict(zip(names, points, strict=True)))


def _address(window: Window) -> int:
    assert isinstance(window, MemoryWindow), "device files give memory"
    return window.address
