"""Libraries of kernels, functions, and pipeline states.

MTLCompileOptions, MTLLibrary, MTLFunction and MTLComputePipelineState (Apple, "Metal"). A source is
compiled when the library is made, so that its errors come there.
"""

from __future__ import annotations

from typing import Final

from gpu.sim.metal.base import Gpu, Owned
from gpu.sim.metal.chips import MOST_THREADS, SIMD_WIDTH, THREADGROUP_BYTES
from gpu.sim.metal.foundation import NSArray, NSError, NSString
from gpu.sim.metal.instrument import Program, translate
from gpu.sim.metal.methods import Misuse, method
from gpu.sim.metal.objc import Made, Runtime
from gpu.sim.metal.source import Kernel, SourceError, kernels_of
from gpu.sim.metal.stdlib import MARK
from gpu.sim.metal.templates import prepared

CLANG_OPTIONS: Final = ("-emit-llvm", "-Xclang", "-disable-llvm-passes")
GENERIC: Final = (
    *("-Xclang", "-cl-ext=+__opencl_c_generic_address_space"), "-Wno-c++11-narrowing",
)  # fmt: skip
"""Without pointers to any address space clang cannot make temporary objects of classes."""
LIBRARY_DOMAIN: Final = "MTLLibraryErrorDomain"
COMPUTE_DOMAIN: Final = "AGXMetalG13X"
_COMPILE_FAILURE: Final = 3  # MTLLibraryError
_PIPELINE_FAILURE: Final = 3
_MATH_MODES: Final = (0, 1, 2)  # safe, relaxed, fast


class MTLCompileOptions(Made):
    """How a source is compiled.

    Attributes:
        fast_math: whether arithmetic may differ from IEEE 754; it may, unless told otherwise.
    """

    def __init__(self, runtime: Runtime):
        super().__init__(runtime)
        self._mode = 2
        self._functions = 0
        self._version = (3 << 16) + 2

    @property
    def fast_math(self) -> bool:
        """Whether arithmetic may differ from IEEE 754."""
        return self._mode == 2

    @method("setFastMathEnabled:", "v", "B")
    def set_fast_math(self, enabled: bool) -> None:
        """Fast, or safe."""
        self._mode = 2 if enabled else 0

    @method("fastMathEnabled", "B")
    def get_fast_math(self) -> bool:
        """Whether it is fast."""
        return self.fast_math

    @method("setMathMode:", "v", "q")
    def set_math_mode(self, mode: int) -> None:
        """0 safe, 1 relaxed, 2 fast."""
        if mode not in _MATH_MODES:
            raise Misuse("math-mode", f"{mode} is no MTLMathMode")
        self._mode = mode

    @method("mathMode", "q")
    def math_mode(self) -> int:
        """0 safe, 1 relaxed, 2 fast."""
        return self._mode

    @method("setMathFloatingPointFunctions:", "v", "q")
    def set_functions(self, kind: int) -> None:
        """0 fast, 1 precise; here all are precise."""
        if kind not in (0, 1):
            raise Misuse("math-mode", f"{kind} is no MTLMathFloatingPointFunctions")
        self._functions = kind

    @method("mathFloatingPointFunctions", "q")
    def functions(self) -> int:
        """0 fast, 1 precise."""
        return self._functions

    @method("setLanguageVersion:", "v", "Q")
    def set_language_version(self, version: int) -> None:
        """Major version in the high 16 bits, minor one in the low."""
        if not (1 <= version >> 16 <= 4 and version & 0xFFFF <= 4):
            raise Misuse("language-version", f"{version:#x} is no MTLLanguageVersion")
        self._version = version

    @method("languageVersion", "Q")
    def language_version(self) -> int:
        """Of MSL."""
        return self._version


class Library(Owned):
    """Kernels of one source.

    Attributes:
        kernels: by name.
        program: their code.
    """

    def __init__(self, device: Gpu, kernels: dict[str, Kernel], program: Program):
        super().__init__(device, device)
        self.kernels = kernels
        self.program = program

    @method("functionNames", "@")
    def function_names(self) -> NSArray:
        """The names of its kernels."""
        return NSArray(self.runtime, [NSString(self.runtime, each) for each in self.kernels])

    @method("newFunctionWithName:", "@", "NSString")
    def new_function(self, name: NSString) -> Function | None:
        """A kernel; nil where there is none of that name."""
        kernel = self.kernels.get(name.text)
        if lacking := self.program.lacking(name.text):
            raise Misuse(
                "function-constants",
                f"{name.text} uses {', '.join(lacking)}, whose value nobody gave: this model has no"
                " functions that are specialised",
            )
        return None if kernel is None else Function(self, kernel)


class Function(Owned):
    """A kernel of a library."""

    def __init__(self, library: Library, kernel: Kernel):
        super().__init__(library.device, library)
        self.library = library
        self.kernel = kernel

    @method("name", "@")
    def name(self) -> NSString:
        """As the source calls it."""
        return NSString(self.runtime, self.kernel.name)

    @method("functionType", "Q")
    def function_type(self) -> int:
        """3: a kernel."""
        return 3


