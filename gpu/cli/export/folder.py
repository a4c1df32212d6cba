"""The folder of an export: there whole, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu.core.errors import InvalidValue


def check_folder(folder: Path, force: bool, ours: frozenset[str]) -> None:
    """Before all the work, what is known to fail after it.

    Raises InvalidValue for a folder that cannot be made, or that holds something: with `force` it
    may hold what is called as in `ours`.
    """
    try:
        os.stat(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InvalidValue(f"{folder}: is a link that leads back to itself; remove it") from error
    parent = folder.resolve().parent
    if not os.path.isdir(parent):
        raise InvalidValue(f"{folder}: there is no folder {parent}; make it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidValue(f"{folder}: the folder {parent} cannot be written to; name another")
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise InvalidValue(f"{folder}: is a file; name a folder that is new or empty")
    found = sorted(os.listdir(folder))
    others = [name for name in found if name not in ours]
    if found and not force:
        raise InvalidValue(
            f"{folder}: holds {found[0]!r} already; name another folder, or replace an earlier"
            " export with --force"
        )
    if others:
        raise InvalidValue(
            f"{folder}: holds {others[0]!r}, which is not of an export, and --force would delete"
            " it; move it, or name another folder"
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when the block ends well.

    Until then, and for good where the block raises, what was there stays as it was. Raises
    InvalidValue where the system refuses something.
    """
    target = folder.resolve()
    temporary = target.with_name(f".{target.name}-{os.urandom(4).hex()}")
    try:
        os.mkdir(temporary)
        try:
            yield temporary
            _swap(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise InvalidValue(
            f"{folder}: cannot be written, {error.strerror}; name another folder"
        ) from error


def _swap(new: Path, target: Path) -> None:
    """Gives `new` the name `target`; a folder of that name is gone then, or back where it fails."""
    if not os.path.isdir(target):
        os.rename(new, target)
        return
    old = new.with_name(f"{new.name}-old")
    os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old)
