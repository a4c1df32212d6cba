"""What a chip's instructions are called here: operations that are alike have one name, RDNA3's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

Rename = Callable[[str], str]

_RDNA4: Final[Mapping[str, str]] = {
    "s_add_co_u32": "s_add_u32",
    "s_sub_co_u32": "s_sub_u32",
    "s_add_co_i32": "s_add_i32",
    "s_sub_co_i32": "s_sub_i32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
    "s_wait_alu": "s_waitcnt_depctr",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
}
_NUMBER: Final = re.compile(r"((?:min|max|med)3?|minmax|maxmin)_num_")


def of_rdna4(name: str) -> str:
    """Of RDNA4: its ``min_num`` is what ``min`` is without MODE.IEEE, which it has not.

    Matrices lie in other registers than RDNA3's.
    """
    if name in _RDNA4:
        return _RDNA4[name]
    name = name.replace("v_wmma_", "v_wmma_rdna4_").replace("sub_clamp", "csub")
    return _NUMBER.sub(r"\1_", name)


def as_it_is(name: str) -> str:
    """Of RDNA3 and RDNA3.5."""
    return name
