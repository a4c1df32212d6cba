"""The graphics core, as far as computing needs it: its hub, its command processor's start.

Sources: gfx_v11_0.c, gfx_v12_0.c (wait_for_rlc_autoload_complete, config_gfx_rs64, constants_init,
rlc_enable_srm, update_spm_vmid, cp_compute_enable) of Linux 6.12.117; TCP_CNTL is tinygrad's (T).
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import mask
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.ip.gmc import VMIDS, hubs_of, start_hub
from gpu.drivers.am.pci.ip.soc import open_core_doorbells

_BOOTED: Final = 1 << 31  # BOOTLOAD_COMPLETE
_PIPES: Final = {"pfp": (0, 2), "me": (0, 2), "mec": (1, 4)}  # part -> (ME, pipes)
_STARTS: Final = {
    "pfp": "CP_PFP_PRGRM_CNTR_START",
    "me": "CP_ME_PRGRM_CNTR_START",
    "mec": "CP_MEC_RS64_PRGRM_CNTR_START",
}
_UNALIGNED, _PREFETCH = 3, 3
SHARED_BASE, PRIVATE_BASE = 1, 2
"""Bits 63:48 of generic addresses of LDS and of scratch memory."""
LAST_DOORBELL: Final = 0x8A  # of queues of the command processor (USERQUEUE_END)
_SETTLE: Final = 0.05
_SOFT_RESET: Final = 50e-6


def start_core(chip: Chip) -> None:
    """Waits for the core's firmware, sets its hub up, and lets the compute processor run."""
    core = chip.registers.gc
    chip.wait(core, "RLC_RLCS_BOOTLOAD_STATUS", _BOOTED, _BOOTED)
    chip.wait(core, "CP_STAT", mask(31), 0)
    _set_starts(chip)
    start_hub(hubs_of(chip)[0])
    core.set("TCP_CNTL", core.get("TCP_CNTL") | 0x2000_0000)
    core.update("RLC_SRM_CNTL", SRM_ENABLE=1, AUTO_INCR_ADDR=1)
    core.update("RLC_SPM_MC_CNTL", RLC_SPM_VMID=0xF)
    open_core_doorbells(chip)
    core.update("GRBM_CNTL", READ_TIMEOUT=0xFF)
    for vmid in range(VMIDS):
        with chip.selected(vmid=vmid):
            core.set(
                "SH_MEM_CONFIG",
                core.fields(
                    "SH_MEM_CONFIG",
                    ADDRESS_MODE=0,
                    ALIGNMENT_MODE=_UNALIGNED,
                    INITIAL_INST_PREFETCH=_PREFETCH,
                ),
            )
            core.set(
                "SH_MEM_BASES",
                core.fields("SH_MEM_BASES", PRIVATE_BASE=PRIVATE_BASE, SHARED_BASE=SHARED_BASE),
            )
    core.set("CP_MEC_DOORBELL_RANGE_LOWER", 0)
    core.set("CP_MEC_DOORBELL_RANGE_UPPER", 8 * LAST_DOORBELL)
    _run_compute(chip, True)


def _set_starts(chip: Chip) -> None:
    """Where firmware of each pipe begins; its processors are reset to go there."""
    core = chip.registers.gc
    for part, start in chip.starts.items():
        name = _STARTS[part]
        me, pipes = _PIPES[part]
        for pipe in range(pipes):
            with chip.selected(me=me, pipe=pipe):
                core.set_pair(name, f"{name}_HI", start >> 2)
        control = "CP_MEC_RS64_CNTL" if part == "mec" else "CP_ME_CNTL"
        fields = [f"{part.upper()}_PIPE{pipe}_RESET" for pipe in range(pipes)]
        core.update(control, **dict.fromkeys(fields, 1))
        core.update(control, **dict.fromkeys(fields, 0))


def _run_compute(chip: Chip, run: bool) -> None:
    """Lets the compute processor run, or halts it with all of its pipes in reset."""
    pipes = range(_PIPES["mec"][1])
    chip.registers.gc.update(
        "CP_MEC_RS64_CNTL",
        MEC_INVALIDATE_ICACHE=int(not run),
        MEC_HALT=int(not run),
        **{f"MEC_PIPE{pipe}_RESET": int(not run) for pipe in pipes},
        **{f"MEC_PIPE{pipe}_ACTIVE": int(run) for pipe in pipes},
    )
    chip.sleep(_SETTLE)


def reset_compute(chip: Chip) -> None:
    """Takes all compute queues off, whatever they do, and lets the processor run anew.

    As gfx_v11_0_soft_reset, but for the pipeline of graphics, which nobody has started: with that
    left alone, what `start_core` has set stays (tinygrad, T).
    """
    core = chip.registers.gc
    parts = [f"SOFT_RESET_{part}" for part in ("CP", "CPF", "CPC", "CPG")]
    for on in (1, 0):
        core.update("GRBM_SOFT_RESET", **dict.fromkeys(parts, on))
        chip.sleep(_SOFT_RESET)
    _set_starts(chip)
    _run_compute(chip, True)


def stop_core(chip: Chip) -> None:
    """Halts the compute processor; its queues are gone."""
    _run_compute(chip, False)
