"""What all tests share: their own cache folder, checked compiler passes, `--require`, devices.

A test that takes `device` runs under the same id on every one of `DEVICES`, or on those that
`--device` names. What a device skips of it is listed when the tests have run, and more than
`MOST_SKIPPED` of them fails the session.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import selection
from matrix import Matrix
from requirements import OPT_IN, REQUIREMENTS
from simulated import SEEDED, SEEDS, SIMULATED, keeping_rules, reseed

pytest_plugins = ("busy", "store")

# An example takes as long as a busy machine makes it; what fails tells how to have it again.
settings.register_profile("untimed", deadline=None, print_blob=True)
settings.load_profile("untimed")

# Before anything imports gpu: the environment is read once.
_CACHE_DIR = tempfile.mkdtemp(prefix="gpu-tests-")
for _name in ("GPU_CACHE_DIR", "GPU_VERIFY"):
    os.environ.pop(_name, None)
os.environ["CACHE_DIR"] = _CACHE_DIR
os.environ["VERIFY"] = "1"
# Tests and their children compute on the CPU unless they say otherwise, whatever the machine has.
_SELECTING = ("DEV", "CPU", "AMD", "NV", "QCOM", "METAL", "CUDA", "CL", "WEBGPU")
if not any(os.environ.get(prefix + name) for name in _SELECTING for prefix in ("", "GPU_")):
    os.environ["DEV"] = "CPU"

# `tools` is no part of an installed package: made importable by its path.
if "tools" not in sys.modules:
    _tools = types.ModuleType("tools")
    _tools.__path__ = [str(Path(__file__).resolve().parents[1] / "tools")]
    sys.modules["tools"] = _tools

# A shell that starts the tests in its background has them, and all their children, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="LIST",
        help="comma list of things whose absence is an error instead of a skip, of: "
        + ", ".join(REQUIREMENTS),
    )
    selection.add_options(parser)
    parser.addoption(
        "--device",
        metavar="LIST",
        help="comma list of devices, written as for DEV=, instead of those that tests know; one "
        "that cannot be opened fails its tests (-p MODULE registers one outside the package)",
    )
    parser.addoption(
        "--compile-for",
        default="x86-64-v4,sapphirerapids",
        metavar="LIST",
        help="comma list of CPUs for which some of what tests compute on the CPU is compiled too",
    )


def pytest_configure(config: pytest.Config) -> None:
    unknown = _required(config) - set(REQUIREMENTS)
    if unknown:
        raise pytest.UsageError(
            f"--require={','.join(sorted(unknown))}: known are {', '.join(REQUIREMENTS)}"
        )
    if not hasattr(config, "workerinput"):  # once, before xdist starts its workers
        for name in sorted(_required(config)):
            if reason := _lack(name):
                raise pytest.UsageError(f"--require={name}: {reason}")
    _check_devices(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") is None and not config.getoption("--whole"):
        selection.thin_out(config, items, _percent)
    selection.select(config, items)


def _percent(item: pytest.Item) -> int:
    """How many of a hundred tests like this one run."""
    mark = item.get_closest_marker("sampled")
    percent: int = mark.args[0] if mark else 100
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if _of_seed(parameters.get("device", ""))[0] in SAMPLED and not item.nodeid.startswith(
        PROMISED
    ):
        return min(percent, selection.SAMPLE)
    return percent


def _check_devices(config: pytest.Config) -> None:
    """What names no device of those there are is told once, before any test."""
    asked: str | None = config.getoption("--device")
    if asked is None:
        return
    from gpu.core.devspec import parse_device_spec
    from gpu.core.errors import ConfigError

    for spec in asked.split(","):
        try:
            parse_device_spec(spec)
        except ConfigError as error:
            raise pytest.UsageError(f"--device={asked}: {error.message}") from error


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is there once tests are collected stays: half a million objects and more.

    To look through them for garbage takes 0.3 s each time, and tests do it hundreds of times.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_CACHE_DIR, ignore_errors=True)


def _required(config: pytest.Config) -> set[str]:
    return {name for name in config.getoption("--require").split(",") if name}


@pytest.fixture(autouse=True, scope="session")
def _no_gpu_of_the_machine() -> Iterator[None]:
    """Where a test unsets DEV, the default device is the CPU still."""
    from gpu.runtime import default

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            default, "_machines_own", lambda: default.Choice("CPU", "tests look for none")
        )
        yield


@pytest.fixture(autouse=True, scope="session")
def _compiled_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """See `elsewhere`; nothing where the compiler is missing."""
    from elsewhere import compiled_elsewhere

    asked = [name for name in request.config.getoption("--compile-for").split(",") if name]
    with compiled_elsewhere([] if REQUIREMENTS["llvmlite"]() else asked):
        yield


@pytest.fixture(autouse=True, scope="module")
def _isolated_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """What fixtures of a whole file leave; see `isolation`."""
    from isolation import isolated

    with isolated(request.node.nodeid):
        yield


@pytest.fixture(autouse=True)
def _isolated_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Random tensors are the same whatever ran before, and nothing is left for what runs next."""
    from gpu.tensor.randomness import restore_generator
    from isolation import SEED, isolated

    restore_generator((SEED, {}))
    with isolated(request.node.nodeid):
        yield


