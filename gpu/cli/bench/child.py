"""Libraries in processes of their own: both ends of the conversation.

A request is a line of JSON, ``[method, arguments]``, and so is its answer. A child that fails says
so as Python does, on stderr, and ends.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Final

import numpy as np

from gpu.cli.bench.adapters import Adapter, GpuAdapter
from gpu.cli.bench.contest import (
    FIND_PACKAGE,
    Contestant,
    ContestantFailed,
    Local,
    Memory,
    Prepared,
    last_line,
    process_memory,
)
from gpu.cli.bench.peers import PEERS
from gpu.cli.bench.workloads import Scale
from gpu.core.config import Context

_EXIT_TIMEOUT: Final = 10.0  # seconds
_SERVE: Final = "from gpu.cli.bench.child import serve\nserve(*sys.argv[1:])"


class Remote(Contestant):
    """A library in a child process."""

    def __init__(self, name: str, python: str, threads: int, device: str):
        """Starts an interpreter. Raises ContestantFailed where the library is not there.

        `device` is what DEV= says where the library is this package.
        """
        self.name = name
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, "-c", FIND_PACKAGE + _SERVE, name, str(threads), device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._errors.close()
            raise ContestantFailed(f"{python} cannot be run: {error.strerror}") from error
        try:
            self._version: str = self._ask("version")
        except ContestantFailed:
            self.close()
            raise

    def version(self) -> str:
        """The library's version and what it computes on."""
        return self._version

    def prepare(self, name: str, scale: Scale) -> Prepared:
        """In the child."""
        first, answer = self._ask("prepare", name, scale)
        return Prepared(first, np.frombuffer(base64.b64decode(answer), np.float32))

    def measure(self, count: int) -> list[float]:
        """In the child."""
        samples: list[float] = self._ask("measure", count)
        return samples

    def memory(self) -> Memory:
        """Of the child: at most, and after the import."""
        return Memory(*self._ask("memory"))

    def finish(self) -> None:
        """In the child."""
        self._ask("finish")

    def close(self) -> None:
        """Ends the child: by closing what it reads, or by force where it does not listen."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # where it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            raise ContestantFailed(last_line(self._errors.read()) or f"ended with code {code}")
        return json.loads(line)


def serve(name: str, threads: str, device: str) -> None:
    """The child: answers requests on stdin until it is closed."""
    # Whatever libraries print goes to stderr, and answers alone to the parent.
    answers, sys.stdout = sys.stdout, sys.stderr
    with Context(DEV=device) if device else nullcontext():
        contestant = Local(_make_adapter(name, int(threads)))
        version = contestant.version()
        before = process_memory().peak
        methods: dict[str, Callable[..., Any]] = {
            "version": lambda: version,
            "prepare": lambda name, scale: _as_text(contestant.prepare(name, scale)),
            "measure": contestant.measure,
            "memory": lambda: (process_memory().peak, before),
            "finish": contestant.finish,
        }
        for line in sys.stdin:
            method, *arguments = json.loads(line)
            print(json.dumps(methods[method](*arguments)), file=answers, flush=True)


def _make_adapter(name: str, threads: int) -> Adapter:
    return GpuAdapter() if name == GpuAdapter.name else PEERS[name](threads)


def _as_text(prepared: Prepared) -> tuple[float, str]:
    return prepared.first, base64.b64encode(prepared.answer.tobytes()).decode()
