"""Indirect command buffers: what they run, and what passes must tell of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from gpu.sim.metal.library import MetalLibrary
from sim.metal.kernels import SOURCE
from sim.metal.raw_metal import PRIVATE, Range, RawMetal, compile_msl, size

Broken = Callable[[str], str]
NEW = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
RUN = "executeCommandsInBuffer:withRange:"
GROUPS = "concurrentDispatchThreadgroups:threadsPerThreadgroup:"


def descriptor(metal: RawMetal, types: int = 1 << 5, **more: int) -> int:
    made = metal.send(metal.call("objc_getClass", b"MTLIndirectCommandBufferDescriptor"), "new")
    metal.send(made, "setCommandTypes:", types, result=None)
    settings = {"InheritBuffers": 0, "InheritPipelineState": 0, "MaxKernelBufferBindCount": 2}
    for name, value in {**settings, **more}.items():
        metal.send(made, f"set{name}:", value, result=None)
    return int(made)


def commands(metal: RawMetal, count: int, **more: int) -> int:
    made = descriptor(metal, **more)
    commands: int = metal.send(metal.device, NEW, made, count, PRIVATE)
    metal.release(made)
    return commands


def pipeline(metal: RawMetal, kernel: str, supports: int = 1) -> int:
    library, _ = metal.library(SOURCE)
    function = metal.send(library, "newFunctionWithName:", metal.string(kernel))
    made = metal.send(metal.call("objc_getClass", b"MTLComputePipelineDescriptor"), "new")
    metal.send(made, "setComputeFunction:", function, result=None)
    metal.send(made, "setSupportIndirectCommandBuffers:", supports, result=None)
    name = "newComputePipelineStateWithDescriptor:options:reflection:error:"
    result: int = metal.send(metal.device, name, made, 0, 0, 0)
    metal.release(made, library, function)
    return result


def encode(metal: RawMetal, of: int, index: int, made: int, data: int, barrier: bool) -> int:
    command = metal.send(of, "indirectComputeCommandAtIndex:", index)
    metal.send(command, "setComputePipelineState:", made, result=None)
    metal.send(command, "setKernelBuffer:offset:atIndex:", data, 0, 0, result=None)
    if barrier:
        metal.send(command, "setBarrier", result=None)
    metal.send(command, GROUPS, size(2), size(32), result=None)
    return int(command)


def execute(metal: RawMetal, of: int, part: Range, *declared: int) -> int:
    buffer = metal.command_buffer()
    encoder = metal.encoder(buffer)
    if declared:
        listed = (ctypes.c_uint64 * len(declared))(*declared)
        where = ctypes.addressof(listed)
        metal.send(encoder, "useResources:count:usage:", where, len(declared), 3, result=None)
    metal.send(encoder, RUN, of, part, result=None)
    metal.end(encoder)
    metal.commit(buffer)
    return buffer


def test_commands_run_as_often_as_they_are_executed(metal: RawMetal) -> None:
    data, of = metal.buffer(64), commands(metal, 4)
    assert metal.send(of, "size") == 4
    made = pipeline(metal, "bytes")
    for index in (0, 1, 3):  # the other one does nothing
        encode(metal, of, index, made, data, barrier=True)
    for times in (1, 2):
        assert metal.wait(execute(metal, of, Range(0, 4), data)) == 4
        assert (metal.floats(data, np.uint8) == 3 * times).all()
    metal.send(of, "resetWithRange:", Range(1, 3), result=None)
    assert metal.wait(execute(metal, of, Range(0, 4), data)) == 4
    assert (metal.floats(data, np.uint8) == 7).all()


def test_passes_give_what_commands_inherit(metal: RawMetal) -> None:
    data, of = metal.buffer(64), commands(metal, 1, InheritBuffers=1, InheritPipelineState=1)
    command = metal.send(of, "indirectComputeCommandAtIndex:", 0)
    metal.send(command, GROUPS, size(2), size(32), result=None)
    buffer = metal.command_buffer()
    encoder = metal.encoder(buffer)
    metal.bind(encoder, metal.pipeline(SOURCE, "bytes"), data)
    metal.send(encoder, RUN, of, Range(0, 1), result=None)
    metal.end(encoder)
    metal.commit(buffer)
    assert metal.wait(buffer) == 4
    assert (metal.floats(data, np.uint8) == 1).all()


def test_commands_without_a_barrier_are_in_no_order(raw: RawMetal, broken: Broken) -> None:
    data, of, made = raw.buffer(64), commands(raw, 2), pipeline(raw, "bytes")
    for index in range(2):
        encode(raw, of, index, made, data, barrier=False)
    raw.wait(execute(raw, of, Range(0, 2), data))
    broken("kernel-race")


def test_passes_declare_what_commands_use(raw: RawMetal, broken: Broken) -> None:
    data, of = raw.buffer(64), commands(raw, 1)
    encode(raw, of, 0, pipeline(raw, "bytes"), data, barrier=False)
    assert raw.wait(execute(raw, of, Range(0, 1))) == 5
    broken("not-resident")
    raw.release(data)
    assert raw.wait(execute(raw, of, Range(0, 1))) == 5
    broken("resource-ended")


def test_commands_are_left_alone_while_they_run(raw: RawMetal, broken: Broken) -> None:
    data, of = raw.buffer(64), commands(raw, 1)
    command = encode(raw, of, 0, pipeline(raw, "bytes"), data, barrier=False)
    event, buffer = raw.send(raw.device, "newSharedEvent"), raw.command_buffer()
    raw.send(buffer, "encodeWaitForEvent:value:", event, 1, result=None)
    raw.commit(buffer)
    buffer = execute(raw, of, Range(0, 1), data)
    raw.send(command, "setBarrier", result=None)
    broken("commands-in-use")
    raw.send(event, "setSignaledValue:", 1, result=None)
    assert raw.wait(buffer) == 4
    raw.send(command, "setBarrier", result=None)


def test_bad_commands(raw: RawMetal, broken: Broken) -> None:
    made, data, of = pipeline(raw, "bytes"), raw.buffer(64), commands(raw, 2)
    command = raw.send(of, "indirectComputeCommandAtIndex:", 0)
    raw.send(of, "indirectComputeCommandAtIndex:", 2)
    broken("command-index")
    raw.send(of, "resetWithRange:", Range(1, 2), result=None)
    broken("command-index")
    plain = pipeline(raw, "bytes", supports=0)
    raw.send(command, "setComputePipelineState:", plain, result=None)
    broken("pipeline-not-indirect")
    raw.send(command, "setKernelBuffer:offset:atIndex:", data, 0, 2, result=None)
    broken("argument-index")
    name = "concurrentDispatchThreads:threadsPerThreadgroup:"
    raw.send(command, name, size(2), size(32), result=None)
    broken("command-types")
    raw.send(command, "setComputePipelineState:", made, result=None)
    raw.send(command, GROUPS, size(2), size(32), result=None)
    assert raw.wait(execute(raw, of, Range(0, 1), data)) == 5
    broken("nothing-bound")
    inheriting = commands(raw, 1, InheritBuffers=1, InheritPipelineState=1)
    command = raw.send(inheriting, "indirectComputeCommandAtIndex:", 0)
    raw.send(command, "setComputePipelineState:", made, result=None)
    broken("inherited")
    raw.send(command, "setKernelBuffer:offset:atIndex:", data, 0, 0, result=None)
    broken("inherited")


def test_bad_indirect_buffers(raw: RawMetal, broken: Broken) -> None:
    made = descriptor(raw)
    assert raw.send(raw.device, NEW, made, 0, PRIVATE) == 0
    broken("command-index")
    raw.send(made, "setCommandTypes:", 1, result=None)
    broken("command-types")
    raw.release(made)
    name = "newComputePipelineStateWithDescriptor:options:reflection:error:"
    made = raw.send(raw.call("objc_getClass", b"MTLComputePipelineDescriptor"), "new")
    assert raw.send(raw.device, name, made, 0, 0, 0) == 0
    broken("nil-argument")
    assert raw.send(raw.device, name, made, 1, 0, 0) == 0
    broken("no-reflection")
    raw.send(made, "setMaxTotalThreadsPerThreadgroup:", 2000, result=None)
    broken("threadgroup-size")


@pytest.mark.parametrize("chip", ["apple7", "paravirtual"])
def test_a_guest_has_none(chip: str, seed: int) -> None:
    library = MetalLibrary(chip, seed, compile=compile_msl)
    metal = RawMetal(library.address)
    with metal.pool():
        metal.start()
        made = commands(metal, 4)
        assert bool(made) == (chip == "apple7")
        if made:
            metal.release(made)
        metal.release(metal.queue, metal.device)
    library.check()
