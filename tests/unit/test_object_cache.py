"""Compiled objects, kept where OBJECT_CACHE_DIR says, apart from plans."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu import Context
from gpu.compiler.toolchain import base
from gpu.compiler.toolchain.base import Compiler
from gpu.core.files import content_signature, object_cache_dir
from unit.test_runtime import WARM, python


class Counting(Compiler):
    """Notes what it compiles."""

    def __init__(self, key: str = "counting"):
        super().__init__(key, "counting")
        self.compiled: list[str] = []

    def compile(self, source: str) -> bytes:
        self.compiled.append(source)
        return source.encode()

    def disassemble(self, lib: bytes) -> str:
        return lib.decode()


def compiled(sources: Sequence[str], key: str = "counting") -> list[str]:
    """What a new process would have to compile."""
    compiler = Counting(key)
    assert compiler.compile_many_cached(sources) == [source.encode() for source in sources]
    return compiler.compiled


def test_another_process_plans_anew_and_compiles_nothing(tmp_path: Path) -> None:
    objects = {"OBJECT_CACHE_DIR": str(tmp_path / "objects"), "LLVM_IN_PROCESS": "1"}
    cold = python(WARM, tmp_path / "one", **objects)
    assert cold[0].endswith(" 1") and cold[1] == "True True"
    again = python(WARM, tmp_path / "two", **objects)
    assert again == [cold[0], "False True"], "one graph was planned, without llvmlite"
    without = python(WARM, tmp_path / "three", LLVM_IN_PROCESS="1")
    assert without == cold


# Compiles some of ten sources, of which it notes each; a source with its own number ends it.
AT_ONCE = """
import os, sys, time
from gpu.compiler.toolchain.base import Compiler

own, log, *sources = sys.argv[1:]

class Slow(Compiler):
    def compile(self, source):
        time.sleep(0.02)
        if source == f"fatal to {own}":
            os._exit(3)
        with open(log, "a") as file:
            file.write(source + "\\n")
        return source.encode()

    def disassemble(self, lib):
        return lib.decode()

assert Slow("slow", "slow").compile_many_cached(sources) == [s.encode() for s in sources]
"""


@pytest.mark.parametrize("dies", [False, True])
def test_what_processes_need_at_once_one_of_them_compiles(tmp_path: Path, dies: bool) -> None:
    """Also what one of them has begun that dies: another one begins anew."""
    rng = np.random.default_rng(5)
    sources = [*(f"source {number}" for number in range(9)), *(["fatal to 0"] if dies else [])]
    log, environ = tmp_path / "log", {**os.environ, "OBJECT_CACHE_DIR": str(tmp_path / "objects")}
    started = []
    for number in range(3):
        wanted = sources if number == 0 else [*rng.permutation(sources)]
        argv = [sys.executable, "-c", AT_ONCE, str(number), str(log), *wanted]
        started.append(subprocess.Popen(argv, env=environ))
    codes = [process.wait(60) for process in started]
    assert codes[0] in ((0, 3) if dies else (0,)) and codes[1:] == [0, 0]
    made = log.read_text().splitlines()
    most = 2 if codes[0] else 1  # what it had compiled is lost
    assert {*made} == {*sources} and all(made.count(source) <= most for source in sources)


def test_keys_are_compiler_and_source(tmp_path: Path) -> None:
    with Context(OBJECT_CACHE_DIR=tmp_path / "objects", CACHE_DIR=tmp_path / "cache"):
        assert compiled(["a", "b", "a"]) == ["a", "b"]
        assert compiled(["b", "c"]) == ["c"]
        assert compiled(["b"], key="counting 2") == ["b"]
        with Context(OBJECT_CACHE_DIR=tmp_path / "others"):
            assert compiled(["b"]) == ["b"]
        with Context(CACHE=0):
            assert compiled(["b"]) == ["b"]
    assert not (tmp_path / "cache").exists()


def test_damage_is_a_miss(tmp_path: Path) -> None:
    with Context(OBJECT_CACHE_DIR=tmp_path):
        compiled(["a", "b", "c"])
        entries = sorted((tmp_path / "counting").iterdir())
        entries[0].write_bytes(entries[0].read_bytes()[:-1])
        shutil.copy(entries[2], entries[1])
        assert len(compiled(["a", "b", "c"])) == 2
        assert compiled(["a", "b", "c"]) == []


def test_other_code_of_ours_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(OBJECT_CACHE_DIR=tmp_path):
        assert compiled(["a"]) == ["a"]
        monkeypatch.setattr(base, "_code_signature", lambda kind: "changed since")
        assert compiled(["a"]) == ["a"]


def test_the_code_of_ours_is_what_makes_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.backends.cl.compiler import CLCompiler
    from gpu.compiler.toolchain.amdgcn import AMDCompiler

    seen: dict[type[Compiler], set[str]] = {}
    for kind in (AMDCompiler, CLCompiler, Counting):
        monkeypatch.setattr(
            base, "content_signature", lambda *places, kind=kind: seen.update({kind: {*places}})
        )
        base._code_signature.__wrapped__(kind)
    package = Path(base.__file__).parents[2]
    ours = {package / "compiler" / "toolchain", *(package / "core").glob("elf*.py")}
    assert seen == {
        AMDCompiler: ours,
        CLCompiler: {*ours, package / "backends" / "cl"},
        Counting: {*ours, Path(__file__)},
    }


def test_a_class_in_no_file_has_its_key(nothing_compiled: Path) -> None:
    """As in a notebook, or a program that comes through a pipe."""
    for module in ("nowhere", "sys"):
        made = type("Piped", (Counting,), {"__module__": module})()
        assert made.compile_cached(module) == module.encode() and made.compiled == [module]


def test_signatures_are_of_content(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("a = 1\n")
        (tmp_path / name / "b.txt").write_text(name)
    (tmp_path / "three" / "a.py").write_text("a = 2\n")
    found = [content_signature(tmp_path / name) for name in ("one", "two", "three")]
    assert found[0] == found[1] != found[2]
    assert content_signature(tmp_path / "one" / "a.py") == found[0]
    with pytest.raises(FileNotFoundError):
        content_signature(tmp_path / "four.py")


def test_where_it_is(tmp_path: Path) -> None:
    with Context(CACHE_DIR=tmp_path / "cache", OBJECT_CACHE_DIR=""):
        assert object_cache_dir() == tmp_path / "cache"
        with Context(OBJECT_CACHE_DIR=tmp_path / "objects"):
            assert object_cache_dir() == tmp_path / "objects"
            assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700
            with Context(CACHE=0):
                assert object_cache_dir() is None
