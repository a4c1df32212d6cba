"""Our side of softmax, layernorm, matrix products and negation, by the tensor library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.core.errors import Unsupported
from gpu.drivers.questions import variants_text
from tools.hw_acceptance.bench import rows
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladders import LADDERS
from tools.hw_acceptance.steplog import Unavailable
from tools.hw_acceptance.suites.mapped import mapped_libraries

if TYPE_CHECKING:
    from gpu import Tensor

Floats = npt.NDArray[np.floating[Any]]
DTYPES: Final = {"bf16": "bfloat16", "f32": "float32"}
_EPSILON: Final = 1e-5
_ROWS: Final = 4  # that are compared with numpy
_COLUMNS: Final = 64  # of a product, likewise
_BF16: Final = 2.0**-8  # half a unit in the last place of bfloat16, relative
_TOLERANCE: Final = {"bf16": 4 * _BF16, "f32": 1e-4}


def ours(context: Context) -> None:
    """All rows of tensors, on the ladder's device; a part of each result is compared with numpy.

    Raises Unavailable where its compiler is not installed.
    """
    from gpu import Context as Settings

    ladder = LADDERS[context.ladder]
    try:
        find_library("nvrtc") if ladder.device == "NV" else llvmlite_version()
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    simulated = context.simulation is not None
    sizes, most = (rows.SMALL, 1) if simulated else (rows.Sizes(), 200)
    variants = variants_text(context.force)
    with Settings(DEV=ladder.device, SIM=context.chip, **{ladder.setting: variants}):
        bench = _Bench(context, sizes, most)
        for shape in sizes.shapes:
            for short in DTYPES:
                bench.normalize(short, shape)
        bench.multiply()
        bench.negate()
    context.log.fact(rows.OURS, bench.seconds)
    found = mapped_libraries()
    context.log.check("no run-time library of the vendor's", not found, ", ".join(found))


class _Bench:
    def __init__(self, context: Context, sizes: rows.Sizes, most: int):
        self.seconds: dict[str, float] = {}
        self._context, self._sizes, self._most = context, sizes, most
        self._random = np.random.default_rng(1)

    def normalize(self, short: str, shape: tuple[int, int]) -> None:
        """Softmax and layernorm of one type and shape, along the rows."""
        x, weight = self._put(short, shape), self._put(short, shape[1:])
        bias = self._put(short, shape[1:])
        exact, w, b = _head(x), _values(weight), _values(bias)
        powers = np.exp(exact - exact.max(1, keepdims=True))
        centred = exact - exact.mean(1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + _EPSILON)
        self._row(
            *(rows.row("softmax", short, shape), short, powers / powers.sum(1, keepdims=True)),
            lambda: x.softmax(-1),
        )
        self._row(
            *(rows.row("layernorm", short, shape), short, scaled * w + b),
            lambda: x.layernorm(eps=_EPSILON) * weight + bias,
        )

    def multiply(self) -> None:
        """The product of two bf16 matrices."""
        n = self._sizes.matrix
        a, b = self._put("bf16", (n, n)), self._put("bf16", (n, n))
        exact = _head(a) @ _values(b[:, :_COLUMNS])
        self._row(rows.GEMM, "bf16", exact, lambda: a @ b)

    def negate(self) -> None:
        """A generated kernel that reads and writes as a copy does."""
        from gpu import Tensor

        x = Tensor(np.arange(self._sizes.copied // 4, dtype=np.float32)).realize()
        self._row(rows.NEGATE, "f32", -_head(x), lambda: -x)

    def _put(self, short: str, shape: tuple[int, ...]) -> Tensor:
        from gpu import Tensor

        values = self._random.standard_normal(shape, np.float32)
        return Tensor(values).cast(DTYPES[short]).realize()

    def _row(self, name: str, short: str, exact: Floats, make: Callable[[], Tensor]) -> None:
        from gpu import Device, jit

        run = jit(lambda: make().realize())
        device = Device[Device.DEFAULT]
        self.seconds[name] = rows.time_calls(run, device.synchronize, self._most)
        self._context.log.fact(rows.OURS, self.seconds)
        found = _head(run())
        found = found[:, : exact.shape[1]] if exact.ndim > 1 else found
        scale = np.abs(exact).max()
        worst = float(np.abs(found - exact).max() / scale)
        right = worst <= _TOLERANCE[short]
        self._context.log.check(name, right, f"{worst:.2e} of the largest value off")


def _head(value: Tensor) -> Floats:
    """The first rows, or elements, as float64."""
    return _values(value[:_ROWS])


def _values(value: Tensor) -> Floats:
    found: Floats = value.cast("float32").numpy().astype(np.float64)
    return found
