"""Text of index expressions, read: Python's own notation and precedence.

Reading the text of an expression (`str`), with the same variables, gives the same object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu.compiler.ir.index import expression as nodes
from gpu.core.errors import ParseError

_TOKEN = re.compile(r"[0-9]+|[A-Za-z_][A-Za-z0-9_.]*|//|[-+*%()]")


def parse_expr(text: str, names: Mapping[str, nodes.Var]) -> nodes.Expr:
    """Read an expression of int literals, the variables in `names`, `+ - * // %` and parentheses.

    Raises ParseError with the column, counted from 1.
    """
    return Reader(text, names).whole()


def parse_error(text: str, column: int, problem: str) -> ParseError:
    """The error for `problem` at a column of `text`, counted from 1."""
    return ParseError(f"index text {text!r}, column {column}: {problem}")


class Reader:
    """A recursive-descent reader of `text[start:end]`; errors count columns in all of `text`."""

    def __init__(
        self, text: str, names: Mapping[str, nodes.Var], start: int = 0, end: int | None = None
    ) -> None:
        self._text = text
        self._names = names
        self._end = len(text) if end is None else end
        self._tokens = self._tokenise(start)
        self._next = 0

    def whole(self) -> nodes.Expr:
        """The expression that is the entire range. Raises ParseError."""
        value = self._sum()
        if self._next < len(self._tokens):
            raise self._error(f"unexpected {self._peek()!r} after the expression")
        return value

    def _tokenise(self, position: int) -> list[tuple[int, str]]:
        """The tokens with the positions they start at."""
        tokens: list[tuple[int, str]] = []
        while True:
            while position < self._end and self._text[position].isspace():
                position += 1
            if position >= self._end:
                return tokens
            match = _TOKEN.match(self._text, position, self._end)
            if match is None:
                problem = f"unexpected character {self._text[position]!r}"
                raise parse_error(self._text, position + 1, problem)
            tokens.append((position, match.group()))
            position = match.end()

    def _error(self, problem: str) -> ParseError:
        """`problem`, placed at the next token or behind the last."""
        at_end = self._next >= len(self._tokens)
        position = self._end if at_end else self._tokens[self._next][0]
        return parse_error(self._text, position + 1, problem)

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _sum(self) -> nodes.Expr:
        value = self._product()
        while self._peek() in ("+", "-"):
            if self._take() == "+":
                value = value + self._product()
            else:
                value = value - self._product()
        return value

    def _product(self) -> nodes.Expr:
        value = self._signed()
        while self._peek() in ("*", "//", "%"):
            operator = self._take()
            start = self._next
            right = self._signed()
            if operator == "*" and value.is_const:
                value = right * value.const
                continue
            if not right.is_const or (operator != "*" and right.const <= 0):
                self._next = start
                wanted = "an int" if operator == "*" else "a positive int"
                raise self._error(f"expected {wanted} after {operator!r}")
            if operator == "*":
                value = value * right.const
            else:
                value = value // right.const if operator == "//" else value % right.const
        return value

    def _signed(self) -> nodes.Expr:
        if self._peek() == "-":
            self._take()
            return -self._signed()
        return self._primary()

    def _primary(self) -> nodes.Expr:
        token = self._peek()
        if token.isdigit():
            return nodes.constant(int(self._take()))
        if token == "(":
            self._take()
            value = self._sum()
            if self._peek() != ")":
                raise self._error("expected ')'")
            self._take()
            return value
        if token and (token[0].isalpha() or token[0] == "_"):
            if token not in self._names:
                known = ", ".join(sorted(self._names)) or "none"
                raise self._error(f"unknown variable {token!r}; known: {known}")
            return nodes.expr(self._names[self._take()])
        raise self._error(f"expected a number, a variable or '(', got {token or 'the end'!r}")