# Once for all, and under no setting of the test that happens to ask first.
@cache
def _lack(name: str) -> str | None:
    return Context().run(REQUIREMENTS[name])


@pytest.fixture(scope="session")
def need(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """`need("clang")` skips the test with the reason where clang is missing.

    With `--require=clang` there is no run without it. Names are those of `REQUIREMENTS`.
    """

    def check(name: str) -> None:
        reason = _lack(name)
        if name in OPT_IN and name not in _required(request.config):
            reason = f"{OPT_IN[name]}: --require={name} asks for it"
        if reason:
            pytest.skip(f"needs {name}: {reason}")

    return check


# What `DEV=` calls each device here. Two CPUs, since a device is opened once with one compiler.
DEVICES = {
    "CPU:LLVM": "CPU:LLVM",
    "CPU:CLANG": "CPU:9:CLANG",
    "PYTHON": "PYTHON",
    "PYTHON:BLOCKS": "PYTHON:9::blocks",
    "WEBGPU": "WEBGPU",
    "CL": "CL",
    "AMD": "AMD",
    "NV": "NV",
    "CUDA": "CUDA",
    "METAL": "METAL",
    "QCOM": "QCOM",
}
# What each needs, of `REQUIREMENTS`.
TOOLS = {
    "CPU:LLVM": "llvmlite",
    "CPU:CLANG": "clang",
    "AMD": "llvmlite",
    "CL": "opencl",
    "NV": "nvrtc",
    "CUDA": "nvrtc",
    "METAL": "simulated-mac",
    "QCOM": "tinymesa",
    "WEBGPU": "webgpu",
}
# Of these, together, a sample of each test function runs unless `--whole` or `--device` asks for
# all; of what a device promises all run. What is computed from other operations is the same graph
# everywhere, and runs whole on the one CPU that every machine has.
SAMPLED = tuple(name for name in DEVICES if name != "CPU:LLVM")
PROMISED = "tests/backend/"
os.environ.setdefault("POCL_DEVICES", "pthread pthread")  # a CL:1, for tests that take two devices
MOST_SKIPPED = 0.02


def _devices(config: pytest.Config) -> dict[str, str]:
    """The devices that tests run on: those of `--device`, or all that are known here."""
    asked: str | None = config.getoption("--device")
    return DEVICES if asked is None else {spec: spec for spec in asked.split(",")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    own = "device" in named or hasattr(metafunc.module, "device")
    if "device" in metafunc.fixturenames and not own:
        marked = metafunc.definition.get_closest_marker("seeds") is not None
        count = max(metafunc.config.getoption("--seeds"), SEEDS if marked else 1)
        devices = [*_devices(metafunc.config)]
        seeded = [name for name in devices if name.partition(":")[0] in SEEDED]
        devices += [f"{name}#{seed}" for name in seeded for seed in range(1, count)]
        metafunc.parametrize("device", devices, indirect=True)


def _of_seed(parameter: str) -> tuple[str, str]:
    """A device, and the seed under which its model runs; nothing for that of SIM_SEED."""
    name, _, seed = parameter.partition("#")
    return name, seed


@pytest.fixture
def device(request: pytest.FixtureRequest, need: Callable[[str], None]) -> Iterator[str]:
    """The name of a device, which is also the default one while the test runs."""
    from gpu import Context, Device
    from gpu.core.devspec import parse_device_spec

    wanted, seed = _of_seed(request.param)
    request.node.user_properties.append(("device", wanted))  # goes into its reports
    known = _devices(request.config)
    asked = known is not DEVICES and wanted in known
    if not asked and (tool := TOOLS.get(wanted)):
        need(tool)
    spec = known[wanted] if asked else DEVICES[wanted]  # which a test may name
    with Context(DEV=spec, **({} if asked else {"SIM": SIMULATED.get(wanted, "")})):
        name = parse_device_spec(spec).name
        opened = Device[name]
        assert opened.device == name
        target = opened.renderer.target
        told = f"{target.name} {target.features}".strip()
        request.node.user_properties.append(("target", told))
        if seed:
            reseed(name, int(seed))
        with keeping_rules(name):
            yield name


def _matrix(config: pytest.Config) -> Matrix:
    """Reads the reports."""
    devices = list(_devices(config))
    matrix = Matrix(devices, {}, Counter(), {name: [] for name in devices})
    for outcome in ("passed", "failed", "skipped", "xfailed"):
        for report in _reports(config, outcome):
            told = dict(getattr(report, "user_properties", ()))  # none of a module that was skipped
            if (name := told.get("device")) is None:
                continue
            matrix.seen[name] += 1
            if outcome == "skipped":
                matrix.skipped[name].append((report.nodeid, report.longrepr[2]))
            elif target := told.get("target"):
                matrix.targets[name] = target
    return matrix


# Files that are skipped as a whole, and why: xdist passes no reports of those on.
_SKIPPED_FILES: dict[str, str] = {}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        assert isinstance(report.longrepr, tuple)
        _SKIPPED_FILES[report.nodeid] = report.longrepr[2]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _SKIPPED_FILES.update(getattr(node, "workeroutput", {}).get("skipped files", {}))


def _skips(config: pytest.Config) -> dict[str, str]:
    """What was skipped, tests and whole files, and why."""
    tests = {report.nodeid: report.longrepr[2] for report in _reports(config, "skipped")}
    return {**tests, **_SKIPPED_FILES}


def _reports(config: pytest.Config, outcome: str) -> list[Any]:
    """Those of all workers, with xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get(outcome, []) if reporter else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        selection.write_skips(session.config, _skips(session.config))
    else:
        session.config.workeroutput["skipped files"] = _SKIPPED_FILES
    quick = session.config.getoption("--quick")  # of which few tests make a large share
    if not quick and _matrix(session.config).share > MOST_SKIPPED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    _tell_what_is_lacking(terminalreporter, config)
    matrix = _matrix(config)
    if not matrix.seen:
        return
    terminalreporter.section("the same tests on every device")
    for name in matrix.devices:
        for line in matrix.lines(name):
            terminalreporter.line(line)
    verdict = "too many" if matrix.share > MOST_SKIPPED else "allowed"
    terminalreporter.line(
        f"skipped {matrix.share:.2%} of what the devices here could run, {MOST_SKIPPED:.0%} at "
        f"most: {verdict}"
    )


def _tell_what_is_lacking(terminalreporter: Any, config: pytest.Config) -> None:
    reasons = _skips(config).values()
    lacking = Counter(m[1] for reason in reasons if (m := re.search(r"needs ([\w-]+): ", reason)))
    if lacking:
        terminalreporter.section("what this machine lacks, or was not asked for")
    for name, count in lacking.most_common():
        reason = _lack(name) or OPT_IN.get(name, "it cannot be imported")
        terminalreporter.line(f"{name}: {count} skipped; {reason}")
    if _SKIPPED_FILES:
        terminalreporter.section("files that were skipped as a whole")
    for nodeid, reason in sorted(_SKIPPED_FILES.items()):
        terminalreporter.line(f"{nodeid}: {reason}")


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

    kept = ("CACHE_DIR", "OBJECT_CACHE_DIR", "VERIFY")
    settings = [*SETTINGS.values(), *ALIASES.values()]
    change(**{name: None for s in settings for name in s.spellings if name not in kept})
    yield change
    monkeypatch.undo()
    reread_environment()
