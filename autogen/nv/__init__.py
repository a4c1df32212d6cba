"""NVIDIA's kernel driver interface: ioctl numbers, struct layouts, class ids, status codes.

Written by hand: no package holds these headers. The facts are those of driver 580.142 (struct
layouts measured by compiling each header and reading the debug information), restated from
NVIDIA/open-gpu-kernel-modules and NVIDIA/open-gpu-doc; each module names the files its facts are
from. `gsp` and `ucode` are of 570.144, the firmware that boots a card without a kernel driver.
Names keep NVIDIA's spelling. ``tests/unit/nv/test_structs.py`` and those of ``nv_pci`` check every
size and offset against a table of their own, and ``tools.autogen.nvidia`` compares what Debian's
package of the open kernel modules has of it.
"""
