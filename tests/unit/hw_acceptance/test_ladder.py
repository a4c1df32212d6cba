"""The ladder on a GPU that is a stand-in: what passes, and what failures tell."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from gpu.core.wait import HostWaiter, Waiter
from gpu.transport.os import Os
from gpu.transport.world import World
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance.bench import latency
from tools.hw_acceptance.child import Context, run_step
from tools.hw_acceptance.kernels import SOURCES
from tools.hw_acceptance.ladder import copying, expected, launching, opening, queues
from tools.hw_acceptance.ladder.plan import LADDER
from tools.hw_acceptance.model import Outcome
from tools.hw_acceptance.prepare import compile_kernels
from tools.hw_acceptance.steplog import StepLog, Told, read_step
from tools.hw_acceptance.tracing import traced_world
from unit.hw_acceptance.fake_gpu import FakeGpu, FakeTime
from unit.hw_acceptance.fake_programs import KERNELS, PROGRAMS, FakeCompiler, Launched

STEPS: dict[str, Callable[[Context], None]] = {
    "1 control": opening.control,
    "2 device": opening.device,
    "3 clock": opening.clock,
    "4 uvm": opening.uvm,
    "5 memory": opening.memory,
    "6 channels": opening.channels,
    "7 host semaphore": queues.host_semaphore,
    "8 objects": queues.objects,
    "9 launch": launching.nothing,
    "10 store": launching.store,
    "11 kernels": launching.kernels,
    "12 copies": copying.copies,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("folder")
    compile_kernels(place / prepared.KERNELS, FakeCompiler(), [90])
    return place


class Ran:
    """A step that ran: what it told, the files it left, and the GPU."""

    def __init__(self, gpu: FakeGpu, told: Told, work: Path):
        self.gpu, self.told, self.work = gpu, told, work

    def text(self, name: str) -> str:
        return (self.work / name).read_text()


Take = Callable[..., Ran]


@pytest.fixture
def take(tmp_path: Path, folder: Path) -> Take:
    def run(
        name: str,
        gpu: FakeGpu | None = None,
        force: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Ran:
        gpu = gpu or FakeGpu()
        system: Os = gpu
        waiter: Waiter = FakeTime(gpu)
        log = StepLog(tmp_path)
        world, recorder = traced_world(system, waiter, tmp_path)
        with recorder:
            run_step(STEPS[name], Context(world, log, folder, force or {}, options or {}))
        log.close()
        assert gpu.held() == {}, "all is given back, whatever happened"
        return Ran(gpu, read_step(tmp_path), tmp_path)

    return run


def test_the_table_has_the_functions_of_the_plan() -> None:
    for step in LADDER:
        module, _, function = step.run.partition(":")
        found = STEPS[step.name]
        assert (found.__module__, found.__name__) == (module, function)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_passes(take: Take, name: str) -> None:
    ran = take(name)
    assert ran.told.outcome is Outcome.PASS, ran.told.reason
    assert all(check["ok"] for check in ran.told.checks)
    assert ran.told.statuses["NV_OK"] > 1 and ran.gpu.faults == []


def test_calls_are_logged_with_names_statuses_and_times(take: Take) -> None:
    ran = take("6 channels")
    text = ran.text("calls.jsonl")
    assert '"name": "RM_ALLOC HOPPER_COMPUTE_A (0xcbc0)", "status": "NV_OK"' in text
    assert '"name": "RM_CONTROL NVA06C_CTRL_CMD_GPFIFO_SCHEDULE' in text
    assert '"name": "UVM_REGISTER_CHANNEL", "status": "NV_OK"' in text
    assert '"path": "/dev/nvidia-uvm"' in text and '"took_ns": ' in text
    assert len(text.splitlines()) == len(ran.text("trace.jsonl").splitlines()) - 1
    assert ran.told.statuses["NV_WARN_NOTHING_TO_DO"] == 1
    assert ran.told.facts["compute queue"]["class"] == "0xcbc0"


def test_a_refused_call_fails_its_step_with_the_status(take: Take) -> None:
    gpu = FakeGpu()
    gpu.refuse[0x90F1] = 0x29
    told = take("4 uvm", gpu).told
    assert told.outcome is Outcome.FAIL and "address space: " in told.reason
    assert told.statuses["NV_ERR_INVALID_FLAGS"] == 1


def test_a_clock_that_stands_still_is_seen(take: Take) -> None:
    class Stopped(FakeGpu):
        def _show_time(self) -> None:
            struct.pack_into("<II", self._view(0x80, 8), 0, 7, 0)

    told = take("3 clock", Stopped()).told
    assert told.outcome is Outcome.FAIL and "the clock goes: 0 ns" in told.reason


def test_without_an_answer_all_state_is_told(take: Take) -> None:
    gpu = FakeGpu()
    gpu.deaf = True
    ran = take("7 host semaphore", gpu)
    assert ran.told.outcome is Outcome.FAIL and "HwTimeout: the first semaphore" in ran.told.reason
    state = ran.text("state.txt")
    assert "compute queue: token 0x" in state and "get 0, put 1" in state
    assert "semaphore at 0x" in state and "ring entry 0: 0x" in state
    assert "SEM_EXECUTE(OPERATION=RELEASE" in state and "USERD" in state


def test_an_unmapped_descriptor_faults_and_the_dump_shows_it(take: Take) -> None:
    class Lost(FakeGpu):
        def load(self, address: int, size: int) -> bytes:
            if size == 384:
                self.mmu_faults = [(address, 2, 1)]
                return super().load(0xDEAD_0000, size)
            return super().load(address, size)

    ran = take("9 launch", Lost())
    assert ran.told.outcome is Outcome.FAIL and "GpuFault" in ran.told.reason
    assert ran.told.notified == [31]
    state = ran.text("state.txt")
    assert "FIFO_ERROR_MMU_ERR_FLT (Xid 31)" in state and "refused (fault type 2" in state
    assert "SEND_PCAS_A(" in state and "launch descriptor version 4" in state
    assert "GRID_WIDTH = 0x1" in state and "constant bank 0: " in state


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, (2, 0x3F)),
        ({"qmd QMD_TYPE": "0"}, (0, 0x3F)),
        ({"qmd QMD_GROUP_ID": "31"}, (2, 31)),
        ({"qmd QMD_TYPE": "0", "qmd QMD_GROUP_ID": "0"}, (0, 0)),
    ],
)
def test_variants_of_descriptors_are_what_is_sent(
    take: Take, options: dict[str, str], fields: tuple[int, int]
) -> None:
    launches = take("9 launch", options=options).gpu.launches
    assert {(each.field(25, 23), each.field(21, 16)) for each in launches} == {fields}


def test_an_action_that_does_nothing_fails_and_another_passes(take: Take) -> None:
    gpu = FakeGpu()
    gpu.refused_actions = {10}
    told = take("9 launch", gpu).told
    assert told.outcome is Outcome.FAIL
    assert "HwTimeout: the release of the launch descriptor" in told.reason
    gpu = FakeGpu()
    gpu.refused_actions = {10}
    options = {"action": "INVALIDATE_COPY_SCHEDULE"}
    assert take("9 launch", gpu, options=options).told.outcome is Outcome.PASS


@pytest.mark.parametrize(
    "name", ["ACQUIRE", "ACQ_STRICT_GEQ", "ACQ_CIRC_GEQ", "ACQ_AND", "ACQ_NOR"]
)
def test_acquires_are_tried(take: Take, name: str) -> None:
    ran = take("7 host semaphore", options={"acquire": name})
    assert ran.told.outcome is Outcome.PASS
    assert any(check["name"] == f"{name} passes" for check in ran.told.checks)


def test_a_wrong_word_is_named(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(launched: Launched) -> None:
        shape(launched)
        (out,) = launched.parameters("Q")
        launched.put(out + 20, [9])

    shape = PROGRAMS["shape"]
    monkeypatch.setitem(PROGRAMS, "shape", off)
    ran = take("11 kernels")
    told = ran.told
    assert told.outcome is Outcome.FAIL and "launch descriptor version 4" in ran.text("state.txt")
    assert "1 of 8 words are wrong, first word 5: 0x9, not 0x1" in told.reason
    assert sum(check["ok"] for check in told.checks) > 4, "the other kernels are still compared"


@pytest.mark.parametrize("variant", ["shared group", "own group"])
def test_copies_on_both_kinds_of_channel(take: Take, variant: str) -> None:
    told = take("12 copies", force={"copy channel": variant}).told
    assert told.outcome is Outcome.PASS and told.facts["with compute"] is (variant[0] == "s")


def test_copies_without_an_engine_take_a_kernel(take: Take) -> None:
    force = {"copy channel": "none"}
    assert "there is no copy queue" in take("12 copies", force=force).told.reason
    told = take("12 copies", force=force, options={"copies": "kernel"}).told
    assert told.outcome is Outcome.PASS and len(told.checks) >= 12


def test_latency_is_measured_on_a_gpu_that_works_on_its_own(tmp_path: Path, folder: Path) -> None:
    gpu, ended = FakeGpu(), threading.Event()

    def work() -> None:
        while not ended.is_set():
            gpu.run()
            time.sleep(0)

    log = StepLog(tmp_path)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        latency.ours(Context(World(gpu, HostWaiter()), log, folder))
    finally:
        ended.set()
        thread.join()
    log.close()
    times = read_step(tmp_path).facts["launch to completion, ns"]
    assert list(times) == ["least", "p10", "median", "p90", "p99"]
    assert 0 < times["least"] <= times["median"] <= times["p99"]
    assert len(gpu.launches) > 2000 and gpu.held() == {}


def test_the_kernels_are_those_of_the_stand_in() -> None:
    assert set(SOURCES) == set(KERNELS) >= set(PROGRAMS)


def test_expected_shapes_count_like_the_hardware() -> None:
    words = expected.shape((2, 1, 2), (3, 2, 1)).reshape(-1, 8)
    assert len(words) == 24
    assert words[0].tolist() == [0, 0, 3, 2, 1, 2, 1, 2]
    assert words[1][0] == 1 and words[3][0] == 1 << 10 and words[6][1] == 1
    assert words[12][1] == 1 << 20
    assert words.dtype == np.uint32
