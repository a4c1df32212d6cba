"""Clang as a process: batches, versions, what it says, and tools that are not what they should."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu import Tensor
from gpu.backends.cpu import device, ircode, pool, pool_code
from gpu.backends.cpu.native import c_library_addresses
from gpu.backends.cpu.program import CPUProgram
from gpu.compiler.render.cstyle.c import CRenderer
from gpu.compiler.targets.cpu import host_architecture
from gpu.compiler.toolchain import clang, llvm
from gpu.compiler.toolchain.clang import ClangCompiler, clang_version, find_clang
from gpu.core.config import Context
from gpu.core.devspec import DeviceSpec
from gpu.core.dtype import dtypes
from gpu.core.elf import STB_LOCAL, parse_object
from gpu.core.errors import CompileError, Unsupported
from gpu.core.objload import load_object
from gpu.runtime.device import Device
from unit.linear_kernels import HOST, Kernel, scratch_kernel

Script = Callable[..., Path]


@pytest.fixture
def compiler(need: Callable[[str], None]) -> ClangCompiler:
    need("clang")
    return ClangCompiler(HOST.name, HOST.features)


def constant_kernel(value: float) -> str:
    """Stores `value` 32 times, from constants in memory and through a loop."""
    k = Kernel(out=(dtypes.float32, 32))
    i = k.loop(32, 8)
    ramp = k("cast", dtypes.float32, k("ramp", dtypes.int64, i, lanes=8, attr=(1,)), lanes=8)
    k.store(k.out, i, k.alu("add", k.const(value, dtypes.float32, 8), ramp))
    k.end(i)
    return CRenderer(HOST).render(k.program())


def assert_stores(lib: bytes, value: float) -> None:
    out = np.zeros(32, np.float32)
    CPUProgram("kernel", lib)(out.ctypes.data)
    assert (out == np.arange(32) + value).all()


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts clang was started with, from here on."""
    texts: list[str] = []
    original = clang._run_tool

    def run_tool(command, text):
        texts.append(text)
        return original(command, text)

    monkeypatch.setattr(clang, "_run_tool", run_tool)
    return texts


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_a_batch_gives_each_kernel_an_object_of_its_own(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    sources = [constant_kernel(0.5 + number) for number in range(count)]
    runs = count_runs(monkeypatch)
    with Context(CPU_THREADS=2):
        libs = compiler.compile_many(sources)
    assert len(runs) == (1 if count <= 8 else 2)
    assert len(libs) == count
    for number, lib in enumerate(libs):
        assert load_object(lib, {}).symbols.count("kernel") == 1
        assert_stores(lib, 0.5 + number)
        bindings = [s.binding for s in parse_object(lib).symbols]
        assert bindings == sorted(bindings, key=lambda b: b != STB_LOCAL)


def test_an_object_of_a_batch_refers_only_to_what_it_holds(compiler: ClangCompiler) -> None:
    libs = compiler.compile_many([constant_kernel(1.25), constant_kernel(2.5)])
    for lib in libs:
        read = parse_object(lib)
        assert sum(s.name.startswith(".text") for s in read.sections) == 1
        assert all(s.section for s in read.symbols[1:])
        assert all(read.sections[r.section].size > r.offset for r in read.relocations)


def test_a_batch_must_hold_what_was_asked_for(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = compiler.compile(constant_kernel(1.0))  # its function is called kernel
    monkeypatch.setattr(compiler, "_run", lambda sources: other)
    with pytest.raises(CompileError, match=r"made \['kernel'\] of 2 kernels"):
        compiler.compile_many(["", ""])


def test_no_kernels_are_a_batch_too(compiler: ClangCompiler) -> None:
    assert compiler.compile_many([]) == [] and compiler.compile_many_cached([]) == []


@pytest.mark.usefixtures("nothing_compiled")
def test_what_is_known_is_not_compiled_again(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (constant_kernel(v) for v in (100.5, 101.5, 102.5))
    known = compiler.compile_many_cached([first, second, first])
    assert known[0] is known[2] and known[0] != known[1]
    runs = count_runs(monkeypatch)
    other_process = ClangCompiler(HOST.name, HOST.features)
    assert other_process.compile_many_cached([second, third])[0] == known[1]
    assert len(runs) == 1 and third in runs[0] and second not in runs[0]


def test_errors_name_the_line_of_the_source(compiler: ClangCompiler) -> None:
    good, bad = constant_kernel(1.0), "int fine;\nint x = unknown;\n"
    with pytest.raises(CompileError, match=r"(?s)unknown.*\(line 2: int x = unknown;\)"):
        compiler.compile(bad)
    with pytest.raises(CompileError, match=r"(?s)source1.*\(line 2: int x = unknown;\)"):
        compiler.compile_many([good, bad, good])
    ir = ClangCompiler(HOST.name, language="ir")
    with pytest.raises(CompileError, match=r"\(line 2: %x = add i32 1, %y\)"):
        ir.compile("define void @f() {\n%x = add i32 1, %y\nret void\n}\n")


def test_other_architectures(compiler: ClangCompiler) -> None:
    source = CRenderer(HOST).render(scratch_kernel(4).program())
    for name, number in (("x86_64", 62), ("aarch64", 183)):
        assert parse_object(ClangCompiler(name).compile(source)).machine == number
    with pytest.raises(Unsupported, match="riscv64"):
        ClangCompiler("riscv64")


def test_the_pools_code_is_compiled_by_clang_where_llvmlite_is_missing(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise Unsupported("no llvmlite")

    monkeypatch.setattr(llvm, "llvmlite_version", missing)
    architecture = host_architecture()
    made = ircode.ir_compiler(architecture)
    assert isinstance(made, ClangCompiler)
    lib = made.compile(pool_code.pool_source(architecture))
    loaded = load_object(lib, c_library_addresses(pool_code.EXTERNALS))
    assert {"pool_start", "pool_stop", "pool_run", "pool_replay"} <= set(loaded.symbols)


def test_a_pool_runs_on_code_from_clang(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ircode, "ir_compiler", lambda name: ClangCompiler(name, language="ir"))
    pool._load_native.cache_clear()
    try:
        threads = pool.Pool(3)
    finally:
        pool._load_native.cache_clear()
    k = Kernel(out=(dtypes.int64, 64))
    i = k.loop(64, kind="worker")
    k.store(k.out, i, i)
    k.end(i)
    lib = compiler.compile(CRenderer(HOST).render(k.program()))
    out = np.zeros(64, np.int64)
    for _ in range(20):
        out[:] = -1
        CPUProgram("kernel", lib, parallel=True, pool=threads)(out.ctypes.data)
        assert (out == np.arange(64)).all()
    threads.stop()


def test_the_device_compiles_as_it_is_told(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = device.open_device("CPU", DeviceSpec("CPU", renderer="CLANG", arch="x86-64-v2"))
    assert isinstance(opened.compiler, ClangCompiler) and isinstance(opened.renderer, CRenderer)
    assert opened.renderer.target.vector_bytes == 16 and not caplog.records
    with pytest.raises(Unsupported, match="use CPU:LLVM or CPU:CLANG"):
        device.open_device("CPU", DeviceSpec("CPU", renderer="PTX"))

    def missing() -> str:
        raise Unsupported("llvmlite is not here")

    monkeypatch.setattr(llvm, "llvmlite_version", missing)
    opened = device.open_device("CPU", DeviceSpec("CPU"))
    assert isinstance(opened.compiler, ClangCompiler)
    assert "llvmlite is not here; kernels are compiled with clang" in caplog.text
    with pytest.raises(Unsupported, match="llvmlite is not here"):
        device.open_device("CPU", DeviceSpec("CPU", renderer="LLVM"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unsupported, match=r"(?s)llvmlite is not here; .*apt install clang"):
        device.open_device("CPU", DeviceSpec("CPU"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Puts a Python program on a PATH where nothing else is.

    `--version` answers as clang 19 does, unless told otherwise.
    """
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(body: str, name: str = "clang", version: str = "clang version 19.1.7") -> Path:
        path = tmp_path / name
        answer = f"if '--version' in sys.argv: print({version!r}); sys.exit()"
        path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{answer}\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    with Context(CLANG=""):
        yield make


def test_where_clang_is_looked_for(script: Script, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="apt install clang"):
        find_clang()
    old, new = script("", "clang-14"), script("", "clang-22")
    assert find_clang() == str(new)
    plain = script("", "clang")
    assert find_clang() == str(plain)
    for chosen in ("clang-14", str(old)):
        with Context(CLANG=chosen):
            assert find_clang() == str(old)
    with (
        Context(CLANG="clang-77"),
        pytest.raises(Unsupported, match="CLANG=clang-77 is no program"),
    ):
        find_clang()


def test_the_version_is_asked_for_once(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(script("", version="Debian clang version 19.1.7 (3~deb12u1)"))
    runs = count_runs(monkeypatch)
    assert clang_version(path) == "clang version 19.1.7 (3~deb12u1)"
    assert clang_version(path) == "clang version 19.1.7 (3~deb12u1)" and len(runs) == 1
    script("", version="clang version 20.1.0")
    assert clang_version(path) == "clang version 20.1.0" and len(runs) == 2


def test_versions_that_will_not_do(script: Script) -> None:
    script("", version="clang version 9.0.1")
    with pytest.raises(Unsupported, match=r"clang version 9.0.1; 14 or newer"):
        ClangCompiler("x86_64")
    script("", version="gcc (GCC) 14.1.0")
    with pytest.raises(CompileError, match="named no version of clang"):
        ClangCompiler("x86_64")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(3)", "ended with 3: it said nothing"),
        ("sys.stderr.write('no such luck'); sys.exit(1)", "ended with 1: no such luck"),
        ("os.kill(os.getpid(), 11)", "ended with -11"),
        ("sys.stdout.write('hello')", "5 bytes that are no object"),
        ("sys.stdout.write('\\x7fELF' + 60 * 'x')", "64 bytes that are no object"),
        ("", "0 bytes that are no object"),
        ("sys.stderr.write('source0:99:1: error: what'); sys.exit(1)", "error: what"),
        ("sys.stderr.write('source7:1:1: error: what'); sys.exit(1)", "error: what"),
    ],
)
def test_tools_that_fail(script: Script, body: str, message: str) -> None:
    script(body)
    fails(message)


def test_a_tool_that_hangs(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script("time.sleep(60)")
    monkeypatch.setattr(clang, "_TIMEOUT", 0.3)
    fails("stopped after 0.3 seconds")


def fails(message: str) -> None:
    made = ClangCompiler("x86_64")
    for compile_it in (made.compile, lambda text: made.compile_many([text, text])):
        with pytest.raises(CompileError, match=message):
            compile_it("void f(void) {}\n")


def test_a_tool_that_vanishes(script: Script) -> None:
    path = script("")
    made = ClangCompiler("x86_64")
    path.unlink()
    with pytest.raises(CompileError, match="cannot be run"):
        made.compile("")


@pytest.mark.usefixtures("nothing_compiled")
def test_a_graph_of_many_kernels_starts_clang_a_few_times(
    compiler: ClangCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(DEV="CPU:CLANG"):
        name = Device["CPU:15"].device  # no other test opens this one
    values = np.arange(32, dtype=np.float32)
    x = Tensor(values, device=name).realize()
    wanted = [(x * (number + 1.0)).sum() for number in range(20)]
    runs = count_runs(monkeypatch)
    with Context(CPU_THREADS=2):
        wanted[0].realize(*wanted[1:])
    assert len(runs) == 2
    for number, tensor in enumerate(wanted):
        assert tensor.item() == (values * (number + 1)).sum()
