from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from gpu.core.config import (
    ALIASES,
    SETTINGS,
    Context,
    DeviceSpec,
    config,
    device_options,
    device_spec,
)
from gpu.core.errors import ConfigError

Environment = Callable[..., None]


def test_defaults(environment: Environment) -> None:
    environment(VERIFY=None, CACHE_DIR=None, OBJECT_CACHE_DIR=None, XDG_CACHE_HOME="/somewhere")
    assert (config.DEBUG, config.DEV, config.SIM, config.CACHE) == (0, "", "", True)
    assert (config.VERIFY, config.GPU_VERIFY_JIT, config.NOOPT) == (False, False, False)
    assert str(config.CACHE_DIR) == "/somewhere/gpu" and config.OBJECT_CACHE_DIR is None
    assert 1 <= config.CPU_THREADS <= (os.cpu_count() or 1)


def test_checks_are_a_list_of_names(environment: Environment) -> None:
    for text, names in (
        ("1", {"index"}),
        ("index", {"index"}),
        ("0", set()),
        ("Index, 1", {"index"}),
    ):
        environment(CHECK=text)
        assert names == config.CHECK
        with Context(CHECK=text):
            assert names == config.CHECK
    with Context(CHECK=1), Context(CHECK=0):
        assert not config.CHECK
    for wrong in ("2", "nans", "index,inf", "0,1", "index,"):
        with pytest.raises(ConfigError, match="CHECK takes 0 or a comma list of 1, index, nan"):
            Context(CHECK=wrong)
    environment(CHECK=None)
    assert not config.CHECK


def test_a_relative_xdg_cache_home_is_ignored(environment: Environment) -> None:
    environment(CACHE_DIR=None, XDG_CACHE_HOME="relative", HOME="/users/ann")
    assert str(config.CACHE_DIR) == "/users/ann/.cache/gpu"


def test_both_spellings_are_read(environment: Environment) -> None:
    environment(DEBUG="2")
    assert config.DEBUG == 2
    environment(DEBUG=None, GPU_DEBUG="3")
    assert config.DEBUG == 3
    environment(CACHE="off", GPU_CACHE="0")
    assert config.CACHE is False
    environment(DEBUG="1", GPU_DEBUG="2")
    with pytest.raises(ConfigError, match="DEBUG=1 and GPU_DEBUG=2"):
        _ = config.DEBUG


def test_an_empty_variable_is_not_set(environment: Environment) -> None:
    environment(DEBUG="", DEV="", CACHE="")
    assert config.DEBUG == 0 and config.CACHE is True and device_spec() is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DEBUG", "8", "DEBUG='8'.*from 0 to 7"),
        ("DEBUG", "lots", "DEBUG='lots'.*from 0 to 7"),
        ("GPU_CACHE", "2", "GPU_CACHE='2'.*0 or 1"),
        ("CPU_THREADS", "0", "CPU_THREADS='0'.*from 1"),
        ("DEV", "CUP", "DEV=CUP.*did you mean CPU"),
    ],
)
def test_bad_values(environment: Environment, name: str, value: str, words: str) -> None:
    environment(**{name: value})
    with pytest.raises(ConfigError, match=words):
        getattr(config, name.removeprefix("GPU_"))


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"DEBG.*did you mean DEBUG"):
        Context(DEBG=1)
    with pytest.raises(ConfigError, match="did you mean NOOPT"):
        config.NOOP  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ConfigError, match=r"AMD.*use DEV=AMD"):
        Context(AMD=1)
    with pytest.raises(ConfigError, match="with Context"):
        config.DEBUG = 2


@pytest.mark.parametrize("bad", [None, 1.5, [1], "x", -1])
def test_context_checks_values(bad: object) -> None:
    with pytest.raises(ConfigError, match=r"DEBUG=.*takes a whole number"):
        Context(DEBUG=bad)  # type: ignore[arg-type]


def test_context_nests_and_restores(environment: Environment) -> None:
    environment()
    outer = Context(NOOPT=True, CPU_THREADS="3")
    with outer, Context(NOOPT=0):
        assert config.NOOPT is False and config.CPU_THREADS == 3
        with outer:
            assert config.NOOPT is True
        assert config.NOOPT is False
    with pytest.raises(KeyError), outer:
        raise KeyError
    assert config.NOOPT is False


def test_context_is_of_one_thread_and_task(environment: Environment) -> None:
    environment()
    seen: list[bool] = []
    with Context(NOOPT=1):
        thread = threading.Thread(target=lambda: seen.append(config.NOOPT))
        thread.start()
        thread.join()
    assert seen == [False]

    async def task(value: int) -> int:
        with Context(CPU_THREADS=value):
            await asyncio.sleep(0)
            return config.CPU_THREADS

    async def both() -> list[int]:
        return list(await asyncio.gather(task(2), task(3)))

    assert asyncio.run(both()) == [2, 3]


