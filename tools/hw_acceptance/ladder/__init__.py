"""The ladder: from opening the kernel driver to kernels and copies, each step proving one thing.

Steps build on each other, but each runs in a process of its own and opens the device anew.
"""
