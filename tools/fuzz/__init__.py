"""Malformed inputs for whatever reads bytes from outside, made from good ones by mutation.

``python -m tools.fuzz elf --count 100000`` mutates the files below tests/fuzz/corpus/elf and hands
each result to what parses ELF files. It may be refused by a `GpuError`; any other exception, and
one that takes too long, is a finding, which is kept beside the files it was made from.
"""
