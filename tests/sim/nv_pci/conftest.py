"""Cards for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.nv_pci.client import Client

CHIPS = ["gh100", "gb202"]


@pytest.fixture(params=CHIPS)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A card whose boot is prepared; nothing was sent."""
    made = Client(request.param).prepare()
    yield made
    made.close()


@pytest.fixture
def booted() -> Iterator[Client]:
    """A card whose RM runs."""
    made = Client("gb202").prepare()
    assert made.boot() is not None
    yield made
    made.close()
