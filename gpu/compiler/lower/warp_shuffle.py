"""Values exchanged between the threads of a warp, of dtypes that the device does not exchange."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.legalize import Legalizer
from gpu.compiler.lower.narrow_floats import FORMATS
from gpu.compiler.targets import Native
from gpu.core.dtype import DType, dtypes


class Exchanger:
    """Emits `shuffle_xor`; what is not in `Native.shuffled` goes as integers of 32 bits."""

    def __init__(self, emitter: Emitter, builder: Legalizer[Inst], native: Native):
        self.emitter, self.builder, self.native = emitter, builder, native

    def shuffle(self, x: Inst, distance: int, warp: int) -> Inst:
        """What `x` is on the thread whose number is this one's xor `distance`."""
        builder, dtype = self.builder, x.dtype
        paired = self.native.paired and dtype.is_int and dtype.bits == 64
        if dtype in self.native.shuffled or paired:
            return self.emitter.effect("shuffle_xor", dtype, 1, (x,), (distance, warp))
        if dtype.bits == 64:
            return self._words(x, distance, warp)
        word = _word(dtype)
        if dtype in FORMATS:
            bits = builder.bitcast(x, FORMATS[dtype].bits)
            other = self.shuffle(builder.cast(bits, word), distance, warp)
            return builder.bitcast(builder.cast(other, FORMATS[dtype].bits), dtype)
        convert = builder.bitcast if dtype.bits == 32 else builder.cast
        return convert(self.shuffle(convert(x, word), distance, warp), dtype)

    def _words(self, x: Inst, distance: int, warp: int) -> Inst:
        """64 bits as two words."""
        builder = self.builder
        bits = builder.bitcast(x, dtypes.uint64)
        half = builder.const(dtypes.uint64, 32)
        low, high = (
            builder.cast(self.shuffle(word, distance, warp), dtypes.uint64)
            for word in (
                builder.cast(bits, dtypes.uint32),
                builder.cast(builder.op("shr", bits, half), dtypes.uint32),
            )
        )
        return builder.bitcast(builder.op("or", low, builder.op("shl", high, half)), x.dtype)


def _word(dtype: DType) -> DType:
    """The integer of 32 bits that holds all values of a dtype, or their bits."""
    return dtypes.int32 if dtype.is_int and dtype.is_signed else dtypes.uint32
