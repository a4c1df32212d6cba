"""Kernels as native code of this machine."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NoReturn

from gpu.backends.cpu.native import c_library_addresses, native_function
from gpu.backends.cpu.pool import Pool, shared_pool
from gpu.core.arguments import whole
from gpu.core.objload import load_object
from gpu.runtime.program import Program, check_values

_EXTERNALS: Final = ("memset", "memcpy")


class CPUProgram(Program):
    """A kernel in executable memory.

    Its function is ``void NAME(ptr args, i64 worker, i64 workers)``; `args` points to 8-byte words:
    the buffers' addresses, that of scratch memory, then the values.

    Attributes:
        name: of the function.
        address: of its machine code, valid while this object is alive.
        scratch: bytes of scratch memory for each worker.
        parallel: whether all workers of the pool run it, or the calling thread alone.
    """

    def __init__(
        self,
        name: str,
        lib: bytes,
        scratch: int = 0,
        parallel: bool = False,
        pool: Pool | None = None,
    ):
        """`lib` is an ELF object; `pool` is that of the process where none is given.

        Raises InvalidValue where the object has no function of that name, and what
        `gpu.core.objload.load_object` raises.
        """
        self.name, self.scratch, self.parallel = name, scratch, parallel
        self._object = load_object(lib, _externals())
        self.address = self._object.address(name)
        self._call = native_function(self.address, "void(*)(char const *, int64_t, int64_t)")
        self._pool = pool

    @property
    def pool(self) -> Pool:
        """The pool whose workers and scratch memory it uses."""
        if self._pool is None:
            self._pool = shared_pool()
        return self._pool

    def __call__(
        self, *addresses: int, vals: Sequence[int] = (), wait: bool = False
    ) -> float | None:
        """Runs the kernel on buffers at `addresses`, with `vals` for its symbolic values.

        Returns when it has finished; with `wait`, the seconds it took.
        """
        if wait:
            started = time.perf_counter()
            self(*addresses, vals=vals)
            return time.perf_counter() - started
        if self.scratch:
            self._run_with_scratch(addresses, vals)
        elif self.parallel:
            self.pool.run_packed(self.address, self.words(addresses, vals))
        else:
            self._call(self.words(addresses, vals), 0, 1)
        return None

    def words(self, addresses: Sequence[int], vals: Sequence[int] = (), scratch: int = 0) -> bytes:
        """What `args` points to, as for a replay table; `scratch` is the address of that memory."""
        try:
            return _packer(len(addresses) + 1, len(vals))(*addresses, scratch, *vals)
        except (struct.error, TypeError) as error:
            self._refuse(addresses, vals, error)

    def _refuse(self, addresses: Sequence[int], vals: Sequence[int], error: Exception) -> NoReturn:
        """Raises InvalidType or InvalidValue for the first argument that is no 64-bit number."""
        check_values(self.name, vals)
        for number, address in enumerate(addresses):
            whole(address, f"the address of buffer {number} of {self.name}")
        raise error

    def _run_with_scratch(self, addresses: Sequence[int], vals: Sequence[int]) -> None:
        with self.pool.lock:
            words = self.words(addresses, vals, self.pool.scratch(self.scratch).address)
            if self.parallel:
                self.pool.run_packed(self.address, words)
            else:
                self._call(words, 0, 1)


@cache
def _packer(addresses: int, values: int) -> Callable[..., bytes]:
    return struct.Struct(f"={addresses}Q{values}q").pack


@cache
def _externals() -> dict[str, int]:
    return c_library_addresses(_EXTERNALS)
