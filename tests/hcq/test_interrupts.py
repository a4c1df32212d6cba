"""A KeyboardInterrupt at every single line of submitting leaves it submitted or not, never half."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from linecache import getline
from types import FrameType
from typing import Any

import numpy as np
import pytest

from gpu.core.errors import GpuError
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.graph import GraphCopy, GraphItem, GraphLaunch, HCQGraph
from gpu.hcq.symbol import Symbol
from hcq.host_target import HostTarget


class _Strike:
    """A tracer that raises at line number ``at`` of the package, but not within the model."""

    def __init__(self, at: int):
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        ours = "/gpu/hcq/" in name or "/gpu/core/" in name
        if not ours or _in_model(frame):
            return None
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self  # somebody puts Ctrl-C off
        # Real signals never come between a lock and its block, as a tracer on that line would.
        if event == "line" and not getline(name, frame.f_lineno).lstrip().startswith("with "):
            if self.left == 0:
                self.left = -1
                sys.settrace(None)
                raise KeyboardInterrupt
            self.left -= 1
        return self


def _in_model(frame: FrameType | None) -> bool:
    """Whether the host device itself runs: that is not interrupted by what we do."""
    while frame is not None and frame.f_code.co_name != "idle":
        frame = frame.f_back
    return frame is not None


def _strike(at: int, action: Callable[[], object]) -> bool:
    """Run an action with an interrupt at its line ``at``. False when it ended before."""
    strike = _Strike(at)
    sys.settrace(strike)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return strike.left < 0


def test_launches() -> None:
    target = HostTarget(1)
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        count = upload(device, np.zeros(WORDS, np.int32))
        timeline = device.channel("compute").timeline
        at, struck, before = 0, True, timeline.submitted
        while struck:
            struck = _strike(at, lambda: add(count, count, one, vals=(WORDS,)))
            at += 1
        wanted = np.full(WORDS, timeline.submitted - before, np.int32)
        assert at > 30
        np.testing.assert_array_equal(download(device, count), wanted)


def test_order_between_queues() -> None:
    target = HostTarget(2)
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        counts = [upload(device, np.zeros(WORDS, np.int32)) for _ in range(2)]
        timeline = device.channel("compute").timeline
        at, struck, launched = 0, True, 0
        while struck:
            before = timeline.submitted
            struck = _strike(at, lambda: add(counts[0], counts[0], one, vals=(WORDS,)))
            launched += timeline.submitted - before
            device.allocator.copy(counts[1], counts[0])
            device.allocator.copy(counts[0], counts[1])
            at += 1
        wanted = np.full(WORDS, launched, np.int32)
        np.testing.assert_array_equal(download(device, counts[0]), wanted)


@pytest.mark.parametrize("seed", range(2))
def test_graphs_on_two_queues(seed: int) -> None:
    target = HostTarget(seed)
    with target.open(small=True) as device:
        add, one = target.program(device, "add"), upload(device, np.ones(WORDS, np.int32))
        a, b = (upload(device, np.zeros(WORDS, np.int32)) for _ in range(2))
        items: list[GraphItem] = [
            GraphLaunch(add, (a, a, one), (WORDS,)),
            GraphCopy(b, a),
            GraphLaunch(add, (a, b, one), (WORDS,)),
        ]
        graph = HCQGraph(device, items)
        timeline = device.channel("copy").timeline
        at, struck = 0, True
        before = timeline.submitted
        while struck:
            struck = _strike(at, graph)
            at += 1
        device.synchronize()
        replays = (timeline.submitted - before) // graph._counts[device.channel("copy")]
        wanted = np.full(WORDS, 2 * replays, np.int32)
        np.testing.assert_array_equal(download(device, a), wanted)
        assert at > 60


def test_copies_and_allocations() -> None:
    target = HostTarget(3)
    with target.open(small=True) as device:
        at, struck = 0, True

        def action() -> None:
            buffer = upload(device, numbers(at))
            device.allocator.copy_out(buffer)

        while struck and at < 900:
            struck = _strike(at, action)
            at += 7
        for seed in range(3):
            np.testing.assert_array_equal(
                download(device, upload(device, numbers(seed))), numbers(seed)
            )


def test_bound_queues() -> None:
    target = HostTarget(4)
    with target.open(small=True) as device:
        fill, place = target.program(device, "fill"), Symbol("place")
        args = fill.arguments(place, vals=(7, WORDS))
        bound = device.queue().exec(fill, args, (1, 1, 1), (1, 1, 1)).bind(device)
        at, struck = 0, True
        while struck:
            buffer = upload(device, numbers(0))
            device.synchronize()
            struck = _strike(at, lambda b=buffer: bound.submit({place: b.address}))  # type: ignore[misc]
            at += 1
        device.synchronize()  # what is bound is in no order with copies
        assert (download(device, buffer) == 7).all()
        with pytest.raises(GpuError):
            bound.submit({})
