"""A plugin of pytest: what a libcuda answers, by the tests of the model's outcomes.

``pytest -p tools.hw_acceptance.suites.outcomes --libcuda=libcuda.so.1 --suite-out FILE
--suite-seconds 100 tests/sim/cuda``. Each test has a child of its own, since a fault leaves its
process useless. It is forked before anything was asked of libcuda, which is what libcuda wants.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

from tools.hw_acceptance.runner import ROOT
from tools.hw_acceptance.suites import plugin

RULES: Final = ROOT / "docs/reference/cuda-rules.md"
_TEST: Final = re.compile(r"`(tests/[\w./]+\.py:\w+)` \|$", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options."""
    plugin.pytest_addoption(parser)
    parser.addoption("--libcuda", required=True, help="a libcuda by name or path, or sim:CHIP")
    parser.addoption("--suite-limit", type=float, default=30.0, help="seconds of a test")


def pytest_configure(config: pytest.Config) -> None:
    """Takes part in the session."""
    config.pluginmanager.register(_Outcomes(config), "hw-acceptance-outcomes")


def outcomes(rules: Path = RULES) -> frozenset[str]:
    """The tests, as ``path:function``, that the table of rules names for outcomes."""
    text = rules.read_text(encoding="utf-8")
    return frozenset(_TEST.findall(text[: text.index("## Violations")]))


class _Outcomes(plugin.Suite):
    """The tests of outcomes under one seed, each in a child."""

    def __init__(self, config: pytest.Config):
        super().__init__(config)
        self._limit: float = config.getoption("--suite-limit")
        self._known = outcomes()

    def takes(self, item: pytest.Item) -> bool:
        """Whether the table names it, it runs on any libcuda, and no other seed has it."""
        name = f"{item.path.relative_to(ROOT)}:{getattr(item, 'originalname', item.name)}"
        call = getattr(item, "callspec", None)
        is_first = call is None or call.params.get("seed", 0) == 0
        return name in self._known and is_first and "library" in getattr(item, "fixturenames", ())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Runs a test in a child, and tells what it told."""
        if super().pytest_runtest_protocol(item) is None:
            for report in self._in_child(item):
                item.ihook.pytest_runtest_logreport(report=report)
        return True

    def _in_child(self, item: pytest.Item) -> list[pytest.TestReport]:
        to_serializable = item.config.hook.pytest_report_to_serializable
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            found = [
                to_serializable(config=item.config, report=each)
                for each in runtestprotocol(item, log=False, nextitem=None)
            ]
            with open(write, "wb") as pipe:
                pickle.dump(found, pipe)
            os._exit(0)
        os.close(write)
        late = threading.Timer(self._limit, os.kill, (child, signal.SIGKILL))
        late.start()
        with open(read, "rb") as pipe:
            told = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        late.cancel()
        late.join()
        if code or not told:
            return [_broken(item, f"its process ended with {code}; it may take {self._limit} s")]
        from_serializable = item.config.hook.pytest_report_from_serializable
        return [from_serializable(config=item.config, data=each) for each in pickle.loads(told)]


def _broken(item: pytest.Item, why: str) -> pytest.TestReport:
    keywords: dict[str, Any] = {}
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", why, "call")
