"""Measuring in a process of its own, which may hang or crash without harm.

A request is a line of JSON, the text of a kernel and a schedule, and so is its answer. The child
ends when nobody can ask any more.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.text import parse_kernel, print_kernel
from gpu.compiler.opt.opts import Opt
from gpu.core.config import Context, config
from gpu.core.errors import GpuError
from gpu.runtime.tune.measure import Subject
from gpu.runtime.tune.record import decode, encode

# Seconds until a child has started, and made its first kernel; and that a candidate may take.
START: Final = 60.0
LIMIT: Final = 10.0
_SERVE: Final = "from gpu.runtime.tune.worker import serve\nserve(sys.argv[1])"


class CandidateFailed(GpuError):
    """A candidate hung, crashed, or was refused; the message says which."""


class Remote:
    """A kernel on a device, in a child process; as `Subject`.

    Attributes:
        unit: as there.
    """

    unit = "s"

    def __init__(self, kernel: K.Kernel, device: str):
        """Starts nothing yet."""
        self._kernel, self._device = print_kernel(kernel), device
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as this)

    def cost(self, opts: Sequence[Opt]) -> float:
        """What a schedule costs, in seconds.

        Raises CandidateFailed where that takes too long, where the child crashes, after either of
        which there is a new one for the next candidate, and with what was refused there.
        """
        limit = LIMIT if self._process else START
        answer = self._ask({"kernel": self._kernel, "opts": encode(opts)}, limit)
        if "error" in answer:
            raise CandidateFailed(answer["error"])
        return float(answer["cost"])

    def _ask(self, request: Any, limit: float) -> Any:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), limit)
        except BrokenPipeError:
            line = b""
        except BaseException:  # whoever interrupts it waits for no candidate
            self.close()
            raise
        if line is None:
            self.close()
            raise CandidateFailed(f"a candidate took more than {limit:.0f} s")
        if not line:
            code = process.wait()
            self._errors.seek(0)
            told = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.close()
            raise CandidateFailed(f"a candidate ended its process with code {code}: {told}")
        return json.loads(line)

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {"DEV": config.DEV, "CPU_THREADS": config.CPU_THREADS, "device": self._device}
        paths = f"import sys\nsys.path[:] = {sys.path!r}\n"
        return subprocess.Popen(
            [sys.executable, "-c", paths + _SERVE, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.kill()
        process.wait()
        process.stdout.close()
        try:
            process.stdin.close()
        except BrokenPipeError:
            return  # it ended before it had read all


def _read_line(descriptor: int, limit: float) -> bytes | None:
    """A line, "" where there will be none, None where there is none in time."""
    found, until = b"", time.monotonic() + limit
    while not found.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b""
        found += part
    return found


def serve(text: str) -> None:
    """The child: answers requests on stdin until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr
    settings = json.loads(text)
    device = settings.pop("device")
    subject, known = None, ""
    with Context(BEAM=0, **settings):
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if subject is None or request["kernel"] != known:
                    known = request["kernel"]
                    subject = Subject(parse_kernel(known), device)
                answer: dict[str, Any] = {"cost": subject.cost(decode(request["opts"]))}
            except GpuError as error:
                answer = {"error": error.message}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
