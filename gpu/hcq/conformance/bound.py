"""Checks of what is bound: replays with other values, graphs over several queues, pinned memory."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from gpu.core.errors import InvalidValue
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.conformance.kit import (
    WORDS,
    Check,
    Ints,
    Target,
    download,
    expect,
    expect_equal,
    expect_raises,
    numbers,
    peek,
    place,
    queues_that_copy,
    system,
    upload,
)
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import GraphCopy, GraphItem, GraphLaunch, HCQGraph
from gpu.hcq.symbol import Derived, Symbol


def bound_queues(target: Target) -> None:
    """Bound commands run with the values of each submission, though several are under way."""
    with target.open(near_wrap=True) as device:
        fill = target.program(device, "fill")
        place, half, value = Symbol("place"), Symbol("half of n"), Symbol("value")
        count = Derived("n", (half,), lambda n: 2 * n)
        args = fill.arguments(place, vals=(value, count))
        bound = device.queue().exec(fill, args, (1, 1, 1), (1, 1, 1)).bind(device)
        out = [system(device, numbers(0)) for _ in range(30)]
        for number, buffer in enumerate(out):
            bound.submit({place: buffer.address, value: number, half: number})
        for number, buffer in enumerate(out):
            wanted = numbers(0)
            wanted[: 2 * number] = number
            device.synchronize()
            expect_equal(peek(buffer), wanted, f"bound submission {number}")
        expect_raises(InvalidValue, "a value missing", lambda: bound.submit({value: 1}))
        bound.close()


def bound_copies(target: Target) -> None:
    """The same on a queue for copies, with sizes that change."""
    with target.open() as device:
        source, out = system(device, numbers(1)), [system(device, numbers(0)) for _ in range(20)]
        dst, size = Symbol("dst"), Symbol("size")
        bound = device.queue(*place(device, "copy")).copy(dst, source, size).bind(device)
        points = [
            bound.submit({dst: buffer.address, size: 4 * (number + 1)})
            for number, buffer in enumerate(out)
        ]
        for number, (buffer, point) in enumerate(zip(out, points, strict=True), 1):
            device.wait(point)
            wanted = np.concatenate([numbers(1)[:number], numbers(0)[number:]])
            expect_equal(peek(buffer), wanted, f"bound copy of {number} words")
        bound.close()


class _Random:
    """A random list of launches and copies between buffers, as a graph and in numpy."""

    def __init__(self, target: Target, device: HCQDevice, seed: int):
        rng = random.Random(seed)
        add = target.program(device, "add")
        self.buffers = [upload(device, numbers(n)) for n in range(6)]
        self.steps: list[tuple[int, ...]] = []
        items: list[GraphItem] = []
        for _ in range(14):
            step = tuple(rng.sample(range(6), 3 if rng.random() < 0.6 else 2))
            chosen = [self.buffers[number] for number in step]
            _, index = place(device, "compute", rng.randrange(2))
            if len(step) == 3:
                items.append(GraphLaunch(add, tuple(chosen), (WORDS,), index=index))
            else:
                kind, _ = rng.choice(queues_that_copy(device, ("compute", 0)))
                items.append(GraphCopy(chosen[0], chosen[1], kind=kind))
            self.steps.append(step)
        self.graph = HCQGraph(device, items, self.buffers[:2])

    def run(self, values: list[Ints]) -> None:
        """Do with arrays what the graph does."""
        for out, *sources in self.steps:
            values[out][:] = sum(values[number] for number in sources)


def graphs(target: Target) -> None:
    """Random graphs over several queues, replayed with other inputs, give what numpy gives."""
    for seed in range(3):
        with target.open(near_wrap=True) as device:
            program = _Random(target, device, seed)
            own = [numbers(n) for n in range(6)]
            spare = [upload(device, numbers(n)) for n in range(6, 10)]
            others = [numbers(n) for n in range(6, 10)]
            for replay in range(9):
                first, second = ((0, 1), (2, 3), (1, 2))[replay % 3]
                program.graph(spare[first], spare[second])
                program.run([others[first], others[second], *own[2:]])
            for buffer, wanted in zip(spare, others, strict=True):
                expect_equal(download(device, buffer), wanted, f"an input of graph {seed}")
            for buffer, wanted in zip(program.buffers[2:], own[2:], strict=True):
                expect_equal(download(device, buffer), wanted, f"a buffer of graph {seed}")
            program.graph.close()


def graphs_in_order(target: Target) -> None:
    """A graph starts after what was submitted in order before it, and ends before what follows."""
    with target.open() as device:
        add = target.program(device, "add")
        a, b, c = (upload(device, numbers(n)) for n in range(3))
        items: list[GraphItem] = [
            GraphLaunch(add, (b, b, a), (WORDS,), index=place(device, "compute", 1)[1]),
            GraphCopy(c, a, kind=place(device, "copy")[0]),
            GraphLaunch(add, (c, c, a), (WORDS,)),
        ]
        graph = HCQGraph(device, items)
        x, y = numbers(0), numbers(1)
        for number in range(12):
            device.allocator.copy_in(a, (x + number).astype(np.int32).tobytes())
            graph()
            y = y + x + number
            add(b, b, c, vals=(WORDS,))
            y = y + 2 * (x + number)
        expect_equal(download(device, b), y, "launches and copies around a graph")
        graph.close()


def graphs_pin_memory(target: Target) -> None:
    """What a graph uses lives until it is closed, also if it is freed while it runs."""
    with target.open() as device:
        add, out = target.program(device, "add"), upload(device, numbers(0))
        kept, given = upload(device, numbers(1)), upload(device, numbers(2))
        address = kept.address
        graph = HCQGraph(device, [GraphLaunch(add, (out, kept, given), (WORDS,))], [given])
        graph(given)
        kept.free()
        device.synchronize()
        for seed in range(3, 6):
            other = upload(device, numbers(seed))
            expect(other.address != address, "memory that a graph uses was given away")
            graph(other)
            wanted = numbers(1) + numbers(seed)
            expect_equal(download(device, out), wanted, "a graph that uses freed memory")
        graph.close()
        device.synchronize()
        reused = _allocate_until(device, address)
        expect(reused, "memory that a graph used is not used again after it was closed")


def _allocate_until(device: HCQDevice, address: int) -> bool:
    held: list[HCQBuffer] = []
    for _ in range(8):
        held.append(device.allocator.alloc(4 * WORDS))
        if held[-1].address == address:
            return True
    return False


def inputs_are_checked(target: Target) -> None:
    """Inputs that are small or freed are refused, and those that overlap on several queues.

    Of a larger one the start is used.
    """
    with target.open() as device:
        add = target.program(device, "add")
        a, b, c = (upload(device, numbers(n)) for n in range(3))
        copy = GraphCopy(b, c, kind=place(device, "copy")[0])
        items: list[GraphItem] = [GraphLaunch(add, (c, a, b), (WORDS,)), copy]
        graph = HCQGraph(device, items, [a, b])
        expect_raises(InvalidValue, "one input of two", lambda: graph(a))
        expect_raises(InvalidValue, "a small input", lambda: graph(a, b.view(0, 4)))
        if copy.kind == "copy":
            expect_raises(InvalidValue, "the same input twice", lambda: graph(a, a))
        graph(upload(device, np.concatenate([numbers(4), numbers(5)])), b)
        expect_equal(download(device, c), numbers(4) + numbers(1), "a graph with a larger input")
        a.free()
        expect_raises(InvalidValue, "a freed input", lambda: graph(a, b))
        graph.close()


CHECKS: Final[tuple[Check, ...]] = (
    bound_queues,
    bound_copies,
    graphs,
    graphs_in_order,
    graphs_pin_memory,
    inputs_are_checked,
)
