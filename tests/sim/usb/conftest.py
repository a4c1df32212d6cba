"""Bridges for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sim.usb.client import Bridge

Make = Callable[..., Bridge]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes bridges with knobs of `UsbWorld`; they are closed at the end."""
    made = []

    def one(**knobs: Any) -> Bridge:
        made.append(Bridge(**{"train_ns": 30_000_000, **knobs}))
        return made[-1]

    yield one
    for bridge in made:
        bridge.close()


@pytest.fixture
def off(make: Make) -> Bridge:
    """A bridge whose card has no power."""
    return make()


@pytest.fixture
def bridge(make: Make) -> Bridge:
    """A bridge whose card decodes its BARs and is bus master."""
    bridge = make()
    bridge.start()
    return bridge
