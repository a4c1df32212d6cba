"""Cards for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.amd_pci.client import Client


@pytest.fixture
def cold() -> Iterator[Client]:
    """A card after power-on."""
    client = Client()
    yield client
    client.close()


@pytest.fixture
def booted() -> Iterator[Client]:
    """A card whose firmware runs."""
    client = Client()
    client.boot()
    yield client
    client.close()
