"""The transformation `Dot`: a sum of products whose steps are words of neighbours.

Elements of 8 or 16 bits, of integers or bfloat16, go several to a word of 32, and one operation
multiplies the elements of two words and adds up (`gpu/compiler/ir/optable.py:DOTS`). Whatever the
operands are read from: what lies beyond the end of the loop is zero. Sums of integers are formed
modulo 2**32, of which those of fewer bits take the lowest.

Where an operation has a byte with a sign in the place of one without, or the reverse, its highest
bit is flipped: then it is 128 more, or less, and what that adds to a sum, so many times the other
operand, is taken off again. That does not depend on all loops, and `Tile` forms it once for many
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, NEVER, Mask, Var, at_most, expr
from gpu.compiler.ir.kernel.tree import Substitution, around_vars, as_block, find_loop, replace_loop
from gpu.compiler.ir.kernel.words import word_of
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.compiler.opt.primitives.predication import masked_loads, zero, zero_outside
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import IllegalOpt

# The highest bit of each byte of a word.
HIGHEST: Final = 0x80808080
# In the place of the number of a flipped factor where none is.
NEITHER: Final = -1


class Factors(NamedTuple):
    """Operands of an operation of `DOTS`, in its order, before they are made as wide as sums.

    Attributes:
        values: both of them.
        flipped: which one has its highest bit flipped, if one has.
    """

    values: tuple[K.Value, K.Value]
    flipped: int | None = None


def dot(body: K.Block, axis: str, name: str, flipped: int, inside: str) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Dot`. Raises IllegalOpt."""
    loop = find_loop(body, inside) if inside else None
    nest = reduction_nest(K.Block((loop,)) if loop else body)
    if nest is None:
        raise IllegalOpt("there is no reduction inside independent loops")
    var = next((v for v in loops_of_words(nest) if v.name == axis), None)
    factors = factors_of(nest, name).get(flipped) if var else None
    if var is None or factors is None:
        raise IllegalOpt(f"{axis} is no loop of a sum of products that {name} multiplies so")
    made = _in_words(nest, var, name, factors)
    return replace_loop(body, loop, made) if loop else made


def widen(body: K.Block) -> K.Stmt:
    """See `gpu.compiler.opt.opts.Widen`. Raises IllegalOpt."""
    nest = reduction_nest(body)
    if nest is None or nest.update.monoid != "add" or nest.update.value.attr != ("mul",):
        raise IllegalOpt("there is no sum of products inside independent loops")
    dtype = nest.update.value.dtype
    if not dtype.is_int or dtype.bits >= dtypes.int32.bits:
        raise IllegalOpt(f"sums of {dtype.name} are not wider in int32")
    wide = (K.cast(_narrow(v, dtype.bits), dtypes.int32) for v in nest.update.value.args)
    return _summed(nest, K.alu("mul", *wide), nest.reduction)


def loops_of_words(nest: Nest) -> list[Var]:
    """The loops of a sum of products whose steps may become words."""
    value = nest.update.value
    if nest.update.monoid != "add" or value.attr != ("mul",):
        return []
    return [v for v in nest.reduction if v.stop is None and all(v in a.vars for a in value.args)]


def factors_of(nest: Nest, name: str) -> dict[int, Factors]:
    """What operation `name` multiplies in a sum of products, by which factor is flipped.

    `NEITHER` is, or one of the two if that cannot be. Of dtypes that it does not take there are
    none.
    """
    dtype, (elements, sums) = nest.update.value.dtype, DOTS[name]
    if dtype is not sums and (sums.is_float or not dtype.is_int or dtype.bits > sums.bits):
        return {}
    first, second = (_narrow(value, dtype.bits) for value in nest.update.value.args)
    found = dict[int, Factors]()
    for numbers, values in (((0, 1), (first, second)), ((1, 0), (second, first))):
        fits = [_fits(v.dtype, e) for v, e in zip(values, elements, strict=True)]
        flips = [_flips(v.dtype, e) for v, e in zip(values, elements, strict=True)]
        if all(fits):
            return {NEITHER: Factors(values)}
        for slot in (0, 1):
            if flips[slot] and fits[1 - slot]:
                found.setdefault(numbers[slot], Factors(values, slot))
    return found


