"""`--quick`: a sample of all tests, the same each time, for an answer within two minutes.

Of each file it takes the tests whose names have the lowest digests, a fixed part of them and at
least one, and leaves out those with the mark `slow` unless a file has no others.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from typing import Final

import pytest

EVERY: Final = 40  # one of so many is taken


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"run one of {EVERY} tests of each file, and at least one: those whose names have the"
        " lowest digests, the same in each run, but none marked `slow` where a file has others",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    taken = sample(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


def sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that `--quick` runs of these."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    taken: set[pytest.Item] = set()
    for tests in files.values():
        fast = [test for test in tests if test.get_closest_marker("slow") is None]
        count = max(1, len(fast) // EVERY)
        taken.update(sorted(fast or tests, key=_digest)[:count])
    return taken


def _digest(item: pytest.Item) -> bytes:
    return blake2b(item.nodeid.encode(), digest_size=8).digest()