class ComputePipelineState(Owned):
    """A kernel, ready to run.

    Attributes:
        kernel: what it is given.
        entry: its code, as `gpu/sim/metal/threads.py` calls it.
        most_threads: of a threadgroup.
        is_indirect: whether indirect command buffers may have it.
        static_bytes: of threadgroup memory that the kernel itself declares.
    """

    def __init__(self, function: Function, is_indirect: bool = False, most_threads: int = 0):
        super().__init__(function.device, function)
        self.kernel = function.kernel
        self.program = function.library.program
        self.static_bytes = self.program.static_bytes(self.kernel.name)
        self.most_threads = most_threads or self.kernel.most_threads or MOST_THREADS
        self.is_indirect = is_indirect

    @method("maxTotalThreadsPerThreadgroup", "Q")
    def max_total_threads(self) -> int:
        """Threads of a threadgroup at most."""
        return self.most_threads

    @method("supportIndirectCommandBuffers", "B")
    def supports_indirect(self) -> bool:
        """Whether indirect command buffers may have it."""
        return self.is_indirect

    @method("threadExecutionWidth", "Q")
    def thread_execution_width(self) -> int:
        """Threads of a SIMD-group."""
        return SIMD_WIDTH

    @method("staticThreadgroupMemoryLength", "Q")
    def static_threadgroup_memory(self) -> int:
        """Bytes of threadgroup memory that the kernel itself declares."""
        return self.static_bytes


class MTLComputePipelineDescriptor(Made):
    """What a new pipeline is made of.

    Attributes:
        function: its kernel.
        is_indirect: whether indirect command buffers may have it.
        most_threads: of a threadgroup; 0 leaves it to the kernel.
    """

    def __init__(self, runtime: Runtime):
        super().__init__(runtime)
        self.function: Function | None = None
        self.is_indirect = False
        self.most_threads = 0

    def ending(self) -> None:
        """It lets the function go."""
        self.set_function(None)

    @method("setComputeFunction:", "v", "Function?")
    def set_function(self, function: Function | None) -> None:
        """The kernel."""
        if function is not None:
            self.runtime.retain(function)
        if self.function is not None:
            self.runtime.release(self.function)
        self.function = function

    @method("setSupportIndirectCommandBuffers:", "v", "B")
    def set_indirect(self, supports: bool) -> None:
        """Whether indirect command buffers may have it."""
        self.is_indirect = supports

    @method("setMaxTotalThreadsPerThreadgroup:", "v", "Q")
    def set_most_threads(self, most: int) -> None:
        """How many threads of a threadgroup it takes."""
        if most > MOST_THREADS:
            raise Misuse("threadgroup-size", f"{most} threads a threadgroup: {MOST_THREADS}")
        self.most_threads = most


def new_library(
    device: Gpu, source: NSString, options: MTLCompileOptions | None, error: int
) -> Library | None:
    """Compiles a source; where it is refused nil, and an error."""
    try:
        text = prepared(device.compile_msl, source.text)
    except SourceError as refused:
        _fail(device, error, str(refused))
        return None
    options_of_clang = (*CLANG_OPTIONS, *(GENERIC if MARK in text else ()))
    compiled = device.compile_msl(text, options_of_clang)
    if isinstance(compiled, str):
        _fail(device, error, compiled)
        return None
    try:
        kernels = kernels_of(text.rpartition(MARK)[2])
    except SourceError as refused:
        _fail(device, error, str(refused))
        return None
    for kernel in kernels.values():
        if kernel.most_threads > MOST_THREADS:
            text = f"{kernel.name}: max_total_threads_per_threadgroup {kernel.most_threads}"
            _fail(device, error, text)
            return None
    fast = options is None or options.fast_math
    return Library(device, kernels, translate(compiled, kernels, fast))


def new_pipeline(
    device: Gpu,
    function: Function,
    error: int,
    is_indirect: bool = False,
    most_threads: int = 0,
) -> ComputePipelineState | None:
    """A pipeline state; where the device cannot run the kernel nil, and an error."""
    if function.device is not device:
        raise Misuse("other-device", f"{function.told} is of another device")
    made = ComputePipelineState(function, is_indirect, most_threads)
    if made.static_bytes > THREADGROUP_BYTES:
        text = (
            f"Threadgroup memory size ({made.static_bytes}) exceeds the maximum threadgroup memory"
            f" allowed ({THREADGROUP_BYTES})"
        )
        device.runtime.retain(made)
        device.runtime.release(made)
        device.runtime.give(error, NSError(device.runtime, COMPUTE_DOMAIN, _PIPELINE_FAILURE, text))
        return None
    return made


def _fail(device: Gpu, error: int, text: str) -> None:
    told = f"program_source:\n{text}"
    device.runtime.give(error, NSError(device.runtime, LIBRARY_DOMAIN, _COMPILE_FAILURE, told))


CLASSES = (MTLCompileOptions, MTLComputePipelineDescriptor, Library, Function, ComputePipelineState)
