"""Plain files: atomic writes, the cache folder, and the disk cache.

A cache never fails a program: whatever is wrong with the folder or an entry is a miss, and at most
one warning. Entries hold bytes and a checksum, never pickles.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from gpu.core.config import config
from gpu.core.errors import InvalidType, InvalidValue
from gpu.core.log import get_logger

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_log = get_logger(__name__)

_MAGIC: Final = b"GPUCACHE"
_VERSION: Final = 1
_CHECKSUM_SIZE: Final = 16
_HEADER: Final = struct.Struct(f"<8sIQ{_CHECKSUM_SIZE}s")
_TEMPORARY: Final = re.compile(r"\.tmp-gpu-[0-9a-f]{16}")
_NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_PUTS_PER_EVICTION: Final = 256
_DEFAULT_LIMIT: Final = 1 << 30
_LOOK: Final = 0.002  # seconds between looks at what another process has claimed


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a whole file so that readers see the old content or the new, never a part.

    The file is readable by its owner alone (0600). There is no fsync: after a power cut it may be
    empty. Raises OSError as the system does, leaving nothing behind.
    """
    with atomic_file(path, mode=0o600) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(
    path: str | os.PathLike[str], mode: int = 0o666, durable: bool = False
) -> Iterator[BinaryIO]:
    """A file to write piece by piece, which takes the place of `path` when the block ends well.

    Until then, and for good where the block raises, `path` is as it was and nothing is left behind.
    What writers that were killed left in the folder is removed first: each holds a lock (flock) on
    its temporary file for as long as it lives, and a file whose lock nobody holds is nobody's.

    Args:
        path: the file to make or replace.
        mode: its permissions, less the process's umask.
        durable: wait until the content is on the disk, so that it outlives a power cut.

    Raises OSError as the system does.
    """
    _clear_dead(os.path.dirname(path) or ".")
    with _replacing(path, mode, durable) as file:
        yield file


@contextlib.contextmanager
def _replacing(
    path: str | os.PathLike[str], mode: int, durable: bool = False
) -> Iterator[BinaryIO]:
    """`atomic_file`, less what it does for others' files."""
    target = os.fspath(path)
    temporary, locked = _temporary_file(os.path.dirname(target) or ".", mode)
    moved = False
    try:
        with os.fdopen(os.dup(locked), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(locked)
        os.replace(temporary, target)
        moved = True
    finally:
        if not moved:
            os.unlink(temporary)
        os.close(locked)


def _temporary_file(folder: str, mode: int) -> tuple[str, int]:
    """A new file that this process alone holds the lock of: its path and a descriptor."""
    while True:
        path = os.path.join(folder, _temporary_name())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            error.filename = folder  # nobody asked for the temporary file
            raise
        with contextlib.suppress(OSError):  # no locks there, so that nobody removes it either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # who cleared the folder was faster than the lock


def _clear_dead(folder: str) -> None:
    """Removes the temporary files and folders of writers that are gone, as far as it may."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    """Raises OSError where somebody holds the lock of a file or folder, or it cannot be told."""
    is_folder = os.path.isdir(path)
    kind = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_WRONLY
    descriptor = os.open(path, kind | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path) if is_folder else os.unlink(path)
    finally:
        os.close(descriptor)


class AtomicFolder:
    """A folder to fill, which appears under its name when it is whole: `atomic_file` of a folder.

    What was left beside it by processes that were killed is removed first.

    Attributes:
        path: where it is until then.
    """

    def __init__(self, parent: str | os.PathLike[str]):
        """Makes one in `parent`, which is made too. Raises OSError as the system does."""
        self._parent = os.fspath(parent)
        os.makedirs(self._parent, exist_ok=True)
        _clear_dead(self._parent)
        self.path = os.path.join(self._parent, _temporary_name())
        os.mkdir(self.path)
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # no locks there, so that nobody removes it either
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def appear(self, name: str) -> None:
        """Gives it its name, which none has yet; returns when that is on the disk."""
        assert self._lock is not None, "it is there once"
        os.fsync(self._lock)
        os.rename(self.path, os.path.join(self._parent, name))
        parent = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
        self._unlock()

    def abandon(self) -> None:
        """Removes it, unless it has its name."""
        if self._lock is not None:
            try:
                shutil.rmtree(self.path)
            finally:
                self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder with all that is in it: at no moment a part of it is there by its name."""
    going = os.path.join(os.path.dirname(path) or ".", _temporary_name())
    os.rename(path, going)
    shutil.rmtree(going)


def _temporary_name() -> str:
    return f".tmp-gpu-{os.urandom(8).hex()}"


def why_unwritable(path: Path) -> str | None:
    """Why a file cannot be made or replaced, in words with what to do; None where it can."""
    folder = path.absolute().parent
    if path.is_dir():
        return "is a folder; name a file in it"
    if not folder.is_dir():
        return "there is no such folder; make it, or name another"
    if not os.access(folder, os.W_OK):
        return "the folder cannot be written to; name another"
    return None


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps other processes out that lock the same `path`, which need not exist.

    The lock is on a file beside it, ended by `.lock`, which stays: who replaces `path` replaces no
    lock. It goes with the process. Raises OSError as the system does.
    """
    descriptor = os.open(f"{os.fspath(path)}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def map_file(path: str | os.PathLike[str]) -> npt.NDArray[np.uint8]:
    """The content of a file as read-only bytes that are read from disk when they are touched.

    The mapping lives as long as the array or a view of it. It shows the file as it is: replacing
    the file by name (as `atomic_file` does) leaves the mapping alone, while writing into it shows,
    and touching what was cut off kills the process (SIGBUS). Raises OSError as the system does,
    InvalidType for a path that is none, and InvalidValue for what is not a regular file.
    """
    import numpy as np

    if not isinstance(path, (str, os.PathLike)):  # an int would be a file that is open
        raise InvalidType(f"a file is named by a str or a pathlib.Path, got {path!r}")
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidValue(f"{os.fspath(path)!r} is not a regular file; pass the path of one")
    if not status.st_size:  # an empty mapping does not exist
        return np.frombuffer(b"", np.uint8)
    return np.asarray(np.memmap(path, np.uint8, mode="r"))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The whole content of a file. Raises OSError as the system does."""
    with open(path, "rb") as file:
        return file.read()


def folder_signature(folder: str | os.PathLike[str], suffix: str) -> str:
    """A text that changes whenever a file below `folder` with that ending does.

    It is made of names, sizes and times, so that nothing is read.
    """
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffix):
                status = os.stat(os.path.join(place, name))
                found.append(f"{place}/{name} {status.st_size} {status.st_mtime_ns}")
    return blake2b("\n".join(sorted(found)).encode(), digest_size=16).hexdigest()


