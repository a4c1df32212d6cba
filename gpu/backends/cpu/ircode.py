"""Functions of LLVM's text, loaded into this process: what Python alone would be too slow for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpu.backends.cpu.native import c_library_addresses
from gpu.compiler.targets.cpu import host_architecture
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.llvm import LLVMCompiler
from gpu.core.errors import Unsupported
from gpu.core.objload import LoadedObject, load_object


def ir_compiler(architecture: str) -> Compiler:
    """LLVM; clang reads the same text where llvmlite is not installed."""
    try:
        return LLVMCompiler(architecture)
    except Unsupported:
        from gpu.compiler.toolchain.clang import ClangCompiler

        return ClangCompiler(architecture, language="ir")


def load_ir(source: Callable[[str], str], externals: Iterable[str] = ()) -> LoadedObject:
    """The code of the text that `source` gives for this machine's architecture.

    It may call functions of the C library that `externals` names. What is compiled is kept on disk.
    Raises Unsupported where there is no compiler.
    """
    architecture = host_architecture()
    lib = ir_compiler(architecture).compile_cached(source(architecture))
    return load_object(lib, c_library_addresses(externals))
