"""Compilers outside this package: text in, machine code out."""
