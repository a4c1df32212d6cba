"""The device of the guide is there for these tests alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.documents import tool
from gpu.core.devspec import DEVICES
from gpu.runtime.device import BACKENDS, Device


@pytest.fixture(autouse=True, scope="module")
def _toy_meanwhile() -> Iterator[None]:
    tool().guide_device()
    yield
    tool().guide_device.cache_clear()
    for table in (DEVICES, BACKENDS, Device._open):
        table.pop("TOY", None)
