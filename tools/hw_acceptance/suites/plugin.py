"""A plugin of pytest: the tests that take a device, in a seeded order, until the time is over.

``pytest -p tools.hw_acceptance.suites.plugin --device=NV --suite-out FILE --suite-seconds 100``.
The file gets a line of JSON for each test as it ends and for each module that cannot be imported;
for each process how many tests there are and which of the vendor's libraries it had mapped at its
end.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

# `gpu` is imported by the hooks: the tests set the environment before that.
from tools.hw_acceptance.suites.mapped import mapped_libraries

_LONG: Final = 500  # characters of an error


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options."""
    parser.addoption("--suite-out", type=Path, required=True)
    parser.addoption("--suite-seconds", type=float, required=True)
    parser.addoption("--suite-seed", type=int, default=0)


def pytest_configure(config: pytest.Config) -> None:
    """Takes part in the session."""
    config.pluginmanager.register(Suite(config), "hw-acceptance-suite")


class Suite:
    """The hooks of one process; with xdist there are several."""

    def __init__(self, config: pytest.Config):
        self._out: Path = config.getoption("--suite-out")
        self._end = time.monotonic() + config.getoption("--suite-seconds")
        self._seed: int = config.getoption("--suite-seed")
        self._is_worker = hasattr(config, "workerinput")

    def takes(self, item: pytest.Item) -> bool:
        """Whether a test is run: those of a device are."""
        return _device_of(item) is not None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leaves what `takes` says, shuffled: a run that is cut is a sample then."""
        kept = [item for item in items if self.takes(item)]
        config.hook.pytest_deselected(items=[item for item in items if not self.takes(item)])
        kept.sort(key=lambda item: item.nodeid)
        random.Random(self._seed).shuffle(kept)
        items[:] = kept
        self._write({"total": len(kept)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Leaves a test out, without a report, when the time is over."""
        return True if time.monotonic() > self._end else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Writes which module could not be imported."""
        if report.failed and not self._is_worker:
            self._write({"module": report.nodeid, "error": str(report.longrepr)[-_LONG:]})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes the end of a test."""
        if self._is_worker or (report.when != "call" and report.outcome == "passed"):
            return
        error = "" if report.outcome == "passed" else _error(report)
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": report.duration}
        self._write({**line, "error": error})

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any]) -> None:
        """Makes the device usable again after a fault, so that it costs one test."""
        from gpu.core.errors import DeviceLost, GpuFault

        device = _device_of(node)
        error = call.excinfo.value if call.excinfo is not None else None
        if device is not None and isinstance(error, (GpuFault, DeviceLost)):
            _recover(device)

    def pytest_sessionfinish(self) -> None:
        """Writes what is mapped; torch, which tests compare with, brings its own libraries."""
        self._write({"mapped": mapped_libraries(), "torch": "torch" in sys.modules})

    def _write(self, line: dict[str, Any]) -> None:
        descriptor = os.open(self._out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def _device_of(item: Any) -> str | None:
    """The device that a test is given, as ``DEV`` takes it."""
    call = getattr(item, "callspec", None)
    found = call.params.get("device") if call is not None else None
    return found if isinstance(found, str) else None


def _recover(spec: str) -> None:
    from gpu.core.devspec import parse_device_spec
    from gpu.core.errors import GpuError
    from gpu.runtime.device import Device

    recover = getattr(Device[parse_device_spec(spec).name], "recover", None)
    if recover is not None:
        with suppress(GpuError):  # the tests that follow will tell
            recover()


def _error(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a test that was skipped: file, line, reason
        return report.longrepr[2][:_LONG]
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr))[:_LONG]
