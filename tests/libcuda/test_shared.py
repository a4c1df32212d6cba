"""Memory of DEV=CUDA shared with other processes, on the model of libcuda in each."""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from gpu import Context, Device, Tensor, share
from gpu.backends.cuda import library
from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.exchange import CudaExchange
from gpu.core.errors import DeviceError, InvalidType, InvalidValue, OutOfMemory, Unsupported
from gpu.sim.cuda import drivers
from gpu.tensor.shared import SharedTensor
from libcuda.conftest import Opened
from libcuda.sharing_process import another, values
from simulated import SIMULATED, keeping_rules

WAYS = ("handle", "file")


@pytest.fixture
def here(need: Callable[[str], None]) -> Iterator[None]:
    need("nvrtc")
    with Context(DEV="CUDA", SIM=SIMULATED["CUDA"]), keeping_rules("CUDA"):
        yield


@pytest.fixture
def other(here: None) -> Iterator[Any]:
    with another() as process:
        yield process


def left() -> list[str]:
    """What the device has mapped for others, and of others."""
    Device["CUDA"].synchronize()
    Tensor([1]).realize()
    Device["CUDA"].synchronize()
    everything = [one for each in drivers() for one in each.driver.memory.allocations]
    return [one.kind for one in everything if one.kind in ("imported", "mapped")]


def test_two_processes_have_one_memory(other: Any) -> None:
    for by in WAYS:
        ours = share(Tensor(values(3000).reshape(30, 100)).T[::-1], by=by)
        expected = values(3000).reshape(30, 100).T[::-1]
        doubled, same, device = other.ask(None, ours)
        np.testing.assert_array_equal(same, expected)
        np.testing.assert_array_equal(doubled, expected * 2)
        assert device == "CUDA"
        theirs = other.ask("share", by)
        x, y = theirs.open(), theirs.open()  # as often as it is asked for
        np.testing.assert_array_equal((x + y).numpy(), values() * 2)
        x += 1  # has memory of its own from now on
        np.testing.assert_array_equal(theirs.open().numpy(), values())
        theirs.close()
        np.testing.assert_array_equal(y.numpy(), values())
        with pytest.raises(InvalidValue, match="it was closed"):
            theirs.open()
        ours.close()
        del ours, theirs, x, y
        assert not left()


def test_memory_that_was_given_back_or_whose_owner_was_killed(other: Any) -> None:
    by_handle, by_file = (other.ask("share", by) for by in WAYS)
    freed = other.ask("share", "handle")
    held = freed.open()
    assert other.ask("free", None) == [1]
    later = by_handle.open
    with pytest.raises(InvalidValue, match="has ended or has given the memory back"):
        later()
    again = other.ask("share", "handle")
    other.process.kill()
    other.process.join(30)
    with pytest.raises(InvalidValue, match=f"of the process {other.process.pid} cannot be opened"):
        again.open()
    np.testing.assert_array_equal(by_file.open().numpy(), values())
    np.testing.assert_array_equal(held.numpy(), values())
    by_file.close()
    del held
    assert not left()


@pytest.mark.parametrize("by", WAYS)
def test_a_process_that_is_killed_in_the_middle_of_its_work(other: Any, by: str) -> None:
    shared = other.ask("share", by)
    ours = share(Tensor(values()) + 1, by=by)
    assert other.ask(None, ours)[2] == "CUDA"
    held = shared.open()
    assert other.ask("work", by) == "begun"
    time.sleep(0.1)
    other.process.kill()
    other.process.join(30)
    np.testing.assert_array_equal((held + 1).numpy(), values() + 1)
    np.testing.assert_array_equal(ours.open().numpy(), values() + 1)
    with pytest.raises((EOFError, OSError)):
        other.ask("share", by)
    if by == "handle":
        del held
        shared.close()
        with pytest.raises(InvalidValue, match="it was closed"):
            shared.open()
    ours.close()


def test_another_gpu_is_named(other: Any) -> None:
    for by in WAYS:
        error = other.ask("CUDA:1", share(Tensor(values()), by=by))
        assert isinstance(error, InvalidValue)
        assert "is of the GPU GPU-5100" in error.message and "here is GPU-5101" in error.message


def test_handles_that_are_not_what_they_were(here: None) -> None:
    for by in WAYS:
        shared = share(Tensor(values()), by=by)
        changed = {
            "of another machine": {"machine": "of another"},
            "is of the GPU": {"device": bytes(16)},
            "its file is of fewer|of this process, which has": {"nbytes": 1 << 30},
        }
        for match, fields in changed.items():
            with pytest.raises(InvalidValue, match=match):
                Device["CUDA"].allocator.exchange.open(shared.handle._replace(**fields))
        shared.close()
    assert not left()


