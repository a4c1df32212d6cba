"""Streams, their order and the default ones; events; functions of the program in streams."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gpu.sim.cuda.library import Library
from sim.cuda.raw_cuda import RawCuda

INVALID_VALUE, INVALID_HANDLE, NOT_READY, NOT_PERMITTED = 1, 400, 600, 800
HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
LEGACY, PER_THREAD = 1, 2


class Noted:
    """Functions that write down their number when a stream comes to them."""

    def __init__(self, raw: RawCuda):
        self.seen: list[int] = []
        self._raw = raw
        self._function = HOST(lambda number: self.seen.append(number or 0))

    def add(self, stream: int, number: int, twin: str = "") -> None:
        self._raw.call(f"cuLaunchHostFunc{twin}", stream, self._function, number)


@pytest.fixture
def noted(raw: RawCuda) -> Iterator[Noted]:
    raw.start()
    yield Noted(raw)
    raw.call("cuCtxSynchronize")


def before(noted: Noted, first: int, then: int) -> bool:
    return noted.seen.index(first) < noted.seen.index(then)


def test_a_stream_is_in_order_and_others_are_not(raw: RawCuda, noted: Noted) -> None:
    streams = [raw.stream(1) for _ in range(3)]
    orders = set()
    for _ in range(6):
        noted.seen.clear()
        for number in range(1, 5):
            for place, stream in enumerate(streams):
                noted.add(stream, 100 * place + number)
        raw.call("cuCtxSynchronize")
        for place in range(3):
            own = [n for n in noted.seen if n // 100 == place]
            assert own == sorted(own)
        orders.add(tuple(noted.seen))
    assert len(orders) > 1


def test_work_is_late(raw: RawCuda, noted: Noted) -> None:
    noted.add(raw.stream(1), 1)
    stream = raw.stream(1)
    for number in range(2, 12):
        noted.add(stream, number)
    assert len(noted.seen) < 11
    raw.call("cuStreamSynchronize", stream)
    assert [n for n in noted.seen if n > 1] == list(range(2, 12))


def test_an_asked_stream_comes_to_an_end(raw: RawCuda, noted: Noted) -> None:
    stream = raw.stream(1)
    noted.add(stream, 1)
    event = raw.event(2)
    raw.call("cuEventRecord", event, stream)
    asked = 0
    while raw.result("cuEventQuery", event) == NOT_READY:
        asked += 1
        assert asked < 1000
    assert raw.result("cuStreamQuery", stream) == 0
    assert noted.seen == [1]


@pytest.mark.parametrize("blocking", [True, False])
def test_the_legacy_stream_and_others(raw: RawCuda, noted: Noted, blocking: bool) -> None:
    """Blocking streams wait for it, and it waits for them; non-blocking ones know nothing of it."""
    crossed = 0
    for _ in range(12):
        noted.seen.clear()
        stream = raw.stream(0 if blocking else 1)
        noted.add(stream, 1)
        noted.add(0, 2)
        noted.add(stream, 3)
        noted.add(LEGACY, 4)
        raw.call("cuCtxSynchronize")
        crossed += noted.seen != [1, 2, 3, 4]
    assert bool(crossed) is not blocking


def test_the_stream_of_a_thread(raw: RawCuda, noted: Noted) -> None:
    """It is one of its own for each thread, and waits for the legacy one as blocking ones do."""
    context = raw.get("cuCtxGetCurrent")
    noted.add(0, 1)
    noted.add(PER_THREAD, 2)
    noted.add(0, 3, "_ptsz")

    def other() -> None:
        raw.call("cuCtxSetCurrent", context)
        noted.add(PER_THREAD, 4)
        noted.add(0, 5, "_ptsz")
        assert raw.get_second("cuStreamGetId", PER_THREAD) != mine

    mine = raw.get_second("cuStreamGetId", PER_THREAD)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    noted.add(0, 6)
    raw.call("cuCtxSynchronize")
    assert noted.seen[0] == 1
    assert noted.seen[-1] == 6
    assert before(noted, 2, 3)
    assert before(noted, 4, 5)


def test_waiting_for_an_event(raw: RawCuda, noted: Noted) -> None:
    one, other, event = raw.stream(1), raw.stream(1), raw.event(2)
    raw.call("cuStreamWaitEvent", other, event, 0)  # not recorded: nothing to wait for
    for _ in range(8):
        noted.seen.clear()
        noted.add(one, 1)
        raw.call("cuEventRecord", event, one)
        noted.add(one, 2)
        raw.call("cuStreamWaitEvent", other, event, 0)
        noted.add(other, 3)
        raw.call("cuCtxSynchronize")
        assert before(noted, 1, 3)
        assert before(noted, 1, 2)


def test_an_event_is_its_last_record(raw: RawCuda, noted: Noted) -> None:
    stream, event = raw.stream(1), raw.event(2)
    assert raw.result("cuEventQuery", event) == 0
    raw.call("cuEventSynchronize", event)
    noted.add(stream, 1)
    raw.call("cuEventRecord", event, stream)
    noted.add(stream, 2)
    raw.call("cuEventRecord", event, stream)
    raw.call("cuEventSynchronize", event)
    assert noted.seen == [1, 2]


def test_times_between_events(raw: RawCuda) -> None:
    raw.start()
    events = [raw.event() for _ in range(3)]
    untimed, address = raw.event(2), raw.alloc(16 << 20)
    place = ctypes.c_float()
    ask: Callable[..., int] = lambda *pair: raw.result(  # noqa: E731
        "cuEventElapsedTime", ctypes.byref(place), *pair
    )
    assert ask(events[0], events[1]) == INVALID_HANDLE
    for event, size in zip(events, (16, 16 << 20, 16), strict=True):
        raw.call("cuEventRecord", event, 0)
        raw.call("cuMemsetD8Async", address, 1, size, 0)
    raw.call("cuEventRecord", untimed, 0)
    assert ask(events[0], untimed) == INVALID_HANDLE
    raw.call("cuCtxSynchronize")
    assert ask(events[0], events[1]) == 0
    short = place.value
    assert ask(events[1], events[2]) == 0
    assert 0 < short < place.value
    assert ask(events[2], events[1]) == 0
    assert place.value < 0


def test_a_time_is_not_ready_before_its_events(raw: RawCuda) -> None:
    raw.start()
    stream, events = raw.stream(1), (raw.event(), raw.event())
    results = set()
    for _ in range(16):
        for event in events:
            raw.call("cuEventRecord", event, stream)
        place = ctypes.c_float()
        results.add(raw.result("cuEventElapsedTime", ctypes.byref(place), *events))
        raw.call("cuStreamSynchronize", stream)
    assert NOT_READY in results


def test_streams_have_flags_and_priorities(cuda: RawCuda) -> None:
    stream = cuda.get("cuStreamCreateWithPriority", 1, -100)
    priority, flags = ctypes.c_int(), ctypes.c_uint()
    cuda.call("cuStreamGetPriority", stream, ctypes.byref(priority))
    cuda.call("cuStreamGetFlags", stream, ctypes.byref(flags))
    least, greatest = ctypes.c_int(), ctypes.c_int()
    cuda.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert (priority.value, flags.value) == (greatest.value, 1)
    assert cuda.result("cuStreamCreate", ctypes.byref(ctypes.c_void_p()), 2) == INVALID_VALUE
    assert cuda.result("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 64) == INVALID_VALUE
    assert cuda.result("cuStreamSynchronize", 0x1234) == INVALID_HANDLE


def test_a_stream_that_is_destroyed_finishes_its_work(raw: RawCuda, noted: Noted) -> None:
    stream = raw.stream(1)
    noted.add(stream, 1)
    raw.call("cuStreamDestroy_v2", stream)
    raw.call("cuCtxSynchronize")
    assert noted.seen == [1]


def test_what_is_destroyed_is_not_used(raw: RawCuda, library: Library) -> None:
    raw.start()
    stream, event = raw.stream(1), raw.event()
    raw.call("cuStreamDestroy_v2", stream)
    raw.call("cuEventDestroy_v2", event)
    assert raw.result("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert raw.result("cuEventSynchronize", event) == INVALID_HANDLE
    assert len(library.violations) == 2


def test_a_function_in_a_stream_makes_no_calls(raw: RawCuda) -> None:
    raw.start()
    results: list[int] = []
    function = HOST(lambda _: results.append(raw.result("cuCtxSynchronize")))
    raw.call("cuLaunchHostFunc", 0, function, None)
    raw.call("cuCtxSynchronize")
    assert results == [NOT_PERMITTED]


def test_callbacks_are_told_their_stream(raw: RawCuda) -> None:
    raw.start()
    told: list[tuple[int | None, int, int | None]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    function = kind(lambda *arguments: told.append(arguments))
    stream = raw.stream()
    raw.call("cuStreamAddCallback", stream, function, 77, 0)
    raw.call("cuStreamSynchronize", stream)
    assert told == [(stream, 0, 77)]
    assert raw.result("cuStreamAddCallback", stream, function, 77, 1) == INVALID_VALUE


def test_contexts_do_not_mix(raw: RawCuda) -> None:
    raw.start()
    stream, event = raw.stream(), raw.event()
    raw.get("cuCtxCreate_v2", 0, 0)
    own = raw.stream()
    assert raw.result("cuEventRecord", event, own) == INVALID_HANDLE
    nothing = HOST(lambda _: None)
    assert raw.result("cuLaunchHostFunc", stream, nothing, None) == INVALID_HANDLE
    raw.call("cuStreamWaitEvent", own, event, 0)  # events of others can be waited for


def test_a_seed_reproduces(seed: int) -> None:
    from gpu.sim.cuda.library import load

    orders = []
    for _ in range(2):
        raw = RawCuda(load("gh100", seed=seed).functions)
        raw.start()
        noted = Noted(raw)
        streams = [raw.stream(1) for _ in range(4)]
        for number in range(40):
            noted.add(streams[number % 4], number)
        raw.call("cuCtxSynchronize")
        orders.append(noted.seen)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(40))


def test_a_full_queue_waits(raw: RawCuda, noted: Noted) -> None:
    stream = raw.stream(1)
    for number in range(3000):
        noted.add(stream, number)
    assert 0 < len(noted.seen) <= 3000
    raw.call("cuCtxSynchronize")
    assert noted.seen == list(range(3000))
    assert np.all(np.diff(noted.seen) == 1)
