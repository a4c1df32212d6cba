"""What the text forms of the three IRs share: how scalars are written, and how lines are read.

Integers are decimal, floats are Python's `repr` (`inf`, `-inf` and `nan` included) so that they
read back exactly, complex numbers two of them as in `1.0-0.0j`, bools are `true` and `false`. `#`
starts a comment that runs to the line's end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from gpu.compiler.ir import optable
from gpu.compiler.ir.dims import Dim, Shape, dimension
from gpu.compiler.ir.index import Var, parse_expr
from gpu.core.dtype import BY_CODE, DType, ImageDType, Number, dtype_of_code, dtypes
from gpu.core.errors import ParseError

T = TypeVar("T")
S = TypeVar("S")

# Longer integers would make no sense anywhere, and int() refuses thousands of digits.
_INT: Final = re.compile(r"-?\d{1,20}(?!\d)")
_NUMBER: Final = r"(?:inf|nan|\d{1,330}(?:\.\d{0,330})?(?:e[-+]?\d{1,4})?)"
_LITERAL: Final = re.compile(rf"-?(?:true|false|{_NUMBER}(?:[-+]{_NUMBER}j)?)(?![\w.])", re.ASCII)
_COMPLEX: Final = re.compile(rf"(-?{_NUMBER})([-+]{_NUMBER})j", re.ASCII)
_WORD: Final = re.compile(r"\S+")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_SPACE: Final = re.compile(r"[ \t]*")
_NO_NAMES: Final[Mapping[str, Var]] = {}


def print_scalar(value: Number) -> str:
    """A constant as text that reads back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, complex):
        imag = repr(value.imag)
        return f"{value.real!r}{'' if imag[0] == '-' else '+'}{imag}j"
    return repr(value)


def print_shape(shape: Iterable[int]) -> str:
    """Sizes as in `[4096,1]`."""
    return f"[{','.join(map(str, shape))}]"


