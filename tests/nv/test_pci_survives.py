"""Cards without a kernel driver after what goes wrong: interrupts, late answers, faults, kills."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import DeviceHang, DeviceLost, GpuFault, OutOfMemory
from gpu.drivers.boot import BootTimeout
from gpu.drivers.crash import Crash, parse_crash
from gpu.drivers.device import Rung
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.pci import bootargs
from gpu.drivers.nv.pci.boot import BootCard
from gpu.drivers.nv.pci.gpu import open_card
from gpu.drivers.nv.pci.memory import CardMemory
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.hcq.ports import MemoryKind
from gpu.sim.nv.pci import rm as rm_module
from gpu.sim.nv.pci.rm import LIBOS_PRINT, Rm
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.process import SimOs
from gpu.transport.pci.bus import HostPci
from gpu.transport.world import World
from nv.rm_target import CardTarget
from nv.test_faults import BEHIND, fail, load, refuse
from nv.test_pci_boot import CHIPS, load_of

EVENTS = 200  # more than three times what the queue has elements


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[CardTarget]:
    made = CardTarget(7, getattr(request, "param", "gh100"))
    yield made
    complaints = made.complaints()
    made.close()
    assert complaints == []


def opened(target: CardTarget, world: World | None = None) -> RmDevice:
    assert isinstance(target.sim, NvPciWorld)
    gpu = open_card(world or target.world, 0, load=load_of(target.sim))
    return RmDevice(port_of(gpu, QueueOptions()))


def rm_of(target: CardTarget) -> Rm:
    assert isinstance(target.sim, NvPciWorld)
    return target.sim.gpus[0].rm


def computes(device: RmDevice, seed: int = 0) -> None:
    add = load(device, "add")
    out, a, b = (upload(device, numbers(seed + n)) for n in range(3))
    add(out, a, b, vals=(WORDS,))
    assert (download(device, out) == numbers(seed + 1) + numbers(seed + 2)).all()


class Interrupts:
    """A Ctrl-C while the card is waited for, at one of the times that this is done."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.count = 0
        self.at: int | None = None
        inner = BootCard.wait_value

        def wait_value(*args: object, **options: object) -> int:
            self.count += 1
            if self.at is not None and self.count > self.at:
                self.at = None
                raise KeyboardInterrupt
            return inner(*args, **options)  # type: ignore[arg-type]

        patch.setattr(BootCard, "wait_value", wait_value)

    def within(self, act: Callable[[], object], at: int) -> bool:
        """Whether it was interrupted at the wait of that number."""
        self.count, self.at = 0, at
        try:
            act()
        except KeyboardInterrupt:
            return True
        finally:
            self.at = None
        return False


