"""Our tables for NVIDIA against Debian's package of the open kernel modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.autogen.nvidia import tables
from tools.autogen.nvidia.__main__ import check, report
from tools.autogen.nvidia.compare import DIFFERENT, NOT_THERE, SAME, compare
from tools.autogen.nvidia.package import PACKAGES, Facts, _methods


def _facts(branch: int) -> Facts:
    """A package that says what our tables say, in so far as a package can."""
    structs = {}
    for one in tables.structs(branch):
        members = structs.get(one.name, (0, []))[1]
        structs[one.name] = (one.size, [*members, *((n, *p) for n, p in one.places.items())])
    return Facts(numbers=dict(tables.numbers()), structs=structs)


@pytest.mark.parametrize("branch", PACKAGES)
def test_what_a_package_says_otherwise_is_found(branch: int) -> None:
    facts = _facts(branch)
    verdicts = {one.name: one for one in compare(branch, facts)}
    assert not [one for one in verdicts.values() if one.verdict == DIFFERENT]
    assert verdicts["NVOS21_PARAMETERS.hClass"].verdict == SAME
    facts.numbers["UVM_FREE"] += 1
    size, members = facts.structs["NVOS21_PARAMETERS"]
    facts.structs["NVOS21_PARAMETERS"] = (size, [(n, at + 4, w) for n, at, w in members])
    facts.numbers.pop("NV_ERR_TIMEOUT")
    found = {one.name: one for one in compare(branch, facts)}
    assert found["UVM_FREE"].verdict == DIFFERENT and "in the package 0x23" in found["UVM_FREE"].why
    assert found["NVOS21_PARAMETERS.hClass"].verdict == DIFFERENT
    assert found["NVOS21_PARAMETERS (size)"].verdict == SAME
    assert found["NV_ERR_TIMEOUT"].verdict == NOT_THERE
    text = report(found.values(), with_same=False)
    assert "DIFFERENT: UVM_FREE (0x22, in the package 0x23)" in text
    assert "NVOS34_PARAMETERS" not in text and "NVOS34_PARAMETERS" in report(found.values(), True)


def test_a_command_is_known_by_who_answers_it_and_by_its_argument() -> None:
    name, number = "NV2080_CTRL_CMD_GR_GET_INFO", 0x20801201
    for answers, said in (
        (("subdeviceCtrlCmdKGrGetInfo_IMPL", 32), (SAME, SAME)),
        (("", 32), (SAME, SAME)),
        (("subdeviceCtrlCmdKGrGetInfo_IMPL", 28), (SAME, DIFFERENT)),
        (("subdeviceCtrlCmdKGrGetCapsV2_IMPL", 32), (DIFFERENT, SAME)),
    ):
        facts = Facts(controls={number: answers})
        found = {one.name: one.verdict for one in compare(550, facts)}
        assert (found[name], found[f"{name} (bytes of its argument)"]) == said


def test_methods_are_read_from_a_class_header() -> None:
    text = """
#define NVC86F_NOP                    (0x00000008)
#define NVC86F_SEM_EXECUTE            (0x0000006C)
#define NVC86F_SEM_EXECUTE_OPERATION  2:0
#define NVC86F_SEM_EXECUTE_OPERATION_RELEASE  0x00000001  /* why */
#define NVC56F_NOP                    (0x00000004)
"""
    assert dict(_methods({"clc86f.h": text, "nv.h": text})) == {
        "NVC86F": {
            "NOP": 8,
            "SEM_EXECUTE": 0x6C,
            "SEM_EXECUTE_OPERATION": (0, 3),
            "SEM_EXECUTE_OPERATION_RELEASE": 1,
        }
    }


@pytest.mark.slow
@pytest.mark.parametrize("branch", PACKAGES)
def test_debian_has_nothing_otherwise(
    branch: int, need: Callable[[str], None], tmp_path: Path
) -> None:
    need("nvidia-source")
    from tools.autogen.debian import Archive

    findings = check(branch, PACKAGES[branch], Archive(tmp_path))
    assert not [one for one in findings if one.verdict == DIFFERENT], report(findings, False)
    assert sum(one.verdict == SAME for one in findings) > 1000
