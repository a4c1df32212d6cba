"""Linear IR printed as WGSL: one statement for each instruction.

The iterations of `grid` loops are the invocations of a launch, or its workgroups where the program
has `thread` loops. How that is launched is said in `gpu/compiler/render/wgsl/launch.py`, how
elements lie in memory in `gpu/compiler/render/wgsl/memory.py`, and what the types are in
`gpu/compiler/render/wgsl/ops.py`.
"""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.optable import fold_cast
from gpu.compiler.render.wgsl import exact, memory
from gpu.compiler.render.wgsl.launch import repeats_of, shape_of, spills_of, textures_of
from gpu.compiler.render.wgsl.memory import Place, element_type, is_packed
from gpu.compiler.render.wgsl.ops import HELPERS, NATIVE, Expressions, type_name
from gpu.compiler.render.wgsl.writer import Writer
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported, VerifyError


class Module(Writer):
    """One program on its way to text; instructions are printed by the method of their name.

    `most_groups` are workgroups in a dimension, `rounds` those of all loops of an invocation, 0 for
    any number.
    """

    def __init__(self, program: Program, most_groups: int, rounds: int, has_f16: bool):
        super().__init__()
        self.program, self.has_f16 = program, has_f16
        self.shape = shape_of(program, most_groups)
        self.expressions = Expressions(has_f16)
        self.declarations: list[str] = []
        self.functions: dict[str, str] = {}
        self.places: dict[Inst, Place] = {}
        self.carries: dict[Inst, list[str]] = {}
        self.closes: dict[Inst, bool] = {}
        self.extensions = {"f16": None} if has_f16 else {}
        self.spilled = spills_of(program, self.shape, has_f16)
        self.textures = textures_of(program)
        self.stored_in_quads = memory.stored_in_quads(program.body)
        self.repeats = repeats_of(program, rounds)
        self.bodies: dict[Inst, int] = {}  # where in `lines` the body of a repeated loop starts

    def text(self) -> str:
        """The whole source."""
        self._declare_parameters()
        self._declare_vals()
        self._prologue()
        start = len(self.lines)
        for inst in self.program.body:
            getattr(self, f"_{inst.op}", self._foreign)(inst)
        if "opaque" in self.expressions.used:
            # No buffer is empty, but compilers do not know that.
            buffer = next(i for i in range(len(self.program.params)) if i not in self.textures)
            self.lines.insert(start, f"  zero = u32(arrayLength(&p{buffer}) == 0u);")
        x, y, z = self.shape.size
        helpers = [HELPERS[name] for name in self.expressions.used]
        return "\n".join(
            [
                *(f"enable {name};" for name in self.extensions),
                *self.declarations,
                *helpers,
                *self.functions.values(),
                f"@compute @workgroup_size({x}, {y}, {z})",
                f"fn {self.program.name}(@builtin(workgroup_id) group: vec3u,",
                "    @builtin(local_invocation_id) thread: vec3u) {",
                *self.lines,
                "}",
                "",
            ]
        )

    # Declarations.

    def _declare_parameters(self) -> None:
        in_quads = {pointer.attr[0] for pointer in self.stored_in_quads}
        for number, param in enumerate(self.program.params):
            if number in self.textures:
                self.declarations.append(
                    f"@group(0) @binding({number}) var p{number}: texture_2d<u32>;"
                )
                self.functions[f"quad_p{number}"] = memory.quad_function(
                    f"p{number}", param.dtype, self.has_f16
                )
                continue
            packed = is_packed(param.dtype, self.has_f16)
            atomic = packed and param.written
            kind = element_type(param.dtype, self.has_f16, atomic)
            kind = f"vec4<{kind}>" if number in in_quads and not packed else kind
            self._declare_buffer(number, f"p{number}", kind, param.written)
            if atomic:
                place = Place(f"p{number}", param.dtype, packed=True, atomic=True)
                self.functions[place.name] = memory.store_function(place)
                if number in in_quads:
                    self.functions[f"store_quad_{place.name}"] = memory.store_quad_function(
                        place, self.has_f16
                    )
        if self.spilled:
            self._declare_buffer(len(self.program.params), "spilled", "u32", True)

    def _declare_buffer(self, binding: int, name: str, kind: str, written: bool) -> None:
        access = "read_write" if written else "read"
        self.declarations.append(
            f"@group(0) @binding({binding}) var<storage, {access}> {name}: array<{kind}>;"
        )

    def _declare_vals(self) -> None:
        if not self.program.vals:
            return
        members = ", ".join(f"val{i}: i32" for i in range(len(self.program.vals)))
        binding = len(self.program.params) + bool(self.spilled)
        self.declarations += [
            f"struct Vals {{ {members} }}",
            f"@group(0) @binding({binding}) var<uniform> vals: Vals;",
        ]

    def _prologue(self) -> None:
        """Which iteration this invocation is, and an early end for those that are none.

        Where all are some there is no such end: compilers do better outside of conditions.
        """
        shape, (x, y, z) = self.shape, self.shape.counts
        self.line(f"let block = group.x + group.y * {x}u + group.z * {x * y}u;")
        if shape.threads:
            if shape.groups < x * y * z:
                self.line(f"if (block >= {shape.groups}u) {{ return; }}")
            self.line("let iteration = i32(block);")
        else:
            self.line(f"let iteration = i32(block * {shape.size[0]}u + thread.x);")
            if shape.iterations < x * y * z * shape.size[0]:
                self.line(f"if (iteration >= {shape.iterations}) {{ return; }}")

    # Instructions.

    def _foreign(self, inst: Inst) -> None:
        raise Unsupported(f"{self.program.name}: WGSL has no vectors here, but was given {inst}")

    def _const(self, inst: Inst) -> None:
        if inst.lanes > 1:
            self._foreign(inst)
        self.names[inst] = self.expressions.const(inst.dtype, inst.attr[0])

    def _param(self, inst: Inst) -> None:
        packed = is_packed(inst.dtype, self.has_f16)
        written = self.program.params[inst.attr[0]].written
        self.places[inst] = Place(
            f"p{inst.attr[0]}",
            inst.dtype,
            packed,
            packed and written,
            quads=inst in self.stored_in_quads,
        )

    def _val(self, inst: Inst) -> None:
        self.names[inst] = f"vals.val{inst.attr[0]}"

    def _local(self, inst: Inst) -> None:
        elements, space = inst.attr
        kind = type_name(inst.dtype, self.has_f16)
        if inst in self.spilled:
            self._spilled(inst)
            return
        name = self.fresh("m")
        if self.shape.threads and space == "team":
            self.declarations.append(f"var<workgroup> {name}: array<{kind}, {elements}>;")
        else:
            self.line(f"var {name}: array<{kind}, {elements}>;")
        self.places[inst] = Place(name, inst.dtype)

    def _spilled(self, inst: Inst) -> None:
        """Memory of all invocations in one buffer, their first elements first."""
        x, y, z = self.shape.size
        own = "iteration"
        if self.shape.threads:
            own = (
                f"(iteration * {x * y * z} + i32(thread.x + thread.y * {x}u + thread.z * {x * y}u))"
            )
        self.places[inst] = Place(
            "spilled",
            inst.dtype,
            spilled=True,
            stride=self.shape.invocations,
            base=f"{own} + {self.spilled[inst]}",
        )

    def _loop(self, inst: Inst) -> None:
        kind, start, stop, step = inst.attr
        limit = self.names[stop.value] if isinstance(stop, Limit) else f"{stop}"
        self.names[inst] = name = self.fresh("n")
        if kind == "grid":
            self._grid(inst, name)
            if isinstance(stop, Limit):
                self.open(f"if ({name} < {limit})")
            self.closes[inst] = isinstance(stop, Limit)
            return
        if kind == "thread":
            rank = len([n for n in self.closes if n.attr[0] == "thread"])
            self.line(f"let {name} = i32({self.shape.counter(rank)});")
            self.closes[inst] = False
            return
        self.carries[inst] = []
        for value in self.args(inst):
            carry = self.fresh("c")
            self.line(f"var {carry} = {value};")
            self.carries[inst].append(carry)
        following = "" if inst in self.repeats else f"{name} += {step}i"
        self.open(f"for (var {name} = {start}i; {name} < {limit}; {following})")
        self.bodies[inst] = len(self.lines)
        self.closes[inst] = True

    def _grid(self, inst: Inst, name: str) -> None:
        stride = 1
        for loop, extent in reversed(self.shape.grid):
            if loop is inst:
                break
            stride *= extent
        outermost = self.shape.grid[0][0] is inst
        text = "iteration" if stride == 1 else f"iteration / {stride}"
        self.line(f"let {name} = {text if outermost else f'({text}) % {extent}'};")

    def _carry(self, inst: Inst) -> None:
        self.names[inst] = self.carries[inst.args[0]][inst.attr[0]]

    def _end(self, inst: Inst) -> None:
        (loop,) = inst.attr
        if loop not in self.closes:
            raise VerifyError(f"{self.program.name}: {inst} ends no loop")
        carries = self.carries.get(loop, [])
        values = self.args(inst)
        if len(values) > 1:  # one may be the old value of another
            values = [self._kept(value, carries) for value in values]
        for carry, value in zip(carries, values, strict=True):
            if carry != value:
                self.line(f"{carry} = {value};")
        if loop in self.repeats:
            self._repeat(loop)
        if self.closes[loop]:
            self.close()
        self.carries[inst] = carries

    def _repeat(self, loop: Inst) -> None:
        """Writes the body of a loop out several times, each guarded by the loop's condition."""
        _, _, stop, step = loop.attr
        name, start = self.names[loop], self.bodies[loop]
        limit = self.names[stop.value] if isinstance(stop, Limit) else f"{stop}"
        self.line(f"{name} += {step}i;")
        body = self.lines[start:]
        for _ in range(self.repeats[loop] - 1):
            self.open(f"if ({name} < {limit})")
            self.lines += body
            self.close()

    def _kept(self, value: str, carries: list[str]) -> str:
        if value not in carries:
            return value
        name = self.fresh()
        self.line(f"let {name} = {value};")
        return name

    def _result(self, inst: Inst) -> None:
        self.let(inst, self.carries[inst.args[0]][inst.attr[0]])

    def _if(self, inst: Inst) -> None:
        self.open(f"if ({self.args(inst)[0]})")

    def _endif(self, inst: Inst) -> None:
        del inst
        self.close()

    def _barrier(self, inst: Inst) -> None:
        del inst
        self.line("workgroupBarrier();")

    def _shuffle_xor(self, inst: Inst) -> None:
        self.extensions["subgroups"] = None
        (value,), (distance, _) = self.args(inst), inst.attr
        self.let(inst, f"subgroupShuffleXor({value}, {distance}u)")

    def _load(self, inst: Inst) -> None:
        place = self.places[inst.args[0]]
        at, *mask = (self.names[a] for a in inst.args[1:])
        if inst.lanes > 1:
            self.let(inst, memory.load_quad(place.name, at))
            return
        if mask:
            at = f"select(0i, {at}, {mask[0]})"
        text = memory.load(place, at)
        if mask:
            text = f"select({self.expressions.zero(inst.dtype)}, {text}, {mask[0]})"
        self.let(inst, text)

    def _store(self, inst: Inst) -> None:
        place = self.places[inst.args[0]]
        at, value, *mask = (self.names[a] for a in inst.args[1:])
        is_quad = inst.args[2].lanes > 1
        statement = (memory.store_quad if is_quad else memory.store)(place, at, value)
        self.line(f"if ({mask[0]}) {{ {statement} }}" if mask else statement)

    def _extract(self, inst: Inst) -> None:
        self.names[inst] = f"{self.args(inst)[0]}.{'xyzw'[inst.attr[0]]}"

    def _pack(self, inst: Inst) -> None:
        kind = type_name(inst.dtype, self.has_f16)
        self.let(inst, f"vec{inst.lanes}<{kind}>({', '.join(self.args(inst))})")

    def _splat(self, inst: Inst) -> None:
        """Of a mask, which all elements of a quad have in common."""
        self.names[inst] = self.args(inst)[0]

    def _alu(self, inst: Inst) -> None:
        if inst.lanes > 1:
            self._foreign(inst)
        (name,) = inst.attr
        last = inst.args[-1]
        is_number = last.dtype.is_int or last.dtype.is_float
        is_word = not is_number or last.dtype.bits == 32
        is_chosen = name == "where" and last.dtype.bits < 32
        if name not in NATIVE or not (is_word or is_chosen):
            raise Unsupported(
                f"{self.program.name}: {name} on {last.dtype.name}; legalize it before rendering"
            )
        self.let(inst, self._exact(inst) or self._operation(inst))

    def _operation(self, inst: Inst) -> str:
        args = self.args(inst)
        for number, must_hide in enumerate(exact.hidden(inst)):
            if must_hide:
                self.expressions.use("opaque")
                args[number] = f"opaque({args[number]})"
        if inst.attr[0] in ("shl", "shr"):
            args[1] = self._count(inst.args[1])
        return self.expressions.alu(inst.attr[0], inst.args[-1].dtype, args)

    def _count(self, inst: Inst) -> str:
        """A count of bits, which is a u32 to WGSL."""
        if inst.op == "const":
            return self.expressions.const(dtypes.uint32, inst.attr[0])
        text = self.names[inst]
        return text if type_name(inst.dtype, self.has_f16) == "u32" else f"u32({text})"

    def _exact(self, inst: Inst) -> str:
        """A test that compilers get wrong for NaNs, in another form; empty for all else."""
        if exact.is_nan_test(inst):
            self.expressions.use("is_nan")
            return f"{'!' if inst.attr[0] == 'eq' else ''}is_nan({self.args(inst)[0]})"
        if exact.is_denied_order(inst):
            self.expressions.use("is_nan")
            a, b = (self.names[arg] for arg in inst.args[0].args)
            sign = "<=" if inst.args[0].attr[0] == "lt" else "<"
            return f"{b} {sign} {a} || is_nan({a}) || is_nan({b})"
        return ""

    def _cast(self, inst: Inst) -> None:
        source = inst.args[0].dtype
        words = (dtypes.int32, dtypes.int64)
        if source in words and inst.dtype in words:
            self.names[inst] = self.names[inst.args[0]]
        else:
            self.let(inst, self.expressions.cast(self.names[inst.args[0]], source, inst.dtype))

    def _bitcast(self, inst: Inst) -> None:
        (source,) = inst.args
        if source.op == "const" and inst.dtype.bits == 32:
            value = fold_cast(source.attr[0], source.dtype, inst.dtype, bits=True)
            self.names[inst] = self.expressions.const(inst.dtype, value)
            return
        self.let(inst, self.expressions.bitcast(self.names[source], source.dtype, inst.dtype))