@pytest.mark.parametrize("target", ["ga102"], indirect=True)
def test_an_interrupt_while_a_call_is_waited_for(
    target: CardTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a call that was broken off the reply comes yet, and is no other's."""
    interrupts = Interrupts(monkeypatch)
    device = opened(target)
    seen = 0
    for at in range(60):
        if not interrupts.within(lambda: device.channel("compute", 1), at):
            break
        seen += 1
    assert seen > 10
    computes(device)
    device.close()


def test_an_interrupt_at_some_wait_of_an_opening(
    target: CardTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was opened is closed, and the card opens again."""
    interrupts = Interrupts(monkeypatch)
    device = opened(target)
    count = interrupts.count
    device.close()
    rng = Random(3)
    for at in sorted(rng.sample(range(count), 4)):
        assert interrupts.within(lambda: opened(target), at)
    device = opened(target)
    computes(device)
    device.close()


def test_a_reply_that_comes_late_is_no_other_calls(
    target: CardTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened(target)
    units = device.port.gpu.subdevice
    monkeypatch.setattr(rm_module, "_RPC_NS", 7 * 10**9)
    with pytest.raises(BootTimeout, match="call 76"):
        device.port.gpu.queues._ground.copy_engines()
    monkeypatch.undo()
    engines = device.port.gpu.queues._ground.copy_engines()
    assert [each.engine_type for each in engines] == sorted({e.engine_type for e in engines})
    assert all(each.units for each in engines) and units.alive
    device.close()


def test_events_are_served_while_no_call_waits(target: CardTarget) -> None:
    """A full queue would keep firmware from telling of a fault."""
    device, rm = opened(target), rm_of(target)
    fill, out = load(device, "fill"), upload(device, numbers(1))
    device.synchronize()
    assert rm._queues is not None
    for _ in range(EVENTS):
        rm._queues.send(LIBOS_PRINT, bytes(12))
    assert rm.unread
    for _ in range(8):
        fill(out, vals=(7, WORDS))
        device.synchronize()
    assert not rm.unread
    fill(out, vals=(7, BEHIND))
    with pytest.raises(GpuFault):
        device.synchronize()
    device.recover()
    computes(device)
    device.close()


@pytest.mark.parametrize("target", CHIPS, indirect=True)
@pytest.mark.parametrize("rung", [Rung.QUEUES, Rung.ADDRESS_SPACE])
@pytest.mark.sampled(25)
def test_going_on_after_faults(
    target: CardTarget, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is as before, and what is allocated anew is cleared."""
    device = opened(target)
    fill, kept = load(device, "fill"), upload(device, numbers(5))
    for _ in range(2):
        with monkeypatch.context() as patch:
            if rung is not Rung.QUEUES:
                refuse(Rung.QUEUES, patch)
            fail(device, fill)
            assert device.recover() is rung
        assert (download(device, kept) == numbers(5)).all()
        assert not any(device.allocator.copy_out(device.allocator.alloc(70_000)))
        computes(device)
    device.close()


@pytest.mark.parametrize("target", ["ga102"], indirect=True)
def test_memory_runs_out_and_comes_back(target: CardTarget) -> None:
    device = opened(target)
    memory = device.port.gpu.memory
    assert isinstance(memory, CardMemory)
    for kind in MemoryKind:
        with pytest.raises(OutOfMemory):
            device.exclusively(device.allocate, 1 << 40, kind)
    device.exclusively(device.release, device.exclusively(device.allocate, 1, MemoryKind.VRAM))
    before = memory.in_use
    for kind, most in ((MemoryKind.VRAM, 8 << 30), (MemoryKind.VISIBLE, 64 << 20)):
        held, size, least = [], most, most >> 4
        while size >= least:
            try:
                held.append(device.exclusively(device.allocate, size, kind))
            except OutOfMemory:
                size //= 2
        assert len(held) > 2
        while held:
            device.exclusively(device.release, held.pop())
        assert memory.in_use == before
    computes(device)
    device.close()


def test_a_kill_while_a_kernel_runs(target: CardTarget) -> None:
    process = target.sim.new_process()
    system = SimOs(process)
    device = opened(target, World(system, target.sim.waiter, HostPci(system)))
    target.kernels.steps = 10**9
    add = load(device, "add")
    out, a, b = (upload(device, numbers(n)) for n in range(3))
    add(out, a, b, vals=(WORDS,))
    process.exit()
    target.kernels.steps = 3
    device = opened(target)
    computes(device)
    device.close()


def test_threads_allocate_and_copy_at_once(target: CardTarget) -> None:
    device, wrong = opened(target), list[object]()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(8):
            data = rng.bytes(int(rng.integers(1, 200_000)))
            buffer = device.allocator.alloc(len(data))
            device.allocator.copy_in(buffer, data)
            if device.allocator.copy_out(buffer) != data:
                wrong.append(seed)
            if seed == 1:
                device.port.gpu.queues._ground.copy_engines()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    device.close()


def test_a_forked_child_has_no_card(target: CardTarget) -> None:
    device = opened(target)
    child = os.fork()
    if not child:
        try:
            device.port.gpu.alloc(4096, MemoryKind.VRAM)
        except DeviceLost:
            device.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    computes(device)
    device.close()


@pytest.mark.parametrize("times", [4, pytest.param(200, marks=pytest.mark.sampled(0))])
def test_opening_and_closing_leaves_nothing(target: CardTarget, times: int) -> None:
    """Files, maps and memory of the process are as they were."""

    def held() -> tuple[int, ...]:
        gc.collect()
        return target.resources()

    before: tuple[int, ...] = ()
    memory = 0
    for number in range(times):
        device = opened(target)
        computes(device, number)
        device.close()
        if number == 1:
            before, memory = held(), resident()
    files, maps = held()
    assert files == before[0]
    assert maps <= before[1] + 4
    assert resident() < memory + (32 << 20)


def resident() -> int:
    """Bytes of memory that this process alone has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def reports_of(folder: CrashFolder) -> list[tuple[Crash, dict[str, bytes]]]:
    """Reports with the bytes that are kept beside them."""
    found = []
    for path in folder.reports():
        beside = {
            each.suffixes[-2][1:]: each.read_bytes()
            for each in path.parent.glob(f"{path.stem}.*.bin")
        }
        found.append((parse_crash(path.name, path.read_bytes()), beside))
    return found


@pytest.mark.parametrize("target", ["ga102", "gb202"], indirect=True)
def test_firmware_that_says_nothing_more_is_lost_and_the_next_opening_works(
    target: CardTarget, tmp_path: Path
) -> None:
    """Within a bound; its logs are kept, with the kernel that was under way."""
    device, folder = opened(target), CrashFolder(tmp_path, 4)
    device.report_to(folder, None)
    target.sim.faults.add("hang")
    fill, out = load(device, "fill"), upload(device, numbers(1))
    device.synchronize()
    fill(out, vals=(7, WORDS))
    rm_of(target).die("a test")
    with pytest.raises(DeviceHang, match="fill"):
        device.synchronize()
    before = target.sim.clock.now_ns
    with pytest.raises(DeviceLost, match="open it anew"):
        device.recover()
    assert target.sim.clock.now_ns - before < 60e9
    with pytest.raises(DeviceLost):
        device.port.check()
    (crash, logs), *_ = reports_of(folder)
    assert [kernel.name for kernel in crash.kernels] == ["fill"]
    queue = {"CRASHES"} if target.sim.gpus[0].gpu.chip.name == "gb202" else set()
    assert logs.keys() == {*bootargs.LOGS, *queue}
    assert b"a test" in logs["LOGRM"] and len(logs["LOGRM"]) == bootargs.LOG_SIZE
    device.close()
    device = opened(target)
    computes(device)
    device.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_an_opening_that_fails_leaves_the_logs_of_firmware(
    chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CardTarget(7, chip)
    assert isinstance(made.sim, NvPciWorld)
    folder = CrashFolder(tmp_path, 4)
    monkeypatch.setattr(Rm, "_static_info", lambda self, message: self.die("no answer"))
    with pytest.raises(BootTimeout, match=r"the report is .* with LOGINIT, .* beside it"):
        open_card(made.world, 0, load=load_of(made.sim), crashes=folder)
    ((crash, logs),) = reports_of(folder)
    assert crash.error == "BootTimeout" and "call 65" in crash.message
    assert b"no answer" in logs["LOGRM"] and not any(logs["LOGMNOC"][4096:])
    monkeypatch.undo()
    device = opened(made)
    computes(device)
    device.close()
    made.close()


def test_what_firmware_tells_of_a_fault_is_in_the_error(target: CardTarget) -> None:
    device = opened(target)
    error = fail(device, load(device, "fill"))
    address = rf"access to {error.address:#x} refused"
    assert re.search(rf"firmware: channel \d+ .* failed with .*Xid 31.*{address}", str(error))
    assert re.search(r"firmware: Xid 31, runlist 0, channel \d+: MMU Fault", str(error))
    device.recover()
    computes(device)
    device.close()
