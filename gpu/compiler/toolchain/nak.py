"""Programs of NIR to NVIDIA machine code through Mesa's compiler NAK.

Mesa ends its process where it is given what it does not expect, by assertions in C and by panics in
Rust that cross into C. So it runs in a process of its own, which the first `compile` starts, and
where it loads the library. Functions: Mesa 25.2, src/nouveau/compiler/nak.h.
"""

from __future__ import annotations

import ctypes
import glob
import shutil
from ctypes import c_bool, c_char_p, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from gpu.autogen import mesa
from gpu.autogen.nv import classes
from gpu.compiler.nir_text import NirProgram, parse_nir
from gpu.compiler.toolchain.base import Compiler, run_on_file
from gpu.compiler.toolchain.helper import Helper, Kernel
from gpu.compiler.toolchain.mesalib import MesaLibrary, find_mesa, offset
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.compiler.toolchain.nirbuild import NirBuilder, declare
from gpu.core.errors import CompileError, Unsupported

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "nak_compiler_create": (c_void_p, (c_void_p,)),
    "nak_nir_options": (c_void_p, (c_void_p,)),
    "nak_preprocess_nir": (None, (c_void_p, c_void_p)),
    "nak_compile_shader": (c_void_p, (c_void_p, c_bool, c_void_p, c_int, c_void_p)),
    "nak_shader_bin_destroy": (None, (c_void_p,)),
    "nir_opt_idiv_const": (c_bool, (c_void_p, ctypes.c_uint)),
}
_MACHINES: Final = {
    # architecture: (class of its compute engine, warps of a multiprocessor); the latter from the
    # CUDA C++ Programming Guide, "Compute Capabilities"
    "sm_80": (classes.AMPERE_COMPUTE_A, 64),
    "sm_86": (classes.AMPERE_COMPUTE_B, 48),
    "sm_89": (classes.ADA_COMPUTE_A, 48),
    "sm_90": (classes.HOPPER_COMPUTE_A, 64),
    "sm_100": (classes.BLACKWELL_COMPUTE_A, 64),
    "sm_120": (classes.BLACKWELL_COMPUTE_B, 48),
}
_VERSION: Final = 2  # of what is done here around Mesa, for cache keys
_PARAMETER_BANK: Final = 0


class NakCompiler(Compiler):
    """Compiles programs of NIR for one architecture to a `NakBinary`."""

    def __init__(self, arch: str):
        """`arch` as NVIDIA's compilers call it: `sm_90`.

        Raises Unsupported where libtinymesa is not installed, and for an unknown architecture.
        """
        if arch not in _MACHINES:
            raise Unsupported(f"NAK knows no {arch!r} here, but {', '.join(_MACHINES)}")
        self._arch, self._library = arch, find_mesa()
        super().__init__(f"nak {_VERSION}|{self._library.identity}|{arch}", "nak")

    def prepare(self) -> None:
        """Starts the process that Mesa runs in."""
        _helper().start()

    def compile(self, source: str) -> bytes:
        """A `NakBinary`, packed.

        Raises ParseError for a text that is no NIR, CompileError with Mesa's words where NAK gives
        up or ends its process, Unsupported where the library cannot be loaded.
        """
        request = "\0".join((self._library.path, self._library.version, self._arch, source))
        name = source.partition(" block ")[0].removeprefix("nir ")
        kernel = Kernel("Mesa's compiler NAK", name, self._arch, source, ".nir")
        return _helper().compile(request.encode(), kernel)

    def disassemble(self, lib: bytes) -> str:
        """The machine code by nvdisasm where that is installed, else as Mesa writes it."""
        binary = NakBinary.unpack(lib)
        tools = [shutil.which("nvdisasm"), *glob.glob("/usr/local/cuda*/bin/nvdisasm")]
        tool = next(filter(None, tools), None)
        if tool is None:
            return binary.assembly
        return run_on_file([tool, "-b", f"SM{binary.sm}"], binary.code)


@cache
def _helper() -> Helper:
    """The process that Mesa runs in."""
    return Helper(_answer)


def _answer(request: bytes) -> bytes:
    path, version, arch, source = request.decode().split("\0", 3)
    nak = _Nak.of(MesaLibrary(path, version), arch)
    return nak.compile(parse_nir(source)).pack()


class _Shader(NirBuilder):
    """A kernel whose parameters are in constant bank 0, from its beginning on."""

    def parameter(self, at: int, bits: int) -> int:
        bank, place = self.constant(32, _PARAMETER_BANK), self.constant(32, at)
        return self.intrinsic("ldc_nv", bank, place, bits=bits, ALIGN_MUL=bits // 8)


class _Nak:
    """NAK for one architecture: a `nak_compiler`, which lives as long as the process."""

    def __init__(self, library: MesaLibrary, arch: str):
        self._functions = library.load()
        declare(self._functions, _SIGNATURES)
        self._arch, self._sm = arch, int(arch.removeprefix("sm_"))
        device = describe_device(arch)
        self._compiler = self._functions.nak_compiler_create(device)
        self._options = self._functions.nak_nir_options(self._compiler)

    @staticmethod
    @cache
    def of(library: MesaLibrary, arch: str) -> _Nak:
        """The one of an architecture."""
        return _Nak(library, arch)

    def compile(self, program: NirProgram) -> NakBinary:
        """Machine code. Raises CompileError where NAK gives up."""
        builder = _Shader(self._functions, self._options, program)
        try:
            shader = builder.build()
            self._functions.nir_opt_idiv_const(shader, 32)
            self._functions.nak_preprocess_nir(shader, self._compiler)
            made = self._functions.nak_compile_shader(shader, True, self._compiler, 0, None)
        finally:
            builder.free()
        if not made:
            raise CompileError(
                f"Mesa's compiler NAK cannot compile {program.name} for {self._arch}"
            )
        try:
            return self._read(program, made)
        finally:
            self._functions.nak_shader_bin_destroy(made)

    def _read(self, program: NirProgram, made: int) -> NakBinary:
        """What a `nak_shader_bin` holds."""
        info = made + offset("nak_shader_bin.info")
        compute = info + offset("nak_shader_info.__bindgen_anon_1")
        shared = compute + offset("nak_shader_info_cs.smem_size")
        size = c_uint32.from_address(made + offset("nak_shader_bin.code_size")).value
        code = c_uint64.from_address(made + offset("nak_shader_bin.code")).value
        text = c_char_p.from_address(made + offset("nak_shader_bin.asm_str")).value
        return NakBinary(
            sm=self._sm,
            registers=c_uint8.from_address(info + offset("nak_shader_info.num_gprs")).value,
            barriers=c_uint8.from_address(
                info + offset("nak_shader_info.num_control_barriers")
            ).value,
            block=program.block,
            shared=c_uint16.from_address(shared).value,
            local=c_uint32.from_address(info + offset("nak_shader_info.slm_size")).value,
            parameters=program.parameters,
            name=program.name,
            code=ctypes.string_at(code, size),
            assembly=(text or b"").decode(errors="replace"),
        )


def describe_device(arch: str) -> ctypes.Array[ctypes.c_char]:
    """The `nv_device_info` of an architecture: what NAK looks at of it."""
    compute, warps = _MACHINES[arch]
    device = ctypes.create_string_buffer(mesa.SIZES["nv_device_info"])
    at = ctypes.addressof(device)
    c_uint8.from_address(at + offset("nv_device_info.sm")).value = int(arch.removeprefix("sm_"))
    c_uint8.from_address(at + offset("nv_device_info.max_warps_per_mp")).value = warps
    c_uint16.from_address(at + offset("nv_device_info.cls_compute")).value = compute
    return device
