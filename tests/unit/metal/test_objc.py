"""Objective-C without a Mac: what is sent and given back, on a runtime that is a few functions."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest

from gpu import Device
from gpu.backends.metal import find, library
from gpu.backends.metal.codes import command_error, error_text
from gpu.backends.metal.gpus import find_gpu, gpu_info
from gpu.backends.metal.objc import ErrorPlace, Handle
from gpu.core.errors import DeviceError, DeviceLost, GpuError, GpuFault, OutOfMemory, Unsupported
from gpu.runtime.default import Found
from unit.metal.stand_in import StandIn

COMMANDS = "MTLCommandBufferErrorDomain"


@pytest.fixture
def mac() -> StandIn:
    return StandIn()


def test_a_message_is_the_receiver_the_selector_and_the_arguments(mac: StandIn) -> None:
    seen: list[Any] = []
    mac.answers["newBufferWithLength:options:"] = lambda *words: seen.append(words[:3]) or 42
    mac.answers["setBuffers:offsets:withRange:"] = lambda *words: seen.append(words[:5]) or 0
    mac.answers["supportsFamily:"] = lambda _, family, *__: family == 1007
    assert mac.objc.newBufferWithLength_options_(7, 1 << 40, 3) == 42
    mac.objc.setBuffers_offsets_withRange_(8, 100, 200, 0, 5)
    assert seen == [(7, 1 << 40, 3), (8, 100, 200, 0, 5)]
    assert mac.objc.supportsFamily_(7, 1007) is True
    assert mac.objc.supportsFamily_(7, 1008) is False


def test_texts_go_both_ways(mac: StandIn) -> None:
    mac.answers["UTF8String"] = lambda text, *_: text
    assert mac.objc.text(mac.string("größer\nals")) == "größer\nals"
    assert mac.objc.text(0) == ""


def test_what_is_owned_is_released_once(mac: StandIn) -> None:
    handle = Handle(mac.objc, mac.objc.objc_retain(9))
    assert mac.held[9] == 1
    del handle
    assert mac.held[9] == 0


def test_nothing_is_released_where_the_runtime_is_lost(mac: StandIn) -> None:
    handle = Handle(mac.objc, mac.objc.objc_retain(9))
    mac.objc.is_lost = True
    del handle
    assert mac.held[9] == 1


def test_pools_are_drained_inner_ones_first_and_after_errors(mac: StandIn) -> None:
    with pytest.raises(KeyError), mac.objc.pool():
        with mac.objc.pool():
            assert mac.pools == [1, 2]
        assert mac.pools == [1]
        raise KeyError
    assert mac.pools == []


def test_an_nserror_is_told_with_its_place(mac: StandIn) -> None:
    error = mac.error("MTLLibraryErrorDomain", 3, "no such thing")
    assert error_text(mac.objc, error) == "no such thing (MTLLibraryErrorDomain 3)"
    assert error_text(mac.objc, 0) == "Metal does not say why"
    assert ErrorPlace().error == 0


@pytest.mark.parametrize(
    ("domain", "code", "kind"),
    [
        (COMMANDS, 1, GpuFault),
        (COMMANDS, 2, GpuFault),
        (COMMANDS, 3, GpuFault),
        (COMMANDS, 4, DeviceLost),
        (COMMANDS, 8, OutOfMemory),
        (COMMANDS, 9, GpuFault),
        (COMMANDS, 11, DeviceLost),
        (COMMANDS, 12, GpuFault),
        (COMMANDS, 99, DeviceError),
        ("NSCocoaErrorDomain", 3, DeviceError),
    ],
)
def test_errors_of_commands_are_typed(
    mac: StandIn, domain: str, code: int, kind: type[GpuError]
) -> None:
    error = command_error(mac.objc, mac.error(domain, code, "it is so"), "run sum of 2 x 3 threads")
    assert type(error) is kind
    assert error.message.startswith(
        f"Metal cannot run sum of 2 x 3 threads: it is so ({domain} {code})"
    )


def test_an_exception_is_in_the_log_before_the_process_ends(
    mac: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    mac.answers |= {
        "name": lambda *_: mac.string("NSInvalidArgumentException"),
        "reason": lambda *_: mac.string("unrecognized selector"),
        "UTF8String": lambda text, *_: text,
    }
    with caplog.at_level(logging.CRITICAL):
        mac.throw(5)
    assert "NSInvalidArgumentException: unrecognized selector" in caplog.text
    assert "mac.throw(5)" in caplog.text, "and where Python was"


def test_a_method_that_the_system_lacks_is_a_typed_error(mac: StandIn) -> None:
    with pytest.raises(DeviceError, match=r"has no method newBufferWithLength:options:.*macOS"):
        mac.objc.newBufferWithLength_options_(7, 64, 0)
    asked = []
    mac.answers["newBufferWithLength:options:"] = lambda *_: 42
    mac.answers["respondsToSelector:"] = lambda *words: not asked.append(words)
    assert mac.objc.newBufferWithLength_options_(0, 64, 0) == 42
    assert not asked
    assert [mac.objc.newBufferWithLength_options_(7, 64, 0) for _ in range(3)] == [42] * 3
    assert len(asked) == 1


def _with_gpus(mac: StandIn, *families: int, others: int = 0) -> None:
    mac.devices = [11, *range(12, 12 + others)]
    mac.answers |= {
        "name": lambda *_: mac.string("Apple M9"),
        "UTF8String": lambda text, *_: text,
        "supportsFamily:": lambda _, family, *__: family in families,
        "recommendedMaxWorkingSetSize": lambda *_: 1 << 33,
        "maxBufferLength": lambda *_: 1 << 32,
        "count": lambda *_: len(mac.devices),
        "objectAtIndex:": lambda _, i, *__: mac.devices[::-1][i],
    }


def test_gpus_are_numbered_with_the_default_one_first(mac: StandIn) -> None:
    _with_gpus(mac, 1007, others=2)
    assert [find_gpu(mac.objc, i).id for i in range(3)] == [11, 13, 12]
    with pytest.raises(DeviceError, match=r"no METAL:3: Metal finds 3 GPU"):
        find_gpu(mac.objc, 3)
    assert mac.pools == []


@pytest.mark.parametrize(
    ("families", "known"),
    [((1007,), "apple7"), ((1007, 1008, 2002), "apple8"), ((2002,), "mac2"),
     ((1007, 1008, 1009, 1010), "apple9")],
)  # fmt: skip
def test_the_newest_family_that_is_known_counts(
    mac: StandIn, families: tuple[int, ...], known: str
) -> None:
    _with_gpus(mac, *families)
    info = gpu_info(mac.objc, find_gpu(mac.objc, 0))
    assert info == ("Apple M9", known, 1 << 33, 1 << 32)


def test_a_gpu_of_no_known_family_is_refused_by_its_name(mac: StandIn) -> None:
    _with_gpus(mac, 2001)
    with pytest.raises(Unsupported, match="Apple M9 is of no family that there is code for"):
        gpu_info(mac.objc, find_gpu(mac.objc, 0))


def test_what_a_mac_is_said_to_have(mac: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(find, "open_objc", lambda simulated: mac.objc)
    assert find.look().found is Found.NOTHING
    _with_gpus(mac, 2001)
    assert find.look().found is Found.UNUSABLE
    _with_gpus(mac, 1008)
    assert find.look() == (Found.USABLE, "Metal finds Apple M9, of the family apple8", 0, "")


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has it")
def test_elsewhere_there_is_no_metal() -> None:
    assert find.look()[:2] == (Found.NOTHING, library.NO_MACOS)
    with pytest.raises(DeviceError, match=re.escape(library.NO_MACOS)):
        Device["METAL:9"]
