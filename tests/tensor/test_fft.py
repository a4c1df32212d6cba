"""Fourier transforms against numpy's in float64, on random lengths, axes, dtypes and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor, Var, dtypes, fft, jit
from gpu import array_api as xp
from gpu.compiler.ir.graph import Node, interpret
from gpu.core.errors import DTypeError, InvalidIndex, InvalidType, InvalidValue, Unsupported
from gpu.runtime.execute import storage
from gpu.runtime.prepared import Counters
from gpu.tensor.fft.plan import padded_size, radices_of
from tensor.reference import rng_for, torch

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
NORMS = (None, "backward", "ortho", "forward")
CLOSE = 1e-6  # of the largest value, for float32


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    """Numbers in float32 of the kind that a transform takes."""
    real = rng.normal(size=shape).astype(np.float32)
    if name.startswith(("rfft", "ihfft")):
        return real
    return (real + 1j * rng.normal(size=shape)).astype(np.complex64)


def stored(node: Node) -> Any:
    return storage(node).copy_out().reshape(node.shape)


def wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def check(got: Tensor, want: Any, tolerance: float = CLOSE, compiled: bool = False) -> None:
    """Compares what is computed, or what the graph means: the latter compiles nothing."""
    (value,) = [got.numpy()] if compiled else interpret([got._node], stored)
    assert value.shape == want.shape
    assert value.dtype.kind == want.dtype.kind
    assert np.abs(value - want).max(initial=0) <= tolerance * np.abs(want).max(initial=0)


def test_transforms_on_any_device(device: str) -> None:
    """Two passes, one after lanes that lie together, and one with a prime that goes by a chirp."""
    rng = rng_for("device")
    x, real = drawn(rng, "fft", (3, 20, 2)), drawn(rng, "rfft", (2, 18))
    check(fft.ifft(Tensor(x, device=device), axis=1), np.fft.ifft(wide(x), axis=1), compiled=True)
    check(fft.rfft(Tensor(real, device=device)), np.fft.rfft(wide(real)), compiled=True)
    check(
        fft.fft(Tensor(x[0, :17, 0], device=device)), np.fft.fft(wide(x[0, :17, 0])), compiled=True
    )


@pytest.mark.parametrize("n", (1, 2, 13, 21, 48))
def test_any_length(n: int) -> None:
    rng = rng_for("length", n)
    x, real = drawn(rng, "fft", (2, n)), drawn(rng, "rfft", (2, n))
    check(fft.fft(Tensor(x)), np.fft.fft(wide(x)), compiled=True)
    check(fft.irfft(fft.rfft(Tensor(real)), n), wide(real))


def test_odd_lengths_of_real_numbers() -> None:
    """Of drawn lengths along drawn axes; the odd multiples of 17 go by a convolution."""
    rng = rng_for("odd")
    for n in (*(2 * int(k) + 1 for k in rng.integers(0, 120, 6)), 17, 17 * 3, 17 * 17):
        axis = int(rng.integers(3))
        shape = [int(k) for k in rng.integers(1, 4, 3)]
        shape[axis] = n
        real = drawn(rng, "rfft", tuple(shape))
        check(fft.rfft(Tensor(real), axis=axis), np.fft.rfft(wide(real), axis=axis))
        shape[axis] = n // 2 + 1
        z = drawn(rng, "irfft", tuple(shape))
        check(fft.irfft(Tensor(z), n, axis), np.fft.irfft(wide(z), n, axis))


@pytest.mark.parametrize("n", (15, 17, 45))
def test_a_row_is_as_if_it_were_alone(n: int) -> None:
    """What is not a number, or is large, reaches neither another row nor its gradient."""
    real = drawn(rng_for("rows", n), "rfft", (4, n))
    real[1] *= np.float32(1e12)
    real[3, 2] = np.nan
    x = Tensor(real, requires_grad=True)
    found = fft.rfft(x)
    found.abs().sum().backward()
    assert x.grad is not None
    theirs = torch.from_numpy(wide(real)).requires_grad_()
    torch.fft.rfft(theirs).abs().sum().backward()
    for row in range(3):
        check(found[row], np.fft.rfft(wide(real[row])))
        check(x.grad[row], theirs.grad[row].numpy())
    assert np.isnan(found[3].numpy()).all()


@pytest.mark.parametrize("name", ONE)
def test_axes_sizes_and_norms_are_numpys(name: str) -> None:
    for seed in range(8):
        rng = rng_for(name, seed)
        x = drawn(rng, name, tuple(int(n) for n in rng.integers(2, 9, 3)))
        axis, norm = int(rng.integers(-3, 3)), NORMS[int(rng.integers(4))]
        n = None if rng.random() < 0.3 else int(rng.integers(1, 14))
        ours = getattr(fft, name)(Tensor(x), n, axis, norm)
        check(ours, getattr(np.fft, name)(wide(x), n, axis, norm))


@pytest.mark.parametrize("name", SEVERAL)
def test_several_axes_are_numpys(name: str) -> None:
    for seed in range(6):
        rng = rng_for(name, seed)
        x = drawn(rng, name, tuple(int(n) for n in rng.integers(2, 9, 3)))
        count = 2 if name.endswith("2") else int(rng.integers(1, 4))
        axes = [int(a) for a in rng.permutation(3)[:count]]
        s = [int(n) for n in rng.integers(2, 14, count)] if seed else None
        norm = NORMS[int(rng.integers(4))]
        ours = getattr(fft, name)(Tensor(x), s, axes, norm)
        check(ours, getattr(np.fft, name)(wide(x), s, axes, norm))
    check(getattr(fft, name)(Tensor(x)), getattr(np.fft, name)(wide(x)))


@pytest.mark.parametrize("name", ("hfft2", "ihfft2", "hfftn", "ihfftn"))
def test_halves_along_several_axes_are_torchs(name: str) -> None:
    """Torch's sizes and axes are taken as they are; its norm has the names of numpy's."""
    for seed in range(4):
        rng = rng_for(name, seed)
        x = drawn(rng, name, tuple(int(n) for n in rng.integers(2, 9, 3)))
        count = 2 if name.endswith("2") else int(rng.integers(1, 4))
        dim = [int(a) for a in rng.permutation(3)[:count]]
        s = [int(n) for n in rng.integers(2, 14, count)] if seed else None
        norm = NORMS[int(rng.integers(4))]
        theirs = getattr(torch.fft, name)(torch.from_numpy(wide(x)), s, dim, norm or "backward")
        check(getattr(fft, name)(Tensor(x), s, dim=dim, norm=norm), theirs.resolve_conj().numpy())
    both = getattr(fft, name)(Tensor(x)), getattr(torch.fft, name)(torch.from_numpy(wide(x)))
    check(both[0], both[1].resolve_conj().numpy())


def test_float64_where_the_device_has_it(device: str) -> None:
    x = rng_for("wide").normal(size=(3, 12)) + 0j
    if dtypes.float64 in Device[device].renderer.target.native.lacking:
        with pytest.raises(Unsupported, match=r"float64|complex128"):
            fft.fft(Tensor(x.astype(np.complex64), device=device).cdouble()).realize()
        return
    check(fft.fft(Tensor(x, device=device)), np.fft.fft(x), 1e-15, compiled=True)


def test_dtypes_of_results() -> None:
    for dtype, wanted in (("int32", "complex64"), ("bool", "complex64"), ("float16", "complex64"),
                          ("float64", "complex128"), ("complex64", "complex64")):  # fmt: skip
        x = Tensor([1, 0, 1, 1]).cast(dtype)
        assert fft.fft(x).dtype.name == wanted
        assert fft.irfft(x).dtype.name == ("float64" if wanted == "complex128" else "float32")
    check(fft.fft(Tensor([1, 0, 1, 1])), np.fft.fft([1, 0, 1, 1]))


@pytest.mark.parametrize(("name", "n"), [(name, n) for name in ONE for n in (12, 15, 17)])
def test_gradients_are_torchs(name: str, n: int) -> None:
    x = drawn(rng_for(name, n), name, (2, n))
    ours = Tensor(x, requires_grad=True)
    theirs = torch.from_numpy(x.copy()).requires_grad_()
    for function, leaf in ((getattr(fft, name), ours), (getattr(torch.fft, name), theirs)):
        size = function(leaf).abs()
        (size * size * (size + 1)).sum().backward()
    assert ours.grad is not None
    check(ours.grad, theirs.grad.resolve_conj().numpy())


def test_inside_jit_and_of_symbolic_batches() -> None:
    @jit
    def halved(x: Tensor) -> Tensor:
        return fft.irfft(fft.rfft(x) * 0.5, x.shape[-1])

    x = rng_for("jit").normal(size=(6, 12)).astype(np.float32)
    for turn in range(3):
        np.testing.assert_allclose(halved(Tensor(x + turn)).numpy(), (x + turn) / 2, atol=1e-5)
    rows = Var("rows", 1, 6)
    for count in (2, 5):
        part = Tensor(x)[: rows.bind(count)]
        check(fft.fft(part), np.fft.fft(wide(x[:count])), compiled=True)
        with pytest.raises(Unsupported, match="axis 0 of symbolic size"):
            fft.fft(part, axis=0)


def test_parts_on_several_devices() -> None:
    x = drawn(rng_for("shards"), "fft", (4, 12))
    spread = Tensor(x).shard(("CPU", "CPU:1"), axis=0)
    check(fft.fft(spread), np.fft.fft(wide(x)), compiled=True)
    with pytest.raises(Unsupported, match="fft along axis 1"):
        fft.fft(Tensor(x).shard(("CPU", "CPU:1"), axis=1)).realize()


def test_a_pass_is_one_kernel() -> None:
    x = Tensor(drawn(rng_for("passes"), "fft", (2, 60))).realize()
    radices = radices_of(60)
    assert radices is not None
    fft.fft(x).realize()
    before = Counters.launches
    fft.fft(x).realize()
    assert Counters.launches - before == len(radices)


def test_lengths_are_those_of_the_radices() -> None:
    for n in range(1, 400):
        radices, padded = radices_of(n), padded_size(n)
        assert padded >= n
        assert radices_of(padded) is not None
        if radices is None:
            assert any(n % p == 0 for p in range(17, n + 1) if all(p % q for q in range(2, p)))
        else:
            assert np.prod(radices, initial=1) == n


@pytest.mark.slow
def test_errors_of_drawn_lengths() -> None:
    rng = rng_for("errors")
    for n in (*(int(n) for n in rng.integers(1, 513, 3)), int(2 ** rng.uniform(9, 20)), 2**16):
        x = drawn(rng, "fft", (n,))
        check(fft.fft(Tensor(x)), np.fft.fft(wide(x)), compiled=True)


@pytest.mark.parametrize("n", (1, 2, 7, 8))
def test_frequencies_and_their_order(n: int) -> None:
    for name in ("fftfreq", "rfftfreq"):
        got = getattr(fft, name)(n, d=0.3)
        np.testing.assert_allclose(got.numpy(), getattr(np.fft, name)(n, 0.3), rtol=1e-7)
    x = np.arange(n * 5).reshape(n, 5)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (0, 1)):
            want = getattr(np.fft, name)(x, axes)
            assert np.array_equal(getattr(fft, name)(Tensor(x), axes).numpy(), want)


STFT: tuple[dict[str, Any], ...] = (
    {"n_fft": 16, "hop_length": 5, "win_length": None, "center": False},
    {"n_fft": 30, "hop_length": 7, "win_length": 20, "normalized": True, "onesided": False},
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", STFT)
def test_stft_is_torchs(how: dict[str, Any]) -> None:
    rng = rng_for(str(how))
    x = rng.normal(size=(2, 150)).astype(np.float32)
    window = (rng.random(how["win_length"] or how["n_fft"]) + 0.2).astype(np.float32)
    ours = fft.stft(Tensor(x), window=Tensor(window), **how)
    known = torch.from_numpy(window)
    theirs = torch.stft(torch.from_numpy(x), window=known, return_complex=True, **how)
    check(ours, theirs.numpy())
    for length in (None, 100):
        back = fft.istft(ours, window=Tensor(window), length=length, **how)
        check(back, torch.istft(theirs, window=known, length=length, **how).numpy())


def test_stft_refuses_what_does_not_fit() -> None:
    x = Tensor.ones(40)
    with pytest.raises(InvalidValue, match="hop_length"):
        fft.stft(x, 8, hop_length=0)
    with pytest.raises(InvalidValue, match="leave nothing"):
        fft.istft(fft.stft(x, 8, hop_length=8), 8, hop_length=8, window=Tensor([0.0] + [1.0] * 7))


REFUSED: tuple[tuple[type[Exception], Callable[[], object]], ...] = (
    (InvalidType, lambda: fft.fft([1.0])),  # type: ignore[arg-type]
    (InvalidType, lambda: fft.fft(Tensor([1.0]), dim=0, axis=0)),  # type: ignore[call-arg]
    (InvalidIndex, lambda: fft.fft(Tensor([1.0]), axis=1)),
    (InvalidValue, lambda: fft.fft(Tensor([1.0]), n=0)),
    (InvalidValue, lambda: fft.fft(Tensor([1.0]), norm="other")),  # type: ignore[arg-type]
    (InvalidValue, lambda: fft.irfft(Tensor([1.0]))),
    (InvalidValue, lambda: fft.fftn(Tensor([1.0]), s=[1, 2])),
    (InvalidValue, lambda: fft.rfftn(Tensor([1.0]), axes=[])),
    (DTypeError, lambda: fft.rfft(Tensor([1j]))),
    (InvalidValue, lambda: fft.fftfreq(0)),
    (DTypeError, lambda: fft.fftfreq(4, dtype="int32")),
)


def test_what_is_refused() -> None:
    for error, call in REFUSED:
        with pytest.raises(error):
            call()


def test_torchs_names_of_axes_and_the_standards_namespace() -> None:
    x = drawn(rng_for("names"), "fft", (3, 4))
    check(fft.fft(Tensor(x), dim=0), np.fft.fft(wide(x), axis=0))  # type: ignore[call-arg]
    check(fft.fftn(Tensor(x), dim=(0,)), np.fft.fftn(wide(x), axes=(0,)))  # type: ignore[call-arg]
    check(xp.fft.fft(Tensor(x), axis=0), np.fft.fft(wide(x), axis=0))
    check(xp.fft.irfftn(Tensor(x), s=(3, 5), axes=(0, 1)), np.fft.irfftn(wide(x), (3, 5), (0, 1)))
    assert {*xp.fft.__all__} <= {*fft.__all__}
