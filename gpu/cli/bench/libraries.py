"""The libraries that take part in a benchmark, each started when it is first needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from gpu.cli.bench.adapters import GpuAdapter
from gpu.cli.bench.child import Remote
from gpu.cli.bench.contest import Contestant, ContestantFailed, Local, Starter
from gpu.cli.bench.workloads import Workload
from gpu.core.config import config

OURS: Final = GpuAdapter.name


class Libraries:
    """This package and its peers; a context manager, which ends their processes.

    Attributes:
        names: of those that are there, this package first.
        missing: name -> why it is not there.
        isolated: whether every workload has a new process.
    """

    def __init__(self, peers: Sequence[str], python: str, device: str, isolate: bool):
        """Starts all of them.

        `python` is the interpreter of the peers and `device` what DEV= says for this package.
        With `isolate`, this package too runs in a process of its own, and every workload in a new
        one.
        """
        self._python, self._device, self.isolated = python, device, isolate
        self._running: dict[str, Contestant] = {}
        self.missing: dict[str, str] = {}
        for name in (OURS, *peers):
            try:
                self._running[name] = self._start(name)
            except ContestantFailed as error:
                self.missing[name] = f"{error.message} ({self._interpreter(name)})"
        self.names = list(self._running)

    def __enter__(self) -> Libraries:
        return self

    def __exit__(self, *exception: object) -> None:
        for contestant in self._running.values():
            contestant.close()

    def versions(self) -> dict[str, str]:
        """What each that is running says of itself."""
        return {name: contestant.version() for name, contestant in self._running.items()}

    def contestant(self, name: str, workload: Workload) -> Contestant:
        """One of `names`, ready for a workload. Raises ContestantFailed where it cannot start."""
        if workload.process:
            return Starter(name, self._interpreter(name))
        if name not in self._running:
            self._running[name] = self._start(name)
        return self._running[name]

    def finish(self, name: str, failed: bool) -> None:
        """After a workload: with `isolate`, or where it failed, the next one has a new process."""
        contestant = self._running.get(name)
        if contestant is None:
            return
        if self.isolated or failed:
            contestant.close()
            del self._running[name]
        else:
            contestant.finish()

    def _start(self, name: str) -> Contestant:
        if name == OURS and not self.isolated:
            return Local(GpuAdapter())
        return Remote(name, self._interpreter(name), config.CPU_THREADS, self._device)

    def _interpreter(self, name: str) -> str:
        return sys.executable if name == OURS else self._python
