"""Asks libLLVM for every opcode of every instruction format of an AMD chip.

``python -m tools.isa_sweep gfx1100`` writes the decode table below gpu/sim/isa/rdna/tables. LLVM's
disassembler is the witness: the tool only encodes instructions with chosen fields and reads what
comes back.
"""
