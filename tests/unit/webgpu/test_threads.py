"""Threads that share a WEBGPU device: whose errors are whose, and who calls Dawn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu.backends.webgpu.commands import Staging
from gpu.backends.webgpu.device import WebGPU
from gpu.backends.webgpu.library import view
from gpu.core.errors import DeviceError

VALIDATION = 2  # of Dawn's types of errors
BRIEFLY = 0.3  # seconds: how long one thread gives another the chance to do what it must not


def test_an_error_is_raised_in_the_thread_that_made_it(webgpu: WebGPU) -> None:
    connection = webgpu.link.connection
    outer_is_in, inner_is_in, outer_is_out = (threading.Event() for _ in range(3))

    def without_error() -> None:
        with connection.scope("first"):
            outer_is_in.set()
            inner_is_in.wait(BRIEFLY)
        outer_is_out.set()

    def with_error() -> None:
        outer_is_in.wait()
        with connection.scope("second"):
            connection.library.DeviceInjectError(connection.device, VALIDATION, view(b"wrong"))
            inner_is_in.set()
            outer_is_out.wait(BRIEFLY)

    with ThreadPoolExecutor(2) as pool:
        fine, wrong = pool.submit(without_error), pool.submit(with_error)
        assert fine.result() is None
        with pytest.raises(DeviceError, match="second: validation error: wrong"):
            wrong.result()


def test_what_a_thread_drops_is_given_back_by_one_that_calls(
    webgpu: WebGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = webgpu.link.connection
    released: list[tuple[int, int]] = []
    release: Callable[[int], None] = connection.library.BufferRelease

    def noted(handle: int) -> None:
        released.append((handle, threading.get_ident()))
        release(handle)

    monkeypatch.setattr(connection.library, "BufferRelease", noted)
    staging: list[Any] = [Staging(webgpu.link.commands, 16)]
    handle = staging[0]._handle
    with connection.lock:
        thread = threading.Thread(target=staging.clear)
        thread.start()
        thread.join()
        assert handle not in dict(released)
    webgpu.synchronize()
    assert dict(released)[handle] == threading.get_ident()
