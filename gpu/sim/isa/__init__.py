"""Executors of real machine code: one native lane engine, and what each instruction set adds."""
