"""Values of C macros that ctypeslib2 leaves as comments, ioctl numbers above all."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from .recipe import AutogenError

_TOKEN: Final = re.compile(r"\s*('.'|\w+|<<|>>|\S)")
_INTEGER: Final = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
_DEFINE: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?[ \t]*(.*)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEEPEST: Final = 50

# Linux: include/uapi/asm-generic/ioctl.h; the same on x86 and Arm.
_NUMBER_BITS, _TYPE_BITS, _SIZE_BITS = 8, 8, 14
_DIRECTION: Final = {"_IO": 0, "_IOW": 1, "_IOR": 2, "_IOWR": 3}

_BINARY: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[int], int]]] = {
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


# The kernel's own integers, which a call may pass instead of a structure: bytes of each.
_INTEGERS: Final = {f"__{sign}{bits}": bits // 8 for sign in "su" for bits in (8, 16, 32, 64)}


def ioctl_number(direction: str, group: int, number: int, size: int) -> int:
    """`direction` is ``_IO``, ``_IOR``, ``_IOW`` or ``_IOWR``; `size` in bytes."""
    shifted = number | group << _NUMBER_BITS | size << _NUMBER_BITS + _TYPE_BITS
    return shifted | _DIRECTION[direction] << _NUMBER_BITS + _TYPE_BITS + _SIZE_BITS


class Macros:
    """The macros that some headers define, with the sizes of their structures and enumerators.

    Conditions are not looked at: where a name is defined twice, the last definition counts.
    """

    def __init__(
        self, texts: Iterable[str], sizes: Mapping[str, int], enumerators: Mapping[str, int]
    ) -> None:
        self._sizes = _INTEGERS | dict(sizes)
        self._enumerators = enumerators
        self._macros: dict[str, tuple[list[str] | None, list[str]]] = {}
        for text in texts:
            plain = _COMMENT.sub(" ", text).replace("\\\n", " ")
            for name, parameters, body in _DEFINE.findall(plain):
                split = [one.strip() for one in parameters[1:-1].split(",")]
                self._macros[name] = (split if parameters else None, _TOKEN.findall(body))

    def constants(self) -> list[str]:
        """Names of the macros that take no arguments and stand for something."""
        return [n for n, (parameters, body) in self._macros.items() if parameters is None and body]

    def value(self, name: str) -> int | None:
        """The integer that a macro stands for, or None where it stands for something else."""
        tokens = self._expand([name], 0)
        numbers = [_python(token) for token in tokens]
        try:
            tree = ast.parse(" ".join(numbers), mode="eval")
        except SyntaxError:
            return None
        return _evaluate(tree.body)

    def _expand(self, tokens: Sequence[str], depth: int) -> list[str]:
        if depth > _DEEPEST:
            raise AutogenError(f"macro {tokens[0]} expands to itself")
        result: list[str] = []
        position = 0
        while position < len(tokens):
            token = tokens[position]
            position += 1
            if token in _DIRECTION:
                arguments, position = _arguments(tokens, position)
                result.append(str(self._ioctl(token, arguments, depth)))
            elif token not in self._macros:
                result.append(str(self._enumerators.get(token, token)))
            else:
                parameters, body = self._macros[token]
                if parameters is not None:
                    arguments, position = _arguments(tokens, position)
                    given = dict(zip(parameters, arguments, strict=True))
                    body = [part for one in body for part in given.get(one, [one])]
                result.extend(self._expand(body, depth + 1))
        return result

    def _ioctl(self, direction: str, arguments: Sequence[Sequence[str]], depth: int) -> int:
        group, number = (self._integer(argument, depth) for argument in arguments[:2])
        size = self._sizes[arguments[2][-1]] if len(arguments) > 2 else 0
        return ioctl_number(direction, group, number, size)

    def _integer(self, tokens: Sequence[str], depth: int) -> int:
        text = " ".join(_python(token) for token in self._expand(tokens, depth + 1))
        value = _evaluate(ast.parse(text, mode="eval").body)
        if value is None:
            raise AutogenError(f"{text} is no number")
        return value


def _arguments(tokens: Sequence[str], position: int) -> tuple[list[list[str]], int]:
    """What stands between parentheses from a position on, and the position after them."""
    if position >= len(tokens) or tokens[position] != "(":
        raise AutogenError(f"a call was expected in {' '.join(tokens)}")
    depth, parts = 0, [[]]  # type: tuple[int, list[list[str]]]
    for end in range(position, len(tokens)):
        token = tokens[end]
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0:
            return parts, end + 1
        if token == "," and depth == 1:
            parts.append([])
        elif end > position:
            parts[-1].append(token)
    raise AutogenError(f"a parenthesis stays open in {' '.join(tokens)}")


def _python(token: str) -> str:
    integer = _INTEGER.fullmatch(token)
    if integer:
        return str(int(integer[1], 8 if re.fullmatch(r"0\d+", integer[1]) else 0))
    return str(ord(token[1])) if re.fullmatch("'.'", token) else token


def _evaluate(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp() if type(node.op) in _BINARY:
            left, right = _evaluate(node.left), _evaluate(node.right)
            if left is not None and right is not None:
                return _BINARY[type(node.op)](left, right)
        case ast.UnaryOp() if type(node.op) in _UNARY:
            operand = _evaluate(node.operand)
            if operand is not None:
                return _UNARY[type(node.op)](operand)
    return None
