"""Linear IR printed in languages like C: C for clang, OpenCL C, CUDA C."""