def test_every_setting_is_documented() -> None:
    for name, setting in {**SETTINGS, **ALIASES}.items():
        assert setting.name == name
        assert setting.doc and setting.default_doc and setting.kind.accepts
    assert set(SETTINGS) >= {"DEBUG", "DEV", "CACHE", "CACHE_DIR", "OBJECT_CACHE_DIR"}


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({}, None),
        ({"DEV": "cpu:clang"}, "CPU:CLANG"),
        ({"GPU_DEV": "AMD"}, "AMD"),
        ({"CPU": "1"}, "CPU"),
        ({"CPU": "0"}, None),
        ({"AMD": "1", "AMD_IFACE": "usb"}, "USB+AMD"),
        ({"AMD_IFACE": "PCI", "AMD_HIP": "1"}, "PCI+AMD:HIP"),
        ({"DEV": "AMD::gfx1100", "AMD_LLVM": "1", "AMD": "1"}, "AMD:LLVM:gfx1100"),
        ({"DEV": "AMD:1", "AMD_IFACE": "KFD"}, "KFD+AMD:1"),
        ({"DEV": "NV:PTX", "NV_PTX": "1"}, "NV:PTX"),
        ({"CPU": "1", "AMD_LLVM": "1"}, "CPU"),
        ({"DEV": "CPU", "NV_IFACE": "PCI"}, "CPU"),
        ({"CUDA_PTX": "1"}, "CUDA:PTX"),
        ({"CPU_LLVM": "1"}, "CPU:LLVM"),
        ({"CPU_CLANG": "1"}, "CPU:CLANG"),
        ({"GPU": "1"}, "CL"),
        ({"GPU": "GeForce"}, None),
        ({"LLVM": "1"}, "CPU:LLVM"),
        ({"LLVM": "1", "AMD_IFACE": "KFD"}, "CPU:LLVM"),
        ({"LLVM": "-19"}, None),
        ({"CLANG": "1", "CPU": "1"}, "CPU:CLANG"),
        ({"CLANG": "clang-19", "DEV": "CPU"}, "CPU"),
    ],
)
def test_device_spec(environment: Environment, variables: dict[str, str], want: str | None) -> None:
    environment(**variables)
    spec = device_spec()
    assert (None if spec is None else str(spec)) == want


@pytest.mark.parametrize(
    ("variables", "both"),
    [
        ({"DEV": "CPU", "AMD": "1"}, ("DEV=CPU", "AMD=1")),
        ({"CPU": "1", "AMD": "1"}, ("CPU=1", "AMD=1")),
        ({"AMD_LLVM": "1", "AMD_HIP": "1"}, ("AMD_LLVM=1", "AMD_HIP=1")),
        ({"DEV": "AMD:HIP", "AMD_LLVM": "1"}, ("DEV=AMD:HIP", "AMD_LLVM=1")),
        ({"DEV": "PCI+NV", "NV_IFACE": "NVK"}, ("DEV=PCI+NV", "NV_IFACE=NVK")),
        ({"AMD_LLVM": "1", "NV_PTX": "1"}, ("AMD_LLVM=1", "NV_PTX=1")),
        ({"DEV": "CPU", "GPU_DEV": "AMD"}, ("DEV=CPU", "GPU_DEV=AMD")),
        ({"AMD_IFACE": "NVK"}, ("AMD_IFACE='NVK'", "KFD or PCI or USB")),
    ],
)
def test_conflicts_name_both(
    environment: Environment, variables: dict[str, str], both: tuple[str, str]
) -> None:
    environment(**variables)
    with pytest.raises(ConfigError) as caught:
        device_spec()
    assert all(side in str(caught.value) for side in both), caught.value


def test_context_device_replaces_the_environments(environment: Environment) -> None:
    environment(CPU="1", AMD_LLVM="1", AMD_IFACE="PCI")
    with Context(DEV="AMD:HIP"):
        assert str(device_spec()) == "PCI+AMD:HIP"
    with Context(DEV=""):
        assert device_spec() is None
    assert device_spec() == DeviceSpec("CPU")


def test_options_of_a_device_that_is_not_selected(environment: Environment) -> None:
    environment(DEV="CPU:1:CLANG", AMD_IFACE="USB")
    assert device_options("AMD") == DeviceSpec("AMD", "USB")
    assert device_options("CPU") == DeviceSpec("CPU", renderer="CLANG")
    assert device_options("NV") == DeviceSpec("NV")


def test_importing_does_not_read_more_than_debug() -> None:
    code = "import gpu.core.config, gpu.core.files, gpu.core.objload"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CPU_THREADS": "bad", "DEV": "bad"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
