"""The forms that index expressions and masks take, their text, and the errors for bad input."""

from __future__ import annotations

import pytest

from gpu.compiler.ir.index import (
    ALWAYS,
    NEVER,
    Var,
    at_least,
    at_most,
    between,
    parse_expr,
    parse_mask,
    simplify_under,
)
from gpu.core.errors import InvalidType, InvalidValue, ParseError


def test_mask_forms() -> None:
    r = Var("r", 0, 15)
    padded = between(r, 1, 9)
    assert str(padded) == "r - 1 >= 0 & 9 - r >= 0"
    assert padded is at_most(r, 9) & at_least(r, 1) & at_least(r, 0) & at_most(2 * r, 19)
    assert at_least(r, 0) is ALWAYS
    assert at_least(r, 16) is NEVER
    assert padded & at_least(r, 10) is NEVER
    assert NEVER & padded is NEVER
    assert ALWAYS & padded is padded
    assert at_least(r // 4, 2) is at_least(r, 8)
    assert at_most(r // 4, 2) is at_most(r, 11)
    assert (str(ALWAYS), str(NEVER)) == ("always", "never")
    assert padded.vars == {r}
    assert padded.evaluate({r: 9}) is True
    assert simplify_under((r - 1) % 9, padded) is r - 1


@pytest.mark.parametrize(
    "text",
    ["16*c0 + c1 + 3", "(c0 + 2) // 4", "(3*c0) % 7", "9 - c0", "-c0 - 1", "-(c0 // 4)", "0",
     "c1 - 3*(c0 // 4)", "((c0 + c1) // 4) % 3", "-2*(c0 % 5)"],
)  # fmt: skip
def test_text_forms(text: str) -> None:
    names = {"c0": Var("c0", 0, 99), "c1": Var("c1", 0, 99)}
    assert str(parse_expr(text, names)) == text


@pytest.mark.parametrize(
    ("text", "column"),
    [("x +", 4), ("x + q", 5), ("x ? 2", 3), ("(x + 1", 7), ("x // 0", 6), ("x * x", 5),
     ("x 2", 3), ("", 1), ("x % (0 - 3)", 5)],
)  # fmt: skip
def test_parse_errors_name_the_column(text: str, column: int) -> None:
    with pytest.raises(ParseError, match=f"column {column}:"):
        parse_expr(text, {"x": Var("x", 0, 9)})


@pytest.mark.parametrize(("text", "column"), [("x >= 0 & x - q >= 0", 14), ("x >= 0 & x", 11)])
def test_mask_parse_errors_count_columns_in_the_whole_text(text: str, column: int) -> None:
    with pytest.raises(ParseError, match=f"column {column}:"):
        parse_mask(text, {"x": Var("x", -9, 9)})


def test_bad_operands_raise_typed_errors() -> None:
    x = Var("x", 0, 9)
    with pytest.raises(InvalidValue, match="divisor 0"):
        _ = x // 0
    with pytest.raises(InvalidValue, match="divisor -3"):
        _ = x % -3
    with pytest.raises(InvalidType, match="float"):
        _ = x + 1.5  # type: ignore[operator]
    with pytest.raises(InvalidType, match="multiplied and divided"):
        _ = x * (x + 1)  # type: ignore[operator]
    with pytest.raises(InvalidValue, match="bounds"):
        Var("x", 1, 0)
    with pytest.raises(InvalidValue, match="name"):
        Var("x y", 0, 1)
    with pytest.raises(InvalidValue, match="variable x"):
        (x + 1).evaluate({})
