"""Programs of NIR to machine code of Adreno GPUs through Mesa's compiler ir3, and that as text.

As NAK does, ir3 ends its process where it is given what it does not expect, so that it runs in one
of its own. Functions: Mesa 25.2, src/freedreno/ir3/ir3_shader.h, ir3_compiler.h and ir3_nir.h;
turnip's `tu_shader.cc` shows in which order they are called.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    c_bool,
    c_char_p,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any, Final

from gpu.autogen import mesa
from gpu.compiler.nir_text import NirProgram, parse_nir
from gpu.compiler.toolchain.base import Compiler
from gpu.compiler.toolchain.helper import Helper, Kernel
from gpu.compiler.toolchain.mesalib import MesaLibrary, find_mesa, offset
from gpu.compiler.toolchain.nirbuild import NirBuilder, declare
from gpu.core.errors import CompileError, Unsupported
from gpu.core.ir3binary import NO_REGISTER, VECTOR, Ir3Binary

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "fd_dev_info_raw": (c_void_p, (c_void_p,)),
    "ir3_compiler_create": (c_void_p, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "ir3_get_compiler_options": (c_void_p, (c_void_p,)),
    "ir3_const_alloc": (None, (c_void_p, c_int, c_uint32, c_uint32)),
    "ir3_finalize_nir": (None, (c_void_p, c_void_p, c_void_p)),
    "ir3_shader_from_nir": (c_void_p, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "ir3_shader_create_variant": (c_void_p, (c_void_p, c_void_p, c_bool)),
    "ir3_shader_destroy": (None, (c_void_p,)),
    "nir_opt_constant_folding": (c_bool, (c_void_p,)),
    "nir_opt_cse": (c_bool, (c_void_p,)),
    "nir_opt_load_store_vectorize": (c_bool, (c_void_p, c_void_p)),
    "ir3_isa_disasm": (None, (c_char_p, c_int, c_void_p, c_void_p)),
    "ralloc_free": (None, (c_void_p,)),
}
_VERSION: Final = 2  # of what is done here around Mesa, for cache keys
_WORD: Final = 4
_MOST_BRANCHES: Final = 64
_MOST_BITS: Final = 32  # of what one register holds
_MOST_COMPONENTS: Final = 4
_UPLOAD: Final = 4  # constants that are loaded together (const_upload_unit)
_MOST_PARAMETERS: Final = 192 * VECTOR  # bytes: of 256 constants, what is not left to ir3 itself


class Ir3Compiler(Compiler):
    """Compiles programs of NIR for one chip to an `Ir3Binary`."""

    def __init__(self, chip: str):
        """`chip` as in `a630`.

        Raises Unsupported where libtinymesa is not installed, and for an unknown chip.
        """
        from gpu.compiler.targets.adreno import check_chip  # needs numpy: the process has none

        check_chip(chip)
        self._chip, self._library = chip, find_mesa()
        super().__init__(f"ir3 {_VERSION}|{self._library.identity}|{chip}", "ir3")

    def prepare(self) -> None:
        """Starts the process that Mesa runs in."""
        _helper().start()

    def compile(self, source: str) -> bytes:
        """An `Ir3Binary`, packed.

        Raises ParseError for a text that is no NIR, CompileError with Mesa's words where ir3 gives
        up or ends its process, Unsupported where the library cannot be loaded.
        """
        name = source.partition(" block ")[0].removeprefix("nir ")
        kernel = Kernel("Mesa's compiler ir3", name, self._chip, source, ".nir")
        return self._ask("compile", kernel)

    def disassemble(self, lib: bytes) -> str:
        """The machine code as Mesa writes it.

        Raises FormatError for what `compile` did not give, else as `compile`.
        """
        binary = Ir3Binary.unpack(lib)
        code = binary.code.hex()
        kernel = Kernel("Mesa's disassembler of ir3", binary.name, self._chip, code, ".hex")
        return self._ask("disassemble", kernel).decode()

    def _ask(self, what: str, kernel: Kernel) -> bytes:
        words = (self._library.path, self._library.version, self._chip, what, kernel.source)
        return _helper().compile("\0".join(words).encode(), kernel)


@cache
def _helper() -> Helper:
    """The process that Mesa runs in."""
    return Helper(_answer)


def _answer(request: bytes) -> bytes:
    path, version, chip, what, source = request.decode().split("\0", 4)
    ir3 = _Ir3.of(MesaLibrary(path, version), chip)
    if what == "compile":
        return ir3.compile(parse_nir(source)).pack()
    return ir3.disassemble(bytes.fromhex(source)).encode()


class _Shader(NirBuilder):
    """A kernel whose parameters are constants, from the first one on."""

    def alu(self, name: str, *args: int) -> int:
        # A bool in 16 bits that goes both to 32 and to 8 bits ends ir3 (ir3_cf.c makes it one of
        # 32 then). Mesa finds any shorter way around it to be the same conversion.
        if name != "b2i8":
            return super().alu(name, *args)
        one, two = (self.constant(32, value) for value in (1, 2))
        chosen = super().alu("bcsel", *args, two, one)
        return super().alu("u2u8", super().alu("ushr", chosen, one))

    def parameter(self, at: int, bits: int) -> int:
        zero = self.constant(32, 0)
        words = [
            self.intrinsic("load_const_ir3", zero, bits=32, BASE=(at + byte) // _WORD)
            for byte in range(0, bits // 8, _WORD)
        ]
        return words[0] if bits == 32 else self.alu("pack_64_2x32_split", *words)


class _Ir3:
    """ir3 for one chip: an `ir3_compiler`, which lives as long as the process."""

    def __init__(self, library: MesaLibrary, chip: str):
        self._library = library.load()
        declare(self._library, _SIGNATURES)
        self._chip, self._number = chip, int(chip.removeprefix("a"))
        # Mesa keeps both addresses.
        self._device = _Record("fd_dev_id", gpu_id=self._number)
        self._info = self._library.fd_dev_info_raw(self._device.at)
        if not self._info:
            raise Unsupported(f"this libtinymesa knows no Adreno {self._number}")
        options = _Record(
            "ir3_compiler_options",
            disable_cache=1,
            bindless_fb_read_descriptor=-1,
            bindless_fb_read_slot=-1,
        )
        create = self._library.ir3_compiler_create
        self._compiler = create(None, self._device.at, self._info, options.at)
        self._options = self._library.ir3_get_compiler_options(self._compiler)

    @staticmethod
    @cache
    def of(library: MesaLibrary, chip: str) -> _Ir3:
        """The one of a chip."""
        return _Ir3(library, chip)

    def compile(self, program: NirProgram) -> Ir3Binary:
        """Machine code. Raises CompileError where ir3 gives up."""
        if program.parameters > _MOST_PARAMETERS:
            raise CompileError(
                f"{program.name} has {program.parameters:,} bytes of parameters, {self._chip} has"
                f" constants for {_MOST_PARAMETERS:,}: use fewer tensors at once"
            )
        builder, library = _Shader(self._library, self._options, program), self._library
        try:
            nir = builder.build()
            self._join_accesses(nir)
            library.ir3_finalize_nir(self._compiler, _Record("ir3_shader_nir_options").at, nir)
        except BaseException:
            builder.free()
            raise
        options = self._shader_options(program)
        shader = library.ir3_shader_from_nir(self._compiler, nir, options.at, None)
        try:
            key = _Record("ir3_shader_key")
            variant = library.ir3_shader_create_variant(shader, key.at, False)
            if not variant:
                raise CompileError(
                    f"Mesa's compiler ir3 cannot compile {program.name} for {self._chip}"
                )
            try:
                return self._read(program, _Variant(variant))
            finally:
                library.ralloc_free(variant)
        finally:
            library.ir3_shader_destroy(shader)  # and the NIR, which is the shader's now

    def disassemble(self, code: bytes) -> str:
        """Instructions as text, by Mesa's decoder; what it does not know is marked as an error."""
        options = _Record("isa_decode_options", gpu_id=self._number, show_errors=1, max_errors=-1)
        system = ctypes.CDLL(None)
        declare(system, _STREAMS)
        at, size = c_void_p(), c_size_t()
        stream = system.open_memstream(ctypes.byref(at), ctypes.byref(size))
        self._library.ir3_isa_disasm(code, len(code), stream, options.at)
        system.fclose(stream)
        try:
            return ctypes.string_at(at.value or 0, size.value).decode(errors="replace")
        finally:
            system.free(at)

    def _join_accesses(self, nir: int) -> None:
        """Makes one access of neighbours in global memory, which ir3 does for others by itself."""
        options = _Record(
            "nir_load_store_vectorize_options",
            callback=ctypes.cast(_MAY_JOIN, c_void_p).value or 0,
            modes=mesa.CONSTANTS["nir_var_mem_global"],
        )
        self._library.nir_opt_constant_folding(nir)
        self._library.nir_opt_cse(nir)  # or their addresses have nothing in common
        self._library.nir_opt_load_store_vectorize(nir, options.at)

    def _shader_options(self, program: NirProgram) -> _Record:
        """Waves of any size, and constants that are kept for parameters."""
        either, words = mesa.CONSTANTS["IR3_SINGLE_OR_DOUBLE"], program.parameters // _WORD
        options = _Record(
            "ir3_shader_options",
            api_wavesize=either,
            real_wavesize=either,
            push_consts_type=mesa.CONSTANTS["IR3_PUSH_CONSTS_PER_STAGE"],
            push_consts_dwords=words,
        )
        kept = -(-program.parameters // (VECTOR * _UPLOAD)) * _UPLOAD
        self._library.ir3_const_alloc(
            options.at + offset("ir3_shader_options.const_allocs"),
            mesa.CONSTANTS["IR3_CONST_ALLOC_PUSH_CONSTS"],
            kept,
            _UPLOAD,
        )
        return options

    def _read(self, program: NirProgram, variant: _Variant) -> Ir3Binary:
        """What an `ir3_shader_variant` holds."""
        state = variant.number("const_state")
        first = state + offset("ir3_const_state.allocs.max_const_offset_vec4")
        for member in ("num_driver_params", "ubo_state.num_enabled"):
            at = state + offset(f"ir3_const_state.{member}")
            if wanted := c_uint32.from_address(at).value:
                raise CompileError(
                    f"{program.name}: ir3 wants {wanted} of {member}, which no launch gives it"
                )
        immediates_at = c_uint32.from_address(first).value
        constants = variant.number("constlen")
        # What is behind the last constant that is read needs not be loaded.
        room = max(constants - immediates_at, 0) * VECTOR
        words = min(variant.number("imm_state.count") * _WORD, room)
        return Ir3Binary(
            chip=self._number,
            full=variant.number("info.max_reg") + 1,
            half=variant.number("info.max_half_reg") + 1,
            # As a5xx and later count it (ir3_shader_branchstack_hw).
            branches=-(-min(variant.number("branchstack"), _MOST_BRANCHES) // 2),
            constants=constants,
            immediates_at=immediates_at,
            block=program.block,
            shared=variant.number("shared_size"),
            private=variant.number("pvtmem_size"),
            group_at=variant.register("SYSTEM_VALUE_WORKGROUP_ID"),
            thread_at=variant.register("SYSTEM_VALUE_LOCAL_INVOCATION_ID"),
            ubos=c_uint32.from_address(state + offset("ir3_const_state.num_ubos")).value,
            uavs=variant.number("num_uavs"),
            samplers=variant.number("num_samp"),
            double=variant.number("info.double_threadsize"),
            merged=variant.number("mergedregs"),
            early=variant.number("early_preamble"),
            per_wave=variant.number("pvtmem_per_wave"),
            parameters=program.parameters,
            name=program.name,
            code=ctypes.string_at(variant.number("bin"), variant.number("info.size")),
            immediates=ctypes.string_at(variant.number("imm_state.values"), words),
        )


_STREAMS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "open_memstream": (c_void_p, (c_void_p, c_void_p)),
    "fclose": (c_int, (c_void_p,)),
    "free": (None, (c_void_p,)),
}


_SIGNED: Final[dict[int, Any]] = {1: c_int8, 4: c_int32, 8: c_int64}
_UNSIGNED: Final[dict[int, Any]] = {1: c_uint8, 2: c_uint16, 4: c_uint32, 8: c_uint64}


def _may_join(
    align: int, start: int, bits: int, count: int, hole: int, low: int, high: int, data: int
) -> bool:
    """Whether ldg and stg move so many numbers at once, as ir3 says of its own kinds of memory."""
    del low, high, data
    if hole > 0 or bits > _MOST_BITS or count > _MOST_COMPONENTS:
        return False
    return align >= bits // 8 and start % (bits // 8) == 0


# nir_should_vectorize_mem_func, which Mesa calls as long as the process lives
_MAY_JOIN: Final = ctypes.CFUNCTYPE(
    c_bool, c_uint32, c_uint32, c_uint32, c_uint32, c_int64, c_void_p, c_void_p, c_void_p
)(_may_join)


class _Record:
    """A structure of Mesa's, of zeros but for some members; `at` is its address."""

    def __init__(self, structure: str, **members: int):
        self._memory = ctypes.create_string_buffer(mesa.SIZES[structure])
        self.at = ctypes.addressof(self._memory)
        for member, value in members.items():
            place, size = mesa.FIELDS[f"{structure}.{member}"]
            _SIGNED[size].from_address(self.at + place).value = value


class _Variant:
    """An `ir3_shader_variant`."""

    def __init__(self, at: int):
        self._at = at

    def number(self, member: str) -> int:
        """A member that is an integer, or an address; registers are counted from -1 on."""
        place, size = mesa.FIELDS[f"ir3_shader_variant.{member}"]
        kind = (_SIGNED if member.endswith("_reg") else _UNSIGNED)[size]
        return int(kind.from_address(self._at + place).value)

    def register(self, value: str) -> int:
        """Where a value of the system is wanted."""
        inputs = self._at + offset("ir3_shader_variant.inputs")
        step = offset("ir3_shader_variant.inputs[1]") - offset("ir3_shader_variant.inputs")
        to_register = offset("ir3_shader_variant.inputs[0].regid") - offset(
            "ir3_shader_variant.inputs[0].slot"
        )
        for number in range(self.number("inputs_count")):
            slot = inputs + number * step
            if c_uint8.from_address(slot).value == mesa.CONSTANTS[value]:
                return c_uint8.from_address(slot + to_register).value
        return NO_REGISTER
