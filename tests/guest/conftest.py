"""Tests in a guest run where they are asked for: they take a minute, and packages from apt."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "guest" not in (config.option.markexpr or ""):
        for item in items:
            if item.get_closest_marker("guest"):
                item.add_marker(pytest.mark.skip("started by `-m guest`"))
