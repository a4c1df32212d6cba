"""Compares our tables for NVIDIA with Debian's package of the open kernel modules.

    python -m tools.autogen.nvidia [--debs FOLDER] [--all]

The tables of autogen/nv, gpu/drivers/nv and gpu/sim/nv are written by hand, since their headers are
in no package. Much of what those say is in the package nonetheless: the headers of the kernel's own
side, and in the debugging information and the tables of RM's compiled half the layout of every
structure, the size of each control command's argument and the number of each class.

`package.py` reads those, `dwarf.py` with gdb, `tables.py` says what of ours there is to compare.
"""
