"""gpu/drivers/kgsl/state.py and chips.py against Mesa's tables of registers, sizes and commands."""

from __future__ import annotations

import pytest

from gpu.autogen import adreno_a6xx as a6xx
from gpu.compiler.targets import adreno
from gpu.drivers.kgsl import encoder, packets, state
from gpu.drivers.kgsl.chips import CHIPS, Tuning

REGISTERS = [
    each
    for each in vars(state).values()
    if isinstance(each, type)
    and issubclass(each, state.StateRegister)
    and each is not state.StateRegister
]
RENAMED = {"STACK": "OFFSET"}


@pytest.mark.parametrize("register", REGISTERS, ids=lambda each: each.__name__)
def test_registers_lie_where_mesa_has_them(register: type[state.StateRegister]) -> None:
    offset, bits, fields = a6xx.REGISTERS[register.__name__]
    assert (register.OFFSET, register.bits) == (offset, bits)
    for name, field in register.fields.items():
        if not fields:  # a plain number
            assert (name, field.lo, field.hi) == ("VALUE", 0, 31)
            continue
        low, width, _, _ = fields.get(name) or fields[RENAMED[name]]
        assert (field.lo, field.hi) == (low, low + width - 1), name


def test_registers_that_are_written_together_follow_each_other() -> None:
    def place(name: str) -> int:
        return a6xx.REGISTERS[name][0]

    assert place("SP_CS_OBJ_START") == state.SP_CS_OBJ_FIRST_EXEC_OFFSET.OFFSET + 1
    assert place("SP_CS_PVT_MEM_ADDR") == state.SP_CS_PVT_MEM_PARAM.OFFSET + 1
    assert place("HLSQ_CS_NDRANGE_1") == state.HLSQ_CS_NDRANGE_0.OFFSET + 1
    assert place("HLSQ_CS_KERNEL_GROUP_Z") == state.HLSQ_CS_KERNEL_GROUP_X.OFFSET + 2
    for first, second in (
        (state.SP_CS_CTRL_REG0, state.SP_CS_CTRL_REG1),
        (state.SP_CS_CONFIG, state.SP_CS_INSTRLEN),
        (state.SP_CS_INSTRLEN, state.SP_CS_PVT_MEM_HW_STACK_OFFSET),
        (state.HLSQ_CS_CNTL_0, state.HLSQ_CS_CNTL_1),
        (state.SP_CS_CNTL_0, state.SP_CS_CNTL_1),
    ):
        assert second.OFFSET == first.OFFSET + 1


def test_the_registers_of_tuning_are_where_mesa_has_them() -> None:
    places = {name: a6xx.REGISTERS[name][0] for name in Tuning._fields}
    assert places == {
        "SP_CHICKEN_BITS": 0xAE03,
        "SP_DBG_ECO_CNTL": 0xAE00,
        "TPL1_DBG_ECO_CNTL": 0xB600,
        "HLSQ_DBG_ECO_CNTL": 0xBE04,
        "UCHE_UNKNOWN_0E12": 0x0E12,
        "UCHE_CLIENT_PF": 0x0E19,
    }


def test_commands_have_the_numbers_of_mesas_table() -> None:
    for op in packets.Op:
        assert a6xx.OPCODES[f"CP_{op.name}"] == op
    assert a6xx.REGISTERS["CP_ALWAYS_ON_COUNTER"][0] == 0x980
    assert encoder.COPY_LAYOUT.size == 24


def test_chips_are_those_that_there_is_a_compiler_for() -> None:
    assert CHIPS.keys() == adreno.CHIPS.keys()
    for name, chip in CHIPS.items():
        assert chip.cores == adreno.CHIPS[name].cores, name
