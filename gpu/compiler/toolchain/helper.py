"""Work in a child process, so that a library which ends its process does not end this one.

A request and its answer are bytes, with their length in front, on the child's stdin and stdout. The
child is started by the first request, or by `start` before, and kept; when it dies the next request
starts another. It ends when its stdin is closed, so at the latest with this process.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from gpu.compiler.toolchain.served import ERRORS, HELLO, MADE, receive, send, serve
from gpu.core.errors import CompileError, Unsupported
from gpu.core.files import atomic_write, cache_dir

_PACKAGES: Final = str(Path(__file__).resolve().parents[3])
# Isolated and without site-packages, which takes half the time. Behind the standard library: what
# is installed where this package is must not hide it.
_OPTIONS: Final = ("-I", "-S")
_START: Final = f"import sys; sys.path.append({_PACKAGES!r}); "
_MOST_SAID: Final = 1 << 20  # bytes
_TELLING: Final = re.compile("error|failed|assert|panicked", re.IGNORECASE)
_PANIC: Final = re.compile(r"panicked at .*:$")  # the message is on the next line
_MOST_LINES: Final = 12


class Kernel(NamedTuple):
    """What is compiled, for messages.

    Attributes:
        compiler: who compiles it: `LLVM`.
        name, target: what it is called, and what it is for.
        source: its text, in a language whose files end in `suffix`.
    """

    compiler: str
    name: str
    target: str
    source: str
    suffix: str


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
    """A child process that answers by a function of this package, for any thread to ask.

    A process forked from this one starts a child of its own.
    """

    def __init__(self, answer: Callable[[bytes], bytes], before: str = ""):
        """`answer`, a function of a module, is for `serve`; code `before` runs first."""
        module, name = answer.__module__, answer.__name__
        self._code = (
            f"{_START}{before}\nfrom {module} import {name}; "
            f"from {serve.__module__} import {serve.__name__}; {serve.__name__}({name})"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._greeted = False
        self._lock = threading.Lock()
        _helpers.add(self)
        atexit.register(self._end)

    def start(self) -> None:
        """Starts the child, if there is none, and does not wait for it.

        Where none can be started, `ask` tells.
        """
        if self._lock.acquire(blocking=False):  # else another thread does, or asks already
            try:
                with suppress(Unsupported):
                    self._running()
            finally:
                self._lock.release()

    def ask(self, request: bytes) -> Answer:
        """Waits for the answer. Raises HelperDied, Unsupported where no child can be started."""
        with self._lock:
            child = self._running()
            try:
                self._greet(child)
                return self._converse(child, request)
            except BaseException:  # KeyboardInterrupt too: the next answer would be to this request
                self._stop()
                raise

    def compile(self, request: bytes, kernel: Kernel) -> bytes:
        """The answer of a child that compiles.

        Raises CompileError with what the compiler said where it refuses a kernel, or ends; the
        kernel is kept in a file then. Raises the other `ERRORS` as they are.
        """
        try:
            answer = self.ask(request)
        except HelperDied as died:
            raise CompileError(
                f"{kernel.compiler} ended with {died.how} at {kernel.name} for {kernel.target}"
                f"{_told(died.said) or ', and said nothing'}{_keep(kernel)}"
            ) from None
        kind, data = answer.data[:1], answer.data[1:]
        if kind == MADE:
            return data
        told = data.decode()
        if kind == ERRORS[CompileError]:
            told += _told(answer.said) + _keep(kernel)
        raise next(error for error, letter in ERRORS.items() if letter == kind)(told)

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

    def _running(self) -> subprocess.Popen[bytes]:
        """The child, which may be a new one."""
        if self._process is None or self._process.poll() is not None:
            self._stop()
            self._process, self._greeted = self._start(), False
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        # Whoever sends too much to its standard error output must not wait for a reader.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        quiet = ("-B",) if sys.dont_write_bytecode else ()
        try:
            if not sys.executable or getattr(sys, "frozen", False):
                raise OSError("it is no Python interpreter")
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
            raise _not_started(error.strerror or str(error)) from error

    def _greet(self, child: subprocess.Popen[bytes]) -> None:
        """Waits until a new child is ready."""
        assert child.stdout is not None
        if not self._greeted and receive(child.stdout.fileno()) != HELLO:
            child.kill()
            raise _not_started(f"ended with {_how(child.wait())}{_told(self._said(0))}")
        self._greeted = True

    def _converse(self, child: subprocess.Popen[bytes], request: bytes) -> Answer:
        assert child.stdin is not None and child.stdout is not None
        before = os.fstat(self._errors.fileno()).st_size
        with suppress(BrokenPipeError):  # it has ended, which reading finds too
            send(child.stdin.fileno(), request)
        data = receive(child.stdout.fileno())
        if data is None:
            how = _how(child.wait())
            raise HelperDied(how, self._said(before))
        return Answer(data, self._said(before))

    def _said(self, start: int) -> str:
        """What the child wrote to its standard error output from a place on."""
        # Not by seeking: the child writes where this file is, and shares the place.
        return os.pread(self._errors.fileno(), _MOST_SAID, start).decode(errors="replace")

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


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _not_started(reason: str) -> Unsupported:
    return Unsupported(
        f"a compiler is to run in a process of its own, which cannot be started:"
        f" {sys.executable or 'sys.executable'!r}: {reason}"
    )


def _told(said: str) -> str:
    """The lines of what a compiler said that tell what is wrong; its last where none looks so."""
    lines = said.partition("stack backtrace:")[0].strip().splitlines()
    telling = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if _TELLING.search(line) or _PANIC.search(before)
    ]
    chosen = telling[:_MOST_LINES] or lines[-_MOST_LINES:]
    return ":\n" + "\n".join(chosen) if chosen else ""


def _keep(kernel: Kernel) -> str:
    """Keeps a kernel for who wants to report it; a clause that tells where."""
    folder = cache_dir()
    if folder is None:
        return ""
    text = kernel.source.encode()
    name = blake2b(text, digest_size=16).hexdigest()
    path = folder / "refused" / f"{name}{kernel.suffix}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        return f"\nThe kernel cannot be kept in {path}: {error.strerror}"
    return f"\nThe kernel is kept in {path}"


_helpers: WeakSet[Helper] = WeakSet()


def _forked() -> None:
    for helper in _helpers:
        helper.forked()


os.register_at_fork(after_in_child=_forked)
