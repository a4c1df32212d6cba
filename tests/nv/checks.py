"""What a device behind NVIDIA's kernel driver does, as checks of an `RmTarget` by name.

The conformance suite's, what this folder's tests ask of a target, and what is here. `mutations`
has mistakes that they find.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from types import ModuleType

import numpy as np
import pytest

from gpu.core import hostmem
from gpu.core.errors import GpuFault, TransportError
from gpu.drivers.device import Rung
from gpu.drivers.nv.device import RmDevice
from gpu.hcq import conformance
from gpu.hcq.conformance.kit import WORDS, download, numbers, peek, system, upload
from gpu.hcq.ports import MemoryKind
from nv import test_device, test_faults, test_peers
from nv.kernels import LAYOUTS, cubin
from nv.rm_target import COPYING, RmTarget

Check = Callable[[RmTarget], None]
REPEATS = 40
_PARAMETERS = ([], ["target"], ["target", "monkeypatch"])


def allocations_leave_nothing(target: RmTarget) -> None:
    """Many allocations and their ends leave memory, addresses and mappings as they were."""
    with RmDevice.open(target.world) as device:
        addresses = device.port.gpu.session.addresses

        def held() -> tuple[object, ...]:
            gc.collect()
            return asdict(target.sim.usage()), addresses.in_use

        device.exclusively(device.release, device.exclusively(device.allocate, 1, MemoryKind.VRAM))
        before = held()
        for number in range(REPEATS):
            kind = list(MemoryKind)[number % len(MemoryKind)]
            memory = device.exclusively(device.allocate, 4096 << number % 9, kind)
            device.exclusively(device.release, memory)
        assert held() == before


def freed_addresses_stay_reserved(target: RmTarget) -> None:
    """Where memory was that the host saw, the system puts nothing else."""
    with RmDevice.open(target.world) as device:
        memory = device.exclusively(device.allocate, 1 << 16, MemoryKind.SYSTEM)
        device.exclusively(device.release, memory)
        flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_FIXED_NOREPLACE
        with pytest.raises(TransportError):
            target.world.os.mmap(-1, 1 << 16, hostmem.PROT_NONE, flags, 0, memory.address)


def code_may_change_place(target: RmTarget) -> None:
    """Code in the place of other code is what runs, on data that the host changes meanwhile."""
    with RmDevice.open(target.world) as device:
        out, one = upload(device, numbers(0)), system(device, np.ones(WORDS, np.int32))
        assert one.window is not None
        for number in range(6):
            name = ("add", "fill")[number % 2]
            program = device.load(cubin(device.target.sm, name), name, LAYOUTS[name])
            one.window.store(0, numbers(number).tobytes())
            if name == "fill":
                program(out, vals=(number, WORDS))
                wanted = np.full(WORDS, number, np.int32)
            else:
                program(out, one, one, vals=(WORDS,))
                wanted = 2 * numbers(number)
            assert (download(device, out) == wanted).all()
            del program
            gc.collect()


def launches_wait_for_each_other(target: RmTarget) -> None:
    """Of one submission, with copies between, on either queue; kernels take their time."""
    target.kernels.steps = 40
    for index in range(2):
        with RmDevice.open(target.world, force=COPYING) as device:
            names = ("add", "fill")
            add, fill = (device.load(cubin(device.target.sm, n), n, LAYOUTS[n]) for n in names)
            a, b, c = (upload(device, numbers(n)) for n in range(3))
            device.synchronize()
            one, queue = (1, 1, 1), device.queue("compute", index)
            for _ in range(3):
                queue.exec(add, add.arguments(c, a, b, vals=(WORDS,)), one, one)
                queue.exec(add, add.arguments(a, c, b, vals=(WORDS,)), one, one)
                queue.copy(b, a, a.size)
                queue.exec(fill, fill.arguments(c, vals=(7, 2)), one, one)
            device.wait(queue.submit(device))
            x, y, z = (numbers(n) for n in range(3))
            for _ in range(3):
                z = x + y
                x = z + y
                y = x.copy()
                z[:2] = 7
            for buffer, wanted in ((a, x), (b, y), (c, z)):
                assert (download(device, buffer) == wanted).all()


def signals_follow_kernels(target: RmTarget) -> None:
    """Their value comes when all before them is done, however long that takes."""
    target.kernels.steps = 400
    with RmDevice.open(target.world) as device:
        fill = device.load(cubin(device.target.sm, "fill"), "fill", LAYOUTS["fill"])
        out = system(device, numbers(0))
        for value in range(1, 4):
            fill(out, vals=(value, WORDS))
            device.synchronize()
            assert (peek(out) == value).all()


def a_fault_of_each_queue(target: RmTarget) -> None:
    """Every queue tells that it failed, and is of use again afterwards."""
    with RmDevice.open(target.world) as device:
        buffer = upload(device, numbers(0))
        device.synchronize()
        for kind, count in device.port.queue_counts.items():
            for index in range(count):
                queue = device.queue(kind, index)
                point = queue.write(0x1000, bytes(4)).submit(device)
                with pytest.raises(GpuFault, match="failed with"):
                    device.wait(point)
                assert device.recover() is Rung.QUEUES
        assert (download(device, buffer) == numbers(0)).all()


def _asked(module: ModuleType) -> Iterator[tuple[str, Check]]:
    """The tests of a module that need a target alone, or none."""
    for name, function in vars(module).items():
        if name.startswith("test_") and list(inspect.signature(function).parameters) in _PARAMETERS:
            yield name[5:], partial(_ask, function)


def _ask(function: Callable[..., None], target: RmTarget) -> None:
    with pytest.MonkeyPatch.context() as patch:
        given = {"target": target, "monkeypatch": patch}
        function(**{name: given[name] for name in inspect.signature(function).parameters})


def _going_on(rung: Rung, target: RmTarget) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_faults.test_going_on_after_faults(target, rung, patch)


def _full_ring(kind: str, _: RmTarget) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_device.test_a_full_ring_is_not_taken_for_empty(kind, patch)


OWN: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        allocations_leave_nothing,
        freed_addresses_stay_reserved,
        code_may_change_place,
        launches_wait_for_each_other,
        signals_follow_kernels,
        a_fault_of_each_queue,
    )
}
CHECKS: Mapping[str, Check] = {
    **conformance.CHECKS,
    **OWN,
    **{n: c for module in (test_device, test_faults, test_peers) for n, c in _asked(module)},
    **{f"going_on_with_other_{rung.name.lower()}": partial(_going_on, rung) for rung in Rung},
    **{f"a_full_ring_of_{kind}": partial(_full_ring, kind) for kind in ("compute", "copy")},
}
