"""LLVM runs in a process of its own: what ends that is an error, and the next kernel compiles."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gpu
from gpu import Tensor
from gpu.compiler.toolchain import helper, llvm
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.compiler.toolchain.llvm import LLVMCompiler, emit_object, llvmlite_version
from gpu.compiler.toolchain.llvm_emit import Machine
from gpu.core.config import Context
from gpu.core.errors import CompileError, Unsupported

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1])}
PATIENCE = 20.0  # seconds
CPU, AMD = LLVMCompiler("x86_64"), AMDCompiler("gfx1100")
GOOD = "define void @good() {\n  ret void\n}\n"
# Division of integers this wide is written out instruction by instruction, which takes minutes.
SLOW = """define void @slow(ptr %p) {
  %a = load i8388607, ptr %p
  %b = udiv i8388607 %a, 3
  store i8388607 %b, ptr %p
  ret void
}
"""
LDS = """@memory = internal addrspace(3) global [131072 x i8] poison
define amdgpu_kernel void @k(i32 %i) {
  %p = getelementptr i8, ptr addrspace(3) @memory, i32 %i
  store volatile i8 1, ptr addrspace(3) %p
  ret void
}
"""
ASSEMBLY = "define void @k() {{\n  call void asm sideeffect {}\n  ret void\n}}\n"
REGISTERS = f'''define void @k() {{
  %r = call {{{", ".join(["i64"] * 17)}}} asm sideeffect "", "{",".join(["=r"] * 17)}"()
  ret void
}}
'''


@pytest.fixture(autouse=True)
def _needs(need: Callable[[str], None], tmp_path: Path) -> Iterator[None]:
    need("llvmlite")
    with Context(CACHE_DIR=tmp_path):
        yield


def child() -> int:
    """The number of the process that LLVM runs in."""
    process = llvm._helper()._process
    assert process is not None
    return process.pid


# Each of these has LLVM end its process.
FATAL = {
    "LDS": (AMD, LDS, r"local memory \(131072\) exceeds limit \(65536\) in function 'k'"),
    "selection": (
        AMD,
        "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n"
        "define amdgpu_kernel void @k(ptr %p) {\n"
        "  %a = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n  store i32 %a, ptr %p\n  ret void\n}\n",
        r"Cannot select: .*nvvm",
    ),
    "registers": (AMD, ASSEMBLY.format('"", "{v300}"(i32 1)'), "couldn't allocate input reg"),
    "convention": (AMD, "define x86_fastcallcc void @k() {\n  ret void\n}\n", "calling convention"),
    "no assembler": (CPU, ASSEMBLY.format('"nonsense %rax", ""()'), "Inline asm not supported"),
    "registers of a CPU": (CPU, REGISTERS, "requires more registers than available"),
    "constraint": (CPU, ASSEMBLY.format('"", "{nope}"(i32 1)'), "couldn't allocate input reg"),
    "no SSE": (
        LLVMCompiler("x86_64", "-sse2,-sse"),
        "define double @k(double %a) {\n  %b = fadd double %a, %a\n  ret double %b\n}\n",
        "SSE register return with SSE disabled",
    ),
    "32 bits": (
        LLVMCompiler("x86_64", "-64bit"),
        "define void @k() {\n  ret void\n}\n",
        "64-bit code requested on a subtarget that doesn't support it",
    ),
}


def kept(error: CompileError) -> Path:
    found = re.search(r"kept in (\S+)$", error.message)
    assert found is not None, error.message
    return Path(found[1])


@pytest.mark.parametrize("name", FATAL)
def test_fatal_errors_have_llvms_words(name: str) -> None:
    compiler, source, words = FATAL[name]
    with pytest.raises(CompileError, match=f"(?s)LLVM .* at k for .*{words}") as caught:
        compiler.compile(source)
    print(caught.value)
    assert kept(caught.value).read_text() == source
    assert CPU.compile(GOOD).startswith(b"\x7fELF"), "the next one compiles"


def test_errors_in_the_text_name_the_line_and_end_nothing() -> None:
    CPU.compile(GOOD)
    first = child()
    with pytest.raises(CompileError, match=r"line 2: %x = add i32 1, %y"):
        CPU.compile("define void @f() {\n%x = add i32 1, %y\nret void\n}\n")
    with Context(CACHE=0), pytest.raises(CompileError) as caught:
        CPU.compile("nonsense")
    assert "kept" not in caught.value.message
    assert child() == first


@pytest.mark.usefixtures("nothing_compiled")
def test_tensors_go_on_after_a_kernel_that_ends_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(compiler: LLVMCompiler, source: str) -> bytes:
        asm = '  call void asm sideeffect "nonsense", ""()\n'
        return compile_it(compiler, source.replace("  ret void\n", asm + "  ret void\n"))

    compile_it = LLVMCompiler.compile
    draw = np.random.default_rng(3).normal(size=(5, 3)).astype(np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(LLVMCompiler, "compile", spoil)
        with pytest.raises(CompileError, match="Inline asm not supported") as caught:
            (Tensor(draw, device="CPU") * 3.25 - 7).realize()
    assert any("test_llvm_process.py" in note for note in caught.value.__notes__)
    np.testing.assert_allclose((Tensor(draw, device="CPU") * 3.25 - 7).numpy(), draw * 3.25 - 7)


def test_a_thread_with_little_stack_compiles() -> None:
    chain = "".join(f"  %x{i + 1} = fadd float %x{i}, {i % 7}.0\n" for i in range(300))
    source = f"define float @k(float %x0) {{\n{chain}  ret float %x300\n}}\n"
    made: list[bytes] = []
    before = threading.stack_size(1 << 15)  # LLVM needs more: in this process that is a SIGSEGV
    try:
        thread = threading.Thread(target=lambda: made.append(CPU.compile(source)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert made == [CPU.compile(source)]


def test_threads_get_their_own_answers() -> None:
    sources = [GOOD.replace("good", f"kernel_{number}") for number in range(16)]
    sources[3] = FATAL["registers of a CPU"][1]
    sources[9] = FATAL["no assembler"][1]

    def outcome(source: str) -> str:
        try:
            found = re.search(rb"kernel_\d+", CPU.compile(source))
        except CompileError as error:
            return "fatal" if "at k for" in error.message else error.message
        assert found is not None
        return found[0].decode()

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(outcome, sources))
    assert outcomes == ["fatal" if n in (3, 9) else f"kernel_{n}" for n in range(16)]


def compiling(outcomes: list[BaseException]) -> threading.Thread:
    """A thread that compiles what takes minutes; returns when LLVM is at it."""

    def compile_slowly() -> None:
        try:
            CPU.compile(SLOW)
        except BaseException as error:  # it is what is looked at
            outcomes.append(error)

    CPU.compile(GOOD)
    before = _ticks(child())
    thread = threading.Thread(target=compile_slowly)
    thread.start()
    wait_for(lambda: _ticks(child()) > before + 10)
    return thread


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ticks(process: int) -> int:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_one_that_is_killed_at_work_is_an_error() -> None:
    outcomes: list[BaseException] = []
    thread = compiling(outcomes)
    os.kill(child(), signal.SIGKILL)
    thread.join()
    (error,) = outcomes
    assert isinstance(error, CompileError)
    assert "LLVM ended with SIGKILL at slow for x86_64-unknown-linux-gnu, and said nothing" in str(
        error
    )
    assert kept(error).read_text() == SLOW
    assert CPU.compile(GOOD).startswith(b"\x7fELF")


def test_one_that_is_killed_while_idle_is_started_anew() -> None:
    CPU.compile(GOOD)
    first = child()
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert CPU.compile(GOOD).startswith(b"\x7fELF")
    assert child() != first


def test_a_forked_process_has_one_of_its_own() -> None:
    wanted, first = CPU.compile(GOOD), child()
    assert in_fork(lambda: CPU.compile(GOOD) == wanted and child() != first) == 0
    assert CPU.compile(GOOD) == wanted
    assert child() == first


def test_a_process_forked_while_another_thread_compiles_can_compile() -> None:
    wanted = CPU.compile(GOOD)
    outcomes: list[BaseException] = []
    thread = compiling(outcomes)
    first = child()
    try:
        assert in_fork(lambda: CPU.compile(GOOD) == wanted) == 0
        assert child() == first and thread.is_alive(), "the fork ended what is not its own"
    finally:
        os.kill(first, signal.SIGKILL)
        thread.join()


def in_fork(check: Callable[[], bool]) -> int:
    """The exit code of a forked process, 0 where the check holds there."""
    forked = os.fork()
    if not forked:
        code = 1
        try:
            code = 0 if check() else 1
            llvm._helper().close()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


def test_an_interrupted_request_is_not_answered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> bytes | None:
        raise KeyboardInterrupt

    wanted = CPU.compile(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(helper, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            CPU.compile(GOOD.replace("good", "other"))
    assert CPU.compile(GOOD) == wanted


def test_starting_early_is_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    llvm._helper().close()
    CPU.prepare()
    first = child()
    CPU.prepare()
    assert CPU.compile(GOOD).startswith(b"\x7fELF") and child() == first
    llvm._helper().close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    CPU.prepare()  # says nothing: it may never be needed


@pytest.mark.parametrize(
    ("executable", "reason"),
    [
        ("/nowhere/python", "No such file or directory"),
        ("", "it is no Python interpreter"),
        ("/bin/false", "ended with code 1"),
    ],
)
def test_one_that_cannot_be_started_is_unsupported(
    executable: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llvm._helper().close()
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(Unsupported, match=f"cannot be started: .*{reason}.*LLVM_IN_PROCESS=1"):
        CPU.compile(GOOD)
    with Context(LLVM_IN_PROCESS=1):
        assert CPU.compile(GOOD).startswith(b"\x7fELF")
        with pytest.raises(CompileError, match="line 1: nonsense"):
            CPU.compile("nonsense")


def test_machines_are_told_by_what_they_are() -> None:
    with pytest.raises(CompileError, match="riscv128"):
        emit_object(GOOD, Machine("riscv128-unknown", "", "", 2))
    assert llvmlite_version() in CPU.key


def program(code: str) -> subprocess.Popen[str]:
    """A program that may use `child`, `CPU`, `GOOD` and `SLOW`; what it prints is read line by
    line.
    """
    given = f"""
        from gpu.compiler.toolchain import llvm
        CPU, GOOD, SLOW = llvm.LLVMCompiler("x86_64"), {GOOD!r}, {SLOW!r}
        CPU.compile(GOOD)
        print(llvm._helper()._process.pid, flush=True)
    """
    text = textwrap.dedent(given) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        process_group=0,
    )


@pytest.mark.parametrize(
    "end", ["", "import os; os.kill(os.getpid(), 9)", "import os; os._exit(3)"]
)
def test_it_ends_with_the_process_that_started_it(end: str) -> None:
    with program(end) as parent:
        output, errors = parent.communicate()
    assert errors == ""
    wait_for(lambda: not _runs(int(output)))


def test_it_ends_at_work_when_the_process_that_started_it_is_killed() -> None:
    with program("CPU.compile(SLOW)") as parent:
        assert parent.stdout is not None
        left = int(parent.stdout.readline())
        before = _ticks(left)
        wait_for(lambda: _ticks(left) > before + 10)
        parent.kill()
    wait_for(lambda: not _runs(left))


def test_ctrl_c_ends_a_compile_and_the_next_one_works() -> None:
    code = """
        try:
            CPU.compile(SLOW)
        except KeyboardInterrupt:
            print("interrupted", CPU.compile(GOOD)[1:4])
    """
    with program(code) as parent:
        assert parent.stdout is not None
        at_work = int(parent.stdout.readline())
        before = _ticks(at_work)
        wait_for(lambda: _ticks(at_work) > before + 10)
        assert os.getpgid(at_work) == at_work, "Ctrl-C is for the program alone"
        os.killpg(parent.pid, signal.SIGINT)
        output, errors = parent.communicate()
    assert (output, errors, parent.returncode) == ("interrupted b'ELF'\n", "", 0)
    wait_for(lambda: not _runs(at_work))


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
