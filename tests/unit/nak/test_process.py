"""Mesa runs in a process of its own: what ends that does not end this one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gpu
from gpu.compiler.toolchain import helper, nak
from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.core.config import Context
from gpu.core.errors import CompileError, ParseError, Unsupported

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1])}
PATIENCE = 20.0  # seconds


def kernel(op: str, bits: int, name: str = "k") -> str:
    """Applies an operation to a number in memory."""
    return (
        f"nir {name} block 32 shared 0 scratch 0 parameters 8\n  %0 = param 64 (0)\n"
        f"  %1 = load_global {bits} %0 ({bits // 8}, 0)\n  %2 = {op} {bits} %1\n"
        f"  store_global %2, %0 ({bits // 8})\nend\n"
    )


GOOD = kernel("ineg", 32)
FAILS_ASSERTION = kernel("fneg", 8)
# The code generator has no addition of single bits.
PANICS = """nir one_bit block 32 shared 0 scratch 0 parameters 8
  %0 = param 64 (0)
  %1 = load_global 32 %0 (4, 0)
  %2 = local_invocation_id 32
  %3 = ilt 1 %1, %2
  %4 = iadd 1 %3, %3
  %5 = b2i32 32 %4
  store_global %5, %0 (4)
end
"""


@pytest.fixture
def compiler(need: Callable[[str], None]) -> NakCompiler:
    need("tinymesa")
    return NakCompiler("sm_90")


def child() -> int:
    """The number of the process that Mesa runs in."""
    process = nak._helper()._process
    assert process is not None
    return process.pid


def kept(error: CompileError) -> Path:
    found = re.search(r"kept in (\S+)$", error.message)
    assert found is not None, error.message
    return Path(found[1])


def test_a_failed_assertion_is_an_error_with_mesas_words(compiler: NakCompiler) -> None:
    wanted = r"NAK ended with SIGABRT at k for sm_90:\n(.*\n)*error: dest_bit_size == 16 "
    with pytest.raises(CompileError, match=wanted) as caught:
        compiler.compile(FAILS_ASSERTION)
    assert kept(caught.value).read_text() == FAILS_ASSERTION
    assert NakBinary.unpack(compiler.compile(GOOD)).name == "k", "the next one compiles"


def test_a_panic_is_an_error_with_its_message(compiler: NakCompiler) -> None:
    wanted = r"cannot compile one_bit for sm_90:\n.* panicked at .*\nunsupported bit size .*: 1\n"
    with pytest.raises(CompileError, match=wanted) as caught:
        compiler.compile(PANICS)
    assert kept(caught.value).read_text() == PANICS


def test_without_a_cache_nothing_is_kept(compiler: NakCompiler) -> None:
    with Context(CACHE=0), pytest.raises(CompileError) as caught:
        compiler.compile(PANICS)
    assert "kept" not in caught.value.message


def test_other_errors_keep_their_types(compiler: NakCompiler, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="line 2"):
        compiler.compile("nir k block 32 shared 0 scratch 0 parameters 8\n  nonsense\nend\n")
    with (
        Context(TINYMESA_LIBRARY=tmp_path / "none.so"),
        pytest.raises(Unsupported, match=r"none\.so cannot be loaded"),
    ):
        NakCompiler("sm_90").compile(GOOD)


def test_threads_get_their_own_answers(compiler: NakCompiler) -> None:
    sources = [kernel("ineg", 32, f"kernel_{number}") for number in range(12)]
    sources[5] = FAILS_ASSERTION

    def name(source: str) -> str:
        try:
            return NakBinary.unpack(compiler.compile(source)).name
        except CompileError as error:
            return error.message.split()[5]

    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(name, sources))
    assert names == [f"kernel_{n}" if n != 5 else "SIGABRT" for n in range(12)]


def test_an_interrupted_request_is_not_answered_later(
    compiler: NakCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int) -> bytes | None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(helper, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.compile(kernel("ineg", 32, "first"))
    assert NakBinary.unpack(compiler.compile(kernel("ineg", 32, "second"))).name == "second"


def test_ctrl_c_is_not_for_the_child(compiler: NakCompiler) -> None:
    compiler.compile(GOOD)
    assert os.getpgid(child()) == child() != os.getpgid(0)


def test_one_that_was_ended_while_idle_is_started_anew(compiler: NakCompiler) -> None:
    compiler.compile(GOOD)
    first = child()
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert NakBinary.unpack(compiler.compile(GOOD)).name == "k"
    assert child() != first


def test_a_forked_process_has_one_of_its_own(compiler: NakCompiler) -> None:
    wanted, first = compiler.compile(GOOD), child()
    forked = os.fork()
    if not forked:
        same = compiler.compile(GOOD) == wanted and child() != first
        nak._helper().close()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert compiler.compile(GOOD) == wanted
    assert child() == first


def test_one_that_cannot_be_started_is_unsupported(
    compiler: NakCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    nak._helper().close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unsupported, match=r"cannot be started: '/nowhere/python': No such file"):
        compiler.compile(GOOD)


CODE = """
from gpu.compiler.toolchain import nak
nak.NakCompiler("sm_90").compile({source!r})
print(nak._helper()._process.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"])
def test_it_ends_with_the_process_that_started_it(compiler: NakCompiler, end: str) -> None:
    code = CODE.format(source=GOOD, end=end)
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.stderr == ""
    left = int(done.stdout)
    deadline = time.monotonic() + PATIENCE
    while _runs(left):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.01)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
