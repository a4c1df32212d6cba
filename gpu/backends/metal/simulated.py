"""What a simulated Mac compiles MSL with: clang, as Apple's compiler is on Macs alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gpu.compiler.targets.cpu import host_target
from gpu.compiler.toolchain.clang import ClangCompiler
from gpu.core.errors import CompileError


def compile_msl(source: str, options: Sequence[str] = ()) -> bytes | str:
    """A source as an object for this machine's CPU, or clang's words where it is refused.

    With ``-emit-llvm`` among `options`, which are clang's, it is bitcode. What has been compiled
    before is not compiled again. Raises Unsupported where clang is missing.
    """
    try:
        return _compiler(tuple(options)).compile_cached(source)
    except CompileError as error:
        return error.message


@cache
def _compiler(options: tuple[str, ...]) -> ClangCompiler:
    host = host_target()
    return ClangCompiler(host.name, host.features, "msl", options)
