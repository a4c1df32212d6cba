"""gpu/drivers/kgsl over a kernel that answers as it is told: what is asked, what comes of it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu.autogen import kgsl
from gpu.core.crashfiles import CrashFolder
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import (
    DeviceError,
    DeviceHang,
    DeviceLost,
    GpuFault,
    InvalidIndex,
    OutOfMemory,
    TransportError,
    Unsupported,
)
from gpu.core.ref import Argument
from gpu.drivers.device import Rung
from gpu.drivers.kgsl.contexts import DEPTH
from gpu.drivers.kgsl.copy_code import copy_code
from gpu.drivers.kgsl.device import KgslDevice
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.ports import MemoryKind
from gpu.hcq.program import HCQProgram
from unit.kgsl.fake_kgsl import FakeKgsl


@pytest.fixture
def system() -> FakeKgsl:
    return FakeKgsl()


@pytest.fixture
def device(system: FakeKgsl) -> Iterator[KgslDevice]:
    with KgslDevice.open(system.world, ring=1 << 14, command_memory=1 << 14) as opened:
        yield opened


def fail(system: FakeKgsl, name: str, number: int, times: int = 1 << 30) -> None:
    """Has a call answer an errno from now on, so many times."""
    left = times

    def fails(called: str, argument: Argument) -> int:
        nonlocal left
        if called != name or not left:
            return 0
        left -= 1
        return number

    system.fails = fails


def test_opening_and_closing_leaves_nothing(system: FakeKgsl) -> None:
    for _ in range(3):
        with KgslDevice.open(system.world) as device:
            assert device.name == "Adreno630v2" and device.port.chip.name == "a630"
            device.allocator.alloc(5000)
            device.allocator.alloc(5000, MemoryKind.SYSTEM)
            assert system.contexts > 0 < system.mapped
        assert (system.objects, system.mapped, system.files) == ({}, 0, 0)
        # The context goes first: it may still use the memory.
        names = system.names()
        assert names.index("DRAWCTXT_DESTROY") < names.index("GPUOBJ_FREE")
        system.calls.clear()


def test_a_context_is_asked_for_with_what_kernels_demand(system: FakeKgsl) -> None:
    KgslDevice.open(system.world).close()
    flags = [args for name, args in system.calls if name == "DRAWCTXT_CREATE"]
    assert [int.from_bytes(args[:4], "little") for args in flags] == [
        kgsl.KGSL_CONTEXT_PREAMBLE
        | kgsl.KGSL_CONTEXT_NO_GMEM_ALLOC
        | kgsl.KGSL_CONTEXT_NO_FAULT_TOLERANCE
        | kgsl.KGSL_CONTEXT_PWR_CONSTRAINT
        | kgsl.KGSL_CONTEXT_FAULT_INFO
        | 8 << 12
        | 2 << 25
    ]


def test_kernels_that_know_no_fault_report_give_a_context_without(system: FakeKgsl) -> None:
    fail(system, "DRAWCTXT_CREATE", errno.EINVAL, 1)
    with KgslDevice.open(system.world) as device:
        assert system.names().count("DRAWCTXT_CREATE") == 2
        fail(system, "GPU_COMMAND", errno.EDEADLK)
        with pytest.raises(GpuFault, match="KGSL reset it"):
            device.queue().submit(device)
        assert "GET_FAULT_REPORT" not in system.names()


@pytest.mark.parametrize(
    ("name", "number", "wanted"),
    [
        ("DRAWCTXT_CREATE", errno.EINVAL, TransportError),
        ("GPUOBJ_ALLOC", errno.ENOMEM, OutOfMemory),
        ("GPUOBJ_INFO", errno.ENODEV, DeviceLost),
        ("DEVICE_GETPROPERTY", errno.EINVAL, TransportError),
    ],
)
def test_what_opening_fails_with_is_typed_and_undone(
    system: FakeKgsl, name: str, number: int, wanted: type[Exception]
) -> None:
    fail(system, name, number)
    with pytest.raises(wanted):
        KgslDevice.open(system.world)
    assert (system.objects, system.mapped, system.files) == ({}, 0, 0)


def test_chips_without_code_and_other_places_are_refused(system: FakeKgsl) -> None:
    system.chip_id = 0x07030001
    with pytest.raises(Unsupported, match="0x07030001"):
        KgslDevice.open(system.world)
    with pytest.raises(InvalidIndex, match="one GPU"):
        KgslDevice.open(system.world, 1)
    assert not system.files


def test_a_kernel_without_constraints_of_power_does_as_well(system: FakeKgsl) -> None:
    fail(system, "SETPROPERTY", errno.EPERM)
    KgslDevice.open(system.world).close()


def test_a_submission_is_one_call_and_calls_are_asked_again(
    system: FakeKgsl, device: KgslDevice
) -> None:
    mine = device.signal()
    system.calls.clear()
    fail(system, "GPU_COMMAND", errno.EAGAIN, 2)
    device.wait(device.queue().signal(mine, 7).submit(device))
    assert mine.value == 7
    assert system.names() == ["GPU_COMMAND"] * 3


def test_rings_go_round(system: FakeKgsl, device: KgslDevice) -> None:
    mine = device.signal()
    for number in range(1000):
        device.queue().signal(mine, number).submit(device)
        assert mine.value == number
    ring = device.port._ring
    commands = [args for name, args in system.calls if name == "GPU_COMMAND"]
    assert len(commands) > 1000
    assert device.channels()[0].timeline.reached() == 1000 and ring.size == 1 << 14


def test_no_more_commands_are_under_way_than_the_kernel_takes(
    system: FakeKgsl, device: KgslDevice
) -> None:
    system._run = lambda command: None  # type: ignore[method-assign]  # nothing is ever done
    device.timeout = 0.05
    for _ in range(DEPTH):
        device.queue().submit(device)
    with pytest.raises(DeviceError, match="compute queue 0"):
        device.queue().submit(device)
    assert system.names().count("GPU_COMMAND") == DEPTH
    line = device.channels()[0].timeline
    line.signal.set(line.payload(line.submitted))


def test_commands_behind_one_that_failed_are_accepted(system: FakeKgsl, device: KgslDevice) -> None:
    fail(system, "GPU_COMMAND", errno.EPROTO, 1)
    mine = device.signal()
    device.wait(device.queue().signal(mine, 3).submit(device))
    assert mine.value == 3


@pytest.mark.parametrize("number", [errno.EDEADLK, errno.ENOENT])
@pytest.mark.parametrize("name", ["GPU_COMMAND", "DEVICE_WAITTIMESTAMP_CTXTID"])
def test_a_lost_context_is_a_fault_and_another_one_helps(
    system: FakeKgsl, device: KgslDevice, name: str, number: int
) -> None:
    kept = device.allocator.alloc(64, MemoryKind.SYSTEM)
    run = system._run
    if name != "GPU_COMMAND":
        system._run = lambda command: None  # type: ignore[method-assign]
    fail(system, name, number)
    with pytest.raises(GpuFault, match=r"Adreno630v2.*recover\(\).*snapshot") as caught:
        device.wait(device.queue().submit(device))
    assert caught.value.address is None
    for use in (device.synchronize, lambda: device.queue().submit(device)):
        with pytest.raises(DeviceLost):
            use()
    system.fails = lambda called, argument: 0
    system._run = run  # type: ignore[method-assign]
    assert device.recover() is Rung.QUEUES
    assert system.names()[-3:-1] == ["DRAWCTXT_DESTROY", "DRAWCTXT_CREATE"]
    mine = device.signal()
    device.wait(device.queue().signal(mine, 5).submit(device))
    assert mine.value == 5 and kept.window is not None
    assert device.recover() is None


def launched(device: KgslDevice) -> tuple[HCQProgram, HCQBuffer]:
    """A program, launched twice with a copy between, and the buffer that it is given first."""
    code = copy_code("a630")._replace(name="double", block=1, parameters=24)
    program = device.load(code, ArgumentLayout(2, "q"), written=[0])
    out, source = (device.allocator.alloc(4096) for _ in range(2))
    program(out, source, vals=(5,))
    device.allocator.copy(out, source)
    program(source, out, vals=(6,))
    return program, out


def test_a_page_fault_is_told_with_its_place_and_the_kernel(
    system: FakeKgsl, device: KgslDevice
) -> None:
    system._run = lambda command: None  # type: ignore[method-assign]
    _, out = launched(device)
    system.page_faults = (out.address + 4096 + 16, 0x1000)
    fail(system, "DEVICE_WAITTIMESTAMP_CTXTID", errno.EDEADLK)
    with pytest.raises(GpuFault) as caught:
        device.synchronize()
    assert caught.value.address == out.address + 4096 + 16
    text = caught.value.message
    assert "0x10 bytes behind 0x1000 bytes of device memory" in text or "into" in text
    assert f"under way, the oldest first: double (argument 0 is {out.address:#x})" in text


def test_a_hang_names_what_is_under_way(
    system: FakeKgsl, device: KgslDevice, tmp_path: Path
) -> None:
    system._run = lambda command: None  # type: ignore[method-assign]
    program, out = launched(device)
    program.origin = "y = x.double() (at train.py:7)"
    device.report_to(CrashFolder(tmp_path, 4), lambda code, start: [f"{start:#x}: nop"])
    device.timeout = 0.05
    fail(system, "DEVICE_WAITTIMESTAMP_CTXTID", errno.ETIMEDOUT)
    with pytest.raises(DeviceHang, match=r"oldest first: double, a copy, double.*recover\(\)"):
        device.synchronize()
    (report,) = tmp_path.glob("*.txt")
    told = report.read_text()
    for wanted in ("train.py:7", f"argument 0 is {out.address:#x}", "CP_EXEC_CS", ": nop", "ring"):
        assert wanted in told, wanted
    line = device.channels()[0].timeline
    assert told.count("CP_EXEC_CS") == line.submitted - line.reached() == 3
    system.fails = lambda called, argument: 0
    line.signal.set(line.payload(line.submitted))
    device.synchronize()


def test_recovering_that_does_not_help_loses_the_device(
    system: FakeKgsl, device: KgslDevice
) -> None:
    fail(system, "GPU_COMMAND", errno.EDEADLK)
    with pytest.raises(GpuFault):
        device.queue().submit(device)
    fail(system, "DRAWCTXT_CREATE", errno.ENOMEM)
    with pytest.raises(DeviceLost, match="another context does not help"):
        device.recover()


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_comes_before_or_after_a_submission(
    system: FakeKgsl, device: KgslDevice, when: str
) -> None:
    run, mine, timeline = system._run, device.signal(), device.channels()[0].timeline
    before = timeline.submitted

    def interrupted(command: kgsl.kgsl_gpu_command) -> None:
        system._run = run  # type: ignore[method-assign]
        if when == "after":
            run(command)
        else:
            system.queued -= 1
        signal.raise_signal(signal.SIGINT)

    for number in range(3):
        system._run = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            device.queue().signal(mine, 9 + number).submit(device)
        assert mine.value == (9 + number if when == "after" else 0)
    device.synchronize()
    assert timeline.submitted == before + 3 * (when == "after")
    device.wait(device.queue().signal(mine, 100).submit(device))
    assert mine.value == 100


def test_memory_that_is_not_coherent_is_synced_by_range(system: FakeKgsl) -> None:
    system.grants_coherence = False
    with KgslDevice.open(system.world) as device:
        buffer = device.allocator.alloc(5000, MemoryKind.SYSTEM)
        window = buffer.window
        assert window is not None
        system.calls.clear()
        part = window.sub(300, 1000)
        part.store(10, b"abcd")
        assert part.load(10, 4) == b"abcd" and part.read(12, 2) == int.from_bytes(b"cd", "little")
        part.write(12, 2, 0x4142)
        assert window.load(310, 4) == b"ab\x42\x41"
        ops = [kgsl.kgsl_gpuobj_sync.from_buffer_copy(args) for _, args in system.calls]
        assert set(system.names()) == {"GPUOBJ_SYNC"} and all(each.count == 1 for each in ops)
        assert len(ops) == 2 + 1 + 1 + 2 + 1
        with pytest.raises(Unsupported, match="IOCOHERENT"):
            device.allocator.map_host(np.zeros(10))
        assert len(system.objects) == system.names().count("GPUOBJ_IMPORT") + device_objects(device)


def device_objects(device: KgslDevice) -> int:
    """How many objects the device has, less one."""
    return len(device.port.memory.extents()) - 1


def test_memory_of_the_host_is_imported_by_whole_pages(
    system: FakeKgsl, device: KgslDevice
) -> None:
    array = np.arange(3000, dtype=np.int32)
    mapped = device.allocator.map_host(array[5:])
    assert mapped.address == array.ctypes.data + 20 and mapped.size == 4 * 2995
    mapped.free()
    device.synchronize()
    device.queue().submit(device)


def test_too_much_is_out_of_memory_before_the_kernel_is_asked(device: KgslDevice) -> None:
    with pytest.raises(OutOfMemory, match="at most 4294967295 at once"):
        device.allocator.alloc(1 << 33)


def test_peers_are_refused(device: KgslDevice) -> None:
    with pytest.raises(Unsupported, match="no peers"):
        device.port.memory.map_peer(device.signal_pages[0], device.port.memory)


def test_the_clock_is_the_counter_behind_what_was_submitted(device: KgslDevice) -> None:
    first = device.port.clock()
    assert device.port.clock() > first > 0


class Machine:
    """A machine of some paths."""

    def __init__(self, files: dict[str, str]):
        self.files = files

    def exists(self, path: str) -> bool:
        return path in self.files

    def read_file(self, path: str) -> bytes:
        if path not in self.files:
            raise TransportError(f"reading {path}: it is not there", errno.ENOENT)
        return self.files[path].encode()

    def list_dir(self, path: str) -> list[str]:
        return []

    def why_denied(self, path: str) -> str:
        return self.files[path]


NODE, MODEL = "/dev/kgsl-3d0", "/sys/class/kgsl/kgsl-3d0/gpu_model"


@pytest.mark.parametrize(
    ("files", "found", "told"),
    [
        ({}, "NOTHING", "/dev/kgsl-3d0 is not there"),
        ({NODE: "", MODEL: "Adreno630v2\n"}, "USABLE", "of Adreno630v2"),
        ({NODE: ""}, "USABLE", "/dev/kgsl-3d0 is there"),
        ({NODE: "", MODEL: "Adreno540v2"}, "NOTHING", "not supported by this version"),
        ({NODE: "access was denied: run `x`", MODEL: "Adreno640"}, "UNUSABLE", "run `x`"),
    ],
)
def test_the_gpu_is_looked_for_without_opening_it(
    files: dict[str, str], found: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu.backends.qcom import find

    monkeypatch.setattr(find, "_why_no_compiler", lambda: "")
    look = find.look_at(Machine(files))
    assert look.found.name == found and told in look.told


def test_a_gpu_without_a_compiler_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.backends.qcom import find

    monkeypatch.setattr(find, "_why_no_compiler", lambda: "Mesa's compilers are not installed")
    look = find.look_at(Machine({NODE: ""}))
    assert look.found.name == "UNUSABLE" and "Mesa" in look.told


def test_the_mainline_driver_is_named_as_another() -> None:
    from gpu.backends.qcom import find

    look = find.look_at(Machine({"/sys/module/msm": ""}))
    assert look.found.name == "NOTHING" and "msm" in look.fix and "DEV=CL" in look.fix


def test_tensors_have_the_device_by_its_name(
    system: FakeKgsl, need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("tinymesa")
    from gpu.backends.qcom import device as qcom

    policy = "/sys/class/kgsl/kgsl-3d0/ft_pagefault_policy"
    monkeypatch.setattr(system, "read_file", {policy: b"0\n"}.__getitem__)
    monkeypatch.setattr(qcom, "_world", lambda simulated: system.world)
    opened = qcom.open_device("QCOM", parse_device_spec("QCOM"))
    assert isinstance(opened, qcom.QCOMDevice)
    target = opened.describe()["target"]
    assert target.startswith("a630, Adreno630v2;") and f"echo 2 | sudo tee {policy}" in target
    assert opened.recover() is False
    opened.queues.close()
    with pytest.raises(Unsupported, match="DEV=CL uses"):
        qcom.open_device("QCOM", parse_device_spec("QCOM:CL"))
    with pytest.raises(Unsupported, match="is a a630; code for a640"):
        qcom.open_device("QCOM", parse_device_spec("QCOM::a640"))
    with pytest.raises(InvalidIndex, match="one GPU"):
        qcom.open_device("QCOM:1", parse_device_spec("QCOM"))
    assert (system.objects, system.files) == ({}, 0)


def test_a_real_machine_without_the_node_says_so() -> None:
    if Path(NODE).exists():
        pytest.skip("this machine has one")
    with pytest.raises(DeviceError, match="/dev/kgsl-3d0 is not there"):
        from gpu.transport.world import real_world

        KgslDevice.open(real_world())
