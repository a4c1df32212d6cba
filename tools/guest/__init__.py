"""A machine with a real Linux in it: QEMU, Debian's kernel, and this tree's code inside.

`python -m tools.guest SCRIPT` runs a Python script there. The packages come from this machine's own
apt and are unpacked into a folder of the cache; nothing is installed.
"""
