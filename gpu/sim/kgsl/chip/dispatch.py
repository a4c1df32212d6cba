"""What registers and loaded state make of a dispatch, and what may not be so.

Fields are those of a6xx.xml, their use as in Mesa (fd6_compute.cc, fd6_program.cc, computerator).
"""

from __future__ import annotations

from typing import Final, NoReturn

from gpu.autogen.adreno_a6xx import ENUMERATIONS
from gpu.core.bits import align_up, bits
from gpu.sim.executor import Size3
from gpu.sim.kgsl.chip.errors import CpError
from gpu.sim.kgsl.chip.launch import NO_REGISTER, Buffer, Launch, PrivateMemory
from gpu.sim.kgsl.chip.registers import Registers
from gpu.sim.kgsl.chip.state import LoadedState
from gpu.sim.kgsl.chip.tables import PageTables
from gpu.sim.kgsl.chips import Chip
from gpu.sim.record import DebugChannel
from gpu.sim.translate import PAGE_SIZE

_NDRANGE: Final = tuple(f"HLSQ_CS_NDRANGE_{i}" for i in range(7))
_NEEDED: Final = (
    *("SP_CS_CTRL_REG0", "SP_CS_CTRL_REG1", "SP_CS_OBJ_FIRST_EXEC_OFFSET", "SP_CS_OBJ_START"),
    *("SP_CS_PVT_MEM_PARAM", "SP_CS_CONFIG", "SP_CS_INSTRLEN", "SP_MODE_CONTROL"),
    *("HLSQ_CS_CNTL", "HLSQ_CS_CNTL_0", "HLSQ_CS_CNTL_1", *_NDRANGE),
    *(f"HLSQ_CS_KERNEL_GROUP_{axis}" for axis in "XYZ"),
)
_NEEDED_BY_LPAC: Final = ("SP_CS_CNTL_0", "SP_CS_CNTL_1", "HLSQ_CS_CTRL_REG1")
_NEEDED_BY_PRIVATE: Final = (
    "SP_CS_PVT_MEM_ADDR",
    "SP_CS_PVT_MEM_SIZE",
    "SP_CS_PVT_MEM_HW_STACK_OFFSET",
)
_MAX_THREADS: Final = 1024
_SHARED_UNIT: Final = 1 << 10
_CODE_UNIT: Final = 128
_MAX_REGISTERS: Final = 48
_LANES_OF_FILE: Final = 128
_CONSTANTS: Final = {
    number: int(name.removeprefix("CONSTLEN_"))
    for name, number in ENUMERATIONS["a6xx_const_ram_mode"].items()
}
_MAX_SIZE: Final = 0xFFFF_FFFF  # of a grid in a direction: the width of GLOBALSIZE
_BINDLESS: Final = ("BINDLESS_TEX", "BINDLESS_SAMP", "BINDLESS_IBO", "BINDLESS_UBO")
_BUFFER_TYPE: Final = 4  # A6XX_TEX_BUFFER (a6xx.xml, a6xx_tex_type)