def _narrow(value: K.Value, bits: int) -> K.Value:
    """What a value is a wider form of, modulo 2**bits if it is an integer; a bool is a byte."""
    while value.kind == "cast" and _is_widened(value.args[0].dtype, value.dtype, bits):
        value = value.args[0]
    is_where = value.kind == "alu" and value.attr == ("where",)
    if is_where and value.args[2].kind == "const" and not value.args[2].attr[0]:
        inside = _narrow(value.args[1], bits)
        return K.alu("where", value.args[0], inside, zero(inside.dtype))
    return K.cast(value, dtypes.uint8) if value.dtype is dtypes.bool else value


def _is_widened(source: DType, dtype: DType, bits: int) -> bool:
    """Whether a cast keeps all values; the sign may go that is none modulo 2**bits."""
    is_wider = source.bits < dtype.bits and source.is_float == dtype.is_float
    keeps = dtype.is_float or dtype.bits == bits or _fits(source, dtype)
    return source is dtypes.bool or (is_wider and keeps)


def _fits(dtype: DType, element: DType) -> bool:
    """Whether all values of a dtype are elements."""
    if not dtype.is_int or not element.is_int:
        return dtype is element
    return element.min <= dtype.min and dtype.max <= element.max


def _flips(dtype: DType, element: DType) -> bool:
    """Whether a byte has its sign where elements have none, or the reverse."""
    return dtype.is_int and dtype.bits == element.bits == 8 and dtype is not element


def _in_words(nest: Nest, var: Var, name: str, factors: Factors) -> K.Stmt:
    (elements, sums), together = DOTS[name], DOTS[name].together
    word = Var(f"{var.name}o", 0, -(-var.extent // together) - 1)
    words = [
        word_of([*_steps(value, element, var, word, number != factors.flipped)])
        for number, (value, element) in enumerate(zip(factors.values, elements, strict=True))
    ]
    nothing = zero(sums)
    if factors.flipped is None:
        value = K.alu(name, *words, nothing)
    else:
        bits = K.const(dtypes.uint32, HIGHEST)
        flipped, alone = list(words), list(words)
        flipped[factors.flipped] = K.alu("xor", words[factors.flipped], bits)
        alone[factors.flipped] = bits
        value = K.alu("sub", K.alu(name, *flipped, nothing), K.alu(name, *alone, nothing))
    return _summed(nest, value, [word if v is var else v for v in nest.reduction])


def _summed(nest: Nest, value: K.Value, steps: Iterable[Var]) -> K.Stmt:
    """The nest with a sum of `value`, in its dtype, over `steps` in the place of its own."""
    old = nest.update.buf
    total = K.Buf(old.name, value.dtype, (), "private")
    read = {K.load(old, ()): K.cast(K.load(total, ()), old.dtype)}
    at_end = Substitution({}, values=read)
    before = [_begun(stmt, old, total) for stmt in nest.before]
    stmts = (
        *(K.Alloc(total if buf is old else buf) for buf in nest.accumulators),
        *before,
        around_vars(steps, K.Update(total, (), "add", value)),
        *map(at_end.stmt, nest.after),
    )
    return around_vars(nest.independent, as_block(K.Block(stmts)))


def _begun(stmt: K.Update, old: K.Buf, total: K.Buf) -> K.Update:
    """A statement before the sum, which begins in another accumulator."""
    if stmt.buf is not old:
        return stmt
    return stmt._replace(buf=total, value=K.cast(stmt.value, total.dtype))


def _steps(value: K.Value, element: DType, var: Var, word: Var, is_zero: bool) -> Iterator[K.Value]:
    """A factor at the steps of a word; behind the last step, where there are some, zero if
    `is_zero`."""
    outside: Callable[[K.Value, Mask], K.Value] = zero_outside if is_zero else masked_loads
    together = dtypes.uint32.bits // element.bits
    for number in range(together):
        step = expr(word) * together + number
        mask = at_most(step, var.extent - 1)
        if mask is NEVER:
            yield zero(element)
            continue
        one = Substitution({var: step}).value(value)
        one = one if mask is ALWAYS else outside(one, mask)
        same_bits = one.dtype.bits == element.bits
        yield one if same_bits else K.cast(one, element)
