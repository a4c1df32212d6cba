"""Writes autogen/ anew from the headers of named Debian packages; see autogen/README.md.

    python -m tools.autogen --list
    python -m tools.autogen --check
    python -m tools.autogen amd_kfd amd/gc_11_0_0

`recipes.py` says which module comes from which header; the rest is how. Nothing of the package
`gpu` is imported, so that a broken module can be made again.
"""