def test_a_file_that_is_no_memory_and_a_token_that_is_none(here: None) -> None:
    exchange = Device["CUDA"].allocator.exchange
    with (
        share(Tensor(values()), by="file") as shared,
        open(os.devnull) as nothing,
        pytest.raises(InvalidValue, match="cannot be opened"),
    ):
        exchange.open(shared.handle._replace(file=nothing.fileno()))
    with share(Tensor(values())) as shared:
        for match, token, process in (("64 bytes", b"x", 1), ("cannot be opened", bytes(64), 1)):
            with pytest.raises(InvalidValue, match=match):
                exchange.open(shared.handle._replace(token=token, process=process))


def test_the_process_that_shares_has_the_memory_too(here: None) -> None:
    for by in WAYS:
        with share(Tensor(values()), by=by) as shared:
            x = shared.open()
            assert x is shared.open()
            back = pickle.loads(ForkingPickler.dumps(shared))
            if by == "file":
                np.testing.assert_array_equal(back.open().numpy(), values())
            else:
                with pytest.raises(InvalidValue, match="use the tensor that it was made of"):
                    back.open()
        with pytest.raises(InvalidValue, match="cannot be sent"):
            pickle.dumps(shared)
        np.testing.assert_array_equal((x + 1).numpy(), values() + 1)
        del x, back
        assert not left()


def test_values_without_elements(here: None) -> None:
    for by in WAYS:
        with share(Tensor.zeros(3, 0), by=by) as shared:
            again: SharedTensor = pickle.loads(ForkingPickler.dumps(shared))
            assert shared.open().shape == again.open().shape == (3, 0)


def test_what_is_refused(here: None) -> None:
    with pytest.raises(InvalidValue, match="by"):
        share(Tensor([1]), by="pipe")
    with pytest.raises(InvalidType, match="share takes a Tensor, got list"):
        share([1])
    with pytest.raises(Unsupported, match="memory of PYTHON is not shared between processes"):
        share(Tensor([1], device="PYTHON"))
    with (
        share(Tensor([1])) as shared,
        pytest.raises(Unsupported, match="is opened on CUDA, got PYTHON"),
    ):
        SharedTensor(shared.handle, (1,), shared.dtype).open("PYTHON")


_CALLS = (
    *("cuDeviceGetUuid_v2", "cuMemAlloc_v2", "cuIpcGetMemHandle"),
    *("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"),
    *("cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"),
)
_ERRORS = {Result.NOT_SUPPORTED: Unsupported, Result.OUT_OF_MEMORY: OutOfMemory, 999: DeviceError}
_GIVEN_BACK = {
    "cuMemAlloc_v2": "cuMemFree_v2",
    "cuMemCreate": "cuMemRelease",
    "cuMemAddressReserve": "cuMemAddressFree",
    "cuMemMap": "cuMemUnmap",
}


def test_codes_of_sharing_are_errors_and_nothing_is_left_behind(cuda: Opened) -> None:
    exchange, stand_in = CudaExchange(cuda.context), cuda.stand_in
    for name in _CALLS:
        for code, error in _ERRORS.items():
            if (code, name) == (Result.NOT_SUPPORTED, "cuDeviceGetUuid_v2"):
                continue  # this is no matter of sharing
            stand_in.calls.clear()
            stand_in.fails[name] = code
            with pytest.raises(error):
                exchange.export(100, name not in ("cuMemAlloc_v2", "cuIpcGetMemHandle"))
            stand_in.fails.clear()
            for makes, back in _GIVEN_BACK.items():
                made = len(stand_in.named(makes)) - (makes == name)
                assert len(stand_in.named(back)) == max(made, 0), (name, makes)


def test_a_handle_of_another_machine_or_gpu_is_not_opened(cuda: Opened) -> None:
    exchange = CudaExchange(cuda.context)
    *kept, handle = exchange.export(100, False)
    handle = handle._replace(process=1)
    with pytest.raises(InvalidValue, match="of another machine"):
        exchange.open(handle._replace(machine="another"))
    with pytest.raises(InvalidValue, match="is of the GPU GPU-31313131"):
        exchange.open(handle._replace(device=b"1" * 16))
    with pytest.raises(InvalidValue, match="a handle is said to be of 100 bytes, and there are 0"):
        exchange.open(handle)  # the stand-in tells of none
    assert len(cuda.stand_in.named("cuIpcOpenMemHandle_v2")) == 1
    cuda.stand_in.fails["cuIpcOpenMemHandle_v2"] = Result.MAP_FAILED
    with pytest.raises(InvalidValue, match="of the process 1 cannot be opened"):
        exchange.open(handle)
    del kept


def test_the_type_that_is_passed_by_value_has_its_size() -> None:
    assert ctypes.sizeof(library.IpcHandle) == 64
