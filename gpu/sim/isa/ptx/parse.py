"""PTX text into functions and variables.

Anything unknown is a `PtxError` with its line. Debugging directives are skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache
from typing import Final

from gpu.sim.isa.ptx.declare import declared_registers, declared_variable
from gpu.sim.isa.ptx.operands import operand, split
from gpu.sim.isa.ptx.syntax import (
    BranchTargets,
    Function,
    Instruction,
    Label,
    Module,
    PtxError,
    Register,
    Variable,
)

_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SPACE: Final = re.compile(r"\s+")
_SKIPPED: Final = re.compile(r"\.(?:loc|file)\b[^\n]*|\.pragma\b[^;]*;|\.address_size\s+64\b")
_VERSION: Final = re.compile(r"\.version\s+(\d+)\.(\d+)")
_TARGET: Final = re.compile(r"\.target\s+([^\n]*)")
_SECTION: Final = re.compile(r"\.section\b[^{]*\{[^}]*\}")
_HEAD: Final = re.compile(
    r"((?:\.(?:visible|extern|weak|common)\s+)*)\.(entry|func)\b((?:\s*\.(?:noreturn)\b)?)\s*"
    r"(?:\(([^)]*)\)\s*)?([A-Za-z_$%][\w$%]*)\s*(?:\(([^)]*)\))?([^{;]*)([{;])"
)
_STATEMENT: Final = re.compile(r"[^;{}]*(?:\{[^{}]*\}[^;{}]*)*;")
_LABEL: Final = re.compile(r"([A-Za-z_$%][\w$%]*)\s*:(?!:)")
_INSTRUCTION: Final = re.compile(
    r"(?:@\s*(!?)\s*([A-Za-z_$%][\w$%]*)\s+)?([a-z]\w*(?:\.[\w:]+)*)\s*(.*);", re.S
)
_LINKAGE: Final = re.compile(r"\.(?:visible|extern|weak|common)\b\s*")
_SPACES: Final = ("global", "const", "shared", "local", "param")
_TARGETS: Final = re.compile(r"\.(?:(?:branch|call)targets\s+([\w$%,\s]*)|callprototype\b[^;]*);")


@lru_cache(maxsize=4096)
def _opcode(text: str) -> tuple[str, tuple[str, ...]]:
    name, *parts = text.split(".")
    return name, tuple(parts)


class _Reader:
    """A place in a text."""

    def __init__(self, text: str):
        self.text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", text)
        self.at = 0
        self._lines = [found.end() for found in re.finditer("\n", self.text)]

    def error(self, why: str, text: str = "") -> PtxError:
        return PtxError(why, self.line(), text or self.text[self.at : self.at + 60])

    def line(self) -> int:
        return bisect_right(self._lines, self.at) + 1

    def skip(self) -> bool:
        """Moves past space and what means nothing; False at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            if space:
                self.at = space.end()
            if self.at >= len(self.text):
                return False
            found = _SKIPPED.match(self.text, self.at) if self.text[self.at] == "." else None
            if not found:
                return True
            self.at = found.end()

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What stands here, if it is that."""
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found


def parse(text: str) -> Module:
    """The functions and variables of PTX text. Raises PtxError."""
    reader = _Reader(text)
    module = Module((0, 0), "", {}, {})
    while reader.skip():
        if version := reader.take(_VERSION):
            module.version = int(version[1]), int(version[2])
        elif target := reader.take(_TARGET):
            module.target = target[1].strip()
        elif reader.take(_SECTION):
            continue
        elif head := _HEAD.match(reader.text, reader.at):
            function = _function(reader, head)
            if function.name in module.variables:
                raise reader.error(f"{function.name} is a variable already")
            known = module.functions.get(function.name)
            if known is None or known.body is None:
                module.functions[function.name] = function
        else:
            variable = _module_variable(reader)
            if variable.name in module.functions:
                raise reader.error(f"{variable.name} is a function already")
            module.variables[variable.name] = variable
    if not module.target:
        raise PtxError("there is no .target", 1, text[:60])
    return module


def _module_variable(reader: _Reader) -> Variable:
    line_start = reader.at
    found = _STATEMENT.match(reader.text, reader.at)
    if not found:
        raise reader.error("this is neither a function nor a variable")
    text = _LINKAGE.sub("", found[0])
    try:
        variable = declared_variable(text.rstrip("; \n"))
    except ValueError as error:
        raise reader.error(str(error), reader.text[line_start : found.end()]) from error
    if variable.space not in ("global", "const", "shared"):
        raise reader.error(f".{variable.space} variables are not for modules", found[0])
    reader.at = found.end()
    return variable


def _function(reader: _Reader, head: re.Match[str]) -> Function:
    try:
        results, parameters = (
            [declared_variable(part) for part in split(head[group] or "")] for group in (4, 6)
        )
    except ValueError as error:
        raise reader.error(str(error), head[0]) from error
    is_kernel = head[2] == "entry"
    made = Function(head[5], is_kernel, parameters, results, reader.line())
    reader.at = head.end()
    if head[8] == "{":
        made.body = []
        _body(reader, made)
    return made


def _body(reader: _Reader, function: Function) -> None:
    """Statements up to the brace that closes the function; blocks within it are flattened.

    What blocks declare is renamed where the name is taken: compilers reuse names in each block.
    """
    scopes: list[dict[str, str]] = [{}]
    while reader.skip():
        letter = reader.text[reader.at]
        if letter == "{":
            reader.at += 1
            scopes.append({})
        elif letter == "}":
            reader.at += 1
            scopes.pop()
            if not scopes:
                return
        else:
            _statement(reader, function, scopes)
    raise PtxError("the function never ends", function.line, function.name)


def _statement(reader: _Reader, function: Function, scopes: list[dict[str, str]]) -> None:
    assert function.body is not None
    label = reader.take(_LABEL)
    if label:
        line = reader.line()
        reader.skip()
        table = reader.take(_TARGETS)
        if table:
            targets = tuple(split(table[1] or ""))
            function.body.append(BranchTargets(label[1], targets, line))
        else:
            function.body.append(Label(label[1], line))
        return
    found = _STATEMENT.match(reader.text, reader.at)
    if not found:
        raise reader.error("a statement never ends")
    text = found[0]
    try:
        if text[0] == ".":
            _declare(_LINKAGE.sub("", text)[:-1].strip(), function, scopes)
        else:
            function.body.append(_instruction(_renamed(text, scopes), reader.line()))
    except ValueError as error:
        if isinstance(error, PtxError):
            raise
        raise reader.error(str(error), text) from error
    reader.at = found.end()


_NAME: Final = re.compile(r"[A-Za-z_$%][\w$%]*")


def _renamed(text: str, scopes: list[dict[str, str]]) -> str:
    """Names of inner blocks as the function knows them."""
    if len(scopes) == 1 or not any(scopes[1:]):
        return text

    def known(found: re.Match[str]) -> str:
        name = found[0]
        return next((s[name] for s in reversed(scopes) if name in s), name)

    return _NAME.sub(known, text)


def _declare(text: str, function: Function, scopes: list[dict[str, str]]) -> None:
    """A declaration within a function."""
    inner = len(scopes) > 1

    def unique(name: str, taken: bool) -> str:
        if not (inner and taken):
            return name
        number = 2
        while f"{name}${number}" in function.registers or any(
            v.name == f"{name}${number}" for v in function.variables
        ):
            number += 1
        scopes[-1][name] = f"{name}${number}"
        return f"{name}${number}"

    if text.startswith(".reg"):
        for name, kind in declared_registers(text):
            function.registers[unique(name, name in function.registers)] = kind
        return
    variable = declared_variable(text)
    name = unique(variable.name, any(v.name == variable.name for v in function.variables))
    if variable.space not in _SPACES:
        raise ValueError(f".{variable.space} variables are not known")
    function.variables.append(replace(variable, name=name))


def _instruction(text: str, line: int) -> Instruction:
    found = _INSTRUCTION.fullmatch(text)
    if not found:
        raise PtxError("this is no instruction", line, text)
    guard = Register(found[2], bool(found[1])) if found[2] else None
    name, parts = _opcode(found[3])
    try:
        operands = tuple(operand(part) for part in split(found[4]))
    except ValueError as error:
        raise PtxError(str(error), line, text) from error
    return Instruction(name, parts, operands, guard, line, text)
