"""What CUDA C and HIP C++ share: parameters of a kernel, and the memory of its locals."""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst
from gpu.compiler.render.cstyle.grid import GridPrinter
from gpu.compiler.render.cstyle.text import OPENCL, Value
from gpu.compiler.render.launch.locals import ALIGN


class CudaGridPrinter(GridPrinter):
    """One program on its way to text, by pointers without address spaces."""

    def _parameters(self) -> list[str]:
        pointers = [
            f"{'' if param.written else 'const '}{OPENCL.type_of(param.dtype)} *__restrict__ p{i}"
            for i, param in enumerate(self.program.params)
        ]
        if self.places.workspace:
            pointers.append("uchar *__restrict__ workspace")
        return [*pointers, *(f"long value{i}" for i in range(len(self.program.vals)))]

    def _own_workspace(self) -> list[str]:
        own = f"  uchar *own = workspace + {self._thread_offset()};"
        return [own] if self.places.workspace else []

    def _local(self, inst: Inst) -> Value:
        element, name = OPENCL.type_of(inst.dtype), self.emitter.name("local")
        if (place := self._place(inst)) is not None:
            self.emitter.entry.append(f"  {element} *{name} = ({element} *)({place});")
        else:
            shared = "__shared__ " if inst in self.places.shared else ""
            array = f"{element} {name}[{inst.attr[0]}] __attribute__((aligned({ALIGN})))"
            self.emitter.entry.append(f"  {shared}{array};")
        return Value(element, name)

    def _place(self, inst: Inst) -> str | None:
        """The address of a local in memory that the kernel is given; None where it is declared."""
        offset = self.places.offsets.get(inst)
        return None if offset is None else f"own + {offset}"
