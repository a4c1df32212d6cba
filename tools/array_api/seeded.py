"""A plugin of pytest: each test begins with a state of Python's random numbers of its own.

The suite draws special values by it, so that without this a case would pass in one run and fail in
the next.
"""

from __future__ import annotations

import random
import zlib

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Called by pytest before each test."""
    random.seed(zlib.crc32(item.nodeid.encode()))
