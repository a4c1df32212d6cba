"""Opening a GPU on a kernel that keeps books: what is open, in which order, and what is left."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Mapping

import pytest

from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    InvalidIndex,
    InvalidValue,
    OutOfMemory,
    RmError,
    TransportError,
    Unsupported,
)
from gpu.core.wait import HostWaiter
from gpu.drivers.nv.channel import probes as variants
from gpu.drivers.nv.nvk.gpu import STEPS, explain_open, open_gpu
from gpu.drivers.nv.rm.gpu import NvDevice
from gpu.transport.os import Os
from gpu.transport.world import World
from unit.nv.fake_kernel import CARD, UUID, FakeKernel
from unit.nv.fake_uvm import CTL, UVM

INVALID_STATE = 0x40


def _world(kernel: FakeKernel) -> World:
    kernel_os: Os = kernel
    return World(kernel_os, HostWaiter())


def _open(kernel: FakeKernel, force: Mapping[str, str] | None = None) -> NvDevice:
    return open_gpu(_world(kernel), force=force)


def test_open_gives_a_hopper_and_close_leaves_nothing() -> None:
    kernel = FakeKernel()
    with _open(kernel) as gpu:
        assert gpu.name == "NVIDIA Hopper at 0000:0f:00.0"
        assert (gpu.sm, gpu.classes.qmd_major, gpu.uuid) == (90, 4, UUID)
        assert gpu.units.tpcs == (9, 8, 5) and gpu.units.sms == 44
        assert gpu.compute_queue.class_id == 0xCBC0
        assert [queue.class_id for queue in gpu.copy_queues] == [0xC8B5, 0xC8B5]
        assert len({queue.group for queue in gpu.channels}) == 3
        assert kernel.scheduled == [queue.group.handle for queue in gpu.channels]
        assert gpu.failed() == {}
        gpu.check()
    assert kernel.held() == {}
    gpu.close()


def test_steps_are_reported_in_order_with_their_calls() -> None:
    kernel = FakeKernel()
    report = explain_open(_world(kernel))
    assert [each.step for each in report.steps] == list(STEPS)
    assert kernel.held() == {}
    by_name = {each.step.name: [str(call) for call in each.calls] for each in report.steps}
    (channel,) = by_name["compute channel"]
    assert channel.startswith("alloc HOPPER_CHANNEL_GPFIFO_A (0xc86f) of client/device/compute")
    assert channel.endswith(": NV_OK")
    assert "NV_WARN_NOTHING_TO_DO" in by_name["uvm memory"][0]
    assert len(by_name["schedule"]) == 3
    assert "compute channel\n    alloc HOPPER" in str(report)


@pytest.mark.parametrize("step", [step.name for step in STEPS])
def test_stopping_after_any_step_leaves_nothing(step: str) -> None:
    kernel = FakeKernel()
    report = explain_open(_world(kernel), stop_after=step)
    assert report.steps[-1].step.name == step and report.closing == ()
    assert kernel.held() == {}


def test_stopping_after_an_unknown_step_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"no step 'boot'.*control file"):
        explain_open(_world(FakeKernel()), stop_after="boot")


def _calls_of_opening(force: Mapping[str, str] | None = None) -> list[str]:
    kernel = FakeKernel()
    gpu = _open(kernel, force)
    calls = list(kernel.calls)
    gpu.close()
    return calls


CALLS = _calls_of_opening()
# Questions with more variants go on with the next one; forcing each leaves one try. Copy engines
# that the kernel does not describe are done without, so none is asked for here.
ONE_TRY = {question.name: question.variants[0] for question in variants.QUESTIONS}
ONE_TRY["copy channel"] = "shared group"
TRY_CALLS = _calls_of_opening(ONE_TRY)


@pytest.mark.parametrize("index", range(len(TRY_CALLS)), ids=lambda i: f"{i}-{TRY_CALLS[i]}")
@pytest.mark.parametrize("status", [INVALID_STATE, None], ids=["status", "errno"])
def test_a_failure_of_any_call_is_typed_and_leaves_nothing(index: int, status: int | None) -> None:
    kernel = FakeKernel()
    kernel.fail_at, kernel.fail_status = index, status
    with pytest.raises(DeviceError) as caught:
        _open(kernel, ONE_TRY)
    assert kernel.held() == {}
    # Not TRY_CALLS[index]: reserving addresses takes a call more where something else has them.
    if status is not None and kernel.calls[index].startswith(("rm", "uvm")):
        assert isinstance(caught.value, RmError)
        assert (caught.value.status, caught.value.name) == (status, "NV_ERR_INVALID_STATE")
    else:
        assert isinstance(caught.value, TransportError) and caught.value.errno == errno.EIO
    assert any("while opening an NVIDIA GPU, step" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("index", range(len(CALLS)), ids=lambda i: f"{i}-{CALLS[i]}")
def test_a_failure_with_all_variants_open_leaves_nothing(index: int) -> None:
    """What another variant can answer opens all the same; the rest is an error."""
    kernel = FakeKernel()
    kernel.fail_at, kernel.fail_status = index, INVALID_STATE
    with contextlib.suppress(DeviceError):
        _open(kernel).close()
    assert kernel.held() == {}


def test_a_refused_object_is_named_with_class_and_status() -> None:
    kernel = FakeKernel()
    kernel.refuse[0xCBC0] = 0x22
    with pytest.raises(RmError) as caught:
        _open(kernel)
    text = str(caught.value)
    assert "client/device/compute group/compute queue/compute object" in text
    assert "HOPPER_COMPUTE_A (0xcbc0)" in text and "NV_ERR_INVALID_CLASS" in text
    assert "compute object: allocate the compute engine" in caught.value.__notes__[0]
    report = explain_open(_world(kernel))
    assert report.steps[-1].error is not None and "NV_ERR_INVALID_CLASS" in str(report)


def test_a_lost_gpu_and_full_memory_have_their_own_errors() -> None:
    kernel = FakeKernel()
    kernel.refuse[0x80] = 0x0F
    with pytest.raises(DeviceLost, match=r"NV_ERR_GPU_IS_LOST.*gone from its bus"):
        _open(kernel)
    kernel.refuse = {0x40: 0x51}
    with pytest.raises(OutOfMemory, match=r"ring of compute queue.*NV_ERR_NO_MEMORY"):
        _open(kernel)
    assert kernel.held() == {}


def test_the_error_that_came_first_is_the_one_raised() -> None:
    kernel = FakeKernel()
    kernel.refuse[0x9067] = 0x22
    free = kernel._free
    kernel._free = lambda memory, blocks: free(memory, blocks) or 0x40  # type: ignore[method-assign]
    with pytest.raises(RmError) as caught:
        _open(kernel)
    assert caught.value.status == 0x22
    assert any("while closing what was open: free" in note for note in caught.value.__notes__)
    assert kernel.held() == {}


# Versions and generations.


def test_the_version_is_asked_of_rm_where_there_is_no_file() -> None:
    kernel = FakeKernel(version=b"580.159.04")
    kernel.has_version_file = False
    with _open(kernel) as gpu:
        assert gpu.session.version == "580.159.04" and gpu.session.branch.number == 580


def test_what_gvisor_does_not_let_through_is_done_without() -> None:
    """As its nvproxy/version.go has it for compute containers: NOT_SUPPORTED, and no such file."""
    kernel = FakeKernel(version=b"580.159.03")
    kernel.has_version_file = False
    kernel.unknown_commands = {0x13E, 0x20802A02, 0x83DE0328}
    with _open(kernel) as gpu:
        assert gpu.session.version == "580.159.03" and len(gpu.copy_queues) == 2
        details = gpu.fault_details()
        assert details is not None and not details.accesses
    assert kernel.held() == {}


def test_gpus_whose_node_is_not_here_are_passed_over() -> None:
    kernel = FakeKernel()
    kernel.elsewhere = [(0x1A00, 0), (0x2B00, 1)]
    with _open(kernel) as gpu:
        assert gpu.card.minor == 3 and gpu.session.listed == 3
    with pytest.raises(InvalidIndex, match="GPU 1: this process can reach 1"):
        open_gpu(_world(kernel), 1)
    kernel.nodes.remove(CARD)
    with pytest.raises(DeviceError, match=r"lists 3 GPU.*sees the node of none.*container"):
        _open(kernel)
    assert kernel.held() == {}


def test_an_unknown_branch_is_refused_by_its_number() -> None:
    kernel = FakeKernel(version=b"610.43.02")
    with pytest.raises(Unsupported, match=r"610\.43\.02 is of branch 610.*580.*install a driver"):
        _open(kernel)
    assert kernel.held() == {}


def test_the_group_is_scheduled_by_the_struct_of_the_branch() -> None:
    kernel = FakeKernel(version=b"570.86.15")
    kernel.schedule_size = 2
    with _open(kernel) as gpu:
        assert len(kernel.scheduled) == len(gpu.channels)
    kernel = FakeKernel(version=b"580.142")
    kernel.schedule_size = 2  # as if the branch's size were another
    with pytest.raises(RmError, match=r"GPFIFO_SCHEDULE.*NV_ERR_INVALID_ARGUMENT"):
        _open(kernel)
    assert kernel.held() == {}


def test_an_unknown_generation_is_refused_by_its_class() -> None:
    kernel = FakeKernel(classes=(0x80, 0xD0C0, 0xC86F))
    with pytest.raises(Unsupported, match="0xd0c0"):
        _open(kernel)
    assert kernel.held() == {}


def test_ampere_has_its_classes_and_no_second_doorbell() -> None:
    kernel = FakeKernel(classes=(0x80, 0xC561, 0xC56F, 0xC7C0, 0xC7B5))
    with _open(kernel) as gpu:
        assert gpu.classes.name == "Ampere GA10x" and gpu.compute_queue.class_id == 0xC7C0
    with pytest.raises(InvalidValue, match=r"doorbell: this device has BAR0, not.*BAR1"):
        _open(kernel, {"doorbell": "BAR1"})
    assert kernel.held() == {}


def test_gpus_are_chosen_by_index() -> None:
    kernel = FakeKernel()
    with pytest.raises(InvalidIndex, match="NVIDIA GPU 1: this process can reach 1"):
        open_gpu(_world(kernel), 1)
    assert kernel.held() == {}


def test_a_missing_driver_says_what_to_load() -> None:
    class Bare(FakeKernel):
        def open(self, path: str, flags: int) -> int:
            raise TransportError(f"opening {path}: nothing", errno.ENOENT)

    with pytest.raises(DeviceError, match=r"/dev/nvidiactl is not there.*modprobe nvidia"):
        _open(Bare())


# Open questions.


def test_copy_queues_get_groups_of_their_own_on_the_chosen_engines() -> None:
    kernel = FakeKernel()
    with _open(kernel, {"copy channel": "own group"}) as gpu:
        groups = [kernel.objects[queue.group.handle] for queue in gpu.copy_queues]
        engines = [struct.unpack_from("<II", group.params, 8)[1] for group in groups]
        assert engines == [13, 15]  # COPY4 and COPY6, no GRCEs
        objects = kernel.of_class(0xC8B5)
        assert [struct.unpack_from("<II", each.params) for each in objects] == [(1, 13), (1, 15)]
        assert len(kernel.scheduled) == 3
    assert kernel.held() == {}


def test_a_copy_queue_beside_the_compute_queue() -> None:
    kernel = FakeKernel()
    with _open(kernel, {"copy channel": "shared group"}) as gpu:
        (queue,) = gpu.copy_queues
        assert queue.group is gpu.compute_queue.group and len(kernel.scheduled) == 1
    assert kernel.held() == {}


def test_variants_are_tried_in_order_and_recorded() -> None:
    kernel = FakeKernel()
    kernel.refuse[0xC8B5] = 0x31
    with _open(kernel) as gpu:
        assert gpu.copy_queues == () and gpu.channels == (gpu.compute_queue,)
        lines = [str(each) for each in gpu.report.outcomes if each.question == "copy channel"]
        assert [len(kernel.of_class(each)) for each in (0xA06C, 0xC86F, 0xC8B5)] == [1, 1, 0]
    assert [line.split(" failed")[0] for line in lines] == [
        "copy channel: own group",
        "copy channel: shared group",
        "copy channel: none was taken",
    ]
    assert "NV_ERR_INVALID_OBJECT" in lines[0]
    assert kernel.held() == {}


def test_a_gpu_without_free_copy_engines_goes_without() -> None:
    kernel = FakeKernel()
    kernel.copy_engines = {9: (1, 3)}
    kernel.copy_in_graphics_group = False
    with _open(kernel) as gpu:
        assert gpu.copy_queues == ()
    with pytest.raises(Unsupported, match="every copy engine"):
        _open(kernel, {"copy channel": "own group"})
    assert kernel.held() == {}


def test_the_channel_window_grows_until_it_is_large_enough() -> None:
    kernel = FakeKernel()
    kernel.window_needed = 400 << 20
    with _open(kernel) as gpu:
        assert {length for _, length in kernel.windows.values()} == {512 << 20}
        in_use = gpu.session.addresses.in_use - len(gpu.channels) * (512 << 20)
        assert 0 < in_use < 1 << 20, "the smaller window that was refused is free again"
        words = [str(each) for each in gpu.report.outcomes if each.question == "channel window"]
        assert "256 MiB failed" in words[0] and words[1] == "channel window: 512 MiB was taken"
    assert kernel.held() == {}


def test_unknown_variants_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"no variant 'BAR7' of 'doorbell'.*BAR0, BAR1"):
        _open(FakeKernel(), {"doorbell": "BAR7"})


def test_nodes_are_those_of_the_driver() -> None:
    kernel = FakeKernel()
    _open(kernel).close()
    opened = [call.removeprefix("open ") for call in kernel.calls if call.startswith("open")]
    assert opened[:4] == [CTL, UVM, UVM, CARD] and set(opened) == {CTL, UVM, CARD}
