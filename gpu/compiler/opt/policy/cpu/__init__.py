"""Choices for CPUs: lanes, tiles in registers, dot products, columns, transpositions, AMX."""
