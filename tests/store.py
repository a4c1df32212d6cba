"""`--store`: compiled objects are kept between runs of the tests, and shared by their workers.

Only objects are, never plans: every pass runs and is verified in each run, and only what a compiler
makes of the same source is taken from the store (`OBJECT_CACHE_DIR` says where an object's key
comes from). So is what PoCL makes, in a folder of its own.

A test that is about compiling takes the fixture `nothing_compiled`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

LIMIT: Final = 2 << 30  # bytes, of all that is in the store
_IN_USE_S: Final = 3600.0  # what was used so lately may be in use: PoCL reads its files by and by
_POCL: Final = "pocl"
_TEMPORARY: Final = "CACHE_DIR"  # the folder of one process, which conftest makes and removes
_VARIABLE: Final = "GPU_TESTS_STORE"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        default=os.environ.get(_VARIABLE, str(default_folder())),
        metavar="DIR",
        help="folder that keeps compiled objects between runs, private and below "
        f"{LIMIT >> 30} GiB; `--store=` for none (default: ${_VARIABLE}, else %(default)s)",
    )


def default_folder() -> Path:
    """Beside the other caches of the user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "gpu-tests"


# Before anything reads a setting.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for name in ("OBJECT_CACHE_DIR", "GPU_OBJECT_CACHE_DIR"):
        os.environ.pop(name, None)
    folder = _folder(config)
    os.environ[_VARIABLE] = str(folder or "")  # tests that run pytest use the same
    if folder is not None:
        _make_private(folder)
        os.environ["OBJECT_CACHE_DIR"] = str(folder)
    _keep_what_pocl_makes(folder or Path(os.environ[_TEMPORARY]))


def _folder(config: pytest.Config) -> Path | None:
    asked: str = config.getoption("--store")
    return Path(asked).expanduser().absolute() if asked else None


def _make_private(folder: Path) -> None:
    """Raises UsageError where files of this user alone cannot be kept there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise pytest.UsageError(f"--store={folder}: {error.strerror}") from error
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid != os.getuid() or others or not os.access(folder, os.W_OK | os.X_OK):
        raise pytest.UsageError(
            f"--store={folder}: what is loaded from there is run, so that it must be a folder that"
            " you and nobody else can write to; name another, or --store= for none"
        )


def _keep_what_pocl_makes(parent: Path) -> None:
    """As the user says it, or else below `parent`. PoCL does not make the folder's parents."""
    folder = Path(os.environ.setdefault("POCL_CACHE_DIR", str(parent / _POCL)))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def pytest_report_header(config: pytest.Config) -> str:
    folder = _folder(config)
    return "store: none, everything is compiled anew" if folder is None else f"store: {folder}"


# Workers have `workerinput`; the process that starts them clears up for all. A sample leaves little
# there, and looking at all that there is would take it seconds.
def pytest_unconfigure(config: pytest.Config) -> None:
    folder = _folder(config)
    if folder is not None and not hasattr(config, "workerinput") and not config.option.quick:
        evict(folder, LIMIT)


class Entry(NamedTuple):
    """An object, or all that PoCL made of one program: last used when, of how many bytes, where."""

    used: float
    size: int
    path: Path


def evict(folder: Path, limit: int) -> None:
    """Removes what was used longest ago, while all is more than `limit` bytes."""
    entries = sorted(_entries(folder))
    size = sum(entry.size for entry in entries)
    for entry in entries:
        if size <= limit or entry.used > time.time() - _IN_USE_S:
            return
        if entry.path.is_dir():
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            entry.path.unlink(missing_ok=True)
        size -= entry.size


def _entries(folder: Path) -> Iterator[Entry]:
    """What is in the store, but not what other runs remove meanwhile."""
    for path in folder.glob("*/*"):
        if not path.is_dir():
            yield from _entry(path, [path])
    for mark in (folder / _POCL).rglob("last_accessed"):  # in each program's folder
        yield from _entry(mark.parent, mark.parent.rglob("*"))


def _entry(path: Path, files: Iterable[Path]) -> Iterator[Entry]:
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG((status := file.lstat()).st_mode):
                found.append(status)
    if found:
        yield Entry(max(s.st_mtime for s in found), sum(s.st_size for s in found), path)


@pytest.fixture
def nothing_compiled(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for objects and plans: in this thread, nothing was compiled before."""
    from gpu import Context

    folder = tmp_path / "cache"
    with Context(CACHE_DIR=folder, OBJECT_CACHE_DIR=folder):
        yield folder
