"""objc_msgSend: machine code that finds a method by class and selector, and goes on there.

All registers of a call stay as they were, so that a method has the C signature of its selector. An
object begins with the address of its class, and a class has, behind 16 bytes, the address of a
method for each selector. A table, `metal_tables`, says where objects and selectors lie and what
answers a message to what is none; a message to nil gives zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

from gpu.sim.isa.native import load_code

METHODS: Final = 16
"""Where in a class the addresses of methods begin."""
_TEXT: Final = """
@metal_tables = external global [6 x i64]

define internal { i64, i64, double } @nothing() {
  ret { i64, i64, double } zeroinitializer
}

define internal ptr @find(ptr %self, ptr %selector) {
  %object = ptrtoint ptr %self to i64
  %is_nil = icmp eq i64 %object, 0
  br i1 %is_nil, label %nil, label %some
some:
  %objects = load i64, ptr @metal_tables
  %objects_size = load i64, ptr getelementptr (i64, ptr @metal_tables, i64 1)
  %place = sub i64 %object, %objects
  %inside = icmp ult i64 %place, %objects_size
  %low = and i64 %place, 15
  %aligned = icmp eq i64 %low, 0
  %is_object = and i1 %inside, %aligned
  br i1 %is_object, label %real, label %no_object
real:
  %class = load i64, ptr %self
  %has_class = icmp ne i64 %class, 0
  br i1 %has_class, label %classed, label %no_object
classed:
  %address = ptrtoint ptr %selector to i64
  %selectors = load i64, ptr getelementptr (i64, ptr @metal_tables, i64 2)
  %selectors_size = load i64, ptr getelementptr (i64, ptr @metal_tables, i64 3)
  %offset = sub i64 %address, %selectors
  %known = icmp ult i64 %offset, %selectors_size
  %odd = and i64 %offset, 7
  %even = icmp eq i64 %odd, 0
  %is_selector = and i1 %known, %even
  br i1 %is_selector, label %good, label %no_selector
good:
  %methods = add i64 %class, 16
  %slot = add i64 %methods, %offset
  %slot_pointer = inttoptr i64 %slot to ptr
  %method = load ptr, ptr %slot_pointer
  ret ptr %method
nil:
  ret ptr @nothing
no_object:
  %answer = load ptr, ptr getelementptr (i64, ptr @metal_tables, i64 4)
  ret ptr %answer
no_selector:
  %refusal = load ptr, ptr getelementptr (i64, ptr @metal_tables, i64 5)
  ret ptr %refusal
}

define void @objc_msgSend(ptr %self, ptr %selector, ...) {
  %method = call ptr @find(ptr %self, ptr %selector)
  musttail call void (ptr, ptr, ...) %method(ptr %self, ptr %selector, ...)
  ret void
}
"""


class Sender:
    """An objc_msgSend over tables of its own.

    Attributes:
        address: of the function.
    """

    def __init__(self, tables: Sequence[int]):
        """`tables`: where objects begin and their bytes, the same of selectors, and two functions.

        They answer messages to what is no object, and with what is no selector.
        """
        self._tables = (ctypes.c_uint64 * len(tables))(*tables)
        self._code = load_code("metal", _TEXT, {"metal_tables": ctypes.addressof(self._tables)})
        self.address = self._code.address("objc_msgSend")