@cache
def content_signature(*places: str | os.PathLike[str]) -> str:
    """A text that changes with the content of these files, or of the `.py` files of these folders.

    It is the same for copies in other places. They are read once in a process. Raises OSError as
    the system does.
    """
    digest = blake2b(digest_size=16)
    for place in places:
        path = Path(place)
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            content = read_bytes(file)
            digest.update(f"{file.name} {len(content)}\0".encode() + content)
    return digest.hexdigest()


def cache_dir() -> Path | None:
    """The folder of the disk cache, made (0700) where it is missing.

    None, with one warning per folder, where it cannot be used: it cannot be made or written to, it
    is another user's, or others may write to it. Also None where the setting CACHE is off.
    """
    return _private_folder(config.CACHE_DIR) if config.CACHE else None


def object_cache_dir() -> Path | None:
    """The folder of compiled objects: that of OBJECT_CACHE_DIR, else `cache_dir()`. None as there.

    An object is found by its compiler and source, not by the graph that led to the source.
    """
    own = config.OBJECT_CACHE_DIR if config.CACHE else None
    return cache_dir() if own is None else _private_folder(own)


@cache
def _private_folder(folder: Path) -> Path | None:
    reason = _why_not_private(folder)
    if reason is None:
        return folder
    _log.warning(
        "the cache folder %s is not used: %s. Set CACHE_DIR (OBJECT_CACHE_DIR, where that names it)"
        " to another, or CACHE=0",
        *(folder, reason),
    )
    return None


