"""Mesa runs in a process of its own: what ends that does not end this one.

What holds for any such process is in `test_llvm_process.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.core.config import Context
from gpu.core.errors import CompileError, ParseError, Unsupported


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
