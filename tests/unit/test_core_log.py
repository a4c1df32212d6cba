from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = """
import logging
before = list(logging.getLogger().handlers), logging.getLogger().level
from gpu.core.config import Context
from gpu.core.log import get_logger
log = get_logger("gpu.part")
log.warning("W"); log.info("I"); log.debug("D")
"""
AFTER = """
assert before == (list(logging.getLogger().handlers), logging.getLogger().level)
assert get_logger("elsewhere").name == "gpu.elsewhere"
"""


def run(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SHOW + code + AFTER],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(("debug", "shown"), [("0", "W"), ("1", "WI"), ("2", "WID")])
def test_debug_maps_to_levels(debug: str, shown: str) -> None:
    lines = run("", DEBUG=debug).splitlines()
    assert [line[-1] for line in lines] == list(shown)


def test_context_switches_levels_and_installs_one_handler() -> None:
    code = """
with Context(DEBUG=2):
    log.debug("one")
    with Context(DEBUG=1):
        log.debug("hidden"); log.info("two")
    log.debug("three")
log.info("hidden")
assert len(logging.getLogger("gpu").handlers) == 1
"""
    words = [line.split()[-1] for line in run(code, DEBUG="0").splitlines()]
    assert words == ["W", "one", "two", "three"]
