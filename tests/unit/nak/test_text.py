"""The text form of NIR: whole programs and no others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.autogen import mesa
from gpu.compiler.nir_text import ALU, parse_nir, print_nir
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.core.errors import ParseError
from unit.cuda.kernels import reversing, roots_and_products, symbolic

TEXTS = [
    NAKRenderer("sm_90").render(program)
    for program in (reversing(2, 4, 64).program(), roots_and_products().program(), symbolic("grid"))
]
HEAD = "nir k block 32 shared 16 scratch 16 parameters 16\n"


@pytest.mark.parametrize("text", TEXTS, ids=["threads", "floats", "values"])
def test_a_text_is_read_back(text: str) -> None:
    assert print_nir(parse_nir(text)) == text


def test_operations_have_as_many_operands_as_in_mesa() -> None:
    assert {name: len(rule.split(">")[0]) for name, rule in ALU.items()} == {
        name: operands
        for name, (_, operands) in mesa.ALU.items()
        if name not in ("mov", "pack_64_2x32_split")  # which builders need
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%0 = fsin 32", "fsin is no operation"),
        ("%1 = load_const 32 (1)", "the next value is %0"),
        ("load_const 32 (1)", "a value has a number"),
        ("%0 = load_const 8 (256)", "it fits no 8 bits"),
        ("%0 = load_const 7 (1)", "values have 1, 8, 16, 32 or 64 bits"),
        ("%0 = ineg 32 %0", "%0 is not seen here"),
        ("%0 = param 64 (16)", "a word of 16 bytes"),
        ("%0 = load_const 32 (1)\n  %1 = iadd 64 %0, %0", "%0 has 32 bits, not 64"),
        ("%0 = load_const 32 (1)\n  %1 = iadd 32 %0", "it has 2 operands"),
        ("%0 = load_const 32 (1)\n  %1 = load_const 8 (1)\n  %2 = ieq 1 %0, %1", "[8, 32] bits"),
        ("%0 = load_const 32 (1)\n  %1 = b2i32 32 %0", "%0 has 32 bits, not 1"),
        ("%0 = load_const 1 (1)\n  %1 = b2i32 64 %0", "its value has 32 bits"),
        ("%0 = reg 32\n  %1 = load_reg 64 %0", "operands of [32, 64] bits"),
        ("%0 = load_const 64 (8)\n  %1 = load_global 32 %0 (3, 0)", "alignment"),
        ("%0 = load_const 64 (8)\n  %1 = load_global 1 %0 (1, 0)", "a bool is no memory"),
        ("break", "right inside a loop"),
        ("endloop", "it closes no loop"),
        ("loop", "loop is never closed"),
        ("%0 = load_const 1 (1)\n  if %0\n  endloop", "it closes no loop"),
        (
            "%0 = load_const 1 (1)\n  if %0\n  %1 = load_const 8 (1)\n  endif\n  %2 = ineg 8 %1",
            "%1 is not seen here",
        ),
        ("%0 = load_const 32 1", "is no instruction"),
    ],
)
def test_what_is_malformed_is_named(body: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_nir(f"{HEAD}  {body}\nend\n")
    assert message in caught.value.message


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_a_cut_text_is_refused_and_a_changed_one_checked(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 2))
    with pytest.raises(ParseError):
        parse_nir(text[:at])
    changed = text[:at] + data.draw(st.sampled_from("0123456789%,()\n x")) + text[at + 1 :]
    try:
        program = parse_nir(changed)
    except ParseError:
        return
    assert parse_nir(print_nir(program)) == program
