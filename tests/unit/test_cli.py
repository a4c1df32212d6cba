from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu
from gpu.cli import info
from gpu.cli.commands import COMMANDS, Command
from gpu.cli.main import main
from gpu.core.config import SETTINGS, Context
from gpu.core.devspec import DEVICES
from gpu.core.errors import DeviceError
from gpu.runtime.device import BACKENDS, Device


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def _pretend(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `gpu info` raise `error`."""

    def run(arguments: object) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "info", Command("", info.add_arguments, run))


def test_info_text_names_every_device_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for name in (*DEVICES, *SETTINGS, "numpy", "llvmlite", "Python"):
        assert name in out, f"`gpu info` does not show {name}"


def test_info_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    report = _json(capsys)
    assert report["schema"] == 1
    assert set(report) == {
        *("schema", "version", "python", "system", "packages", "default_device"),
        *("default_reason", "devices", "settings", "cache"),
    }
    assert [d["name"] for d in report["devices"]] == list(DEVICES)
    for device in report["devices"]:
        assert set(device) == {
            *("name", "status", "problem", "renderer", "compiler", "target", "features"),
            *("workers", "vector_bytes"),
        }
    assert set(report["settings"][0]) == {"name", "value", "source", "doc"}
    assert set(report["cache"]) == {"folder", "in_use", "entries", "bytes"}


def test_info_describes_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    devices = {d["name"]: d for d in _json(capsys)["devices"]}
    cpu = Device["CPU"].describe()
    assert devices["CPU"]["status"] == "found"
    assert devices["CPU"]["compiler"] == cpu["compiler"]
    assert ",".join(devices["CPU"]["features"]) == cpu["features"]
    assert devices["CPU"]["workers"] == int(cpu["workers"])
    for name in set(DEVICES) - set(BACKENDS):
        assert devices[name]["status"] == "unsupported"
        assert name in devices[name]["problem"]


def test_info_says_what_to_do_about_a_missing_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object, name: str) -> None:
        raise DeviceError("no such\nthing: run `modprobe thing`")

    monkeypatch.setattr(type(Device), "__getitem__", fail)
    cpu = _json(capsys)["devices"][0]
    assert (cpu["status"], cpu["problem"]) == ("missing", "no such thing: run `modprobe thing`")
    main(["info"])
    assert "what to do  no such thing: run `modprobe thing`" in capsys.readouterr().out


def test_info_tells_where_a_setting_is_from(
    environment: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(CPU_THREADS="1", GPU_NOOPT="1", CPU_LLVM="1", CHECK="1")
    settings = {s["name"]: s for s in _json(capsys)["settings"]}
    assert (settings["CPU_THREADS"]["value"], settings["NOOPT"]["value"]) == (1, True)
    assert settings["CHECK"]["value"] == "index"
    assert settings["NOOPT"]["source"] == settings["CPU_LLVM"]["source"] == "environment"
    assert settings["DEBUG"]["source"] == "default"
    assert "CPU_CLANG" not in settings, "older spellings are shown only where they are set"


def test_info_measures_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "llvm").mkdir()
    (tmp_path / "llvm" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "llvm" / "b").write_bytes(b"x" * 548)
    with Context(CACHE_DIR=tmp_path):
        cache = _json(capsys)["cache"]
        assert cache == {"folder": str(tmp_path), "in_use": True, "entries": 2, "bytes": 1548}
        main(["info"])
        assert "2 entries, 1.5 KiB" in capsys.readouterr().out
    with Context(CACHE_DIR=tmp_path, CACHE=0):
        assert not _json(capsys)["cache"]["in_use"]


@pytest.mark.parametrize("arguments", [[], ["inf"], ["info", "--yaml"]])
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: gpu" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option, expected in (("--version", f"gpu {gpu.__version__}\n"), ("--help", "info")):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


def test_an_error_is_one_line_and_exit_code_1(
    environment: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    environment(DEV="CPUU")
    assert main(["info"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("gpu: ")
    assert "CPUU" in err


def test_debug_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, DeviceError("lost"))
    with Context(DEBUG=2):
        assert main(["info"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "DeviceError: lost" in err


def test_errors_that_are_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["info"])


def test_ctrl_c_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, KeyboardInterrupt())
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "")


def _start(
    *arguments: str, stdout: int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    # The folder of the package under test comes first, be it a checkout or installed.
    home = str(Path(info.__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "gpu", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": home, **variables},
    )


def test_python_dash_m_gpu() -> None:
    process = _start("info", "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["schema"] == 1


def test_an_error_in_debug_itself_is_one_line() -> None:
    process = _start("info", DEBUG="loud")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (1, "", 1)
    assert "DEBUG='loud'" in err


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = _start("info", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")
