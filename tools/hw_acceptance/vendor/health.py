"""Whether the vendor's stack computes: a sum that is known, by libcuda alone.

torch would say the same, but takes as long to import as all else here, on some machines a minute.
"""

from __future__ import annotations

import ctypes

from tools.hw_acceptance.child import Context
from tools.hw_acceptance.folder import read_kernel, read_manifest
from tools.hw_acceptance.vendor.libcuda import Cuda

_COUNT = 4096
_EXPECTED = _COUNT * (_COUNT - 1)  # twice the sum of 0 .. _COUNT - 1
_Numbers = ctypes.c_uint32 * _COUNT


def check(context: Context) -> None:
    """Adds numbers to themselves on GPU 0 and compares; only copies where no kernel is for it.

    Raises Unavailable without libcuda, StepFailed for its errors and a wrong sum.
    """
    with Cuda() as cuda:
        context.log.fact("device", cuda.name())
        sm = 10 * cuda.attribute(75) + cuda.attribute(76)
        context.log.fact("architecture", sm)
        numbers, back = _Numbers(*range(_COUNT)), _Numbers()
        size = ctypes.sizeof(numbers)
        place = cuda.alloc(size)
        cuda.copy("cuMemcpyHtoD_v2", place, ctypes.addressof(numbers), size)
        expected = _EXPECTED // 2
        if sm in read_manifest(context.folder)["architectures"]:
            pointer = ctypes.c_uint64(place)
            add = cuda.load(read_kernel(context.folder, sm, "add"), "add")
            arguments = (pointer, pointer, pointer, ctypes.c_uint32(_COUNT))
            cuda.launch(add, (1, 1, 1), (1, 1, 1), arguments)
            expected = _EXPECTED
        cuda.copy("cuMemcpyDtoH_v2", ctypes.addressof(back), place, size)
    found = sum(back)
    context.log.check("sum of numbers", found == expected, f"{found} of {expected}")
