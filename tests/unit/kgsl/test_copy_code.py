"""gpu/drivers/kgsl/copy_code.py is what Mesa's compiler makes of tools/adreno_copy.py today."""

from __future__ import annotations

import pytest

from gpu.core.errors import Unsupported
from gpu.core.ir3binary import UNIT
from gpu.drivers.kgsl.chips import CHIPS
from gpu.drivers.kgsl.copy_code import BLOCK, copy_code


@pytest.mark.parametrize("chip", CHIPS)
def test_each_chip_has_the_kernel(chip: str) -> None:
    code = copy_code(chip)
    assert f"a{code.chip}" == chip and code.block == BLOCK
    assert code.code and not len(code.code) % UNIT and not code.private
    assert code.parameters == 24


def test_the_kernel_is_made_anew_alike() -> None:
    from tools import adreno_copy

    try:
        made = adreno_copy.current()
    except Unsupported as error:
        pytest.skip(str(error))
    assert made == adreno_copy.PATH.read_text()
