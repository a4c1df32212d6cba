"""Builds a program of NIR with Mesa's functions, for any of its compilers.

Mesa keeps a shader as structures that its own functions insert and link; operands of intrinsics
have no setter and are written where autogen/mesa.py says they are. Programs are those that
`parse_nir` has checked, since Mesa checks nothing.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_uint, c_uint8, c_uint16, c_uint64
from functools import cache
from typing import Any, Final

from gpu.autogen import mesa
from gpu.compiler.nir_text import ALU, NirInst, NirProgram
from gpu.compiler.toolchain.mesalib import offset

_POINTER: Final = ctypes.c_void_p


def _controls(*names: str) -> int:
    """Bits of `float_controls` for floats of all widths."""
    flags = mesa.CONSTANTS
    return sum(flags[f"FLOAT_CONTROLS_{name}_FP{bits}"] for name in names for bits in (16, 32, 64))


_KEPT: Final = _controls("SIGNED_ZERO_PRESERVE", "INF_PRESERVE", "NAN_PRESERVE")
"""Without these Mesa takes x * 0 for 0, of infinities and NaN too, even in exact operations."""
_FLOAT_CONTROLS: Final = _KEPT | _controls("DENORM_PRESERVE", "ROUNDING_MODE_RTE")

_FIXED_COMPONENTS: Final = frozenset(
    {"barrier", "decl_reg", "load_local_invocation_id", "load_workgroup_id"}
)
"""Intrinsics that say by themselves how many components they have."""


class _Builder(ctypes.Structure):
    """`nir_builder`, which is returned by value."""

    _fields_ = [("words", c_uint64 * (mesa.SIZES["nir_builder"] // 8))]


# Name: (result, arguments); Mesa 25.2, src/compiler/nir/nir.h and nir_builder.h.
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "glsl_type_singleton_init_or_ref": (None, ()),
    "nir_builder_init_simple_shader": (_Builder, (c_int, _POINTER, c_char_p)),
    "nir_builder_instr_insert": (None, (POINTER(_Builder), _POINTER)),
    "nir_build_alu1": (_POINTER, (POINTER(_Builder), c_int, _POINTER)),
    "nir_build_alu2": (_POINTER, (POINTER(_Builder), c_int, _POINTER, _POINTER)),
    "nir_build_alu3": (_POINTER, (POINTER(_Builder), c_int, _POINTER, _POINTER, _POINTER)),
    "nir_alu_instr_create": (_POINTER, (_POINTER, c_int)),
    "nir_load_const_instr_create": (_POINTER, (_POINTER, c_uint, c_uint)),
    "nir_intrinsic_instr_create": (_POINTER, (_POINTER, c_int)),
    "nir_jump_instr_create": (_POINTER, (_POINTER, c_int)),
    "nir_def_init": (None, (_POINTER, _POINTER, c_uint, c_uint)),
    "nir_push_if": (_POINTER, (POINTER(_Builder), _POINTER)),
    "nir_push_else": (_POINTER, (POINTER(_Builder), _POINTER)),
    "nir_pop_if": (None, (POINTER(_Builder), _POINTER)),
    "nir_push_loop": (_POINTER, (POINTER(_Builder),)),
    "nir_pop_loop": (None, (POINTER(_Builder), _POINTER)),
    "nir_lower_reg_intrinsics_to_ssa": (ctypes.c_bool, (_POINTER,)),
    "ralloc_free": (None, (_POINTER,)),
}


def declare(library: ctypes.CDLL, signatures: dict[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Tells ctypes what functions of the library take and give."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


@cache
def _prepare(library: ctypes.CDLL) -> None:
    declare(library, _SIGNATURES)
    library.glsl_type_singleton_init_or_ref()  # once: nothing releases it


class NirBuilder(ABC):
    """Builds one shader; what compilers differ in is theirs to say.

    Attributes:
        library: libtinymesa.
        shader: address of the `nir_shader`; `free` gives it back.
    """

    def __init__(self, library: ctypes.CDLL, options: int, program: NirProgram):
        """`options` is the address of the compiler's `nir_shader_compiler_options`."""
        _prepare(library)
        self.library, self.program = library, program
        self._builder = library.nir_builder_init_simple_shader(
            mesa.CONSTANTS["MESA_SHADER_COMPUTE"], options, program.name.encode()
        )
        at = ctypes.addressof(self._builder)
        # Nothing is fused or reassociated.
        c_uint8.from_address(at + offset("nir_builder.exact")).value = 1
        c_int32.from_address(at + offset("nir_builder.fp_fast_math")).value = _KEPT
        self.shader: int = c_uint64.from_address(at + offset("nir_builder.shader")).value
        self._defs: list[int] = []

    @abstractmethod
    def parameter(self, at: int, bits: int) -> int:
        """The address of the `nir_def` of some of the kernel's parameters, from a byte on."""

    def build(self) -> int:
        """All of the program; the address of its shader."""
        self._describe()
        for inst in self.program.body:
            made = self._build(inst)
            if inst.bits:
                self._defs.append(made)
        self.library.nir_lower_reg_intrinsics_to_ssa(self.shader)
        return self.shader

    def free(self) -> None:
        """Gives back what the shader takes."""
        self.library.ralloc_free(self.shader)

    def constant(self, bits: int, value: int) -> int:
        """The address of the `nir_def` of a constant."""
        made = self.library.nir_load_const_instr_create(self.shader, 1, bits)
        c_uint64.from_address(made + offset("nir_load_const_instr.value")).value = value
        self._insert(made)
        return int(made + offset("nir_load_const_instr.def"))

    def alu(self, name: str, *args: int) -> int:
        """Inserts an arithmetic operation; the address of its `nir_def`."""
        number, operands = mesa.ALU[name]
        function = getattr(self.library, f"nir_build_alu{operands}")
        return int(function(byref(self._builder), number, *args))

    def intrinsic(
        self, name: str, *args: int, bits: int = 0, components: int = 1, **indices: int
    ) -> int:
        """Inserts an intrinsic; the address of its `nir_def`, if it has ``bits``."""
        number, operands, places = mesa.INTRINSICS[name]
        assert len(args) == operands, f"{name} of {len(args)} operands"
        made = self.library.nir_intrinsic_instr_create(self.shader, number)
        for position, arg in enumerate(args):
            self._set_source(made, "nir_intrinsic_instr.src", position, arg)
        if name not in _FIXED_COMPONENTS:
            at = made + offset("nir_intrinsic_instr.num_components")
            c_uint8.from_address(at).value = components
        for index, value in indices.items():
            at = made + offset("nir_intrinsic_instr.const_index") + 4 * places[index]
            c_int32.from_address(at).value = value
        place = int(made + offset("nir_intrinsic_instr.def"))
        if bits:
            self.library.nir_def_init(made, place, components, bits)
        self._insert(made)
        return place

    def _describe(self) -> None:
        """What Mesa is told of the whole shader."""
        info = self.shader + offset("nir_shader.info.workgroup_size")
        for axis, size in enumerate((self.program.block, 1, 1)):
            c_uint16.from_address(info + 2 * axis).value = size
        for member, value in (
            ("info.shared_size", self.program.shared),
            ("info.float_controls_execution_mode", _FLOAT_CONTROLS),
            ("scratch_size", self.program.scratch),
        ):
            c_int32.from_address(self.shader + offset(f"nir_shader.{member}")).value = value

    def _insert(self, made: int) -> None:
        self.library.nir_builder_instr_insert(byref(self._builder), made)

    def _set_source(self, made: int, member: str, position: int, arg: int) -> None:
        at = made + offset(member) + position * mesa.SIZES["nir_src"]
        c_uint64.from_address(at + offset("nir_src.ssa")).value = arg

    def _build(self, inst: NirInst) -> int:
        args = [self._defs[arg] for arg in inst.args]
        if inst.op in ALU:
            return self.alu(inst.op, *args)
        space = inst.op.partition("_")[2]
        match inst.op:
            case "load_const":
                return self.constant(inst.bits, inst.attr[0])
            case "param":
                return self.parameter(inst.attr[0], inst.bits)
            case "workgroup_id" | "local_invocation_id":
                return self._first(self.intrinsic(f"load_{inst.op}", bits=32, components=3))
            case "shuffle_xor":
                return self.intrinsic(inst.op, *args, bits=inst.bits)
            case "reg":
                return self.intrinsic("decl_reg", bits=32, NUM_COMPONENTS=1, BIT_SIZE=inst.bits)
            case "load_reg":
                return self.intrinsic("load_reg", *args, bits=inst.bits)
            case "store_reg":
                register, value = args
                return self.intrinsic("store_reg", value, register, WRITE_MASK=1)
            case "load_global" | "load_shared" | "load_scratch":
                access = {"ACCESS": self._access(inst)} if space == "global" else {}
                return self.intrinsic(
                    inst.op, *args, bits=inst.bits, ALIGN_MUL=inst.attr[0], **access
                )
            case "store_global" | "store_shared" | "store_scratch":
                return self.intrinsic(inst.op, *args, WRITE_MASK=1, ALIGN_MUL=inst.attr[0])
        self._control(inst.op, args)
        return 0

    def _access(self, inst: NirInst) -> int:
        if not inst.attr[1]:
            return 0
        return mesa.CONSTANTS["ACCESS_CAN_REORDER"] | mesa.CONSTANTS["ACCESS_NON_WRITEABLE"]

    def _first(self, vector: int) -> int:
        """The first component of a vector of 32-bit numbers."""
        made = self.library.nir_alu_instr_create(self.shader, mesa.ALU["mov"][0])
        self._set_source(made, "nir_alu_instr.src", 0, vector)
        place = int(made + offset("nir_alu_instr.def"))
        self.library.nir_def_init(made, place, 1, 32)
        self._insert(made)
        return place

    def _control(self, op: str, args: list[int]) -> None:
        builder = byref(self._builder)
        match op:
            case "if":
                self.library.nir_push_if(builder, *args)
            case "else":
                self.library.nir_push_else(builder, None)
            case "endif":
                self.library.nir_pop_if(builder, None)
            case "loop":
                self.library.nir_push_loop(builder)
            case "endloop":
                self.library.nir_pop_loop(builder, None)
            case "break":
                jump = mesa.CONSTANTS["nir_jump_break"]
                self._insert(self.library.nir_jump_instr_create(self.shader, jump))
            case "barrier":
                scope = mesa.CONSTANTS["SCOPE_WORKGROUP"]
                self.intrinsic(
                    "barrier",
                    EXECUTION_SCOPE=scope,
                    MEMORY_SCOPE=scope,
                    MEMORY_SEMANTICS=mesa.CONSTANTS["NIR_MEMORY_ACQ_REL"],
                    MEMORY_MODES=mesa.CONSTANTS["nir_var_mem_shared"],
                )
            case _:
                raise AssertionError(f"{op} was checked when parsed")
