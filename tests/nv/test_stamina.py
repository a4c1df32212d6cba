"""Many launches and allocations from threads on a simulated GPU, while Ctrl-C comes."""

from __future__ import annotations

import os
import threading
from itertools import count

import pytest

from gpu.drivers.nv.device import RmDevice
from gpu.hcq.channel import Channel
from nv.kernels import LAYOUTS, WRITTEN, cubin
from nv.rm_target import RmTarget
from tools.hw_acceptance.bench.stamina import INTERRUPTIONS, Result, endure

pytestmark = pytest.mark.timing

LAUNCHES = int(os.environ.get("STAMINA", "2000"))


def endured(launches: int) -> Result:
    target = RmTarget(21)
    with RmDevice.open(target.world) as device:
        code = cubin(device.target.sm, "add")
        add = device.load(code, "add", LAYOUTS["add"], written=WRITTEN)
        result = endure(
            *(device, add, launches, launches // 10),
            lambda: device.port.gpu.session.addresses.in_use,
        )
    assert target.complaints() == []
    target.close()
    return result


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_piles_up() -> None:
    result = endured(LAUNCHES)
    assert {name: told for name, (good, told) in result.checks.items() if not good} == {}
    assert result.interrupted >= INTERRUPTIONS


def test_a_launch_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    send, numbers = Channel.send, count()

    def lossy(self: Channel, *args: object) -> None:
        beside = threading.current_thread() is not threading.main_thread()  # all end there
        if beside and next(numbers) == 300:
            args = (args[0], args[1], args[2], args[3], (*args[4][:3], 0))  # type: ignore[index]
        send(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "send", lossy)
    checks = endured(1000).checks
    assert not all(good for good, _ in checks.values())
