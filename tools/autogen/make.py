"""From a recipe and its unpacked headers to the text of the module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from . import clang, emit
from .macros import Macros
from .packets import (
    parse_enumeration,
    parse_pm4,
    parse_sdma,
    parse_sdma_gcr,
    parse_sdma_numbers,
)
from .recipe import (
    Adreno,
    AutogenError,
    Constants,
    Counters,
    CTypes,
    Patterns,
    Pm4,
    Recipe,
    Registers,
    Sdma,
)
from .registers import parse_bits, parse_registers
from .rnn import parse_rnn


def module(recipe: Recipe, folder: Path) -> str:
    """The text of a recipe's module; its headers lie below a folder.

    Raises:
        AutogenError: the headers are not what the recipe expects.
    """
    texts = {name: (folder / name).read_text() for name in recipe.headers}
    return emit.head(recipe, texts) + _BODIES[type(recipe)](recipe, texts, folder)


def _ctypes(recipe: CTypes, texts: Mapping[str, str], folder: Path) -> str:
    layouts = clang.read(recipe, folder)
    sizes = {name: one.size for name, one in layouts.structures.items()}
    macros = Macros(texts.values(), sizes, layouts.integers)
    names = Patterns(recipe.constants)
    integers: dict[str, int] = {}
    for name in dict.fromkeys([*macros.constants(), *layouts.integers]):
        if name in names:
            value = layouts.integers.get(name)
            integers[name] = _known(name, macros.value(name) if value is None else value)
    names.check(f"constants of {recipe.module}")
    text = emit.structures(layouts, integers)
    clang.verify(text, layouts)
    fields = parse_bits("\n".join(texts.values()), recipe.bits) if recipe.bits else {}
    return text + (emit.bits(fields) if fields else "")


def _constants(recipe: Constants, texts: Mapping[str, str], folder: Path) -> str:
    macros = Macros(texts.values(), {}, {})
    names = Patterns(recipe.names)
    integers = {n: _known(n, macros.value(n)) for n in macros.constants() if n in names}
    names.check(f"constants of {recipe.module}")
    return "\n" + emit.constants(integers)


def _known(name: str, value: int | None) -> int:
    if value is None:
        raise AutogenError(f"{name} is no integer: narrow the recipe's patterns")
    return value


def _registers(recipe: Registers, texts: Mapping[str, str], folder: Path) -> str:
    offsets, masks = texts.values()
    names = Patterns(recipe.names)
    table = parse_registers(offsets, masks, names, recipe.incomplete)
    names.check(f"registers of {recipe.module}")
    return emit.registers(table)


def _pm4(recipe: Pm4, texts: Mapping[str, str], folder: Path) -> str:
    packets, enumerations = texts.values()
    return emit.pm4(parse_pm4(packets), parse_enumeration(enumerations, recipe.events))


def _counters(recipe: Counters, texts: Mapping[str, str], folder: Path) -> str:
    (text,) = texts.values()
    blocks = {
        block: {
            name.replace("_PERF_SEL_", "_"): number
            for name, number in parse_enumeration(text, f"{block}_PERF_SEL").items()
            if "_DUMMY" not in name
        }
        for block in recipe.blocks
    }
    return "\n" + "\n".join(emit.table(n, "dict[str, int]", one) for n, one in blocks.items())


def _sdma(recipe: Sdma, texts: Mapping[str, str], folder: Path) -> str:
    (text,) = texts.values()
    names = Patterns(recipe.packets)
    packets = parse_sdma(text, names)
    names.check(f"packets of {recipe.module}")
    return emit.sdma(parse_sdma_numbers(text), packets, parse_sdma_gcr(text))


def _adreno(recipe: Adreno, texts: Mapping[str, str], folder: Path) -> str:
    found = parse_rnn(list(texts.values()), recipe.generation, recipe.domain, recipe.opcodes)
    names = Patterns(recipe.names)
    registers = [word for word in found.registers if word.name in names]
    names.check(f"registers of {recipe.module}")
    return emit.adreno(found, registers)


_BODIES: Final[dict[type[Recipe], Callable[[Any, Mapping[str, str], Path], str]]] = {
    Adreno: _adreno,
    CTypes: _ctypes,
    Constants: _constants,
    Counters: _counters,
    Registers: _registers,
    Pm4: _pm4,
    Sdma: _sdma,
}
