"""The table that devices are found in."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu.backends.python.device import open_device
from gpu.core.devspec import DeviceSpec
from gpu.runtime import device
from gpu.runtime.device import Compiled, Device, DeviceTable

THREADS = 4


def test_threads_that_need_a_device_first_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    together, opened = threading.Barrier(THREADS), []

    def slowly(name: str, spec: DeviceSpec) -> Compiled:
        opened.append(name)
        threading.Event().wait(0.05)  # in which the other threads ask for it
        return open_device(name, spec)

    def find(_: int) -> Compiled:
        together.wait()
        return Device["PYTHON"]

    monkeypatch.setattr(DeviceTable, "_open", {})
    monkeypatch.setitem(device.BACKENDS, "PYTHON", slowly)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(find, range(THREADS)))
    assert opened == ["PYTHON"]
    assert all(each is found[0] for each in found)
