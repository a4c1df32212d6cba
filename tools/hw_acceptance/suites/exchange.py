"""Memory shared with other libraries on one GPU, each of them in a process of its own.

Their work is in a stream of theirs and still runs when its result is taken, and ours when they
take it; what was lent is given back before it is used. A wrong order is a wrong value.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from gpu.core.errors import Unsupported
from gpu.sim.cuda.library import load
from gpu.sim.cuda.sharedfile import SONAME, load_file
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.steplog import StepFailed
from tools.hw_acceptance.suites.supervise import run_checks, supervise
from tools.hw_acceptance.suites.tensors import need_libcuda

Values = npt.NDArray[np.float32]
_ROUNDS: Final = 1000
_SIMULATED: Final = 5
_LIMIT: Final = 100.0  # seconds of a library; importing one may take twenty
_SEED: Final = 18


class Other(Protocol):
    """A library with arrays on the GPU, in a stream of its own."""

    def triple(self, values: Values) -> Any:
        """An array of three times the values, which may not be computed yet."""
        ...

    def plus_one(self, shared: Any) -> Any:
        """An array of a tensor's values and one, likewise."""
        ...

    def host(self, array: Any) -> Values:
        """What is in an array of `plus_one`."""
        ...


class _Torch:
    def __init__(self) -> None:
        _need("torch")
        import torch

        if not torch.cuda.is_available():
            raise Unsupported(f"torch {torch.__version__} sees no GPU of CUDA")
        self._torch, self._stream = torch, torch.cuda.Stream()

    def triple(self, values: Values) -> Any:
        with self._torch.cuda.stream(self._stream):
            return self._torch.from_numpy(values).cuda(non_blocking=True) * 3

    def plus_one(self, shared: Any) -> Any:
        with self._torch.cuda.stream(self._stream):
            return self._torch.from_dlpack(shared) + 1

    def host(self, array: Any) -> Values:
        with self._torch.cuda.stream(self._stream):
            found: Values = array.cpu().numpy()
        return found


class _CuPy:
    def __init__(self) -> None:
        _need("cupy")
        import cupy

        if not cupy.cuda.is_available():
            raise Unsupported(f"cupy {cupy.__version__} sees no GPU")
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)

    def triple(self, values: Values) -> Any:
        with self._stream:
            return self._cupy.asarray(values) * 3

    def plus_one(self, shared: Any) -> Any:
        with self._stream:
            return self._cupy.from_dlpack(shared) + 1

    def host(self, array: Any) -> Values:
        with self._stream:
            found: Values = self._cupy.asnumpy(array)
        return found


class _Jax:
    """JAX has streams of its own, which it does not show."""

    def __init__(self) -> None:
        _need("jax")
        import jax

        try:
            self._jax, self._gpu = jax, jax.devices("cuda")[0]
        except RuntimeError as error:
            raise Unsupported(f"jax {jax.__version__} sees no GPU: {error}") from error

    def triple(self, values: Values) -> Any:
        return self._jax.device_put(values, self._gpu) * 3

    def plus_one(self, shared: Any) -> Any:
        return self._jax.dlpack.from_dlpack(shared) + 1

    def host(self, array: Any) -> Values:
        return np.asarray(array)


class _Numba:
    """numba, whose kernels would need NVIDIA's libNVVM: it copies, and the host computes."""

    def __init__(self) -> None:
        _need("numba")
        from numba import cuda

        if not cuda.is_available():
            raise Unsupported("numba sees no GPU")
        self._cuda, self._stream = cuda, cuda.stream()

    def triple(self, values: Values) -> Any:
        return self._cuda.to_device(values * 3, stream=self._stream)

    def plus_one(self, shared: Any) -> Any:
        return self._cuda.as_cuda_array(shared)

    def host(self, array: Any) -> Values:
        found: Values = array.copy_to_host() + 1
        return found


LIBRARIES: Final[dict[str, Callable[[], Other]]] = {
    "torch": _Torch,
    "jax": _Jax,
    "cupy": _CuPy,
    "numba": _Numba,
}


def exchange(context: Context) -> None:
    """Each library that is here; one that is not is told with its reason.

    Raises Unavailable without libcuda, StepFailed.
    """
    need_libcuda(context)
    context.log.fact("rounds", _rounds(context))
    supervise(context, f"{__name__}:run_part", tuple(LIBRARIES), _LIMIT, alone=True)


def run_part(context: Context) -> None:
    """The one that the option names, in this process."""
    run_checks(context, {name: partial(_check, context, make) for name, make in LIBRARIES.items()})


def play(other: Other, rounds: int) -> None:
    """Values that go to and fro under `DEV=CUDA`. Raises StepFailed for the first wrong ones."""
    from gpu import Tensor

    rng = np.random.default_rng(_SEED)
    for number in range(rounds):
        shape = tuple(int(n) for n in rng.integers(1, 65, rng.integers(1, 4)))
        values = rng.integers(-1000, 1000, shape).astype(np.float32)
        theirs = Tensor.from_dlpack(other.triple(values))
        _same(f"round {number}, theirs of shape {shape}", (theirs + 1).numpy(), values * 3 + 1)
        ours = (Tensor(values) * 2).realize()
        array = other.plus_one(ours)
        del ours
        again = (Tensor(values) * -7).realize()  # which may get the memory that was lent
        _same(f"round {number}, ours of shape {shape}", other.host(array), values * 2 + 1)
        del array
        _same(f"round {number}, what came after", again.numpy(), values * -7)


def _same(what: str, found: Values, wanted: Values) -> None:
    if found.shape != wanted.shape or (found != wanted).any():
        raise StepFailed(f"{what}: {found.ravel()[:4].tolist()}, not {wanted.ravel()[:4].tolist()}")


def _rounds(context: Context) -> int:
    return _SIMULATED if context.chip else _ROUNDS


def _check(context: Context, make: Callable[[], Other]) -> None:
    from gpu import Context as Settings

    if context.chip:  # one libcuda for both: the file, which is loaded by its name and runs PTX
        path = str(context.log.folder / SONAME)
        load_file(load(context.chip).functions, path)
        os.environ["NUMBA_CUDA_DRIVER"] = path
    with Settings(DEV="CUDA:PTX" if context.chip else "CUDA", SIM=""):
        play(make(), _rounds(context))


def _need(name: str) -> None:
    """Raises Unsupported where there is no such package."""
    if importlib.util.find_spec(name) is None:
        raise Unsupported(f"{name} is not installed")
