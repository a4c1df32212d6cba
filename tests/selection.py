"""Which of the tests run: a fixed part of them, a sample of each file, or what another skipped."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pytest

EVERY: Final = 40  # `--quick` takes one of so many
SAMPLE: Final = 10  # percent of the tests on devices that are sampled
_BUCKETS: Final = 10_000


def add_options(parser: pytest.Parser) -> None:
    """The options of this module."""
    parser.addoption(
        "--part",
        metavar="PERCENT",
        type=_percent,
        help="a fixed part of the tests, chosen by their ids: the same in every run",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"one of {EVERY} tests of each file and at least one, of those not marked `slow`,"
        " chosen by their ids: the same in every run",
    )
    parser.addoption(
        "--whole",
        action="store_true",
        help="all tests of the devices of which else a sample runs (tests/conftest.py: SAMPLED),"
        " and all those with the mark `sampled`",
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="COUNT",
        help="all tests on simulated devices whose order of work is drawn (tests/simulated.py:"
        " SEEDED) run under so many seeds, not only those with the mark `seeds`",
    )
    parser.addoption(
        "--skips-to",
        metavar="FILE",
        type=Path,
        help="writes the ids of what was skipped, one a line, for --only",
    )
    parser.addoption(
        "--only",
        metavar="FILE",
        type=Path,
        help="the tests that FILE lists, as --skips-to writes it: of a file all its tests",
    )


def _percent(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 < percent <= 100:
        raise pytest.UsageError(f"--part={text}: a number above 0 and up to 100, such as 10%")
    return percent


def _bucket(nodeid: str) -> int:
    return zlib.crc32(nodeid.encode()) % _BUCKETS


def sample(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that `--quick` runs of these."""
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    taken: set[pytest.Item] = set()
    for tests in files.values():
        fast = [test for test in tests if test.get_closest_marker("slow") is None]
        count = max(1, len(fast) // EVERY)
        taken.update(sorted(fast, key=lambda i: (_bucket(i.nodeid), i.nodeid))[:count])
    return [item for item in items if item in taken]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes out of `items` what `--part`, `--only` and `--quick` leave out. Raises UsageError."""
    kept = items
    if (percent := config.getoption("--part")) is not None:
        kept = [i for i in kept if _bucket(i.nodeid) < percent / 100 * _BUCKETS]
    if (path := config.getoption("--only")) is not None:
        try:
            listed = set(path.read_text().splitlines())
        except OSError as error:
            raise pytest.UsageError(f"--only={path}: {error.strerror}") from error
        kept = [i for i in kept if listed.intersection((i.nodeid, i.nodeid.partition("::")[0]))]
    if config.getoption("--quick"):
        kept = sample(kept)
    _keep(config, items, kept)


def thin_out(
    config: pytest.Config, items: list[pytest.Item], percent_of: Callable[[pytest.Item], int]
) -> None:
    """Of each test function's tests, leaves so many percent of each kind, at least one unless 0.

    Those of one percentage are a kind.
    """
    functions: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0], percent_of(item)].append(item)
    left_out: set[pytest.Item] = set()
    for (_, percent), tests in functions.items():
        # Not the part that `--part` takes, or of that the whole sample would be in it.
        tests.sort(key=lambda i: (_bucket(f"sampled {i.nodeid}"), i.nodeid))
        left_out.update(tests[-(-len(tests) * percent // 100) :])
    _keep(config, items, [item for item in items if item not in left_out])


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    """Takes all others out of `items`."""
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


def write_skips(config: pytest.Config, skipped: Iterable[str]) -> None:
    """Writes what `--skips-to` asks for: the ids of tests, and of files, that were skipped."""
    path: Path | None = config.getoption("--skips-to")
    if path is not None:
        path.write_text("".join(f"{nodeid}\n" for nodeid in skipped))
