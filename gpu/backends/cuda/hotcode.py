"""What a launch and a replay do in native code, as LLVM IR: calls of libcuda, no Python between.

Both take a block of 64-bit words that Python owns. A launch is given one thing: the address of
its block in 8 bytes, and behind them its packed arguments.

A launch asks for the thread's context and launches if it is ours: else it gives `OTHER_CONTEXT`,
having done nothing. Words of its block:

====  ==================================================================
0, 1  cuCtxGetCurrent, and the CUcontext that it has to give
2     cuLaunchKernelEx
3     to 5: what that is given: CUlaunchConfig, CUfunction, `extra`
6     where `extra` has the address of the arguments: no other launch comes between
7     for the current context
====  ==================================================================

A replay asks for the context as a launch does, gives its nodes the arguments that are others than
before, and runs them. Words of its block:

====  ==================================================================
0, 1  cuGraphExecKernelNodeSetParams, and the executable graph
2, 3  how many values there are; for each the place of its first use, one more at the end
4     uses: pairs of a node's number and of where the value is put
5, 6  the values, and those of the call before
7     whether the nodes have all of those; 0 after an error
8, 9  how many nodes there are; pairs of a CUgraphNode and its parameters
10    for each node a byte that is 0
11    the number of a node that libcuda has refused; how many there are, where it was the run
12    cuCtxGetCurrent, the CUcontext that it has to give, and room for what it gives
15    cuGraphLaunch, and the stream
====  ==================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from gpu.backends.cpu.ircode import load_ir
from gpu.backends.cpu.native import native_function
from gpu.core.objload import LoadedObject

OTHER_CONTEXT: Final = -1  # no CUresult
IS_SET: Final = 7
REFUSED: Final = 11


class HotCode(NamedTuple):
    """The functions; each takes what the module's docstring says and gives a CUresult.

    Attributes:
        code: keeps them.
    """

    code: LoadedObject
    launch: Callable[..., int]
    replay: Callable[..., int]


@cache
def hot_code() -> HotCode:
    """The functions of this process. Raises Unsupported where no compiler for them is there."""
    code = load_ir(_source)

    launch = native_function(code.address("launch"), "int(*)(char const *)")
    return HotCode(code, launch, native_function(code.address("replay"), "int(*)(void *)"))


def _source(_: str) -> str:
    return _LAUNCH + _REPLAY


def _word(number: int, kind: str, name: str) -> str:
    """Reads a word of the block."""
    return (
        f"  %{name}.at = getelementptr i64, ptr %block, i64 {number}\n"
        f"  %{name} = load {kind}, ptr %{name}.at, align 8\n"
    )


_LAUNCH: Final = f"""
define i32 @launch(ptr %given) nounwind {{
entry:
  %block = load ptr, ptr %given, align 1
  %arguments = getelementptr i64, ptr %given, i64 1
{_word(0, "ptr", "get")}{_word(1, "i64", "ours")}
  %current.at = getelementptr i64, ptr %block, i64 7
  %asked = call i32 %get(ptr %current.at)
  %current = load i64, ptr %current.at, align 8
  %failed = icmp ne i32 %asked, 0
  br i1 %failed, label %out, label %look
look:
  %same = icmp eq i64 %current, %ours
  br i1 %same, label %go, label %out
go:
{_word(2, "ptr", "start")}{_word(3, "ptr", "config")}{_word(4, "ptr", "function")}
{_word(5, "ptr", "extra")}{_word(6, "ptr", "put")}
  store ptr %arguments, ptr %put, align 8
  %code = call i32 %start(ptr %config, ptr %function, ptr null, ptr %extra)
  br label %out
out:
  %result = phi i32 [ {OTHER_CONTEXT}, %entry ], [ {OTHER_CONTEXT}, %look ], [ %code, %go ]
  ret i32 %result
}}
"""


_REPLAY: Final = f"""
define i32 @replay(ptr %block) nounwind {{
entry:
{_word(12, "ptr", "get")}{_word(13, "i64", "ours")}
  %current.at = getelementptr i64, ptr %block, i64 14
  %asked = call i32 %get(ptr %current.at)
  %current = load i64, ptr %current.at, align 8
  %answered = icmp eq i32 %asked, 0
  %same = icmp eq i64 %current, %ours
  %entered = and i1 %answered, %same
  br i1 %entered, label %begin, label %other
other:
  ret i32 {OTHER_CONTEXT}
begin:
{_word(0, "ptr", "set")}{_word(1, "ptr", "graph")}{_word(2, "i64", "count")}
{_word(3, "ptr", "firsts")}{_word(4, "ptr", "uses")}{_word(5, "ptr", "new")}
{_word(6, "ptr", "old")}{_word(IS_SET, "i64", "is.set")}{_word(8, "i64", "nodes")}
{_word(9, "ptr", "table")}{_word(10, "ptr", "dirty")}
  %all = icmp eq i64 %is.set, 0
  store i64 0, ptr %is.set.at, align 8
  %none = icmp eq i64 %count, 0
  br i1 %none, label %nodes.begin, label %value
value:
  %i = phi i64 [ 0, %begin ], [ %i.next, %value.end ]
  %given.at = getelementptr i64, ptr %new, i64 %i
  %had.at = getelementptr i64, ptr %old, i64 %i
  %given = load i64, ptr %given.at, align 8
  %had = load i64, ptr %had.at, align 8
  store i64 %given, ptr %had.at, align 8
  %differs = icmp ne i64 %given, %had
  %wanted = or i1 %differs, %all
  %first.at = getelementptr i64, ptr %firsts, i64 %i
  %end.at = getelementptr i64, ptr %first.at, i64 1
  %first = load i64, ptr %first.at, align 8
  %end = load i64, ptr %end.at, align 8
  %used = icmp ult i64 %first, %end
  %go = and i1 %wanted, %used
  br i1 %go, label %use, label %value.end
use:
  %j = phi i64 [ %first, %value ], [ %j.next, %use ]
  %pair = shl i64 %j, 1
  %number.at = getelementptr i64, ptr %uses, i64 %pair
  %place.at = getelementptr i64, ptr %number.at, i64 1
  %number = load i64, ptr %number.at, align 8
  %place = load ptr, ptr %place.at, align 8
  store i64 %given, ptr %place, align 8
  %touched.at = getelementptr i8, ptr %dirty, i64 %number
  store i8 1, ptr %touched.at, align 1
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %end
  br i1 %j.more, label %use, label %value.end
value.end:
  %i.next = add i64 %i, 1
  %i.more = icmp ult i64 %i.next, %count
  br i1 %i.more, label %value, label %nodes.begin
nodes.begin:
  br label %node
node:
  %n = phi i64 [ 0, %nodes.begin ], [ %n.next, %node.end ]
  %n.more = icmp ult i64 %n, %nodes
  br i1 %n.more, label %ask, label %done
ask:
  %mark.at = getelementptr i8, ptr %dirty, i64 %n
  %mark = load i8, ptr %mark.at, align 1
  %is.dirty = icmp ne i8 %mark, 0
  br i1 %is.dirty, label %change, label %node.end
change:
  store i8 0, ptr %mark.at, align 1
  %row = shl i64 %n, 1
  %handle.at = getelementptr i64, ptr %table, i64 %row
  %parameters.at = getelementptr i64, ptr %handle.at, i64 1
  %handle = load ptr, ptr %handle.at, align 8
  %parameters = load ptr, ptr %parameters.at, align 8
  %code = call i32 %set(ptr %graph, ptr %handle, ptr %parameters)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %refused, label %node.end
node.end:
  %n.next = add i64 %n, 1
  br label %node
refused:
  %refused.at = getelementptr i64, ptr %block, i64 {REFUSED}
  store i64 %n, ptr %refused.at, align 8
  ret i32 %code
done:
  store i64 1, ptr %is.set.at, align 8
{_word(15, "ptr", "start")}{_word(16, "ptr", "stream")}
  %ran = call i32 %start(ptr %graph, ptr %stream)
  %ran.refused.at = getelementptr i64, ptr %block, i64 {REFUSED}
  store i64 %nodes, ptr %ran.refused.at, align 8
  ret i32 %ran
}}
"""
