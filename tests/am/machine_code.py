"""The kernels of the conformance suite as machine code, which the lane engine of the model runs."""

from __future__ import annotations

from functools import cache

from am.kernels import LAYOUTS, WRITTEN
from am.kfd_target import KfdTarget
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.drivers.am.code.object import CodeObject, read_code_object
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.kfd.port import ComputeKind
from gpu.hcq.device import HCQDevice
from gpu.hcq.program import HCQProgram
from gpu.sim.amd.chip.lanes import LaneExecutor

CHIP = "gfx1100"

# What a kernel does not ask for, or LLVM has it given all of them.
_UNUSED = " ".join(
    f'"amdgpu-no-{name}"'
    for name in (
        *("dispatch-ptr", "queue-ptr", "implicitarg-ptr", "dispatch-id", "heap-ptr"),
        *("workgroup-id-x", "workgroup-id-y", "workgroup-id-z", "lds-kernel-id"),
        *("workitem-id-x", "workitem-id-y", "workitem-id-z", "hostcall-ptr", "default-queue"),
        *("completion-action", "multigrid-sync-arg"),
    )
)
_LOOP = """
define amdgpu_kernel void @{name}({parameters}, i32 %n) #0 {{
entry:
  %some = icmp ne i32 %n, 0
  br i1 %some, label %loop, label %end
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %at = zext i32 %i to i64
{body}
  %place = getelementptr i32, ptr addrspace(1) %out, i64 %at
  store i32 %value, ptr addrspace(1) %place
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,1024" {unused} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
"""
SOURCES = {
    "add": _LOOP.format(
        name="add",
        unused=_UNUSED,
        parameters=", ".join(f"ptr addrspace(1) %{name}" for name in ("out", "a", "b")),
        body="""
  %pa = getelementptr i32, ptr addrspace(1) %a, i64 %at
  %pb = getelementptr i32, ptr addrspace(1) %b, i64 %at
  %va = load i32, ptr addrspace(1) %pa
  %vb = load i32, ptr addrspace(1) %pb
  %value = add i32 %va, %vb""",
    ),
    "fill": _LOOP.format(
        name="fill",
        unused=_UNUSED,
        parameters="ptr addrspace(1) %out, i32 %given",
        body="  %value = add i32 %given, 0",
    ),
}


# Each work-item keeps 16 numbers in memory of its own, and writes them in reverse.
SOURCES["reverse"] = f"""
define amdgpu_kernel void @reverse(ptr addrspace(1) %out) #0 {{
entry:
  %own = alloca [16 x i32], addrspace(5)
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %first = shl i32 %t, 4
  br label %keep
keep:
  %i = phi i32 [0, %entry], [%i1, %keep]
  %number = add i32 %first, %i
  %slot = getelementptr [16 x i32], ptr addrspace(5) %own, i32 0, i32 %i
  store volatile i32 %number, ptr addrspace(5) %slot
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, 16
  br i1 %more, label %keep, label %write
write:
  %j = phi i32 [0, %keep], [%j1, %write]
  %back = sub i32 15, %j
  %from = getelementptr [16 x i32], ptr addrspace(5) %own, i32 0, i32 %back
  %found = load volatile i32, ptr addrspace(5) %from
  %index = add i32 %first, %j
  %place = getelementptr i32, ptr addrspace(1) %out, i32 %index
  store i32 %found, ptr addrspace(1) %place
  %j1 = add i32 %j, 1
  %again = icmp ult i32 %j1, 16
  br i1 %again, label %write, label %end
end:
  ret void
}}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,1024" {_UNUSED} }}
!llvm.module.flags = !{{!0}}
!0 = !{{i32 1, !"amdhsa_code_object_version", i32 500}}
""".replace('"amdgpu-no-workitem-id-x"', "")


@cache
def code_object(name: str, chip: str = CHIP) -> CodeObject:
    """One of the kernels, compiled."""
    return read_code_object(AMDCompiler(chip).compile(SOURCES[name]))


class MachineTarget(KfdTarget):
    """A machine that runs machine code."""

    def __init__(self, seed: int, compute: ComputeKind, chip: str = CHIP):
        super().__init__(seed, chip, compute, executor=LaneExecutor())
        self.chip = chip

    def program(self, device: HCQDevice, name: str) -> HCQProgram:
        assert isinstance(device, AmDevice)
        return device.load(code_object(name, self.chip), name, LAYOUTS[name], written=WRITTEN)