class Cursor:
    """A place in one line of text; methods read what they are named after and move past it.

    All of them skip spaces first and raise ParseError, naming line, column and what was expected,
    where the text does not continue so.
    """

    def __init__(self, text: str, number: int):
        self.text = text.split("#", 1)[0].rstrip()
        self.number = number
        self.at = 0
        self.last = 0

    @property
    def indent(self) -> int:
        """How many spaces the line starts with."""
        return len(self.text) - len(self.text.lstrip(" "))

    def refused(self, expected: str) -> ParseError:
        """An error that points at what was read last."""
        self.at = self.last
        return self.error(expected)

    def error(self, expected: str) -> ParseError:
        """An error that points at the current place."""
        self.space()
        found = self.text[self.at : self.at + 20] or "the end of the line"
        return ParseError(
            f"line {self.number}, column {self.at + 1}: expected {expected}, found {found!r}"
        )

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self.space()
        match = pattern.match(self.text, self.at)
        if match is None:
            return None
        self.last, self.at = match.span()
        return match.group()

    def space(self) -> None:
        """Skips spaces."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def done(self) -> bool:
        """Whether nothing but space is left."""
        self.space()
        return self.at == len(self.text)

    def end(self) -> None:
        """The end of the line."""
        if not self.done():
            raise self.error("the end of the line")

    def accept(self, token: str) -> bool:
        """Whether `token` is next; moves past it if so. Words match whole words only."""
        self.space()
        stop = self.at + len(token)
        following = self.text[stop : stop + 1]
        split_word = token[-1].isalnum() and (following.isalnum() or following == "_")
        if not self.text.startswith(token, self.at) or split_word:
            return False
        self.last, self.at = self.at, stop
        return True

    def expect(self, token: str) -> None:
        """Exactly `token`."""
        if not self.accept(token):
            raise self.error(repr(token))

    def name(self, what: str = "a name") -> str:
        """An identifier."""
        name = self._match(_NAME)
        if name is None:
            raise self.error(what)
        return name

    def integer(self, what: str = "an integer") -> int:
        """A decimal integer."""
        digits = self._match(_INT)
        if digits is None:
            raise self.error(what)
        return int(digits)

    def reference(self) -> int:
        """A value's number, as in `%3`."""
        self.expect("%")
        start = self.last
        number = self.integer("the number of a value")
        self.last = start
        return number

    def dtype(self) -> DType:
        """A dtype's code."""
        dtype = dtype_of_code(self.name("a dtype"))
        if dtype is None:
            raise self.refused(f"a dtype, one of {' '.join(BY_CODE)}")
        return dtype

    def image(self) -> ImageDType | None:
        """An image dtype's code, if one is next."""
        start = self.at
        word = self._match(_NAME)
        dtype = dtype_of_code(word) if word else None
        if isinstance(dtype, ImageDType):
            return dtype
        self.at = start
        return None

    def lanes_type(self) -> tuple[DType, int]:
        """A dtype's code and how many lanes, as in `f32` and `f32x8`."""
        code, _, lanes = self.name("a type").partition("x")
        if code not in BY_CODE or not (lanes == "" or re.fullmatch(r"[1-9]\d{0,5}", lanes)):
            raise self.refused(f"a type such as f32 or f32x8, of {' '.join(BY_CODE)}")
        return BY_CODE[code], int(lanes or "1")

    def listed(self, item: Callable[[], T], close: str, separator: str = ",") -> tuple[T, ...]:
        """Items with separators up to the closing token, which is read too."""
        items: list[T] = []
        while not self.accept(close):
            if items:
                self.expect(separator)
            items.append(item())
        return tuple(items)

    def listed_in_two(
        self, first: Callable[[], T], second: Callable[[], S], close: str
    ) -> tuple[tuple[T, ...], tuple[S, ...]]:
        """Items with commas, then perhaps a semicolon and items of another kind."""
        items: list[T] = []
        while not self.accept(close):
            if self.accept(";"):
                return tuple(items), self.listed(second, close)
            if items:
                self.expect(",")
            items.append(first())
        return tuple(items), ()

    def bounded_name(self) -> tuple[str, int, int]:
        """A name and inclusive bounds, as in `p 1..511`."""
        name = self.name("the name of a value")
        lo = self.integer("the smallest value")
        self.expect("..")
        hi = self.integer("the largest value")
        if hi < lo:
            raise self.refused(f"a value that is not under {lo}")
        return name, lo, hi

    def shape(self, names: Mapping[str, Var] = _NO_NAMES) -> Shape:
        """Sizes as in `[4096,1]`, or over the variables in `names`."""
        self.expect("[")
        return self.listed(lambda: self._size(names), "]")

    def _size(self, names: Mapping[str, Var]) -> Dim:
        size = self.dimension(names, "a size")
        if size < 0:
            raise self.refused("a size that is not negative")
        return size

    def dimension(self, names: Mapping[str, Var], what: str = "an integer") -> Dim:
        """An integer, or index arithmetic over the variables in `names` up to a `,`, `:` or `)`."""
        if not names:
            return self.integer(what)
        self.space()
        start, depth = self.at, 0
        while self.at < len(self.text) and (depth or self.text[self.at] not in ",:)]"):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
        self.last = start
        try:
            return dimension(parse_expr(self.text[start : self.at], names))
        except ParseError as error:
            raise ParseError(f"line {self.number}: {error}") from error

    def literal(self) -> Callable[[DType], Any]:
        """A constant, whose dtype may stand after it: call the result with the dtype.

        The call raises ParseError where the dtype does not hold the value exactly.
        """
        self.space()
        start = self.at
        word = self._match(_LITERAL)
        if word is None:
            raise self.error("a constant")

        def held(dtype: DType) -> Any:
            value = _scalar(word, dtype)
            if value is None:
                self.at = start
                raise self.error(f"a value of {dtype.name}")
            return value

        return held

    def ahead_literal(self) -> bool:
        """Whether a constant and a colon are next, which stay unread."""
        self.space()
        match = _LITERAL.match(self.text, self.at)
        return match is not None and self.text.startswith(":", match.end())

    def ahead_number(self) -> bool:
        """Whether integers, or two with `..` between them, are all that is left."""
        return re.fullmatch(r"[-\d\s.]*", self.text[self.at :]) is not None

    def through(self, close: str) -> str:
        """The text up to the closing token that is not inside parentheses; it is read too."""
        depth = 0
        for at in range(self.at, len(self.text)):
            if depth == 0 and self.text[at] == close:
                text = self.text[self.at : at]
                self.at = at + 1
                return text
            depth += {"(": 1, ")": -1}.get(self.text[at], 0)
        raise self.error(f"{close!r} somewhere after this")

    def rest(self) -> str:
        """What is left of the line."""
        text = self.text[self.at :]
        self.at = len(self.text)
        return text

    def word(self, what: str) -> str:
        """Anything up to the next space."""
        word = self._match(_WORD)
        if word is None:
            raise self.error(what)
        return word

    def ahead(self, token: str) -> bool:
        """Whether `token` is next, which stays unread."""
        self.space()
        return self.text.startswith(token, self.at)


def _scalar(word: str, dtype: DType) -> Number | None:
    """The value a word stands for, or None if it is none that `dtype` holds."""
    if dtype is dtypes.bool:
        return {"true": True, "false": False}.get(word)
    if dtype.is_int:
        whole = _INT.fullmatch(word) and dtype.min <= int(word) <= dtype.max
        return int(word) if whole else None
    if dtype.is_complex:
        parts = _COMPLEX.fullmatch(word)
        held = [_scalar(part, dtype.real) for part in parts.groups()] if parts else [None]
        return None if None in held else complex(*held)
    if word in ("true", "false") or word.endswith("j"):
        return None
    with np.errstate(all="ignore"):
        held = optable.to_python(optable.scalar(dtype)(float(word)), dtype)
    return held if held == float(word) or (math.isnan(held) and word.endswith("nan")) else None


def cursors(text: str) -> list[Cursor]:
    """A cursor for every line that is not blank."""
    lines = [Cursor(line, number) for number, line in enumerate(text.split("\n"), 1)]
    return [line for line in lines if line.text]


def excerpt(lines: list[str], at: int, around: int = 3) -> str:
    """Lines around the one at index `at`, which an arrow marks."""
    first = max(0, at - around)
    marked = (
        f"{'->' if number == at else '  '} {line}"
        for number, line in enumerate(lines[first : at + around + 1], first)
    )
    return "\n".join(marked)
