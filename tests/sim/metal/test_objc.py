"""Messages, references and pools, as Objective-C's runtime has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from gpu.core.errors import ConfigError
from gpu.sim.metal.chips import CHIPS
from gpu.sim.metal.library import MetalLibrary, RuleBroken
from sim.metal.raw_metal import P, RawMetal, compile_msl

APPLE = {"apple7": 7, "apple8": 8, "apple9": 9, "mac2": 0, "paravirtual": 5}
Broken = Callable[[str], str]


def test_classes_and_selectors_have_names(metal: RawMetal) -> None:
    string = metal.call("objc_getClass", b"NSString")
    assert ctypes.string_at(metal.call("class_getName", string)) == b"NSString"
    assert metal.call("objc_getClass", b"NSNonsense") == 0
    assert metal.call("sel_registerName", b"release") == metal.call("sel_registerName", b"release")
    text = metal.string("räum")
    assert metal.call("object_getClass", text) == string
    assert metal.text(text) == "räum"
    assert metal.send(text, "length") == 4


def test_classes_of_metal_are_private(metal: RawMetal) -> None:
    name = metal.call("class_getName", metal.call("object_getClass", metal.buffer(16)))
    assert ctypes.string_at(name) == b"AGXG13XFamilyBuffer"
    assert metal.call("objc_getClass", b"MTLBuffer") == 0


def test_a_message_to_nil_gives_zeros(metal: RawMetal) -> None:
    assert metal.send(0, "length") == 0
    assert metal.send(0, "GPUStartTime", result=ctypes.c_double) == 0.0


def test_new_and_copy_are_owned_and_others_are_in_the_pool(
    raw: RawMetal, library: MetalLibrary
) -> None:
    with raw.pool():
        buffer = raw.command_buffer()
        assert raw.send(buffer, "retainCount") == 1
        made = raw.buffer(64)
    assert raw.send(made, "length") == 64
    raw.release(made)
    raw.release(raw.queue, raw.device)
    assert library.left() == ["leak: 1 autorelease pools"]  # that of the fixture
    raw.send(buffer, "retain")
    assert library.violations[-1].startswith("use-after-free: ")


def test_a_released_object_is_not_used(raw: RawMetal, broken: Broken) -> None:
    buffer = raw.buffer(64)
    raw.release(buffer)
    assert raw.send(buffer, "length") == 0
    assert "Buffer" in broken("use-after-free")
    encoder = raw.send(raw.command_buffer(), "blitCommandEncoder")
    raw.send(encoder, "synchronizeResource:", buffer, result=None)
    broken("use-after-free")
    raw.end(encoder)


def test_what_is_released_too_often_is_told(raw: RawMetal, broken: Broken) -> None:
    buffer = raw.buffer(64)
    raw.release(buffer)
    raw.release(buffer)
    broken("over-release")
    raw.call("objc_release", buffer, result=None)
    broken("over-release")
    token = raw.call("objc_autoreleasePoolPush")
    raw.release(raw.string("a"))
    raw.call("objc_autoreleasePoolPop", token, result=None)
    broken("over-release")


def test_pools_are_of_a_thread_and_popped_in_order(raw: RawMetal, broken: Broken) -> None:
    outer = raw.call("objc_autoreleasePoolPush")
    inner = raw.call("objc_autoreleasePoolPush")
    raw.call("objc_autoreleasePoolPop", outer, result=None)
    raw.call("objc_autoreleasePoolPop", inner, result=None)
    broken("pool-order")


def test_what_is_autoreleased_without_a_pool_leaks(library: MetalLibrary, seed: int) -> None:
    raw = RawMetal(library.address)
    raw.start()
    raw.command_buffer()
    assert library.violations[0].startswith("no-pool: ")
    assert "leak: 1 of AGXG13XFamilyCommandBuffer" in library.left()


def test_pools_are_objects_too(raw: RawMetal, library: MetalLibrary) -> None:
    of = raw.call("objc_getClass", b"NSAutoreleasePool")
    pool = raw.send(raw.send(of, "alloc"), "init")
    string = raw.string("a")
    raw.send(pool, "drain", result=None)
    raw.send(string, "length")
    assert [each.split(":")[0] for each in library.violations] == ["use-after-free"]


def test_a_message_that_a_class_has_not_throws(raw: RawMetal, broken: Broken) -> None:
    reasons = []

    def handler(exception: int) -> None:
        reasons.append(raw.text(raw.send(exception, "reason")))

    kept = ctypes.CFUNCTYPE(None, P)(handler)
    place = ctypes.cast(kept, ctypes.c_void_p).value
    raw.call("objc_setUncaughtExceptionHandler", place)
    assert raw.send(raw.device, "commandBuffer") == 0
    broken("unrecognized-selector")
    assert reasons == ["-[AGXG13XFamilyDevice commandBuffer]: unrecognized selector sent"]
    assert raw.send(raw.device, "respondsToSelector:", raw.selector("newCommandQueue"))
    assert not raw.send(raw.device, "respondsToSelector:", raw.selector("commandBuffer"))
    of = raw.call("objc_getClass", b"NSString")
    assert raw.send(of, "respondsToSelector:", raw.selector("stringWithUTF8String:"))
    assert not raw.send(of, "respondsToSelector:", raw.selector("length"))


def test_messages_go_to_objects_by_selectors(raw: RawMetal, broken: Broken) -> None:
    raw.send(0x1234560, "retain")
    broken("no-object")
    raw.send_selector(raw.device, 0x1234567)
    broken("no-selector")


def test_arguments_are_objects_of_their_class(raw: RawMetal, broken: Broken) -> None:
    library, function = raw.device, raw.string("f")
    make = "newComputePipelineStateWithFunction:error:"
    raw.send(library, make, function, 0)
    assert "Function is expected" in broken("wrong-class")
    raw.send(library, make, 0, 0)
    broken("nil-argument")
    raw.send(library, make, 0x1000, 0)
    broken("no-object")


def test_arrays_have_bounds(raw: RawMetal, broken: Broken) -> None:
    devices = raw.call("MTLCopyAllDevices")
    assert raw.send(devices, "count") == 1
    assert raw.send(devices, "objectAtIndex:", 0) == raw.device
    assert raw.send(devices, "objectAtIndex:", 1) == 0
    broken("index-beyond-array")
    raw.release(devices)


def test_malloc_size_tells_objects_from_addresses(metal: RawMetal) -> None:
    buffer = metal.buffer(64)
    assert metal.call("malloc_size", buffer) >= 16
    assert metal.call("malloc_size", metal.send(buffer, "contents")) == 0
    assert metal.call("malloc_size", buffer + 8) == 0


def test_what_is_left_is_told(raw: RawMetal, library: MetalLibrary) -> None:
    raw.buffer(64)
    with pytest.raises(RuleBroken, match="leak: 1 of AGXG13XFamilyBuffer"):
        library.check()


@pytest.mark.parametrize("chip", CHIPS)
def test_chips_say_what_they_are(chip: str, seed: int) -> None:
    library = MetalLibrary(chip, seed, compile=compile_msl)
    metal = RawMetal(library.address)
    with metal.pool():
        metal.start()
        name = metal.text(metal.send(metal.device, "name"))
        apple = [n for n in range(1, 10) if metal.send(metal.device, "supportsFamily:", 1000 + n)]
        assert ("virtual" in name) == (chip == "paravirtual")
        assert max(apple, default=0) == APPLE[chip]
        assert bool(metal.send(metal.device, "hasUnifiedMemory")) == (chip != "mac2")
        assert metal.call("getpagesize") == (4096 if chip == "mac2" else 16384)
        metal.release(metal.queue, metal.device)
    library.check()


def test_families_and_chips_are_known(raw: RawMetal, broken: Broken) -> None:
    raw.send(raw.device, "supportsFamily:", 7)
    broken("gpu-family")
    with pytest.raises(ConfigError, match=r"did you mean .*apple7"):
        MetalLibrary("aple7", compile=compile_msl)
