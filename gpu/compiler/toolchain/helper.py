"""Work in a child process, so that a library which ends its process does not end this one.

A request and its answer are bytes, with their length in front, on the child's stdin and stdout. The
child is started by the first request and kept; when it dies the next request starts another. It
ends when its stdin is closed, so at the latest with this process.
"""

from __future__ import annotations

import atexit
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from gpu.core.errors import Unsupported

_LENGTH: Final = struct.Struct("<Q")
_PACKAGES: Final = str(Path(__file__).resolve().parents[3])
# Isolated and without site-packages, which takes half the time. Behind the standard library: what
# is installed where this package is must not hide it.
_OPTIONS: Final = ("-I", "-S")
_START: Final = f"import sys; sys.path.append({_PACKAGES!r}); "
_MOST_SAID: Final = 1 << 20  # bytes


class Answer(NamedTuple):
    """What the child answers, and what it wrote to its standard error output meanwhile."""

    data: bytes
    said: str


class HelperDied(Exception):
    """The child ended instead of answering: by which signal or code, and what it said before."""

    def __init__(self, how: str, said: str):
        super().__init__(how, said)
        self.how, self.said = how, said


class Helper:
    """A child process that runs a function of this package, for any thread to ask.

    A process forked from this one starts a child of its own.
    """

    def __init__(self, module: str, function: str):
        """The function takes nothing and calls `serve`."""
        self._code = f"{_START}from {module} import {function}; {function}()"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        _helpers.add(self)
        atexit.register(self._end)

    def ask(self, request: bytes) -> Answer:
        """Waits for the answer. Raises HelperDied, Unsupported where no child can be started."""
        with self._lock:
            child = self._process
            if child is None or child.poll() is not None:
                self._stop()
                child = self._process = self._start()
            try:
                return self._converse(child, request)
            except BaseException:  # KeyboardInterrupt too: the next answer would be to this request
                self._stop()
                raise

    def close(self) -> None:
        """Ends the child, if there is one. It may be asked again."""
        with self._lock:
            self._stop()

    def _end(self) -> None:
        """At the end of this process; what a thread is still asking ends by itself then."""
        if self._lock.acquire(blocking=False):
            self._stop()
            self._lock.release()

    def forked(self) -> None:
        """In a forked process: the child is the other's, and so is the lock."""
        self._lock = threading.Lock()
        child, self._process = self._process, None
        if child is not None:
            child.returncode = 0  # it is not ours to wait for
            self._close_files(child)

    def _start(self) -> subprocess.Popen[bytes]:
        # Whoever sends too much to its standard error output must not wait for a reader.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        quiet = ("-B",) if sys.dont_write_bytecode else ()
        try:
            return subprocess.Popen(
                [sys.executable, *_OPTIONS, *quiet, "-c", self._code],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                process_group=0,  # Ctrl-C is for this process
            )
        except OSError as error:
            self._errors.close()
            raise Unsupported(
                f"a compiler is to run in a process of its own, which cannot be started:"
                f" {sys.executable or 'sys.executable'!r}: {error.strerror or error}"
            ) from error

    def _converse(self, child: subprocess.Popen[bytes], request: bytes) -> Answer:
        assert child.stdin is not None and child.stdout is not None
        before = os.fstat(self._errors.fileno()).st_size
        with suppress(BrokenPipeError):  # it has ended, which reading finds too
            _send(child.stdin.fileno(), request)
        data = _receive(child.stdout.fileno())
        # Not by seeking: the child writes where this file is, and shares the place.
        said = os.pread(self._errors.fileno(), _MOST_SAID, before).decode(errors="replace")
        if data is None:
            raise HelperDied(_how(child.wait()), said)
        return Answer(data, said)

    def _stop(self) -> None:
        child, self._process = self._process, None
        if child is not None:
            child.kill()
            child.wait()
            self._close_files(child)

    def _close_files(self, child: subprocess.Popen[bytes]) -> None:
        for file in (child.stdin, child.stdout, self._errors):
            assert file is not None
            file.close()


def serve(answer: Callable[[bytes], bytes]) -> None:
    """The child: answers requests until there are no more. An exception ends it."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is told of, and needs no dump
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    with suppress(BrokenPipeError):  # nobody waits any more
        while (request := _receive(0)) is not None:
            _send(replies, answer(request))


def _send(descriptor: int, data: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _receive(descriptor: int) -> bytes | None:
    """What was sent, or None where the other side ended before."""
    head = _read(descriptor, _LENGTH.size)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0])


def _read(descriptor: int, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = os.read(descriptor, size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


_helpers: WeakSet[Helper] = WeakSet()


def _forked() -> None:
    for helper in _helpers:
        helper.forked()


os.register_at_fork(after_in_child=_forked)
