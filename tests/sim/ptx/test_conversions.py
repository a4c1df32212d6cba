"""Conversions against exact fractions and ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor, trunc
from typing import Any

import numpy as np
import pytest

from sim.ptx.exact import FORMATS, is_nan, rounded, value
from sim.ptx.ops import LANES, Form, Words, check, integers, signed
from sim.ptx.test_floats import MINUS_ZERO, NAN, numbers

ml_dtypes = pytest.importorskip("ml_dtypes")
INTEGERS = tuple(f"{letter}{bits}" for letter in "su" for bits in (8, 16, 32, 64))
WHOLE = {"rni": round, "rzi": trunc, "rmi": floor, "rpi": ceil}


def _bits(kind: str) -> int:
    return int(kind.lstrip("subf"))


def _register(kind: str) -> int:
    return max(16, _bits(kind))


def _number(x: int, kind: str) -> int:
    x &= (1 << _bits(kind)) - 1
    return signed(x, _bits(kind)) if kind[0] == "s" else x


def _bounds(kind: str) -> tuple[int, int]:
    bits = _bits(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _make(rng: np.random.Generator, form: Form) -> Sequence[Words]:
    """Numbers of the last type of the opcode."""
    kind = form.text.split(" {d}")[0].rsplit(".", 1)[1]
    if kind not in FORMATS:
        return [integers(rng, bits) for bits in form.sources]
    return [numbers(rng, kind) for _ in form.sources]


def test_integers_to_integers() -> None:
    forms = []
    for source in INTEGERS:
        for target in INTEGERS:
            low, high = _bounds(target)
            for sat in ("", ".sat"):
                forms.append(
                    Form(
                        f"cvt{sat}.{target}.{source} {{d}}, {{a}};",
                        _register(target),
                        (_register(source),),
                        lambda x, s=source, t=target, q=sat, a=low, b=high: _number(
                            max(a, min(b, _number(x, s))) if q else _number(x, s), t
                        ),
                    )
                )
    check(forms)


def test_floats_to_integers() -> None:
    forms = []
    for source, form in FORMATS.items():
        if source == "bf16":
            continue
        for target in INTEGERS:
            low, high = _bounds(target)
            for mode, whole in WHOLE.items():
                forms.append(
                    Form(
                        f"cvt.{mode}.{target}.{source} {{d}}, {{a}};",
                        _register(target),
                        (form.bits,),
                        lambda x, s=source, w=whole, a=low, b=high: max(a, min(b, w(value(x, s)))),
                    )
                )
    check(forms, _make)


def test_nan_to_integers() -> None:
    """0 where the source is not .f64 and the result has not 64 bits, else its highest bit."""
    quiet = {"f16": 0x7E01, "bf16": 0x7FC1, "f32": 0x7FC00001, "f64": 0x7FF8000000000001}
    forms = []
    for source, form in FORMATS.items():
        for target in INTEGERS:
            bits = _bits(target)
            lowest = 1 << bits - 1 if source == "f64" or bits == 64 else 0
            for mode in WHOLE:
                forms.append(
                    Form(
                        f"cvt.{mode}.{target}.{source} {{d}}, {{a}};",
                        _register(target),
                        (form.bits,),
                        lambda x, t=target, w=lowest: _number(w, t),
                    )
                )

    def make(rng: np.random.Generator, form: Form) -> Sequence[Words]:
        kind = form.text.split(" {d}")[0].rsplit(".", 1)[1]
        sign = rng.integers(0, 2, LANES).astype(np.uint64) << np.uint64(form.sources[0] - 1)
        return [np.full(LANES, quiet[kind], np.uint64) | sign]

    check(forms, make)


@pytest.mark.parametrize("target", ["s8", "u8"])
@pytest.mark.parametrize("source", ["s32", "u16", "s64", "f32", "f64"])
def test_registers_of_8_bits(target: str, source: str) -> None:
    bits, mode = _bits(source), ".rzi" if source in FORMATS else ""
    low, high = _bounds(target)

    def wanted(x: int) -> int:
        if source in FORMATS:
            return max(low, min(high, trunc(value(x, source))))
        return _number(x, target)

    opcode = f"cvt{mode}.{target}.{source}"
    text = f"{{{{ .reg .{target} %c; {opcode} %c, {{a}}; cvt.s32.{target} {{d}}, %c; }}}}"
    form = Form(text, 32, (bits,), wanted)
    check([form], lambda rng, _: [numbers(rng, source) if mode else integers(rng, bits)])


def test_integers_to_floats() -> None:
    forms = []
    for source in INTEGERS:
        for target, form in FORMATS.items():
            for mode in ("rn", "rz", "rm", "rp"):
                if target in ("f16", "bf16") and mode != "rn":
                    continue
                forms.append(
                    Form(
                        f"cvt.{mode}.{target}.{source} {{d}}, {{a}};",
                        form.bits,
                        (_register(source),),
                        lambda x, s=source, t=target, m=mode: rounded(
                            Fraction(_number(x, s)), t, m
                        ),
                    )
                )
    check(forms, _make)


def _float_forms() -> Iterator[Form]:
    for source, form in FORMATS.items():
        for target, other in FORMATS.items():
            if source == target:
                for mode, whole in WHOLE.items() if source != "bf16" else ():
                    yield Form(
                        f"cvt.{mode}.{target}.{source} {{d}}, {{a}};",
                        form.bits,
                        (form.bits,),
                        lambda x, k=source, w=whole: rounded(
                            Fraction(w(value(x, k))), k, "rn", bool(x & MINUS_ZERO[k])
                        ),
                    )
                continue
            narrows = other.fraction < form.fraction or target == "f16"
            modes = ["rn"] if target == "bf16" or source == "bf16" else ["rn", "rz", "rm", "rp"]
            for mode in modes if narrows else [""]:
                yield Form(
                    f"cvt{'.' * bool(mode)}{mode}.{target}.{source} {{d}}, {{a}};",
                    other.bits,
                    (form.bits,),
                    lambda x, s=source, t=target, m=mode: rounded(
                        value(x, s), t, m or "rn", bool(x & MINUS_ZERO[s])
                    ),
                )
    yield Form(
        "cvt.rz.bf16.f32 {d}, {a};",
        16,
        (32,),
        lambda x: rounded(value(x, "f32"), "bf16", "rz", bool(x >> 31)),
    )


def test_floats_to_floats() -> None:
    check(list(_float_forms()), _make)


def _pair(high: int, low: int) -> int:
    return high << 16 | low


def test_pairs() -> None:
    forms = []
    for target in ("f16", "bf16"):
        for mode in ("rn", "rz"):
            forms.append(
                Form(
                    f"cvt.{mode}.{target}x2.f32 {{d}}, {{a}}, {{b}};",
                    32,
                    (32, 32),
                    lambda x, y, t=target, m=mode: _pair(
                        *(rounded(value(v, "f32"), t, m, bool(v >> 31)) for v in (x, y))
                    ),
                )
            )
    forms.append(
        Form(
            "cvt.rn.relu.f16x2.f32 {d}, {a}, {b};",
            32,
            (32, 32),
            lambda x, y: _pair(
                *(0 if v >> 31 else rounded(value(v, "f32"), "f16") for v in (x, y))
            ),
        )
    )
    check(forms, _make)


_EIGHT: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def _to_eight(pattern: int, kind: str) -> int:
    with np.errstate(over="ignore"):
        number = np.array([pattern], np.uint32).view(np.float32)
        largest = float(ml_dtypes.finfo(_EIGHT[kind]).max)
        limited = np.clip(number, -largest, largest)
        return int(limited.astype(_EIGHT[kind]).view(np.uint8)[0])


def _from_eight(code: int, kind: str) -> int:
    number = np.array([code], np.uint8).view(_EIGHT[kind]).astype(np.float16)
    pattern = int(number.view(np.uint16)[0])
    return NAN["f16"] if is_nan(pattern, "f16") else pattern


def test_eight_bits() -> None:
    forms = []
    for kind in ("e4m3", "e5m2"):
        forms.append(
            Form(
                f"cvt.rn.satfinite.{kind}x2.f32 {{d}}, {{a}}, {{b}};",
                16,
                (32, 32),
                lambda x, y, k=kind: _to_eight(x, k) << 8 | _to_eight(y, k),
            )
        )
        forms.append(
            Form(
                f"cvt.rn.f16x2.{kind}x2 {{d}}, {{a}};",
                32,
                (16,),
                lambda x, k=kind: _pair(_from_eight(x >> 8, k), _from_eight(x & 255, k)),
            )
        )
    check(forms, _make)


def test_tensor_floats() -> None:
    def nearest(x: int) -> int:
        """Ten bits of fraction, ties away from zero."""
        return (x + 0x1000 & ~0x1FFF) & 0xFFFFFFFF

    def make(rng: np.random.Generator, form: Form) -> Sequence[Words]:
        return [np.minimum(numbers(rng, "f32") & 0x7FFFFFFF, 0x7F7FE000)]

    check([Form("cvt.rna.tf32.f32 {d}, {a};", 32, (32,), nearest)], make)
