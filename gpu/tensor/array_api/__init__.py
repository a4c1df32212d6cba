"""The Python array API standard, 2025.12, by its chapters: the functions of `gpu.array_api`.

A function is a signature and a call of tensor methods. Where torch, which `Tensor` follows, and the
standard differ, it follows the standard: no correction in `std`, sums of narrow integers in int32.
Of `linalg` some functions are not there. What is wrong raises the errors of the methods, which are
ValueErrors, TypeErrors and IndexErrors too.
"""
