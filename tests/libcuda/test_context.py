"""Opening libcuda and a GPU, contexts of threads, errors, faults, recovery, fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu.backends.cuda import device, library
from gpu.backends.cuda.codes import FAULTS, error_of
from gpu.backends.cuda.context import open_context
from gpu.backends.cuda.library import Library, load_library
from gpu.core.devspec import parse_device_spec
from gpu.core.errors import (
    CompileError,
    DeviceError,
    DeviceLost,
    GpuFault,
    InvalidValue,
    OutOfMemory,
    Unsupported,
)
from gpu.transport.missing import no_libcuda
from libcuda.conftest import Opened
from libcuda.stand_in import CONTEXT, NOT_READY, StandIn
from unit.made_up import BUS, MadeUp


def test_a_library_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"CUDA_LIBRARY=.*nowhere.so cannot be loaded"):
        load_library(str(tmp_path / "nowhere.so"))
    (tmp_path / "no.so").write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"no.so cannot be loaded"):
        load_library(str(tmp_path / "no.so"))
    with pytest.raises(DeviceError, match="has no cuInit"):
        load_library("libc.so.6")


def test_a_machine_without_one_is_told_what_doctor_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(library.ctypes, "CDLL", missing)
    monkeypatch.setattr(library, "RealFiles", lambda: MadeUp(BUS))
    with pytest.raises(DeviceError) as caught:
        load_library("")
    assert caught.value.message == str(no_libcuda(MadeUp(BUS)))
    monkeypatch.setattr(library, "RealFiles", lambda: MadeUp({"/usr/lib64/libcuda.so.1": ""}))
    with pytest.raises(DeviceError, match=r"^/usr/lib64/libcuda.so.1 cannot be loaded: /usr/lib64"):
        load_library("")


def test_a_library_without_a_symbol_is_too_old(stand_in: StandIn) -> None:
    with pytest.raises(DeviceError, match=r"no cuDevicePrimaryCtxReset_v2.*too old; update"):
        Library(stand_in.functions(without=("cuDevicePrimaryCtxReset_v2",)))


def test_a_driver_that_is_too_old_is_told(stand_in: StandIn) -> None:
    stand_in.driver = 11080
    with pytest.raises(DeviceError, match=r"of CUDA 11\.8, and CUDA 12\.0 is the oldest"):
        open_context(Library(stand_in.functions()), 0)


def test_no_gpu_and_a_number_there_is_not(stand_in: StandIn) -> None:
    loaded = Library(stand_in.functions())
    with pytest.raises(DeviceError, match=r"there is no CUDA:1: libcuda finds 1 GPU"):
        open_context(loaded, 1)
    stand_in.fails["cuInit"] = 100
    with pytest.raises(DeviceError, match=r"libcuda finds no GPU.*CUDA_VISIBLE_DEVICES"):
        open_context(loaded, 0)
    stand_in.fails["cuInit"] = 803
    with pytest.raises(DeviceError, match=r"cannot begin: CUDA_ERROR_OF_STAND_IN \(803\)"):
        open_context(loaded, 0)


def test_what_is_told_of_a_gpu(cuda: Opened) -> None:
    info = cuda.context.info
    assert (info.name, info.capability, info.multiprocessors) == ("Stand-in", 90, 132)
    assert (info.memory, info.driver) == (1 << 30, (13, 0))


def test_streams_do_not_wait_for_the_default_one(stand_in: StandIn) -> None:
    context = open_context(Library(stand_in.functions()), 0)
    assert [flags for _, flags in stand_in.given("cuStreamCreate")] == [1, 1]
    context.close()


def test_a_thread_gets_the_context_once(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.allocator.alloc(8)
    cuda.stand_in.calls.clear()

    def work() -> None:
        program(memory, memory)
        program(memory, memory)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    program(memory, memory)
    assert cuda.stand_in.given("cuCtxSetCurrent") == [(CONTEXT,)]


def test_a_thread_with_another_context_gets_ours(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.allocator.alloc(8)
    cuda.stand_in.current[threading.get_ident()] = 0x77
    program(memory, memory)
    assert cuda.stand_in.current[threading.get_ident()] == CONTEXT


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, OutOfMemory), (218, CompileError), (222, CompileError), (700, GpuFault), (3, DeviceLost),
     (709, DeviceLost), (1, DeviceError), (999, DeviceError), *((c, GpuFault) for c in FAULTS)],
)  # fmt: skip
def test_codes_are_errors_of_ours(code: int, kind: type[Exception]) -> None:
    error = error_of(code, f"CUDA_ERROR ({code})", "do something")
    assert type(error) is kind
    assert error.message.startswith(f"CUDA cannot do something: CUDA_ERROR ({code})")


def test_a_fault_names_the_kernel_its_arguments_and_the_line(cuda: Opened) -> None:
    program = cuda.program("burns", values=1)
    program.origin = "of what computes add"
    memory = cuda.allocator.alloc(96)
    program(memory, memory, vals=[17])  # the line
    cuda.stand_in.fails["cuStreamSynchronize"] = 700
    with pytest.raises(GpuFault) as caught:
        cuda.context.synchronize()
    told = caught.value.message
    assert "touched an address that no memory has" in told
    assert f"burns of 3 x 64 threads with 96 bytes at {memory.address:#x}, 96 bytes at" in told
    assert ", 17, of what computes add, launched at" in told and "# the line" in told


def test_a_fault_names_all_that_may_have_been_it(cuda: Opened) -> None:
    memory = cuda.allocator.alloc(8)
    done = cuda.program("done")
    done(memory, memory)
    cuda.context.synchronize()
    for name in "abcdef":
        cuda.program(name)(memory, memory)
    cuda.stand_in.fails["cuStreamSynchronize"] = 719
    with pytest.raises(GpuFault, match=r"one of these 6, oldest first: a of .*; b of .* 2 more"):
        cuda.context.synchronize()


def test_after_a_fault_everything_is_lost(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.filled(b"12345678")
    program(memory, memory)
    cuda.stand_in.fails["cuStreamSynchronize"] = 700
    with pytest.raises(GpuFault):
        cuda.context.synchronize()
    cuda.stand_in.fails.clear()
    cuda.stand_in.calls.clear()
    for call in (
        lambda: program(memory, memory),
        lambda: program(memory, memory, wait=True),
        lambda: cuda.allocator.alloc(100),
        lambda: cuda.allocator.copy_in(memory, memoryview(b"1")),
        lambda: cuda.allocator.copy_out(memoryview(bytearray(1)), memory),
        lambda: cuda.allocator.copy(memory, memory, 1),
        lambda: cuda.program("another"),
        cuda.context.synchronize,
    ):
        with pytest.raises(DeviceLost, match=r"one.* k of|running was k of.*recover\(force=True\)"):
            call()
    assert not cuda.stand_in.calls


def test_a_fault_shows_in_any_call(cuda: Opened) -> None:
    cuda.stand_in.fails["cuMemAlloc_v2"] = 716
    with pytest.raises(GpuFault, match="not aligned; nothing that was launched here was running"):
        cuda.allocator.alloc(8)
    with pytest.raises(DeviceLost):
        cuda.context.synchronize()


def fault(cuda: Opened) -> None:
    cuda.stand_in.fails["cuStreamSynchronize"] = 700
    cuda.allocator.copy(*(cuda.allocator.alloc(8) for _ in range(2)), 8)
    with pytest.raises(GpuFault):
        cuda.context.synchronize()
    cuda.stand_in.fails.clear()


def test_recovery_takes_force(cuda: Opened) -> None:
    fault(cuda)
    with pytest.raises(InvalidValue, match="recover\\(force=True\\)"):
        cuda.context.recover()
    assert not cuda.stand_in.named("cuDevicePrimaryCtxReset_v2")
    assert cuda.context.is_lost


def test_after_recovery_programs_run_and_memory_is_gone(cuda: Opened) -> None:
    seen: list[tuple[int, ...]] = []
    cuda.stand_in.kernels["k"] = lambda *words: seen.append(words)
    program, kept = cuda.program(workspace=64), cuda.filled(b"kept")
    free = cuda.allocator.alloc(64)
    cuda.allocator.free(free, 64)
    fault(cuda)
    cuda.context.recover(force=True)
    with pytest.raises(DeviceLost, match="what this tensor held is lost"):
        cuda.allocator.copy_out(memoryview(bytearray(4)), kept)
    with pytest.raises(DeviceLost, match="what this tensor held is lost"):
        program(kept, kept)
    cuda.allocator.free(kept, 4)
    assert cuda.allocator.alloc(4) is not kept
    new = cuda.allocator.alloc(64)
    assert new is not free
    cuda.allocator.copy_in(new, memoryview(bytes(range(64))))
    program(new, new)
    cuda.context.synchronize()
    workspace = program.workspace[0].address
    assert seen == [(new.address, new.address, workspace)]
    back = bytearray(64)
    cuda.allocator.copy_out(memoryview(back), new)
    assert back == bytes(range(64))


@pytest.mark.parametrize("failing", ["cuStreamCreate", "cuLaunchKernelEx", "cuStreamSynchronize"])
def test_a_reset_that_does_not_help_says_restart(cuda: Opened, failing: str) -> None:
    fault(cuda)
    cuda.stand_in.fails[failing] = 700
    for _ in range(2):
        with pytest.raises(DeviceLost, match="restart the process"):
            cuda.context.recover(force=True)
    with pytest.raises(DeviceLost, match="restart the process"):
        cuda.context.synchronize()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_and_calls_nothing(cuda: Opened) -> None:
    program, memory = cuda.program(), cuda.allocator.alloc(8)
    cuda.stand_in.calls.clear()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with cuda.context.copying, cuda.context.lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if not pid:
        code = 1
        signal.alarm(10)  # ends a child that waits for a lock
        try:
            for call in (
                lambda: program(memory, memory),
                lambda: cuda.allocator.alloc(9),
                lambda: cuda.allocator.copy_in(memory, memoryview(b"1")),
                cuda.context.synchronize,
                lambda: cuda.context.recover(force=True),
            ):
                with pytest.raises(DeviceLost, match="before this process was forked"):
                    call()
            cuda.context.close()
            code = 0 if not cuda.stand_in.calls else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    over.set()
    holder.join()
    program(memory, memory)


@pytest.mark.parametrize(
    ("capability", "text", "told"),
    [
        ((6, 1), "CUDA", "sm_61 is older than sm_70"),
        ((9, 0), "CUDA::sm_80", "CUDA is a sm_90; code for sm_80"),
        ((12, 1), "CUDA::sm_86", "CUDA is a sm_121"),
    ],
)
def test_a_gpu_without_code_for_it_is_given_back(
    capability: tuple[int, int], text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn(capability)
    loaded = Library(stand_in.functions())
    monkeypatch.setattr(device, "_library", lambda *_: loaded)
    with pytest.raises(Unsupported, match=told):
        device.open_device("CUDA", parse_device_spec(text))
    assert stand_in.calls[-1][0] == "cuDevicePrimaryCtxRelease_v2"


@pytest.mark.parametrize("text", ["CUDA:PTX", "CUDA:PTX:sm_121", "CUDA:PTX:sm_120"])
def test_an_unknown_gpu_has_code_of_the_nearest_older(
    text: str, monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    need("llvmlite")
    stand_in = StandIn((12, 1))  # which has to outlive its functions
    loaded = Library(stand_in.functions())
    monkeypatch.setattr(device, "_library", lambda *_: loaded)
    opened = device.open_device("CUDA", parse_device_spec(text))
    assert opened.renderer.target.name == "sm_120"
    assert opened.describe()["target"].startswith("sm_121, Stand-in")
    opened.context.close()  # type: ignore[attr-defined]


def test_closing_gives_everything_back(
    stand_in: StandIn, opens: Callable[[StandIn], Opened]
) -> None:
    cuda = opens(stand_in)
    program, memory = cuda.program(workspace=100), cuda.filled(b"data")
    program(memory, memory)
    cuda.context.close()
    assert not stand_in.memory and not stand_in.modules
    in_streams, in_slot = 4, 1  # events
    assert len(stand_in.given("cuEventDestroy_v2")) == in_streams + in_slot
    assert len(stand_in.given("cuStreamDestroy_v2")) == 2
    assert stand_in.calls[-1][0] == "cuDevicePrimaryCtxRelease_v2"
    with pytest.raises(DeviceLost, match="was closed"):
        program(memory, memory)


def test_what_was_retired_is_given_back_when_that_much_is_done_and_nobody_waits(
    cuda: Opened,
) -> None:
    program, memory = cuda.program(), cuda.filled(b"data")
    given: list[int] = []

    def launch_and_retire(handle: int) -> None:
        program(memory, memory)
        cuda.context.retire(lambda handle: given.append(handle) or 0, handle)

    cuda.stand_in.fails["cuEventQuery"] = NOT_READY
    launch_and_retire(1)
    launch_and_retire(2)  # here it is asked first whether all up to the launch before is done
    launch_and_retire(3)
    assert not given
    del cuda.stand_in.fails["cuEventQuery"]
    program(memory, memory)
    assert given == [1]
    program(memory, memory)
    assert given == [1, 2, 3]
    cuda.stand_in.calls.clear()
    program(memory, memory)
    assert not cuda.stand_in.given("cuEventQuery")
