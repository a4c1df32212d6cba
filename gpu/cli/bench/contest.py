"""Running a workload by one library: in this process, or, to time a start, in new ones."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import gpu
from gpu.cli.bench.adapters import Adapter, Array
from gpu.cli.bench.workloads import CHECKED_STEPS, RATE, WORKLOADS, Scale, Workload, sample
from gpu.core.errors import GpuError
from gpu.core.files import read_bytes

_SHORTEST: Final = 1e-3  # seconds that a timed sample takes at least; fast calls are repeated
_MOST_CALLS: Final = 10_000  # in a sample
_SHORT: Final = 0.01  # seconds; calls that take less are preceded by one that is not timed

# Where this package is, for processes of interpreters that may not have it installed.
PACKAGE_ROOT: Final = str(Path(gpu.__file__).parents[1])
# Behind everything else: what is installed there must not hide the interpreter's own packages.
FIND_PACKAGE: Final = f"import sys; sys.path.append({PACKAGE_ROOT!r})\n"

# What a whole process does to be timed; {n} is the side of the matrices.
STARTS: Final = {
    "gpu": "from gpu import Tensor\n"
    "print((Tensor.rand({n}, {n}) @ Tensor.rand({n}, {n})).sum().item())",
    "torch": "import torch\nprint((torch.rand({n}, {n}) @ torch.rand({n}, {n})).sum().item())",
    "jax": "import jax\none, two = jax.random.split(jax.random.key(0))\n"
    "x, y = jax.random.uniform(one, ({n}, {n})), jax.random.uniform(two, ({n}, {n}))\n"
    "print((x @ y).sum().item())",
    "tinygrad": "from tinygrad import Tensor\n"
    "print((Tensor.rand({n}, {n}) @ Tensor.rand({n}, {n})).sum().item())",
}


class ContestantFailed(GpuError):
    """A library could not be started or did not finish a workload; the message is its own."""


class Memory(NamedTuple):
    """Memory of a process in bytes: the most it had, and what it had before the workload."""

    peak: int
    before: int


class Prepared(NamedTuple):
    """A workload that has been run: seconds of the first run, and the answer's sample."""

    first: float
    answer: Array


class Contestant(ABC):
    """A library that runs one workload at a time.

    Attributes:
        name: of the library.
    """

    name: str

    @abstractmethod
    def version(self) -> str:
        """The library's version and what it computes on."""

    @abstractmethod
    def prepare(self, name: str, scale: Scale) -> Prepared:
        """Sets up a workload and runs it a few times. Raises ContestantFailed."""

    @abstractmethod
    def measure(self, count: int) -> list[float]:
        """`count` samples: seconds that a run of the prepared workload takes."""

    def memory(self) -> Memory | None:
        """Of the library's process; None where it is shared with others."""
        return None

    def finish(self) -> None:  # noqa: B027  (only some hold anything)
        """Lets go of the workload."""

    def close(self) -> None:  # noqa: B027  (only some have a process)
        """Ends its process."""


class Local(Contestant):
    """A library in this process."""

    def __init__(self, adapter: Adapter):
        """`adapter` is the library."""
        self.name = adapter.name
        self._adapter = adapter
        self._run: Callable[[], Any] = _nothing
        self._seconds, self._calls = 0.0, 1

    def version(self) -> str:
        """The library's version and what it computes on."""
        return self._adapter.version()

    def prepare(self, name: str, scale: Scale) -> Prepared:
        """Compiles, runs and takes the answer."""
        workload = WORKLOADS[name].at(scale)
        self._run = self._function(workload)
        runs = [self._timed_run() for _ in range(CHECKED_STEPS)]
        self._seconds = runs[-1].first
        self._calls = min(_MOST_CALLS, 1 + int(_SHORTEST / self._seconds))
        answers = [run.answer for run in runs]
        return Prepared(
            runs[0].first, np.concatenate(answers) if workload.training else answers[-1]
        )

    def _timed_run(self) -> Prepared:
        """Takes the answer at once: the next run may reuse its memory."""
        started = time.perf_counter()
        result = self._run()
        seconds = time.perf_counter() - started
        return Prepared(seconds, sample(self._adapter.get(result)))

    def _function(self, workload: Workload) -> Callable[[], Any]:
        adapter = self._adapter
        values = [adapter.put(array) for array in workload.inputs()]
        if workload.training:
            parameters = workload.training.parameters()
            function = adapter.training(workload.training.loss, parameters, RATE)
        else:
            compute = workload.compute
            assert compute is not None
            make = adapter.eager if workload.eager else adapter.compiled
            function = make(lambda *tensors: compute(adapter, *tensors))

        def run() -> Any:
            result = function(*values)
            adapter.wait(result)
            return result

        return run

    def measure(self, count: int) -> list[float]:
        """Times the prepared function, without garbage collection in between."""
        run, calls = self._run, self._calls
        samples = []
        gc.disable()
        try:
            if self._seconds < _SHORT:
                run()
            for _ in range(count):
                started = time.perf_counter()
                for _ in range(calls):
                    run()
                samples.append((time.perf_counter() - started) / calls)
        finally:
            gc.enable()
        return samples

    def finish(self) -> None:
        """Lets go of the tensors."""
        self._run = _nothing
        gc.collect()


class Starter(Contestant):
    """Whole processes: an interpreter's start, the import, and the first result."""

    def __init__(self, name: str, python: str):
        """`python` is the interpreter that has the library."""
        self.name = name
        self._python = python
        self._code = ""

    def version(self) -> str:
        """The interpreter."""
        return self._python

    def prepare(self, name: str, scale: Scale) -> Prepared:
        """Runs two processes, so that whatever is cached on disk is there."""
        side = WORKLOADS[name].at(scale).process
        self._code = FIND_PACKAGE + STARTS[self.name].format(n=side)
        started = time.perf_counter()
        self._process()
        first = time.perf_counter() - started
        return Prepared(first, np.array([float(self._process())], np.float32))

    def measure(self, count: int) -> list[float]:
        """Times a process for each sample."""
        samples = []
        for _ in range(count):
            started = time.perf_counter()
            self._process()
            samples.append(time.perf_counter() - started)
        return samples

    def _process(self) -> str:
        done = subprocess.run(
            [self._python, "-c", self._code], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ContestantFailed(last_line(done.stderr) or f"exit code {done.returncode}")
        return done.stdout


def _nothing() -> None:
    """What there is to run before anything has been prepared."""


def last_line(text: str) -> str:
    """The last line that is not empty, where Python says what an error was; else nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def process_memory() -> Memory:
    """Of this process: the most and the present size in bytes."""
    if sys.platform == "linux":
        # getrusage would tell the parent's size where that is larger: it is kept across exec.
        fields = dict(
            line.split(":", 1)
            for line in read_bytes("/proc/self/status").decode().splitlines()
            if line.startswith("Vm")
        )
        peak, now = (int(fields[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS"))
        return Memory(peak, now)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    return Memory(peak, peak)