class Dispatcher:
    """Makes launches for one ring. Most of what it finds is recorded, and the grid begins."""

    def __init__(self, chip: Chip, registers: Registers, state: LoadedState, debug: DebugChannel):
        self._chip = chip
        self._registers = registers
        self._state = state
        self._debug = debug

    def launch(self, groups: Size3, space: PageTables) -> Launch:
        """The grid of so many workgroups. Raises CpError for one that cannot begin."""
        registers, state = self._registers, self._state
        self._check_set()
        if not state.is_fresh:
            self._violation(
                "what other contexts have loaded was not cleared: HLSQ_INVALIDATE_CMD with"
                " CS_STATE comes before the loads of a submission"
            )
        block = self._block(groups)
        code = registers.value("SP_CS_OBJ_START")
        size = registers.field("SP_CS_INSTRLEN", "VALUE") * _CODE_UNIT
        self._check_code(code, size, space)
        constants = self._constant_vectors()
        full = registers.field("SP_CS_CTRL_REG0", "FULLREGFOOTPRINT")
        self._check_registers(full, block)
        return Launch(
            chip=self._chip.name,
            code=code + registers.value("SP_CS_OBJ_FIRST_EXEC_OFFSET"),
            code_size=size,
            groups=groups,
            block=block,
            lanes=self._lanes(),
            constants=state.constants(constants),
            full=full,
            half=registers.field("SP_CS_CTRL_REG0", "HALFREGFOOTPRINT"),
            merged=bool(registers.field("SP_CS_CTRL_REG0", "MERGEDREGS")),
            branches=registers.field("SP_CS_CTRL_REG0", "BRANCHSTACK"),
            group_at=_register(registers.field("HLSQ_CS_CNTL_0", "WGIDCONSTID")),
            thread_at=_register(registers.field("HLSQ_CS_CNTL_0", "LOCALIDREGID")),
            shared_bytes=self._shared_bytes(),
            private=self._private(space),
            ubos=self._ubos(),
            uavs=self._uavs(),
            textures=self._descriptors("textures", "NTEX"),
            samplers=self._descriptors("samplers", "NSAMP"),
        )

    def _check_set(self) -> None:
        needed = _NEEDED + (_NEEDED_BY_LPAC if self._chip.lpac else ())
        if missing := self._registers.unset(needed):
            self._refuse_unset(missing)

    def _refuse_unset(self, missing: list[str]) -> NoReturn:
        raise CpError(
            f"a dispatch without {', '.join(missing)}: other contexts leave any value there"
        )

    def _block(self, groups: Size3) -> Size3:
        """The threads of a workgroup. Raises CpError."""
        registers = self._registers
        sizes = Size3(
            *(registers.field("HLSQ_CS_NDRANGE_0", f"LOCALSIZE{axis}") + 1 for axis in "XYZ")
        )
        if sizes.volume > _MAX_THREADS:
            raise CpError(f"workgroups of {sizes.volume} threads; {_MAX_THREADS} are the most")
        if not registers.field("HLSQ_CS_NDRANGE_0", "KERNELDIM"):
            self._violation("HLSQ_CS_NDRANGE_0 has KERNELDIM 0; a grid has 1 to 3 dimensions")
        for axis, count, threads in zip("XYZ", groups, sizes, strict=True):
            if not 1 <= count * threads <= _MAX_SIZE:
                raise CpError(f"{count} x {threads} threads in {axis}; there are 1 to {_MAX_SIZE}")
            number = 1 + 2 * "XYZ".index(axis)
            said = registers.value(_NDRANGE[number])
            if said != count * threads:
                self._violation(
                    f"{_NDRANGE[number]} says {said} threads in {axis}, the dispatch has"
                    f" {count} x {threads}"
                )
            if registers.value(_NDRANGE[number + 1]):
                raise CpError(f"{_NDRANGE[number + 1]}: grids with an offset are not modelled")
            if not registers.value(f"HLSQ_CS_KERNEL_GROUP_{axis}"):
                self._violation(f"HLSQ_CS_KERNEL_GROUP_{axis} is 0")
        return sizes

    def _lanes(self) -> int:
        wide = self._registers.field("SP_CS_CTRL_REG0", "THREADSIZE")
        if wide != self._registers.field("HLSQ_CS_CNTL_1", "THREADSIZE"):
            self._violation("THREADSIZE of SP_CS_CTRL_REG0 and of HLSQ_CS_CNTL_1 differ")
        if self._chip.lpac:
            for name in ("0", "1"):
                if self._registers.value(f"SP_CS_CNTL_{name}") != self._registers.value(
                    f"HLSQ_CS_CNTL_{name}"
                ):
                    self._violation(f"SP_CS_CNTL_{name} and HLSQ_CS_CNTL_{name} differ")
        return 128 if wide else 64

    def _check_code(self, code: int, size: int, space: PageTables) -> None:
        if not self._registers.field("SP_CS_CONFIG", "ENABLED"):
            self._violation("a dispatch while SP_CS_CONFIG lacks ENABLED")
        if not self._registers.field("HLSQ_CS_CNTL", "ENABLED"):
            self._violation("a dispatch while HLSQ_CS_CNTL lacks ENABLED")
        for name in _BINDLESS:
            if self._registers.field("SP_CS_CONFIG", name):
                raise CpError(f"SP_CS_CONFIG has {name}: bindless state is not modelled")
        if code % _CODE_UNIT:
            raise CpError(f"SP_CS_OBJ_START is {code:#x}, no multiple of {_CODE_UNIT}")
        if not size:
            raise CpError("SP_CS_INSTRLEN is 0")
        if not space.is_mapped(code, size):
            self._violation(
                f"SP_CS_INSTRLEN makes the code {size:#x} bytes from {code:#x} on, which are not"
                " all mapped"
            )
        wanted = min(size // _CODE_UNIT, self._chip.instruction_cache)
        if self._state.count("code") < wanted:
            self._violation(
                f"{self._state.count('code')} units of code were loaded by CP_LOAD_STATE6 of"
                f" {wanted} that the instruction cache takes"
            )

    def _constant_vectors(self) -> int:
        count = self._registers.field("HLSQ_CS_CNTL", "CONSTLEN")
        mode = self._registers.field("SP_CS_CTRL_REG1", "CONSTANTRAMMODE")
        if count > _CONSTANTS[mode]:
            raise CpError(f"{count} constants in a RAM for {_CONSTANTS[mode]}: CONSTANTRAMMODE")
        loaded = self._state.count("constants")
        if loaded > count:
            self._violation(f"constants up to {loaded} were loaded, and HLSQ_CS_CNTL has {count}")
        return count

    def _check_registers(self, full: int, block: Size3) -> None:
        if full > _MAX_REGISTERS:
            raise CpError(f"{full} registers of a thread; {_MAX_REGISTERS} are the most")
        room = self._chip.vectors * _LANES_OF_FILE
        if block.volume * full > room:
            raise CpError(
                f"{block.volume} threads of {full} registers are more than the {room} that a"
                " shader processor has"
            )

    def _shared_bytes(self) -> int:
        return (self._registers.field("SP_CS_CTRL_REG1", "SHARED_SIZE") + 1) * _SHARED_UNIT

    def _private(self, space: PageTables) -> PrivateMemory | None:
        registers, chip = self._registers, self._chip
        per_fiber = registers.field("SP_CS_PVT_MEM_PARAM", "MEMSIZEPERITEM")
        if not per_fiber:
            return None
        if missing := registers.unset(_NEEDED_BY_PRIVATE):
            self._refuse_unset(missing)
        address = registers.value("SP_CS_PVT_MEM_ADDR")
        per_core = registers.field("SP_CS_PVT_MEM_SIZE", "TOTALPVTMEMSIZE")
        wanted = align_up(per_fiber * chip.fibers, PAGE_SIZE)
        if per_core < wanted:
            raise CpError(
                f"{per_core:#x} bytes of private memory of a shader processor, whose {chip.fibers}"
                f" threads need {wanted:#x}: TOTALPVTMEMSIZE"
            )
        if not space.is_mapped(address, per_core * chip.cores, write=True):
            self._violation(
                f"private memory, {chip.cores} times {per_core:#x} bytes from {address:#x} on, is"
                " not all mapped"
            )
        return PrivateMemory(address, per_fiber, per_core)

    def _ubos(self) -> tuple[Buffer, ...]:
        """Descriptors of 49 bits of address and 15 of size in vectors (a6xx.xml, A6XX_UBO)."""
        found = []
        for index in range(self._state.count("ubos")):
            unit = self._state.unit("ubos", index)
            value = int.from_bytes(unit, "little") if unit else 0
            found.append(Buffer(bits(value, 48, 0), 16 * bits(value, 63, 49)))
        return tuple(found)

    def _uavs(self) -> tuple[Buffer, ...]:
        """Descriptors of buffers (a6xx.xml, A6XX_TEX_CONST): elements in width and height."""
        found = []
        for unit in self._descriptors("uavs", "NIBO"):
            words = [int.from_bytes(unit[i : i + 4], "little") for i in range(0, 24, 4)]
            if bits(words[2], 31, 29) != _BUFFER_TYPE:
                found.append(Buffer(0, 0))  # an image: an executor reads its descriptor
                continue
            elements = bits(words[1], 14, 0) | bits(words[1], 29, 15) << 15
            found.append(Buffer(words[4] | bits(words[5], 16, 0) << 32, 4 * elements))
        return tuple(found)

    def _descriptors(self, kind: str, field: str) -> tuple[bytes, ...]:
        """As many as SP_CS_CONFIG says. Raises CpError for one that nobody loaded."""
        found = []
        for index in range(self._registers.field("SP_CS_CONFIG", field)):
            unit = self._state.unit(kind, index)
            if unit is None:
                raise CpError(f"SP_CS_CONFIG has {field} for {kind} {index}, which is not loaded")
            found.append(unit)
        return tuple(found)

    def _violation(self, what: str) -> None:
        self._debug.violation(f"{self._chip.name}: {what}")


def _register(number: int) -> int | None:
    return None if number >= NO_REGISTER else number
