"""Replays on the simulated Mac: indirect command buffers, and one command buffer of launches."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device
from gpu.autogen.metal import METHODS
from gpu.backends.metal.graph import FEWEST_INDIRECT, MetalGraph
from gpu.backends.metal.memory import MetalMemory
from gpu.backends.metal.program import MetalProgram
from gpu.core.errors import DeviceError, GpuFault
from simulated import SIMULATED, keeping_rules

COUNT = 96
BLOCK = 32
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PLACE = (
    "uint block [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {\n"
    f"  uint i = block * {BLOCK} + t;\n"
)
SOURCES = {
    "plain": "device uint *p0 [[buffer(0)]], device const uint *p1 [[buffer(1)]], "
    + PLACE
    + "  p0[i] = p0[i] * 3u + p1[i]; }",
    "valued": "device uint *p0 [[buffer(0)]], device const uint *p1 [[buffer(1)]], "
    + "constant long *values [[buffer(2)]], "
    + PLACE
    + "  p0[i] = p0[i] * 5u + p1[i] + (uint)values[0] - 2u * (uint)values[1]; }",
    "working": "device uint *p0 [[buffer(0)]], device const uint *p1 [[buffer(1)]], "
    + "device uchar *workspace [[buffer(2)]], "
    + PLACE
    + "  device uint *own = (device uint *)workspace + i;\n"
    + "  *own = p1[i]; p0[i] = p0[i] * 7u + *own; }",
}
FACTOR = {"plain": 3, "valued": 5, "working": 7}


@pytest.fixture(autouse=True)
def mac(need: Callable[[str], None], request: pytest.FixtureRequest) -> Iterator[None]:
    """Where nothing breaks a rule, but for tests of faults."""
    need("simulated-mac")
    rules = nullcontext() if "fault" in request.node.name else keeping_rules("METAL")
    with Context(SIM=SIMULATED["METAL"], DEV="METAL"), rules:
        yield


def program(kind: str, device: str = "METAL", offset: int = 0) -> MetalProgram:
    source = f"{HEAD}kernel void gpu_{kind}(\n    {SOURCES[kind]}\n"
    source = source.replace("p1[i]", f"p1[i + {offset}u]")
    data = {
        "groups": COUNT // BLOCK,
        "block": BLOCK,
        "workspace": 4 * COUNT * (kind == "working"),
        "values": 2 * (kind == "valued"),
        "written": 1,
    }
    made = Device[device].runtime(kind, source.encode(), data)
    assert isinstance(made, MetalProgram)
    return made


def memory(rng: np.random.Generator, device: str = "METAL") -> MetalMemory:
    made: MetalMemory = Device[device].allocator.alloc(4 * COUNT)
    held(made)[:] = rng.integers(0, 1 << 32, COUNT, np.uint32)
    return made


def held(of: MetalMemory) -> np.ndarray:
    """What it holds, in place; nobody waits."""
    return np.frombuffer((ctypes.c_uint32 * COUNT).from_address(of.address), np.uint32)


@contextmanager
def counted(device: str = "METAL") -> Iterator[Counter[str]]:
    """The messages that are sent in the block, by selector."""
    objc: Any = Device[device].context.objc  # type: ignore[attr-defined]
    seen: Counter[str] = Counter()

    def counting(name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def message(*arguments: Any) -> Any:
            seen[name] += 1
            return send(*arguments)

        return message

    with pytest.MonkeyPatch.context() as patch:
        for selector in METHODS:
            name = selector.replace(":", "_")
            patch.setattr(objc, name, counting(name, getattr(objc, name)))
        yield seen


Launches = list[tuple[MetalProgram, tuple[int, int], tuple[int, ...]]]


def drawn(rng: np.random.Generator, count: int, slots: int, device: str = "METAL") -> Launches:
    kinds = {kind: program(kind, device) for kind in SOURCES}
    launches: Launches = []
    for kind in rng.choice([*SOURCES], count):
        to, of = map(int, rng.permutation(slots)[:2])
        taken = tuple(map(int, rng.integers(0, 3, 2))) if kind == "valued" else ()
        launches.append((kinds[kind], (to, of), taken))
    return launches


def applied(launches: Launches, values: list[np.ndarray], vals: tuple[int, ...]) -> None:
    """What a replay does, to arrays."""
    for made, (to, of), taken in launches:
        added = (vals[taken[0]] - 2 * vals[taken[1]]) % (1 << 32) if taken else 0
        factor = np.uint32(FACTOR[made.name])
        values[to] = values[to] * factor + values[of] + np.uint32(added)


@pytest.mark.parametrize(
    ("seed", "on", "count"),
    [(0, "METAL", 8), (1, "METAL", 20), (2, "METAL:2", 13), (3, "METAL:3", 9), (4, "METAL:4", 9),
     (5, "METAL", 7)],
)  # fmt: skip
def test_replays_of_drawn_launches(seed: int, on: str, count: int) -> None:
    rng, slots = np.random.default_rng(seed), 4
    launches = drawn(rng, count, slots, on)
    graph = MetalGraph(launches, slots)
    memories = [memory(rng, on) for _ in range(slots)]
    want = [held(each).copy() for each in memories]
    vals = (1, 2, 3)
    with keeping_rules(on):
        for _ in range(7):
            if rng.random() < 0.5:
                vals = tuple(map(int, rng.integers(-(1 << 40), 1 << 40, 3)))
            for slot in np.flatnonzero(rng.random(slots) < 0.3):
                del memories[slot]  # and the next one may be where it was
                memories.insert(slot, memory(rng, on))
                want[slot] = held(memories[slot]).copy()
            graph(memories, vals)
            applied(launches, want, vals)
            if rng.random() < 0.5:
                Device[on].synchronize()
        Device[on].synchronize()
        for each, wanted in zip(memories, want, strict=True):
            np.testing.assert_array_equal(held(each), wanted)


def test_another_buffer_at_the_same_address_is_encoded_anew() -> None:
    rng = np.random.default_rng(6)
    graph = MetalGraph([(program("plain"), (0, 1), ())] * FEWEST_INDIRECT, 2)
    first, other = memory(rng), memory(rng)
    graph([first, other])
    graph([first, other])
    Device["METAL"].synchronize()
    copied = memory(rng)
    copied.id = first.id  # as the runtime may give out again; the object is another
    with counted() as seen:
        graph([copied, other])
    assert seen["setKernelBuffer_offset_atIndex_"] == FEWEST_INDIRECT
    Device["METAL"].synchronize()


def test_replays_differ_by_values_alone() -> None:
    rng = np.random.default_rng(3)
    launches: Launches = [(program("valued"), (i % 2, 2), (0, 1)) for i in range(8)]
    graph, memories = MetalGraph(launches, 3), [memory(rng) for _ in range(3)]
    want = [held(each).copy() for each in memories]
    for vals in ((1, 2), (1, 2), (1, 2), (3, 4), (1, 2), (5, 5)):
        graph(memories, vals)
        applied(launches, want, vals)
    Device["METAL"].synchronize()
    for each, wanted in zip(memories, want, strict=True):
        np.testing.assert_array_equal(held(each), wanted)


@pytest.mark.parametrize("count", [8, 100])
def test_what_a_replay_sends(count: int) -> None:
    rng = np.random.default_rng(count)
    launches: Launches = [(program("valued"), (i % 3, 3), (0, 1)) for i in range(count)]
    graph = MetalGraph(launches, 5)
    memories = [memory(rng) for _ in range(5)]
    for _ in range(2):
        graph(memories, (1, 2))
    for changed, vals in ((0, (1, 2)), (0, (4, 5)), (1, (4, 5))):
        if changed:
            memories[0] = memory(rng)
        with counted() as seen:
            graph(memories, vals)
        places = sum(used[0] == 0 for _, used, _ in launches) * changed
        assert seen.pop("setKernelBuffer_offset_atIndex_", 0) == places
        waits = seen.pop("status", 0), seen.pop("waitUntilCompleted", 0)
        assert sum(seen.values()) == 6, (seen, waits)
    Device["METAL"].synchronize()


def test_what_a_launch_sends() -> None:
    rng = np.random.default_rng(7)
    memories = memory(rng), memory(rng)
    for kind, vals, most in (("plain", (), 7), ("valued", (1, 2), 8)):
        made = program(kind)
        made(*memories, vals=vals)  # what the runtime has is asked for once
        with counted() as seen:
            made(*memories, vals=vals)
        assert sum(seen.values()) == most, seen
    Device["METAL"].synchronize()


def test_few_launches_and_virtual_gpus_have_one_command_buffer() -> None:
    rng = np.random.default_rng(8)
    for device, count in (("METAL", FEWEST_INDIRECT - 1), ("METAL:4", 20)):
        memories = [memory(rng, device) for _ in range(2)]
        graph = MetalGraph([(program("plain", device), (0, 1), ())] * count, 2)
        with counted(device) as seen:
            graph(memories)
        assert seen["dispatchThreadgroups_threadsPerThreadgroup_"] == count
        assert seen["commit"] == 1 and not seen["executeCommandsInBuffer_withRange_"]
        Device[device].synchronize()


def test_a_graph_may_go_while_it_runs() -> None:
    rng = np.random.default_rng(9)
    memories = [memory(rng) for _ in range(2)]
    want = [held(each).copy() for each in memories]
    launches: Launches = [(program("valued"), (0, 1), (0, 1))] * 9
    MetalGraph(launches, 2)(memories, (8, 3))
    gc.collect()
    Device["METAL"].synchronize()
    applied(launches, want, (8, 3))
    np.testing.assert_array_equal(held(memories[0]), want[0])


def test_a_fault_in_a_replay_names_its_launches() -> None:
    rng = np.random.default_rng(10)
    memories = [memory(rng) for _ in range(2)]
    away = program("plain", offset=1 << 27)
    graph = MetalGraph([(program("plain"), (0, 1), ())] * 8 + [(away, (0, 1), ())], 2)
    with pytest.raises(GpuFault, match=r"a graph of 9 launches \(plain of 3 x 32 threads"):
        graph(memories)
        Device["METAL"].synchronize()


def test_an_interrupt_before_all_is_encoded_leaves_nothing_half_done() -> None:
    rng = np.random.default_rng(11)
    launches: Launches = [(program("plain"), (0, 1), ())] * 10
    graph = MetalGraph(launches, 2)
    memories = [memory(rng) for _ in range(2)]
    for _ in range(2):
        graph(memories)
    Device["METAL"].synchronize()
    memories = [memory(rng) for _ in range(2)]
    want = [held(each).copy() for each in memories]
    objc: Any = Device["METAL"].context.objc  # type: ignore[attr-defined]
    for number in (1, 7, 14):
        left = iter(range(number))
        send = objc.setKernelBuffer_offset_atIndex_

        def interrupted(*arguments: Any, left: Iterator[int] = left, send: Any = send) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            send(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objc, "setKernelBuffer_offset_atIndex_", interrupted)
            with pytest.raises(KeyboardInterrupt):
                graph(memories)
    for _ in range(3):
        graph(memories)
        applied(launches, want, ())
    Device["METAL"].synchronize()
    for each, wanted in zip(memories, want, strict=True):
        np.testing.assert_array_equal(held(each), wanted)


def test_a_gpu_that_gives_no_indirect_commands_says_so() -> None:
    rng = np.random.default_rng(12)
    objc: Any = Device["METAL"].context.objc  # type: ignore[attr-defined]
    name = "newIndirectCommandBufferWithDescriptor_maxCommandCount_options_"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objc, name, lambda *_: 0)
        with pytest.raises(DeviceError, match="no indirect command buffer for 8 launches"):
            MetalGraph([(program("plain"), (0, 1), ())] * 8, 2)([memory(rng), memory(rng)])
