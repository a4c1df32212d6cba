"""A WEBGPU device for these tests, where the machine has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu.backends.webgpu.device import WebGPU, open_device
from gpu.core.devspec import DeviceSpec


@pytest.fixture(scope="session")
def webgpu(need: Callable[[str], None]) -> WebGPU:
    """A device of its own, so that losing it harms no other test."""
    need("webgpu")
    opened = open_device("WEBGPU", DeviceSpec("WEBGPU"))
    assert isinstance(opened, WebGPU)
    return opened