def _why_not_private(folder: Path) -> str | None:
    """Makes a folder where it is missing; what speaks against keeping private files in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"it cannot be made: {error.strerror}"
    if status.st_uid != os.getuid():
        return f"it belongs to user {status.st_uid}, not to {os.getuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it; run `chmod go-w {folder}`"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written to"
    return None


class DiskCache:
    """Bytes kept on disk between processes, by key, in a folder of their own.

    Several processes may use it at once. An entry that is truncated, corrupt, of another format or
    of another key is removed and counts as a miss.
    """

    def __init__(
        self,
        namespace: str,
        limit: int = _DEFAULT_LIMIT,
        parent: Callable[[], Path | None] = cache_dir,
    ):
        """A cache named `namespace` that is kept under about `limit` bytes.

        `parent` tells where its folder is now, or None where nothing is to be kept.

        Raises InvalidValue for a namespace that is not a short lower-case file name.
        """
        if not _NAMESPACE.fullmatch(namespace):
            raise InvalidValue(
                f"cache namespace {namespace!r}: use 1 to 64 of a-z, 0-9, '_', '.', '-', starting"
                " with a letter or digit"
            )
        self.namespace = namespace
        self.limit = limit
        self._parent = parent
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """What was last put under `key`, or None."""
        digest = self._digest(key)
        path = self._path(digest)
        if path is None:
            return None
        try:
            entry = read_bytes(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("read", error)
            return None
        data = _unframe(entry, digest)
        # Both are for other readers' sake: what they fail to do costs time, never correctness.
        with contextlib.suppress(OSError):
            if data is None:
                path.unlink()
            else:
                os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`, in the place of what was there; may quietly not."""
        digest = self._digest(key)
        path = self._path(digest)
        if path is None or len(data) + _HEADER.size > self.limit:
            return
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            # By key: many short processes then check as rarely as one long one.
            if int.from_bytes(digest[:2], "little") % _PUTS_PER_EVICTION == 0:
                self._evict(path.parent)
            with _replacing(path, mode=0o600) as file:  # `_evict` clears, where there are many
                file.write(_frame(data, digest))
        except OSError as error:
            self._warn("written", error)

    @contextlib.contextmanager
    def claimed(self, keys: Iterable[str]) -> Iterator[set[str]]:
        """Those of `keys` that no other process has claimed: it need not make them as well.

        They are others' again when the body has ended, or the process. Where nothing is kept, or
        the file system has no locks, all of them are this one's.
        """
        descriptor = self._claims()
        if descriptor is None:
            yield set(keys)
            return
        found = {key for key in keys if self._lock(descriptor, key, fcntl.LOCK_EX | fcntl.LOCK_NB)}
        try:
            yield found
        finally:
            for key in found:
                self._lock(descriptor, key, fcntl.LOCK_UN)

    def wait_for(self, key: str, seconds: float) -> None:
        """Returns when no other process claims `key`, or a time is over."""
        until = time.monotonic() + seconds
        descriptor = self._claims()
        while descriptor is not None and time.monotonic() < until:
            if self._lock(descriptor, key, fcntl.LOCK_SH | fcntl.LOCK_NB):
                self._lock(descriptor, key, fcntl.LOCK_UN)
                return
            time.sleep(_LOOK)

    def _claims(self) -> int | None:
        """The file whose bytes stand for keys: a process that claims one holds a lock on it."""
        folder = self._parent()
        if folder is None:
            return None
        try:
            return _kept_open(os.fspath(folder / f"{self.namespace}.claims"))
        except OSError as error:
            self._warn("claimed from", error)
            return None

    def _lock(self, descriptor: int, key: str, how: int) -> bool:
        """Whether a key's byte could be locked so; also where there are no locks."""
        place = int.from_bytes(self._digest(key)[:7], "little")
        try:
            fcntl.lockf(descriptor, how, 1, place)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _digest(self, key: str) -> bytes:
        return blake2b(f"{self.namespace}\0{key}".encode(), digest_size=32).digest()

    def _path(self, digest: bytes) -> Path | None:
        folder = self._parent()
        return None if folder is None else folder / self.namespace / digest.hex()

    def _warn(self, action: str, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the disk cache %s cannot be %s: %s", self.namespace, action, error)

    def _evict(self, folder: Path) -> None:
        """Removes the entries used longest ago once all together exceed the limit.

        It goes down to three quarters of the limit, so that it does not happen on every check.
        What killed processes left is removed in any case.
        """
        _clear_dead(os.fspath(folder))
        entries = _files_by_age(folder)
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, path in entries:
            if total <= self.limit * 3 // 4:
                break
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                os.unlink(path)
            total -= size


@cache
def _kept_open(path: str) -> int:
    """A file that is opened once: a process that closes one loses all locks that it has there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _files_by_age(folder: Path) -> list[tuple[int, int, str]]:
    """(time of last use in ns, size, path) of each file, the oldest first; of complete ones."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # another process evicts too
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
    return sorted(found)


def _checksum(data: bytes, digest: bytes) -> bytes:
    # Keyed by the entry's own digest: an entry renamed to another key's name does not match.
    return blake2b(data, digest_size=_CHECKSUM_SIZE, key=digest).digest()


def _frame(data: bytes, digest: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, len(data), _checksum(data, digest)) + data


def _unframe(entry: bytes, digest: bytes) -> bytes | None:
    if len(entry) < _HEADER.size:
        return None
    magic, version, length, checksum = _HEADER.unpack_from(entry)
    data = entry[_HEADER.size :]
    if (magic, version, length) != (_MAGIC, _VERSION, len(data)):
        return None
    return data if checksum == _checksum(data, digest) else None
