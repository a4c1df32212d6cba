"""The devices that tensor tests run on."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["CPU", "PYTHON"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
