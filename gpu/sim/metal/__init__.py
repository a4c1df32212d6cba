"""A strict model of a Mac's Metal: the runtime of Objective-C, Foundation, and simulated GPUs.

It is written from Apple's documentation of Metal and of Objective-C, and from the selectors, types
and numbers of metal-cpp. `gpu/sim/metal/library.py:MetalLibrary` is what a client binds to; kernels
are MSL that a compiler, which it is given, makes LLVM's bitcode of, and run on the host.
"""

from __future__ import annotations
